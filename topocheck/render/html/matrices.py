"""Matrices of pairs as heat maps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from topocheck.model.base import Missing
from topocheck.render.html.pairs import chosen_devices

if TYPE_CHECKING:
    from topocheck.pipeline import Report

MAX_CELLS = 2304
"""Cells of one matrix: 48 by 48. The JSON of the report has every pair."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of a matrix: `pair` is that of the page's data, `heat` from 0 to 1 how dark it is."""

    text: str
    kind: str = ""
    pair: str = ""
    heat: str = ""


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a matrix."""

    label: str
    cells: tuple[Cell, ...]


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix of all pairs."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[MatrixRow, ...]


_NEAR = {"PIX": 1.0, "PXB": 0.8, "PHB": 0.55, "NODE": 0.35, "SYS": 0.12}
"""How dark a class is: the nearer, the darker."""
_SIGNS = {"yes": "✓", "degraded": "▼", "no": "✕", "unknown": "?"}


def _size(report: Report) -> int:
    ends = chosen_devices(report.topology)
    return len(ends) * (len(report.topology.gpus) + len(report.topology.accelerators))


def too_many(report: Report) -> str:
    """Return where the pairs are, in place of the matrices of a node that has too many; empty where it has none."""
    n = _size(report)
    pairs = len(report.topology.gpus) > 1 or (report.topology.gpus and report.topology.nics)
    return f"{n} pairs are too many for a page: topocheck report --format json has all of them." if pairs else ""


def matrices(report: Report) -> list[Matrix]:
    """Return the matrices of classes, rates and GPUDirect verdicts; none where there are no pairs, or too many."""
    topology = report.topology
    if not 1 < _size(report) <= MAX_CELLS or not topology.paths:
        return []
    out = [
        _matrix(
            report,
            "Path class",
            "As nvidia-smi topo -m names them: NV# NVLinks, PIX one PCIe switch, PXB several, PHB one host bridge, "
            "NODE one NUMA node, SYS across NUMA nodes. The darker, the nearer.",
            "class",
        ),
        _matrix(
            report,
            "Theoretical GB/s per direction",
            "Of the narrowest hop that can be read; ≤ where another hop has no readable rate.",
            "rate",
        ),
    ]
    if report.gpudirect.p2p or report.gpudirect.rdma:
        said = ", ".join(f"{sign} {word}" for word, sign in _SIGNS.items())
        out.append(_matrix(report, "GPUDirect", f"P2P between GPUs, RDMA between a GPU and a NIC: {said}.", "verdict"))
    return out


def _matrix(report: Report, title: str, caption: str, what: Literal["class", "rate", "verdict"]) -> Matrix:
    topology = report.topology
    ends = chosen_devices(topology)
    number = {a: i for i, (a, _) in enumerate(ends)}
    low, high = _range(p.theoretical_gb_s for p in topology.paths if isinstance(p.theoretical_gb_s, float))
    verdicts = {(v.from_, v.to): v.verdict.value for v in report.gpudirect.p2p}
    verdicts |= {(v.from_, v.to): v.verdict.value for v in report.gpudirect.rdma}
    rows = []
    for g in (*topology.gpus, *topology.accelerators):
        cells = []
        for address, _ in ends:
            path = topology.find_path(g.address, address)
            if path is None:
                cells.append(Cell(text="X" if address == g.address else "", kind="self"))
                continue
            pair = f"{number[g.address]}-{number[address]}"
            if what == "verdict":
                v = verdicts.get((g.address, address), "")
                cells.append(Cell(text=_SIGNS.get(v, ""), kind=v, pair=pair))
            elif what == "class":
                near = 1.0 if path.nvlinks else _NEAR.get(str(path.class_), 0.0)
                lost = isinstance(path.class_, Missing)
                cells.append(
                    Cell(text="?" if lost else str(path.class_), pair=pair, heat=f"{near:.2f}",
                         kind="unknown" if lost else "")
                )  # fmt: skip
            else:
                cells.append(_rate(path.theoretical_gb_s, path.upper_bound, pair, low, high))
        rows.append(MatrixRow(label=g.label, cells=tuple(cells)))
    return Matrix(title=title, caption=caption, columns=tuple(label for _, label in ends), rows=tuple(rows))


def rated(
    title: str,
    caption: str,
    rates: Mapping[tuple[str, str], float],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    words: Mapping[tuple[str, str], str] | None = None,
) -> list[Matrix]:
    """Return a matrix of rates between labels as a heat map; none where it is empty or too large.

    `words` stand in the cells in place of the rates.
    """
    if not rates or len(rows) * len(columns) > MAX_CELLS:
        return []
    low, high = _range(rates.values())

    def cell(a: str, b: str) -> Cell:
        gb_s = rates.get((a, b))
        if gb_s is None:
            return Cell(text="X" if a == b else "", kind="self")
        shown = words[a, b] if words is not None and (a, b) in words else f"{gb_s:.1f}"
        return Cell(text=shown, heat=_heat(gb_s, low, high) if gb_s > 0 else "")

    made = tuple(MatrixRow(label=a, cells=tuple(cell(a, b) for b in columns)) for a in rows)
    return [Matrix(title=title, caption=caption, columns=tuple(columns), rows=made)]


def _range(rates: Iterable[float]) -> tuple[float, float]:
    """Return the logarithms between which rates are shaded: at least a factor of 4, so that equals look equal."""
    positive = [r for r in rates if r > 0]
    high = math.log(max(positive, default=1.0))
    return min(math.log(min(positive, default=1.0)), high - math.log(4)), high


def _heat(gb_s: float, low: float, high: float) -> str:
    """Return how dark a rate is: by its logarithm, from the smallest to the largest of the matrix."""
    return f"{0.08 + 0.92 * (math.log(gb_s) - low) / (high - low):.2f}"


def _rate(gb_s: float | Missing, bound: bool, pair: str, low: float, high: float) -> Cell:
    """Return the cell of a theoretical rate."""
    if isinstance(gb_s, Missing):
        return Cell(text="?", kind="unknown", pair=pair)
    return Cell(text=f"{'≤' if bound else ''}{gb_s:.0f}", pair=pair, heat=_heat(gb_s, low, high))
