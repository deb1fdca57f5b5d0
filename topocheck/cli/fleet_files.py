"""Reading many reports and snapshots on all cores, with bounded memory; a bad file loses only itself."""

from __future__ import annotations

import gzip
import io
import multiprocessing
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from topocheck.compare.collect import Collection, Row, row
from topocheck.compare.facts import node_facts
from topocheck.compare.lean import decode, from_document
from topocheck.compare.types import BadFile, NodeFacts
from topocheck.host.plain import plain_text
from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.policy.types import Policy

MAX_BYTES = 64 << 20
"""Of one report, compressed or not; an 8-GPU report has about half a megabyte."""
CHUNK = 8
"""Files handed to a process at a time."""
ENDINGS = (".json", ".json.gz", ".snapshot", ".snap", ".topocheck", ".tcs", ".gz")
"""Files taken from a folder; a file named on the command line may be called anything."""

MAX_LOOKED_AT = 200_000
"""Names in the folders of one path; the reports of ten thousand nodes over many days are fewer."""
KERNEL_FOLDERS = frozenset({"/proc", "/sys", "/dev"})
"""Folders that the kernel makes up: no report lies there."""

_SNAPSHOT_START = b'{"format":"topocheck-snapshot"'


class _Read(msgspec.Struct, array_like=True):
    """What one chunk of files held."""

    rows: list[Row]
    bad: list[BadFile]


_READ = msgspec.msgpack.Decoder(_Read)


def find_files(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the files that `paths` name: files, folders with all below them, and patterns (`run7/*.json`).

    Raises:
        InputError: a path names nothing, or a folder with more in it than reports.
    """
    for path in paths:
        if path.is_dir():
            yield from _below(path)
        elif path.exists():
            yield str(path)
        elif any(c in str(path) for c in "*?["):
            import glob

            found = sorted(glob.glob(str(path), recursive=True))
            if not found:
                raise InputError(f"{path}: no file matches; expected reports or snapshots")
            yield from found
        else:
            raise InputError(f"{path}: no such file or folder")


def _below(folder: Path) -> Iterator[str]:
    looked_at = 0
    # Symbolic links to folders are not followed: they may lead in circles. The folder itself may be one.
    for at, folders, names in os.walk(folder, followlinks=False):
        looked_at += len(folders) + len(names)
        if looked_at > MAX_LOOKED_AT:
            raise InputError(
                f"{folder}: more than {MAX_LOOKED_AT} files and folders below it; "
                "name the folder that holds the reports"
            )
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not _of_kernel(at, f))
        for name in sorted(names):
            if name.endswith(ENDINGS) and not name.startswith("."):
                yield os.path.join(at, name)


def _of_kernel(at: str, name: str) -> bool:
    return os.path.abspath(os.path.join(at, name)) in KERNEL_FOLDERS


def read_facts(file: str, policy: Policy | None = None) -> NodeFacts:
    """Return what is compared of one file: a JSON report, gzip'd or not, or a snapshot, which is judged first.

    Raises:
        InputError: the file cannot be used.
    """
    data, compressed = _read(file)
    if compressed and data.startswith(_SNAPSHOT_START):
        return _snapshot_facts(file, policy)
    return node_facts(decode(data, file), file=plain_text(file))


def _read(file: str) -> tuple[bytes, bool]:
    try:
        # Not blocking: opening a FIFO would wait for a writer.
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(fd, "rb") as f:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{file}: no regular file; expected a report or a snapshot")
            if status.st_size > MAX_BYTES:
                raise InputError(f"{file}: larger than {MAX_BYTES >> 20} MiB; expected a report or a snapshot")
            data = f.read(MAX_BYTES + 1)
        if not data.startswith(b"\x1f\x8b"):
            return data, False
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            start = stream.read(len(_SNAPSHOT_START))
            rest = b"" if start == _SNAPSHOT_START else stream.read(MAX_BYTES + 1)
    except OSError as e:
        raise InputError(f"{file}: cannot be read: {e.strerror or e}") from None
    except (EOFError, zlib.error) as e:
        raise InputError(f"{file}: damaged gzip file: {e}") from None
    except ValueError as e:
        raise InputError(f"{file}: cannot be read: {e}") from None
    if len(rest) > MAX_BYTES:
        raise InputError(f"{file}: larger than {MAX_BYTES >> 20} MiB when unpacked; expected a report")
    return start + rest, True


def _snapshot_facts(file: str, policy: Policy | None) -> NodeFacts:
    import topocheck
    from topocheck.host.base import Host, RecordedBackend
    from topocheck.host.snapshot import load
    from topocheck.pipeline import build_report
    from topocheck.render.document import report_document

    header, answers = load(file)
    name = plain_text(file)
    report = build_report(Host(RecordedBackend(answers), os.path.basename(name)), policy)
    facts = node_facts(from_document(report_document(report, topocheck.__version__)), file=name)
    if header.identifiers == "replaced":
        # Replaced under another key in each recording: they say nothing of another look at the same node.
        facts = msgspec.structs.replace(facts, identifiers={}, rails=(), renamed=True)
    return facts


def _chunk(files: Sequence[str], policy: Policy | None) -> bytes:
    """Read some files, in a process of its own; returns packed rows and bad files."""
    out = _Read([], [])
    for file in files:
        try:
            out.rows.append(row(read_facts(file, policy)))
        except InputError as e:
            out.bad.append(_bad(file, str(e)))
        except Exception as e:  # noqa: BLE001 - one bad file must never take the others with it
            out.bad.append(_bad(file, f"topocheck's own fault on this file: {type(e).__name__}: {e}"))
    return msgspec.msgpack.encode(out)


def _bad(file: str, why: str) -> BadFile:
    why = why.removeprefix(f"{file}: ").removeprefix(f"{file!r}: ")
    return BadFile(file=plain_text(file), why=plain_text(why[:300]))


def read_all(
    files: Iterable[str], *, processes: int = 0, policy: Policy | None = None
) -> tuple[Collection, list[BadFile]]:
    """Read files on `processes` processes (0: one per CPU this process may use) and return what they hold.

    At most a few chunks per process are under way at a time, whatever the number of files.
    """
    collection, bad = Collection(), list[BadFile]()

    def take(packed: bytes) -> None:
        read = _READ.decode(packed)
        bad.extend(read.bad)
        for r in read.rows:
            collection.add(r)

    chunks = _chunks(files)
    first = list(islice(chunks, 2))
    n = processes or len(os.sched_getaffinity(0))
    if n == 1 or len(first) < 2:
        for c in _joined(first, chunks):
            take(_chunk(c, policy))
        return collection, bad
    left: list[list[str]] = []
    _in_pool(_joined(first, chunks), n, policy, take, left)
    for c in left:
        for file in c:
            # The process that read this chunk died; each of its files gets a process of its own, to know the bad one.
            again: list[list[str]] = []
            _in_pool(iter([[file]]), 1, policy, take, again)
            bad += [_bad(f, "the process that read it was killed (out of memory?)") for x in again for f in x]
    return collection, bad


def _in_pool(
    chunks: Iterator[list[str]], n: int, policy: Policy | None, take: Callable[[bytes], None], left: list[list[str]]
) -> None:
    """Read chunks in a pool, a new one whenever a process of it dies; chunks lost that way go to `left`."""
    # Forked: ready at once, and nothing of this command runs in threads that a fork could break.
    context = multiprocessing.get_context("fork")
    while True:
        pending: dict[Future[bytes], list[str]] = {}
        broken = False
        with ProcessPoolExecutor(n, mp_context=context) as pool:
            try:
                for c in chunks:
                    left.append(c)
                    pending[pool.submit(_chunk, c, policy)] = c
                    left.pop()
                    if len(pending) < 3 * n:
                        continue
                    done, _ = wait(pending, return_when=FIRST_COMPLETED)
                    for future in done:
                        take(future.result())
                        del pending[future]
                for future in list(pending):
                    take(future.result())
                    del pending[future]
            except BrokenProcessPool:
                broken = True
                for future, c in pending.items():
                    if future.done() and not future.cancelled() and future.exception() is None:
                        take(future.result())
                    else:
                        left.append(c)
        if not broken:
            return


def _chunks(files: Iterable[str]) -> Iterator[list[str]]:
    it = iter(files)
    while c := list(islice(it, CHUNK)):
        yield c


def _joined(first: list[list[str]], rest: Iterator[list[str]]) -> Iterator[list[str]]:
    yield from first
    yield from rest
