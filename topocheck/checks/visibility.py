"""What was not shown to us although it must be there: judged by the facts, whatever the probes say of themselves."""

from __future__ import annotations

from topocheck.model.base import Missing, Reason, is_lost, known
from topocheck.model.node import Node
from topocheck.model.pci import PciDevice
from topocheck.topology.inventory import NVIDIA, by_address, is_nvidia_gpu


def pci_hidden(node: Node) -> str | None:
    """Return why the PCI tree, or the GPUs in it, could not be seen; None where all that is known of is there.

    A machine may truly have no PCI (some Arm boards, some guests): an absent /sys/bus/pci is believed where no GPU
    is known of and the rest of /sys answers. A GPU that NVML calls lost may have left the bus, and is not hidden.
    """
    devices = node.pci.devices
    if isinstance(devices, Missing) and devices.reason is not Reason.ABSENT:
        return f"/sys/bus/pci/devices: {devices}"
    there = by_address(node)
    gpus = () if isinstance(node.nvml.gpus, Missing) else tuple(g for g in node.nvml.gpus if not g.lost)
    lost = () if isinstance(node.nvml.gpus, Missing) else tuple(g.address for g in node.nvml.gpus if g.lost)
    if gpus and not there:
        return f"NVML lists {_gpus(len(gpus))}, and /sys/bus/pci/devices shows nothing"
    unseen = [g.address for g in gpus if isinstance(g.address, str) and g.address not in there]
    if unseen:
        return f"NVML lists {unseen[0]}, and /sys/bus/pci/devices does not show it"
    named = [a for a in (*node.system.nvidia_gpu_minors, *node.system.nvidia_gpus_excluded) if a not in lost]
    unseen = sorted(a for a in named if a not in there)
    if unseen:
        return f"/proc/driver/nvidia/gpus lists {unseen[0]}, and /sys/bus/pci/devices does not show it"
    if isinstance(devices, Missing) and all(_absent(x) for x in (node.numa.online_cpus, node.numa.nodes)):
        return "/sys shows neither PCI nor CPUs, which every Linux has"
    return None


def driver_loaded(node: Node) -> bool:
    """Tell whether NVIDIA's kernel module is loaded, by any of its signs: /proc/modules and /sys/module may be masked.

    A GPU is bound to a driver only while that is loaded.
    """
    system = node.system
    bound = any(is_nvidia_gpu(d) and d.driver == "nvidia" for d in by_address(node).values())
    named = "nvidia" in system.modules or "nvidia" in system.loaded_modules
    return bound or named or known(system.nvidia_module_version)


def nvml_silent(node: Node) -> str | None:
    """Return why NVML tells nothing although NVIDIA's driver is loaded; None where it tells, or there is no driver."""
    gpus = node.nvml.gpus
    if not driver_loaded(node):
        return None
    if isinstance(gpus, Missing):
        return node.nvml.error or str(gpus)
    # Addresses may come from the driver's files, and a GPU that is called lost was asked and answered for.
    if gpus and not any(g.lost or known(g.uuid) or known(g.name) or known(g.memory_total_bytes) for g in gpus):
        return f"it counts {_gpus(len(gpus))} and reports nothing about any: {gpus[0].uuid}"
    return None


_NOT_GIVEN = "not in the given files"


def tree_untold(node: Node) -> str | None:
    """Return why texts hold no PCI tree; None where they do."""
    devices = node.pci.devices
    return _NOT_GIVEN if node.made_from is not None and isinstance(devices, Missing) and is_lost(devices) else None


def driver_untold(node: Node) -> str | None:
    """Return why texts leave open what NVIDIA's driver says of the GPUs; None where they tell, or name no such GPU.

    Of this machine the driver is known to be loaded or not. Texts of other programs rarely tell, and a GPU that
    nobody asked is not healthy.
    """
    gpus, devices = node.nvml.gpus, node.pci.devices
    if node.made_from is None or not isinstance(gpus, Missing):
        return None
    if isinstance(devices, Missing) or any(_may_be_nvidia_gpu(d) for d in by_address(node).values()):
        return _NOT_GIVEN
    return None


def _may_be_nvidia_gpu(device: PciDevice) -> bool:
    """Tell whether a function is an NVIDIA GPU, or may be one: `lspci -t` draws functions without their class."""
    if device.base_class is None:
        return isinstance(device.vendor_id, Missing) or device.vendor_id == NVIDIA
    return is_nvidia_gpu(device)


def _gpus(number: int) -> str:
    return f"{number} GPU{'' if number == 1 else 's'}"


def _absent(value: object) -> bool:
    return isinstance(value, Missing) and value.reason is Reason.ABSENT
