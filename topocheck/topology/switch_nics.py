"""ConnectX functions by which the subnet manager NVLSM reaches the NVSwitches of an HGX B200 or B300.

Its switches are not on the PCI bus; two ConnectX-7 cards on the baseboard, of two functions each, lead to them
(NVIDIA Fabric Manager User Guide, "NVLink Subnet Manager"). They have the ids and the driver of NICs and carry no
traffic of jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topocheck.model.base import known
from topocheck.model.pci import PciDevice
from topocheck.topology.inventory import MELLANOX, nvswitches
from topocheck.topology.paths import product_of
from topocheck.topology.tree import Chain
from topocheck.topology.types import Gpu, TreeNode

_CONNECTX7 = 0x1021
_INFINIBAND_CLASS = 0x0207
"""InfiniBand controller (PCI Code and ID Assignment Specification 1.11, 1.3)."""
_NARROW_LANES = 4
"""A ConnectX-7 for jobs has 16 lanes; those that lead to the switches have 2."""


def lives_behind_hidden_switches(gpu: Gpu) -> bool:
    """Tell whether a GPU is of a board whose NVSwitches are not PCI devices: NVLink 5 on one baseboard (B200, B300)."""
    product = product_of(gpu)
    return product is not None and product.hides_switches


def switch_management(
    gpus: Iterable[Gpu], devices: Mapping[str, PciDevice], places: Mapping[str, Chain], tree: Mapping[str, TreeNode]
) -> frozenset[str]:
    """Return the addresses of the functions that manage NVSwitches.

    Their VPD names them, and root alone may read it. Where it could not be read they are known by what all can read:
    InfiniBand functions of ConnectX-7 with a narrow link, that share no PCIe switch with a GPU, on a board whose
    switches are hidden.
    """
    behind = [g for g in gpus if lives_behind_hidden_switches(g)]
    if not behind or nvswitches(devices.values()):
        return frozenset()
    named = frozenset(a for a, d in devices.items() if d.manages_nvswitch is True)
    near = {e for g in behind for e in places.get(g.address, ())[:-1] if e in tree and tree[e].role == "upstream_port"}
    return named | frozenset(
        a
        for a, d in devices.items()
        if not known(d.manages_nvswitch) and _is_candidate(d) and not near.intersection(places.get(a, ())[:-1])
    )


def _is_candidate(device: PciDevice) -> bool:
    width = device.current_width_lanes
    return (
        device.vendor_id == MELLANOX
        and device.device_id == _CONNECTX7
        and device.base_class == _INFINIBAND_CLASS
        and not known(device.physfn)
        and known(width)
        and 0 < width <= _NARROW_LANES
    )
