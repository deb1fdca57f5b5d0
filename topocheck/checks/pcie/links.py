"""PCIe links: trained below what both ends can do, or placed in a slot that can do less than the card."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.pcie.link_fixes import limited, others_wait, rate_share, retrain, speed_up
from topocheck.checks.registry import Context, check, not_applicable, once
from topocheck.checks.shared.common import listed, pci_devices, share
from topocheck.checks.shared.fixes import Fix, first_fitting, in_guest
from topocheck.checks.shared.pcie_links import Link, links
from topocheck.checks.sources import NICS, Needs
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.model.gpu import NvmlGpu
from topocheck.topology.links import LinkState, generation

_LINK_FILES = (
    "/sys/bus/pci/devices/*/current_link_{0}",
    "/sys/bus/pci/devices/*/max_link_{0}",
    "NVML DeviceGetCurrPcieLink{1}, DeviceGetMaxPcieLink{1}",
)


def _judged(context: Context) -> list[Link]:
    found = links(context)
    if not found:
        raise not_applicable("no GPU or NIC of this machine shows a PCIe link")
    return [link for link in found if not link.formal]


@check(
    "pcie.link-width",
    title="A PCIe link runs with fewer lanes than both its ends have",
    severity=State.FAIL,
    reads=tuple(f.format("width", "Width") for f in _LINK_FILES),
    needs=Needs(NICS),
)
def link_width(context: Context) -> Iterator[Finding]:
    """A PCIe link runs with fewer lanes than both its ends have.

    Looks at:
        The negotiated and the largest width of every link from each GPU and NIC up to its root port, switches
        between them included. Only a width below that of both ends is a fault; a card in a narrow slot is
        `pcie.slot-below-card`.

    Why it matters:
        Each lane that is lost takes its share of the bandwidth: a x16 link at x8 copies at half rate, and every
        collective waits for the slowest GPU. Nothing reports an error; the job is only slow.

    Fix:
        Power-cycle, reseat the card, riser or cable, check the slot's bifurcation in the firmware setup, and swap
        slots to find out whether the card or the slot is bad. This needs the node drained and switched off.

    Does not apply:
        Where the link is a formality: GPUs joined to their CPU by a chip-to-chip link (the Grace superchips), the
        emulated ports of a virtual machine, suspended devices. In a guest the far end is on the host: a width below
        the card's own is then unknown, not a fault.
    """
    unread = []
    for link in _judged(context):
        now, limit = link.now.width_lanes, link.width_limit()
        if link.suspended:
            continue
        if isinstance(now, Missing) or limit is None:
            unread.append(link.where)
        elif now < limit and link.both_ends:
            yield Finding(
                state=State.FAIL,
                subject=link.where,
                devices=(link.lower.address,),
                title=f"{link.name} PCIe x{now} of x{limit}: link between {link.between}",
                consequence=f"{_who(link)} at {share(now, limit)} the link's rate{others_wait(context)}",
                evidence=link.evidence("width"),
                rule=f"negotiated x{now} < min(x{link.lower_max.width_lanes}, x{link.upper_max.width_lanes})",
                fix=retrain(context, link),
            )
        elif now < limit:
            yield Finding(
                state=State.UNKNOWN,
                subject=link.where,
                devices=(link.lower.address,),
                title=f"the link runs at x{now} of the card's x{limit}; the other end cannot be seen from here",
                consequence=_unseen(context, "narrow"),
                evidence=link.evidence("width"),
                rule="the width that both ends have is needed, and one end is not shown",
                fix=first_fitting(context, *_other_end("width")),
            )
    if unread:
        yield _unread(context, "width", unread)


@check(
    "pcie.link-speed",
    title="A PCIe link runs slower than both its ends can",
    severity=State.FAIL,
    reads=tuple(f.format("speed", "Generation") for f in _LINK_FILES),
    needs=Needs(NICS, ("rest", "gpu name")),
)
def link_speed(context: Context) -> Iterator[Finding]:
    """A PCIe link runs slower than both its ends can.

    Looks at:
        The negotiated and the largest speed of every link from each GPU and NIC up to its root port. A resting GPU is
        also held against its siblings: where it alone has a slow link while at least two others of its model, which
        nobody uses either, have fast ones, it warns.

    Why it matters:
        One generation lower is half the bandwidth. NCCL also plans with the speed it reads, so a slow link can push
        traffic onto worse paths.

    Fix:
        As for `pcie.link-width`; look also for a generation pinned in the firmware setup and for a riser or cable
        that is not rated for the speed. This needs the node drained and switched off.

    Does not apply:
        A GPU at rest (a performance state beyond P2, or suspended) slows its link to save power, and speeds it up
        when work comes. That cannot be distinguished from a fault by looking once, so it is noted as not judged; a
        copy test (`topocheck bw`) tells. Formal links (chip-to-chip GPUs, emulated ports, the outer level of a two-
        level switch at 5.0 GT/s) say nothing and are left out.
    """
    resting: list[Link] = []
    unread = []
    for link in _judged(context):
        now, limit = link.now.speed_gt_s, link.speed_limit()
        if link.suspended:
            continue
        if isinstance(now, Missing) or limit is None:
            unread.append(link.where)
        elif now >= limit or link.rest_untold():
            continue
        elif link.idle:
            resting.append(link)
        elif link.both_ends:
            yield Finding(
                state=State.FAIL,
                subject=link.where,
                devices=(link.lower.address,),
                title=(
                    f"{link.name} PCIe gen {generation(now)} of gen {generation(limit)} ({now:g} of {limit:g} GT/s): "
                    f"link between {link.between}{limited(link)[0]}"
                ),
                consequence=f"{_who(link)} at {rate_share(now, limit)} the link's rate{others_wait(context)}",
                evidence=link.evidence("speed") + _awake(link) + limited(link)[1],
                rule="negotiated speed < the smaller of what both ends can do, while the device is not idle",
                fix=speed_up(context, link),
            )
        else:
            yield Finding(
                state=State.UNKNOWN,
                subject=link.where,
                devices=(link.lower.address,),
                title=f"the link runs at gen {generation(now)} of the card's gen {generation(limit)}; the other end "
                "cannot be seen from here",
                consequence=_unseen(context, "slower"),
                evidence=link.evidence("speed") + _awake(link),
                rule="the speed that both ends can do is needed, and one end is not shown",
                fix=first_fitting(context, *_other_end("speed")),
            )
    lone = {link.lower.address: fast for link in resting if (fast := _fast_at_rest(context, link))}
    for link in resting:
        if link.lower.address in lone:
            yield _lone(context, link, lone[link.lower.address])
    resting = [link for link in resting if link.lower.address not in lone]
    if resting:
        yield Finding(
            state=State.NOTE,
            subject="node",
            title=f"speed not judged while idle: {listed(link.users[0] for link in resting)} "
            f"{'rests' if len(resting) == 1 else 'rest'} with the link slowed down",
            consequence="none while idle; but NCCL plans with the speed it finds when a job starts",
            evidence=tuple(e for link in resting[:4] for e in (*link.evidence("speed")[:1], *_awake(link))),
            rule="an idle device may run its link at reduced speed",
            fix="to judge it, run `topocheck bw`, which reads the link speed while it copies",
        )
    if unread:
        yield _unread(context, "speed", unread)


def _unused(nvml: NvmlGpu) -> bool:
    """Tell whether a GPU has no work: nothing running, and no process on it."""
    return nvml.utilization_percent == 0 and not (known(nvml.processes) and nvml.processes)


@once
def _models(context: Context) -> dict[str, list[Link]]:
    """Return the links of GPUs by the name of their model."""
    out: dict[str, list[Link]] = {}
    for link in _judged(context):
        if link.own and link.nvml is not None and isinstance(link.nvml.name, str):
            out.setdefault(link.nvml.name, []).append(link)
    return out


def _is_fast(link: Link) -> bool:
    now, limit = link.now.speed_gt_s, link.speed_limit()
    return not isinstance(now, Missing) and limit is not None and now >= limit


@once
def _slow_of_models(context: Context) -> dict[str, list[Link]]:
    return {name: [x for x in every if not _is_fast(x)] for name, every in _models(context).items()}


def _fast_at_rest(context: Context, link: Link) -> list[Link]:
    """Return the unused siblings of a resting GPU, if there are two at least and all GPUs of the model are fast."""
    if link.nvml is None or not isinstance(link.nvml.name, str):
        return []
    name = link.nvml.name
    if any(x is not link for x in _slow_of_models(context)[name]):
        return []
    unused = [x for x in _models(context)[name] if x is not link and x.nvml is not None and _unused(x.nvml)]
    return unused if len(unused) > 1 else []


def _lone(context: Context, link: Link, fast: list[Link]) -> Finding:
    """Return the finding about the only GPU of its model with a slow link, while its siblings rest with a fast one."""
    now, limit = link.now.speed_gt_s, link.speed_limit()
    return Finding(
        state=State.WARN,
        subject=link.where,
        devices=(link.lower.address,),
        title=f"idle with its link at gen {generation(now)}; {len(fast)} of its model, unused too, keep theirs at "
        f"gen {generation(fast[0].now.speed_gt_s)}",
        consequence=f"if the link does not speed up with work, {link.users[0]} copies at "
        f"{rate_share(now, limit) if not isinstance(now, Missing) and limit else 'a part of'} its rate, and "
        "collectives wait for it",
        evidence=link.evidence("speed") + _awake(link) + fast[0].evidence("speed")[:1] + _awake(fast[0]),
        rule="one idle GPU has a slow link, and idle siblings of its model do not",
        fix="run `topocheck bw`, which reads the link speed while it copies; if it stays slow, "
        + (retrain(context, link) or ""),
    )


def _who(link: Link) -> str:
    names = listed(link.users, 4)
    return f"{names} {'copies' if len(link.users) == 1 else 'copy'}"


def _awake(link: Link) -> tuple[Evidence, ...]:
    """Quote what tells whether the device was at rest."""
    if link.nvml is not None:
        return link.nvml.evidence("DeviceGetPerformanceState")
    return link.lower.evidence("power_state", "power/runtime_status")


def _unseen(context: Context, slot: str) -> str:
    """Say what a link may be of which one end is not shown."""
    return f"a {slot} slot or a fault: " + ("only the host knows" if in_guest(context) else "the port above it tells")


def _other_end(what: str) -> tuple[Fix, ...]:
    return (
        Fix(
            f"ask the host's administrator for the {what} of the slot, or compare with another guest of this type",
            (in_guest,),
        ),
        Fix(f"compare LnkCap of the port above it in `lspci -vvv` (as root) with the {what} that the link has"),
    )


def _unread(context: Context, what: str, where: list[str]) -> Finding:
    """Say once that links could not be read: an old kernel or a hypervisor shows none."""
    return Finding(
        state=State.UNKNOWN,
        subject="node",
        title=f"the link {what} of {listed(where, 4)} cannot be read",
        consequence="a slow link would not be seen; NCCL assumes gen 3 x16 where it finds none",
        evidence=tuple(
            e for a in where[:2] for e in pci_devices(context)[a.split()[0]].evidence(f"current_link_{what}")
        ),
        rule="current and largest value of both ends are needed",
        fix="use a kernel of 4.13 or newer; in a guest, ask the host's administrator",
    )


@check(
    "pcie.slot-below-card",
    title="A card sits in a slot that can do less than the card",
    severity=State.NOTE,
    reads=("/sys/bus/pci/devices/*/max_link_width", "/sys/bus/pci/devices/*/max_link_speed"),
)
def slot_weaker_than_card(context: Context) -> Iterator[Finding]:
    """A card sits in a slot that can do less than the card.

    Looks at:
        The largest width and speed of each GPU and NIC against those of the port right above it.

    Why it matters:
        Nothing is broken, but the card cannot show what it was bought for. Often another slot of the same board can.

    Fix:
        Move the card to a wider or faster slot, if the board has one; the board's manual says which share lanes.

    Does not apply:
        In a guest, whose ports are not hardware, and to GPUs joined to their CPU by a chip-to-chip link.
    """
    for link in _judged(context):
        if not link.own or not link.both_ends:
            continue
        card, slot = link.lower_max, link.upper_max
        if _less(slot, card):
            yield Finding(
                state=State.NOTE,
                subject=link.where,
                devices=(link.lower.address,),
                title=f"the card can do {card.text()}; its slot ({link.upper.address if link.upper else '?'}) "
                f"can do {slot.text()}",
                consequence="the card works at the slot's rate; nothing is broken",
                evidence=link.evidence("width") + link.evidence("speed"),
                rule="what the port can do < what the card can do",
                fix="move the card to a better slot, if the board has one (switches the node off)",
            )


def _less(a: LinkState, b: LinkState) -> bool:
    if isinstance(a.width_lanes, Missing) or isinstance(b.width_lanes, Missing):
        return False
    if isinstance(a.speed_gt_s, Missing) or isinstance(b.speed_gt_s, Missing):
        return False
    return a.width_lanes < b.width_lanes or a.speed_gt_s < b.speed_gt_s
