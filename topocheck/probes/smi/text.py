"""Splits a text that holds `nvidia-smi topo` tables into rows of raw cells, whatever happened to it on its way.

Such texts come out of tickets, logs and documents: with the escapes that underline the header, with tabs turned
into blanks or lost, quoted, made into a Markdown table, or wrapped by a terminal. So a row is known by its label
followed by a word of the matrix, never by its place, and cells that ran together (`NODEPIX`) are taken apart.
"""

from __future__ import annotations

import re

import msgspec

from topocheck.probes.smi.unread import blank_unread

MAX_TEXT_BYTES = 4 << 20
MAX_LINE_CHARACTERS = 32 << 10
MAX_LABELS = 256
MAX_TABLES = 16

# The words of `nvidia-smi topo -m`, with SOC for SYS in drivers before 384, and those of `-p2p` (its own legend).
_CLASS = r"NV[0-9]{1,3}|NODE|PIX|PXB|PHB|SYS|SOC|X|\?"
_CODE = r"CNS|GNS|TNS|OK|NS|DR|U|X|\?"
_CELLS = {"class": re.compile(rf"(?:{_CLASS})+"), "code": re.compile(rf"(?:{_CODE})+")}
_CELL = {"class": re.compile(_CLASS), "code": re.compile(_CODE)}

# Escapes proper, and colour codes whose escape character was lost or written as ^[ on the way into a ticket.
_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|(?:\^\[|\u241b)?\[[0-9;]{1,12}m"
)
_GPU = re.compile(r"GPU[0-9]{1,9}")
_LABEL = re.compile(r"[A-Za-z][\w.\-]*")
_CONTINUATION = re.compile(r"[A-Z0-9/,\-\s]+")
_COMMAND = re.compile(
    r"topo\s+(?:-[a-z]\s+[0-9]+\s+)?(?:--?(p2p|p2p_status)[\s=]+([rwnap]+)\b|(-mp|--matrix_pci)\b|(-m|--matrix)\b)"
)
_WORDED = re.compile(r"\bP2P (Read|Write|NVLink|Atomics|Prop|PCIe)", re.IGNORECASE)
_LEGEND_PAIR = re.compile(r"\b(NIC[0-9]{1,9})\s*(?::|=|->)\s*([A-Za-z][\w.\-]*)")
_LEGEND_BARE = re.compile(r"\s*(NIC[0-9]{1,9})\s+([A-Za-z][\w.\-]*)\s*")
_AFFINITY_COLUMNS = re.compile(r"CPU\s*Affinity|NUMA\s*Affinity|GPU\s*NUMA\s*ID", re.IGNORECASE)


class SmiTopoError(ValueError):
    """The text holds no readable matrix. `line` is where (from 1; 0 for the text as a whole)."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


class RawRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row before it is known how many columns there are: `parts` are its line and those that continue it."""

    line: int
    label: str
    vocabulary: str
    parts: tuple[str, ...]


class RawTable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one table, with the line above them and the command or heading that announced it."""

    rows: tuple[RawRow, ...]
    header: str = ""
    command: str = ""
    capability: str = ""


class RawText(msgspec.Struct, frozen=True, kw_only=True):
    """All tables of a text; `legend` is NIC<n> -> device; `legend_words` are the words its legends explain.

    `notes` tell of cells that hold no word of a matrix.
    """

    tables: tuple[RawTable, ...]
    legend: dict[str, str]
    legend_words: frozenset[str]
    notes: tuple[str, ...] = ()


def printable(text: str, limit: int = 40) -> str:
    """Return the start of a foreign text, safe to print."""
    cut = "".join(c if c.isprintable() else "?" for c in text.strip()[:limit])
    return f"'{cut}'"


def clean_lines(text: str) -> list[str]:
    """Return the lines without escapes and without the marks of a quotation or a Markdown table.

    Raises:
        SmiTopoError: the text or a line is longer than any matrix.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise SmiTopoError(0, f"the text is longer than {MAX_TEXT_BYTES >> 20} MiB; expected the output of one command")
    lines = _ESCAPES.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).replace("\xa0", " ").split("\n")
    for n, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_CHARACTERS:
            raise SmiTopoError(n, f"longer than {MAX_LINE_CHARACTERS} characters; expected one row of a matrix")
    return [line.replace("|", "\t").replace("`", " ").replace("*", " ") for line in lines]


def split_cells(text: str, vocabulary: str) -> tuple[list[str], str]:
    """Return the leading cells of a row's text, run together or not, and what follows them."""
    cells: list[str] = []
    pos = 0
    for m in re.finditer(r"\S+", text):
        if not _CELLS[vocabulary].fullmatch(m[0]):
            break
        cells += _CELL[vocabulary].findall(m[0])
        pos = m.end()
    return cells, text[pos:]


def has_cell(text: str, vocabulary: str) -> bool:
    """Tell whether a word of the matrix (other than a lone X or U) stands in `text`."""
    return any(_CELLS[vocabulary].fullmatch(t) and t not in ("X", "U", "?") for t in text.split())


def find_row(line: str) -> tuple[str, str, str, int] | None:
    """Return (label, text after it, vocabulary, words before it) when a line reads `... LABEL CELL ...`."""
    before = None
    for count, m in enumerate(re.finditer(r"\S+", line)):
        kind = next((k for k, r in _CELLS.items() if r.fullmatch(m[0])), None)
        if kind is not None and before is not None and _LABEL.fullmatch(before[0]):
            if any(r.fullmatch(before[0]) for r in _CELLS.values()):
                return None
            rest = line[m.start() :]
            if kind == "class" and len(split_cells(rest, "code")[0]) > len(split_cells(rest, "class")[0]):
                kind = "code"
            return before[0], rest, kind, count - 1
        if kind is not None or count > 8:
            return None
        before = m
    return None


class _Reader:
    """Walks the lines once. Kept in one object because a table, its header and its command span many lines."""

    def __init__(self) -> None:
        self.tables: list[RawTable] = []
        self.rows: list[RawRow] = []
        self.header = self.command = self.capability = ""
        self.indent = 0
        self.open = False  # the last line was a row, so that the next may continue it
        self.legend: dict[str, str] = {}
        self.words: set[str] = set()
        self.in_nic_legend = False

    def close(self) -> None:
        if self.rows:
            if len(self.tables) >= MAX_TABLES:
                raise SmiTopoError(self.rows[0].line, f"more than {MAX_TABLES} tables in one text")
            self.tables.append(
                RawTable(rows=tuple(self.rows), header=self.header, command=self.command, capability=self.capability)
            )
            self.rows = []
            self.header = self.command = self.capability = ""
        self.open = False

    def row(self, n: int, line: str) -> bool:
        found = find_row(line)
        if not found:
            return False
        label, rest, vocabulary, indent = found
        is_gpu = bool(_GPU.fullmatch(label))
        if not is_gpu and (not self.rows or indent != self.indent or self._is_tail(label)):
            return False
        if any(r.label == label for r in self.rows):
            if not is_gpu:
                raise SmiTopoError(n, f"row {label} appears twice in one matrix; expected each device once")
            self.close()
        if is_gpu and not self.rows:
            self.indent = indent
        if len(self.rows) >= MAX_LABELS:
            raise SmiTopoError(n, f"more than {MAX_LABELS} rows in one matrix")
        self.rows.append(RawRow(line=n, label=label, vocabulary=vocabulary, parts=(rest,)))
        self.open = True
        return True

    def _is_tail(self, word: str) -> bool:
        """Tell whether a word that looks like a label ends a cell that a terminal cut off in the row before it."""
        head = self.rows[-1].parts[-1].split(" ")[-1].split("\t")[-1] if self.open else ""
        cells = _CELLS[self.rows[-1].vocabulary]
        return bool(head) and not cells.fullmatch(head) and bool(cells.fullmatch(head + word))

    def spoilt_row(self, n: int, line: str) -> None:
        """Refuse a line in the midst of a table that starts as a GPU's row but goes on with an unknown word."""
        words = line.split()
        if self.open and len(words) > 2 and _GPU.fullmatch(words[0]):
            cells = _CELLS[self.rows[-1].vocabulary]
            if any(cells.fullmatch(w) for w in words[2:]):
                raise SmiTopoError(
                    n,
                    f"{printable(words[1])} in row {words[0]} is not an entry of the matrix; expected X, "
                    "NV#, PIX ... SYS",
                )

    def other(self, line: str) -> None:
        stripped = line.strip()
        if self.open and stripped and _CONTINUATION.fullmatch(line) and not _GPU.match(stripped):
            last = self.rows[-1]
            if len(last.parts) < 32:
                self.rows[-1] = msgspec.structs.replace(last, parts=(*last.parts, line))
            return
        if not stripped:
            self.open = False
            return
        if m := _COMMAND.search(line) or _WORDED.search(line):
            self.close()
            self.header = ""
            self._announce(m)
        elif _GPU.search(line) and not _LEGEND_PAIR.search(line):
            self.close()
            self.header = line
        self._legend(line, stripped)
        self.open = False

    def _announce(self, m: re.Match[str]) -> None:
        if m.re is _WORDED:
            self.command, self.capability = "p2p", m[1][0].lower()
        elif m[1]:
            self.command, self.capability = "p2p", m[2]
        else:
            self.command, self.capability = ("mp" if m[3] else "m"), ""

    def _legend(self, line: str, stripped: str) -> None:
        lowered = stripped.lower()
        if "legend" in lowered:
            self.close()
            self.in_nic_legend = "nic" in lowered
        for name, device in _LEGEND_PAIR.findall(line):
            self.legend.setdefault(name, device)
        if self.in_nic_legend and (m := _LEGEND_BARE.fullmatch(line)):
            self.legend.setdefault(m[1], m[2])
        if m := re.match(r"\s*(NV#|[A-Z]{1,4})\s+=\s", line):
            self.words.add(m[1])


def split_text(text: str) -> RawText:
    """Return the raw tables of a text.

    Raises:
        SmiTopoError: a limit was passed, or a table has a device twice.
    """
    reader = _Reader()
    lines, notes = blank_unread(clean_lines(text))
    for n, line in enumerate(lines, 1):
        if not reader.row(n, line):
            reader.spoilt_row(n, line)
            reader.other(line)
    reader.close()
    return RawText(
        tables=tuple(reader.tables),
        legend=reader.legend,
        legend_words=frozenset(reader.words),
        notes=tuple(notes),
    )


def affinity_columns(header: str) -> list[str]:
    """Return which of `cpu`, `numa`, `gpu` stand in a header, in its order."""
    names = {"c": "cpu", "n": "numa", "g": "gpu"}
    return [names[m[0][0].lower()] for m in _AFFINITY_COLUMNS.finditer(header)]


def header_labels(header: str) -> list[str]:
    """Return the labels in a header whose words are still apart."""
    cut = _AFFINITY_COLUMNS.search(header)
    return [t for t in header[: cut.start() if cut else len(header)].split() if _LABEL.fullmatch(t)]
