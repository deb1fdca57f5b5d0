"""Sets a log beside the prediction, and says for each difference what can make it."""

from __future__ import annotations

import re

import msgspec

from topocheck.knowledge.nccl import parse_version
from topocheck.model.address import format_cpulist, normalize_address
from topocheck.model.base import Missing
from topocheck.nccl.logs.transports import LoggedTransport, take_apart
from topocheck.nccl.logs.types import LogPair, NcclLog
from topocheck.nccl.predict.types import P2P_KINDS, Prediction, RankPair, TransportKind


class LogDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Where log and prediction part. `explanations` are what can make it, best supported first."""

    subject: str
    logged: str
    predicted: str
    explanations: tuple[str, ...] = ()


class LogComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared: pairs that agree, the differences, and measured bus bandwidth beside its bound."""

    agree: int
    compared: int
    differences: tuple[LogDifference, ...] = ()
    tests: tuple[str, ...] = ()


def settings_for(log: NcclLog) -> dict[str, str]:
    """Return the settings a log names, the first value of each, to predict with."""
    return {name: values[0] for name, values in log.settings.items() if values}


def compare(log: NcclLog, prediction: Prediction) -> LogComparison:
    """Return where a log and a prediction agree and differ, pair by pair, with what can make each difference."""
    predicted = {(p.from_rank, p.to_rank): p for p in prediction.pairs}
    p2p_refused = _p2p_refused(log)
    differences: list[LogDifference] = []
    agree = compared = 0
    for key, pair in sorted(log.pairs.items()):
        expected = predicted.get(key)
        if expected is None or isinstance(expected.transport, Missing) or expected.transport_kind is None:
            continue
        compared += 1
        found = _differs(log, pair, expected, expected.transport_kind, prediction.settings, p2p_refused=p2p_refused)
        if found is None:
            agree += 1
        else:
            differences.append(found)
    tests, slow = _bandwidth(log, prediction)
    whole = (*_layout(log, prediction), *_machine(log, prediction), *_network(log, prediction), *slow)
    return LogComparison(agree=agree, compared=compared, differences=(*whole, *differences), tests=tuple(tests))


_LARGE_BYTES = 32 << 20
"""Size from which a collective is bound by bandwidth rather than by latency."""
_SLOW_SHARE = 0.5
"""NCCL reaches 70 % and more of its own bound on healthy machines; below a half something else limits."""


def _bandwidth(log: NcclLog, prediction: Prediction) -> tuple[list[str], list[LogDifference]]:
    """Return the peak of each nccl-tests table beside the highest bound, and a difference where it is below a half."""
    best = max(prediction.bounds, key=lambda b: b.busbw_gb_s, default=None)
    if best is None or log.nranks not in (None, len(prediction.ranks)):
        return [], []
    lines, slow = [], []
    for t in log.tests:
        if t.peak_bytes < _LARGE_BYTES:
            continue
        share = t.peak_gb_s / best.busbw_gb_s
        name = t.name or "nccl-tests"
        bound = f"{best.busbw_gb_s:.1f} GB/s ({best.algorithm}, set by {best.limited_by})"
        lines.append(f"{name}: {t.peak_gb_s:g} GB/s of bus bandwidth, {share:.0%} of the bound {bound}")
        if share < _SLOW_SHARE:
            slow.append(
                LogDifference(
                    subject=f"bus bandwidth of {name}",
                    logged=f"{t.peak_gb_s:g} GB/s at {t.peak_bytes} bytes",
                    predicted=f"at most {bound}",
                    explanations=(
                        "a slower transport than predicted: see the pairs below, or log with NCCL_DEBUG=INFO",
                        "a link that is slower than it reports, or other traffic: measure with topocheck bw",
                    ),
                )
            )
    return lines, slow


def bus_id(address: str) -> int | None:
    """Return a PCI address as the number NCCL logs as busId, in hexadecimal: 0000:18:00.0 is 18000 (busIdToInt64).

    None for the name of a GPU whose address was not reported.
    """
    return None if normalize_address(address) is None else int(re.sub(r"[:.]", "", address), 16)


def _machine(log: NcclLog, prediction: Prediction) -> list[LogDifference]:
    """Return the ranks whose GPU is at another PCI address than predicted; none of a job that ran on more hosts."""
    if len(log.hosts) > len({r.host for r in prediction.ranks}):
        return []
    other = [
        (r.rank, seen.bus_id, r.gpu)
        for r in prediction.ranks
        if (seen := log.ranks.get(r.rank)) is not None
        and seen.bus_id
        and bus_id(r.gpu) not in (None, int(seen.bus_id[:16], 16))
    ]
    if not other:
        return []
    shown = other[:4]
    more = ", ..." if len(other) > 4 else ""
    return [
        LogDifference(
            subject=f"GPU of rank {format_cpulist(n for n, _, _ in other)}",
            logged=", ".join(f"busId {logged}" for _, logged, _ in shown) + more,
            predicted=", ".join(gpu for _, _, gpu in shown) + more,
            explanations=(
                "the log is of another machine than the recording",
                "the job took other GPUs, or in another order: give its ranks with --ranks",
            ),
        )
    ]


def _network(log: NcclLog, prediction: Prediction) -> list[LogDifference]:
    """Return a difference where the log's network devices are none of those predicted."""
    logged = {x.split(":")[0] for x in (log.hcas if "Socket" not in log.networks else log.sockets)}
    predicted = {n.nic for n in prediction.nics}
    if not logged or not predicted or logged & predicted:
        return []
    why = ["the log is of another machine than the recording"]
    if log.networks == ["Socket"]:
        why.insert(0, "RDMA was not usable in the job: NCCL_IB_DISABLE, NCCL_NET, no /dev/infiniband in the container")
    return [
        LogDifference(
            subject="network",
            logged=f"{', '.join(log.networks) or 'network'}: {', '.join(sorted(logged)[:8])}",
            predicted=", ".join(sorted(predicted)[:8]),
            explanations=tuple(why),
        )
    ]


def _layout(log: NcclLog, prediction: Prediction) -> list[LogDifference]:
    out = []
    hosts = len({r.host for r in prediction.ranks})
    if log.nranks is not None and log.nranks != len(prediction.ranks):
        out.append(
            LogDifference(
                subject="ranks",
                logged=str(log.nranks),
                predicted=str(len(prediction.ranks)),
                explanations=("the job had other ranks than the prediction: give it a rank file",),
            )
        )
    elif log.nnodes is not None and log.nnodes != hosts:
        names = ", ".join(log.hosts[:4]) + (", ..." if len(log.hosts) > 4 else "")
        many = f"the job ran on {len(log.hosts)} hosts ({names}): give their recordings with --ranks"
        containers = (
            "NCCL counts a host for each hostname and boot id (or NCCL_HOSTID): containers with names of their own"
            " count as hosts"
        )
        shared = "ranks of different hosts share an NCCL_HOSTID, or sit in one NVLink domain"
        why = ((many, containers) if len(log.hosts) > hosts else (containers,)) if log.nnodes > hosts else (shared,)
        out.append(LogDifference(subject="nodes", logged=str(log.nnodes), predicted=str(hosts), explanations=why))
    version = parse_version(log.versions[0]) if log.versions else None
    if version is not None and ".".join(map(str, version)) != prediction.version:
        text = "the rules of the versions may differ: predict with the log's"
        out.append(
            LogDifference(subject="version", logged=log.versions[0], predicted=prediction.version, explanations=(text,))
        )
    return out


def _differs(
    log: NcclLog,
    pair: LogPair,
    expected: RankPair,
    wanted: TransportKind,
    settings: dict[str, str],
    *,
    p2p_refused: bool,
) -> LogDifference | None:
    seen = [take_apart(t) for t in pair.transports]
    kinds = {t.kind for t in seen}
    subject = f"rank {pair.from_rank} -> rank {pair.to_rank}"
    if kinds == {wanted}:
        if wanted == "NET":
            return _net_differs(subject, seen, expected)
        return None
    logged = ", ".join(sorted(t.text for t in seen))
    why = tuple(_explain(log, pair, kinds, wanted, settings, p2p_refused=p2p_refused))
    return LogDifference(subject=subject, logged=logged, predicted=str(expected.transport), explanations=why)


def _net_differs(subject: str, seen: list[LoggedTransport], expected: RankPair) -> LogDifference | None:
    for side, wanted in (("send", expected.gdr_send), ("receive", expected.gdr_receive)):
        own = [t for t in seen if t.side == side]
        if own and any(t.gdr != wanted for t in own):
            words = "with GPUDirect RDMA" if wanted else "through host memory"
            why = (
                "NCCL found neither a peer-memory module nor DMA-BUF that works with this NIC"
                if wanted
                else "the NIC is nearer, or the module newer, than the prediction knew",
                "NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ or NCCL_DMABUF_ENABLE set for the job alone",
            )
            logged = ", ".join(sorted({t.text for t in own}))
            return LogDifference(subject=subject, logged=logged, predicted=f"{side} {words}", explanations=why)
    return None


_DECIDING = (
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_NET_DISABLE_INTRA",
    "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_IGNORE_DISABLED_P2P",
    "NCCL_TOPO_FILE",
    "NCCL_HOSTID",
    "NCCL_NVB_DISABLE",
)


def _p2p_refused(log: NcclLog) -> bool:
    """Tell whether a warning says that NVML or CUDA refused P2P."""
    words = ("P2P is disabled", "Could not enable P2P", "peer query failed")
    texts = (*log.warnings, *(s.text for s in log.signs.values()))
    return any(word in text for text in texts for word in words)


def _explain(
    log: NcclLog,
    pair: LogPair,
    kinds: set[TransportKind],
    wanted: TransportKind,
    settings: dict[str, str],
    *,
    p2p_refused: bool,
) -> list[str]:
    out = [
        f"the log says {name}={values[0]}: predict with --set {name}={values[0]}"
        for name, values in log.settings.items()
        if name in _DECIDING and values
    ]
    out += [
        f"{name}={value} is in force in the prediction, and the log does not name it: if the job ran without, predict"
        f" with --set {name}="
        for name, value in settings.items()
        if name in _DECIDING and name not in log.settings
    ]
    a, b = (log.ranks.get(n) for n in (pair.from_rank, pair.to_rank))
    if a and b and a.host and b.host and a.host != b.host and "NET" in kinds and wanted != "NET":
        out.insert(0, f"the log has these ranks on two hosts, {a.host} and {b.host}: give the job's ranks with --ranks")
    if wanted in P2P_KINDS and kinds & {"SHM", "NET"}:
        if p2p_refused:
            out.insert(0, "the log says that NVML or CUDA refused P2P at run time")
        out.append("fewer or more GPUs in the communicator than predicted change the default P2P level on AMD hosts")
    if "NET" in kinds and wanted != "NET":
        out.append("the ranks sit in containers that do not share /dev/shm, or have other hostnames")
    if kinds == {"P2P/IPC"} and wanted == "P2P/CUMEM":
        out.append("cuMem was off: NCCL_CUMEM_ENABLE=0 in a settings file, or a driver older than CUDA 12.0")
    if kinds == {"P2P/direct pointer"} and wanted in P2P_KINDS:
        out.append("the ranks are threads of one process; the prediction took a process for each")
    if kinds == {"SHM"} and wanted == "NET":
        out.append("the ranks share /dev/shm, which the prediction did not know")
    out.append("the topology NCCL saw differs: compare its NCCL_TOPO_DUMP_FILE with topocheck nccl topo --input")
    return out
