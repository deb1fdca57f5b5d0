"""XML of hwloc (`lstopo file.xml`), versions 1.11 to 2.12.

hwloc leaves out bridges and devices as it was asked to (lstopo keeps bridges with a device below them), so a device's
place is taken only where each bridge's first bus leads to the next. `pci_link_speed` is hwloc's own product of lanes
and speed, and is not taken for either.
"""

from __future__ import annotations

import re

from topocheck.model.address import format_cpulist, normalize_address
from topocheck.probes.cpuinfo import CPUINFO_BYTES
from topocheck.readers import pci_answers as pci
from topocheck.readers import pci_tree
from topocheck.readers import rdma_answers as rdma
from topocheck.readers.base import Answers, Reader
from topocheck.readers.xml_tree import Element, parse

_NODES = "/sys/devices/system/node"
_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\](?: \[([0-9a-f]{4}):([0-9a-f]{4})\])?")
_RANGE = re.compile(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-([0-9a-f]{2})\]")
_DMI = {"DMISysVendor": "sys_vendor", "DMIProductName": "product_name"}


def recognise(text: str) -> bool:
    """Tell whether hwloc's root element, with a machine in it, stands in the text."""
    return re.search(r"<topology[ >]", text) is not None and '<object type="Machine"' in text


def read(text: str) -> Answers:
    """Return PCI functions, RDMA and network devices, NUMA nodes, and what the machine is.

    Raises:
        XmlError: it is no XML.
    """
    start = max(text.find("<?xml"), 0)
    root = parse(text[start:], before=text[:start])
    found = Answers()
    tree = _Tree(found)
    # (element, NUMA nodes of the nearest object above with a set of them, PCI function above)
    stack: list[tuple[Element, str, str]] = [(root, "", "")]
    while stack:
        e, nodeset, above = stack.pop()
        if e.name == "object":
            nodeset = e.get("nodeset") or nodeset
            above = tree.object(e, above) or above
        stack += [(c, nodeset, above) for c in reversed(e.children) if c.name == "object"]
    tree.finish()
    return found


class _Tree:
    """What is collected on the way through the objects."""

    def __init__(self, found: Answers) -> None:
        self.found = found
        self.functions: dict[str, int] = {}
        self.bridges: dict[str, tuple[int, int]] = {}
        self.roots: set[tuple[int, int]] = set()
        self.nodes: dict[int, int] = {}
        self.complete: list[int] = []
        self.cpus: dict[int, frozenset[int]] = {}
        self.rdma: list[str] = []
        self.interfaces: list[str] = []

    def object(self, e: Element, above: str) -> str:
        """Take down one object; returns its PCI address where it has one."""
        kind = e.get("type")
        if kind == "Machine":
            self._machine(e)
        elif kind == "Package" or kind == "Socket":
            self._package(e)
        elif kind == "NUMANode":
            self._node(e)
        elif kind in ("Bridge", "PCIDev"):
            return self._pci(e)
        elif kind == "OSDev":
            self._device(e, above)
        return ""

    def _machine(self, e: Element) -> None:
        info = {c.get("name"): (c.get("value"), c.line) for c in e.children if c.name == "info"}
        self.complete = _numbers(e.get("complete_nodeset"))
        for name, file in _DMI.items():
            if name in info:
                self.found.file(info[name][1], f"/sys/class/dmi/id/{file}", info[name][0])
        for name, path in (("OSRelease", "osrelease"), ("HostName", "hostname"), ("Architecture", "arch")):
            if name in info:
                self.found.file(info[name][1], f"/proc/sys/kernel/{path}", info[name][0])
        if cpus := _numbers(e.get("complete_cpuset") and e.get("cpuset")):
            self.found.file(e.line, "/sys/devices/system/cpu/online", format_cpulist(cpus))

    def _package(self, e: Element) -> None:
        info = {c.get("name"): c.get("value") for c in e.children if c.name == "info"}
        names = (("CPUVendor", "vendor_id"), ("CPUFamilyNumber", "cpu family"), ("CPUModelNumber", "model"),
                 ("CPUModel", "model name"))  # fmt: skip
        rows = [f"{kernel}\t: {info[name]}" for name, kernel in names if name in info]
        if "CPUVendor" in info:
            text = "\n".join(["processor\t: 0", *rows, ""])
            self.found.put(e.line, text.encode(), "read", "/proc/cpuinfo", CPUINFO_BYTES)
        cpus = _numbers(e.get("cpuset"))
        if cpus and re.fullmatch(r"[0-9]{1,4}", e.get("os_index")):
            first = f"/sys/devices/system/cpu/cpu{min(cpus)}/topology"
            self.found.file(e.line, f"{first}/package_cpus_list", format_cpulist(cpus))
            self.found.file(e.line, f"{first}/physical_package_id", e.get("os_index"))

    def _node(self, e: Element) -> None:
        if not re.fullmatch(r"[0-9]{1,4}", e.get("os_index")):
            return
        node = int(e.get("os_index"))
        self.nodes[node] = e.line
        self.cpus[node] = frozenset(_numbers(e.get("cpuset")))
        if re.fullmatch(r"[0-9]{1,18}", e.get("local_memory")):
            asked = [f"Node {node} MemTotal", f"Node {node} MemFree"]
            line = f"Node {node} MemTotal: {int(e.get('local_memory')) // 1024} kB"
            self.found.put(e.line, [line], "lines", f"{_NODES}/node{node}/meminfo", *asked)

    def _pci(self, e: Element) -> str:
        address = normalize_address(e.get("pci_busid")) or ""
        buses = _RANGE.fullmatch(e.get("bridge_pci"))
        if buses and e.get("bridge_type").startswith("0"):
            self.roots.add((int(buses[1], 16), int(buses[2], 16)))
            return ""
        if not address or len(self.functions) >= 1 << 13:
            return ""
        self.functions[address] = e.line
        if buses:
            self.bridges[address] = (int(buses[2], 16), int(buses[3], 16))
            pci.file(self.found, e.line, address, "secondary_bus_number", str(int(buses[2], 16)))
            pci.file(self.found, e.line, address, "subordinate_bus_number", str(int(buses[3], 16)))
        if m := _TYPE.match(e.get("pci_type")):
            # The interface is not reported; nothing is decided by it.
            pci.file(self.found, e.line, address, "class", f"0x{m[1]}00")
            pci.file(self.found, e.line, address, "vendor", f"0x{m[2]}")
            pci.file(self.found, e.line, address, "device", f"0x{m[3]}")
            if m[4] and m[4] != "0000" and m[5] != "0000":
                pci.file(self.found, e.line, address, "subsystem_vendor", f"0x{m[4]}")
                pci.file(self.found, e.line, address, "subsystem_device", f"0x{m[5]}")
        return address

    def _device(self, e: Element, above: str) -> None:
        name, kind = e.get("name"), e.get("osdev_type")
        info = {c.get("name"): (c.get("value"), c.line) for c in e.children if c.name == "info"}
        if not re.fullmatch(r"[\w.\-]{1,64}", name):
            return
        if kind == "3" or "NodeGUID" in info:
            self.rdma.append(name)
            self._rdma(name, above, info, e.line)
        elif kind == "2":
            self.interfaces.append(name)

    def _rdma(self, name: str, above: str, info: dict[str, tuple[str, int]], line: int) -> None:
        if above:
            rdma.address(self.found, line, name, above)
        for key, file in (("NodeGUID", "node_guid"), ("SysImageGUID", "sys_image_guid")):
            if key in info and (guid := rdma.guid(info[key][0])):
                rdma.file(self.found, info[key][1], name, file, guid)
        ports = []
        for key, (value, at) in info.items():
            if (m := re.fullmatch(r"Port([0-9]{1,2})(State|LID)", key)) is None:
                continue
            ports.append(m[1])
            number = int(m[1])
            if m[2] == "State" and value in ("1", "2", "3", "4"):
                rdma.state(self.found, at, name, number, ("down", "init", "armed", "active")[int(value) - 1])
            elif m[2] == "LID" and re.fullmatch(r"0x[0-9a-f]{1,4}", value):
                rdma.port(self.found, at, name, number, "lid", value)
        if ports:
            self.found.names(line, f"{rdma.CLASS}/{name}/ports", ports, whole=False)

    def finish(self) -> None:
        """Take down the lists, and the places of functions."""
        first = min(self.functions.values(), default=1)
        if self.functions:
            self.found.names(first, pci.DEVICES, list(self.functions), whole=False)
            for address, path in pci_tree.paths(self.functions, self.bridges, self.roots).items():
                pci.place(self.found, self.functions[address], address, path)
        for node, cpus in self.cpus.items():
            # A node without CPUs bears those it is near to: which of two nodes has them is then not reported.
            if not any(cpus & other for n, other in self.cpus.items() if n != node):
                self.found.file(self.nodes[node], f"{_NODES}/node{node}/cpulist", format_cpulist(cpus))
        if self.nodes:
            # Nodes with neither CPUs nor memory are no objects; the machine's set has them.
            online = sorted({*self.nodes, *self.complete})
            self.found.file(min(self.nodes.values()), f"{_NODES}/online", format_cpulist(online))
            self.found.soft.add(f"read:{_NODES}/online")
        if self.rdma:
            self.found.names(first, rdma.CLASS, self.rdma, whole=False)


def _numbers(text: str) -> list[int]:
    """Return the numbers in one of hwloc's sets: `0x000000ff,0xffff0000`, the lowest 32 bits last."""
    words = text.split(",") if text else []
    if len(words) > 256 or not all(re.fullmatch(r"0x[0-9a-f]{1,8}|", w) for w in words):
        return []
    value = 0
    for word in words:
        value = value << 32 | int(word or "0x0", 16)
    return [n for n in range(value.bit_length()) if value >> n & 1]


READER = Reader(
    name="hwloc XML (lstopo file.xml)",
    tells="PCI tree, NUMA nodes, RDMA devices, the processor",
    recognise=recognise,
    read=read,
)
