"""The two ways by which a NIC learns the addresses of GPU memory: the peer-memory module and DMA-BUF."""

from __future__ import annotations

import enum

from topocheck.gpudirect.inputs import Ground, cuda_lost, iommu_of, kernel_version, once, said
from topocheck.gpudirect.types import PeerMemory, PeerMemoryState
from topocheck.knowledge.products import dmabuf_kernel
from topocheck.model.base import ABSENT, Evidence, Missing, Reason, ReasonStep, is_lost, known
from topocheck.model.system import SystemFacts
from topocheck.topology.paths import joined_to_cpu
from topocheck.topology.types import Gpu, Nic

CLIENTS = ("nv_mem", "nv_mem_nc", "nvidia-peermem")
"""Names under /sys/kernel/mm/memory_peers by which NVIDIA's modules register (NVIDIA/nccl src/transport/net.cc)."""

_MODULES = ("nvidia_peermem", "nv_peer_mem")
TURING = 6
"""NVML_DEVICE_ARCH_TURING: the open kernel modules drive it and newer ones (their README, "Compatible GPUs")."""
DMABUF_KERNEL = (5, 12)
"""First kernel whose RDMA core registers DMA-BUF memory (Linux 5.12, drivers/infiniband/core/umem_dmabuf.c)."""

_LOAD = "modprobe nvidia-peermem"
_LOAD_OR_INSTALL = (
    f"{_LOAD}; if that fails with `Invalid argument`, install MLNX_OFED or DOCA-OFED and then the NVIDIA driver again"
)
_OPEN_MODULES = "install the open kernel modules of the NVIDIA driver, on kernel 5.12 or newer"


class Effort(enum.IntEnum):
    """What a fix takes, the least first."""

    LOAD = enum.auto()
    """Loading a module."""
    INSTALL = enum.auto()
    """Installing packages."""
    REBUILD = enum.auto()
    """A build or another kernel, which holds until either side is updated."""


_EFFORTS = {_LOAD: Effort.LOAD, _LOAD_OR_INSTALL: Effort.LOAD, _OPEN_MODULES: Effort.INSTALL}


def effort(step: ReasonStep) -> Effort:
    """Return what the fix of a step takes."""
    return _EFFORTS.get(step.fix or "", Effort.REBUILD)


def peer_memory_interface(system: SystemFacts) -> bool:
    """Return whether the kernel has the interface that nvidia_peermem registers with.

    The kernel's own RDMA core never had it. MLNX_OFED and DOCA-OFED bring it (their modules state a version, inbox
    ones none); Ubuntu's kernels had it before 6.8, and its linux-nvidia kernels have (Ubuntu Discourse, topic 44425).
    """
    if isinstance(system.peer_memory_symbol, bool):
        return system.peer_memory_symbol
    if known(system.memory_peers) or any(system.modules.get(m) for m in ("mlx5_core", "mlx5_ib", "ib_core")):
        return True
    version, release = kernel_version(system.kernel_release), str(system.kernel_release)
    ubuntu = "ubuntu" in str(system.os_name).lower()
    return ubuntu and version is not None and (version < (6, 8) or "-nvidia" in release)


def peermem(g: Ground) -> PeerMemory:
    """Return whether a peer-memory module is loaded and registered with the RDMA stack.

    Loaded is not enough: built against another RDMA stack it loads and never registers.
    """
    if "peermem" not in g.kept:
        g.kept["peermem"] = _peermem(g)
    found: PeerMemory = g.kept["peermem"]
    return found


def _peermem(g: Ground) -> PeerMemory:
    system = g.node.system
    module = next((m for m in _MODULES if m in system.loaded_modules or m in system.modules), None)
    if module is None:
        if not g.node.lists_modules:
            return PeerMemory(
                PeerMemoryState.UNKNOWN, ReasonStep("peer memory: which modules are loaded is not known", "unknown")
            )
        return PeerMemory(PeerMemoryState.NOT_LOADED, _not_loaded(system))
    quoted = said(system, f"/sys/module/{module}/version", system.modules.get(module, "loaded"))
    peers = system.memory_peers
    if isinstance(peers, Missing):
        if peers.reason is not Reason.ABSENT:
            text = f"peer memory: {module} is loaded; whether it registered is not known ({peers.reason.value})"
            return PeerMemory(PeerMemoryState.UNKNOWN, ReasonStep(text, "unknown", quoted))
        peers = ()
    registered = [p for p in peers if p in CLIENTS]
    if registered:
        where = Evidence("/sys/kernel/mm/memory_peers", " ".join(registered))
        return PeerMemory(
            PeerMemoryState.REGISTERED,
            ReasonStep(f"peer memory: {module} is loaded and registered", "yes", (*quoted, where)),
        )
    users = system.loaded_modules.get(module)
    if users is None and g.is_lost("lines:/proc/modules"):
        text = f"peer memory: {module} is loaded; whether the RDMA stack uses it could not be read (/proc/modules)"
        return PeerMemory(PeerMemoryState.UNKNOWN, ReasonStep(text, "unknown", quoted))
    refs = () if users is None else (Evidence(f"/proc/modules {module}", f"{users} users"),)
    if isinstance(users, int) and users > 0:
        return PeerMemory(
            PeerMemoryState.REGISTERED,
            ReasonStep(f"peer memory: {module} is loaded and in use", "yes", (*quoted, *refs)),
        )
    return PeerMemory(
        PeerMemoryState.NOT_REGISTERED,
        ReasonStep(
            f"peer memory: {module} is loaded but not registered with the RDMA stack",
            "no",
            (*quoted, *refs, Evidence("/sys/kernel/mm/memory_peers", "(none of NVIDIA's)")),
            "build the NVIDIA driver again after the RDMA stack (OFED)",
        ),
    )


def _not_loaded(system: SystemFacts) -> ReasonStep:
    absent = (Evidence("/sys/module/nvidia_peermem", "(absent)"),)
    if peer_memory_interface(system):
        return ReasonStep("peer memory: nvidia_peermem is not loaded", "no", absent, _LOAD)
    if _tells_nothing(system):
        # Files of a machine without any of what tells it.
        return ReasonStep(
            "peer memory: nvidia_peermem is not loaded; whether the RDMA stack has the interface for it is not known",
            "no",
            absent,
            _LOAD_OR_INSTALL,
        )
    return ReasonStep(
        "peer memory: nvidia_peermem is not loaded, and this kernel's RDMA stack has no interface for it",
        "no",
        (*absent, *_without_interface(system)),
        "install MLNX_OFED or DOCA-OFED and then the NVIDIA driver again, or use a kernel with the peer-memory "
        "interface (Ubuntu: linux-nvidia, or one before 6.8)",
    )


def _tells_nothing(system: SystemFacts) -> bool:
    """Tell whether nothing is recorded that shows or denies the interface."""
    peers = system.memory_peers
    symbol = system.peer_memory_symbol
    return isinstance(symbol, Missing) and isinstance(peers, Missing) and is_lost(peers) and not known(system.os_name)


def _without_interface(system: SystemFacts) -> tuple[Evidence, ...]:
    """Quote what shows that the RDMA stack is the kernel's own."""
    path = f"/lib/modules/{system.kernel_release}/modules.symbols"
    release = said(system, "/proc/sys/kernel/osrelease", system.kernel_release)
    stack = next(
        (said(system, f"/sys/module/{m}/version", "") for m in ("mlx5_core", "ib_core") if m in system.modules), ()
    )
    return (*system.evidence(path), *release, *stack)


def dma_buf(g: Ground, gpu: Gpu, nic: Nic) -> ReasonStep:
    """Return whether GPU memory can be handed to the NIC as a DMA-BUF.

    The GPU side is CUDA's attribute, or else the open kernel module on a kernel that has it; the NIC side is a
    driver that registers such memory.
    """
    side = _gpu_side(g, gpu)
    if side.effect != "yes":
        return side
    key = ("dma-buf", side, nic.address, nic.label, gpu.address if joined_to_cpu(gpu) else "")
    if key not in g.kept:
        g.kept[key] = _nic_side(g, side, gpu, nic)
    step: ReasonStep = g.kept[key]
    return step


def _nic_side(g: Ground, side: ReasonStep, gpu: Gpu, nic: Nic) -> ReasonStep:
    """Return whether a NIC registers what a GPU exports."""
    release = g.node.system.kernel_release
    kernel = kernel_version(release)
    driver = nic.pci.driver if nic.pci is not None else None
    if driver is None or isinstance(driver, Missing):
        return ReasonStep(f"DMA-BUF: the driver of {nic.label} is not known", "unknown", side.evidence)
    shown = (*side.evidence, Evidence(f"{nic.address} driver", driver))
    since = dmabuf_kernel(driver)
    if since is None:
        return ReasonStep(f"DMA-BUF: whether {driver} registers such memory is not known", "unknown", shown)
    if kernel is None or kernel < since:
        wants = f"kernel {since[0]}.{since[1]}"
        return ReasonStep(
            f"DMA-BUF: {driver} registers such memory from {wants} on; one from the maker may do so earlier",
            "unknown",
            (*shown, Evidence("kernel", str(release))),
        )
    return _topology_check(g, gpu, nic, shown) or ReasonStep(
        f"DMA-BUF: the GPU exports it and {driver} registers it", "yes", shown
    )


_OVERRIDE = "GrdmaPciTopoCheckOverride"
_ALLOW, _DENY = "1", "2"
"""Values of the parameter: 0 leaves it to the driver (nv-reg.h, NV_REG_GRDMA_PCI_TOPO_CHECK_OVERRIDE)."""


def _topology_check(g: Ground, gpu: Gpu, nic: Nic, shown: tuple[Evidence, ...]) -> ReasonStep | None:
    """Return what the driver's own check of the PCI topology makes of a DMA-BUF; None where it stands in no way.

    On coherent machines the driver hands GPU memory out by PCIe only to a device of the GPU's IOMMU group, which with
    a translating SMMU no NIC is (Azure/azhpc-images pull 589).
    """
    value = g.node.system.nvidia_params.get(_OVERRIDE)
    set_to = (Evidence(f"/proc/driver/nvidia/params {_OVERRIDE}", value),) if value is not None else ()
    allow = (
        f"options nvidia NVreg_{_OVERRIDE}=1 in a file of /etc/modprobe.d, then load the driver again (ends all GPU "
        "work)"
    )
    if value == _DENY:
        return ReasonStep(f"DMA-BUF: the driver is set to refuse it (NVreg_{_OVERRIDE}=2)", "no", set_to, allow)
    if value is None and _parameters_lost(g):
        return ReasonStep(
            f"DMA-BUF: whether the driver refuses it (NVreg_{_OVERRIDE}) could not be read", "unknown", shown
        )
    if value == _ALLOW or g.guest or not joined_to_cpu(gpu):
        return None
    ends = (gpu.address, nic.address)
    groups = [d.iommu_group if (d := g.devices.get(a)) is not None else ABSENT for a in ends]
    if known(groups[0]) and groups[0] == groups[1]:
        return None
    iommu = iommu_of(g, gpu.address, nic.address)
    unread = {a: why for a in ends if (why := _unread_group(g, a)) is not None}
    if unread and iommu.mode in ("translated", "unknown"):
        return ReasonStep(
            f"DMA-BUF: the driver compares the IOMMU groups of {gpu.label} and {nic.label}, which could not be read",
            "unknown",
            (*shown, *set_to, *(Evidence(f"{a} iommu_group", str(why)) for a, why in unread.items())),
        )
    if any(isinstance(x, Missing) for x in groups) or iommu.mode != "translated":
        return None
    said_so = tuple(Evidence(f"{a} iommu_group", str(n)) for a, n in zip(ends, groups, strict=True))
    return ReasonStep(
        f"DMA-BUF: the driver compares the IOMMU groups of {gpu.label} and {nic.label} ({groups[0]} and {groups[1]}) "
        f"and may refuse it; NVreg_{_OVERRIDE} is not 1",
        "unknown",
        (*shown, *set_to, *said_so, *iommu.evidence),
        allow,
    )


def _parameters_lost(g: Ground) -> bool:
    """Tell whether the driver's parameters were asked for and did not come; a recording may hold another list."""
    lost = (x for x in g.node.lost if x.question.startswith("lines:/proc/driver/nvidia/params"))
    return any(x.why.reason is not Reason.NOT_RECORDED for x in lost)


def _unread_group(g: Ground, address: str) -> Missing | None:
    """Return why the IOMMU group of a device, or the type of its group, was lost; None where it was not."""
    device = g.devices.get(address)
    told = () if device is None else (device.iommu_group, device.iommu_group_type)
    return next((x for x in told if isinstance(x, Missing) and is_lost(x)), None)


def _open_modules(g: Ground, gpu: Gpu) -> str | None:
    """Return the advice to take the open kernel modules; None for a GPU older than they are made for."""
    generation = gpu.nvml.architecture if gpu.nvml is not None else None
    if isinstance(generation, int) and generation < TURING:
        return None
    kernel = kernel_version(g.node.system.kernel_release)
    if g.node.system.nvidia_module_flavor == "open" and kernel is not None and kernel >= DMABUF_KERNEL:
        return None
    return _OPEN_MODULES


@once
def _gpu_side(g: Ground, gpu: Gpu) -> ReasonStep:
    system = g.node.system
    attribute = gpu.cuda.dma_buf if gpu.cuda is not None else None
    if gpu.cuda is not None and isinstance(attribute, bool):
        quoted = said(gpu.cuda, "DMA_BUF_SUPPORTED", attribute)
        if attribute:
            return ReasonStep("DMA-BUF: CUDA exports it", "yes", quoted)
        return ReasonStep(f"DMA-BUF: {gpu.label} does not export it", "no", quoted, _open_modules(g, gpu))
    flavor = system.nvidia_module_flavor
    if isinstance(flavor, Missing):
        return ReasonStep("DMA-BUF: whether the NVIDIA kernel module is the open one is not known", "unknown")
    quoted = said(system, "/proc/driver/nvidia/version", flavor)
    if flavor != "open":
        return ReasonStep(
            "DMA-BUF: the proprietary NVIDIA kernel module does not export it",
            "no",
            quoted,
            _open_modules(g, gpu),
        )
    kernel = kernel_version(system.kernel_release)
    if kernel is None:
        return ReasonStep("DMA-BUF: the kernel's version is not known", "unknown", quoted)
    shown = (*quoted, Evidence("kernel", str(system.kernel_release)))
    if kernel < DMABUF_KERNEL:
        return ReasonStep("DMA-BUF: the kernel is older than 5.12", "no", shown, "use kernel 5.12 or newer")
    if cuda_lost(g, gpu, attribute):
        return ReasonStep(f"DMA-BUF: whether CUDA exports it on {gpu.label} could not be read", "unknown", shown)
    return ReasonStep("DMA-BUF: open kernel module on a kernel that has it", "yes", shown)
