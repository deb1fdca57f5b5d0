"""The two roads by which a NIC learns the addresses of GPU memory: the peer-memory module and DMA-BUF."""

from __future__ import annotations

from topocheck.gpudirect.ground import Ground, kernel_version, said
from topocheck.knowledge.products import dmabuf_kernel
from topocheck.model.base import Evidence, Missing, Reason, ReasonStep
from topocheck.topology.types import Gpu, Nic

CLIENTS = ("nv_mem", "nv_mem_nc", "nvidia-peermem")
"""Names under /sys/kernel/mm/memory_peers by which NVIDIA's modules register (NVIDIA/nccl src/transport/net.cc)."""

_MODULES = ("nvidia_peermem", "nv_peer_mem")
TURING = 6
"""NVML_DEVICE_ARCH_TURING: the open kernel modules drive it and newer ones (their README, "Compatible GPUs")."""
DMABUF_KERNEL = (5, 12)
"""First kernel whose RDMA core registers DMA-BUF memory (Linux 5.12, drivers/infiniband/core/umem_dmabuf.c)."""


def peermem(g: Ground) -> ReasonStep:
    """Return whether a peer-memory module is loaded and registered with the RDMA stack.

    Loaded is not enough: built against another RDMA stack it loads and never registers.
    """
    system = g.node.system
    module = next((m for m in _MODULES if m in system.loaded_modules or m in system.modules), None)
    if module is None:
        if not system.modules and not system.loaded_modules:
            return ReasonStep("peer memory: which modules are loaded is not known", "unknown")
        return ReasonStep(
            "peer memory: nvidia_peermem is not loaded",
            "no",
            (Evidence("/sys/module/nvidia_peermem", "(absent)"),),
            "modprobe nvidia-peermem",
        )
    quoted = said(system, f"/sys/module/{module}/version", system.modules.get(module, "loaded"))
    peers = system.memory_peers
    if isinstance(peers, Missing):
        if peers.reason is not Reason.ABSENT:
            text = f"peer memory: {module} is loaded; whether it registered is not known ({peers.reason.value})"
            return ReasonStep(text, "unknown", quoted)
        peers = ()
    registered = [p for p in peers if p in CLIENTS]
    if registered:
        where = Evidence("/sys/kernel/mm/memory_peers", " ".join(registered))
        return ReasonStep(f"peer memory: {module} is loaded and registered", "yes", (*quoted, where))
    users = system.loaded_modules.get(module)
    refs = () if users is None else (Evidence(f"/proc/modules {module}", f"{users} users"),)
    if isinstance(users, int) and users > 0:
        return ReasonStep(f"peer memory: {module} is loaded and in use", "yes", (*quoted, *refs))
    return ReasonStep(
        f"peer memory: {module} is loaded but not registered with the RDMA stack",
        "no",
        (*quoted, *refs, Evidence("/sys/kernel/mm/memory_peers", "(none of NVIDIA's)")),
        "use the open kernel modules (DMA-BUF road), or build the driver again after the RDMA stack (OFED)",
    )


def dma_buf(g: Ground, gpu: Gpu, nic: Nic) -> ReasonStep:
    """Return whether GPU memory can be handed to the NIC as a DMA-BUF.

    The GPU side is CUDA's attribute, or else the open kernel module on a kernel that has it; the NIC side is a
    driver that registers such memory.
    """
    side = _gpu_side(g, gpu)
    if side.effect != "yes":
        return side
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
    return ReasonStep(f"DMA-BUF: the GPU exports it and {driver} registers it", "yes", shown)


def _open_modules(g: Ground, gpu: Gpu) -> str | None:
    """Return the advice to take the open kernel modules; None for a GPU older than they are made for."""
    generation = gpu.nvml.architecture if gpu.nvml is not None else None
    if isinstance(generation, int) and generation < TURING:
        return None
    kernel = kernel_version(g.node.system.kernel_release)
    if g.node.system.nvidia_module_flavor == "open" and kernel is not None and kernel >= DMABUF_KERNEL:
        return None
    return "install the open kernel modules of the NVIDIA driver, on kernel 5.12 or newer"


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
    return ReasonStep("DMA-BUF: open kernel module on a kernel that has it", "yes", shown)
