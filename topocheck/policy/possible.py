"""Whether a policy asks for more than the links of a node can carry."""

from __future__ import annotations

from topocheck.model.base import known
from topocheck.policy.types import Policy
from topocheck.topology.types import HopKind, Topology

NVLS_GAIN = 2.0
"""In-switch reduction at most doubles busbw over the links' rate (a GPU sends (n+1)/n of the data, not 2(n-1)/n)."""


def impossible(policy: Policy, topology: Topology) -> list[str]:
    """Return a sentence for each floor of `expect` that no healthy node of this wiring could reach."""
    expect = policy.expect
    problems = []
    pcie = _best_pcie_gb_s(topology)
    if expect.min_h2d_gb_s is not None and pcie is not None and expect.min_h2d_gb_s > pcie:
        problems.append(
            f"expect.min_h2d_gb_s = {expect.min_h2d_gb_s:g}: no GPU's PCIe link here carries more than {pcie:.1f} GB/s"
        )
    gpus = {g.address for g in topology.gpus}
    rates = [
        p.theoretical_gb_s for p in topology.paths if p.to in gpus and p.from_ in gpus and known(p.theoretical_gb_s)
    ]
    if rates:
        best = max(rates)
        if expect.min_p2p_gb_s is not None and expect.min_p2p_gb_s > best:
            problems.append(
                f"expect.min_p2p_gb_s = {expect.min_p2p_gb_s:g}: "
                f"the best path between two GPUs here carries {best:.1f} GB/s"
            )
        if expect.min_busbw_gb_s is not None and expect.min_busbw_gb_s > best * NVLS_GAIN:
            problems.append(
                f"expect.min_busbw_gb_s = {expect.min_busbw_gb_s:g}: the links of a GPU carry {best:.1f} GB/s, "
                f"and in-switch reduction at most doubles busbw"
            )
    return problems


def _best_pcie_gb_s(topology: Topology) -> float | None:
    gpus = {g.address for g in topology.gpus}
    rates = [
        h.attainable_gb_s
        for p in topology.paths
        for h in p.hops
        if h.kind is HopKind.PCIE and h.address in gpus and known(h.attainable_gb_s)
    ]
    rates += [n.link_gb_s for a in gpus if (n := topology.tree.get(a)) is not None and known(n.link_gb_s)]
    return max(rates, default=None)
