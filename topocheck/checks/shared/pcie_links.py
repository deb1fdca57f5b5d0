"""The PCIe links that GPUs and NICs use, each once, with what is needed to judge it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from topocheck.checks.registry import Context, once
from topocheck.checks.shared.common import ends, is_guest, pci_devices
from topocheck.knowledge.products import TWO_LEVEL, switch_kind
from topocheck.model.base import ABSENT, Evidence, Missing, known
from topocheck.model.gpu import NvmlGpu
from topocheck.model.pci import PciDevice
from topocheck.topology.inventory import rests_suspended
from topocheck.topology.links import LinkState, current, from_nvml, is_emulated, maximum, pcie_hop
from topocheck.topology.paths import joined_to_cpu
from topocheck.topology.tree import Chain, is_host_bridge
from topocheck.topology.types import Gpu, Nic

_MADE_UP_GT_S = 5.0
"""Speed that the outer level of a two-level switch reports without meaning it (topology files of a cloud's HGX
machines say 5.0 GT/s x16 where 50 GB/s are measured: oracle-quickstart/oci-hpc samples/gpu/H100-topology.xml)."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One link and those who use it.

    Attributes:
        lower: endpoint, or upstream port of a switch.
        upper: the port above; None where none is shown.
        users: labels of the GPUs and NICs whose traffic passes.
        own: `lower` is the device itself, not a switch above it.
        now: what was negotiated.
        lower_max, upper_max: what each end can do.
        idle: the device rests and has slowed the link.
        suspended: the device is powered down.
        formal: the numbers stand for nothing.
        both_ends: both ends are real and their abilities known.
        nvml: NVML's view where `lower` is a GPU.
    """

    lower: PciDevice
    upper: PciDevice | None
    users: tuple[str, ...]
    own: bool
    now: LinkState
    lower_max: LinkState
    upper_max: LinkState
    idle: bool
    suspended: bool
    formal: bool
    both_ends: bool
    nvml: NvmlGpu | None = None

    @property
    def where(self) -> str:
        """Return `0000:16:00.0 GPU3` for a device's own link, the address of the switch for another."""
        return f"{self.lower.address} {self.users[0]}" if self.own else f"{self.lower.address} (switch)"

    @property
    def name(self) -> str:
        """Return `GPU3`, or `switch 0000:16:00.0`: short, since the column of a scheduler's reason is."""
        return self.users[0] if self.own else f"switch {self.lower.address}"

    @property
    def between(self) -> str:
        """Return the two ends in words."""
        return f"{self.lower.address} and {self.upper.address if self.upper else 'a port that is not shown'}"

    def rest_untold(self) -> bool:
        """Tell whether only NVML speaks of the link and does not say if the GPU rests: its speed tells nothing then."""
        alone = self.upper is None and self.nvml is not None and isinstance(self.lower.class_code, Missing)
        return alone and self.nvml is not None and isinstance(self.nvml.performance_state, Missing)

    def width_limit(self) -> int | None:
        """Return the lanes that both ends have, or None where no end says."""
        found = [w for w in (self.lower_max.width_lanes, self.upper_max.width_lanes) if not isinstance(w, Missing)]
        return min(found, default=None)

    def speed_limit(self) -> float | None:
        """Return the GT/s that both ends can do, or None where no end says."""
        found = [s for s in (self.lower_max.speed_gt_s, self.upper_max.speed_gt_s) if not isinstance(s, Missing)]
        return min(found, default=None)

    def evidence(self, what: str) -> tuple[Evidence, ...]:
        """Quote both ends; `what` is `width` or `speed`."""
        names = (f"current_link_{what}", f"max_link_{what}")
        out = self.lower.evidence(*names)
        if not out and self.nvml is not None:
            word = "Width" if what == "width" else "Generation"
            out = self.nvml.evidence(f"DeviceGetCurrPcieLink{word}", f"DeviceGetMaxPcieLink{word}")
        if self.upper is not None:
            out += self.upper.evidence(*names)
        return out


@once
def links(context: Context) -> tuple[Link, ...]:
    """Return every link from a GPU or NIC up to its root port, each once, in the order of devices."""
    devices = pci_devices(context)
    places = context.topology.chains
    users: dict[str, list[str]] = {}
    devices_by: dict[str, Gpu | Nic] = {}
    for device in ends(context):
        chain = places.get(device.address, ())
        devices_by[device.address] = device
        for element in reversed(chain or (device.address,)):
            role = context.topology.tree[element].role if element in context.topology.tree else "endpoint"
            if element != device.address and element in devices and isinstance(devices[element].class_code, Missing):
                continue  # a port or a switch: which of its links is its own is not known
            if element == device.address or role in ("upstream_port", "bridge"):
                users.setdefault(element, []).append(device.label)
    guest = is_guest(context)
    fastest = _fastest_below(users, devices, places)
    out = []
    for address, labels in users.items():
        end = devices_by.get(address)
        lower = devices.get(address)
        if lower is None and isinstance(end, Gpu) and end.nvml is not None:
            lower = PciDevice(address=address)  # only NVML speaks of it: given texts without the PCI functions
        if lower is None or known(lower.physfn):
            continue
        chain = places.get(address, ())
        above = chain[-2] if len(chain) > 1 and not is_host_bridge(chain[-2]) else None
        port = devices.get(above) if above else None
        out.append(_link(lower, port, tuple(labels), end, guest, fastest.get(address, 0.0)))
    return tuple(out)


def _fastest_below(
    users: Iterable[str], devices: Mapping[str, PciDevice], places: Mapping[str, Chain]
) -> dict[str, float]:
    """Return GT/s of the fastest of some links below each element of the tree."""
    out: dict[str, float] = {}
    for address in users:
        device = devices.get(address)
        speed = current(device).speed_gt_s if device is not None else ABSENT
        if isinstance(speed, Missing):
            continue
        for element in places.get(address, ())[:-1]:
            out[element] = max(speed, out.get(element, 0.0))
    return out


def _link(
    lower: PciDevice,
    upper: PciDevice | None,
    users: tuple[str, ...],
    end: Gpu | Nic | None,
    guest: bool,
    fastest_below: float,
) -> Link:
    """Return one link; `fastest_below` (GT/s) is the fastest link under a switch, 0 for a device's own."""
    gpu = end if isinstance(end, Gpu) else None
    nvml = gpu.nvml if gpu is not None else None
    placeholder = gpu is not None and joined_to_cpu(gpu)
    hop = pcie_hop(lower, upper, gpu=nvml, driverless_gpu=gpu is not None and nvml is None, formal=placeholder)
    now, lower_max = current(lower), maximum(lower)
    if nvml is not None and isinstance(now.rate(), Missing):
        now, lower_max = from_nvml(nvml)
    real_upper = upper is not None and not guest and not is_emulated(upper)
    upper_max = maximum(upper) if upper is not None and real_upper else LinkState()
    return Link(
        lower=lower,
        upper=upper,
        users=users,
        own=end is not None,
        now=now,
        lower_max=lower_max,
        upper_max=upper_max,
        idle=hop.idle,
        suspended=rests_suspended(lower) or (upper is not None and rests_suspended(upper)),
        formal=placeholder
        or is_emulated(lower)
        or _made_up(lower, now)
        or (hop.formal and not _outrun(now, fastest_below)),
        both_ends=real_upper and known(lower_max.rate()) and known(upper_max.rate()),
        nvml=nvml,
    )


def _outrun(now: LinkState, fastest_below: float) -> bool:
    """Tell whether links under a switch run faster than its own: it does not rest then, and gen 1 is no strap value."""
    return not isinstance(now.speed_gt_s, Missing) and now.speed_gt_s < fastest_below


def _made_up(lower: PciDevice, now: LinkState) -> bool:
    """Tell whether a link is the outer one of a two-level switch, with the speed that such a one makes up."""
    vendor, device, sub = lower.vendor_id, lower.device_id, lower.subsystem_device_id
    if isinstance(vendor, Missing) or isinstance(device, Missing):
        return False
    kind = switch_kind(vendor, device, 0 if isinstance(sub, Missing) else sub)
    return kind in TWO_LEVEL and now.speed_gt_s == _MADE_UP_GT_S
