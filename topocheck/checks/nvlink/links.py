"""NVLink: links that are down, that err, that the driver does not use, and islands of GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import is_guest, listed, living, named
from topocheck.checks.shared.fixes import on_node
from topocheck.checks.sources import GPUS, Needs
from topocheck.knowledge.products import Product, find_bridge
from topocheck.model.base import Evidence, Finding, Missing, Reason, State
from topocheck.model.gpu import NvLink
from topocheck.topology.paths import product_of
from topocheck.topology.types import Gpu

_GRAVE = ("recovery", "link_recoveries_failed", "local_link_integrity_errors", "buffer_overruns", "malformed_packets")
_LIGHT = ("replay", "crc", "receive_errors", "receive_remote_errors", "transmit_discards")
"""Counters by what they mean. Symbol and effective errors are left out: they are counted before the link's own
error correction and grow on healthy links; recoveries that succeeded are the link's daily work on NVLink 5."""

ERRORS = 100.0
"""Packets sent again since the counters were cleared from which on they are noted; one look cannot give a rate."""


def _linked(context: Context) -> list[Gpu]:
    """Return the GPUs that answer and have NVLinks that MIG does not switch off.

    Raises:
        NotApplicableError: there are none.
    """
    found = [g for g in living(context) if g.nvml is not None and g.nvml.nvlinks and g.nvml.mig_current is not True]
    if not found:
        raise not_applicable("no GPU with NVLinks (MIG switches them off)")
    return found


def _links(gpu: Gpu) -> tuple[NvLink, ...]:
    return gpu.nvml.nvlinks if gpu.nvml is not None else ()


def _active(gpu: Gpu) -> int:
    return sum(link.active is True for link in _links(gpu))


def _down(gpu: Gpu) -> list[int]:
    return [link.link for link in _links(gpu) if link.active is False]


def _state_evidence(gpu: Gpu, numbers: list[int]) -> tuple[Evidence, ...]:
    if gpu.nvml is None:
        return ()
    total = Evidence(f"{gpu.nvml.source} DeviceGetNvLinkState", f"{_active(gpu)} active of {len(_links(gpu))}")
    return (total, *gpu.nvml.evidence(*(f"DeviceGetNvLinkState({n})" for n in numbers[:4])))


@check(
    "nvlink.links-down",
    title="A GPU has fewer active NVLinks than its board or its siblings",
    severity=State.FAIL,
    reads=("NVML DeviceGetNvLinkState", "NVML NVML_FI_DEV_NVLINK_LINK_COUNT", "product table"),
    needs=Needs((*GPUS, "mig", "nvlinks"), ("gpu name", "hypervisor")),
)
def links_down(context: Context) -> Iterator[Finding]:
    """A GPU has fewer active NVLinks than its board or its siblings.

    Looks at:
        How many links of each GPU are active, against its siblings of the same product and against the number that
        the product has wired (which may be less than the chip has: 12 of 18 on the H100 NVL), or its bridges join.

    Why it matters:
        Each lost link takes its share of the bandwidth between GPUs, and collectives run at the pace of the weakest
        GPU. With all links down, peers fall back to PCIe, ten times slower.

    Fix:
        On a module board: reset all GPUs together and restart the fabric manager, then power-cycle; a link that stays
        down is a matter of service. With a bridge: switch the node off and seat the bridge again.

    Does not apply:
        To a single card that has nobody to talk to, to cards whose bridge is an option and not fitted, and to GPUs
        split by MIG. In a guest, links that are down on all GPUs alike are the host's to explain.
    """
    gpus = _linked(context)
    products = {g.address: product_of(g) for g in gpus}
    lone = gpus[0] if len(gpus) == 1 else None
    if lone is not None and not _active(lone) and _down(lone) and _on_card(products[lone.address]):
        raise not_applicable(
            f"{lone.label} is the only GPU with NVLinks, and none of them has trained: without a bridge it has no peer "
            "(a second card with a bridge, or a policy that expects NVLinks, would have this judged)"
        )
    active = {g.address: _active(g) for g in gpus}
    for gpu in gpus:
        product = products[gpu.address]
        unread = [link.link for link in _links(gpu) if isinstance(link.active, Missing)]
        if unread and len(unread) == len(_links(gpu)):
            yield Finding(
                state=State.UNKNOWN,
                subject=named(gpu),
                devices=(gpu.address,),
                title=f"the state of its {len(unread)} NVLinks cannot be read",
                evidence=_state_evidence(gpu, unread),
                rule="DeviceGetNvLinkState must answer",
                fix="check the kernel log of the driver; a GPU that needs a reset answers so",
            )
            continue
        siblings = [g for g in gpus if g is not gpu and _alike(g, gpu)]
        most = max((active[g.address] for g in siblings), default=0)
        judged = _judge(context, gpu, product, siblings, most)
        if judged is None:
            continue
        state, title, rule = judged
        if unread and active[gpu.address] + len(unread) >= _wanted(gpu, product, most):
            state, title = State.UNKNOWN, f"{title}; the state of {len(unread)} links cannot be read"
        elif unread:
            state = _least({_state_with(context, gpu, product, siblings, most, n) for n in range(len(unread) + 1)})
            title = f"{title}; the state of {len(unread)} links cannot be read"
        elif _listed_in_part(gpu):
            state, title = State.UNKNOWN, f"{title}; the given list may be cut, so these may not be all its links"
        yield Finding(
            state=state,
            subject=named(gpu),
            devices=(gpu.address,),
            title=title,
            consequence="peers reach it over PCIe only, about ten times slower"
            if _active(gpu) == 0
            else f"traffic with its peers has {_active(gpu)} links instead of {_wanted(gpu, product, most)}, "
            "and collectives run at the speed of the slowest GPU",
            evidence=(
                *_state_evidence(gpu, _down(gpu)),
                *(_peers_evidence(context, gpu, siblings) if not active[gpu.address] else ()),
            ),
            rule=rule,
            fix=_fix(context, product),
        )


def _state_with(
    context: Context, gpu: Gpu, product: Product | None, siblings: list[Gpu], most: int, further: int
) -> State:
    """Return the state of a GPU if so many of the links that were not read are active."""
    judged = _judge(context, gpu, product, siblings, most, further)
    return judged[0] if judged is not None else State.OK


def _least(states: set[State]) -> State:
    """Return the least of states of which one holds; unknown where it may be a fault or none."""
    if len(states) == 1:
        return states.pop()
    return State.WARN if states == {State.WARN, State.FAIL} else State.UNKNOWN


def _listed_in_part(gpu: Gpu) -> bool:
    """Tell whether links of a GPU may be missing from a text: their number is not known, and none is down."""
    count = gpu.nvml.nvlink_count if gpu.nvml is not None else 0
    return isinstance(count, Missing) and count.reason is Reason.NOT_RECORDED and not _down(gpu)


def _on_card(product: Product | None) -> bool:
    return product is not None and product.form_factor == "PCIe"


def _peers_evidence(context: Context, gpu: Gpu, siblings: list[Gpu]) -> tuple[Evidence, ...]:
    """Return the product, and how far a sibling is by PCIe, which is the way left without NVLink."""
    product = product_of(gpu)
    out = (Evidence("product", f"{gpu.name}: {product.name}, {product.form_factor}"),) if product is not None else ()
    path = next(
        (p for s in siblings[:1] for p in context.topology.paths if (p.from_, p.to) == (gpu.address, s.address)), None
    )
    if path is None:
        return out
    return (*out, Evidence(f"PCI tree {path.from_label} - {path.to_label}", str(path.pcie_class)))


def _alike(a: Gpu, b: Gpu) -> bool:
    return a.name == b.name or (product_of(a) is not None and product_of(a) == product_of(b))


def _wanted(gpu: Gpu, product: Product | None, most: int) -> int:
    bridge = find_bridge(gpu.name) if isinstance(gpu.name, str) else None
    return max(
        most,
        (product.nvlink_links or 0) if product is not None else 0,
        bridge.links if bridge is not None and _active(gpu) else 0,
    )


def _judge(
    context: Context, gpu: Gpu, product: Product | None, siblings: list[Gpu], most: int, further: int = 0
) -> tuple[State, str, str] | None:
    """Return (state, title, rule) for a GPU with too few links; None for one in order.

    `most` is the largest number of active links of a sibling, `further` how many that were not read count as active.
    """
    active, total = _active(gpu) + further, len(_links(gpu))
    wired = product.nvlink_links if product is not None else None
    on_board = product is not None and product.form_factor != "PCIe"
    down = _down(gpu)
    if 0 < active < most or (active < most and on_board):
        title = f"{active} NVLinks active, siblings have {most} (down: {_numbers(down)})"
        return State.FAIL, title, "fewer active links than a sibling of the same product"
    bridged = None if is_guest(context) or wired else _half_bridged(gpu, active)
    if bridged is not None:
        return bridged
    if active < most:
        if wired:
            return State.WARN, f"no NVLink active, siblings have {most}", "a product sold with bridges"
        if _three_joined(context, siblings):
            title = f"no NVLink active; its three siblings have {most}, joined by a bridge for four"
            return State.WARN, title, "bridges join two cards or four (NVIDIA H200 NVL product brief)"
        return State.NOTE, f"no NVLink active, siblings have {most}: no bridge fitted?", "siblings are bridged"
    if wired is not None and active < wired:
        return _below_product(context, active, wired, on_board, siblings, down)
    if product is None and 0 < active < total:
        same = all(_down(g) == down for g in siblings)
        shown = "; the same links are down on its siblings" if same and siblings else ""
        title = f"{active} of {total} NVLinks active, and the product's number of links is not known{shown}"
        return State.UNKNOWN, title, "links of a product that is not in the table"
    return None


def _three_joined(context: Context, siblings: list[Gpu]) -> bool:
    """Tell whether exactly three siblings have NVLinks and each pair of them is joined: a bridge for four cards."""
    linked = {g.address for g in siblings if _active(g)}
    pairs = [p for p in context.topology.paths if p.from_ in linked and p.to in linked]
    return len(linked) == 3 and len(pairs) == 6 and all(p.nvlinks for p in pairs)


def _half_bridged(gpu: Gpu, active: int) -> tuple[State, str, str] | None:
    """Judge a bridged card by the links of its bridges, whatever its siblings have."""
    bridge = find_bridge(gpu.name) if isinstance(gpu.name, str) else None
    if bridge is None or not 0 < active < bridge.links:
        return None
    rule = (
        f"one bridge joins {bridge.links_per_bridge} links, and the card takes {bridge.bridges}: {bridge.links} links"
    )
    down = _numbers(_down(gpu)[: bridge.links - active])
    if active % bridge.links_per_bridge:
        title = f"{active} of {bridge.links} NVLinks active (down: {down}): is the bridge seated on both cards?"
        return State.WARN, title, rule
    fitted = active // bridge.links_per_bridge
    plural = "s" if fitted > 1 else ""
    return State.NOTE, f"{fitted} bridge{plural} of {bridge.bridges}: {active} of {bridge.links} NVLinks active", rule


def _below_product(
    context: Context, active: int, wired: int, on_board: bool, siblings: list[Gpu], down: list[int]
) -> tuple[State, str, str] | None:
    """Judge a GPU that has as many links as its siblings, and fewer than its product."""
    rule = f"the product has {wired} NVLinks"
    if not siblings and active == 0:
        return None
    if is_guest(context):
        title = f"{active} of {wired} NVLinks active, as on its siblings; the host decides which are passed on"
        return (State.UNKNOWN, title, rule)
    if active == 0 and not on_board:
        return State.WARN, f"all NVLinks down, on all siblings too: is the bridge fitted and seated? ({rule})", rule
    if active == 0:
        return State.FAIL, f"all {wired} NVLinks down, on its siblings too", rule
    title = f"{active} of {wired} NVLinks active, as on its siblings (down: {_numbers(down)})"
    return State.WARN, title, rule


def _numbers(links: list[int]) -> str:
    return listed((str(n) for n in links), 12) or "none listed"


def _fix(context: Context, product: Product | None) -> str:
    if is_guest(context):
        return (
            "restart the guest; if the links stay down, have the host's administrator check the GPU and reset the node"
        )
    if product is not None and product.form_factor == "PCIe":
        return "switch the node off and fit or reseat the NVLink bridge"
    return on_node(
        context,
        "drain the node, restart nvidia-fabricmanager where there is one and reset all GPUs together (nvidia-smi -r, "
        "ends all that runs on them), then power-cycle; a link that stays down needs service",
    )


@check(
    "nvlink.errors",
    title="NVLinks count errors",
    severity=State.WARN,
    reads=("NVML NVML_FI_DEV_NVLINK_*_ERROR_COUNT, NVML_FI_DEV_NVLINK_COUNT_*",),
    needs=Needs((*GPUS, "mig", "nvlinks"), ("nvlink counters",)),
    thresholds=("count",),
)
def errors(context: Context) -> Iterator[Finding]:
    """NVLinks count errors.

    Looks at:
        The error counters of every active link. Threshold `count` of the policy, 100 by default, for packets that
        were sent again; recoveries of the whole link and lost packets count from one.

    Why it matters:
        A link that recovers stalls all traffic over it; one that keeps sending again is on its way down. Both show
        as collectives of uneven speed.

    Fix:
        Look again after an hour of work. Where it grows: seat the bridge or module again, reset the GPU, then service.

    Does not apply:
        Counters that grow on healthy links (symbol errors, successful recoveries of NVLink 5) are not judged.
    """
    limit = context.threshold("nvlink.errors", "count", ERRORS)
    for gpu in _linked(context):
        grave = {f"NVLink {x.link} {n}": x.errors[n] for x in _links(gpu) for n in _GRAVE if x.errors.get(n, 0) > 0}
        light = {f"NVLink {x.link} {n}": x.errors[n] for x in _links(gpu) for n in _LIGHT if x.errors.get(n, 0) > limit}
        found = grave or light
        if not found:
            continue
        yield Finding(
            state=State.WARN if grave else State.NOTE,
            subject=named(gpu),
            devices=(gpu.address,),
            title="; ".join(f"{name}: {n}" for name, n in list(found.items())[:4])
            + (f" and {len(found) - 4} more counters" if len(found) > 4 else ""),
            consequence="traffic over these links stalls now and then; collectives run unevenly",
            evidence=gpu.nvml.evidence(*list(found)[:6]) if gpu.nvml is not None else (),
            rule="recoveries and lost packets > 0" if grave else f"packets sent again > {limit:g}",
            fix="re-check after an hour under load; if it grows, reset the GPU (ends all that runs on it), then "
            "seat bridge or module again",
        )
