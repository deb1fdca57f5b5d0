"""`topocheck report --smi-topo`: read a matrix that somebody pasted in a ticket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from topocheck.checks.shared.pasted_matrix import judge_matrix
from topocheck.cli import common
from topocheck.cli.report_formats import rendered
from topocheck.gpudirect.from_matrix import verdicts_of
from topocheck.host.base import Host, RecordedBackend
from topocheck.host.input import read_input
from topocheck.model.base import InputError, State
from topocheck.model.smi import SmiMatrix
from topocheck.nccl.predict.types import NcclView
from topocheck.pipeline import Report, read_node
from topocheck.probes.smi.topo import SmiTopoError, parse_matrix
from topocheck.render.page import Style
from topocheck.topology.from_smi import NOT_TOLD, p2p_codes, topology_of

LIMIT_BYTES = 4 << 20
SECTIONS = ("summary", "findings", "matrix", "p2p")


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


def report_of(matrix: SmiMatrix, name: str) -> Report:
    """Return the report that a matrix alone can give."""
    # Every probe finds an empty recording, so each fact says for itself that the text did not tell it.
    source = f"nvidia-smi topo text: {name}"
    topology = topology_of(matrix)
    results, findings = judge_matrix(topology, p2p_codes(matrix))
    return Report(
        node=msgspec.structs.replace(read_node(Host(RecordedBackend({}), source)), probes=(), lost=()),
        topology=topology,
        gpudirect=verdicts_of(matrix, topology),
        nccl=NcclView(version=NOT_TOLD),
        results=() if all(r.state is State.NOT_APPLICABLE for r in results) else results,
        findings=findings,
    )
