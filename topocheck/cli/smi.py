"""`topocheck report --smi-topo`: read a matrix that somebody pasted in a ticket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from topocheck.checks.shared.pasted_matrix import judge_matrix
from topocheck.cli import common
from topocheck.cli.report_formats import rendered
from topocheck.gpudirect.types import GpuDirect, Link, P2pVerdict
from topocheck.host.base import Host, RecordedBackend
from topocheck.host.input import read_input
from topocheck.model.base import InputError, State, known
from topocheck.model.smi import SmiMatrix
from topocheck.nccl.predict.types import NcclView
from topocheck.pipeline import Report, read_node
from topocheck.probes.smi.topo import SmiTopoError, parse_matrix
from topocheck.render.page import Style
from topocheck.topology.from_smi import NOT_TOLD, p2p_codes, p2p_reasons, topology_of
from topocheck.topology.types import Topology

LIMIT_BYTES = 4 << 20
SECTIONS = ("summary", "matrix", "p2p")


def smi_report(path: Path, format_: str, style: Style) -> str | Iterator[str]:
    """Return the report of a pasted matrix; warnings about the text go to standard error.

    Raises:
        InputError: the file cannot be read, or holds no matrix.
    """
    matrix, name = read_matrix(path)
    result = report_of(matrix, name)
    sections = [s for s in SECTIONS if s != "p2p" or result.gpudirect.p2p]
    return rendered(result, format_, style, sections)


def read_matrix(path: Path) -> tuple[SmiMatrix, str]:
    """Return the matrix of a text, and the name of its file; warnings about it go to standard error.

    Raises:
        InputError: the file cannot be read, or holds no matrix.
    """
    name = "standard input" if str(path) == "-" else str(path)
    data = read_input(path, LIMIT_BYTES, "the text of nvidia-smi topo")
    try:
        matrix = parse_matrix(data.decode("utf-8", "replace"))
    except SmiTopoError as e:
        raise InputError(f"{name}: {e}") from e
    for w in matrix.warnings:
        common.warn(f"{name}: {w}")
    if matrix.kind == "mp":
        hides = "nvidia-smi topo -mp leaves NVLink out: NVLinks of these GPUs are not known from it (use -m)"
        common.warn(f"{name}: {hides}")
    return matrix, name


def _link(topology: Topology, kind: str, a: str, b: str) -> Link:
    """Return nvlink or pcie where an -m matrix tells the path of a pair; P2P tables alone and -mp do not."""
    if kind != "m":
        return "unknown"
    path = topology.find_path(a, b)
    if path is None or not known(path.class_):
        return "unknown"
    return "nvlink" if path.nvlinks else "pcie"


def report_of(matrix: SmiMatrix, name: str) -> Report:
    """Return the report that a matrix alone can give."""
    # Every probe finds an empty recording, so each fact says for itself that the text did not tell it.
    source = f"nvidia-smi topo text: {name}"
    topology = topology_of(matrix)
    verdicts = []
    for (a, b), codes in sorted(p2p_codes(matrix).items()):
        verdict, steps = p2p_reasons(codes)
        link: Link = "none" if verdict.value == "no" else _link(topology, matrix.kind, a, b)
        verdicts.append(P2pVerdict(from_=a, to=b, from_label=a, to_label=b, verdict=verdict, link=link, reasons=steps))
    results, findings = judge_matrix(topology, p2p_codes(matrix))
    return Report(
        node=msgspec.structs.replace(read_node(Host(RecordedBackend({}), source)), probes=(), lost=()),
        topology=topology,
        gpudirect=GpuDirect(p2p=tuple(verdicts)),
        nccl=NcclView(version=NOT_TOLD),
        results=() if all(r.state is State.NOT_APPLICABLE for r in results) else results,
        findings=findings,
    )
