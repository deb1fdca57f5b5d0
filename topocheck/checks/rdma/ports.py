"""Ports of RDMA devices: down, slower than their siblings, of another link layer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable, once
from topocheck.checks.shared.common import is_guest
from topocheck.checks.shared.rdma_ports import Port, Siblings, judged, ports
from topocheck.checks.sources import Needs
from topocheck.knowledge.products import nic_port
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, known
from topocheck.model.net import port_kind


def _explain_down(p: Port) -> tuple[str, str]:
    """Return (what is the matter, what to do) of a port that is not ACTIVE."""
    state, phys = p.port.state, p.port.phys_state
    if phys == "Disabled":
        return "it is switched off", f"switch it on if it is meant to work (ibportstate, or ip link set up): {p.where}"
    if phys == "LinkUp" and state in ("INIT", "ARMED"):
        if p.port.link_layer == "Ethernet":
            return "the link is up and the driver has not made it ready", "check the driver's kernel messages"
        return (
            "the link is up, and no subnet manager has set the port up",
            "start a subnet manager (opensm, or the one of the switch) and check its log",
        )
    if phys == "LinkUp":
        return (
            "the link is up, and the port is not",
            "check the interface (ip link) and the driver's kernel messages; on InfiniBand the subnet manager",
        )
    if phys in ("LinkErrorRecovery", "PortConfigurationTraining"):
        return "the link trains and does not hold", "clean or swap cable and transceiver, then try another switch port"
    return "no signal from the other end", "check cable, transceiver and switch port"


def _without(p: Port, up: dict[str, Port]) -> str:
    """Return what it means that a port is not active; `up` is the first active port of each card."""
    other = up.get(p.card)
    if other is not None:
        return f"the card's other port ({other.nic.label} port {other.port.port}) is up and used; this one is not"
    if p.near is False:
        return "NCCL silently ignores this NIC; no GPU is nearest to it, so their traffic loses no short way"
    if p.near is None:
        return "NCCL silently ignores this NIC"
    return "NCCL silently ignores this NIC; its GPUs use a NIC farther away, which they share"


@check(
    "rdma.port-down",
    title="A port of an RDMA NIC is not active",
    severity=State.FAIL,
    reads=("/sys/class/infiniband/*/ports/*/state", "/sys/class/infiniband/*/ports/*/phys_state"),
    needs=Needs(("rdma",), ("model",)),
)
def port_down(c: Context) -> Iterator[Finding]:
    """A port of an RDMA NIC is not active.

    Looks at:
        The logical and the physical state of every port, told apart: switched off (Disabled), no partner (Polling),
        link up without a subnet manager (Init), link up and port down. The rate of such a port is a default of the
        driver and is not judged.

    Why it matters:
        NCCL silently ignores ports that are not active, and the job has one NIC less than the others.

    Fix:
        Cable, transceiver, switch port; a subnet manager where the link is up and the port waits in Init.

    Does not apply:
        A port nobody cabled is no fault: without a policy, and unless most ports of its kind are up, it is a note.
        So is a port that is switched off. It fails where the policy expects a rate of every NIC
        (`expect.nic_rate_gbit_s`), and warns once where at least four NICs near GPUs are here and none of these is
        active.
    """
    rdma = c.node.net.rdma
    if isinstance(rdma, Missing) and rdma.reason is not Reason.ABSENT:
        yield Finding(
            state=State.UNKNOWN,
            subject="node",
            title=f"RDMA devices cannot be determined: {rdma}",
            consequence="a port that is down would not be seen",
            evidence=(Evidence("/sys/class/infiniband", str(rdma)),),
            rule="the devices of /sys/class/infiniband can be read",
            fix="check the driver's kernel messages; in a container mount /sys read-only",
        )
        return
    every = judged(c)
    alike = Siblings(every, lambda p: float(p.port.state == "ACTIVE"))
    up_of_card: dict[str, Port] = {}
    for p in every:
        if p.port.state == "ACTIVE":
            up_of_card.setdefault(p.card, p)
    near_up = any(p.port.state == "ACTIVE" and p.near is not False for p in every)
    whole = [] if near_up else [p for p in every if p.near is not False and _without_partner(p)]
    if len(whole) >= _A_NODE_OF_NICS and not any(_expected(c, p) for p in whole):
        yield _none_up(whole)
        every = tuple(p for p in every if p not in whole)
    untold: list[Port] = []
    for p in every:
        state = p.port.state
        if state == "ACTIVE":
            continue
        if isinstance(state, Missing):
            if _not_given(c, state):
                untold.append(p)
                continue
            title = f"the state of {p.where} cannot be determined: {state}"
            yield Finding(state=State.UNKNOWN, subject=p.where, devices=(p.nic.address,), title=title)
            continue
        others = alike.of(p)
        up, first_up = others.equal(1.0), others.first(1.0)
        off = p.port.phys_state == "Disabled"
        waits = p.port.phys_state == "LinkUp" and state in ("INIT", "ARMED")
        what, fix = _explain_down(p)
        # As many down as up looks like a machine that was cabled so.
        mostly_up = up > 1 + len(others) - up
        worse = State.WARN if waits or (not off and mostly_up) else State.NOTE
        phys = p.port.phys_state
        words = f"{state}, {phys}" if known(phys) else state
        beside = f"; of the other ports of its kind {up} of {len(others)} are up" if len(others) else ""
        yield Finding(
            state=State.FAIL if (expected := _expected(c, p)) else worse,
            subject=p.where,
            devices=(p.nic.address,),
            title=f"port {p.port.port} of {p.nic.label} is down ({words}): {what}{beside}",
            consequence=_without(p, up_of_card),
            evidence=p.port.evidence("state", "phys_state")
            + (first_up.port.evidence("state", "phys_state") if first_up is not None else ()),
            rule="expect.nic_rate_gbit_s or nic_rates_gbit_s: every NIC is up"
            if expected
            else "most ports of the same kind are up",
            fix=fix,
        )
    if untold:
        yield _untold(untold, "states")


def _not_given(c: Context, why: Missing) -> bool:
    """Tell whether files were given that name a port and do not hold a value of it: said once for all ports."""
    return c.node.made_from is not None and why.reason is Reason.NOT_RECORDED


def _untold(ports: list[Port], what: str) -> Finding:
    return Finding(
        state=State.UNKNOWN,
        subject="node",
        devices=tuple(p.nic.address for p in ports),
        title=f"the {what} of {len(ports)} RDMA ports are not in the given files",
        fix="add the output of ibstat",
    )


_A_NODE_OF_NICS = 4
"""NICs near GPUs from which on a machine was built for jobs over several nodes."""


def _without_partner(p: Port) -> bool:
    return p.port.state == "DOWN" and p.port.phys_state != "Disabled"


def _none_up(ports: list[Port]) -> Finding:
    """Return the finding about a machine with many NICs for its GPUs, none of which has a partner."""
    near = " near GPUs" if all(p.near for p in ports) else ""
    return Finding(
        state=State.WARN,
        subject="node",
        devices=tuple(p.nic.address for p in ports),
        title=f"none of {len(ports)} ports of RDMA NICs{near} is active: no signal from the other end",
        consequence="NCCL finds no RDMA NIC, and jobs over several nodes use TCP: a tenth of the bandwidth",
        evidence=tuple(e for p in ports[:2] for e in p.port.evidence("state", "phys_state")),
        rule="a port of a NIC near a GPU is active, on a machine with so many",
        fix="check the cables, the power and the configuration of the switch; none is needed where the node works "
        "alone",
    )


def _expected(c: Context, p: Port) -> bool:
    """Tell whether the policy expects a rate of a port."""
    expect = c.policy.expect
    if expect.nic_rate_gbit_s is not None:
        return True
    return port_kind(p.device, p.port) in (expect.nic_rates_gbit_s or {})


@check(
    "rdma.port-slower-than-siblings",
    title="A port runs at a lower rate than its siblings",
    severity=State.FAIL,
    reads=("/sys/class/infiniband/*/ports/*/rate",),
    needs=Needs(("rdma",), ("rate", "model")),
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
    alike = Siblings(active, _rate)
    untold: list[Port] = []
    for p in active:
        rate = p.port.rate_gbit_s
        if isinstance(rate, Missing):
            if _not_given(c, rate):
                untold.append(p)
                continue
            title = f"the rate of {p.where} cannot be determined: {rate}"
            yield Finding(state=State.UNKNOWN, subject=p.where, devices=(p.nic.address,), title=title)
            continue
        others = alike.of(p)
        best = others.place(len(others) - 1) if len(others) else rate
        fastest = others.first(best)
        if rate >= best or fastest is None:
            continue
        as_fast = others.at_least(best)
        slow = 1 + len(others) - as_fast
        together = others.equal(rate) > 0
        odd = as_fast > slow
        text = p.port.rate_text if known(p.port.rate_text) else f"{rate:g} Gb/s"
        best_text = fastest.port.rate_text if known(fastest.port.rate_text) else f"{best:g} Gb/s"
        yield Finding(
            state=_slower(odd, together, _alone(c, p, rate)),
            subject=p.where,
            devices=(p.nic.address,),
            title=f"port {p.port.port} of {p.nic.label} runs at {text}; {as_fast} of its kind run at {best_text}",
            consequence=f"traffic through {p.nic.label} goes at {100 * rate / best:.0f} % of its siblings' rate, and "
            "every collective waits for it",
            evidence=p.port.evidence("rate") + fastest.port.evidence("rate"),
            rule="most ports of the same card model, board, link layer and role run faster",
            fix="check cable, transceiver and the speed of the switch port; swap the cable with a sibling's to tell "
            "which part is bad (the port goes down meanwhile)",
        )
    if untold:
        yield _untold(untold, "rates")


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


def _rate(p: Port) -> float | None:
    return None if isinstance(p.port.rate_gbit_s, Missing) else p.port.rate_gbit_s


@once
def _near_each_gpu(c: Context) -> tuple[tuple[frozenset[str], Siblings], ...]:
    """Return the NICs nearest to each GPU, and the rates of their active ports."""
    by_nic: dict[str, list[Port]] = {}
    for p in ports(c):
        if p.port.state == "ACTIVE":
            by_nic.setdefault(p.nic.address, []).append(p)
    return tuple(
        (frozenset(n.nics), Siblings((p for a in n.nics for p in by_nic.get(a, ())), _rate))
        for n in c.topology.nearest_nics
    )


def _alone(c: Context, slow: Port, rate: float) -> bool:
    """Tell whether some GPU is nearest to a slow port's NIC and to no sibling that is faster."""
    for nics, rates in _near_each_gpu(c):
        if slow.nic.address in nics:
            others = rates.of(slow)
            if not len(others) or others.place(len(others) - 1) <= rate:
                return True
    return False


_WIDTH = re.compile(r"\(([0-9]{1,2})X ", re.ASCII)


@check(
    "rdma.port-below-maximum",
    title="Ports run below what their NIC can do",
    severity=State.WARN,
    reads=("/sys/class/infiniband/*/ports/*/rate", "/sys/bus/pci/devices/*/modalias"),
    needs=Needs(("rdma",), ("rate", "model")),
)
def port_below_maximum(c: Context) -> Iterator[Finding]:
    """Ports run below what their NIC can do.

    Looks at:
        The rate and lanes of active ports of NICs nearest to a GPU against the fastest board with this chip, so that a
        rate that is too low on all alike is seen too.

    Why it matters:
        A cable, splitter, switch or switch setting of an older generation caps every NIC of a node at once, and no
        sibling shows it.

    Fix:
        Check the speed of cable and switch port, and the NIC's own settings (mlxlink).

    Does not apply:
        In a guest, to virtual functions and to NICs that no GPU is nearest to. A note, since slower boards with the
        same chip are sold; a warning where a port trained one lane only.
    """
    every = judged(c)
    if is_guest(c):
        raise not_applicable("a provider sets the rate of a guest's NICs")
    slow: dict[tuple[str, float, float], list[Port]] = {}
    for p in every:
        pci, rate = p.nic.pci, p.port.rate_gbit_s
        if p.port.state != "ACTIVE" or isinstance(rate, Missing) or known(p.device.physfn) or p.near is False:
            continue
        width = _WIDTH.search(p.port.rate_text) if known(p.port.rate_text) else None
        if width is not None and width[1] == "1" and p.port.link_layer == "InfiniBand":
            yield _one_lane(p)
            continue
        chip = (
            nic_port(pci.vendor_id, pci.device_id)
            if pci is not None and isinstance(pci.vendor_id, int) and isinstance(pci.device_id, int)
            else None
        )
        if chip is not None and rate < chip.max_gbit_s / 2:
            slow.setdefault((chip.name, chip.max_gbit_s, rate), []).append(p)
    for (chip_name, most, rate), found in slow.items():
        names = ", ".join(p.nic.label for p in found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
        yield Finding(
            state=State.NOTE,
            subject="node",
            title=f"{names} {'runs' if len(found) == 1 else 'run'} at {rate:g} Gb/s; "
            f"a {chip_name} can do {most:g} Gb/s on its fastest board",
            consequence="traffic between nodes is bounded by this rate",
            evidence=tuple(e for p in found[:4] for e in p.port.evidence("rate")),
            rule="at least half of what the chip can do",
            fix="none where the board is a slower one; else check cable, splitter and the speed of the switch port",
        )


def _one_lane(p: Port) -> Finding:
    return Finding(
        state=State.WARN,
        subject=p.where,
        devices=(p.nic.address,),
        title=f"port {p.port.port} of {p.nic.label} trained one lane: {p.port.rate_text}",
        consequence="it has a quarter of the cable's rate or less",
        evidence=p.port.evidence("rate"),
        rule="four lanes, or two of a split cable",
        fix="clean or swap cable and transceiver, then try another switch port (the port goes down meanwhile)",
    )
