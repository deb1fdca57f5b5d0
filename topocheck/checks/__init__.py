"""The registry of checks and one file per area."""

from __future__ import annotations

import importlib

from topocheck.checks.registry import CHECKS, Check

AREAS = (
    "consistency",
    "container",
    "devices",
    "driver",
    "limits",
    "nccl",
    "nccl_forced",
    "nccl_hca",
    "nccl_hca_left_out",
    "nccl_levels",
    "nccl_network",
    "nccl_topo_file",
    "nccl_transports",
    "numa",
    "numa_layout",
    "numa_unplaced",
    "nvlink",
    "nvlink_fabric",
    "nvlink_peers",
    "p2p",
    "p2p_guest",
    "p2p_way",
    "pcie",
    "pcie_devices",
    "pcie_missing",
    "pcie_paths",
    "pcie_setup",
    "policy",
    "rdma",
    "rdma_devices",
    "rdma_gids",
    "rdma_layers",
    "rdma_roads",
)
"""Files of this folder with checks of facts; importing one registers its checks."""

LIVE_AREAS = ("bandwidth", "bandwidth_compare")
"""Files with checks of measurements, whose ids begin with `bw.`."""


NODE_AREAS = ("bandwidth_nodes",)
"""Files with checks of measurements between nodes, whose ids begin with `bw.` too."""


def static_checks() -> tuple[Check, ...]:
    """Return the checks of facts, by id: those of `topocheck check` and `report`."""
    return _load(AREAS)


def live_checks() -> tuple[Check, ...]:
    """Return the checks of measurements on one node, by id: those of `topocheck bw`."""
    return _load(LIVE_AREAS)


def all_checks() -> tuple[Check, ...]:
    """Return every check there is, by id."""
    return _load(AREAS + LIVE_AREAS + NODE_AREAS)


def threshold_names() -> dict[str, tuple[str, ...]]:
    """Return the id of every check with the names of its thresholds, as reading a policy takes them."""
    return {c.id: c.thresholds for c in all_checks()}


def _load(areas: tuple[str, ...]) -> tuple[Check, ...]:
    """Return the checks of some files, and of no other file that happens to be imported."""
    modules = {importlib.import_module(f"topocheck.checks.{area}").__name__ for area in areas}
    return tuple(CHECKS[i] for i in sorted(CHECKS) if CHECKS[i].function.__module__ in modules)
