"""Ports of RDMA devices: down, slower than their siblings, of another link layer."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, known
from topocheck.model.net import RdmaDevice, RdmaPort
from topocheck.topology.types import Nic


class Port(msgspec.Struct, frozen=True):
    """One port with the NIC it belongs to. `near`: the NIC is the nearest of some GPU; None where nobody can tell."""

    nic: Nic
    device: RdmaDevice
    port: RdmaPort
    near: bool | None = None

    @property
    def where(self) -> str:
        """The subject: address, name and number."""
        return f"{self.nic.address} {self.nic.label} port {self.port.port}"

    @property
    def model(self) -> tuple[object, ...]:
        """What makes two ports siblings: the same kind of card, board, place on the card, link layer, and role."""
        d = self.device
        bond = any(i.bond_slaves for i in self.nic.interfaces)
        kind = tuple(v if known(v) else None for v in (d.hca_type, d.board_id, self.port.link_layer))
        return (*kind, self.nic.address[-1], self.port.port, known(d.physfn), bond, self.near)


def is_near(c: Context, nic: Nic) -> bool | None:
    """Tell a NIC that is the nearest of some GPU (compute) from one that is not (storage, services).

    None where no GPU has a nearest NIC: without GPUs, or where the tree does not show who is near.
    """
    near = {a for n in c.topology.nearest_nics for a in n.nics}
    return nic.address in near if near else None


def ports(c: Context) -> list[Port]:
    """Return every port of every NIC."""
    return [Port(n, n.rdma, p, is_near(c, n)) for n in c.topology.nics if n.rdma is not None for p in n.rdma.ports]


def siblings(port: Port, every: list[Port]) -> list[Port]:
    """Return the ports of the same kind on other cards."""
    return [p for p in every if p.model == port.model and p.nic.address[:-1] != port.nic.address[:-1]]


def judged(c: Context) -> list[Port]:
    """Return every port; not applicable where there is none."""
    if isinstance(c.node.net.rdma, Missing):
        raise not_applicable(f"no RDMA devices: {c.node.net.rdma}")
    every = ports(c)
    if not every:
        raise not_applicable("this machine has no RDMA NIC")
    return every


def _explain_down(p: Port) -> tuple[str, str]:
    """Return (what is the matter, what to do) of a port that is not ACTIVE."""
    state, phys = p.port.state, p.port.phys_state
    if phys == "Disabled":
        return "it is switched off", f"switch it on if it is meant to work (ibportstate, or ip link set up): {p.where}"
    if phys == "LinkUp" and state in ("INIT", "ARMED"):
        if p.port.link_layer == "Ethernet":
            return "the link is up and the driver has not made it ready", "look at the driver's kernel messages"
        return (
            "the link is up, and no subnet manager has set the port up",
            "start a subnet manager (opensm, or the one of the switch) and look at its log",
        )
    if phys == "LinkUp":
        return (
            "the link is up, and the port is not",
            "look at the interface (ip link) and the driver's kernel messages; on InfiniBand at the subnet manager",
        )
    if phys in ("LinkErrorRecovery", "PortConfigurationTraining"):
        return "the link trains and does not hold", "clean or swap cable and transceiver, then try another switch port"
    return "no signal from a partner", "look at cable, transceiver and switch port"


def _without(p: Port, every: list[Port]) -> str:
    """Return what it means that a port is not active."""
    card = [q for q in every if q.nic.address[:-1] == p.nic.address[:-1] and q.port.state == "ACTIVE"]
    if card:
        return f"the card's other port ({card[0].nic.label} port {card[0].port.port}) is up and used; this one is not"
    if p.near is False:
        return "NCCL leaves this NIC out without a word; no GPU is nearest to it, so their traffic loses no short way"
    if p.near is None:
        return "NCCL leaves this NIC out without a word"
    return "NCCL leaves this NIC out without a word; its GPUs use a NIC farther away, which they share"


@check(
    "rdma.port-down",
    title="A port of an RDMA NIC is not active",
    severity=State.FAIL,
    reads=("/sys/class/infiniband/*/ports/*/state", "/sys/class/infiniband/*/ports/*/phys_state"),
)
def port_down(c: Context) -> Iterator[Finding]:
    """A port of an RDMA NIC is not active.

    Looks at:
        The logical and the physical state of every port, told apart: switched off (Disabled), no partner (Polling),
        link up without a subnet manager (Init), link up and port down. The rate of such a port is a default of the
        driver and is not judged.

    Why it matters:
        NCCL leaves out ports that are not active, without a word, and the job has one NIC less than the others.

    Fix:
        Cable, transceiver, switch port; a subnet manager where the link is up and the port waits in Init.

    Does not apply:
        A port nobody cabled is no fault: without a policy, and unless most ports of its kind are up, it is a note.
        So is a port that is switched off. It fails where the policy expects a rate of every NIC
        (`expect.nic_rate_gbit_s`).
    """
    rdma = c.node.net.rdma
    if isinstance(rdma, Missing) and rdma.reason is not Reason.ABSENT:
        yield Finding(
            id="rdma.port-down",
            state=State.UNKNOWN,
            subject="node",
            title=f"RDMA devices cannot be told: {rdma}",
            consequence="a port that is down would not be seen",
            evidence=(Evidence("/sys/class/infiniband", str(rdma)),),
            rule="the devices of /sys/class/infiniband can be read",
            fix="look at the driver's kernel messages; in a container mount /sys read-only",
        )
        return
    every = judged(c)
    expected = c.policy.expect.nic_rate_gbit_s is not None
    for p in every:
        state = p.port.state
        if state == "ACTIVE":
            continue
        if isinstance(state, Missing):
            title = f"the state of {p.where} cannot be told: {state}"
            yield Finding(id="rdma.port-down", state=State.UNKNOWN, subject=p.where, title=title)
            continue
        alike = siblings(p, every)
        up = [s for s in alike if s.port.state == "ACTIVE"]
        off = p.port.phys_state == "Disabled"
        waits = p.port.phys_state == "LinkUp" and state in ("INIT", "ARMED")
        what, fix = _explain_down(p)
        # As many down as up looks like a machine that was cabled so.
        mostly_up = len(up) > 1 + len(alike) - len(up)
        worse = State.WARN if waits or (not off and mostly_up) else State.NOTE
        phys = p.port.phys_state
        words = f"{state}, {phys}" if known(phys) else state
        beside = f"; of the other ports of its kind {len(up)} of {len(alike)} are up" if alike else ""
        yield Finding(
            id="rdma.port-down",
            state=State.FAIL if expected else worse,
            subject=p.where,
            title=f"port {p.port.port} of {p.nic.label} is down ({words}): {what}{beside}",
            consequence=_without(p, every),
            evidence=p.port.evidence("state", "phys_state")
            + tuple(e for s in up[:1] for e in s.port.evidence("state", "phys_state")),
            rule="expect.nic_rate_gbit_s: every NIC is up" if expected else "most ports of the same kind are up",
            fix=fix,
        )


@check(
    "rdma.port-slower-than-siblings",
    title="A port runs at a lower rate than its siblings",
    severity=State.FAIL,
    reads=("/sys/class/infiniband/*/ports/*/rate",),
)
def port_slower(c: Context) -> Iterator[Finding]:
    """A port runs at a lower rate, or over fewer lanes, than ports of the same kind.

    Looks at:
        The rate of each active port against active ports of the same card model, board, link layer and role on
        other cards. The role: a NIC is the nearest of some GPU, or of none.

    Why it matters:
        Each GPU sends through the NIC beside it, and a collective ends with the slowest: one port at half rate
        halves them all.

    Fix:
        Look at cable and transceiver, at the speed set on the switch port, and at the lanes that trained (`4X` or
        `2X` in the rate). Swap the cable with a sibling's to tell cable from port.

    Does not apply:
        NICs that no GPU is nearest to (storage) are not compared with those beside the GPUs. Where half of the ports
        or more are the slow ones it looks like design, and is a note; so do two or more ports of one rate, unless
        some GPU has no faster NIC as near: that warns.
    """
    every = judged(c)
    active = [p for p in every if p.port.state == "ACTIVE"]
    for p in active:
        rate = p.port.rate_gbit_s
        if isinstance(rate, Missing):
            title = f"the rate of {p.where} cannot be told: {rate}"
            yield Finding(id="rdma.port-slower-than-siblings", state=State.UNKNOWN, subject=p.where, title=title)
            continue
        rates = {s.where: s.port.rate_gbit_s for s in siblings(p, active)}
        told = [r for r in rates.values() if not isinstance(r, Missing)]
        best = max(told, default=rate)
        if rate >= best:
            continue
        as_fast = sum(r >= best for r in told)
        slow = 1 + len(told) - as_fast
        together = sum(r == rate for r in told) > 0
        odd = as_fast > slow
        fastest = next(s for s in siblings(p, active) if s.port.rate_gbit_s == best)
        text = p.port.rate_text if known(p.port.rate_text) else f"{rate:g} Gb/s"
        best_text = fastest.port.rate_text if known(fastest.port.rate_text) else f"{best:g} Gb/s"
        yield Finding(
            id="rdma.port-slower-than-siblings",
            state=_slower(odd, together, _alone(c, p, active)),
            subject=p.where,
            title=f"port {p.port.port} of {p.nic.label} runs at {text}; {as_fast} of its kind run at {best_text}",
            consequence=f"traffic through {p.nic.label} goes at {100 * rate / best:.0f} % of its siblings' rate, and "
            "every collective waits for it",
            evidence=p.port.evidence("rate") + fastest.port.evidence("rate"),
            rule="most ports of the same card model, board, link layer and role run faster",
            fix="look at cable, transceiver and the speed of the switch port; swap the cable with a sibling's to tell "
            "which part is bad (the port goes down meanwhile)",
        )


def _slower(odd: bool, together: bool, alone: bool) -> State:
    """Return how bad a slower port is.

    Args:
        odd: most of its siblings are faster.
        together: another sibling has the same rate, so that it may be a fabric of its own.
        alone: some GPU has no faster NIC as near.
    """
    if not odd:
        return State.NOTE
    if not together:
        return State.FAIL
    return State.WARN if alone else State.NOTE


def _alone(c: Context, slow: Port, active: list[Port]) -> bool:
    """Tell whether some GPU is nearest to a slow port's NIC and to no sibling that is faster."""
    rate = slow.port.rate_gbit_s
    faster = {
        s.nic.address
        for s in siblings(slow, active)
        if isinstance(s.port.rate_gbit_s, float | int) and isinstance(rate, float | int) and s.port.rate_gbit_s > rate
    }
    return any(slow.nic.address in n.nics and not faster & set(n.nics) for n in c.topology.nearest_nics)
