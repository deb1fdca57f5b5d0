"""What to do about a PCIe link that trained below what it can, by what holds it down and by how the device is built."""

from __future__ import annotations

from topocheck.checks.registry import Context
from topocheck.checks.shared.common import share
from topocheck.checks.shared.fixes import Fix, first_fitting
from topocheck.checks.shared.pcie_links import Link, links
from topocheck.knowledge.products import find_product
from topocheck.knowledge.rates import pcie_gb_s
from topocheck.model.base import Evidence
from topocheck.topology.links import generation

_POWER_CYCLE = "drain the node and power-cycle it; if the link comes back the same, "
_SETUP = "check the slot's bifurcation and speed in the firmware setup, and update firmware and driver"
_RESEAT = f"reseat the card, riser or cable; {_SETUP}"
_SWAP = "; swap it with another card to find out whether the card or the slot is bad"
_SERVICE = "it is on the board and not in a slot: check its speed in the firmware setup, then have the board serviced"


def retrain(context: Context, link: Link) -> str | None:
    """Return what to do about a link that trained below what it can: a chip on the board cannot be reseated."""
    return first_fitting(
        context,
        Fix(_POWER_CYCLE + _SERVICE, (lambda _: _on_board(link),)),
        Fix(_POWER_CYCLE + _RESEAT + _SWAP, (lambda _: len(links(context)) > 1,)),
        Fix(_POWER_CYCLE + _RESEAT + "; try another slot"),
    )


def others_wait(context: Context) -> str:
    """Return what a slow link of one GPU costs the others, as the end of a sentence; empty where it is alone."""
    return ", and collectives run at the speed of the slowest GPU" if len(context.topology.gpus) > 1 else ""


def _on_board(link: Link) -> bool:
    """Tell whether the device is no card: an SXM module or superchip, or below a port that leads to no slot."""
    if link.upper is not None and link.upper.slot_implemented is False:
        return True
    name = link.nvml.name if link.nvml is not None else None
    found = find_product(name) if isinstance(name, str) else None
    return found is not None and found.form_factor == "SXM"


def limited(link: Link) -> tuple[str, tuple[Evidence, ...]]:
    """Return that the port above may not train faster (Link Control 2), in words, with the register; else nothing."""
    port, limit = link.upper, link.speed_limit()
    target = port.target_speed_gt_s if port is not None else None
    if port is None or not isinstance(target, float) or limit is None or target >= limit:
        return "", ()
    return f"; {port.address} is set to gen {generation(target)} at most", port.evidence("config LnkCtl2")


def speed_up(context: Context, link: Link) -> str | None:
    """Return the fix of a slow link: first what holds it down by a setting, then the hardware."""
    words, _ = limited(link)
    if not words or link.upper is None:
        return retrain(context, link)
    return (
        f"look for a PCIe speed that is pinned in the firmware setup; as root, until the next boot: setpci -s "
        f"{link.upper.address} CAP_EXP+30.w={_code(link.speed_limit()):x}:f, then retrain with setpci -s "
        f"{link.upper.address} CAP_EXP+10.w=20:20"
    )


def _code(speed_gt_s: float | None) -> int:
    """Return the link speed code of a speed: its generation (PCI Express Base Specification 6.0, 7.5.3.19)."""
    return (generation(speed_gt_s) if speed_gt_s is not None else None) or 0


def rate_share(now_gt_s: float, most_gt_s: float) -> str:
    """Return how much of the GB/s is left, in words: up to gen 2 a fifth of the bits is coding, from gen 3 a 65th."""
    try:
        return share(pcie_gb_s(now_gt_s, 1), pcie_gb_s(most_gt_s, 1))
    except ValueError:
        return share(now_gt_s, most_gt_s)
