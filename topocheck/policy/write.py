"""Writing a policy from a healthy node: what it has now becomes what it must have."""

from __future__ import annotations

import json

from topocheck.gpudirect.types import GpuDirect
from topocheck.model.base import Verdict, known
from topocheck.model.node import Node
from topocheck.topology.types import Topology


def policy_toml(node: Node, topology: Topology, gpudirect: GpuDirect) -> str:
    """Return a policy in TOML that expects what this node has; only what could be told is expected."""
    lines = [
        f"# What this kind of node must have, taken from {node.source} at {node.taken_at or 'an unknown time'}.",
        "# Delete what may differ. All settings: docs/policy.md.",
        "",
        "[expect]",
    ]
    lines += [f"{name} = {json.dumps(value)}" for name, value in expectations(node, topology, gpudirect).items()]
    return "\n".join(lines) + "\n"


def expectations(node: Node, topology: Topology, gpudirect: GpuDirect) -> dict[str, str | int | float | bool]:
    """Return the `expect` table of a node, field -> value."""
    out: dict[str, str | int | float | bool] = {}
    gpus = topology.gpus
    models = {g.name for g in gpus if known(g.name)}
    if gpus:
        out["gpu_count"] = len(gpus)
        if len(models) == 1:
            out["gpu_model"] = models.pop()
        links = [sum(k.active is True for k in g.nvml.nvlinks) for g in gpus if g.nvml is not None and g.on_bus]
        if links and min(links) > 0:
            out["nvlinks_per_gpu"] = min(links)
    if known(node.nvml.driver_version) and gpus:
        out["driver_version"] = node.nvml.driver_version
    if len(gpus) > 1:
        out["p2p_everywhere"] = bool(gpudirect.p2p) and all(v.verdict is Verdict.YES for v in gpudirect.p2p)
    if topology.nics:
        out["nic_count"] = len(topology.nics)
        ports = [p for n in topology.nics for p in (n.rdma.ports if n.rdma else ())]
        rates = [p.rate_gbit_s for p in ports if p.state == "ACTIVE" and known(p.rate_gbit_s)]
        # The setting speaks of every port: where one is down, nothing true can be written.
        if rates and len(rates) == len(ports):
            out["nic_rate_gbit_s"] = min(rates)
        pairs = sum(v.verdict is Verdict.YES for v in gpudirect.rdma)
        if pairs:
            out["gdr_pairs"] = pairs
    for name in ("pcie_gen", "pcie_width"):
        told = [v for g in gpus if g.nvml is not None and known(v := getattr(g.nvml, f"{name}_max"))]
        if told and len(told) == len(gpus):
            out[name] = min(told)
    return out
