"""GPUs as NVML and the CUDA driver describe them."""

from __future__ import annotations

import functools

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


P2P_CODES = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
"""nvidia-smi's word for each number of nvmlGpuP2PStatus_t (nvml.h), counted from 0."""


def raw_p2p_code(code: str | Missing) -> str:
    """Return NVML's number for a code, as evidence: raw answers about pairs are kept only where one is odd."""
    return str(P2P_CODES.index(code)) if code in P2P_CODES else str(code)


class P2pStatus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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

    Attributes:
        board_id: equal for the GPUs of one multi-GPU board.
        module_id: position on an SXM baseboard, counted from 1 (NVML's own numbering).
        clock_sm_application_mhz: the clock that `nvidia-smi --applications-clocks` asked for, or the product's own.
        power_limit_mw: in force now, milliwatts; `power_limit_default_mw` is the product's own.
        clock_event_reasons: NVML's bit mask (1 idle, 4 power cap, 8 hardware slowdown, 0x20 and 0x40 thermal,
            0x80 power brake).
        pcie_errors: counter name -> value since the driver was loaded, only those that could be read
            (probes/nvml/fields.py).
        c2c_link_mb_s: largest rate of one chip-to-chip link, 10^6 bytes/s.
        fabric_state: Not Supported, Not Started, In Progress or Completed.
        fabric_status: NVML's return code of the registration, in words (`Success`); only then a Completed state
            means that the fabric works.
        fabric_health_mask: NVML's bit fields of two bits and more, in which 1 is often the bad value
            (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*); 0 says nothing.
        fabric_health_summary: Not Supported, Healthy, Unhealthy or Limited Capacity (drivers from 575).
        nvlink_count: links that the driver says this GPU has, active or not.
        raw: call as NVML names it, without `nvml`, the device left out (`DeviceGetNvLinkState(3)`) -> answer.
    """

    index: int
    address: str | Missing = UNSUPPORTED
    lost: bool = False
    error: str = ""
    uuid: str | Missing = UNSUPPORTED
    name: str | Missing = UNSUPPORTED
    serial: str | Missing = UNSUPPORTED
    board_part_number: str | Missing = UNSUPPORTED
    board_id: int | Missing = UNSUPPORTED
    module_id: int | Missing = UNSUPPORTED
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
    pcie_errors: dict[str, int] = msgspec.field(default_factory=dict)
    performance_state: int | Missing = UNSUPPORTED
    clock_sm_mhz: int | Missing = UNSUPPORTED
    clock_sm_max_mhz: int | Missing = UNSUPPORTED
    clock_memory_max_mhz: int | Missing = UNSUPPORTED
    clock_sm_application_mhz: int | Missing = UNSUPPORTED
    power_limit_mw: int | Missing = UNSUPPORTED
    power_limit_default_mw: int | Missing = UNSUPPORTED
    clock_event_reasons: int | Missing = UNSUPPORTED
    temperature_c: int | Missing = UNSUPPORTED
    utilization_percent: int | Missing = UNSUPPORTED
    mig_current: bool | Missing = UNSUPPORTED
    mig_pending: bool | Missing = UNSUPPORTED
    mig_instances: tuple[MigInstance, ...] = ()
    mig_untold: Missing | None = None
    """Why slices are not listed although MIG is on: a refusal is no empty list."""
    ecc_current: bool | Missing = UNSUPPORTED
    ecc_pending: bool | Missing = UNSUPPORTED
    compute_mode: str | Missing = UNSUPPORTED
    persistence_mode: bool | Missing = UNSUPPORTED
    virtualization_mode: str | Missing = UNSUPPORTED
    addressing_mode: str | Missing = UNSUPPORTED
    c2c_enabled: bool | Missing = UNSUPPORTED
    c2c_links: int | Missing = UNSUPPORTED
    c2c_links_active: int | Missing = UNSUPPORTED
    c2c_link_mb_s: int | Missing = UNSUPPORTED
    fabric_state: str | Missing = UNSUPPORTED
    fabric_status: str | Missing = UNSUPPORTED
    fabric_clique: int | Missing = UNSUPPORTED
    fabric_cluster_uuid: str | Missing = UNSUPPORTED
    fabric_health_mask: int | Missing = UNSUPPORTED
    fabric_health_summary: str | Missing = UNSUPPORTED
    cpu_affinity: str | Missing = UNSUPPORTED
    memory_affinity: str | Missing = UNSUPPORTED
    numa_node: int | Missing = UNSUPPORTED
    nvlink_count: int | Missing = UNSUPPORTED
    nvlinks: tuple[NvLink, ...] = ()
    processes: tuple[GpuProcess, ...] | Missing = UNSUPPORTED


class NvmlFacts(Fact, frozen=True, kw_only=True, dict=True):
    """What NVML said. `gpus` is Missing where the library or the driver is not there; `error` says why in words.

    `conf_computing` tells whether confidential computing is on (it forbids peer access between most GPUs).
    """

    driver_version: str | Missing = ABSENT
    nvml_version: str | Missing = ABSENT
    cuda_version: str | Missing = ABSENT
    conf_computing: bool | Missing = ABSENT
    gpus: tuple[NvmlGpu, ...] | Missing = ABSENT
    p2p: tuple[P2pStatus, ...] = ()
    error: str = ""

    @functools.cached_property
    def statuses(self) -> dict[tuple[str, str], P2pStatus]:
        """The P2P status of each ordered pair of addresses."""
        return {(s.from_address, s.to_address): s for s in reversed(self.p2p)}


class CudaDevice(Fact, frozen=True, kw_only=True):
    """One device as the CUDA driver API describes it (no context is made). `ordinal` is CUDA's.

    `flush_writes_options` is a bit mask of how a GPU makes RDMA writes visible (1 host call, 2 memory operations).
    """

    ordinal: int
    address: str | Missing = ABSENT
    uuid: str | Missing = ABSENT
    name: str | Missing = ABSENT
    gpudirect_rdma: bool | Missing = ABSENT
    dma_buf: bool | Missing = ABSENT
    fabric_handles: bool | Missing = ABSENT
    multicast: bool | Missing = ABSENT
    integrated: bool | Missing = ABSENT
    compute_mode: str | Missing = ABSENT
    flush_writes_options: int | Missing = ABSENT


class CudaPeer(msgspec.Struct, frozen=True, kw_only=True):
    """cuDeviceCanAccessPeer for one ordered pair."""

    from_address: str
    to_address: str
    can_access: bool | Missing = ABSENT


class CudaFacts(Fact, frozen=True, kw_only=True, dict=True):
    """What the CUDA driver said; `devices` is Missing without libcuda or a device."""

    driver_api_version: str | Missing = ABSENT
    devices: tuple[CudaDevice, ...] | Missing = ABSENT
    peers: tuple[CudaPeer, ...] = ()
    error: str = ""

    @functools.cached_property
    def access(self) -> dict[tuple[str, str], bool | Missing]:
        """Whether the second of two addresses can be accessed from the first."""
        return {(p.from_address, p.to_address): p.can_access for p in reversed(self.peers)}
