"""The tables of docs/snapshots.md, made from the code. `python -m tests.support.snapshots_page` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

from topocheck.host.recording.anonymize import Kept
from topocheck.probes.kept.table import ROWS

PAGE = Path(__file__).parents[2] / "docs" / "snapshots.md"
BEGIN, END = "<!-- begin: made from topocheck/probes/kept/table.py -->", "<!-- end -->"
_ASKED = {
    "list": "names in {}",
    "readlink": "link {}",
    "realpath": "resolved path of {}",
    "stat": "status of {}",
    "statvfs": "size of {}",
    "access": "access to {}",
    "run": "command {}",
    "nvml": "NVML {}",
    "cuda": "CUDA driver {}",
    "psutil": "addresses of interfaces (psutil)",
    "conf": "settings in {}",
}
_WHOLE = {
    "now": "the time",
    "duration": "each probe's duration",
    "probe": "each probe's state",
    "environ": "environment variables",
    "process": "this process",
    "kernel_options": "the kernel's command line",
    "pci_names": "names in pci.ids",
}


def _listed(words: str) -> str:
    names = words.split()
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _source(row: Kept) -> str:
    """Return in words what a row is about."""
    if row.kind in _WHOLE:
        return _WHOLE[row.kind]
    subject = row.subject.replace("{numbers}", "")
    if row.kind == "run":
        subject = subject.removeprefix("{n}|").replace("|", " ")
    elif row.kind == "lines":
        subject, _, _ = subject.partition("|")
    else:
        subject = subject.partition("|")[0] if row.kind != "cuda" else subject.replace("|{n}|", " ")
    # A choice of words becomes a list, a hole stays as it is.
    parts = re.split(r"(\{[^}]* [^}]*\})", subject)
    text = "".join(_listed(p[1:-1]) if n % 2 else p for n, p in enumerate(parts))
    return _ASKED.get(row.kind, "{}").replace("{}", f"`{text}`")


def table() -> str:
    """Return the table: what stays, and of which answers."""
    sources: dict[str, list[str]] = {}
    for row in ROWS:
        sources.setdefault(row.stays, []).append(_source(row))
    rows = [f"| {stays} | {'; '.join(dict.fromkeys(of))} |" for stays, of in sources.items()]
    return "\n".join(["| A snapshot holds | of |", "| --- | --- |", *rows])


def renewed(text: str) -> str:
    """Return the page with its table as the code has it."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
