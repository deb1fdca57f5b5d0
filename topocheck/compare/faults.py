"""Differences of one node that come from one fault, as one: a link has two ends, a lost card takes much with it. Pure.

The JSON holds every difference; this is for people.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from topocheck.compare.fields import kind_of
from topocheck.compare.types import Difference

_WIDTH = frozenset({"current_width_lanes", "pcie_width_current"})
_SPEED = frozenset({"current_speed_gt_s", "pcie_gen_current"})
_RENUMBERED = frozenset({"label", "netdevs"})
_COUNTED = frozenset({"gpus", "nics"})


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault: the difference that names it best, and how many others come from it."""

    difference: Difference
    related: int = 0


def faults(differences: Sequence[Difference]) -> list[Fault]:
    """Return the differences of one node in their order, those that one fault makes as one.

    - A link that lost lanes or speed shows at the device (by sysfs and by NVML) and at the port above it.
    - A device that is missing, or was added, also changes the counts of devices, its network interface, and the names
      of those that are numbered after it.
    """
    left = _without_other_ends(differences)
    gone = [d for d in left if d.value in ("missing", "extra") and kind_of(d.slot) in ("gpu", "nic", "accelerator")]
    out: list[Fault] = []
    follows = [d for d in left if gone and d not in gone and _follows(d, gone)]
    lost = {id(d) for d in follows}
    ends = len(differences) - len(left)
    for d in left:
        if id(d) in lost:
            continue
        related = 0
        if gone and d is gone[0]:
            related = len(follows)
        elif ends and (d.field in _WIDTH or d.field in _SPEED):
            related = sum(_same_link(d, other) for other in differences) - 1
        out.append(Fault(difference=d, related=related))
    return out


def _same_link(a: Difference, b: Difference) -> bool:
    both = next((f for f in (_WIDTH, _SPEED) if a.field in f and b.field in f), None)
    return both is not None and (a.value, a.majority) == (b.value, b.majority)


def _card(d: Difference) -> str:
    """Return the GPU, NIC or port that a slot of the PCI tree is of: `gpu3` for `gpu3` and for `pci gpu3`."""
    return d.slot.removeprefix("pci ")


def _without_other_ends(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences without the second reading of a card's link, and without the port at its other end."""
    out: list[Difference] = []
    for d in differences:
        links = d.field in _WIDTH or d.field in _SPEED
        if not links:
            out.append(d)
            continue
        same = [o for o in differences if _same_link(d, o)]
        cards = list(dict.fromkeys(_card(o) for o in same if kind_of(_card(o)) != "pci"))
        if kind_of(_card(d)) != "pci":
            if not any(o in out for o in same if _card(o) == _card(d)):
                out.append(d)
            continue
        ports = [o for o in same if kind_of(_card(o)) == "pci"]
        if ports.index(d) >= len(cards):
            out.append(d)
    return out


def _follows(d: Difference, gone: Sequence[Difference]) -> bool:
    """Tell whether a difference follows from devices that are missing or were added."""
    kinds = {kind_of(g.slot) for g in gone}
    kind = kind_of(d.slot)
    if d.slot == "node" and d.field in _COUNTED:
        return True
    if kind in ("inventory", "path"):
        return True
    if kind == "pci" and _card(d) in {g.slot for g in gone}:
        return True
    return "nic" in kinds and (
        (kind == "interface" and d.value in ("missing", "extra")) or (kind == "nic" and d.field in _RENUMBERED)
    )
