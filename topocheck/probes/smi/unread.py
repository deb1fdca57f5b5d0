"""Cells of a pasted matrix that hold `N/A` or a word of no known driver: they cost themselves, not the text."""

from __future__ import annotations

import re

UNREAD = "?"
"""Stands in the place of a cell that cannot be read."""

MAX_NOTES = 20
_LABEL = re.compile(r"(?:GPU|NIC)[0-9]{1,9}|[a-z][\w.\-]*", re.ASCII)
_WORD = re.compile(r"[A-Za-z\[(][\w/#\-!.\[\]()]{0,15}|-{1,3}", re.ASCII)
_WHOLE = ("NV", "NODE", "PIX", "PXB", "PHB", "SYS", "SOC", "CNS", "GNS", "TNS", "OK")
_KNOWN = re.compile(r"NV[0-9]{1,3}|NODE|PIX|PXB|PHB|SYS|SOC|X|CNS|GNS|TNS|OK|NS|DR|U|\?", re.ASCII)


def blank_unread(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines with UNREAD in the place of cells that hold no word of a matrix, and what was there, in words.

    Only rows whose cells stand apart are touched: a label of the header, then a word for each of its labels, with the
    X on the diagonal. The columns after them (affinities) keep their `N/A`.
    """
    out: list[str] = []
    notes: list[str] = []
    columns: list[str] = []
    for n, line in enumerate(lines, 1):
        words = line.split()
        if _is_header(words):
            columns = _labels(words)
            out.append(line)
            continue
        changed = _blank(line, words, columns)
        if changed is not None:
            bad = [(c, w) for c, w in zip(columns, words[1:], strict=False) if not _KNOWN.fullmatch(w)]
            if len(notes) < MAX_NOTES:
                told = ", ".join(f"{w} below {c}" for c, w in bad[:8]) + (" and more" if len(bad) > 8 else "")
                notes.append(f"line {n}: row {words[0]}: {told}: no class or code, so these cells are unknown")
        out.append(line if changed is None else changed)
    return out, notes


def _is_header(words: list[str]) -> bool:
    """Tell whether a line names the columns: it begins with two labels, the first a GPU."""
    return len(words) > 1 and words[0].startswith("GPU") and all(_is_device(w) for w in words[:2])


def _is_device(word: str) -> bool:
    return bool(_LABEL.fullmatch(word)) and not _KNOWN.fullmatch(word)


def _labels(words: list[str]) -> list[str]:
    found = []
    for w in words:
        if not _is_device(w):
            break
        found.append(w)
    return found


def _is_cut(words: list[str]) -> bool:
    """Tell whether a terminal may have cut the last word of a line, which goes on in the next."""
    last = words[-1]
    return not _KNOWN.fullmatch(last) and any(w.startswith(last) for w in _WHOLE)


def _blank(line: str, words: list[str], columns: list[str]) -> str | None:
    """Return a row with its unreadable cells replaced; None for any other line and for a row without such a cell."""
    if len(columns) < 2 or len(words) <= len(columns) or words[0] not in columns:
        return None
    cells = words[1 : len(columns) + 1]
    if cells[columns.index(words[0])] != "X" or not all(_KNOWN.fullmatch(w) or _WORD.fullmatch(w) for w in cells):
        return None
    if all(_KNOWN.fullmatch(w) for w in cells) or _is_cut(words):
        return None
    label, *_ = words
    rest = line[line.index(label) + len(label) :]
    for w in cells:
        at = rest.index(w)
        if not _KNOWN.fullmatch(w):
            rest = rest[:at] + UNREAD + rest[at + len(w) :]
            at += len(UNREAD)
        else:
            at += len(w)
        label += rest[:at]
        rest = rest[at:]
    return line[: line.index(words[0])] + label + rest
