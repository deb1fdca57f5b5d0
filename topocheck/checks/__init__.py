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
    "nccl_levels",
    "nccl_network",
    "nccl_transports",
    "numa",
    "numa_layout",
    "nvlink",
    "nvlink_fabric",
    "nvlink_peers",
    "p2p",
    "p2p_guest",
    "p2p_way",
    "pcie",
    "pcie_devices",
    "pcie_paths",
    "pcie_setup",
    "policy",
    "rdma",
    "rdma_devices",
    "rdma_gids",
    "rdma_layers",
    "rdma_roads",
)
"""Each is a file of this folder; importing it registers its checks."""


def all_checks() -> tuple[Check, ...]:
    """Return every check there is, by id."""
    for area in AREAS:
        importlib.import_module(f"topocheck.checks.{area}")
    return tuple(CHECKS[i] for i in sorted(CHECKS))
