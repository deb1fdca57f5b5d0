"""What the areas share: how a subject is called, and what of the machine several checks ask."""

from __future__ import annotations

from collections.abc import Iterable

from topocheck.checks.registry import Context, once
from topocheck.model.base import Evidence, Fact, Missing, Reason, is_lost, known
from topocheck.model.pci import PciDevice
from topocheck.topology.inventory import rests_suspended
from topocheck.topology.links import is_emulated
from topocheck.topology.types import Gpu, Nic

_QEMU_HOST_BRIDGES = frozenset({(0x8086, 0x29C0), (0x8086, 0x1237)})
"""Host bridges of the boards q35 and pc (QEMU hw/pci-host/q35.c, i440fx.c): older than any GPU judged here."""
_OF_HYPERVISORS = frozenset({0x1B36, 0x15AD, 0x1414, 0x5853})
"""Vendors whose PCI functions are a hypervisor's: Red Hat (QEMU), VMware, Microsoft (Hyper-V), XenSource; pci.ids."""


def named(device: Gpu | Nic) -> str:
    """Return `0000:3b:00.0 GPU3`, the subject of a finding about a device."""
    return f"{device.address} {device.label}"


def pair(a: Gpu | Nic, b: Gpu | Nic) -> str:
    """Return the subject of a finding about two devices."""
    return f"{named(a)} - {named(b)}"


def is_guest(context: Context) -> bool:
    """Tell whether a hypervisor shows this machine, so that its ports say nothing about hardware.

    Where the answers that would tell were lost it counts as one: no fault is then read from what may be invented. Of
    given texts that do not say so, the tree tells: see `_tree_of_hardware`.
    """
    hypervisor = context.node.system.hypervisor
    if not isinstance(hypervisor, Missing):
        return True
    if hypervisor.reason is Reason.NOT_RECORDED:
        return not _tree_of_hardware(context)
    return is_lost(hypervisor)


def _of_hypervisor(device: PciDevice) -> bool:
    return device.vendor_id in _OF_HYPERVISORS or (device.vendor_id, device.device_id) in _QEMU_HOST_BRIDGES


@once
def _tree_of_hardware(context: Context) -> bool:
    """Tell whether GPUs or NICs stand below PCIe ports, and no function of the machine is an emulated one.

    A hypervisor puts what it passes on either on a flat bus, without a port, or below ports that it emulates.
    """
    devices = pci_devices(context)
    if any(is_emulated(d) or _of_hypervisor(d) for d in devices.values()):
        return False
    above = (e for x in ends(context) for e in context.topology.chains.get(x.address, ())[:-1])
    return any(e in devices and known(devices[e].port_type) for e in above)


def pci_devices(context: Context) -> dict[str, PciDevice]:
    """Return all PCI functions by address."""
    return context.topology.devices


@once
def living(context: Context) -> list[Gpu]:
    """Return the GPUs that still answer on the bus."""
    return [g for g in context.topology.gpus if g.on_bus]


@once
def ends(context: Context) -> list[Gpu | Nic]:
    """Return the GPUs and the NICs that still answer on the bus."""
    return [*living(context), *(n for n in context.topology.nics if not _gone(n.pci))]


def _gone(device: PciDevice | None) -> bool:
    """Tell whether nobody answers at a function's address; one that is suspended sleeps."""
    return device is not None and device.config_all_ones is True and not rests_suspended(device)


def given_away(gpu: Gpu) -> bool:
    """Tell whether a GPU is bound to a driver that hands it to a guest."""
    return gpu.pci is not None and isinstance(gpu.pci.driver, str) and gpu.pci.driver in ("vfio-pci", "pci-stub")


def quote(fact: Fact | None, name: str, value: object) -> tuple[Evidence, ...]:
    """Quote a raw answer by its name; where the raw answer was not kept, the value read from it."""
    if fact is None:
        return ()
    found = fact.evidence(name)
    if found:
        return found
    join = "/" if fact.source.startswith("/") else " "
    return (Evidence(f"{fact.source}{join}{name}" if fact.source else name, str(value)),)


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return names with commas; those beyond `most` as a number."""
    every = list(names)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")


_WORDS = {
    3 / 4: "three quarters of",
    1 / 2: "half",
    1 / 4: "a quarter of",
    1 / 8: "an eighth of",
    1 / 16: "a sixteenth of",
}
_NEAR = 0.01
"""8b/10b and 128b/130b make 5 GT/s 0.254 of 16 GT/s."""


def share(now: float, most: float) -> str:
    """Return how much of `most` is left, in words: `half`, `a quarter of`, `38 % of`."""
    left = now / most
    word = next((w for ratio, w in _WORDS.items() if abs(ratio - left) < _NEAR), None)
    return word or f"{100 * left:.0f} % of"
