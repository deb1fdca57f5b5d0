"""What nodes tell each other while pairs of them are measured, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from topocheck.bandwidth.scatter import PairMeasured
from topocheck.bandwidth.stats import median
from topocheck.model.base import Finding
from topocheck.model.bounded import Address, Count, Device, Name, Port, Positive, Seconds, Text
from topocheck.model.version import SCHEMA_VERSION


class NodeHello(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as its first rank describes it.

    Attributes:
        address, port: where its listener takes connections.
        nics: labels of its RDMA devices with an active port, in the order of their PCI addresses.
        gpus: GPUs that torch sees with NCCL; 0 where NCCL cannot be used.
        programs: perftest's programs that are installed.
    """

    node: Name
    rank: Count
    host: Name
    address: Address
    port: Port
    nics: Annotated[tuple[Device, ...], msgspec.Meta(max_length=1024)] = ()
    gpus: Count = 0
    programs: Annotated[tuple[Device, ...], msgspec.Meta(max_length=64)] = ()


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One pair to measure over one transport.

    Attributes:
        a, b: nodes; `a` connects and sends first.
        transport: tcp, gloo, nccl_tcp, nccl_rdma, nccl_gdr, ib_write_bw or ib_write_lat.
        rail: label of the NIC on both nodes; empty for whatever the system chooses.
        phase: `pairs` (no other pair shares a node), `again` (a suspected pair) or `together` (all pairs at once).
        seconds: of each direction.
    """

    id: Text
    a: Name
    b: Name
    transport: Device = "tcp"
    rail: Device = ""
    phase: Device = "pairs"
    seconds: Seconds = 1.0


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What all nodes do next; a round without tasks is the end."""

    number: Count
    tasks: Annotated[tuple[Task, ...], msgspec.Meta(max_length=1 << 20)] = ()
    limit_s: Seconds = 30.0


class Half(msgspec.Struct, frozen=True, kw_only=True):
    """What one node says of a task: what it received, or what it sent where only the sender's program tells.

    Attributes:
        busy: share of the node's CPU time that other processes took during the round; None where that is not known.
    """

    task: Text
    received_gb_s: Positive | None = None
    sent_gb_s: Positive | None = None
    samples: Annotated[tuple[Positive, ...], msgspec.Meta(max_length=1024)] = ()
    spread: Positive = 0.0
    latency_us: Positive | None = None
    busy: Positive | None = None
    error: Text = ""


class PairRate(msgspec.Struct, frozen=True, kw_only=True):
    """One pair over one transport. Rates are GB/s in one direction; None where there is none, and `error` says why.

    Attributes:
        spread: interquartile range of the samples over their median, of the direction where it is larger.
        a_busy, b_busy: share of the node's CPU time that other processes took meanwhile.
    """

    a: str
    b: str
    transport: str = "tcp"
    rail: str = ""
    phase: str = "pairs"
    a_to_b_gb_s: float | None = None
    b_to_a_gb_s: float | None = None
    latency_us: float | None = None
    spread: float = 0.0
    a_busy: float | None = None
    b_busy: float | None = None
    error: str = ""


class NodeRate(msgspec.Struct, frozen=True, kw_only=True):
    """The medians of one node over its pairs; `together` is the sum over its peers when all pairs run at once."""

    node: str
    sends_gb_s: float | None = None
    receives_gb_s: float | None = None
    together_sends_gb_s: float | None = None
    together_receives_gb_s: float | None = None


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """What would have been noticed over one transport.

    Attributes:
        usual_gb_s: median of the pairs that nothing slows.
        scatter: standard deviation of their rates as a part of it.
        node_limit, link_limit: share of the usual rate below which one slow direction of a node, or a link, is named in
            at least 9 of 10 runs.
        clear: whether a node at three quarters and a link at half of it would have been.
    """

    transport: str
    rail: str = ""
    usual_gb_s: float
    scatter: float
    node_limit: float
    link_limit: float
    clear: bool
    no_majority: bool = False


class RailRate(msgspec.Struct, frozen=True, kw_only=True):
    """The median over all pairs on one rail."""

    rail: str
    transport: str
    median_gb_s: float
    slowest_gb_s: float
    slowest_pair: str


class LeafNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes below one leaf, by a dump of the fabric.

    Attributes:
        rail: NIC by which; empty for all NICs of a node together.
        leaf: name of the leaf, or of the first of several.
        nodes: of this run.
        uplinks: its links to other switches, as `leaf-1 port 65 - spine-0 port 1`.
    """

    rail: str = ""
    leaf: str
    nodes: tuple[str, ...]
    uplinks: tuple[str, ...] = ()


class NodePairsReport(msgspec.Struct, frozen=True, kw_only=True):
    """A tournament of nodes and what it amounts to; `topocheck network bw --format json` prints it.

    Attributes:
        unresponsive: node or rank that did not answer -> what it did last.
        skipped: transport that was asked for -> why it was not tried.
        ranks_authenticated_by: munge, or where else the secret of the job came from; `none` where nothing shows that
            the ranks belong to it.
        leaves: where the nodes are in the fabric; empty without a dump of it.
    """

    schema_version: str = SCHEMA_VERSION
    taken_at: str = ""
    launcher: str = ""
    ranks_authenticated_by: str = ""
    nodes: tuple[NodeHello, ...] = ()
    unresponsive: dict[str, str] = {}
    skipped: dict[str, str] = {}
    rounds: int = 0
    method: str = ""
    leaves: tuple[LeafNodes, ...] = ()
    pairs: tuple[PairRate, ...] = ()
    medians: tuple[NodeRate, ...] = ()
    resolution: tuple[Resolution, ...] = ()
    rails: tuple[RailRate, ...] = ()
    transport_comparison: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    wall_s: float = 0.0


def measured(
    pairs: list[PairRate] | tuple[PairRate, ...], transport: str, rail: str, unresponsive: frozenset[str]
) -> dict[tuple[str, str], PairMeasured]:
    """Return (sender, receiver) -> what was measured over one transport.

    The rate is the median of all equal measurements. A pair that was suspected and measured again counts only by what
    was measured then: the value by which it was chosen is low by choice. A pair that failed although both its nodes
    answer has rate 0; a pair with an unresponsive node does not count, since that node is named already.
    """
    first: dict[tuple[str, str], list[tuple[float, float]]] = {}
    again: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for p in pairs:
        if p.transport != transport or p.rail != rail or p.phase == "together" or unresponsive & {p.a, p.b}:
            continue
        for ends, rate in (((p.a, p.b), p.a_to_b_gb_s), ((p.b, p.a), p.b_to_a_gb_s)):
            if rate is not None or p.error:
                (again if p.phase == "again" else first).setdefault(ends, []).append((rate or 0.0, p.spread))
    out = {}
    for ends in first | again:
        values = again.get(ends) or first[ends]
        rates = tuple(r for r, _ in values)
        out[ends] = PairMeasured(
            gb_s=median(rates),
            spread=median([s for _, s in values]),
            repeats=() if ends in again else rates,
            again=rates if ends in again else (),
        )
    return out


def leaf_of(leaves: Iterable[LeafNodes], rail: str) -> dict[str, str]:
    """Return node -> leaf, for the pairs of one rail (empty: of whatever NIC the system chooses)."""
    return {n: x.leaf for x in leaves if x.rail == rail for n in x.nodes}


def directed(
    pairs: list[PairRate] | tuple[PairRate, ...], transport: str, rail: str, unresponsive: frozenset[str]
) -> dict[tuple[str, str], float]:
    """Return (sender, receiver) -> GB/s of one transport; see `measured`."""
    return {ends: m.gb_s for ends, m in measured(pairs, transport, rail, unresponsive).items()}
