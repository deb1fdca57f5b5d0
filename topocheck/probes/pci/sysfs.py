"""PCI functions from sysfs.

How much is asked of a function depends on what it is, because a server has hundreds of functions that nobody
routes GPU traffic through (uncore registers, DMA engines, virtual functions), and every question is also recorded:

* every function: its place in the tree, ids and class (`modalias` has all five numbers in one read), driver,
  NUMA node, IOMMU group, and its link where it has one;
* ports, GPUs, accelerators, NICs and NVSwitches: config space, AER totals;
* of these all but the ports: CPUs, BARs, power state, SR-IOV, type of the IOMMU group.

A suspended function is asked nothing that reads its config space, as that would wake it (or, on older kernels,
give nonsense): `config`, the four link files and the bus numbers (Linux `drivers/pci/pci-sysfs.c`,
pci_config_pm_runtime_get).
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from topocheck.host.base import Host, HostError
from topocheck.knowledge.products import find_product
from topocheck.model.address import address_key, normalize_address
from topocheck.model.base import ABSENT, Missing, Reason
from topocheck.model.node import PciFacts
from topocheck.model.pci import PciDevice
from topocheck.probes.pci import config as pci_config
from topocheck.probes.pci import text as pci_text
from topocheck.probes.sysfs_reader import NOT_ASKED, Folder, list_or_missing, parse_int, text_or_missing

DEVICES = "/sys/bus/pci/devices"
SLOTS = "/sys/bus/pci/slots"
GROUPS = "/sys/kernel/iommu_groups"

_SUSPENDED = Missing(Reason.UNSUPPORTED, "not read: the device is suspended, and reading would wake it")
_BRIDGE = 0x0604
_VGA = 0x0300
_NVSWITCH = (pci_config.NVIDIA, 0x0680)
_MELLANOX = 0x15B3
_LINK_FILES = ("max_link_speed", "current_link_speed", "max_link_width", "current_link_width")
_FIRST_CONFIG_BYTES = 1024
"""A read of config space is one register access per four bytes, each a trap in a guest; ACS, ATS, AER and DPC lie
in the first kilobyte of nearly all devices, and the rest is read only where the chain of capabilities goes there."""
_MAX_SLOTS = 256
MAX_FUNCTIONS = 1 << 13
"""Servers have hundreds, with virtual functions a few thousand."""


def of_interest(class_code: int | Missing, vendor: int | Missing) -> bool:
    """Tell whether a function is an end of GPU traffic: GPU, accelerator, NIC, NVSwitch.

    By base class (PCI Code and ID Assignment): 0x02 network, 0x03 display, 0x0b40 co-processor, 0x0c06 InfiniBand,
    0x12 accelerator. An NVSwitch calls itself "other bridge"; every function of an HCA's maker counts, since
    ConnectX-8 has one of class 0x0801 that carries its data.
    """
    if isinstance(class_code, Missing):
        return False
    base = class_code >> 8
    return (
        base >> 8 in (0x02, 0x03, 0x12)
        or base in (0x0B40, 0x0C06)
        or (vendor, base) == _NVSWITCH
        or (vendor == _MELLANOX and base != _BRIDGE)
    )


def read(host: Host) -> PciFacts:
    """Return every PCI function of the machine; one that breaks loses only itself."""
    names = list_or_missing(host, DEVICES)
    if isinstance(names, Missing):
        return PciFacts(devices=names)
    groups = list_or_missing(host, GROUPS)
    named = [(n, a) for n in names if (a := normalize_address(n))]
    named = host.at_most(named, MAX_FUNCTIONS, "PCI functions")
    devices = {a: _device(host, n, a, groups != []) for n, a in named}
    _add_groups(host, devices)
    _add_slots(host, devices)
    _add_virtual_functions(devices)
    _add_names(host, devices)
    _add_management(host, devices)
    found = tuple(PciDevice(**devices[a]) for a in sorted(devices, key=address_key))
    return PciFacts(devices=found)


def _device(host: Host, name: str, address: str, has_groups: bool) -> dict[str, Any]:
    folder = Folder(host, f"{DEVICES}/{name}")
    out: dict[str, Any] = {"address": address, "source": folder.path, "raw": folder.raw}
    try:
        out["sysfs_path"] = host.realpath(folder.path)
        out["chain"] = pci_text.parse_chain(out["sysfs_path"])
    except HostError:
        pass  # the place in the tree is not known; the rest may still answer
    out |= _identity(folder)
    out["driver"] = folder.link("driver")
    out["numa_node"] = folder.value("numa_node", pci_text.parse_numa_node)
    out["iommu_group"] = folder.link("iommu_group") if has_groups else Missing(Reason.ABSENT, "no IOMMU groups")
    out["runtime_status"] = folder.text("power/runtime_status")
    suspended = out["runtime_status"] in ("suspended", "suspending")
    out |= _link(folder, suspended)
    end = of_interest(out["class_code"], out["vendor_id"])
    bridge = not isinstance(out["class_code"], Missing) and out["class_code"] >> 8 == _BRIDGE
    if end or bridge:
        out |= _config(folder, suspended)
        out |= _aer(folder)
    if bridge and isinstance(out["secondary_bus"], Missing) and not suspended:
        out["secondary_bus"] = folder.value("secondary_bus_number", parse_int)
        out["subordinate_bus"] = folder.value("subordinate_bus_number", parse_int)
    out["windows"] = folder.value("resource", pci_text.parse_windows) if bridge else NOT_ASKED
    out["boot_vga"] = ABSENT
    if end:
        out |= _end(folder)
        if isinstance(out["class_code"], int) and out["class_code"] >> 8 == _VGA:
            out["boot_vga"] = folder.value("boot_vga", _flag)
    else:
        out |= dict.fromkeys(("local_cpulist", "bars", "power_state", "iommu_group_type"), NOT_ASKED)
        out |= dict.fromkeys(("physfn", "sriov_totalvfs", "sriov_numvfs"), NOT_ASKED)
        if not bridge:
            out |= {f: getattr(_CONFIG_NOT_ASKED, f) for f in pci_config.FIELDS}
            out |= dict.fromkeys(("aer_correctable", "aer_nonfatal", "aer_fatal"), NOT_ASKED)
    return out


_CONFIG_NOT_ASKED = pci_config.nothing(NOT_ASKED)


def _flag(text: str) -> bool | Missing:
    number = parse_int(text)
    return number if isinstance(number, Missing) else number == 1


def _identity(folder: Folder) -> dict[str, Any]:
    names = ("vendor_id", "device_id", "subsystem_vendor_id", "subsystem_device_id", "class_code")
    ids = folder.value("modalias", pci_text.parse_modalias)
    if not isinstance(ids, Missing):
        return dict(zip(names, ids, strict=True))
    files = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class")
    return {n: folder.value(f, pci_text.parse_hex) for n, f in zip(names, files, strict=True)}


def _link(folder: Folder, suspended: bool) -> dict[str, Any]:
    fields = ("max_speed_gt_s", "current_speed_gt_s", "max_width_lanes", "current_width_lanes")
    if suspended:
        return dict.fromkeys(fields, _SUSPENDED)
    said = folder.text(_LINK_FILES[0])
    if isinstance(said, Missing) and said.reason is Reason.ABSENT:
        # Conventional PCI, or a kernel before 4.13: none of the four is there.
        return dict.fromkeys(fields, said)  # unlike a file that says `Unknown`, which the others may not
    first = said if isinstance(said, Missing) else pci_text.parse_link_speed(said)
    rest = [
        folder.value(_LINK_FILES[1], pci_text.parse_link_speed),
        folder.value(_LINK_FILES[2], pci_text.parse_link_width),
        folder.value(_LINK_FILES[3], pci_text.parse_link_width),
    ]
    return dict(zip(fields, [first, *rest], strict=True))


def _config(folder: Folder, suspended: bool) -> dict[str, Any]:
    if suspended:
        return msgspec.structs.asdict(pci_config.nothing(_SUSPENDED))
    path = f"{folder.path}/config"
    try:
        data = folder.host.read_bytes(path, _FIRST_CONFIG_BYTES)
        if len(data) == _FIRST_CONFIG_BYTES and pci_config.extended_continues(data):
            data = folder.host.read_bytes(path, 4096)
    except HostError as e:
        if e.reason is Reason.ABSENT and (told := _registers_as_text(folder)) is not None:
            return told
        return msgspec.structs.asdict(pci_config.nothing(e.missing()))
    folder.raw["config"] = f"{len(data)} bytes"
    folder.raw |= pci_config.register_evidence(data)
    return msgspec.structs.asdict(pci_config.parse_config(data))


def _named(host: Host, address: str) -> dict[str, Any]:
    """Return the name that lspci's text gives a function."""
    try:
        text = host.lspci(address)
    except HostError:
        return {}
    from topocheck.probes.pci.lspci import device_name, parse_block  # few recordings hold such a text

    name = device_name(parse_block(text).name)
    return {"device_name": name} if name else {}


def _registers_as_text(folder: Folder) -> dict[str, Any] | None:
    """Return what lspci's text says of a function's registers, where a recording has that in place of their bytes."""
    try:
        text = folder.host.lspci(folder.path.rpartition("/")[2])
    except HostError:
        return None
    from topocheck.probes.pci.lspci import parse_block

    block = parse_block(text)
    folder.raw |= block.raw
    return msgspec.structs.asdict(block.facts)


_parse_aer = functools.lru_cache(maxsize=16)(pci_text.parse_aer)
"""Most functions of a machine say the same: no errors."""


def _aer(folder: Folder) -> dict[str, Any]:
    out: dict[str, Any] = {}
    counters: dict[str, int] = {}
    for kind in ("correctable", "nonfatal", "fatal"):
        answer = folder.value(f"aer_dev_{kind}", _parse_aer)
        if isinstance(answer, Missing):
            out[f"aer_{kind}"] = answer
            if answer.reason is Reason.ABSENT and not out.keys() - {"aer_correctable"}:
                # The three files come together: there where the kernel owns the function's error reporting.
                return dict.fromkeys(("aer_correctable", "aer_nonfatal", "aer_fatal"), answer)
            continue
        out[f"aer_{kind}"], named = answer
        # The kernel gives a zero for every error the standard knows; only what happened is worth keeping.
        folder.raw[f"aer_dev_{kind}"] = ", ".join(f"{n} {v}" for n, v in named.items()) or "all zero"
        counters |= {f"{kind} {n}": v for n, v in named.items()}
    return out | {"aer_counters": counters}


def _end(folder: Folder) -> dict[str, Any]:
    out: dict[str, Any] = {
        "local_cpulist": folder.text("local_cpulist"),
        "bars": folder.value("resource", pci_text.parse_resource),
        "power_state": folder.text("power_state"),
        "physfn": folder.link("physfn"),
        "sriov_totalvfs": folder.value("sriov_totalvfs", parse_int),
        "sriov_numvfs": ABSENT,
    }
    if not isinstance(out["sriov_totalvfs"], Missing):
        out["sriov_numvfs"] = folder.value("sriov_numvfs", parse_int)
    return out


def _add_groups(host: Host, devices: dict[str, dict[str, Any]]) -> None:
    """Add the type of the IOMMU group of each end; each group is asked once."""
    types: dict[str, str | Missing] = {}
    for d in devices.values():
        group = d["iommu_group"]
        if not of_interest(d["class_code"], d["vendor_id"]):
            continue
        if isinstance(group, Missing):
            d["iommu_group_type"] = group
            continue
        if group not in types:
            types[group] = text_or_missing(host, f"{GROUPS}/{group}/type")
        kind = d["iommu_group_type"] = types[group]
        d["raw"]["iommu_group/type"] = str(kind) if not isinstance(kind, Missing) else f"!{kind}"


def _add_slots(host: Host, devices: dict[str, dict[str, Any]]) -> None:
    """Add the name of the slot that holds a function; a slot's address has no function (`0000:3b:00`)."""
    names = list_or_missing(host, SLOTS)
    if isinstance(names, Missing):
        if names.reason is Reason.NOT_RECORDED:
            for d in devices.values():
                d["slot"] = names
        return
    where: dict[str, str] = {}
    for name in host.at_most(names, _MAX_SLOTS, f"names in {SLOTS}"):
        address = text_or_missing(host, f"{SLOTS}/{name}/address")
        if not isinstance(address, Missing) and (full := normalize_address(f"{address}.0")):
            where[full[:-2]] = name
    for address, d in devices.items():
        if slot := where.get(address[:-2]):
            d["slot"] = slot


def _add_virtual_functions(devices: dict[str, dict[str, Any]]) -> None:
    """Make `physfn` an address, and give each physical function the addresses of its virtual ones."""
    virtual: dict[str, list[str]] = {}
    for address, d in devices.items():
        physfn = d["physfn"]
        if not isinstance(physfn, Missing):
            d["physfn"] = normalize_address(physfn) or Missing(Reason.UNPARSABLE, physfn)
            virtual.setdefault(str(d["physfn"]), []).append(address)
    for address, members in virtual.items():
        if address in devices:
            devices[address]["virtfns"] = tuple(sorted(members, key=address_key))


def _add_management(host: Host, devices: dict[str, dict[str, Any]]) -> None:
    """Add which InfiniBand functions manage NVSwitches, on boards where these are no PCI devices.

    Reading vital product data takes tens of milliseconds a card, so no other machine is asked.
    """
    gpus = {d["device_id"] for d in devices.values() if d["vendor_id"] == pci_config.NVIDIA}
    boards = (find_product(None, i) for i in gpus if not isinstance(i, Missing))
    if not any(b is not None and b.hides_switches for b in boards):
        return
    for d in devices.values():
        if d["vendor_id"] != _MELLANOX or isinstance(d["class_code"], Missing) or not isinstance(d["physfn"], Missing):
            continue
        if d["class_code"] >> 8 == _INFINIBAND:
            name = str(d["source"]).rpartition("/")[2]
            d["manages_nvswitch"] = found = _manages(host, name)
            d["raw"]["vpd"] = f"!{found}" if isinstance(found, Missing) else _SWITCH_MARK if found else "(no SW_MNG)"


_INFINIBAND = 0x0207
_SWITCH_MARK = "SMDL=SW_MNG"
"""What the VPD of these functions says (NVIDIA Fabric Manager User Guide; nvidia-fabricmanager-start.sh)."""
VPD_BYTES = 1024


def _manages(host: Host, name: str) -> bool | Missing:
    try:
        return _SWITCH_MARK.encode() in host.read_bytes(f"{DEVICES}/{name}/vpd", VPD_BYTES)
    except HostError as e:
        return e.missing()


def _add_names(host: Host, devices: dict[str, dict[str, Any]]) -> None:
    """Add the names from the system's pci.ids; one question for all."""
    ids: dict[str, list[dict[str, Any]]] = {}
    for d in devices.values():
        if not isinstance(d["vendor_id"], Missing) and not isinstance(d["device_id"], Missing):
            ids.setdefault(f"{d['vendor_id']:04x}:{d['device_id']:04x}", []).append(d)
    if not ids:
        for address, d in devices.items():
            d |= _named(host, address)
        return
    try:
        found = host.pci_names(sorted(ids))
    except HostError as e:
        for address, d in devices.items():
            d["vendor_name"] = d["device_name"] = e.missing()
            d |= _named(host, address) if e.reason is Reason.NOT_RECORDED else {}
        return
    unlisted = Missing(Reason.ABSENT, "not in pci.ids")
    for key, members in ids.items():
        vendor, device = (found.get(key) or [None, None])[:2]
        for d in members:
            d["vendor_name"], d["device_name"] = vendor or unlisted, device or unlisted
