"""Lab `bounds`: the node's own graph, and what any algorithm needs on it."""

from __future__ import annotations

from fractions import Fraction

from topocheck.bandwidth import lower_bounds
from topocheck.bandwidth.lab_catalogue import BY_NAME
from topocheck.model.base import Missing
from topocheck.model.lab import LabLine, LabTable
from topocheck.model.units import size_text
from topocheck.tests_live.labs.plans.common import MIB, Filled, LabOptions
from topocheck.topology.types import HopKind, Topology

ALPHA_S = 0.7e-6
"""Seconds of one step over NVLink: A. Shah et al., "TACCL" (NSDI 2023), table of profiled links."""
DEFAULT_BYTES = 256 * MIB
WIDE = 1e5
"""GB/s of what joins host bridges, whose rate cannot be read: never the narrowest."""


def network_of(topology: Topology) -> lower_bounds.Network | str:
    """Return the graph of a node's GPUs, or why there is none.

    NVLinks alone where they join all GPUs, as NCCL uses them; PCIe as well where they do not.
    """
    gpus = [g for g in topology.gpus if g.on_bus]
    if len(gpus) < 2:
        return "fewer than two GPUs on this node"
    number = {g.address: i for i, g in enumerate(gpus)}
    pairs: dict[tuple[lower_bounds.Vertex, lower_bounds.Vertex], float] = {}
    switched = [frozenset(g.gpus) for g in topology.nvlink_groups if g.kind == "switch"]
    for a in number:
        for b in number:
            path = topology.find_path(a, b) if a != b else None
            if path is None or not path.nvlinks:
                continue
            rate = next((h.gb_s for h in path.hops if h.kind is HopKind.NVLINK), None)
            if not isinstance(rate, float | int):
                return f"the rate of the NVLinks of {topology.label(a)} is not known"
            group = next((i for i, s in enumerate(switched) if {a, b} <= s), None)
            if group is not None:
                key = (number[a], f"NVSwitch {group}")
                pairs[key] = max(pairs.get(key, 0.0), float(rate))
            elif number[a] < number[b]:
                pairs[number[a], number[b]] = float(rate)
    groups = [frozenset(number[a] for a in g.gpus if a in number) for g in topology.nvlink_groups]
    if pairs:
        network = lower_bounds.joined(pairs, len(gpus), groups)
        if lower_bounds.diameter(network) is not None:
            return network
    if topology.flat_tree:
        return "the hypervisor shows an emulated flat PCIe tree, so the graph of the GPUs is not known"
    for address, i in number.items():
        way = _up(topology, address, i)
        if not way:
            return f"the links of {topology.label(address)} to its host are not known"
        pairs |= way
    return lower_bounds.joined(pairs, len(gpus), groups)


def _up(topology: Topology, address: str, number: int) -> dict[tuple[lower_bounds.Vertex, lower_bounds.Vertex], float]:
    """Return the links from a GPU up to its host with the rates at which they work; none where none is known."""
    path, chain = topology.host_paths.get(address), topology.chains.get(address, ())
    out: dict[tuple[lower_bounds.Vertex, lower_bounds.Vertex], float] = {}
    at: lower_bounds.Vertex = number
    for hop in path.hops if path is not None else ():
        rate = hop.working_gb_s
        if isinstance(rate, Missing):
            continue
        if at != number:
            out[at, hop.address] = WIDE  # inside a switch
        upper = hop.upstream or "host"
        out[number if at == number else hop.address, upper] = rate
        at = upper
    if out and at != "host":
        bridge = chain[0] if chain else "host"
        out[at, bridge] = WIDE
        if bridge != "host":
            out[bridge, "host"] = WIDE
    return out


def fill(topology: Topology, options: LabOptions) -> Filled:
    """Return the table, of one size."""
    spec = BY_NAME["bounds"].table("bounds")
    size = (options.sizes or (DEFAULT_BYTES,))[0]
    network = network_of(topology)
    if isinstance(network, str):
        return Filled(tables=(LabTable(spec=spec, notes=(f"no bounds: {network}",)),))
    return Filled(tables=(table(network, size),))


def table(network: lower_bounds.Network, size: int) -> LabTable:
    """Return the bounds of a graph beside ring and tree, for `size` bytes of each rank."""
    spec = BY_NAME["bounds"].table("bounds")
    n = network.ranks
    width = min(network.width_out(r) for r in range(n))
    rows: list[LabLine] = []
    for bound in lower_bounds.bounds(network):
        ring = lower_bounds.ring(bound.collective, n, width)
        tree = lower_bounds.tree(bound.collective, n, width)
        rows.append(
            spec.row(
                f"limited by {bound.limited_by}",
                collective=bound.collective,
                steps=bound.steps,
                rounds=_text(bound.rounds_per_chunk),
                time_us=lower_bounds.seconds(bound, size, ALPHA_S, network.unit_gb_s) * 1e6,
                ring=f"{ring[0]}, {_text(ring[1])}",
                ring_us=_us(network, ring, size),
                tree=f"{tree[0]}, {_text(tree[1])}" if tree else None,
                tree_us=_us(network, tree, size) if tree else None,
            )
        )
    notes = (
        f"{n} GPUs; widths in units of the narrowest link, {network.unit_gb_s:.4g} GB/s in one direction; "
        f"L = {size_text(size)} of each rank, alpha = {ALPHA_S * 1e6:g} us a step (TACCL, NSDI 2023)",
        "no reduction in switches is assumed: NVLink SHARP may be faster",
    )
    return LabTable(spec=spec, rows=tuple(rows), notes=notes)


def _us(network: lower_bounds.Network, way: tuple[int, Fraction], size: int) -> float:
    return (way[0] * ALPHA_S + float(way[1]) * size / (network.unit_gb_s * 1e9)) * 1e6


def _text(value: Fraction) -> str:
    return str(value) if value.denominator < 1000 else f"{float(value):.4g}"
