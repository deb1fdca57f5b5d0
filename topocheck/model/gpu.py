"""GPUs as NVML and the CUDA driver describe them."""

from __future__ import annotations

import msgspec

from topocheck.model.base import ABSENT, UNSUPPORTED, Fact, Missing


class NvLink(msgspec.Struct, frozen=True, kw_only=True):
    """One NVLink of one GPU.

    Attributes:
        version: NVLink generation (1 to 5).
        speed_mb_s: signalling rate per direction in 10^6 bytes/s as NVML gives it, protocol overhead included.
        remote_type: gpu, switch, ibmnpu, or unknown.
        remote_address: PCI address of the far end; Missing(not_visible_here) where a hypervisor masks it.
        errors: counter name -> value, only those that could be read.
    """

    link: int
    active: bool | Missing = UNSUPPORTED
    version: int | Missing = UNSUPPORTED
    speed_mb_s: int | Missing = UNSUPPORTED
    remote_type: str | Missing = UNSUPPORTED
    remote_address: str | Missing = UNSUPPORTED
    capabilities: dict[str, bool] = msgspec.field(default_factory=dict)
    errors: dict[str, int] = msgspec.field(default_factory=dict)


class P2pStatus(msgspec.Struct, frozen=True, kw_only=True):
    """NVML's P2P status of one ordered pair, each in nvidia-smi's code.

    OK, CNS (chipset not supported), GNS (GPU not supported), TNS (topology not supported), DR (disabled by a
    registry key), NS (not supported), U (unknown). `ancestor` is NVML's common ancestor in nvidia-smi's word
    (X for the same board, PIX, PXB, PHB, NODE, SYS).
    """

    from_address: str
    to_address: str
    read: str | Missing = UNSUPPORTED
    write: str | Missing = UNSUPPORTED
    nvlink: str | Missing = UNSUPPORTED
    atomics: str | Missing = UNSUPPORTED
    pcie: str | Missing = UNSUPPORTED
    ancestor: str | Missing = UNSUPPORTED


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process NVML sees on a GPU; `kind` is compute or graphics; pids are the host's."""

    pid: int
    kind: str
    used_memory_bytes: int | Missing = UNSUPPORTED


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG device of a GPU."""

    uuid: str
    name: str | Missing = UNSUPPORTED


class NvmlGpu(Fact, frozen=True, kw_only=True):
    """One GPU as NVML describes it. `index` is NVML's (PCI bus order); every other field may be missing alone.

    `lost` is True when NVML says that the GPU fell off the bus or its handle cannot be had; `error` then says
    what NVML said. Memory sizes are bytes, clocks MHz, `numa_node` is the node of the GPU's own memory on
    coherent machines, `cpu_affinity` and `memory_affinity` are kernel lists (`0-31`).
    """

    index: int
    address: str | Missing = UNSUPPORTED
    lost: bool = False
    error: str = ""
    uuid: str | Missing = UNSUPPORTED
    name: str | Missing = UNSUPPORTED
    serial: str | Missing = UNSUPPORTED
    minor: int | Missing = UNSUPPORTED
    architecture: int | Missing = UNSUPPORTED
    compute_capability: str | Missing = UNSUPPORTED
    vbios: str | Missing = UNSUPPORTED
    memory_total_bytes: int | Missing = UNSUPPORTED
    memory_used_bytes: int | Missing = UNSUPPORTED
    bar1_total_bytes: int | Missing = UNSUPPORTED
    pcie_gen_current: int | Missing = UNSUPPORTED
    pcie_gen_max: int | Missing = UNSUPPORTED
    pcie_gen_device_max: int | Missing = UNSUPPORTED
    pcie_width_current: int | Missing = UNSUPPORTED
    pcie_width_max: int | Missing = UNSUPPORTED
    pcie_replays: int | Missing = UNSUPPORTED
    performance_state: int | Missing = UNSUPPORTED
    clock_sm_mhz: int | Missing = UNSUPPORTED
    clock_sm_max_mhz: int | Missing = UNSUPPORTED
    clock_event_reasons: int | Missing = UNSUPPORTED
    temperature_c: int | Missing = UNSUPPORTED
    utilization_percent: int | Missing = UNSUPPORTED
    mig_current: bool | Missing = UNSUPPORTED
    mig_pending: bool | Missing = UNSUPPORTED
    mig_instances: tuple[MigInstance, ...] = ()
    ecc_current: bool | Missing = UNSUPPORTED
    compute_mode: str | Missing = UNSUPPORTED
    persistence_mode: bool | Missing = UNSUPPORTED
    virtualization_mode: str | Missing = UNSUPPORTED
    addressing_mode: str | Missing = UNSUPPORTED
    c2c_links: int | Missing = UNSUPPORTED
    c2c_link_mb_s: int | Missing = UNSUPPORTED
    fabric_state: str | Missing = UNSUPPORTED
    fabric_status: str | Missing = UNSUPPORTED
    fabric_clique: int | Missing = UNSUPPORTED
    fabric_cluster_uuid: str | Missing = UNSUPPORTED
    fabric_health_mask: int | Missing = UNSUPPORTED
    cpu_affinity: str | Missing = UNSUPPORTED
    memory_affinity: str | Missing = UNSUPPORTED
    numa_node: int | Missing = UNSUPPORTED
    nvlinks: tuple[NvLink, ...] = ()
    processes: tuple[GpuProcess, ...] | Missing = UNSUPPORTED


class NvmlFacts(Fact, frozen=True, kw_only=True):
    """What NVML said. `gpus` is Missing where the library or the driver is not there; `error` says why in words."""

    driver_version: str | Missing = ABSENT
    nvml_version: str | Missing = ABSENT
    cuda_version: str | Missing = ABSENT
    gpus: tuple[NvmlGpu, ...] | Missing = ABSENT
    p2p: tuple[P2pStatus, ...] = ()
    error: str = ""


class CudaDevice(Fact, frozen=True, kw_only=True):
    """One device as the CUDA driver API describes it (no context is made). `ordinal` is CUDA's."""

    ordinal: int
    address: str | Missing = ABSENT
    uuid: str | Missing = ABSENT
    name: str | Missing = ABSENT
    gpudirect_rdma: bool | Missing = ABSENT
    dma_buf: bool | Missing = ABSENT
    fabric_handles: bool | Missing = ABSENT
    multicast: bool | Missing = ABSENT
    integrated: bool | Missing = ABSENT


class CudaPeer(msgspec.Struct, frozen=True, kw_only=True):
    """cuDeviceCanAccessPeer for one ordered pair."""

    from_address: str
    to_address: str
    can_access: bool | Missing = ABSENT


class CudaFacts(Fact, frozen=True, kw_only=True):
    """What the CUDA driver said; `devices` is Missing without cuda-bindings, libcuda or a device."""

    driver_api_version: str | Missing = ABSENT
    devices: tuple[CudaDevice, ...] | Missing = ABSENT
    peers: tuple[CudaPeer, ...] = ()
    error: str = ""
