"""Reads the data files of this room: tab-separated, a header line, a `source` column in each."""

from __future__ import annotations

import functools
from pathlib import Path

_FOLDER = Path(__file__).with_name("data")


@functools.cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of `data/<name>.tsv` as mappings from column to text; lines that begin with `#` are comments.

    Raises:
        ValueError: a row has more or fewer cells than the header.
    """
    lines = [s for s in (_FOLDER / f"{name}.tsv").read_text("utf-8").splitlines() if s.strip() and s[0] != "#"]
    header = lines[0].split("\t")
    out = []
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(header):
            raise ValueError(f"{name}.tsv, row {number}: {len(cells)} cells where the header has {len(header)}")
        out.append(dict(zip(header, cells, strict=True)))
    return tuple(out)
