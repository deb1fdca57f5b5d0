"""Sound inputs, from which hostile ones are made. Each is made when first asked for."""

from __future__ import annotations

import functools
import gzip
import io
import json
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.case import Case, command
from tests.fuzz.client import Server
from topocheck.host.base import Answer, HostError
from topocheck.host.recording import snapshot

ROOT = Path(__file__).parents[2]
DESCRIPTIONS = ROOT / "tests" / "machines" / "descriptions"
RECORDINGS = ROOT / "tests" / "recordings"
MEASUREMENTS = ROOT / "docs" / "measurements"
LARGE = frozenset({"thousand_devices"})
"""Machines that take so long that they are taken once in a while only."""
HEADER = {
    "format": "topocheck-snapshot", "format_version": 1, "probe_set": 1, "topocheck_version": "0",
    "identifiers": "kept",
}  # fmt: skip


class Raw(str):
    """JSON as it shall be written."""


@functools.cache
def machines() -> tuple[str, ...]:
    """Return the names of all machines: described ones, and recordings of real ones."""
    return (*sorted(p.stem for p in DESCRIPTIONS.glob("*.toml")), *sorted(p.name for p in RECORDINGS.glob("*.snap")))


def any_machine(rng: Random) -> str:
    """Return the name of a machine; seldom of a large one."""
    name = rng.choice(machines())
    return name if name not in LARGE or rng.random() < 0.1 else any_machine(rng)


@functools.cache
def answers(name: str) -> dict[str, Answer]:
    """Return every question with its answer. Not to be changed."""
    if name.endswith(".snap"):
        return snapshot.load(str(RECORDINGS / name))[1]
    from tests.support.snapshots import record

    return record(name)


@functools.cache
def _lines(name: str) -> dict[str, bytes]:
    return {q: _line(q, a) for q, a in answers(name).items()}


@functools.cache
def _header() -> bytes:
    """Return the header that this version writes."""
    file = io.BytesIO()
    from topocheck.probes.registry import PROBE_SET_VERSION

    snapshot.write(file, {}, probe_set=PROBE_SET_VERSION)
    return gzip.decompress(file.getvalue())


def _line(question: str, answer: Answer) -> bytes:
    if isinstance(answer, Raw):
        return b'{"q":' + json.dumps(question).encode() + b',"a":' + answer.encode("utf-8", "replace") + b"}"
    if isinstance(answer, HostError):
        return json.dumps({"q": question, "e": [answer.reason, answer.detail]}).encode()
    if isinstance(answer, bytes):
        import base64

        try:
            return json.dumps({"q": question, "t": answer.decode()}).encode()
        except UnicodeDecodeError:
            return json.dumps({"q": question, "b": base64.b64encode(answer).decode()}).encode()
    return json.dumps({"q": question, "a": answer}, default=str).encode()


def recording_text(name: str, changed: dict[str, Answer] | None = None, gone: set[str] = frozenset()) -> bytes:  # type: ignore[assignment]
    """Return the lines of a recording of a machine, some of its answers changed, or gone."""
    lines = _lines(name)
    out = [_header().rstrip(b"\n")]
    out += [line for q, line in lines.items() if q not in gone and (changed is None or q not in changed)]
    if changed:
        out += [_line(q, a) for q, a in changed.items()]
    return b"\n".join(out) + b"\n"


def packed(text: bytes) -> bytes:
    """Return the bytes of a recording from its lines."""
    return gzip.compress(text, 1, mtime=0)


@functools.cache
def recording(name: str) -> bytes:
    """Return the bytes of a recording of a machine."""
    return packed(recording_text(name))


_servers: list[Server] = []


@functools.cache
def output(name: str, *words: str) -> bytes:
    """Return what a command prints of a machine; `@` stands for its recording."""
    if not _servers:
        _servers.append(Server())
    argv = command(*("in.snap" if w == "@" else w for w in words))
    outcome = _servers[0].run(Case(argv=argv, files={"in.snap": recording(name)}))
    if outcome.code not in (0, 1, 3):
        raise RuntimeError(f"{words} on {name}: {outcome.code} {outcome.err!r}")
    return outcome.out


@functools.cache
def report(name: str) -> Any:
    """Return the JSON report of a machine, decoded. Not to be changed."""
    return json.loads(output(name, "report", "--from", "@", "--format", "json"))


@functools.cache
def files(pattern: str) -> tuple[str, ...]:
    """Return the texts of files below docs/measurements."""
    return tuple(p.read_text() for p in sorted(MEASUREMENTS.glob(pattern)))
