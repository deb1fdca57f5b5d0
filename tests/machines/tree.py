"""A file tree in memory: what a described machine shows under /sys, /proc, /dev and /etc."""

from __future__ import annotations

import fnmatch
import posixpath
from pathlib import Path
from typing import NamedTuple


class File(NamedTuple):
    """A file: its bytes, and the size that `stat` tells where the kernel tells another (sysfs config files)."""

    data: bytes
    size: int | None = None
    mode: int = 0o644
    uid: int = 0
    mtime: int = 1_767_225_600
    rdev: int = 0
    kind: str = "file"
    device: int = 20


class Dir(NamedTuple):
    """A folder."""

    mode: int = 0o755


class Link(NamedTuple):
    """A symbolic link; the target is as written, relative or absolute."""

    target: str


class Error(NamedTuple):
    """A file that is there and cannot be read: the name of the errno (`EACCES`, `EINVAL`, `EIO`)."""

    errno: str


DENIED = Error("EACCES")

Entry = File | Dir | Link | Error


class TreeError(Exception):
    """A path has no answer; `errno` is the name of the error that the kernel would give."""

    def __init__(self, errno: str, path: str) -> None:
        super().__init__(f"{errno}: {path}")
        self.errno = errno


class Tree:
    """Entries by absolute path. Parent folders come into being by themselves."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {"/": Dir()}
        self._names: dict[str, set[str]] = {"/": set()}
        self._resolved: dict[str, str] = {}  # until an entry changes
        self.file_systems: dict[str, tuple[int, int]] = {}

    def copy(self) -> Tree:
        """Return a tree of the same entries that can be changed by itself."""
        out = Tree()
        out.entries = dict(self.entries)
        out._names = {folder: set(names) for folder, names in self._names.items()}
        out.file_systems = dict(self.file_systems)
        return out

    def put(self, path: str, entry: Entry | str | bytes) -> None:
        """Set one entry; text is encoded, and gets the newline that sysfs and procfs end with."""
        perhaps = "/." in path or "//" in path or path[-1:] == "/"
        if not path.startswith("/") or (perhaps and posixpath.normpath(path) != path):
            raise ValueError(f"not a plain absolute path: {path!r}")
        if isinstance(entry, str):
            entry = File((entry if entry.endswith("\n") or not entry else entry + "\n").encode())
        elif isinstance(entry, bytes):
            entry = File(entry)
        self._resolved.clear()
        parent, _, name = path.rpartition("/")
        parent = parent or "/"
        if parent not in self._names:
            self.put(parent, Dir())
        self._names[parent].add(name)
        self.entries[path] = entry
        if isinstance(entry, Dir):
            self._names.setdefault(path, set())

    def link(self, path: str, to: str) -> None:
        """Make `path` a relative symbolic link to the absolute path `to`, as sysfs writes them."""
        self.put(path, Link(posixpath.relpath(to, posixpath.dirname(path))))

    def remove(self, pattern: str) -> None:
        """Take away every entry that matches, with what lies below it.

        Raises:
            KeyError: nothing matches.
        """
        hits = [p for p in self.entries if p != "/" and fnmatch.fnmatchcase(p, pattern)]
        if not hits:
            raise KeyError(f"no entry matches {pattern}")
        self._resolved.clear()
        for path in hits:
            for below in [p for p in self.entries if p == path or p.startswith(path + "/")]:
                del self.entries[below]
                self._names.pop(below, None)
                parent, name = posixpath.split(below)
                if parent in self._names:
                    self._names[parent].discard(name)

    def resolve(self, path: str, follow_last: bool = True) -> str:
        """Return the path with its links resolved.

        Raises:
            TreeError: ENOENT, ENOTDIR or ELOOP.
        """
        if follow_last and path in self._resolved:
            return self._resolved[path]
        parent, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            return self._walk(path, follow_last)
        # Most files stand in the folder of the last one.
        at = self.resolve(parent) if parent else "/"
        here = f"{at}/{name}" if at != "/" else f"/{name}"
        if isinstance(self.entries.get(here), Link) or not isinstance(self.entries[at], Dir):
            here = self._walk(path, follow_last)
        elif here not in self.entries:
            raise TreeError("ENOENT", path)
        if follow_last:
            self._resolved[path] = here
        return here

    def _walk(self, path: str, follow_last: bool) -> str:
        todo = [p for p in path.split("/") if p and p != "."][::-1]
        at, hops = "/", 0
        while todo:
            name = todo.pop()
            if name == "..":
                at = posixpath.dirname(at)
                continue
            if not isinstance(self.entries[at], Dir):
                raise TreeError("ENOTDIR", path)
            here = posixpath.join(at, name)
            entry = self.entries.get(here)
            if entry is None:
                raise TreeError("ENOENT", path)
            if isinstance(entry, Link) and (todo or follow_last):
                hops += 1
                if hops > 40:
                    raise TreeError("ELOOP", path)
                if entry.target.startswith("/"):
                    at = "/"
                todo += [p for p in entry.target.split("/") if p and p != "."][::-1]
                continue
            at = here
        return at

    def real(self, path: str) -> str:
        """Return where a path that may not exist yet belongs: the links among its parents are followed."""
        parent, name = posixpath.split(path)
        if parent == "/":
            return path
        try:
            return posixpath.join(self.resolve(parent), name)
        except TreeError:
            return posixpath.join(self.real(parent), name)

    def get(self, path: str) -> Entry:
        """Return the entry behind a path, links followed."""
        return self.entries[self.resolve(path)]

    def text(self, path: str) -> str:
        """Return a file as stripped text; for tests."""
        entry = self.get(path)
        if not isinstance(entry, File):
            raise TreeError("EISDIR" if isinstance(entry, Dir) else "EACCES", path)
        return entry.data.decode("utf-8", "replace").strip()

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder."""
        at = self.resolve(path)
        if isinstance(self.entries[at], Error):
            raise TreeError(self.entries[at].errno, path)  # type: ignore[union-attr]
        if at not in self._names or not isinstance(self.entries[at], Dir):
            raise TreeError("ENOTDIR", path)
        return sorted(self._names[at])

    def export(self, folder: Path) -> None:
        """Write the tree to disk. Files that cannot be read and device nodes are left out."""
        for path in sorted(self.entries):
            entry, target = self.entries[path], folder / path.lstrip("/")
            if isinstance(entry, Dir):
                target.mkdir(parents=True, exist_ok=True)
            elif isinstance(entry, Link):
                # An absolute target would leave the folder.
                to = entry.target
                target.symlink_to(posixpath.relpath(to, posixpath.dirname(path)) if to.startswith("/") else to)
            elif isinstance(entry, File) and entry.kind == "file":
                target.write_bytes(entry.data)
