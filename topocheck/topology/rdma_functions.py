"""PCI functions that should bring an RDMA device and have none: the RDMA half of their driver is not there."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from topocheck.knowledge.products import rdma_half
from topocheck.model.address import address_key
from topocheck.model.base import Missing, known
from topocheck.model.net import RdmaDevice
from topocheck.model.pci import PciDevice

INFINIBAND_CLASS = 0x0207
"""InfiniBand controller (PCI Code and ID Assignment Specification 1.11, 1.3)."""
_AMAZON, _EFA_IDS = 0x1D0F, range(0xEFA0, 0xEFA9)
"""Elastic Fabric Adapters: Linux drivers/infiniband/hw/efa/efa_main.c."""


def is_rdma_only(device: PciDevice) -> bool:
    """Tell whether a function serves RDMA and nothing else: an InfiniBand controller, or an EFA."""
    efa = device.vendor_id == _AMAZON and device.device_id in _EFA_IDS
    return device.base_class == INFINIBAND_CLASS or efa


def rdma_module(device: PciDevice) -> str | None:
    """Return the kernel module that makes RDMA devices of a function (`mlx5_ib`), or None where it is not known."""
    found = rdma_half(device.driver) if isinstance(device.driver, str) else None
    if found is None and device.vendor_id == _AMAZON and device.device_id in _EFA_IDS:
        return "efa"
    return found


def without_device(
    devices: Iterable[PciDevice], rdma: tuple[RdmaDevice, ...] | Missing, others: Collection[str]
) -> tuple[str, ...]:
    """Return the addresses of functions that could have an RDMA device and have none, in their order.

    Args:
        devices: the PCI functions.
        rdma: the RDMA devices; all functions are returned where they are not known.
        others: functions that serve something else, such as the management of NVSwitches.

    Left out are those given to guests, virtual functions, and functions of a card of which another has a device: a
    bond of ports is one RDMA device.
    """
    cards = {d.address.rpartition(".")[0] for d in rdma if isinstance(d.address, str)} if known(rdma) else set()
    return tuple(
        sorted(
            (
                d.address
                for d in devices
                if (is_rdma_only(d) or rdma_module(d) is not None)
                and d.address not in others
                and d.address.rpartition(".")[0] not in cards
                and d.driver not in ("vfio-pci", "pci-stub")
                and d.config_all_ones is not True
                and not known(d.physfn)
            ),
            key=address_key,
        )
    )
