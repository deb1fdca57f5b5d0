"""The PCI part of a described machine: /sys/devices, /sys/bus/pci, IOMMU groups, slots, drivers."""

from __future__ import annotations

import functools
from typing import Any

from tests.machines import config_space
from tests.machines.description import GTS, DescriptionError, Function, Root
from tests.machines.tree import Dir, File, Tree

_IORESOURCE_MEM, _PREFETCH, _MEM64 = 0x00000200, 0x00002000, 0x00100000
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def speed_text(gen: int, spelling: str) -> str:
    """Return a link speed as the kernel writes it: `new` from 5.7 on, `old` before (drivers/pci/pci-sysfs.c)."""
    if spelling == "old":
        return f"{GTS[gen].removesuffix('.0')} GT/s"
    return f"{GTS[gen]} GT/s PCIe"


def size_bytes(text: str) -> int:
    """Return the bytes of a size such as `16M`."""
    return int(text[:-1]) * _SIZES[text[-1]]


def write(tree: Tree, roots: list[Root], fs: list[Function], d: dict[str, Any], cpus_of_node: dict[int, str]) -> None:
    """Write every function, and the folders that point at them."""
    tree.put("/sys/bus/pci/devices", Dir())
    tree.put("/sys/bus/pci/slots", Dir())
    tree.put("/sys/bus/pci/drivers", Dir())
    system = d.get("system", {})
    for root in roots:
        tree.put(root.path, Dir())
        domain_bus = f"{root.domain}:{root.bus:02x}"
        tree.put(f"{root.path}/pci_bus/{domain_bus}/cpulistaffinity", _local_cpus(root.node, cpus_of_node))
        tree.link(f"/sys/class/pci_bus/{domain_bus}", f"{root.path}/pci_bus/{domain_bus}")
    base = 0x200000000000
    for f in fs:
        if f.options.get("hidden") == "1":
            continue
        base = _function(tree, f, d, base, cpus_of_node)
    _virtual_functions(tree, fs)
    _iommu(tree, fs, system)


def _local_cpus(node: int, cpus_of_node: dict[int, str]) -> str:
    from topocheck.model.address import format_cpulist, parse_cpulist

    if node in cpus_of_node:
        return cpus_of_node[node]
    return format_cpulist(frozenset().union(*(parse_cpulist(c) for c in cpus_of_node.values())))


@functools.cache
def cpumask(cpulist: str, total: int) -> str:
    """Return the kernel's mask form of a CPU list: groups of 8 hex digits, highest first."""
    from topocheck.model.address import parse_cpulist

    bits = sum(1 << c for c in parse_cpulist(cpulist))
    groups = max(1, -(-total // 32))
    return ",".join(f"{bits >> (32 * g) & 0xFFFFFFFF:08x}" for g in reversed(range(groups)))


def _ids(f: Function) -> tuple[int, int, int, int]:
    vendor, device = (int(x, 16) for x in f.options.get("id", f.product.get("id", "0000:0000")).split(":"))
    sub = f.options.get("sub", f.product.get("sub", "0000:0000"))
    sub_vendor, sub_device = (int(x, 16) for x in sub.split(":"))
    return vendor, device, sub_vendor, sub_device


def _resources(f: Function, base: int) -> tuple[str, list[int], int]:
    """Return the text of `resource`, the raw BAR words, and the next free address."""
    lines, words = [], list[int]()
    sizes = f.options["bars"].split(",") if "bars" in f.options else f.product.get("bars", [])
    for spec in sizes:
        size_text, wide, prefetch = spec.rstrip("p6"), "6" in spec[-2:], spec.endswith("p")
        if not size_text or size_text == "-":
            lines.append("0x0000000000000000 0x0000000000000000 0x0000000000000000")
            words.append(0)
            continue
        size = size_bytes(size_text)
        base = -(-base // size) * size
        flags = _IORESOURCE_MEM | 0x40000
        flags |= (_PREFETCH | 0x8 if prefetch else 0) | (_MEM64 | 0x4 if wide else 0)
        lines.append(f"0x{base:016x} 0x{base + size - 1:016x} 0x{flags:016x}")
        words.append(base & 0xFFFFFFF0 | (0x4 if wide else 0) | (0x8 if prefetch else 0))
        if wide:
            lines.append("0x0000000000000000 0x0000000000000000 0x0000000000000000")
            words.append(base >> 32)
        base += size
    if f.is_bridge:
        return _bridge_lines(f, lines), words, base
    rows = 13
    lines += ["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * (rows - len(lines))
    return "\n".join(lines), words, base


def _bridge_lines(f: Function, bars: list[str]) -> str:
    """Return `resource` of a bridge: BARs, ROM, SR-IOV, then the windows for I/O, memory and prefetchable memory.

    `window=48G` tells the size of the last; else it holds all that is below. `iov=0` is a kernel without SR-IOV.
    """
    empty = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
    rows = bars + [empty] * ((13 if f.options.get("iov", "1") == "1" else 7) - len(bars))
    size = size_bytes(f.options["window"]) if "window" in f.options else _room(f)
    window = f"0x{_WINDOWS:016x} 0x{_WINDOWS + size - 1:016x} 0x{_IORESOURCE_MEM | _PREFETCH | _MEM64 | 1:016x}"
    return "\n".join([*rows, empty, empty, window if size else empty, empty])


_WINDOWS = 0x600000000000


def _room(f: Function) -> int:
    """Return the bytes of all prefetchable BARs below a bridge, rounded up as bridges are: each to its own size."""
    total = 0
    for child in f.children:
        if child.is_bridge:
            total += _room(child)
            continue
        sizes = child.options["bars"].split(",") if "bars" in child.options else child.product.get("bars", [])
        total += sum(size_bytes(s.rstrip("p6")) for s in sizes if s.endswith("p") and s.rstrip("p6") not in ("", "-"))
    return total


def config_bytes(f: Function, words: list[int]) -> bytes:
    """Return the function's whole config space; all ones where the device is gone."""
    vendor, device, sub_vendor, sub_device = _ids(f)
    o, p = f.options, f.product
    is_pcie = f.max is not None or f.role in ("rc_endpoint",)
    siblings = f.parent.children if f.parent else f.root.children
    acs_default = "0x0" if f.role in ("root_port", "downstream") else None
    acs = o.get("acs", p.get("acs", acs_default))
    ats = o.get("ats", p.get("ats"))
    space = config_space.build(
        config_space.Config(
            vendor=vendor,
            device=device,
            class_code=int(o.get("class", p["class"]), 16),
            revision=int(p.get("revision", "0xa1"), 16),
            subsystem_vendor=sub_vendor,
            subsystem_device=sub_device,
            bars=tuple(words),
            multifunction=sum(s.address[:-1] == f.address[:-1] for s in siblings) > 1,
            buses=_buses(f),
            port_type=f.role if is_pcie else None,
            max_gen=f.max.gen if f.max else 0,
            max_width=f.max.width if f.max else 0,
            now_gen=f.now.gen if f.now else 0,
            target_gen=int(o.get("target", 0)),
            now_width=f.now.width if f.now else 0,
            mps=int(o.get("mps", p.get("mps", 256))),
            mps_supported=int(o.get("mps_supported", p.get("mps_supported", 512))),
            mrrs=int(o.get("mrrs", p.get("mrrs", 512))),
            relaxed_ordering=o.get("ro", "1") == "1",
            acs=None if acs in (None, "none") else int(acs, 16),
            ats=None if ats is None else str(ats) == "on",
            aer=o.get("aer", "1") == "1",
            sriov=(int(o["totalvfs"]), int(o.get("numvfs", 0))) if "totalvfs" in o else None,
            serial=int(o["serial"], 16) if "serial" in o else None,
            clique=int(o["clique"]) if "clique" in o else None,
            dpc=o["dpc"] == "1" if "dpc" in o else None,
        )
    )
    return b"\xff" * len(space) if o.get("lost") == "1" else space


def _buses(f: Function) -> tuple[int, int, int] | None:
    if not f.is_bridge:
        return None
    if f.secondary is None or f.subordinate is None:
        raise DescriptionError(f"{f.address}: a bridge without bus numbers")
    return int(f.address.split(":")[1], 16), f.secondary, f.subordinate


def _function(tree: Tree, f: Function, d: dict[str, Any], base: int, cpus_of_node: dict[int, str]) -> int:
    from topocheck.model.address import parse_cpulist

    at, system, o = f.path, d.get("system", {}), f.options
    vendor, device, sub_vendor, sub_device = _ids(f)
    class_code = int(o.get("class", f.product["class"]), 16)
    local = _local_cpus(f.node, cpus_of_node)
    total = 1 + max((max(parse_cpulist(c), default=0) for c in cpus_of_node.values()), default=0)
    resource, words, base = _resources(f, base)
    power = o.get("runtime", "active")
    files: dict[str, str] = {
        "vendor": f"0x{vendor:04x}",
        "device": f"0x{device:04x}",
        "subsystem_vendor": f"0x{sub_vendor:04x}",
        "subsystem_device": f"0x{sub_device:04x}",
        "class": f"0x{class_code:06x}",
        "revision": f.product.get("revision", "0xa1"),
        "irq": "0",
        "numa_node": str(f.node),
        "local_cpulist": local,
        "local_cpus": cpumask(local, total),
        "resource": resource,
        "power/runtime_status": power,
        "power/control": "auto" if power == "suspended" else "on",
        "d3cold_allowed": "1",
        "enable": "1",
    }
    if system.get("power_state", True):
        files["power_state"] = o.get("power", "D3cold" if power == "suspended" else "D0")
    if f.max is not None:
        files |= _link_files(f, system.get("speed_spelling", "new"))
    if f.is_bridge:
        files |= {"secondary_bus_number": str(f.secondary), "subordinate_bus_number": str(f.subordinate)}
    if f.max is not None and system.get("aer", True) and o.get("aer", "1") == "1":
        files |= _aer_files(o)
    if "totalvfs" in o:
        files |= {"sriov_totalvfs": o["totalvfs"], "sriov_numvfs": o.get("numvfs", "0"), "sriov_vf_device": "101e"}
    if "vpd" in o or f.product.get("vpd"):  # root alone may read it
        tree.put(f"{at}/vpd", File(f"\x82\x0c\0{o.get('vpd', f.product.get('vpd'))}".encode(), mode=0o600))
    for name, text in files.items():
        tree.put(f"{at}/{name}", text)
    space = config_bytes(f, words)
    shown = space if system.get("root", False) else space[:64]
    tree.put(f"{at}/config", File(shown, size=len(space)))
    tree.link(f"{at}/subsystem", "/sys/bus/pci")
    tree.link(f"/sys/bus/pci/devices/{f.address}", at)
    _driver(tree, f)
    if "slot" in o:
        tree.put(f"/sys/bus/pci/slots/{o['slot']}/address", f.address.rsplit(".", 1)[0])
    return base


def _link_files(f: Function, spelling: str) -> dict[str, str]:
    assert f.max is not None
    assert f.now is not None
    if f.options.get("lost") == "1":  # LnkSta reads all ones: width 63, speed code 15 (drivers/pci/probe.c)
        now_speed, now_width = "Unknown" if spelling == "new" else "Unknown speed", "63"
    elif f.now.width == 0:  # a port with nothing below it: code 1, no lanes
        now_speed, now_width = speed_text(f.now.gen, spelling), "0"
    else:
        now_speed, now_width = speed_text(f.now.gen, spelling), str(f.now.width)
    return {
        "max_link_speed": speed_text(f.max.gen, spelling),
        "max_link_width": str(f.max.width),
        "current_link_speed": now_speed,
        "current_link_width": now_width,
    }


def _aer_files(o: dict[str, str]) -> dict[str, str]:
    """Return the AER counters (drivers/pci/pcie/aer.c); `aer_cor=BadTLP:12` sets some."""

    def table(names: str, total: str, told: str) -> str:
        counts = dict.fromkeys(names.split(), 0)
        for pair in filter(None, told.split(",")):
            name, _, n = pair.partition(":")
            counts[name] = int(n)
        return "\n".join(f"{n} {c}" for n, c in [*counts.items(), (total, sum(counts.values()))])

    bad = "Undefined DLP SDES TLP FCP CmpltTO CmpltAbrt UnxCmplt RxOF MalfTLP ECRC UnsupReq ACSViol UncorrIntErr"
    return {
        "aer_dev_correctable": table(
            "RxErr BadTLP BadDLLP Rollover Timeout NonFatalErr CorrIntErr HeaderOF",
            "TOTAL_ERR_COR",
            o.get("aer_cor", ""),
        ),
        "aer_dev_nonfatal": table(bad, "TOTAL_ERR_NONFATAL", o.get("aer_nonfatal", "")),
        "aer_dev_fatal": table(bad, "TOTAL_ERR_FATAL", o.get("aer_fatal", "")),
    }


def _driver(tree: Tree, f: Function) -> None:
    driver = f.options.get("driver", f.product.get("driver", "none"))
    if driver == "none":
        return
    tree.link(f"{f.path}/driver", f"/sys/bus/pci/drivers/{driver}")
    tree.link(f"/sys/bus/pci/drivers/{driver}/{f.address}", f.path)


def _virtual_functions(tree: Tree, fs: list[Function]) -> None:
    """Link each function with `pf=ADDRESS` to its physical function and back."""
    numbers: dict[str, int] = {}
    by_address = {f.address: f for f in fs}
    for f in fs:
        pf = f.options.get("pf")
        if pf is None:
            continue
        if pf not in by_address:
            raise DescriptionError(f"{f.address}: pf={pf}: no such function")
        n = numbers[pf] = numbers.get(pf, -1) + 1
        tree.link(f"{f.path}/physfn", by_address[pf].path)
        tree.link(f"{by_address[pf].path}/virtfn{n}", f.path)


def _iommu(tree: Tree, fs: list[Function], system: dict[str, Any]) -> None:
    """Write groups: one per function, but for the functions of one device without ACS, which share theirs."""
    kind = system.get("iommu", "off")
    tree.put("/sys/class/iommu", Dir())
    tree.put("/sys/kernel/iommu_groups", Dir())
    if kind == "off":
        return
    unit = {"amd": "ivhd0", "arm": "smmu3.0x0000000005000000"}.get(system.get("cpu_vendor", "intel"), "dmar0")
    tree.put(f"/sys/devices/virtual/iommu/{unit}", Dir())
    tree.link(f"/sys/class/iommu/{unit}", f"/sys/devices/virtual/iommu/{unit}")
    numbers: dict[str, int] = {}
    for f in fs:
        group = f.options.get("group") or str(numbers.setdefault(f.address[:-2], len(numbers)))
        folder = f"/sys/kernel/iommu_groups/{group}"
        tree.link(f"{f.path}/iommu_group", folder)
        tree.link(f"{folder}/devices/{f.address}", f.path)
        tree.put(f"{folder}/type", f.options.get("group_type", kind))
        tree.link(f"{f.path}/iommu", f"/sys/devices/virtual/iommu/{unit}")
