"""A policy from a healthy node: what it has now becomes what it must have."""

from __future__ import annotations

from topocheck.gpudirect.types import GpuDirect
from topocheck.model.base import Verdict, known
from topocheck.model.net import port_kind
from topocheck.model.node import Node
from topocheck.topology.types import Topology


def expectations(
    node: Node, topology: Topology, gpudirect: GpuDirect
) -> dict[str, str | int | float | bool | dict[str, float]]:
    """Return the `expect` table of a node, field -> value; only what could be determined is expected."""
    out: dict[str, str | int | float | bool | dict[str, float]] = {}
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
        rates = _rates(topology)
        if len(rates) == 1 and None not in rates.values():
            out["nic_rate_gbit_s"] = next(r for r in rates.values() if r is not None)
        elif by_kind := {kind: r for kind, r in sorted(rates.items()) if r is not None}:
            out["nic_rates_gbit_s"] = by_kind
        pairs = sum(v.verdict is Verdict.YES for v in gpudirect.rdma)
        if pairs:
            out["gdr_pairs"] = pairs
    for name in ("pcie_gen", "pcie_width"):
        told = [v for g in gpus if g.nvml is not None and known(v := getattr(g.nvml, f"{name}_max"))]
        if told and len(told) == len(gpus):
            out[name] = min(told)
    return out


def _rates(topology: Topology) -> dict[str, float | None]:
    """Return the least rate of each kind of port; None where one is down or untold: nothing true can be said then."""
    out: dict[str, float | None] = {}
    for n in topology.nics:
        for p in n.rdma.ports if n.rdma else ():
            assert n.rdma is not None
            kind = port_kind(n.rdma, p)
            rate = p.rate_gbit_s if p.state == "ACTIVE" and known(p.rate_gbit_s) else None
            least = out.get(kind, rate)
            out[kind] = None if rate is None or least is None else min(rate, least)
    return out
