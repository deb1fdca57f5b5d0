"""Machines whose names were chosen by an attacker, and what no output may hold of them."""

from __future__ import annotations

import contextlib
import functools
import gc
import html.parser
import io
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.support.snapshots import record
from topocheck.host.base import Answer, HostError
from topocheck.host.recording import snapshot
from topocheck.probes.registry import PROBE_SET_VERSION

MACHINE = "nic_wrong_socket"
NAMES = {
    "host": "nic-wrong-socket",
    "nic": "rocep49s0",
    "netdev": "ens1np0",
    "gpu": "NVIDIA A100-SXM4-80GB",
    "driver": "580.105.08",
    "kernel": "6.8.0-87-generic",
    "os": "Ubuntu 22.04.4 LTS",
    "vendor": "Example Computers",
    "cpu": "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz",
    "firmware": "22.39.1002",
    "hca": "MT4125",
    "time": "2026-01-01T00:00:00Z",
    "setting": "a-value-of-nccl",
}
"""What is replaced in the recording of MACHINE, wherever it stands: in answers and in the paths that were asked."""

FORGED = "FORGED"
"""Comes after every line break in PIECES: no line of an output may begin with it."""

PIECES = (
    "$(touch pwned)", "`touch pwned`", ";touch pwned;", "|touch pwned", "&&touch pwned", "${HOME}", "' ;touch pwned;'",
    f"\n{FORGED}", f"\r\n{FORGED}: ok", f"\n{FORGED}=touch pwned\n", f"\nNodeName={FORGED}", f"\\\n{FORGED}",
    "\x1b[31m", "\x1b]0;title\x07", "\x9b31m", "\x00", "\x7f", "\x85", "\u2028", "\u202e", "\u2066", "\u200b", "\ufeff",
    "\U000e0041", "\ufffe", "'", '"', "\\", "`", "```", "~~~", "|", "<script>alert(1)</script>", "<!--", "-->", "]]>",
    "](javascript:alert(1))", "![x](http://x)", "[x]", "*x*", "__x__", "# x", "- x", "1. x", "> x", "&lt;", "&amp",
    "$x$", "=1+1", "+1", "-1+1|cmd", "@SUM(A1)", "-rf", "--help", "#", "^", "=", ",", ":", "/", "..", "[1-3]",
    "{{7*7}}", "%s", " ", " " * 90, "\t", "x" * 300, "GPU0", "mlx5_0", "é", "日本",
)  # fmt: skip


def _name(pieces: list[str]) -> str:
    """Return a name; where a reader strips it, it does not begin with what marks a forged line."""
    text = "".join(pieces)
    return f"n{text}" if text.lstrip().startswith(FORGED) else text


names = st.fixed_dictionaries({k: st.lists(st.sampled_from(PIECES), max_size=4).map(_name) for k in NAMES})


def spelt(value: Any, words: Mapping[str, str], *, whole: bool = False) -> Any:
    """Return a value with words replaced in all its texts, those of keys included; only whole texts where `whole`."""
    if isinstance(value, str):
        if whole:
            return words.get(value, value)
        for old, new in words.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, bytes):
        for old, new in words.items():
            value = value.replace(old.encode(), new.encode())
        return value
    if isinstance(value, dict):
        return {spelt(k, words, whole=whole): spelt(v, words, whole=whole) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [spelt(v, words, whole=whole) for v in value]
    return value


def restruct(made: Any, words: Mapping[str, str]) -> Any:
    """Return a struct with whole texts in it replaced."""
    return msgspec.convert(spelt(msgspec.to_builtins(made), words, whole=True), type(made))


@functools.cache
def _recorded() -> dict[str, Answer]:
    settings = {"NCCL_SOCKET_IFNAME": NAMES["netdev"], "NCCL_DEBUG": NAMES["setting"], "NCCL_ALGO": NAMES["setting"]}
    settings |= {
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": NAMES["host"],
    }
    # Two faults, so that there are findings with names in them: half the lanes of a GPU, a port that is down.
    return record(MACHINE, environment=settings, patch={"GPU1": {"now": "4x8"}})


def hostile_answers(given: Mapping[str, str]) -> dict[str, Answer]:
    """Return the answers of MACHINE with the names of `given` in place of its own."""
    words = {NAMES[k]: v for k, v in given.items()}
    answers: dict[str, Answer] = {}
    for question, answer in _recorded().items():
        if isinstance(answer, HostError):
            answers[spelt(question, words)] = HostError(answer.reason, spelt(answer.detail, words))
        else:
            answers[spelt(question, words)] = spelt(answer, words)
    return answers


def hostile_recording(path: Path, given: Mapping[str, str]) -> Path:
    """Save what `hostile_answers` returns; return `path`."""
    snapshot.save(str(path), hostile_answers(given), probe_set=PROBE_SET_VERSION)
    return path


def unseen(text: str) -> set[str]:
    """Return the characters that a terminal acts on or that hide what there is, by Unicode's own categories."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return {c for c in set(text) if unicodedata.category(c) in hidden and c not in "\n\t"}


def forged(text: str) -> list[str]:
    """Return the lines that begin as no line of ours does: with what stands behind a line break in a name."""
    return [line for line in text.split("\n") if line.startswith(FORGED)]


_OPENED = {"heading_open", "bullet_list_open", "list_item_open", "paragraph_open", "table_open", "strong_open"}
MARKUP = _OPENED | {x.replace("open", "close") for x in _OPENED} | {
    "thead_open", "thead_close", "tbody_open", "tbody_close", "tr_open", "tr_close", "th_open", "th_close", "td_open",
    "td_close", "inline", "text", "fence", "code_inline", "text_special",
}  # fmt: skip


def markup(text: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, content) of all that a reader of Markdown finds in a text, by markdown-it with GitHub's tables."""
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text):
        yield token.type, token.content
        for inner in token.children or ():
            yield inner.type, inner.content


def shown_of(name: str) -> str:
    """Return a name as it may be shown, without blanks."""
    return "".join("\ufffd" if unseen(c) else "" if c.isspace() else c for c in name)


class Tags(html.parser.HTMLParser):
    """What a browser would find in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, str, str]] = set()
        self.shown: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {(tag, k, v or "") for k, v in attrs} or {(tag, "", "")}

    def handle_data(self, data: str) -> None:
        self.shown.append(data)

    def handle_comment(self, data: str) -> None:
        self.found.add(("comment", "", data))


def safe_cells(rows: list[list[str]]) -> bool:
    """Tell whether no cell of a table would be run by a spreadsheet."""
    cells = [c for r in rows for c in r]
    return all(
        c.lstrip()[:1] not in set("=+-@") or re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", c) for c in cells if c.strip()
    )


class Said(msgspec.Struct, frozen=True):
    """What a command printed, and its exit code."""

    code: int
    out: str
    error: str


def call(*argv: object) -> Said:
    """Run the command line in this process, errors and all."""
    from topocheck.cli.main import main

    out, error = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    old = sys.argv
    sys.argv = ["topocheck", *map(str, argv)]
    code: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), _collected():
            main()
    except SystemExit as e:
        code = e.code or 0
    finally:
        sys.argv = old
    assert isinstance(code, int)
    out.seek(0)
    error.seek(0)
    return Said(code, out.read(), error.read())


@contextlib.contextmanager
def _collected() -> Iterator[None]:
    """Undo what a command that ends soon does to the collector."""
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()
