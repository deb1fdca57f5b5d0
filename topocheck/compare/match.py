"""Which device of one node stands for which device of another, and in what two nodes differ."""

from __future__ import annotations

import re
from collections.abc import Mapping

from topocheck.compare.fields import GPU, LOOSE_KINDS, NIC, PATH, PCI, kind_of
from topocheck.compare.types import ABSENT, Value

Devices = Mapping[str, tuple[Value, ...]]
Delta = dict[tuple[str, int], Value]
"""(slot of the reference, index of the field) -> value of the other node; index WHOLE for a missing or extra one."""

WHOLE = -1
MISSING = "missing"
EXTRA = "extra"

_SLOT = re.compile(r"\b(gpu|accelerator|nic|pci)([0-9]{1,9})\b")
_WHOLE_KINDS = frozenset({"gpu", "accelerator", "nic"})
_ON_BUS, _NVLINKS = (next(i for i, f in enumerate(GPU) if f.name == n) for n in ("on_bus", "nvlinks"))
_NUMBERED = frozenset(i for i, f in enumerate(GPU) if f.name in ("p2p_status", "minor"))
_NAMED = frozenset(i for i, f in enumerate(NIC) if f.name in ("label", "netdevs"))
"""Fields of GPUs that change with the number of GPUs, and of NICs with the number of NICs."""
_SPEED = next(i for i, f in enumerate(PCI) if f.name == "current_speed_gt_s")
_PCIE_CLASS = next(i for i, f in enumerate(PATH) if f.name == "pcie_class")
_ADDRESSED = frozenset({"gpu", "accelerator", "nic", "port", "pci", "path"})


def align(addresses: Mapping[str, str], reference: Mapping[str, str]) -> dict[str, str]:
    """Return slot of a node -> slot of the reference, only where the two differ.

    Where both have the same number of devices of a kind, the n-th stands for the n-th: firmware may have numbered
    the buses otherwise. Where the numbers differ, devices are matched by address, so that the missing one is found;
    one with no counterpart gets a slot of its own (`gpu+2`).
    """
    mapping: dict[str, str] = {}
    for kind in ("gpu", "accelerator", "nic", "pci"):
        mine = {s: a for s, a in addresses.items() if kind_of(s) == kind}
        theirs = {a: s for s, a in reference.items() if kind_of(s) == kind}
        if len(mine) == len(theirs):
            continue
        matched = {s: theirs[a] for s, a in mine.items() if a in theirs}
        if 2 * len(matched) < min(len(mine), len(theirs)):
            matched = {s: s for s in mine if s in reference}
        for slot in mine:
            to = matched.get(slot, f"{kind}+{slot[len(kind) :]}")
            if to != slot:
                mapping[slot] = to
    return mapping


def rename(devices: Devices, mapping: Mapping[str, str]) -> Devices:
    """Return the devices of a node under the slots of the reference."""
    if not mapping:
        return devices
    out: dict[str, tuple[Value, ...]] = {}
    for slot, values in devices.items():
        if kind_of(slot) not in _ADDRESSED:
            out[slot] = values
            continue
        renamed = rename_slot(slot, mapping)
        if renamed.startswith("path "):
            renamed = "path " + "-".join(sorted(renamed[5:].split("-")))
        out[renamed] = tuple(rename_slot(v, mapping) if isinstance(v, str) and "<" in v else v for v in values)
    return out


def rename_slot(text: str, mapping: Mapping[str, str]) -> str:
    """Return a slot, or a text with slots in it, with those of a node replaced by the reference's."""
    return _SLOT.sub(lambda m: mapping.get(m[0], m[0]), text)


def delta(devices: Devices, reference: Devices) -> Delta:
    """Return in what a node differs from the reference; both under the reference's slots.

    What follows from another difference alone is left out: ports and paths of a device that is missing, extra or off
    the bus, what the other GPUs say of access to it and the numbers and names that others have then, and the NVLinks of
    a path where those of one of its GPUs differ.
    """
    changed = {slot for slot, _ in devices.items() ^ reference.items()}
    gone = {s for s in changed if kind_of(s) in _WHOLE_KINDS and (s not in devices or s not in reference)}
    lost = {s for s in changed - gone if kind_of(s) == "gpu" and devices[s][_ON_BUS] != reference[s][_ON_BUS]}
    relinked = {s for s in changed - gone if kind_of(s) == "gpu" and devices[s][_NVLINKS] != reference[s][_NVLINKS]}
    fewer, named = any(kind_of(s) == "gpu" for s in gone | lost), any(kind_of(s) == "nic" for s in gone)
    out: Delta = {}
    for slot in sorted(changed):
        if slot in lost:
            out[slot, _ON_BUS] = devices[slot][_ON_BUS]
            continue
        if slot not in gone and _mentions(slot, gone | lost):
            continue
        mine, theirs = devices.get(slot), reference.get(slot)
        kind = kind_of(slot)
        if kind in LOOSE_KINDS:
            out[slot, 0] = mine[0] if mine else ABSENT
        elif mine is None or theirs is None:
            out[slot, WHOLE] = MISSING if mine is None else EXTRA
        else:
            for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                # A port with no GPU below it any more has a speed to tell, where those above GPUs have none.
                follows = kind == "pci" and i == _SPEED and gone and ABSENT in (a, b)
                follows = follows or (kind == "path" and i != _PCIE_CLASS and _mentions(slot, relinked))
                follows = (
                    follows or (kind == "gpu" and i in _NUMBERED and fewer) or (kind == "nic" and i in _NAMED and named)
                )
                if a != b and not follows:
                    out[slot, i] = a
    return out


def _mentions(slot: str, gone: set[str]) -> bool:
    return bool(gone) and any(word in gone for word in re.split(r"[ \-/]", slot))


def reference_value(key: tuple[str, int], reference: Devices) -> Value:
    """Return what the reference has where a node differs."""
    slot, i = key
    if i == WHOLE:
        return "there" if slot in reference else MISSING
    values = reference.get(slot)
    return values[i] if values is not None else ABSENT


def slot_order(slot: str) -> tuple[str, int, str]:
    """Sort key of slots: by kind, then by number."""
    m = _SLOT.search(slot)
    return kind_of(slot), int(m[2]) if m else 0, slot
