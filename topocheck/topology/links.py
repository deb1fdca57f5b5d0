"""PCIe links: what one negotiated, what both its ends can do, and whether its numbers mean anything.

A link joins an endpoint or upstream port with the port above it. Effective is what both ends negotiated;
attainable is the smaller of what each end can do (PCI Express Base Specification 5.0, 4.2.4 and 7.5.3.6-8).
"""

from __future__ import annotations

import msgspec

from topocheck.knowledge import products, rates
from topocheck.model.base import ABSENT, Missing, Reason, known
from topocheck.model.gpu import NvmlGpu
from topocheck.model.pci import PciDevice
from topocheck.topology.types import Hop, HopKind

IDLE_STATE = 2
"""Performance states above this one are those of a GPU that rests (NVML: P0 fastest, P15 slowest)."""

_REASON_GPU_IDLE = 0x1
"""nvmlClocksEventReasonGpuIdle (nvml.h)."""


class LinkState(msgspec.Struct, frozen=True):
    """Speed (GT/s a lane) and width (lanes) of one end of a link."""

    speed_gt_s: float | Missing = ABSENT
    width_lanes: int | Missing = ABSENT

    def rate(self) -> float | Missing:
        """Return GB/s in one direction; Missing where speed or width is."""
        if isinstance(self.speed_gt_s, Missing):
            return self.speed_gt_s
        if isinstance(self.width_lanes, Missing):
            return self.width_lanes
        try:
            return rates.pcie_gb_s(self.speed_gt_s, self.width_lanes)
        except ValueError as e:
            return Missing(Reason.UNPARSABLE, str(e))

    def text(self) -> str:
        """Return `gen 4 x16`; a question mark stands for what is missing."""
        return f"gen {generation(self.speed_gt_s) or '?'} x{self.width_lanes if known(self.width_lanes) else '?'}"


def generation(speed_gt_s: float | Missing) -> int | None:
    """Return the PCIe generation of a speed, or None where it is none."""
    try:
        return None if isinstance(speed_gt_s, Missing) else rates.pcie_gen(speed_gt_s)
    except ValueError:
        return None


def _speed(*values: float | Missing) -> float | Missing:
    return next((v for v in values if generation(v) is not None), values[-1])


def _width(*values: int | Missing) -> int | Missing:
    return next((v for v in values if v in rates.WIDTHS), ABSENT)


def current(device: PciDevice) -> LinkState:
    """Return what a function negotiated: its config space where it could be read, else sysfs."""
    return LinkState(
        _speed(device.sta_speed_gt_s, device.current_speed_gt_s),
        _width(device.sta_width_lanes, device.current_width_lanes),
    )


def maximum(device: PciDevice) -> LinkState:
    """Return what a function can do."""
    return LinkState(
        _speed(device.cap_speed_gt_s, device.max_speed_gt_s), _width(device.cap_width_lanes, device.max_width_lanes)
    )


def _smaller(a: LinkState, b: LinkState) -> LinkState:
    """Return the smaller speed and the smaller width; one end alone where the other is missing."""
    speeds = [s for s in (a.speed_gt_s, b.speed_gt_s) if generation(s) is not None]
    widths = [w for w in (a.width_lanes, b.width_lanes) if not isinstance(w, Missing)]
    return LinkState(
        min(speeds, key=lambda s: 0.0 if isinstance(s, Missing) else s) if speeds else a.speed_gt_s,
        min(widths) if widths else a.width_lanes,
    )


def endpoint_link(device: PciDevice) -> float | Missing:
    """Return the negotiated rate of a function's own link, GB/s; Missing where it has none."""
    return current(device).rate()


def from_nvml(gpu: NvmlGpu) -> tuple[LinkState, LinkState]:
    """Return (current, maximum) of a GPU's link as NVML gives them."""

    def speed(generation_: int | Missing) -> float | Missing:
        if isinstance(generation_, Missing):
            return generation_
        try:
            return rates.generation_of(generation_).speed_gt_s
        except ValueError as e:
            return Missing(Reason.UNPARSABLE, str(e))

    return (
        LinkState(speed(gpu.pcie_gen_current), _width(gpu.pcie_width_current)),
        LinkState(speed(gpu.pcie_gen_max), _width(gpu.pcie_width_max)),
    )


def rests(device: PciDevice | None, nvml: NvmlGpu | None) -> bool:
    """Tell whether a device is at rest, so that a low link speed is no sign of a fault."""
    if device is not None and (device.runtime_status == "suspended" or device.power_state in ("D3hot", "D3cold")):
        return True
    if nvml is None:
        return False
    state, reasons = nvml.performance_state, nvml.clock_event_reasons
    if not isinstance(state, Missing):
        return state > IDLE_STATE
    return not isinstance(reasons, Missing) and bool(reasons & _REASON_GPU_IDLE)


def _switch_kind(device: PciDevice) -> str | None:
    vendor, ident, sub = device.vendor_id, device.device_id, device.subsystem_device_id
    if isinstance(vendor, Missing) or isinstance(ident, Missing):
        return None
    return products.switch_kind(vendor, ident, None if isinstance(sub, Missing) else sub)


def is_emulated(device: PciDevice) -> bool:
    """Tell whether a function is a hypervisor's invention, so that its link says nothing about hardware."""
    return _switch_kind(device) == "emulated"


def is_made_up(device: PciDevice, now: LinkState) -> bool:
    """Tell whether a link reads as a strap value: the outer level of a two-level switch that claims gen 1 or 2.

    A public NCCL dump of a healthy H100 machine has all its outer ports at 5.0 GT/s x16, 8 GB/s, where its owner
    requires 52 GB/s of the GPUs below (oracle-quickstart/oci-hpc samples/gpu/H100-topology.xml).
    """
    return _switch_kind(device) == "two_level_outer" and (generation(now.speed_gt_s) or 9) <= 2


def negotiated(lower: PciDevice, upstream: PciDevice | None, gpu: NvmlGpu | None = None) -> tuple[LinkState, LinkState]:
    """Return what a link negotiated, and what both its ends can do; arguments as for `pcie_hop`."""
    now, most = current(lower), maximum(lower)
    if gpu is not None and isinstance(now.rate(), Missing):
        now, most = from_nvml(gpu)
    if upstream is not None and not is_emulated(upstream):
        most = _smaller(most, maximum(upstream))
        if isinstance(now.rate(), Missing):
            now = current(upstream)
    return now, most


def pcie_hop(
    lower: PciDevice,
    upstream: PciDevice | None,
    *,
    gpu: NvmlGpu | None = None,
    driverless_gpu: bool = False,
    formal: bool = False,
) -> Hop:
    """Return the hop of the link between a function and the port above it.

    Args:
        lower: endpoint or upstream port.
        upstream: the port above; None on a root bus. An emulated port has no say.
        gpu: NVML's view where `lower` is a GPU, for its link and for whether it rests.
        driverless_gpu: `lower` is a GPU that no driver drives, which may rest without saying so.
        formal: the link is known to stand in for another path.
    """
    now, most = negotiated(lower, upstream, gpu)
    formal = formal or is_emulated(lower) or is_made_up(lower, now)
    slow = (
        not isinstance(now.speed_gt_s, Missing)
        and not isinstance(most.speed_gt_s, Missing)
        and now.speed_gt_s < most.speed_gt_s
    )
    idle = slow and (rests(lower, gpu) or driverless_gpu)
    text, shown = now.text(), now
    if formal:
        text = f"{text}, a formality"
    elif idle:
        shown = most
        text = f"{most.text()}, idle at gen {generation(now.speed_gt_s)}"
    return Hop(
        kind=HopKind.PCIE,
        address=lower.address,
        upstream=upstream.address if upstream is not None else None,
        gb_s=now.rate(),
        attainable_gb_s=most.rate(),
        text=text,
        generation=generation(shown.speed_gt_s),
        idle=idle,
        formal=formal,
    )
