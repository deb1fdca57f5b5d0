"""A sample from the facts of one snapshot, so that two snapshots of a machine show what grew between them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from topocheck.model.base import Missing, known
from topocheck.model.gpu import NvmlGpu
from topocheck.model.net import RdmaDevice
from topocheck.model.node import Node
from topocheck.model.pci import PciDevice
from topocheck.overtime.history import History
from topocheck.overtime.types import (
    Device,
    FunctionReading,
    GpuReading,
    Header,
    NvLinkReading,
    PortReading,
    Reading,
    sample_of,
)

LINK_ERRORS = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout")
"""Correctable errors of the link itself (Linux drivers/pci/pcie/aer.c, aer_correctable_error_string)."""


def history_of(node: Node, devices: tuple[Device, ...], functions: Iterable[str]) -> History:
    """Return one sample with the counters of a snapshot.

    Args:
        node: the facts.
        devices: GPUs and NICs.
        functions: addresses of the PCI functions whose error counters count: theirs and those of the ports above.
    """
    header = Header(
        format="facts of a snapshot",
        version=1,
        topocheck_version="",
        hostname=node.system.hostname if isinstance(node.system.hostname, str) else "",
        begun=node.taken_at,
        begun_unix_s=seconds_of(node.taken_at),
        interval_s=1.0,
        devices=devices,
    )
    wanted = frozenset(functions)
    pci = () if isinstance(node.pci.devices, Missing) else node.pci.devices
    readings: list[Reading] = [_function(d) for d in pci if d.address in wanted]
    for gpu in () if isinstance(node.nvml.gpus, Missing) else node.nvml.gpus:
        readings += _gpu(gpu)
    for device in () if isinstance(node.net.rdma, Missing) else node.net.rdma:
        readings += _ports(device)
    return History(header=header, samples=(sample_of(0.0, readings),))


def seconds_of(taken_at: str) -> float:
    """Return RFC 3339 as seconds since 1970; 0 where it is none."""
    try:
        return datetime.datetime.fromisoformat(taken_at).timestamp()
    except ValueError:
        return 0.0


def _gpu(gpu: NvmlGpu) -> list[Reading]:
    if not isinstance(gpu.address, str):
        return []
    replays = gpu.pcie_replays
    counters = {"pcie_replays": replays} if isinstance(replays, int) else {}
    reading = GpuReading(address=gpu.address, index=gpu.index, lost=gpu.lost, counters=counters)
    return [
        reading,
        *(
            NvLinkReading(address=gpu.address, link=x.link, active=x.active, counters=dict(x.errors))
            for x in gpu.nvlinks
        ),
    ]


def _function(d: PciDevice) -> FunctionReading:
    kinds = {"correctable": d.aer_correctable, "nonfatal": d.aer_nonfatal, "fatal": d.aer_fatal}
    counters = {f"aer_{kind}": value for kind, value in kinds.items() if isinstance(value, int)}
    if "aer_correctable" in counters:
        counters["aer_link_errors"] = sum(d.aer_counters.get(f"correctable {name}", 0) for name in LINK_ERRORS)
    return FunctionReading(
        address=d.address,
        gone=d.config_all_ones is True,
        speed_gt_s=d.current_speed_gt_s,
        width_lanes=d.current_width_lanes,
        counters=counters,
    )


def _ports(device: RdmaDevice) -> list[Reading]:
    return [
        PortReading(
            device=device.name,
            port=p.port,
            state=p.state,
            phys_state=p.phys_state,
            rate_gbit_s=p.rate_gbit_s,
            counters={**p.hw_counters, **p.counters},
        )
        for p in device.ports
        if known(p.state)
    ]
