"""Samples of a machine, and what is known of the devices in them.

A field that was not asked in a sample (some cost too much to be asked each time) is `not_recorded`; one that was asked
and not answered says why. Counters only grow; those that could not be read are named in `missing`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from topocheck.model.base import NOT_RECORDED, Missing, known


class Kind(enum.StrEnum):
    """What a reading is about; each kind has its own counters (overtime/counters.py)."""

    GPU = "gpu"
    FUNCTION = "function"
    NVLINK = "nvlink"
    PORT = "port"


class Reading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one device said in one sample. `missing` has counter -> why it could not be read."""

    counters: dict[str, int] = {}
    missing: dict[str, Missing] = {}

    @property
    def subject(self) -> str:
        """The device, as findings name it."""
        raise NotImplementedError


class ClockReason(enum.IntFlag):
    """Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReason*)."""

    IDLE = 0x1
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80


SLOWDOWNS = {
    ClockReason.HW_SLOWDOWN: "hardware slowdown",
    ClockReason.SW_THERMAL: "software thermal",
    ClockReason.HW_THERMAL: "hardware thermal",
    ClockReason.HW_POWER_BRAKE: "hardware power brake",
}
"""Reasons that hold a GPU below what its load and its power limit allow."""
BUSY_PERCENT = 20
"""Utilization from which a GPU is under load."""
_FULL_CLOCK_STATE = 2
"""P0 to P2 are the performance states of a working GPU."""


class GpuReading(Reading, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU by NVML. Clocks in MHz, temperature in degrees C.

    Attributes:
        index: NVML's.
        lost: NVML says that the GPU is lost.
        suspended: it is powered down, and was asked nothing.
        clock_reasons: bits of ClockReason.
        pids: processes on it; NVML gives the host's numbers.
        pcie_tx_kb_s, pcie_rx_kb_s: 1000 bytes a second over 20 ms (nvmlDeviceGetPcieThroughput), the headers of
            packets included: 10 % above the data of large copies (two H200).
    """

    address: str
    index: int
    lost: bool = False
    suspended: bool = False
    clock_sm_mhz: int | Missing = NOT_RECORDED
    clock_reasons: int | Missing = NOT_RECORDED
    performance_state: int | Missing = NOT_RECORDED
    utilization_percent: int | Missing = NOT_RECORDED
    temperature_c: int | Missing = NOT_RECORDED
    pcie_gen: int | Missing = NOT_RECORDED
    pcie_width_lanes: int | Missing = NOT_RECORDED
    pids: tuple[int, ...] | Missing = NOT_RECORDED
    pcie_tx_kb_s: int | Missing = NOT_RECORDED
    pcie_rx_kb_s: int | Missing = NOT_RECORDED

    @property
    def subject(self) -> str:
        """Its PCI address."""
        return self.address

    @property
    def busy(self) -> bool | None:
        """Whether it is under load; None where nothing says so.

        Utilization counts kernels only, so that a GPU which copies and computes nothing is not known to be busy.
        """
        if known(self.utilization_percent) and self.utilization_percent >= BUSY_PERCENT:
            return True
        if known(self.utilization_percent):
            return False
        if known(self.performance_state) and known(self.clock_reasons):
            return self.performance_state <= _FULL_CLOCK_STATE and not self.clock_reasons & ClockReason.IDLE
        return None


class FunctionReading(Reading, frozen=True, kw_only=True, omit_defaults=True):
    """One PCI function by sysfs: its link and AER counters."""

    address: str
    suspended: bool = False
    gone: bool = False
    speed_gt_s: float | Missing = NOT_RECORDED
    width_lanes: int | Missing = NOT_RECORDED

    @property
    def subject(self) -> str:
        """Its PCI address."""
        return self.address


class NvLinkReading(Reading, frozen=True, kw_only=True, omit_defaults=True):
    """One NVLink of a GPU."""

    address: str
    link: int
    active: bool | Missing = NOT_RECORDED

    @property
    def subject(self) -> str:
        """The GPU's address and the link's number."""
        return f"{self.address} NVLink {self.link}"


class PortReading(Reading, frozen=True, kw_only=True, omit_defaults=True):
    """One port of an RDMA device; states are the kernel's words (`ACTIVE`, `LinkUp`)."""

    device: str
    port: int
    gone: bool = False
    state: str | Missing = NOT_RECORDED
    phys_state: str | Missing = NOT_RECORDED
    rate_gbit_s: float | Missing = NOT_RECORDED

    @property
    def subject(self) -> str:
        """Device and port."""
        return f"{self.device}/{self.port}"


_XID_EVENT = 0x8
"""nvmlEventTypeXidCriticalError (nvml.h)."""


class GpuEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What NVML's event set gave: an Xid or another event of a GPU.

    Attributes:
        type: bit of nvmlEventType* (nvml.h).
        data: the Xid of an Xid event; 0 for all others.
        gpu_instance, compute_instance: of a MIG device; not known for the whole GPU.
    """

    address: str
    type: int
    data: int = 0
    gpu_instance: int | Missing = NOT_RECORDED
    compute_instance: int | Missing = NOT_RECORDED

    @property
    def xid(self) -> int | None:
        """The number of an Xid; None for any other event."""
        return self.data if self.type == _XID_EVENT else None


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All readings of one moment, `at_s` seconds after the recording began.

    `silent` has source (`nvml`, `sysfs`) -> why nothing came from it. `events` came since the sample before.
    """

    at_s: float
    gpus: tuple[GpuReading, ...] = ()
    functions: tuple[FunctionReading, ...] = ()
    nvlinks: tuple[NvLinkReading, ...] = ()
    ports: tuple[PortReading, ...] = ()
    silent: dict[str, str] = {}
    events: tuple[GpuEvent, ...] = ()


def sample_of(
    at_s: float,
    readings: Iterable[Reading],
    silent: dict[str, str] | None = None,
    events: tuple[GpuEvent, ...] = (),
) -> Sample:
    """Return a sample of readings of any kind."""
    found = tuple(readings)
    return Sample(
        at_s=at_s,
        gpus=tuple(r for r in found if isinstance(r, GpuReading)),
        functions=tuple(r for r in found if isinstance(r, FunctionReading)),
        nvlinks=tuple(r for r in found if isinstance(r, NvLinkReading)),
        ports=tuple(r for r in found if isinstance(r, PortReading)),
        silent=silent or {},
        events=events,
    )


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What does not change of a GPU or NIC.

    Attributes:
        label: `GPU0`, `mlx5_0`.
        product: the name by which siblings are found.
        uuid: of a GPU.
        max_speed_gt_s, max_width_lanes: what both ends of its link can do; not known where its link is emulated, or
            the port above is not shown.
    """

    address: str
    label: str
    is_gpu: bool
    product: str | Missing = NOT_RECORDED
    uuid: str | Missing = NOT_RECORDED
    max_speed_gt_s: float | Missing = NOT_RECORDED
    max_width_lanes: int | Missing = NOT_RECORDED


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a recording. `begun` is RFC 3339, `begun_unix_s` the same moment in seconds.

    `boot_time_s` is the kernel's (`btime` of /proc/stat): counters of another boot are not compared.
    """

    format: str
    version: int
    topocheck_version: str
    hostname: str
    begun: str
    begun_unix_s: float
    interval_s: float
    boot_time_s: int | Missing = NOT_RECORDED
    devices: tuple[Device, ...] = ()
