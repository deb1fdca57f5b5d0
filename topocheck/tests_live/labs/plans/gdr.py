"""GPUDirect RDMA on and off in a training step: the settings, and where there is nothing to switch."""

from __future__ import annotations

import msgspec

from topocheck.model.base import Missing
from topocheck.model.node import Node
from topocheck.tests_live.launch.training_job import TrainRow
from topocheck.tests_live.training.report_types import JobLayout
from topocheck.topology.types import Topology

SETTINGS: dict[str, dict[str, str]] = {"on": {"NCCL_NET_GDR_LEVEL": "SYS"}, "off": {"NCCL_NET_GDR_LEVEL": "LOC"}}
"""NCCL's user guide, NCCL_NET_GDR_LEVEL: LOC never uses GPUDirect RDMA, SYS always does where it is available."""


def why_not(job: JobLayout, node: Node, topology: Topology) -> str:
    """Return why GPUDirect RDMA cannot be switched on and off here; the empty text where it can."""
    if not job.gpus:
        return "no GPU is used here"
    if not topology.nics:
        untold = topology.nics_untold
        if isinstance(untold, Missing):
            return f"RDMA NICs are not known here ({untold.detail or untold.reason.value})"
        return "no RDMA NIC on this node"
    if job.nodes < 2:
        return "takes part between servers only, and all ranks are on one"
    return ""


def rows_of(rows: tuple[TrainRow, ...], setting: str) -> tuple[TrainRow, ...]:
    """Return NCCL's steps at most ranks once more, for a setting."""
    mine = [r for r in rows if r.backend == "nccl"]
    most = max((r.ranks for r in mine), default=0)
    return tuple(msgspec.structs.replace(r, id=f"{r.id}:gdr {setting}") for r in mine if r.ranks == most > 1)
