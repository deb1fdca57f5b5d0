"""What is wrong with the outcome of a case."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
from typing import Any
from xml.etree import ElementTree

from tests.fuzz.case import Case, Finding, Outcome
from tests.fuzz.hostile import FORGED
from tests.fuzz.server import MEMORY_BYTES

KINDS = ("traceback", "hang", "memory", "signal", "exit code", "escape", "forged line", "error line", "form", "schema",
         "order", "left behind")  # fmt: skip
"""What can be wrong, in the order of the table."""

ALLOWED = {
    "report": {0, 2}, "check": {0, 1, 2, 3}, "explain": {0, 2}, "bw": {0, 1, 2, 3}, "nccl": {0, 1, 2},
    "fleet": {0, 1, 2}, "scale": {0, 2, 3}, "diff": {0, 1, 2, 3}, "placement": {0, 1, 2}, "emit": {0, 2},
    "snapshot": {0, 2}, "pcie": {0, 2}, "schema": {0, 2}, "network": {0, 1, 2},
}  # fmt: skip
"""Command -> its exit codes (docs, and the help of each)."""
ALLOWED_CHECK = {"npd": {0, 1, 2}, "nhc": {0, 1, 2}, "slurm-prolog": {0, 1, 2}, "nfd": {0, 2}}
"""Format of `check` -> its exit codes, where they are fewer."""

HOSTILE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""C0 without tab and line feed, DEL, C1, and what turns the direction of text round."""


def judge(case: Case, outcome: Outcome) -> list[Finding]:
    """Return what is wrong with an outcome by itself."""
    command = case.call or (case.words[0] if case.argv else "")
    found = list(_ended(command, outcome))
    if outcome.hung or outcome.error or outcome.signal:
        return found
    found += _code(command, case, outcome)
    for stream, data in (("stdout", outcome.out), ("stderr", outcome.err), *_texts(command, outcome)):
        found += _text(f"{command} {case.option('--format')} {stream}", data)
    if outcome.code == 2 and not case.call:
        found += _error_line(command, outcome)
    elif outcome.code in (0, 1, 3):
        found += _form(command, case.option("--format"), case, outcome)
    found += [
        Finding(kind="left behind", key=f"{command} {re.sub('[^.a-z-]', '', name)[:20]}", detail=name)
        for name in outcome.written
        if name.rpartition("/")[2].startswith(".")
    ]
    return found


def differ(case: Case, one: Outcome, other: Outcome) -> list[Finding]:
    """Return what is wrong where the same case gave two outcomes."""
    if one.hung or other.hung or _draws(case):
        return []
    command = case.call or case.words[0]
    what = [f for f in ("code", "error", "out", "err", "written") if getattr(one, f) != getattr(other, f)]
    if not what:
        return []
    pair = [repr(getattr(o, what[0])) for o in (one, other)]
    at = next((i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), 0)
    detail = " | ".join(p[max(at - 60, 0) : at + 60] for p in pair)
    return [Finding(kind="order", key=f"{command} {case.option('--format')} {what[0]}", detail=detail)]


def _draws(case: Case) -> bool:
    """Tell whether two runs differ by themselves: one draws a key, or looks at this machine and its clock."""
    if case.words[:2] == ("snapshot", "save"):
        return "--keep-identifiers" not in case.words
    live = not case.call and not {"--from", "--smi-topo"} & set(case.words)
    return live and case.words[:1] in (("report",), ("check",), ("placement",), ("emit",), ("bw",), ("diff",))


def _ended(command: str, outcome: Outcome) -> list[Finding]:
    out = []
    if outcome.hung:
        frames = re.findall(
            r'File "[^"]*/topocheck/([^"]+)", line \d+ in (\w+)', outcome.err.decode("utf-8", "replace")
        )
        place = ":".join(frames[0]) if frames else "?"
        out.append(
            Finding(kind="hang", key=f"{command} at {place}", detail=outcome.err.decode("utf-8", "replace")[-1500:])
        )
    if "MemoryError" in outcome.error or b"MemoryError" in outcome.err or outcome.grown_bytes > MEMORY_BYTES * 0.9:
        out.append(Finding(kind="memory", key=f"{command} {outcome.error}", detail=f"{outcome.grown_bytes >> 20} MiB"))
    elif outcome.error:
        out.append(Finding(kind="traceback", key=outcome.error, detail=outcome.trace))
    elif b"Traceback (most recent call last)" in outcome.err:
        text = outcome.err.decode("utf-8", "replace")
        place = (re.findall(r'topocheck/([^"]+)", line \d+, in (\w+)', text) or [("?", "?")])[-1]
        out.append(Finding(kind="traceback", key=f"child, {place[0]}:{place[1]}", detail=text[-3000:]))
    if outcome.signal:
        out.append(
            Finding(
                kind="signal", key=f"{command} {outcome.signal}", detail=outcome.err[-1000:].decode("utf-8", "replace")
            )
        )
    return out


def _code(command: str, case: Case, outcome: Outcome) -> list[Finding]:
    allowed = ALLOWED.get(command, {0, 2})
    if case.words[:2] == ("nccl", "predict"):
        allowed = allowed | {3}
    if command == "check":
        allowed = ALLOWED_CHECK.get(case.option("--format"), allowed)
    if outcome.code in allowed:
        return []
    return [
        Finding(
            kind="exit code",
            key=f"{command} {case.option('--format')} {outcome.code}",
            detail=f"exit code {outcome.code}",
        )
    ]


def _texts(command: str, outcome: Outcome) -> list[tuple[str, bytes]]:
    """Return the files that were written, but not those of `snapshot`: what the machine said as it said it."""
    return list(outcome.written.items()) if command != "snapshot" else []


def _text(where: str, data: bytes) -> list[Finding]:
    text = data.decode("utf-8", "replace")
    out = []
    if " csv " in where or "baselines" in where:
        text = text.replace("\r\n", "\n")  # RFC 4180
    if m := HOSTILE.search(text):
        near = ascii(text[max(m.start() - 60, 0) : m.end() + 40])
        out.append(Finding(kind="escape", key=f"{where} U+{ord(m[0]):04X}", detail=near))
    if "\ufffd" in text and _is_broken(data):
        out.append(Finding(kind="escape", key=f"{where} not UTF-8", detail=""))
    if " csv " not in where and (m := re.search(rf"^{FORGED}", text, re.MULTILINE)):
        near = ascii(text[max(m.start() - 80, 0) : m.end() + 40])
        out.append(Finding(kind="forged line", key=where, detail=near))
    return out


def _is_broken(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as e:
        return e.end < len(data) - 4  # not where it was cut
    return False


def _error_line(command: str, outcome: Outcome) -> list[Finding]:
    """An error is one line that begins with the name of the program, or the help of a group of commands."""
    text = outcome.err.decode("utf-8", "replace")
    if text.startswith("Usage: ") or "nagios" in command:
        return []
    lines = [x for x in text.splitlines() if x.strip()]
    errors = [x for x in lines if x.startswith("topocheck: ")]
    excerpt = [x for x in lines if re.match(r" +[0-9]* +\| ", x)]  # the line that is wrong, and a caret under it
    if errors and len(lines) == len(errors) + len(excerpt) and len(excerpt) <= 2:
        return []
    if command in ("check", "snapshot") and not text and outcome.out:
        return []  # a format whose error goes to standard output
    return [Finding(kind="error line", key=f"{command} {len(lines)} lines", detail=text[:400])]


def _form(command: str, format_: str, case: Case, outcome: Outcome) -> list[Finding]:
    """The output parses as what it says it is."""
    text = outcome.out.decode("utf-8", "replace")
    output = case.option("--output") or case.option("-o")
    if output and "--input" not in case.words:
        text = outcome.written.get(output, b"").decode("utf-8", "replace")
    if "--write-policy" in case.words or text.startswith("Usage: "):
        return []  # says so before it, or was asked for help
    if not text or (case.words[:2] == ("nccl", "topo") and "--input" not in case.words):
        return []
    try:
        if format_ in ("json", "sarif") or command == "schema":
            document = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
            return _schema(command, document) if format_ == "json" else []
        if format_ in ("junit", "svg") or (command == "emit" and {"nccl-topo", "hwloc-xml"} & set(case.words)):
            ElementTree.fromstring(text)
        elif format_ == "csv":
            list(csv.reader(io.StringIO(text), strict=True))
        elif format_ == "prometheus":
            _prometheus(text)
    except (ValueError, ElementTree.ParseError, csv.Error) as e:
        return [Finding(kind="form", key=f"{command} {format_}: {type(e).__name__}", detail=f"{e}: {text[:200]!a}")]
    return []


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [k for k, _ in pairs]
        raise ValueError(f"a name twice: {next(n for n in names if names.count(n) > 1)!r:.80}")
    return out


def _prometheus(text: str) -> None:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        return
    for family in text_string_to_metric_families(text):
        if not family.name:
            raise ValueError("a family without a name")


def _schema(command: str, document: Any) -> list[Finding]:
    validator = _validator(command)
    if validator is None:
        return []
    error = next(iter(validator.iter_errors(document)), None)
    if error is None:
        return []
    path = "/".join("#" if isinstance(p, int) else str(p) for p in error.absolute_path)
    return [Finding(kind="schema", key=f"{command} at {path}", detail=error.message[:300])]


@functools.cache
def _validator(command: str) -> Any:
    from pathlib import Path

    file = Path(__file__).parents[2] / "docs" / "schema" / f"{command}.schema.json"
    if not file.exists():
        return None
    try:
        import jsonschema
    except ImportError:
        return None
    return jsonschema.Draft202012Validator(json.loads(file.read_text()))
