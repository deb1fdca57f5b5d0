"""`topocheck report --smi-topo`: read a matrix that somebody pasted in a ticket."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

import topocheck
from topocheck.cli import common
from topocheck.gpudirect.types import GpuDirect, P2pVerdict
from topocheck.host.base import Host, RecordedBackend
from topocheck.model.base import InputError, known
from topocheck.model.smi import SmiMatrix
from topocheck.nccl.types import NcclView
from topocheck.pipeline import Report, read_node
from topocheck.probes.smi_topo import SmiTopoError, parse_matrix
from topocheck.render.page import Style
from topocheck.topology.from_smi import NOT_TOLD, p2p_codes, p2p_reasons, topology_of
from topocheck.topology.types import Topology

LIMIT_BYTES = 4 << 20
SECTIONS = ("summary", "matrix", "p2p")


def smi_report(path: Path, format_: str, style: Style) -> str:
    """Return the report of a pasted matrix; warnings about the text go to standard error.

    Raises:
        InputError: the file cannot be read, or holds no matrix.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        if str(path) == "-":
            data = common.standard_input().read(LIMIT_BYTES + 1)
        else:
            with path.open("rb") as f:
                data = f.read(LIMIT_BYTES + 1)
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror}") from e
    if len(data) > LIMIT_BYTES:
        raise InputError(f"{name}: larger than {LIMIT_BYTES >> 20} MiB; expected the text of nvidia-smi topo")
    try:
        matrix = parse_matrix(data.decode("utf-8", "replace"))
    except SmiTopoError as e:
        raise InputError(f"{name}: {e}") from e
    for w in matrix.warnings:
        print(f"topocheck: {name}: {w}", file=sys.stderr)
    if matrix.kind == "mp":
        hides = "nvidia-smi topo -mp leaves NVLink out: whether these GPUs have NVLinks cannot be told from it (use -m)"
        print(f"topocheck: {name}: {hides}", file=sys.stderr)
    result = report_of(matrix, name)
    sections = [s for s in SECTIONS if s != "p2p" or result.gpudirect.p2p]
    if format_ == "json":
        from topocheck.render import document

        return document.encode(document.report_document(result, topocheck.__version__))
    if format_ == "markdown":
        from topocheck.render.markdown import report_markdown

        return report_markdown(result, sections)
    from topocheck.render.text import report_text

    return report_text(result, sections, style)


def _road(topology: Topology, kind: str, a: str, b: str) -> str:
    """Return nvlink or pcie where an -m matrix tells the path of a pair; P2P tables alone and -mp do not."""
    path = next((p for p in topology.paths if (p.from_, p.to) == (a, b)), None)
    if path is None or kind != "m" or not known(path.class_):
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
        road = "none" if verdict.value == "no" else _road(topology, matrix.kind, a, b)
        verdicts.append(P2pVerdict(from_=a, to=b, from_label=a, to_label=b, verdict=verdict, road=road, reasons=steps))
    return Report(
        node=msgspec.structs.replace(read_node(Host(RecordedBackend({}), source)), probes=()),
        topology=topology,
        gpudirect=GpuDirect(p2p=tuple(verdicts)),
        nccl=NcclView(version=NOT_TOLD),
    )
