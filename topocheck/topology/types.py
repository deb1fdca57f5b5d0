"""What the topology room makes of the facts. Immutable; JSON names are those of model/document.py."""

from __future__ import annotations

import enum

import msgspec

from topocheck.model.base import ABSENT, Missing, Reason
from topocheck.model.gpu import CudaDevice, NvmlGpu
from topocheck.model.net import NetInterface, RdmaDevice
from topocheck.model.pci import PciDevice


class PathClass(enum.StrEnum):
    """The PCIe words of `nvidia-smi topo`, nearest first. An NVLink class is written `NV` and its link count."""

    X = "X"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU or accelerator, joined from PCI, NVML and CUDA by its address.

    Attributes:
        label: `GPU0` by NVML's numbering; by PCI order where NVML says nothing.
        vendor: NVIDIA, AMD, Intel, ...; only NVIDIA's are judged.
        cpu_node: NUMA node of the nearest CPUs; memory_node: node of the GPU's own memory on coherent machines.
        on_bus: False when the device is lost.
    """

    address: str
    label: str
    vendor: str
    uuid: str | Missing = ABSENT
    name: str | Missing = ABSENT
    index: int | Missing = ABSENT
    cpu_node: int | Missing = ABSENT
    memory_node: int | Missing = ABSENT
    cpu_affinity: str | Missing = ABSENT
    on_bus: bool = True
    pci: PciDevice | None = None
    nvml: NvmlGpu | None = None
    cuda: CudaDevice | None = None


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """One NIC: an RDMA device with a PCI parent. `label` is its name (`mlx5_0`).

    Software RDMA has no PCI parent and is no Nic; a plain Ethernet card without RDMA stands in `net` only.
    """

    address: str
    label: str
    cpu_node: int | Missing = ABSENT
    pci: PciDevice | None = None
    rdma: RdmaDevice | None = None
    interfaces: tuple[NetInterface, ...] = ()


class HopKind(enum.StrEnum):
    """What a hop is. The last three cannot be read from the machine, so their rate is Missing."""

    PCIE = "pcie"
    NVLINK = "nvlink"
    C2C = "c2c"
    HOST_BRIDGE = "host_bridge"
    INTER_SOCKET = "inter_socket"
    HYPERVISOR = "hypervisor"


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """One hop of a path, per direction.

    Attributes:
        address: the function at the lower end of a PCIe link; the two GPUs' addresses joined by `-` for NVLink;
            the host bridges or NUMA nodes for the rest.
        upper: address of the port at the upper end of a PCIe link; None on a root bus.
        gb_s: theoretical rate at what the link negotiated, 10^9 bytes/s.
        attainable_gb_s: the same at what both its ends can do.
        text: `gen 4 x16`, `18 x NVLink 4`, ...
        idle: the device rests and has slowed its link; `gb_s` is not the rate it works at.
        formal: the link is emulated, or stands in for another road to the device; its numbers say nothing.
    """

    kind: HopKind
    address: str
    upper: str | None = None
    gb_s: float | Missing = ABSENT
    attainable_gb_s: float | Missing = ABSENT
    text: str = ""
    idle: bool = False
    formal: bool = False

    @property
    def working_gb_s(self) -> float | Missing:
        """The rate the hop has while it works: the attainable one of a resting link, else the negotiated one."""
        if self.formal:
            return Missing(Reason.UNSUPPORTED, "the link is a formality")
        if self.idle or isinstance(self.gb_s, Missing):
            return self.attainable_gb_s
        return self.gb_s


class Path(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from", "to": "to", "class_": "class"}):
    """The way between two endpoints, ordered pair.

    Attributes:
        class_: as `nvidia-smi topo -m` names it (`NV18`, `PIX`, ...).
        pcie_class: as `nvidia-smi topo -mp` names it.
        nvlinks: number of NVLinks in use between the two; 0 for none.
        theoretical_gb_s: rate of the narrowest readable hop, one direction.
        upper_bound: True where a hop on the way cannot be read, so that the rate is no more than a bound.
        narrowest: that hop.
        hops: all of them, in order from `from_`.
        crosses_nodes: whether the PCIe way leads from one NUMA node to another.
        driver_class: NVML's common ancestor of a GPU pair in nvidia-smi's word; a second source beside the tree.
    """

    from_: str
    to: str
    from_label: str
    to_label: str
    class_: str | Missing = ABSENT
    pcie_class: str | Missing = ABSENT
    nvlinks: int = 0
    theoretical_gb_s: float | Missing = ABSENT
    upper_bound: bool = False
    narrowest: Hop | None = None
    hops: tuple[Hop, ...] = ()
    crosses_nodes: bool | Missing = ABSENT
    driver_class: str | Missing = ABSENT


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """One element of the PCI tree: a host bridge (`pci0000:3a`) or a function.

    `role` is host_bridge, root_port, upstream_port, downstream_port, bridge or endpoint.
    """

    id: str
    role: str
    parent: str | None
    children: tuple[str, ...] = ()
    link_gb_s: float | Missing = ABSENT


class NearestNics(msgspec.Struct, frozen=True, kw_only=True):
    """The NICs nearest to a GPU: all those of the best PCIe class, and that class.

    Where nobody can tell, there are none, and the class is Missing with the reason.
    """

    gpu: str
    nics: tuple[str, ...]
    class_: str | Missing = ABSENT

    @property
    def untold(self) -> str:
        """Why the nearest NICs are not known; empty where they are."""
        return (self.class_.detail or self.class_.reason.value) if isinstance(self.class_, Missing) else ""


class NvLinkGroup(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that reach each other by NVLink. `kind` is switch, mesh (every pair linked), or partial."""

    gpus: tuple[str, ...]
    kind: str


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The structure of one node. `paths` holds every ordered GPU/GPU pair and every GPU -> NIC pair."""

    gpus: tuple[Gpu, ...] = ()
    accelerators: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    software_rdma: tuple[str, ...] = ()
    tree: dict[str, TreeNode] = msgspec.field(default_factory=dict)
    paths: tuple[Path, ...] = ()
    nearest_nics: tuple[NearestNics, ...] = ()
    nvlink_groups: tuple[NvLinkGroup, ...] = ()
    flat_tree: bool = False
    """True in a guest whose hypervisor shows devices on an emulated flat bus: closeness cannot be known."""

    def gpu(self, address: str) -> Gpu:
        """Return the GPU at `address`; KeyError where there is none."""
        return next(g for g in self.gpus if g.address == address)

    def path(self, from_: str, to: str) -> Path:
        """Return the path of an ordered pair; StopIteration where there is none."""
        return next(p for p in self.paths if p.from_ == from_ and p.to == to)
