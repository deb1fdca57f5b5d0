"""Texts of other programs, archives and snapshots of one machine, put together to one recording."""

from __future__ import annotations

import io
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from topocheck.host.base import Answer, HostError
from topocheck.host.gather.jsonable import plain_text
from topocheck.host.live.filters import kept
from topocheck.host.recording import snapshot
from topocheck.model.base import InputError
from topocheck.model.excerpt import excerpt
from topocheck.model.node import MadeFrom, SourceFile, SourcesDiffer
from topocheck.readers import archive, folder, headings
from topocheck.readers.base import JSON_REPORT, Answers, Reading, Text
from topocheck.readers.collected import Collected
from topocheck.readers.machines import Machine, machines
from topocheck.readers.merge import Merged, merge
from topocheck.readers.pci_answers import DEVICES
from topocheck.readers.registry import readers, understood
from topocheck.readers.sections import decoded, sections
from topocheck.readers.unseen import statuses, unseen
from topocheck.readers.xml_tree import XmlError

_WHOLE_TEXT = (b"Start of NVIDIA bug report log file", b'"topocheck_version"')
_WHOLE_WITHIN = 4096
RECORDINGS = ("snapshot", JSON_REPORT)
"""Readers of files that topocheck made, each of which is a machine at one moment."""


def joined(files: Sequence[tuple[Path, bytes | None]]) -> dict[str, Answer]:
    """Return what files say of one machine, of which the bytes are here already; None for a folder.

    Raises:
        InputError: as for `files.read_files`, or an archive holds several machines.
    """
    found: list[Reading] = []
    named: list[SourceFile] = []
    recorded: list[Path] = []
    for path, data in files:
        name = "standard input" if str(path) == "-" else plain_text(path.name)
        of_file = machines_in(path) if data is None else machines_of(name, data)
        several = [m.name for m in of_file if m.readings]
        if sum(m.certain for m in of_file) > 1:
            shown = ", ".join(map(plain_text, several[:4])) + (", ..." if len(several) > 4 else "")
            raise InputError(f"{path}: holds {len(several)} machines ({shown}); topocheck fleet compares them")
        readings = [r for m in of_file for r in m.readings]
        if not readings:
            why = "is empty" if data == b"" or is_empty(path) else "nothing in it is understood"
            raise InputError(f"{path}: {why}; expected {understood()}")
        if any(r.reader in RECORDINGS for r in readings):
            recorded.append(path)
        if len(recorded) > 1:
            two = f"{recorded[0]} {recorded[1]}"
            raise InputError(
                f"{recorded[1]}: a second recording of a machine; --from takes one, with texts that add to it. Two "
                f"machines, or two moments of one, are compared by: topocheck diff {two}"
            )
        found += readings
        named.append(source(name, readings, [u for m in of_file for u in (*m.unread, *m.not_understood)]))
    return recording(found, named)


def source(name: str, readings: Sequence[Reading], unread: Sequence[str] = ()) -> SourceFile:
    """Return what is said of a file: its name and what was recognised in it."""
    return SourceFile(name=name, formats=tuple(dict.fromkeys([*(r.reader for r in readings), *map(_not_read, unread)])))


def is_empty(path: Path) -> bool:
    """Tell whether a path names a regular file without content."""
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def _not_read(why: str) -> str:
    return f"not read: {why}"


def recording(readings: Sequence[Reading], files: Sequence[SourceFile]) -> dict[str, Answer]:
    """Return the answers of one machine's readings as those of a recording, with where each comes from."""
    merged = merge(readings)
    return _with_sources(merged, list(files))


def _with_sources(merged: Merged, files: list[SourceFile]) -> dict[str, Answer]:
    answers = {q: _kept(q, a) for q, a in merged.answers.items()}
    differ = [SourcesDiffer(**msgspec.structs.asdict(d)) for d in merged.differences]
    made = MadeFrom(
        files=tuple(files),
        unseen=unseen(answers),
        differ=tuple(differ),
        places=merged.places,
        selection=f"list:{DEVICES}" not in merged.whole,
    )
    return statuses(answers) | answers | {"sources:": msgspec.to_builtins(made)}


def _kept(question: str, answer: Answer) -> Answer:
    """Return what may enter of an answer, by the rules for a live machine's (host/live/filters.py)."""
    return answer if isinstance(answer, HostError) else kept(question, answer)


def machines_of(name: str, data: bytes, *, alike_apart: bool = False) -> list[Machine]:
    """Return the machines that a file tells of; one, without a name, where it is no archive.

    `alike_apart`: as for `machines_in`.

    Raises:
        InputError: it is damaged, or larger than is read.
    """
    if snapshot.is_snapshot(data):
        return [Machine(name="", readings=[_snapshot(name, data)])]
    unpacked = archive.unpacked(name, data, snapshot.is_snapshot)
    if archive.is_archive(unpacked):
        names, members = archive.names(name, unpacked), archive.members(name, unpacked)
        return machines(name, names, members, of_bytes, is_whole, alike_apart=alike_apart)
    parts: list[Text] = []
    readings = list(of_bytes(name, unpacked, not_understood=parts))
    return [Machine(name="", readings=readings, not_understood=_named(parts))]


def machines_in(
    path: Path, *, below: bool = True, alike_apart: bool = False, leave_out: tuple[str, ...] = ()
) -> list[Machine]:
    """Return the machines that the files of a folder tell of.

    Args:
        path: the folder.
        below: also of the folders in it.
        alike_apart: files that are all of the same format are each of a machine (`node1.txt`, `node2.txt`).
        leave_out: endings of names of files that are read elsewhere.

    Raises:
        InputError: it cannot be read, or holds more than is read.
    """
    name = plain_text(path.name or str(path))
    names = [n for n in folder.names(path, below=below) if not n.endswith(leave_out)]
    members = (m for m in folder.members(path, below=below) if not m[0].endswith(leave_out))
    return machines(name, names, members, of_bytes, is_whole, alike_apart=alike_apart)


def is_whole(data: bytes) -> bool:
    """Tell whether a file is what one machine's state was collected to, and not one output of many."""
    return snapshot.is_snapshot(data) or any(mark in data[:_WHOLE_WITHIN] for mark in _WHOLE_TEXT)


def of_bytes(name: str, data: bytes, heading: str = "", not_understood: list[Text] | None = None) -> Iterator[Reading]:
    """Yield what a file says that is no archive: a snapshot, or a text.

    Args:
        name: of the file.
        data: what it holds.
        heading: the command that printed it.
        not_understood: is given the parts that a command or a fence begins and no reader takes.
    """
    if snapshot.is_snapshot(data):
        yield _snapshot(name, data)
        return
    mine = not_understood if not_understood is not None and not is_whole(data) else []
    yield from _of_text(name, decoded(data), heading, mine)


_COMMAND_WORDS = re.compile(r"(?:sudo )?(?:/[\w./\-]*/)?([A-Za-z][\w.\-]{1,30})(?: ([a-z][a-z\-]{1,15})\b(?![/.=]))?")
MAX_NAMED = 6


def _named(parts: list[Text]) -> list[str]:
    """Return in words which parts of a text were not understood: line and program, or its lines.

    Of a command no more than two words: others may be names and keys.
    """
    named = []
    for part in parts:
        last = part.first_line + part.text.rstrip().count("\n")
        m = _COMMAND_WORDS.match(part.heading)
        command = f"{' '.join(filter(None, m.groups()))} (line {part.first_line})" if m else ""
        named.append(command or f"lines {part.first_line}-{last}")
    more = [f"and {len(named) - MAX_NAMED} more parts"] if len(named) > MAX_NAMED else []
    return [", ".join([*named[:MAX_NAMED], *more])] if named else []


RECOGNISED_IN = 4 << 20
"""Characters at the start of a part in which its format must show: every reader looks through them."""


LEAST_LINES = 3
"""Lines of a part between fences that is worth naming where it is not understood."""


def _of_text(name: str, text: str, heading: str, not_understood: list[Text]) -> Iterator[Reading]:
    files = Collected()
    for part in sections(name, text, heading):
        if headings.of_other_boot(part.heading) or headings.is_foreign(part.heading) or files.take(part):
            continue
        start = part.text[:RECOGNISED_IN]
        if headings.of_many_boots(part.heading) and "Linux version " not in part.text:
            continue  # which of its lines are of the last start is not known
        understood_here = False
        for reader in readers():
            if reader.recognise(start):
                try:
                    found = reader.read(part.text)
                except XmlError as e:
                    line = e.line + part.first_line - 1
                    raise InputError(
                        f"{part.name}: line {line}, column {e.column}: {e.what} ({reader.name})",
                        excerpt=excerpt(part.text, (e.line, e.column), part.first_line),
                    ) from None
                if found.answers:
                    understood_here = True
                    yield Reading(text=part, reader=reader.name, found=found)
        if not understood_here and _is_an_output(part):
            not_understood.append(part)
    if (reading := files.reading(name)) is not None:
        yield reading


def _is_an_output(part: Text) -> bool:
    """Tell whether a part is what a program printed: behind its command, or between fences. Prose is neither."""
    first, _, rest = part.text.partition("\n")
    if part.heading:
        return headings.is_command(part.heading) and bool(rest.strip())
    return first.lstrip().startswith(("```", "~~~")) and rest.strip().count("\n") + 1 >= LEAST_LINES


def _snapshot(name: str, data: bytes) -> Reading:
    _, answers = snapshot.read(io.BytesIO(data), repr(name))
    found = Answers()
    # What is recorded of other files stands in their own answers; how probes went is made anew.
    found.answers = {q: a for q, a in answers.items() if not q.startswith(("probe:", "duration:", "sources:"))}
    return Reading(text=Text(name=name, text=""), reader="snapshot", found=found)
