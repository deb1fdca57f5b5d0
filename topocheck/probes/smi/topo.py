"""`nvidia-smi topo -m`, `-mp` and `-p2p` text: pasted from elsewhere, or printed by this machine."""

from __future__ import annotations

import re

from topocheck.host.base import Host, HostError
from topocheck.model.base import Reason
from topocheck.model.smi import P2pTable, SmiFacts, SmiMatrix
from topocheck.probes.smi.text import (
    RawRow,
    RawTable,
    RawText,
    SmiTopoError,
    affinity_columns,
    has_cell,
    header_labels,
    printable,
    split_cells,
    split_text,
)
from topocheck.probes.smi.unread import UNREAD

__all__ = ["SmiTopoError", "parse_matrix", "read"]

# Every word of the legend that a driver prints for -mp: the same as for -m, but NV# (seen from driver 450 on).
_MP_LEGEND = frozenset({"X", "SYS", "NODE", "PHB", "PXB", "PIX"})
_AFFINITY = re.compile(r"[0-9][0-9,\-]*|N/A")
SMI_TIMEOUT_S = 8

Cells = dict[str, dict[str, str]]


def _row_cells(row: RawRow, width: int) -> tuple[list[str], str]:
    """Return the cells of a row and the text after them.

    A terminal may have cut a row anywhere. Joined as it stands, a cut word heals; joined with a blank, a cell and
    an affinity that met at the cut stay apart. The joint that fills the width and leaves a clean rest is right.
    """
    joined = [split_cells(joint.join(row.parts), row.vocabulary) for joint in ("", " ")]
    return max(joined, key=lambda j: (len(j[0]) == width, all(map(_AFFINITY.fullmatch, j[1].split()))))


def _columns(table: RawTable, warnings: list[str]) -> tuple[str, ...]:
    """Return the labels of the columns: those of the rows, for the matrix is square; else of the header.

    Raises:
        SmiTopoError: neither fits the number of cells.
    """
    rows = [r.label for r in table.rows]
    width = max(len(_row_cells(r, len(rows))[0]) for r in table.rows)
    if width == len(rows):
        return tuple(rows)
    first = table.rows[0].line
    header = header_labels(table.header)
    if width < len(rows):
        warnings.append(f"line {first}: {len(rows)} rows but {width} columns; the last columns were cut off")
        return tuple(rows[:width])
    if len(header) == width and len(set(header)) == width and set(rows) <= set(header):
        warnings.append(f"line {first}: {width} columns but {len(rows)} rows; columns taken from the header")
        return tuple(header)
    raise SmiTopoError(
        first, f"a row has {width} cells but the rows found number {len(rows)}; expected one row for each column"
    )


def _read_row(row: RawRow, columns: tuple[str, ...], warnings: list[str]) -> tuple[dict[str, str], str]:
    """Return the cells of one row by column, diagonal left out, and the text after them.

    Raises:
        SmiTopoError: a word that is no class, or the X not on the diagonal.
    """
    cells, rest = _row_cells(row, len(columns))
    if has_cell(rest, row.vocabulary):
        word = printable(rest.split()[0])
        raise SmiTopoError(
            row.line, f"{word} in row {row.label} is not an entry of the matrix; expected NV#, PIX, PXB, PHB, NODE, SYS"
        )
    if len(cells) > len(columns):
        raise SmiTopoError(row.line, f"row {row.label} has {len(cells)} cells; expected {len(columns)}")
    out: dict[str, str] = {}
    for column, cell in zip(columns, cells, strict=False):
        if (cell == "X") != (column == row.label):
            raise SmiTopoError(row.line, f"row {row.label} has {cell} below {column}; expected its X below {row.label}")
        if cell not in ("X", UNREAD):
            out[column] = "SYS" if cell == "SOC" else cell
    if len(cells) < len(columns):
        warnings.append(f"line {row.line}: row {row.label} has {len(cells)} of {len(columns)} cells")
    return out, rest


def _affinity(rest: str, names: list[str]) -> dict[str, str]:
    """Return cpu, numa and gpu affinity of a row, where it is known which is which; `N/A` counts as none."""
    words = rest.split()
    names = names or ["cpu", "numa", "gpu"]
    if "\t" in rest and len(words) < len(names):
        # Raw output sets a second tab before GPU NUMA ID, so an empty CPU or NUMA column shows as an empty field.
        fields = [f.strip() for f in rest.lstrip(" ").removeprefix("\t").split("\t")]
        if len(names) == 3 and len(fields) > 3:
            fields = [fields[0], fields[1], next((f for f in fields[2:] if f), "")]
        pairs = dict(zip(names, fields, strict=False))
    elif len(words) <= len(names):
        pairs = dict(zip(names, words, strict=False))
    else:
        return {}
    return {k: v for k, v in pairs.items() if re.fullmatch(r"[0-9][0-9,\-]*", v)}


def _warn_asymmetry(cells: Cells, line: int, warnings: list[str]) -> None:
    for a, row in cells.items():
        for b, cls in row.items():
            back = cells.get(b, {}).get(a)
            if back is not None and a < b and back != cls:
                warnings.append(f"line {line}: {a} to {b} is {cls} but {b} to {a} is {back}")
                if len(warnings) > 50:
                    return


def _is_p2p(table: RawTable) -> bool:
    return any(r.vocabulary == "code" for r in table.rows) or table.command == "p2p"


def _is_mp(table: RawTable, cells: Cells, raw: RawText) -> bool:
    if table.command:
        return table.command == "mp"
    nvlink = any(c.startswith("NV") for row in cells.values() for c in row.values())
    return not nvlink and raw.legend_words >= _MP_LEGEND and "NV#" not in raw.legend_words


def _build(table: RawTable, raw: RawText) -> SmiMatrix:
    warnings: list[str] = []
    columns = _columns(table, warnings)
    names = affinity_columns(table.header)
    cells: Cells = {}
    affinity: dict[str, dict[str, str]] = {"cpu": {}, "numa": {}, "gpu": {}}
    for row in table.rows:
        cells[row.label], rest = _read_row(row, columns, warnings)
        if row.label.startswith("GPU"):
            for kind, value in _affinity(rest, names).items():
                affinity[kind][row.label] = value
    _warn_asymmetry(cells, table.rows[0].line, warnings)
    labels = {*columns, *cells}
    return SmiMatrix(
        kind="mp" if _is_mp(table, cells, raw) else "m",
        rows=tuple(r.label for r in table.rows),
        columns=columns,
        cells=cells,
        soc=any(re.search(r"SOC", part) for r in table.rows for part in r.parts),
        cpu_affinity=affinity["cpu"],
        numa_affinity=affinity["numa"],
        gpu_numa_id=affinity["gpu"],
        legend={k: v for k, v in raw.legend.items() if k in labels},
        warnings=tuple(warnings),
    )


def _build_p2p(table: RawTable) -> P2pTable:
    warnings: list[str] = []
    columns = _columns(table, warnings)
    codes = {row.label: _read_row(row, columns, warnings)[0] for row in table.rows}
    return P2pTable(capability=table.capability, codes=codes, line=table.rows[0].line)


def parse_matrix(text: str) -> SmiMatrix:
    """Read a text with one or more tables of `nvidia-smi topo`, in any layout that its drivers have printed.

    The first `-m` table (else the first `-mp` one) is the matrix; a `-mp` table of the same devices and all `-p2p`
    tables stand beside it. At most 4 MiB, 256 devices and 16 tables are read.

    Raises:
        SmiTopoError: there is no matrix, or it cannot be read; says the line and what was expected.
    """
    raw = split_text(text)
    if not raw.tables:
        first = next((line for line in text.splitlines() if line.strip()), "")
        raise SmiTopoError(
            1,
            "no matrix found; expected rows such as 'GPU0  X  NV18  PIX  0-31', "
            f"but the text starts with {printable(first)}",
        )
    matrices = [_build(t, raw) for t in raw.tables if not _is_p2p(t)]
    p2p = tuple(_build_p2p(t) for t in raw.tables if _is_p2p(t))
    if not matrices:
        labels = tuple(p2p[0].codes)
        return SmiMatrix(kind="p2p", rows=labels, columns=labels, p2p=p2p, warnings=raw.notes)
    main = next((m for m in matrices if m.kind == "m"), matrices[0])
    beside = next((m for m in matrices if m.kind == "mp" and m is not main and m.rows == main.rows), None)
    extra = [m for m in matrices if m is not main and m is not beside]
    warnings = [*raw.notes, *main.warnings]
    if extra:
        warnings.append(f"the text holds {len(matrices)} matrices; the first is read")
    return SmiMatrix(
        kind=main.kind,
        rows=main.rows,
        columns=main.columns,
        cells=main.cells,
        soc=main.soc,
        cpu_affinity=main.cpu_affinity,
        numa_affinity=main.numa_affinity,
        gpu_numa_id=main.gpu_numa_id,
        legend=main.legend,
        p2p=p2p,
        pcie_cells=beside.cells if beside else {},
        warnings=tuple(warnings),
    )


def _tables(host: Host, raw: dict[str, str]) -> list[str]:
    """Return the P2P tables of a recording made from texts; of a live machine NVML is asked itself."""
    if not host.records("run", SMI_TIMEOUT_S, "nvidia-smi", "topo", "-p2p"):
        return []
    try:
        result = host.run(("nvidia-smi", "topo", "-p2p"), timeout_s=SMI_TIMEOUT_S)
    except HostError as e:
        raw["topo -p2p"] = f"!{e}"
        return []
    raw["topo -p2p"] = result.stdout.strip()
    return [result.stdout]


def read(host: Host) -> SmiFacts:
    """Run `nvidia-smi topo -m`, then `-mp`, and read both into one matrix; of `-mp` alone where only that was given.

    Raises:
        HostError: a recording without the cross-check (not_recorded).
    """
    raw: dict[str, str] = {}
    texts: list[str] = []
    rc = 0
    lost: HostError | None = None
    for option in ("-m", "-mp"):
        call = f"topo {option}"
        try:
            result = host.run(("nvidia-smi", "topo", option), timeout_s=SMI_TIMEOUT_S)
        except HostError as e:
            lost = e if e.reason is Reason.NOT_RECORDED and option == "-m" else lost
            raw[call] = f"!{e}"
            continue
        rc = result.rc if option == "-m" else rc
        raw[call] = (result.stdout if result.rc == 0 else result.stdout + result.stderr).strip()
        if result.rc == 0:
            texts.append(f"nvidia-smi topo {option}\n{result.stdout}")
    texts += _tables(host, raw)
    if lost is not None and not texts:
        raise lost
    if lost is None and (not texts or not texts[0].startswith("nvidia-smi topo -m\n")):
        # The cells of `-mp` alone are no answer to `-m`: they leave NVLink out.
        said = printable(raw["topo -m"], 200).strip("'")
        return SmiFacts(source="nvidia-smi", raw=raw, error=f"{said} (exit status {rc})" if rc else said)
    try:
        return SmiFacts(source="nvidia-smi", raw=raw, matrix=parse_matrix("\n".join(texts)))
    except SmiTopoError as e:
        return SmiFacts(source="nvidia-smi", raw=raw, error=str(e))
