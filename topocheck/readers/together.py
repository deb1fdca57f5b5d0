"""Texts of other programs, archives and snapshots of one machine, put together to one recording."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from topocheck.host.base import Answer, HostError
from topocheck.host.gather.jsonable import plain_text
from topocheck.host.live.filters import kept
from topocheck.host.recording import snapshot
from topocheck.model.base import InputError
from topocheck.model.node import MadeFrom, SourceFile, SourcesDiffer
from topocheck.readers import archive
from topocheck.readers.base import Answers, Reading, Text
from topocheck.readers.files import is_snapshot
from topocheck.readers.merge import Merged, merge
from topocheck.readers.registry import readers, understood
from topocheck.readers.sections import decoded, sections
from topocheck.readers.unseen import statuses, unseen


def joined(files: Sequence[tuple[Path, bytes]]) -> dict[str, Answer]:
    """Return what files say of one machine, of which the bytes are here already; errors as for `files.read_files`."""
    found: list[Reading] = []
    named: list[SourceFile] = []
    for path, data in files:
        name = plain_text("standard input" if str(path) == "-" else path.name)
        readings = list(_readings(name, data))
        if not readings:
            raise InputError(f"{path}: nothing in it is understood; expected one of: {understood()}")
        found += readings
        named.append(SourceFile(name=name, formats=tuple(dict.fromkeys(r.reader for r in readings))))
    merged = merge(found)
    return _with_sources(merged, named)


def _with_sources(merged: Merged, files: list[SourceFile]) -> dict[str, Answer]:
    answers = {q: _kept(q, a) for q, a in merged.answers.items()}
    differ = [SourcesDiffer(**msgspec.structs.asdict(d)) for d in merged.differences]
    made = MadeFrom(files=tuple(files), unseen=unseen(answers), differ=tuple(differ), places=merged.places)
    return statuses(answers) | answers | {"sources:": msgspec.to_builtins(made)}


def _kept(question: str, answer: Answer) -> Answer:
    """Return what may enter of an answer, by the rules for a live machine's (host/live/filters.py)."""
    return answer if isinstance(answer, HostError) else kept(question, answer)


def _readings(name: str, data: bytes) -> Iterator[Reading]:
    if is_snapshot(data):
        yield _snapshot(name, data)
        return
    data = archive.unpacked(name, data)
    if archive.is_tar(data):
        yield from archive.readings(name, data, lambda member, text: _of_text(f"{name}: {member}", text))
        return
    yield from _of_text(name, decoded(data))


RECOGNISED_IN = 4 << 20
"""Characters at the start of a part in which its format must show: every reader looks through them."""


def _of_text(name: str, text: str) -> Iterator[Reading]:
    for part in sections(name, text):
        start = part.text[:RECOGNISED_IN]
        for reader in readers():
            if reader.recognise(start):
                found = reader.read(part.text)
                if found.answers:
                    yield Reading(text=part, reader=reader.name, found=found)


def _snapshot(name: str, data: bytes) -> Reading:
    _, answers = snapshot.read(io.BytesIO(data), repr(name))
    found = Answers()
    # What is recorded of other files stands in their own answers; how probes went is made anew.
    found.answers = {q: a for q, a in answers.items() if not q.startswith(("probe:", "duration:", "sources:"))}
    return Reading(text=Text(name=name, text=""), reader="snapshot", found=found)
