"""Whether NCCL_IB_HCA leaves NCCL the NICs that are meant for the GPUs' traffic."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.affinity import own_gpus
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.settings import in_force, no_active_nic, place, quoted, values
from topocheck.checks.sources import NICS, Needs
from topocheck.model.base import Evidence, Finding, State, known
from topocheck.nccl.topofile.nic_selection import chosen


class Wire(msgspec.Struct, frozen=True):
    """One active port. `cable` is (physical function, port): that of a virtual function is its card's.

    `rate_gbit_s` is 0 where the port does not tell its rate.
    """

    device: str
    port: int
    cable: tuple[str, int]
    rate_gbit_s: float
    layer: str
    near: bool

    @property
    def name(self) -> str:
        """`mlx5_0:1`, as NCCL_IB_HCA takes it."""
        return f"{self.device}:{self.port}"


def _wires(c: Context) -> list[Wire]:
    """Return the active ports; `near` are those of NICs nearest to a GPU that this process works with.

    Where nobody can tell which are nearest, all of them may be.
    """
    own = {g.address for g in own_gpus(c)}
    near = {a for x in c.topology.nearest_nics if x.gpu in own for a in x.nics}
    near = near or {n.address for n in c.topology.nics}
    return [
        Wire(
            n.label,
            p.port,
            (n.rdma.physfn if known(n.rdma.physfn) else n.address, p.port),
            p.rate_gbit_s if known(p.rate_gbit_s) else 0.0,
            str(p.link_layer),
            n.address in near,
        )
        for n in c.topology.nics
        if n.rdma is not None
        for p in n.rdma.ports
        if p.state == "ACTIVE"
    ]


def _total(wires: list[Wire]) -> float:
    """Return the sum of rates, Gb/s; the functions of one card share its cable."""
    return sum({w.cable: w.rate_gbit_s for w in wires}.values())


def _better(w: Wire, used: list[Wire]) -> bool:
    """Tell whether a port left out is faster than all in use, or as fast and of their link layer.

    An Ethernet port beside InfiniBand of its rate is left out on purpose: NCCL does not join the two.
    """
    best = max(u.rate_gbit_s for u in used)
    return w.rate_gbit_s > best or (w.rate_gbit_s == best and w.layer in {u.layer for u in used})


@check(
    "nccl.hca-excluded",
    title="NCCL_IB_HCA leaves out most of the network near the GPUs",
    severity=State.WARN,
    reads=("NCCL_IB_HCA", "/sys/class/infiniband/*/ports/*/state", "/sys/class/infiniband/*/ports/*/rate"),
    needs=Needs((*NICS, "settings"), ("rate",)),
    scope=Scope.PROCESS,
)
def hca_left_out(c: Context) -> Iterator[Finding]:
    """NCCL_IB_HCA leaves NCCL less of the network than it leaves out.

    Looks at:
        The rates of the active ports that the list leaves, against those it leaves out on the NICs nearest to the
        GPUs of this process: faster than all that are left, or as fast and of their link layer.

    Why it matters:
        The list is often copied from a machine with other names: traffic between nodes then goes by one NIC of
        eight, or by those for storage, and no error is seen.

    Fix:
        `topocheck emit nccl-env` writes the list of this machine.

    Does not apply:
        Where the list leaves out only slower ports, farther ones, virtual functions of a card in use, or no more
        than it leaves: storage and management NICs are left out rightly. Where the process works with one GPU of
        several, only the NICs nearest to that one count.
    """
    s = in_force(c).get("NCCL_IB_HCA")
    if s is None:
        raise not_applicable("NCCL_IB_HCA is not set")
    if values(c).nonzero("NCCL_IB_DISABLE"):
        raise not_applicable("NCCL_IB_DISABLE is set; see nccl.transport-disabled")
    every = _wires(c)
    if not every or not c.topology.gpus:
        raise not_applicable(no_active_nic(c) if c.topology.gpus else "no NVIDIA GPU, so no NCCL job runs here")
    used = [w for w in every if chosen(s.value, w.device, w.port)]
    if not used:
        raise not_applicable("it leaves no active port; see nccl.hca-missing")
    untold = [w for w in every if not w.rate_gbit_s and (w.near or w in used)]
    if untold and len(used) < len(every):
        yield Finding(
            state=State.UNKNOWN,
            subject=place(s),
            title=f"NCCL_IB_HCA={s.value}: {_told(untold)} report no rate, so what it excludes cannot be weighed",
            evidence=quoted(s),
        )
        return
    cables = {w.cable for w in used}
    left = [w for w in every if w.near and w.cable not in cables and _better(w, used)]
    if _total(left) <= _total(used):
        return
    rates = "; ".join(f"{word} {_told(some)}" for word, some in (("left out:", left), ("in use:", used)))
    yield Finding(
        state=unless_lost(c, State.WARN, "pci", "nvml", "rdma", "settings"),
        subject=place(s),
        title=f"NCCL_IB_HCA={s.value} leaves {_total(used):g} Gb/s and leaves out {_total(left):g} Gb/s of the NICs "
        f"nearest to the GPUs; {rates}",
        consequence="traffic between nodes uses only a part of this node's network",
        evidence=(*quoted(s), *(Evidence(f"{w.name} rate", f"{w.rate_gbit_s:g} Gb/s") for w in (*used[:1], *left[:1]))),
        rule="the list leaves at least half of the network nearest to the GPUs",
        fix="topocheck emit nccl-env  (writes the list for this machine)",
    )


def _told(wires: list[Wire]) -> str:
    return listed(w.name for w in wires)
