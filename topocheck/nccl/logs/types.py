"""What a log of NCCL says."""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_RANKS = 20_000
"""Most ranks that are kept of a log."""


class LogRank(msgspec.Struct, kw_only=True):
    """One rank as its own lines show it; empty or None where no line said it."""

    rank: int
    host: str = ""
    pid: int | None = None
    cuda_dev: int | None = None
    nvml_dev: int | None = None
    bus_id: str = ""


class LogPair(msgspec.Struct, kw_only=True):
    """What two ranks used: transport text (as logged, without channel) -> number of channels."""

    from_rank: int
    to_rank: int
    transports: dict[str, int] = msgspec.field(default_factory=dict)

    def main(self) -> str:
        """Return the transport of most channels."""
        return max(self.transports, key=lambda t: self.transports[t], default="")


class LogWarning(msgspec.Struct, kw_only=True):
    """A warning, with how often it came and where first."""

    text: str
    count: int
    line: int
    host: str = ""


class LogCause(msgspec.Struct, frozen=True, kw_only=True):
    """What a line points to: the cause and the next step. `line` 0 where no line points to it by itself."""

    id: str
    cause: str
    next: str
    line: int = 0
    text: str = ""


class LogFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure by NCCL's code, with its likely causes, the best supported first.

    `stated`: whether a line of the log states the code; else it follows from the warning that `line` holds.
    """

    code: str
    count: int
    line: int
    text: str
    causes: tuple[LogCause, ...] = ()
    stated: bool = True


class LogTest(msgspec.Struct, kw_only=True):
    """What a bandwidth test printed into the log.

    Attributes:
        program: nccl-tests or nvbandwidth.
        name: of the test, empty where the log does not say.
        peak_gb_s: highest bus bandwidth of a row, in GB/s; peak_bytes: the size of that row.
        average_gb_s, sum_gb_s: the program's own summary, None where there is none.
        rows, wrong_rows: of the table, and those with wrong values.
    """

    program: str
    name: str = ""
    peak_gb_s: float = 0.0
    peak_bytes: int = 0
    average_gb_s: float | None = None
    sum_gb_s: float | None = None
    rows: int = 0
    wrong_rows: int = 0


class LogFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong in a job that may have gone on: `state` warn or note. `line` 0 where it rests on many lines."""

    id: str
    state: Literal["warn", "note"]
    title: str
    evidence: str
    consequence: str
    fix: str
    line: int = 0


class LogComm(msgspec.Struct, kw_only=True):
    """A communicator, by the id that its ranks share (where the version prints it): who started and ended its init.

    `started` and `completed` hold the ranks; `places` rank -> host and process.
    """

    nranks: int
    started: set[int] = msgspec.field(default_factory=set)
    completed: set[int] = msgspec.field(default_factory=set)
    places: dict[int, tuple[str, int]] = msgspec.field(default_factory=dict)

    def unfinished(self) -> list[int]:
        """Return the ranks whose init began and did not end in the log."""
        return sorted(self.started - self.completed)


class NcclLog(msgspec.Struct, kw_only=True):
    """All that was read. Every collection is bounded; `notes` says what was left out.

    Attributes:
        versions: NCCL versions, in the order they came.
        settings: name -> values that ranks say they took.
        bootstrap: interfaces of the start-up traffic. networks: what `Using network` named.
        hcas: RDMA devices taken. sockets: TCP interfaces taken.
        gdr_of_hca: device name -> whether GPUDirect RDMA is enabled for it.
        gdr_of_pair: text of GPU and HCA -> whether it is used (up to NCCL 2.26).
        nranks, nnodes, local_ranks: as NCCL sees the job.
        rings: channel -> rank order (cut where NCCL cut it). trees: rank -> text.
        channels: kind (coll, collnet, nvls, p2p) -> number.
        nvls: what `NVLS multicast support` said. gdr_summary, pxn_summary: of the line `Connected all rings`.
        path_types: (from, to) node names -> path type of the table of paths (GRAPH).
        tree: lines of the first topology tree (GRAPH).
        patterns: results of the search, such as `Ring: 12 channels of 30.0/30.0 GB/s, NVL/PIX`.
        library: NCCL, or RCCL. network_of: host -> networks that its processes chose.
        findings: what is wrong in a job that may have gone on. tests: results of bandwidth tests.
        hints: what warnings point to that tell of no failure by themselves. comms: by communicator id.
        lines, nccl_lines, cut_lines, long_lines, undecodable: what the text was like.
    """

    library: str = "NCCL"
    versions: list[str] = msgspec.field(default_factory=list)
    drivers: list[str] = msgspec.field(default_factory=list)
    settings: dict[str, list[str]] = msgspec.field(default_factory=dict)
    bootstrap: list[str] = msgspec.field(default_factory=list)
    networks: list[str] = msgspec.field(default_factory=list)
    network_of: dict[str, list[str]] = msgspec.field(default_factory=dict)
    plugins: list[str] = msgspec.field(default_factory=list)
    hcas: list[str] = msgspec.field(default_factory=list)
    sockets: list[str] = msgspec.field(default_factory=list)
    gdr_of_hca: dict[str, bool] = msgspec.field(default_factory=dict)
    gdr_of_pair: dict[str, bool] = msgspec.field(default_factory=dict)
    ranks: dict[int, LogRank] = msgspec.field(default_factory=dict)
    nranks: int | None = None
    nnodes: int | None = None
    local_ranks: int | None = None
    mnnvl: bool | None = None
    pairs: dict[tuple[int, int], LogPair] = msgspec.field(default_factory=dict)
    rings: dict[int, str] = msgspec.field(default_factory=dict)
    trees: dict[int, str] = msgspec.field(default_factory=dict)
    channels: dict[str, int] = msgspec.field(default_factory=dict)
    nvls: bool | None = None
    gdr_summary: bool | None = None
    pxn_summary: bool | None = None
    path_types: dict[tuple[str, str], str] = msgspec.field(default_factory=dict)
    tree: list[str] = msgspec.field(default_factory=list)
    patterns: list[str] = msgspec.field(default_factory=list)
    topology_file: list[str] = msgspec.field(default_factory=list)
    hosts: list[str] = msgspec.field(default_factory=list)
    warnings: dict[str, LogWarning] = msgspec.field(default_factory=dict)
    signs: dict[str, LogCause] = msgspec.field(default_factory=dict)
    failures: tuple[LogFailure, ...] = ()
    findings: tuple[LogFinding, ...] = ()
    tests: list[LogTest] = msgspec.field(default_factory=list)
    hints: tuple[LogCause, ...] = ()
    comms: dict[str, LogComm] = msgspec.field(default_factory=dict)
    complete: int = 0
    lines: int = 0
    nccl_lines: int = 0
    cut_lines: int = 0
    long_lines: int = 0
    undecodable: int = 0
    notes: list[str] = msgspec.field(default_factory=list)
