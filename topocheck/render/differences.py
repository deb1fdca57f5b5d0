"""What differs on a node, for a person: one row for each fault, in the words of the trade."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from topocheck.compare.faults import Fault, faults
from topocheck.compare.fields import LOOSE_KINDS, kind_of
from topocheck.compare.types import Difference
from topocheck.model.base import is_digits
from topocheck.render.page import Page
from topocheck.render.words import plural

MANY = 4
"""From this many devices on, equal differences are reported in one line."""

_ONLY = "value"
"""The one field of a setting, a module or a program, which is named by itself."""

FIELDS = {
    "current_width_lanes": "PCIe width",
    "pcie_width_current": "PCIe width",
    "max_width_lanes": "maximum PCIe width",
    "pcie_width_max": "maximum PCIe width",
    "current_speed_gt_s": "PCIe speed GT/s",
    "max_speed_gt_s": "maximum PCIe speed GT/s",
    "pcie_gen_max": "maximum PCIe generation",
    "bar1_total_bytes": "BAR1 bytes",
    "driver_version": "driver",
    "cuda_version": "CUDA version",
    "kernel_release": "kernel",
    "os_name": "OS",
    "vbios": "VBIOS",
    "mtu_bytes": "MTU",
    "rate_gbit_s": "rate Gb/s",
    "speed_mbit_s": "speed Mb/s",
    "phys_state": "physical state",
    "sm_lid": "subnet manager",
    "hca_type": "chip",
    "netdevs": "interface",
    "nics": "number of RDMA NICs",
    "gpus": "number of GPUs",
    "mig_current": "MIG mode",
    "mig_pending": "pending MIG mode",
    "ecc_current": "ECC mode",
    "ecc_pending": "pending ECC mode",
    "memlock_bytes": "memlock limit",
    "nofile": "open files limit",
    "cpu_node": "NUMA node",
    "numa_node": "NUMA node",
    "acs_control_word": "ACS control",
    "iommu_group_type": "IOMMU group type",
    "nvlinks": "NVLinks",
    _ONLY: "",
}
"""Field of the JSON report -> its name for people; the others are written with blanks."""
_WIDTHS = frozenset({"current_width_lanes", "pcie_width_current", "max_width_lanes", "pcie_width_max"})


def field_name(field: str) -> str:
    """Return a field of the JSON report in the words of the trade; nothing for the one value of a setting."""
    return FIELDS.get(field, field.replace("_", " "))


def field_value(field: str, value: str) -> str:
    """Return a value as it is usually written: a width as `x8`."""
    return f"x{value}" if field in _WIDTHS and is_digits(value) else value


def named(field: str) -> str:
    """Return a field's name and a blank; nothing where it has none."""
    return f"{name} " if (name := field_name(field)) else ""


def together(differences: Sequence[Difference]) -> list[Fault]:
    """Return one row for each fault, those of many devices that differ in the same way put into one."""
    alike: dict[tuple[str, str, str, str], list[Fault]] = {}
    for f in faults(differences):
        d = f.difference
        alike.setdefault((d.section, field_name(d.field), d.value, d.majority), []).append(f)
    out: list[Fault] = []
    for group in alike.values():
        if len(group) < MANY:
            out += group
            continue
        first = group[0].difference
        device = f"{first.device} and {plural(len(group) - 1, 'more device')}"
        related = sum(f.related for f in group)
        out.append(Fault(difference=msgspec.structs.replace(first, device=device), related=related))
    return out


def fault_line(f: Fault, page: Page) -> None:
    """Add one fault of an outlier: what, the value, what is expected, and where it was read."""
    d = f.difference
    of = "" if d.share >= 1.0 else f" ({percent(d.share)} of the nodes)"
    text = (
        f"{d.device}: {named(d.field)}{field_value(d.field, d.value)}, expected {field_value(d.field, d.majority)}{of}"
    )
    if d.value in ("missing", "extra"):
        text = f"{d.device}: {d.value} on this node, unlike {percent(d.share)} of the nodes"
    page.text(text + related(f), indent=4, style="" if d.comparable else "magenta", hang=2)
    if d.source:
        page.text(d.source, indent=8, style="dim", hang=2)


def related(f: Fault) -> str:
    """Return how many other differences come from the same fault."""
    return f" (+{f.related} related, --json)" if f.related else ""


_LISTS = {
    "gpu": "GPUs",
    "accelerator": "accelerators",
    "nic": "RDMA NICs",
    "port": "ports of RDMA NICs",
    "pci": "PCI ports",
    "interface": "network interfaces",
    "numa": "NUMA nodes",
    "path": "paths",
    "inventory": "PCI devices",
    "module": "kernel modules",
    "software": "software",
    "setting": "settings",
}
_OF_KIND = {"gpu": "GPU", "nic": "NIC", "port": "port", "pci": "PCI", "numa": "NUMA node"}


def not_comparable(differences: Sequence[Difference], mine: str, reference: str, page: Page) -> None:
    """Add what one of two nodes does not tell, each field once; the values that the other has are in the JSON."""
    sides: dict[str, dict[str, dict[str, None]]] = {}
    for d in differences:
        whole = kind_of(d.slot) in LOOSE_KINDS - {"probe"} or d.field in ("device", kind_of(d.slot))
        kind, name = kind_of(d.slot), field_name(d.field) or d.field
        owner, what = ("", _LISTS.get(kind, d.device)) if whole else (_OF_KIND.get(kind, kind), name)
        if kind == "probe":
            owner, what = "", d.device
        for side, why in d.unknown.items():
            reason = f" ({why.replace('_', ' ')})" if why else ""
            where = f"not known of {mine if side == 'value' else reference}{reason}"
            sides.setdefault(where, {}).setdefault(owner, {})[what] = None
    if sides:
        page.heading("not comparable (--json has the values)")
    for where, owners in sides.items():
        parts = [
            f"{owner}: {', '.join(fields)}" if owner else ", ".join(fields) for owner, fields in sorted(owners.items())
        ]
        page.text(f"{where}: {'; '.join(parts)}", style="dim", hang=2)


def percent(share: float) -> str:
    """Return a share in percent; what is nearly all is not rounded to all."""
    value = 100 * share
    return f"{value:.2f} %" if 99.5 <= value < 100 else f"{value:.0f} %"
