"""What the topology room makes of the facts. Immutable; JSON names are those of model/document.py."""

from __future__ import annotations

import enum
import functools
from typing import Literal

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


class Hop(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One hop of a path, per direction.

    Attributes:
        address: the function at the lower end of a PCIe link; the two GPUs' addresses joined by `-` for NVLink;
            the host bridges or NUMA nodes for the rest.
        upstream: address of the port at the upper end of a PCIe link; None on a root bus.
        gb_s: theoretical rate at what the link negotiated, 10^9 bytes/s.
        attainable_gb_s: the same at what both its ends can do.
        text: `gen 4 x16`, `18 x NVLink 4`, ...
        generation: PCIe generation or NVLink version of the rate it works at; None for none or unknown.
        idle: the device rests and has slowed its link; `gb_s` is not the rate it works at.
        formal: the link is emulated, or stands in for another path to the device; its numbers say nothing.
    """

    kind: HopKind
    address: str
    upstream: str | None = None
    gb_s: float | Missing = ABSENT
    attainable_gb_s: float | Missing = ABSENT
    text: str = ""
    generation: int | None = None
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


class Path(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, rename={"from_": "from", "to": "to", "class_": "class"}
):
    """The way between two endpoints, ordered pair.

    Attributes:
        class_: as `nvidia-smi topo -m` names it (`NV18`, `PIX`, ...).
        pcie_class: as `nvidia-smi topo -mp` names it.
        nvlinks: number of NVLinks in use between the two; 0 for none.
        nvlinks_untold: why there may be more of them than that, where answers were lost.
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
    pcie_class: PathClass | Missing = ABSENT
    nvlinks: int = 0
    nvlinks_untold: Missing | None = None
    theoretical_gb_s: float | Missing = ABSENT
    upper_bound: bool = False
    narrowest: Hop | None = None
    hops: tuple[Hop, ...] = ()
    crosses_nodes: bool | Missing = ABSENT
    driver_class: str | Missing = ABSENT


class HostPath(msgspec.Struct, frozen=True, kw_only=True):
    """The path from a GPU to the memory of its host: by C2C or NVLink to its CPU, else by PCIe up to the root port.

    Attributes:
        hops: all of them, from the GPU up.
        theoretical_gb_s: working rate of the narrowest readable hop, 10^9 bytes/s, one direction.
        narrowest: that hop; None where no hop tells its rate.
    """

    hops: tuple[Hop, ...]
    theoretical_gb_s: float | Missing
    narrowest: Hop | None = None


Role = Literal["host_bridge", "root_port", "upstream_port", "downstream_port", "bridge", "endpoint"]
"""What an element of the PCI tree is."""


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """One element of the PCI tree: a host bridge (`pci0000:3a`) or a function."""

    id: str
    role: Role
    parent: str | None
    children: tuple[str, ...] = ()
    link_gb_s: float | Missing = ABSENT


class NearestNics(msgspec.Struct, frozen=True, kw_only=True):
    """The NICs nearest to a GPU: all those of the best PCIe class, and that class.

    Where nobody can tell, there are none, and the class is Missing with the reason.
    """

    gpu: str
    nics: tuple[str, ...]
    class_: PathClass | Missing = ABSENT

    @property
    def untold(self) -> str:
        """Why the nearest NICs are not known; empty where they are."""
        return (self.class_.detail or self.class_.reason.value) if isinstance(self.class_, Missing) else ""


class NvLinkGroup(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that reach each other by NVLink. A mesh has every pair linked."""

    gpus: tuple[str, ...]
    kind: Literal["switch", "mesh", "partial"]


class Topology(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The structure of one node, worked out once.

    Attributes:
        devices: every PCI function by address.
        chains: address -> its chain, from the host bridge (`pci0000:3a`) down to the function; empty where its place
            is not known.
        paths: every ordered GPU/GPU pair and every GPU -> NIC pair.
        host_paths: the path of each GPU to its host's memory, by address.
        nics: the NICs that carry traffic of jobs.
        switch_nics: RDMA devices that manage NVSwitches, and are no NICs of jobs (topology/switch_nics.py).
        switch_functions: the PCI functions of that kind, with an RDMA device or without.
        rdma_functions: PCI functions of NICs that can do RDMA and have no RDMA device (topology/rdma_functions.py).
        unplaced_nics: RDMA devices whose PCI function is not known, with their names as addresses: shown and judged by
            their ports, in no path.
        nics_untold: why there may be NICs that are not listed; None where the list is what the machine has.
        left_out: devices beyond the limits (topology/build.py), which are not judged, in words; empty for none.
    """

    devices: dict[str, PciDevice] = msgspec.field(default_factory=dict)
    chains: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    accelerators: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    switch_nics: tuple[Nic, ...] = ()
    switch_functions: tuple[str, ...] = ()
    rdma_functions: tuple[str, ...] = ()
    software_rdma: tuple[str, ...] = ()
    unplaced_nics: tuple[Nic, ...] = ()
    tree: dict[str, TreeNode] = msgspec.field(default_factory=dict)
    paths: tuple[Path, ...] = ()
    host_paths: dict[str, HostPath] = msgspec.field(default_factory=dict)
    nearest_nics: tuple[NearestNics, ...] = ()
    nvlink_groups: tuple[NvLinkGroup, ...] = ()
    flat_tree: bool = False
    """True in a guest whose hypervisor shows devices on an emulated flat bus: closeness cannot be known."""

    left_out: str = ""
    nics_untold: Missing | None = None

    @functools.cached_property
    def _gpus(self) -> dict[str, Gpu]:
        return {g.address: g for g in reversed(self.gpus)}

    @functools.cached_property
    def _paths(self) -> dict[tuple[str, str], Path]:
        return {(p.from_, p.to): p for p in reversed(self.paths)}

    def gpu(self, address: str) -> Gpu:
        """Return the GPU at `address`; KeyError where there is none."""
        return self._gpus[address]

    def find_gpu(self, address: str) -> Gpu | None:
        """Return the GPU at `address`, or None."""
        return self._gpus.get(address)

    def label(self, end: str) -> str:
        """Return `GPU0` for the address of GPU 0, and anything else as it is."""
        gpu = self._gpus.get(end)
        return gpu.label if gpu is not None else end

    def path(self, from_: str, to: str) -> Path:
        """Return the path of an ordered pair; KeyError where there is none."""
        return self._paths[from_, to]

    def find_path(self, from_: str, to: str) -> Path | None:
        """Return the path of an ordered pair, or None."""
        return self._paths.get((from_, to))
