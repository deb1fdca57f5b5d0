"""What nodes tell each other while pairs of them are measured, and what comes of it."""

from __future__ import annotations

import msgspec

from topocheck.model.base import Finding
from topocheck.model.document import SCHEMA_VERSION


class NodeHello(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as its first rank describes it.

    Attributes:
        address, port: where its listener takes connections.
        nics: labels of its RDMA devices with an active port, in the order of their PCI addresses.
        gpus: GPUs that torch sees with NCCL; 0 where NCCL cannot be used.
        programs: perftest's programs that are installed.
    """

    node: str
    rank: int
    host: str
    address: str
    port: int
    nics: tuple[str, ...] = ()
    gpus: int = 0
    programs: tuple[str, ...] = ()


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One pair to measure in one way.

    Attributes:
        a, b: nodes; `a` connects and sends first.
        way: tcp, gloo, nccl_tcp, nccl_rdma, nccl_gdr, ib_write_bw or ib_write_lat.
        rail: label of the NIC on both nodes; empty for whatever the system chooses.
        phase: `pairs` (no other pair shares a node), `again` or `together` (all pairs at once).
        seconds: of each direction.
    """

    id: str
    a: str
    b: str
    way: str = "tcp"
    rail: str = ""
    phase: str = "pairs"
    seconds: float = 1.0


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What all nodes do next; a round without tasks is the end."""

    number: int
    tasks: tuple[Task, ...] = ()
    limit_s: float = 30.0


class Half(msgspec.Struct, frozen=True, kw_only=True):
    """What one node says of a task: what it received, or what it sent where only the sender's program tells."""

    task: str
    received_gb_s: float | None = None
    sent_gb_s: float | None = None
    samples: tuple[float, ...] = ()
    spread: float = 0.0
    latency_us: float | None = None
    error: str = ""


class PairRate(msgspec.Struct, frozen=True, kw_only=True):
    """One pair, measured one way. Rates are GB/s in one direction; None where there is none, and `error` says why."""

    a: str
    b: str
    way: str = "tcp"
    rail: str = ""
    phase: str = "pairs"
    a_to_b_gb_s: float | None = None
    b_to_a_gb_s: float | None = None
    latency_us: float | None = None
    spread: float = 0.0
    error: str = ""


class NodeRate(msgspec.Struct, frozen=True, kw_only=True):
    """The medians of one node over its pairs; `together` is the sum over its peers when all pairs run at once."""

    node: str
    sends_gb_s: float | None = None
    receives_gb_s: float | None = None
    together_sends_gb_s: float | None = None
    together_receives_gb_s: float | None = None


class RailRate(msgspec.Struct, frozen=True, kw_only=True):
    """The median over all pairs on one rail."""

    rail: str
    way: str
    median_gb_s: float
    slowest_gb_s: float
    slowest_pair: str


class NodePairsReport(msgspec.Struct, frozen=True, kw_only=True):
    """A tournament of nodes and what it amounts to; `topocheck bw --pairs nodes --format json` prints it.

    Attributes:
        silent: node or rank that did not answer -> what it did last.
        not_tried: way that was asked for -> why it was not tried.
    """

    schema_version: str = SCHEMA_VERSION
    taken_at: str = ""
    launcher: str = ""
    nodes: tuple[NodeHello, ...] = ()
    silent: dict[str, str] = {}
    not_tried: dict[str, str] = {}
    rounds: int = 0
    method: str = ""
    pairs: tuple[PairRate, ...] = ()
    medians: tuple[NodeRate, ...] = ()
    rails: tuple[RailRate, ...] = ()
    gains: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    wall_s: float = 0.0
