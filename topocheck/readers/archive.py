"""Tar archives: a sosreport, what hwloc-gather-topology collected, or any archive of the texts that are read here.

Nothing is unpacked to disk. Files of the kernel below a common folder (`sys/`, `proc/`, `etc/`) are a machine's own:
the probes ask them, and what they would have been answered is recorded. Every other member is a text like any given
file. What an archive does not hold it does not tell: its collector took some files and not others.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import posixpath
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from topocheck.host.base import Answer, Host, HostError, key
from topocheck.host.gather.jsonable import plain_text
from topocheck.host.live.filters import kernel_option_allowed, variable_allowed
from topocheck.model.base import InputError, Reason
from topocheck.probes.registry import PROBES
from topocheck.readers.base import Answers, Reading, Text
from topocheck.readers.sections import decoded

MAX_MEMBERS = 1 << 17
MAX_MEMBER_BYTES = 32 << 20
MAX_TEXT_BYTES = 192 << 20
"""Of all members that are read."""
MAX_UNPACKED = 512 << 20
MAX_ONE_TEXT = 96 << 20
"""Of one text, unpacked."""
_FILE_BYTES = 1 << 16
"""Of a file below sys/ or proc/; the kernel's are a page, /proc/cpuinfo of a large machine a megabyte."""
_KERNEL = re.compile(r"(?:^|.*?/)((?:sys/(?:bus|devices|class|kernel|module|firmware)|proc|etc|dev|run)/.+)$")
_NO_TEXT = (".rpm", ".deb", ".pcap", ".core", ".so", ".png", ".svg", ".pyc", ".html")
_LINKS = 40


def is_tar(data: bytes | bytearray) -> bool:
    """Tell whether these are the bytes of a tar archive (POSIX ustar: the magic at offset 257)."""
    return data[257:262] == b"ustar"


def unpacked(name: str, data: bytes) -> bytes:
    """Return a file without its compression (gzip, xz, bzip2), as it is where it has none.

    One that is cut short counts as far as it goes, as collectors are often killed.

    Raises:
        InputError: it is damaged from its start, or larger than is read: an archive than MAX_UNPACKED, one text than
            MAX_ONE_TEXT.
    """
    kinds: tuple[tuple[bytes, Any], ...] = (
        (b"\x1f\x8b", gzip.open),
        (b"\xfd7zXZ\x00", lzma.open),
        (b"BZh", bz2.open),
    )
    opens = next((o for start, o in kinds if data.startswith(start)), None)
    if opens is None:
        return data
    out = bytearray()
    try:
        with opens(io.BytesIO(data)) as file:
            while piece := file.read(1 << 20):
                out += piece
                most = MAX_UNPACKED if is_tar(out) else MAX_ONE_TEXT
                if len(out) > most:
                    raise InputError(f"{name}: larger than {most >> 20} MiB when unpacked")
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as e:
        if not out:
            raise InputError(f"{name}: damaged compressed file: {e}") from None
    return bytes(out)


def readings(name: str, data: bytes, of_text: Callable[[str, str], Iterator[Reading]]) -> Iterator[Reading]:
    """Yield what the members of a tar archive say.

    Raises:
        InputError: the archive is damaged from its start.
    """
    tree: dict[str, bytes | str] = {}
    budget = MAX_TEXT_BYTES
    for member, body in _members(name, data):
        kernel = _KERNEL.match(member)
        if kernel and "sos_commands" not in member:
            path = f"/{kernel[1]}"
            tree.setdefault(path, body if isinstance(body, str) else body[:_FILE_BYTES])
        if isinstance(body, bytes) and body and budget > 0 and not member.endswith(_NO_TEXT) and not _is_kernel(kernel):
            budget -= len(body)
            body = unpacked(member, body) if body[:2] == b"\x1f\x8b" else body
            if b"\0" not in body[:4096] or body.startswith((b"\xff\xfe", b"\xfe\xff")):
                yield from of_text(plain_text(member), decoded(body))
    if found := _asked(tree):
        yield Reading(text=Text(name=name, text=""), reader="files of /sys and /proc", found=found)


def _is_kernel(kernel: re.Match[str] | None) -> bool:
    return kernel is not None and kernel[1].startswith(("sys/", "proc/"))


def _members(name: str, data: bytes) -> Iterator[tuple[str, bytes | str]]:
    """Yield (path, bytes of a file or target of a link); whatever else an archive may hold is left out."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for number, member in enumerate(archive):
                if number >= MAX_MEMBERS:
                    return
                path = posixpath.normpath(member.name.lstrip("/"))
                if path.startswith(".."):
                    continue
                if member.issym():
                    yield path, member.linkname
                elif member.isreg() and member.size <= MAX_MEMBER_BYTES:
                    file = archive.extractfile(member)
                    yield path, file.read(MAX_MEMBER_BYTES) if file is not None else b""
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as e:
        if not isinstance(e, tarfile.ReadError | EOFError | OSError):
            raise InputError(f"{name}: damaged tar archive: {e}") from None


def _asked(tree: dict[str, bytes | str]) -> Answers | None:
    """Let the probes ask the tree, and return what it answered."""
    if not tree:
        return None
    backend = _Tree(tree)
    for probe in PROBES:
        if probe.name in ("nvml", "cuda", "programs", "services"):
            continue
        # Whatever a probe makes of the files is made again from the answers, and is reported then.
        with contextlib.suppress(Exception):
            probe.read(Host(backend, "archive"))
    found = Answers()
    found.answers = backend.answered
    found.partial = {q for q in found.answers if q.startswith("list:")}
    return found if found.answers else None


class _Tree:
    """Files and links of an archive as a backend; takes down what it answered. What it lacks was not collected."""

    def __init__(self, entries: dict[str, bytes | str]) -> None:
        self.entries = entries
        self.answered: dict[str, Answer] = {}
        self.children: dict[str, set[str]] = {}
        for path in entries:
            above, _, name = path.rpartition("/")
            while name and name not in self.children.setdefault(above or "/", set()):
                self.children[above or "/"].add(name)
                above, _, name = above.rpartition("/")

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Return the answer of the archive.

        Raises:
            HostError: it has none.
        """
        method = getattr(self, f"_{kind}", None)
        if method is None:
            raise HostError(Reason.NOT_RECORDED, key(kind, args))
        answer = method(*args)
        if answer is None:
            raise HostError(Reason.NOT_RECORDED, key(kind, args))
        self.answered[key(kind, args)] = answer
        return answer

    def _resolve(self, path: str) -> str | None:
        """Return a path with its links resolved; None where it is not here or goes in circles."""
        todo = [p for p in path.split("/") if p][::-1]
        at = ""
        for _ in range(_LINKS * 16):
            if not todo:
                return at if at in self.entries or (at or "/") in self.children else None
            step = todo.pop()
            if step == "..":
                at = at.rpartition("/")[0]
                continue
            entry = self.entries.get(f"{at}/{step}")
            if isinstance(entry, str):
                if entry.startswith("/"):
                    at = ""
                todo += [p for p in entry.split("/") if p and p != "."][::-1]
            elif step != ".":
                at = f"{at}/{step}"
        return None

    def _file(self, path: str) -> bytes | None:
        real = self._resolve(path)
        entry = self.entries.get(real) if real is not None else None
        return entry if isinstance(entry, bytes) else None

    def _read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        body = self._file(path)
        return None if body is None else body[: int(limit)]

    def _lines(self, path: str, *prefixes: str) -> list[str] | None:
        body = self._file(path)
        lines = None if body is None else body.decode("utf-8", "replace").split("\n")
        return None if lines is None else [line for line in lines if line.startswith(prefixes)]

    def _list(self, path: str) -> list[str] | None:
        real = self._resolve(path)
        return sorted(self.children[real]) if real is not None and real in self.children else None

    def _readlink(self, path: str) -> str | None:
        above, _, name = path.rpartition("/")
        real = self._resolve(above)
        entry = self.entries.get(f"{real}/{name}")
        return entry if isinstance(entry, str) else None

    def _realpath(self, path: str) -> str | None:
        return self._resolve(path)

    def _kernel_options(self) -> list[str] | None:
        body = self._file("/proc/cmdline")
        words = None if body is None else body.decode("utf-8", "replace").split()
        return None if words is None else [o for o in words if kernel_option_allowed(o)]

    def _conf(self, path: str) -> list[str] | None:
        body = self._file(path)
        if body is None:
            return None
        out = []
        for number, line in enumerate(body.decode("utf-8", "replace").split("\n"), 1):
            name, sep, _ = line.partition("=")
            if sep and variable_allowed(name.strip()):
                out.append(f"{number}\t{line}")
        return out
