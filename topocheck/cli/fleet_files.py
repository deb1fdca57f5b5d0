"""Reading many reports and snapshots on all cores, with bounded memory; a bad file loses only itself."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from topocheck.compare.decode import decode, from_document
from topocheck.compare.facts import node_facts
from topocheck.compare.store import Collection, Row, row
from topocheck.compare.types import NodeFacts, UnreadableFile
from topocheck.host.gather.jsonable import plain_text
from topocheck.host.input import read_file, walk
from topocheck.model.base import InputError
from topocheck.parallel import Lost, in_children

if TYPE_CHECKING:
    from topocheck.host.base import Answer
    from topocheck.policy.types import Policy

MAX_BYTES = 64 << 20
"""Of one report, compressed or not; an 8-GPU report has about half a megabyte."""
MAX_VALUES = 6_000_000
"""Commas and opening brackets of a report, which bound its values: they take far more memory than text."""
CHUNK = 8
"""Files handed to a process at a time."""
ENDINGS = (".json", ".json.gz", ".snapshot", ".snap", ".topocheck", ".tcs")
"""Reports and snapshots in a folder; a file named on the command line may be called anything."""
RECORDINGS = (".jsonl", ".jsonl.gz")
"""Recordings of `topocheck watch`, which `--against` compares (fleet_growth.py)."""
TEXTS = (".txt", ".log", ".out", ".xml", ".gz", ".xz", ".bz2", ".tar", ".tgz", ".txz", ".tbz", ".tbz2", ".zip")
"""Files in a folder that may be outputs of commands, or archives; so may those without an ending."""

MAX_LOOKED_AT = 200_000
"""Names in the folders of one path; the reports of ten thousand nodes over many days are fewer."""
KERNEL_FOLDERS = frozenset({"/proc", "/sys", "/dev"})
"""Folders that the kernel makes up: no report lies there."""

_SNAPSHOT_START = b'{"format":"topocheck-snapshot"'


class _Read(msgspec.Struct, array_like=True):
    """What one chunk of files held."""

    rows: list[Row]
    bad: list[UnreadableFile]


_READ = msgspec.msgpack.Decoder(_Read)
_NAMES = msgspec.msgpack.Decoder(list[bytes])


def find_files(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the files that `paths` name: files, folders with all below them, and patterns (`run7/*.json`).

    A folder that holds outputs of commands, or the tree of a sosreport, is yielded too, with a `/` at its end.

    Raises:
        InputError: a path names nothing, or a folder with more in it than reports.
    """
    for path in paths:
        try:
            is_folder = stat.S_ISDIR(os.stat(path).st_mode)
        except (OSError, ValueError) as e:  # ValueError: a NUL in the path
            yield from _matching(path, e)
        else:
            yield from _below(path) if is_folder else (str(path),)


def _matching(path: Path, error: OSError | ValueError) -> list[str]:
    """Return the files that a pattern matches. `error` is what was said of the path as that of a file."""
    if any(c in str(path) for c in "*?["):
        import glob

        if found := sorted(glob.glob(str(path), recursive=True)):
            return found
        raise InputError(f"{path}: no file matches; expected reports or snapshots")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        raise InputError(f"{path}: no such file or folder")
    why = error.strerror if isinstance(error, OSError) else error
    raise InputError(f"{path}: cannot be read: {why}")


def _below(folder: Path) -> Iterator[str]:
    looked_at = 0
    # Symbolic links to folders are not followed: they may lead in circles. The folder itself may be one.
    for at, folders, names in walk(folder):
        looked_at += len(folders) + len(names)
        if looked_at > MAX_LOOKED_AT:
            raise InputError(
                f"{folder}: more than {MAX_LOOKED_AT} files and folders below it; "
                "name the folder that holds the reports"
            )
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not _of_kernel(at, f))
        if _is_machine(folders):
            yield os.path.join(at, "")
            folders[:] = []
            continue
        shown = [n for n in sorted(names) if not n.startswith(".")]
        shown = [n for n in shown if not n.endswith(RECORDINGS)]
        yield from (os.path.join(at, n) for n in shown if n.endswith(ENDINGS))
        if any(not n.endswith(ENDINGS) and (n.lower().endswith(TEXTS) or "." not in n) for n in shown):
            yield os.path.join(at, "")


def _is_machine(folders: list[str]) -> bool:
    """Tell whether a folder holds one machine's own files: an unpacked sosreport, or what hwloc gathers."""
    return "sos_commands" in folders or {"proc", "sys"} <= set(folders)


def _of_kernel(at: str, name: str) -> bool:
    return os.path.abspath(os.path.join(at, name)) in KERNEL_FOLDERS


def read_facts(file: str, policy: Policy | None = None) -> NodeFacts:
    """Return what is compared of one machine: of a JSON report, a snapshot, or texts, an archive or folder of them.

    Raises:
        InputError: it cannot be used, or is of several machines.
    """
    if os.path.isdir(file):
        from topocheck.readers.files import read_files

        return _judged(file, read_files([Path(file)]).answers, policy)
    found, bad = read_many(file, policy)
    if len(found) != 1:
        why = f"holds {len(found)} machines; topocheck fleet compares them" if found else bad[0].reason
        raise InputError(f"{file}: {why}")
    return found[0]


def read_many(
    file: str, policy: Policy | None = None, *, regular: bool = False
) -> tuple[list[NodeFacts], list[UnreadableFile]]:
    """Return what is compared of each machine in a file or folder, and what of it could not be read.

    A JSON report (gzip'd or not) and a snapshot, which is judged first, are one machine each; an archive may hold many,
    and so may a folder (its name ends with `/`). `regular`: a FIFO is refused, as among the files of a folder.

    Raises:
        InputError: nothing of it can be used.
    """
    if file.endswith("/"):
        return _machines(file, None, policy)
    data = read_file(file, MAX_BYTES, "a report, a snapshot, a text or an archive", regular=regular)
    if data.startswith(b"\x1f\x8b"):
        start, report = _unpacked(data, file)
        if start == _SNAPSHOT_START:
            return [_snapshot_facts(file, data, policy)], []
        if not report:
            return _machines(file, data, policy)
        data = start + report
    if data.lstrip()[:1] != b"{":
        return _machines(file, data, policy)
    if data.count(b",") + data.count(b"{") + data.count(b"[") > MAX_VALUES:
        raise InputError(f"{file}: holds more than {MAX_VALUES} values; expected a report")
    return [node_facts(decode(data, file), file=plain_text(file))], []


def _machines(file: str, data: bytes | None, policy: Policy | None) -> tuple[list[NodeFacts], list[UnreadableFile]]:
    """Return what is compared of each machine of a text, an archive or (without bytes) a folder."""
    from topocheck.readers.together import machines_in, machines_of, recording, source

    path = Path(file)
    if data is None:
        below = _is_machine([n for n in os.listdir(path) if os.path.isdir(path / n)])
        # Several snapshots and reports are each a machine, and were named one by one (`find_files`); one alone may have
        # texts beside it that are of the same machine.
        read_apart = [] if below else [n for n in os.listdir(path) if n.endswith(ENDINGS)]
        leave_out = ENDINGS if len(read_apart) > 1 else ()
        found = machines_in(path, below=below, alike_apart=True, leave_out=leave_out)
    else:
        found = machines_of(plain_text(path.name), data, alike_apart=True)
    bad = [_bad(file, why) for m in found for why in m.unread]
    facts = []
    for m in found:
        if m.readings:
            name = plain_text(path.name if not m.name else os.path.join(file, m.name) if data is None else m.name)
            answers = recording(m.readings, [source(name, m.readings)])
            shown = file if not m.name else f"{file.rstrip('/')}/{m.name}" if data is None else f"{file}: {m.name}"
            facts.append(_judged(shown, answers, policy))
    if not facts and not bad and data is not None:
        from topocheck.readers.registry import understood

        raise InputError(f"{file}: nothing in it is understood; expected {understood()}")
    return facts, bad


def _judged(file: str, answers: dict[str, Answer], policy: Policy | None) -> NodeFacts:
    from topocheck.host.base import Host, RecordedBackend
    from topocheck.model.version import __version__
    from topocheck.pipeline import build_report
    from topocheck.render.report_json import report_document

    report = build_report(Host(RecordedBackend(answers), os.path.basename(plain_text(file))), policy)
    return node_facts(from_document(report_document(report, __version__)), file=plain_text(file))


def _unpacked(data: bytes, file: str) -> tuple[bytes, bytes]:
    """Return the first bytes of a gzip'd file, and the rest of them where it may be a JSON report."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            start = stream.read(len(_SNAPSHOT_START))
            is_json = start.lstrip()[:1] in (b"{", b"") and start != _SNAPSHOT_START
            rest = stream.read(MAX_BYTES + 1) if is_json else b""
    except (OSError, EOFError, zlib.error) as e:
        raise InputError(f"{file}: damaged gzip file: {e}") from None
    if len(rest) > MAX_BYTES:
        raise InputError(f"{file}: larger than {MAX_BYTES >> 20} MiB when unpacked; expected a report")
    return start, rest


def _snapshot_facts(file: str, data: bytes, policy: Policy | None) -> NodeFacts:
    from topocheck.host.recording.snapshot import read

    header, answers = read(io.BytesIO(data), repr(file))
    facts = _judged(file, answers, policy)
    if header.identifiers == "replaced":
        # Replaced under another key in each recording: they say nothing of another look at the same node.
        facts = msgspec.structs.replace(facts, identifiers={}, rails=(), renamed=True)
    return facts


def _chunk(packed: bytes, policy: Policy | None) -> bytes:
    """Read some files, in a process of its own; takes their names and returns rows and bad files, all packed."""
    out = _Read([], [])
    for name in _NAMES.decode(packed):
        file = os.fsdecode(name)
        try:
            found, bad = read_many(file, policy, regular=True)
            out.rows += [row(facts) for facts in found]
            out.bad += bad
        except InputError as e:
            out.bad.append(_bad(file, str(e)))
        except Exception as e:  # noqa: BLE001 - one bad file must never take the others with it
            out.bad.append(_bad(file, f"topocheck's own fault on this file: {type(e).__name__}: {e}"))
    return msgspec.msgpack.encode(out)


def _bad(file: str, why: str) -> UnreadableFile:
    why = why.removeprefix(f"{file}: ").removeprefix(f"{file!r}: ")
    return UnreadableFile(file=plain_text(file), reason=plain_text(why[:300]))


def read_all(
    files: Iterable[str], *, processes: int = 0, policy: Policy | None = None
) -> tuple[Collection, list[UnreadableFile]]:
    """Read files on `processes` processes (0: one per CPU this process may use) and return what they hold.

    At most a few chunks per process are under way at a time, whatever the number of files.
    """
    collection, bad = Collection(), list[UnreadableFile]()
    chunks = _chunks(files)
    first = list(islice(chunks, 2))
    children = 1 if len(first) < 2 else processes or len(os.sched_getaffinity(0))

    def read(packed: Iterator[bytes], children: int) -> Iterator[tuple[bytes, Lost]]:
        for chunk, answer in in_children(packed, lambda names: _chunk(names, policy), children):
            if isinstance(answer, Lost):
                yield chunk, answer
                continue
            got = _READ.decode(answer)
            bad.extend(got.bad)
            for r in got.rows:
                collection.add(r)

    left = [name for chunk, _ in read(chain(first, chunks), children) for name in _NAMES.decode(chunk)]
    # The process that read these died; each of them is read by itself, to know the bad one.
    for chunk, lost in read((_packed([name]) for name in left), max(children, 2)):
        bad += [_bad(os.fsdecode(name), lost.why) for name in _NAMES.decode(chunk)]
    return collection, bad


def _chunks(files: Iterable[str]) -> Iterator[bytes]:
    it = iter(files)
    while names := [os.fsencode(f) for f in islice(it, CHUNK)]:
        yield _packed(names)


def _packed(names: list[bytes]) -> bytes:
    return msgspec.msgpack.encode(names)
