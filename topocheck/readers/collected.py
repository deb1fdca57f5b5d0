"""Files of the kernel that somebody collected: those below sys/ and proc/ of an archive, and those quoted in a text.

The probes ask them, and what they would have been answered is recorded. What was not collected is not answered: its
collector took some files and not others.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Mapping

from topocheck.host.base import Answer, Host, HostError, key
from topocheck.host.live.filters import kernel_option_allowed, variable_allowed
from topocheck.model.base import Reason
from topocheck.probes.registry import PROBES
from topocheck.readers.base import Answers, Reading, Text

FILE_BYTES = 1 << 16
"""Of a file below sys/ or proc/; the kernel's are a page, /proc/cpuinfo of a large machine a megabyte."""
NAME = "files of /sys and /proc"
_LINKS = 40
_QUOTED = re.compile(r"(/(?:sys|proc)(?:/[\w.:,@\-]+)*/[\w.,@\-]+):(.*)")
_NO_TEXT = re.compile(r"(?:cat|head|tail|grep): |.*(?:No such file|Permission denied)")
MAX_QUOTED = 1 << 14


class Collected:
    """Files and links by their path, each with the place where it stands: `archive: member:1`, `file:LINE`."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes | str] = {}
        self.places: dict[str, str] = {}

    def add(self, path: str, body: bytes | str, place: str) -> None:
        """Add a file (bytes) or a link (its target); the first of a path stays."""
        if path not in self.entries:
            self.entries[path] = body if isinstance(body, str) else body[:FILE_BYTES]
            self.places[path] = place

    def take(self, part: Text) -> bool:
        """Take what a part of a text quotes of files; tell whether it was one file and nothing else."""
        if part.heading.startswith(("/sys/", "/proc/")):
            lines = part.text.split("\n")[1:]
            skipped = 1
            while lines and (lines[0].startswith("*** ls: ") or not lines[0].strip()):
                lines, skipped = lines[1:], skipped + 1
            if part.heading.startswith("/sys/"):  # one line but for tables, and what follows is no more of the file
                end = next((n for n, x in enumerate(lines) if not x.strip() or x.startswith("+ ")), len(lines))
                lines = lines[:end]
            body = "\n".join(lines).rstrip("\n")
            if body.strip() and not _NO_TEXT.match(body):
                path = posixpath.normpath(part.heading)
                self.add(path, f"{body}\n".encode(), f"{part.name}:{part.first_line + skipped}")
            return True
        if ":" in part.text and ("/sys/" in part.text or "/proc/" in part.text):
            for number, line in enumerate(part.text.split("\n")[:MAX_QUOTED]):
                if line.startswith("/") and (m := _QUOTED.fullmatch(line[:4096])):
                    self.add(posixpath.normpath(m[1]), f"{m[2]}\n".encode(), f"{part.name}:{part.first_line + number}")
        return False

    def reading(self, name: str) -> Reading | None:
        """Let the probes ask the files, and return what these answered."""
        if not self.entries:
            return None
        backend = _Tree(self.entries)
        for probe in PROBES:
            if probe.name in ("nvml", "cuda", "programs", "services"):
                continue
            # Whatever a probe makes of the files is made again from the answers, and is reported then.
            with contextlib.suppress(Exception):
                probe.read(Host(backend, "archive"))
        found = Answers()
        found.answers = backend.answered
        found.partial = {q for q in found.answers if q.startswith("list:")}
        for question in found.answers:
            path = question.partition(":")[2].partition("|")[0]
            real = backend.resolve(path)
            if place := self.places.get(path) or self.places.get(real or ""):
                found.members[question] = place
        return Reading(text=Text(name=name, text=""), reader=NAME, found=found) if found.answers else None


class _Tree:
    """Files and links as a backend; takes down what it answered. What it lacks was not collected."""

    def __init__(self, entries: Mapping[str, bytes | str]) -> None:
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

    def resolve(self, path: str) -> str | None:
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
        real = self.resolve(path)
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
        real = self.resolve(path)
        return sorted(self.children[real]) if real is not None and real in self.children else None

    def _readlink(self, path: str) -> str | None:
        above, _, name = path.rpartition("/")
        real = self.resolve(above)
        entry = self.entries.get(f"{real}/{name}")
        return entry if isinstance(entry, str) else None

    def _realpath(self, path: str) -> str | None:
        real = self.resolve(path)
        # What lies there are links; a collector that followed them does not say where they lead.
        return None if real == path and path.startswith(("/sys/bus/", "/sys/class/")) else real

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
