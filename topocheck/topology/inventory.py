"""Which GPUs, accelerators and NICs a node has, joined from PCI, NVML, CUDA and RDMA by address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topocheck.knowledge.products import vendor_name
from topocheck.model.address import address_key, parse_cpulist
from topocheck.model.base import ABSENT, Missing, Reason, is_lost, known
from topocheck.model.gpu import CudaDevice, NvmlGpu
from topocheck.model.names import natural_key
from topocheck.model.net import NetInterface, RdmaDevice
from topocheck.model.node import Node
from topocheck.model.pci import PciDevice
from topocheck.topology.tree import Chain
from topocheck.topology.types import Gpu, Nic

NVIDIA = 0x10DE
_GPU_CLASSES = (0x0300, 0x0302)
"""VGA and 3D controller (PCI Code and ID Assignment Specification 1.11, 1.4)."""
_DISPLAY_OTHER, _ACCELERATOR = 0x0380, 0x1200
MELLANOX = 0x15B3
NVSWITCH_CLASS = 0x0680
"""`Bridge, other`: what NVIDIA's NVSwitch functions say they are."""


def by_address(node: Node) -> dict[str, PciDevice]:
    """Return the PCI functions of a node by address; empty where there are none or they are missing."""
    devices = node.pci.devices
    return {} if isinstance(devices, Missing) else {d.address: d for d in devices}


def is_nvidia_gpu(device: PciDevice) -> bool:
    """Tell whether a function is an NVIDIA GPU: a display class, so not its audio function or an NVSwitch."""
    return device.vendor_id == NVIDIA and device.base_class in _GPU_CLASSES


def by_mellanox(nic: Nic) -> bool:
    """Tell whether a NIC is a ConnectX or BlueField, with the settings of its maker's tools (mlxconfig)."""
    return nic.pci is not None and nic.pci.vendor_id == MELLANOX


def nvswitches(devices: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
    """Return the NVSwitch functions."""
    return tuple(d for d in devices if d.vendor_id == NVIDIA and d.base_class == NVSWITCH_CLASS)


def is_other_accelerator(device: PciDevice, chain: Chain) -> bool:
    """Tell whether a function is another maker's GPU or accelerator.

    A VGA controller on a root bus is a processor's own graphics or a board controller's, and not counted.
    """
    if not isinstance(device.vendor_id, int) or device.vendor_id == NVIDIA or known(device.physfn):
        return False
    if device.base_class == _ACCELERATOR:
        return True
    if vendor_name(device.vendor_id) is None:
        return False
    return device.base_class == _DISPLAY_OTHER or (device.base_class in _GPU_CLASSES and len(chain) > 2)


def numa_of(address: str, chain: Chain, devices: Mapping[str, PciDevice]) -> int | Missing:
    """Return the NUMA node of a function: its own, else that of the nearest function above it that has one."""
    own: int | Missing = ABSENT
    for element in (address, *reversed(chain[:-1])):
        device = devices.get(element)
        if device is None:
            continue
        if not isinstance(device.numa_node, Missing):
            return device.numa_node
        if element == address:
            own = device.numa_node
    return own


class CpuNodes:
    """Which NUMA node holds all CPUs of a list; every list is read once."""

    def __init__(self, node: Node) -> None:
        nodes = () if isinstance(node.numa.nodes, Missing) else node.numa.nodes
        told = [(n.node, n.cpulist) for n in nodes if not isinstance(n.cpulist, Missing)]
        self._several = sum(bool(text.strip()) for _, text in told) > 1
        self._told = told if self._several else []
        self._held: list[tuple[int, frozenset[int]]] | None = None
        self._found: dict[str, int | Missing] = {}

    def holding(self, cpulist: str | Missing) -> int | Missing:
        """Return the one node that holds all CPUs of a list, where the machine has several nodes with CPUs."""
        if isinstance(cpulist, Missing):
            return ABSENT
        if cpulist not in self._found:
            try:
                self._found[cpulist] = self._find(parse_cpulist(cpulist))
            except ValueError:
                self._found[cpulist] = ABSENT
        return self._found[cpulist]

    def _find(self, wanted: frozenset[int]) -> int | Missing:
        if self._held is None:
            self._held = [(n, parse_cpulist(text)) for n, text in self._told]
        holders = [n for n, cpus in self._held if wanted and wanted <= cpus]
        return holders[0] if len(holders) == 1 else ABSENT


def _nvml_by_address(node: Node, unclaimed: list[str], devices: Mapping[str, PciDevice]) -> dict[str, NvmlGpu]:
    """Return NVML's GPUs by address; one that could not tell its address gets a PCI GPU NVML did not name.

    NVML numbers GPUs in the order of their addresses, so several nameless ones take the free addresses in order; where
    more are free (GPUs that the driver could not start), those that the bus has lost, of as many. One that the driver
    was told to leave alone is none of NVML's. With no PCI GPU free, the key is `nvml:<index>`.
    """
    gpus = () if isinstance(node.nvml.gpus, Missing) else node.nvml.gpus
    out = {g.address: g for g in gpus if not isinstance(g.address, Missing)}
    free = [a for a in unclaimed if a not in out and a not in node.system.nvidia_gpus_excluded]
    nameless = [g for g in gpus if isinstance(g.address, Missing)]
    gone = [a for a in free if devices[a].config_all_ones is True]
    free = gone if len(gone) == len(nameless) else free
    for i, g in enumerate(sorted(nameless, key=lambda g: g.index)):
        out[free[i] if i < len(free) and len(free) >= len(nameless) else f"nvml:{g.index}"] = g
    return out


def find_gpus(node: Node, devices: Mapping[str, PciDevice], places: Mapping[str, Chain]) -> tuple[Gpu, ...]:
    """Return NVIDIA's GPUs, those of NVML first by its index, then the rest by address.

    A virtual function beside its physical one is not a GPU of this node but of its guests.
    """
    pci = [a for a, d in devices.items() if is_nvidia_gpu(d) and d.physfn not in devices]
    drivable = [a for a in pci if devices[a].driver not in ("vfio-pci", "nouveau")]
    nvml = _nvml_by_address(node, sorted(drivable, key=address_key), devices)
    cuda = {
        d.address: d
        for d in (() if isinstance(node.cuda.devices, Missing) else node.cuda.devices)
        if not isinstance(d.address, Missing)
    }
    silent = sorted((a for a in pci if a not in nvml), key=address_key)
    order = [*sorted(nvml, key=lambda a: nvml[a].index), *silent]
    number = max((g.index for g in nvml.values()), default=-1) + 1
    cpu_nodes = CpuNodes(node)
    out = []
    for i, address in enumerate(order):
        entry = nvml.get(address)
        label = f"GPU{entry.index if entry else number + i - len(nvml)}"
        out.append(_gpu(cpu_nodes, address, label, devices, places, entry, cuda.get(address)))
    return tuple(out)


def _gpu(
    cpu_nodes: CpuNodes,
    address: str,
    label: str,
    devices: Mapping[str, PciDevice],
    places: Mapping[str, Chain],
    nvml: NvmlGpu | None,
    cuda: CudaDevice | None,
) -> Gpu:
    pci = devices.get(address)
    cpu_node = numa_of(address, places.get(address, ()), devices)
    if isinstance(cpu_node, Missing) and nvml is not None:
        found = cpu_nodes.holding(nvml.cpu_affinity)
        cpu_node = found if known(found) else cpu_node
    name = nvml.name if nvml else (cuda.name if cuda else ABSENT)
    if isinstance(name, Missing) and pci is not None and not isinstance(pci.device_name, Missing):
        name = pci.device_name
    gone = pci is not None and pci.config_all_ones is True and not rests_suspended(pci)
    return Gpu(
        address=address,
        label=label,
        vendor="NVIDIA",
        uuid=nvml.uuid if nvml and known(nvml.uuid) else (cuda.uuid if cuda else ABSENT),
        name=name,
        index=nvml.index if nvml else ABSENT,
        cpu_node=cpu_node,
        memory_node=nvml.numa_node if nvml else ABSENT,
        cpu_affinity=nvml.cpu_affinity if nvml else (pci.local_cpulist if pci else ABSENT),
        on_bus=not (gone or (nvml is not None and nvml.lost)),
        pci=pci,
        nvml=nvml,
        cuda=cuda,
    )


def rests_suspended(device: PciDevice) -> bool:
    """Tell whether a function is powered down on purpose, when its config space also reads all ones."""
    return device.runtime_status == "suspended" or device.power_state == "D3cold"


def find_accelerators(devices: Mapping[str, PciDevice], places: Mapping[str, Chain]) -> tuple[Gpu, ...]:
    """Return the accelerators of other makers by address, labelled `ACC0`, `ACC1`...; reported, not judged."""
    found = sorted(
        (a for a, d in devices.items() if is_other_accelerator(d, places.get(a, ()))),
        key=address_key,
    )
    out = []
    for i, address in enumerate(found):
        device = devices[address]
        ident = device.vendor_id if isinstance(device.vendor_id, int) else 0
        maker = vendor_name(ident) or (
            device.vendor_name if not isinstance(device.vendor_name, Missing) else f"vendor {ident:04x}"
        )
        out.append(
            Gpu(
                address=address,
                label=f"ACC{i}",
                vendor=maker,
                name=device.device_name,
                cpu_node=numa_of(address, places.get(address, ()), devices),
                cpu_affinity=device.local_cpulist,
                pci=device,
                on_bus=device.config_all_ones is not True or rests_suspended(device),
            )
        )
    return tuple(out)


def find_nics(node: Node, devices: Mapping[str, PciDevice], places: Mapping[str, Chain]) -> tuple[Nic, ...]:
    """Return the RDMA devices that have a PCI parent, by name. A bond is one device, under its first function."""
    rdma = () if isinstance(node.net.rdma, Missing) else node.net.rdma
    interfaces = _Interfaces(node)
    out = []
    for device in sorted(rdma, key=lambda d: natural_key(d.name)):
        if isinstance(device.address, Missing):
            continue
        out.append(
            Nic(
                address=device.address,
                label=device.name,
                cpu_node=numa_of(device.address, places.get(device.address, ()), devices),
                pci=devices.get(device.address),
                rdma=device,
                interfaces=interfaces.of(device),
            )
        )
    return tuple(out)


def unplaced_nics(node: Node) -> tuple[Nic, ...]:
    """Return the RDMA devices whose PCI function is not known, by name, with the name for an address.

    Text of `ibstat` names ports and no PCI function. Software RDMA, which has none, is not among them.
    """
    rdma = () if isinstance(node.net.rdma, Missing) else node.net.rdma
    untold = [d for d in rdma if isinstance(d.address, Missing) and is_lost(d.address)]
    interfaces = _Interfaces(node)
    return tuple(
        Nic(address=d.name, label=d.name, cpu_node=d.address, rdma=d, interfaces=interfaces.of(d))
        for d in sorted(untold, key=lambda d: natural_key(d.name))
        if isinstance(d.address, Missing)
    )


class _Interfaces:
    """The interfaces of a node by name and by PCI function, each with its place in the list."""

    def __init__(self, node: Node) -> None:
        self._by_name: dict[str, list[tuple[int, NetInterface]]] = {}
        self._by_address: dict[str, list[tuple[int, NetInterface]]] = {}
        for number, i in enumerate(() if isinstance(node.net.interfaces, Missing) else node.net.interfaces):
            self._by_name.setdefault(i.name, []).append((number, i))
            if not isinstance(i.address, Missing):
                self._by_address.setdefault(i.address, []).append((number, i))

    def of(self, device: RdmaDevice) -> tuple[NetInterface, ...]:
        """Return the interfaces of an RDMA device: those it names, else those on the same PCI function."""
        found = [x for name in dict.fromkeys(device.netdevs) for x in self._by_name.get(name, ())]
        if not found and not isinstance(device.address, Missing):
            found = self._by_address.get(device.address, [])
        return tuple(i for _, i in sorted(found, key=lambda x: x[0]))


def software_rdma(node: Node) -> tuple[str, ...]:
    """Return the names of RDMA devices without a PCI parent (`siw`, `rxe`)."""
    rdma = () if isinstance(node.net.rdma, Missing) else node.net.rdma
    return tuple(d.name for d in rdma if isinstance(d.address, Missing) and d.address.reason is Reason.ABSENT)
