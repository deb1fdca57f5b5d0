"""Writes a node as NCCL would see it: its topology XML from our facts (src/graph/xml.cc, ncclTopoGetXmlFromSys).

Of each PCIe switch only the upstream port is kept, root ports never appear, and what hangs on a host bridge hangs
under the CPU node of its NUMA id.
"""

from __future__ import annotations

import contextlib
import re

from topocheck.knowledge.nccl import Version
from topocheck.knowledge.nccl_rules import has, word
from topocheck.knowledge.products import find_product
from topocheck.model.address import parse_cpulist
from topocheck.model.base import Missing, is_digits, value_or
from topocheck.model.gpu import NvmlGpu
from topocheck.model.node import Node
from topocheck.model.pci import PciDevice
from topocheck.nccl.rules.settings import Settings
from topocheck.nccl.topofile.nic_selection import NetEntry, net_entries
from topocheck.nccl.topofile.xml import Element
from topocheck.topology.links import rests
from topocheck.topology.types import Gpu, Topology

_BUS_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_FILE_TEXT = re.compile(r"[0-9A-Za-z][0-9A-Za-z ./]{0,63}")
_ARCH = {"x86_64": "x86_64", "aarch64": "arm64", "ppc64le": "ppc64", "ppc64": "ppc64"}
_TCLASS = {"switch": "0x068000", "gpu": "0x030200", "ibmnpu": "0x068001"}
MASKED = "fffffff:ff:ff.0"
"""What NVML gives for the far end of an NVLink that a hypervisor hides."""
_GENERATIONS = {1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}


def kept(chain: tuple[str, ...]) -> tuple[str, ...]:
    """Return what NCCL keeps of a chain, from the outermost switch down to the device.

    It walks up two steps at a time and stops at the first name that is not a bus address of 12 characters (a host
    bridge, or a domain of five digits such as VMD makes).
    """
    out: list[str] = []
    at = len(chain) - 1
    while at >= 0 and (not out or _BUS_ADDRESS.fullmatch(chain[at])):
        out.append(chain[at])
        if at - 1 < 0 or not _BUS_ADDRESS.fullmatch(chain[at - 1]):
            break
        at -= 2
    return tuple(reversed(out))


def cpumap(cpulist: str, cpus: int) -> str:
    """Return a kernel list as the kernel's hexadecimal mask: groups of 32 bits, as many as `cpus` need.

    Raises:
        ValueError: `cpulist` is not a kernel list.
    """
    numbers = parse_cpulist(cpulist)
    words = max(1, -(-max(cpus, *(n + 1 for n in numbers), 1) // 32))
    mask = sum(1 << n for n in numbers)
    return ",".join(f"{mask >> 32 * i & 0xFFFFFFFF:08x}" for i in reversed(range(words)))


def _raw(device: PciDevice, name: str) -> str:
    """Return a file's text as NCCL reads it; the empty text where there is none, or one no such file holds.

    All of them are one short line of plain characters (0x10de, 16.0 GT/s PCIe), fit for an attribute.
    """
    text = device.raw.get(name, "")
    return text if _FILE_TEXT.fullmatch(text) else ""


def _width(text: str) -> int:
    return int(text) if is_digits(text, 3) else 0


def _speed_number(text: str) -> float:
    m = re.match(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?) GT/s", text)
    return float(m[1]) if m else float("inf")


def _gdr(gpu: Gpu) -> bool | None:
    """Return whether a GPU can do GPUDirect RDMA: by CUDA's attribute, else by its product line; None if unknown."""
    if gpu.cuda is not None and isinstance(gpu.cuda.gpudirect_rdma, bool):
        return gpu.cuda.gpudirect_rdma
    name = gpu.name if isinstance(gpu.name, str) else None
    device_id = gpu.pci.device_id if gpu.pci is not None and isinstance(gpu.pci.device_id, int) else None
    product = find_product(name, device_id)
    return None if product is None else product.gpudirect_rdma


class Writer:
    """Gathers the tree of one node. `leaves` are GPUs and NICs; everything above them comes by itself."""

    def __init__(self, node: Node, version: Version, settings: Settings) -> None:
        self.node, self.version, self.settings = node, version, settings
        devices = node.pci.devices
        self.devices = {} if isinstance(devices, Missing) else {d.address: d for d in devices}
        self.cpus: dict[str, dict[str, object]] = {}
        self.nics: dict[str, list[NetEntry]] = {}
        self.gpus: dict[str, tuple[Gpu, int]] = {}
        self.loose: list[NetEntry] = []

    def place(self, address: str) -> None:
        """Put a device and the switches above it into the tree."""
        device = self.devices.get(address)
        way = kept(device.chain) if device is not None and device.chain else (address,)
        top = self.devices.get(way[0])
        numa = "-1" if top is None or isinstance(top.numa_node, Missing) else str(top.numa_node)
        level = self.cpus.setdefault(numa, {})
        for step in way:
            found = level.setdefault(step, {})
            level = found if isinstance(found, dict) else {}

    def link(self, address: str) -> tuple[str, str]:
        """Return the speed and width texts NCCL would find for a device.

        Up to 2.30.4 the lower of device and port above, by what they can do; from 2.30.7 a GPU's by what NVML
        says it runs at now. A GPU that rests has slowed its link, and the work of the job that brings NCCL raises it:
        for that one it is what it can do.
        """
        device = self.devices.get(address)
        if device is None:
            return "", ""
        gpu = self.gpus.get(address)
        nvml = gpu[0].nvml if gpu else None
        if nvml is not None and word("gpu_link", self.version, "maximum") == "current":
            width = value_or(nvml.pcie_width_current, 16)
            speed = nvml.pcie_gen_max if rests(device, nvml) else nvml.pcie_gen_current
            return _GENERATIONS.get(value_or(speed, 0), ""), str(width)
        port = self.devices.get(device.chain[-2]) if len(device.chain) > 1 else None
        speeds = [t for t in (_raw(d, "max_link_speed") for d in (device, port) if d is not None) if t]
        widths = [_width(_raw(device, "max_link_width")), _width(_raw(port, "max_link_width")) if port else 0]
        return min(speeds, key=_speed_number, default=""), str(min(widths))

    def pci(self, address: str, below: dict[str, object], *, devices: bool) -> Element:
        """Return the PCI element of a function with all below it; GPUs and NICs in it where `devices`."""
        device = self.devices.get(address)
        speed, width = self.link(address)
        attributes = [("busid", address)]
        default = "0x030200" if address in self.gpus else "0x020000" if address in self.nics else "0x060400"
        attributes.append(("class", (_raw(device, "class") if device else "") or default))
        if device is not None:
            names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
            attributes += [(n, _raw(device, n)) for n in names if _raw(device, n)]
        attributes += [("link_speed", speed), ("link_width", width)]
        children = [self.pci(a, b, devices=devices) for a, b in sorted(below.items()) if isinstance(b, dict)]
        if devices and address in self.gpus:
            children.append(self.gpu(*self.gpus[address]))
        if devices and address in self.nics:
            children.append(_nic(self.nics[address]))
        return Element(name="pci", attributes=tuple(attributes), children=tuple(children))

    def gpu(self, gpu: Gpu, rank: int) -> Element:
        """Return the element of a GPU with its links."""
        nvml = gpu.nvml
        attributes = [("dev", str(value_or(gpu.index, rank)))]
        capability = nvml.compute_capability if nvml is not None else None
        if isinstance(capability, str) and re.fullmatch(r"[0-9]{1,4}\.[0-9]", capability):
            attributes.append(("sm", capability.replace(".", "")))
        attributes.append(("rank", str(rank)))
        gdr = _gdr(gpu)
        if gdr is not None:
            attributes.append(("gdr", str(int(gdr))))
        return Element(name="gpu", attributes=tuple(attributes), children=tuple(_links(nvml)) if nvml else ())

    def cpu(self, numa: str, below: dict[str, object], *, first: bool, devices: bool) -> Element:
        """Return the element of a CPU node."""
        system = self.node.system
        attributes = [("numaid", numa)]
        nodes = self.node.numa.nodes
        here = [n for n in (() if isinstance(nodes, Missing) else nodes) if str(n.node) == numa]
        if here and not isinstance(here[0].cpulist, Missing):
            with contextlib.suppress(ValueError):
                attributes.append(("affinity", cpumap(here[0].cpulist, self._count_cpus())))
        arch = _ARCH.get(value_or(system.machine, ""), "")
        if arch:
            attributes.append(("arch", arch))
        if arch == "x86_64":
            if not isinstance(system.cpu_vendor, Missing):
                attributes.append(("vendor", system.cpu_vendor))
            if not isinstance(system.cpu_family, Missing) and not isinstance(system.cpu_model, Missing):
                attributes.append(("familyid", str(family_in_xml(system.cpu_family, self.version))))
                attributes.append(("modelid", str(system.cpu_model)))
        children = [self.pci(a, b, devices=devices) for a, b in sorted(below.items()) if isinstance(b, dict)]
        if first and devices and self.loose:
            children.append(_nic(self.loose))
        return Element(name="cpu", attributes=tuple(attributes), children=tuple(children))

    def _count_cpus(self) -> int:
        online = self.node.numa.online_cpus
        try:
            return 0 if isinstance(online, Missing) else max(parse_cpulist(online), default=0) + 1
        except ValueError:
            return 0


def family_in_xml(family: int, version: Version) -> int:
    """Return a CPU family as NCCL of a version writes it. Up to 2.30: base family plus 16 times the extended one.

    The true family adds them plainly (CPUID leaf 1; AMD CPUID specification 25481, Fn0000_0001_EAX), so Zen 3,
    family 25 = 15 + 10, becomes 175.
    """
    if family <= 15 or has("cpuid_family", version):
        return family
    return 15 + (family - 15) * 16


def _links(nvml: NvmlGpu) -> list[Element]:
    counts: dict[tuple[str, str], int] = {}
    for link in nvml.nvlinks:
        if link.active is not True or not link.capabilities.get("p2p", True):
            continue
        target = value_or(link.remote_address, MASKED)
        kind = link.remote_type if isinstance(link.remote_type, str) else "switch"
        key = (target, _TCLASS.get(kind, "0x068000"))
        counts[key] = counts.get(key, 0) + 1
    out = [
        Element(name="nvlink", attributes=(("target", t), ("count", str(n)), ("tclass", c)))
        for (t, c), n in counts.items()
    ]
    links, rate = nvml.c2c_links, nvml.c2c_link_mb_s
    if isinstance(links, int) and links and isinstance(rate, int) and rate:
        out.append(Element(name="c2c", attributes=(("bw", str(rate)), ("count", str(links)))))
    return out


def _nic(entries: list[NetEntry]) -> Element:
    nets = []
    for e in entries:
        attributes = [
            ("name", e.name),
            ("dev", "0"),
            ("latency", "0"),
            ("speed", str(e.speed_mbit_s)),
            ("port", str(e.port)),
            ("guid", e.guid),
        ]
        if e.gdr is not None:
            attributes.append(("gdr", str(int(e.gdr))))
        nets.append(Element(name="net", attributes=tuple(attributes)))
    return Element(name="nic", children=tuple(nets))


def _numbered(element: Element, order: dict[str, int]) -> Element:
    """Return an element with the `dev` of each net as NCCL numbers them: in the order it found them."""
    attributes = element.attributes
    if element.name == "net":
        key = f"{element.get('name')}:{element.get('port')}"
        attributes = tuple((k, str(order[key]) if k == "dev" else v) for k, v in attributes)
    children = tuple(_numbered(c, order) for c in element.children)
    return Element(name=element.name, attributes=attributes, children=children)


def usable_gpus(topology: Topology) -> list[Gpu]:
    """Return the GPUs a job could use: on the bus, known to NVML, which NCCL needs, and not cut up by MIG."""
    return [g for g in topology.gpus if why_unusable(g) is None]


def why_unusable(gpu: Gpu) -> str | None:
    """Return why no NCCL job can use a GPU as a whole; None where one can."""
    if not gpu.on_bus or (gpu.nvml is not None and gpu.nvml.lost):
        return "the GPU is lost"
    if gpu.nvml is None:
        return "NVML does not show this GPU, and NCCL needs NVML"
    if gpu.nvml.mig_current is True:
        return "MIG is on: instances have no peer-to-peer, and NCCL does not accept two instances of one GPU"
    return None


def write_topology(
    node: Node,
    topology: Topology,
    version: Version,
    settings: dict[str, str] | None = None,
    *,
    restricted: bool = False,
) -> Element:
    """Return the topology of a node as NCCL would find it with all its usable GPUs in one job.

    Args:
        node: the facts.
        topology: what was made of them.
        version: of NCCL; it decides how links are read.
        settings: NCCL's settings in force; they decide which NICs are taken.
        restricted: only the `cpu` and `pci` levels, the form to hand to the guests of a VM type.
    """
    chosen = Settings(settings or {}, version)
    writer = Writer(node, version, chosen)
    for rank, gpu in enumerate(usable_gpus(topology)):
        writer.gpus[gpu.address] = (gpu, rank)
        writer.place(gpu.address)
    entries = net_entries(node, version, chosen, frozenset(writer.devices))
    for e in entries:
        if e.address is None:
            writer.loose.append(e)
        else:
            writer.nics.setdefault(e.address, []).append(e)
    for address in writer.nics:
        writer.place(address)
    if not writer.cpus:
        writer.cpus["0"] = {}
    cpus = [
        writer.cpu(numa, below, first=i == 0, devices=not restricted)
        for i, (numa, below) in enumerate(writer.cpus.items())
    ]
    root = Element(name="system", attributes=(("version", "1"),), children=tuple(cpus))
    return _numbered(root, {f"{e.name}:{e.port}": i for i, e in enumerate(entries)})
