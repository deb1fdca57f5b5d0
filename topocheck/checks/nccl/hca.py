"""NCCL's choice of NICs, and settings that hang on how the NICs are joined."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import is_guest, listed
from topocheck.checks.shared.settings import (
    Names,
    active_nics,
    active_ports,
    chosen_nics,
    in_force,
    judged_version,
    place,
    quoted,
    read_names,
    shadowed_twins,
    values,
)
from topocheck.checks.sources import NICS, Needs
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.model.net import RdmaPort
from topocheck.model.system import Setting
from topocheck.nccl.rules.values import read_integer
from topocheck.topology.types import Nic

_READS = ("NCCL_IB_HCA", "/sys/class/infiniband", "/sys/class/infiniband/*/ports/*/state")


def _hca(c: Context) -> tuple[Setting, Names]:
    s = in_force(c).get("NCCL_IB_HCA")
    if s is None:
        raise not_applicable("NCCL_IB_HCA is not set")
    rdma = c.node.net.rdma
    if isinstance(rdma, Missing) and not c.topology.gpus:
        raise not_applicable("neither RDMA devices nor GPUs here")
    return s, read_names(s.value)


def _port_of(rest: str) -> int | None:
    """Return the port a word such as `mlx5_1:1:0` asks for; None for any."""
    first = rest.split(":", 1)[0]
    return read_integer(first)[0] if first else None


@check(
    "nccl.hca-missing",
    title="NCCL_IB_HCA names a NIC that is not here, or not up",
    severity=State.WARN,
    reads=_READS,
    needs=Needs((*NICS, "settings")),
    scope=Scope.PROCESS,
)
def hca_missing(c: Context) -> Iterator[Finding]:
    """NCCL_IB_HCA names NICs, or ports of them, that this machine does not have, or that are not active.

    Looks at:
        The list by NCCL's rule (a name is a beginning, `=` in front asks for exact names, `^` excludes, `:1` is
        a port) against the RDMA devices and their ports.

    Why it matters:
        NCCL goes on with those that match. If none does it uses TCP, at a tenth of the bandwidth; with NCCL_NET=IB
        its init fails.

    Fix:
        The right names; `ibv_devices` lists them. Names may differ from node to node.

    Does not apply:
        Where it is unset, and for lists that exclude and leave something.
    """
    s, names = _hca(c)
    devices = c.node.net.rdma if known(c.node.net.rdma) else ()
    every = {d.name: [p.port for p in d.ports] for d in devices}
    up = {n.label: active_ports(n) for n in active_nics(c)}
    there = listed(up) or "none"
    sure = unless_lost(c, State.WARN, "rdma")
    if names.exclude:
        if up and not names.chosen(up):
            found = _missing(s, sure, "it excludes every active NIC", there, _without(c))
            yield msgspec.structs.replace(
                found, fix="unset NCCL_IB_HCA, or leave an active NIC out of what it excludes"
            )
        return
    lost, down = [], []
    for word, rest in names.words:
        port = _port_of(rest)
        hits = [n for n in names.matched_by(word, every) if port is None or port in every[n]]
        text = f"{word}:{rest}" if rest else word
        if not hits:
            lost.append(text)
        elif not any(n in up and (port is None or port in up[n]) for n in hits):
            down.append(text)
    if not lost and not down:
        return
    told = [f"nothing here matches {listed(lost)}"] if lost else []
    told += [f"no active port of {listed(down)}"] if down else []
    none = len(lost) + len(down) == len(names.words)
    consequence = _without(c) if none else "NCCL uses the others only"
    yield _missing(s, sure, "; ".join(told), there, consequence)


def _without(c: Context) -> str:
    """Return what NCCL does where no RDMA device is left."""
    asked = in_force(c).get("NCCL_NET")
    if asked is None or asked.value.lower() == "socket":
        return "NCCL finds no RDMA device and uses TCP"
    if asked.value.lower() == "ib":
        return f"NCCL finds no RDMA device, and {asked.name}={asked.value} lets it use no other: init fails"
    return "NCCL finds no RDMA device of its own"


def _missing(s: Setting, state: State, what: str, there: str, consequence: str) -> Finding:
    return Finding(
        state=state,
        subject=place(s),
        title=f"NCCL_IB_HCA={s.value}: {what}; active here: {there}"
        + ("; some answers about NICs were lost" if state is State.UNKNOWN else ""),
        consequence=consequence,
        evidence=(*quoted(s), Evidence("/sys/class/infiniband", there)),
        rule="every name matches a device with an active port",
        fix=f"name NICs that are active: {there}",
    )


@check(
    "nccl.hca-prefix",
    title="A name in NCCL_IB_HCA also matches other NICs",
    severity=State.WARN,
    reads=_READS,
    needs=Needs((*NICS, "settings")),
    scope=Scope.PROCESS,
)
def hca_prefix(c: Context) -> Iterator[Finding]:
    """A name in NCCL_IB_HCA is a NIC here, and the beginning of others' names too.

    Looks at:
        Each name that is a device of its own against the names it also begins: `mlx5_1` means `mlx5_10` and
        `mlx5_11` as well.

    Why it matters:
        NCCL uses all of them: NICs for storage, or of another rail, carry data of the job.

    Fix:
        `NCCL_IB_HCA==mlx5_1:1`: the second `=` asks for exactly that name.

    Does not apply:
        A beginning that is no device itself (`mlx5`) is meant as one; a NIC that the list also names by itself was
        meant too.
    """
    s, names = _hca(c)
    every = [n.label for n in c.topology.nics]
    for word, others in shadowed_twins(names, every).items():
        verb = "excludes" if names.exclude else "matches"
        mark = "^=" if names.exclude else "="
        rest = s.value.removeprefix("^")
        yield Finding(
            state=State.WARN,
            subject=place(s),
            title=f"NCCL_IB_HCA={s.value}: {word} {verb} {listed([word, *others])}",
            consequence="NICs that were not meant are left out"
            if names.exclude
            else "NICs that were not meant carry data of the job",
            evidence=(*quoted(s), Evidence("/sys/class/infiniband", listed([word, *others]))),
            rule="names match as prefixes, unless the list begins with =",
            fix=f"NCCL_IB_HCA={mark}{rest}  (= asks for exact names)",
        )


@check(
    "nccl.cross-nic",
    title="NICs are in different subnets and NCCL may connect across them",
    severity=State.NOTE,
    reads=("/sys/class/infiniband/*/ports/*/gids/0", "NCCL_CROSS_NIC"),
    scope=Scope.PROCESS,
)
def cross_nic(c: Context) -> Iterator[Finding]:
    """Active InfiniBand ports have different subnet prefixes, and NCCL_CROSS_NIC is not 0.

    Looks at:
        The subnet prefix (the upper half of GID 0) of the active InfiniBand ports that NCCL_IB_HCA leaves, and
        NCCL_CROSS_NIC.

    Why it matters:
        Subnets with prefixes of their own are not joined, as a rule. A connection from one to the other hangs, or
        ends with completion status 12.

    Fix:
        `export NCCL_CROSS_NIC=0` where rails are not joined. It costs some freedom in choosing rings.

    Does not apply:
        RoCE, where subnets are commonly routed; one NIC; one prefix; NCCL_CROSS_NIC=0.
    """
    prefixes: dict[str, list[str]] = {}
    for n in chosen_nics(c):
        for p in n.rdma.ports if n.rdma is not None else ():
            prefix = _prefix(p)
            if prefix is not None:
                prefixes.setdefault(prefix, []).append(n.label)
    if len(prefixes) < 2:
        raise not_applicable("the active InfiniBand ports are of one subnet, or there are none")
    s = in_force(c).get("NCCL_CROSS_NIC")
    if s is not None and values(c).integer("NCCL_CROSS_NIC", 2) == 0:
        return
    yield Finding(
        state=State.NOTE,
        subject="node",
        title=f"NICs of {len(prefixes)} InfiniBand subnets: "
        + "; ".join(f"{k} has {listed(v, 4)}" for k, v in prefixes.items()),
        consequence="where the subnets are not joined, a connection across them hangs or ends with status 12",
        evidence=(
            *(quoted(s) if s is not None else ()),
            *(Evidence(f"{listed(v, 4)} GID 0", k) for k, v in prefixes.items()),
        ),
        rule="one subnet, or NCCL_CROSS_NIC=0",
        fix="export NCCL_CROSS_NIC=0, where the rails are not joined",
    )


def _prefix(p: RdmaPort) -> str | None:
    if p.state != "ACTIVE" or p.link_layer != "InfiniBand" or not known(p.gids):
        return None
    gid = next((g.gid for g in p.gids if g.index == 0), None)
    return gid[:19] if gid is not None else None


@check(
    "nccl.relaxed-ordering",
    title="Relaxed ordering is forced where it may not work",
    severity=State.WARN,
    reads=("NCCL_IB_PCI_RELAXED_ORDERING", "/sys/class/infiniband/*/device/physfn", "DMI"),
    needs=Needs(("settings", "nccl"), ("rdma", "physfn", "hypervisor")),
    scope=Scope.PROCESS,
)
def relaxed_ordering(c: Context) -> Iterator[Finding]:
    """NCCL_IB_PCI_RELAXED_ORDERING is forced to 1 on a virtual function.

    Looks at:
        The setting, and whether NICs are virtual functions or this is a guest.

    Why it matters:
        A virtual function may lack the capability: memory registration then fails, or is slow. With 2, the
        default, NCCL asks first.

    Fix:
        `unset NCCL_IB_PCI_RELAXED_ORDERING`.

    Does not apply:
        On physical functions of bare metal. The value 0 is judged by `nccl.harmful-value`.
    """
    s = in_force(c).get("NCCL_IB_PCI_RELAXED_ORDERING")
    if s is None or not values(c).is_one("NCCL_IB_PCI_RELAXED_ORDERING"):
        raise not_applicable("NCCL_IB_PCI_RELAXED_ORDERING is not forced")
    virtual = [n for n in active_nics(c) if _is_virtual(n)]
    guest = is_guest(c)
    if not virtual and not (guest and active_nics(c)):
        return
    who = listed(n.label for n in virtual) or listed(n.label for n in active_nics(c))
    yield Finding(
        state=State.WARN if virtual else State.NOTE,
        subject=place(s),
        title=f"NCCL_IB_PCI_RELAXED_ORDERING={s.value} is forced on {who}"
        + (", virtual functions" if virtual else " in a guest"),
        consequence="memory registration fails, or is slow, where the function lacks the capability",
        evidence=quoted(s),
        rule=f"2, the default of NCCL {'.'.join(map(str, judged_version(c)))}: used where it works",
        fix="unset NCCL_IB_PCI_RELAXED_ORDERING",
    )


def _is_virtual(n: Nic) -> bool:
    return n.rdma is not None and known(n.rdma.physfn)
