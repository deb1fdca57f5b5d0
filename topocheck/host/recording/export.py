"""A recording as a folder of files, for programs that read a captured file system (`lspci -O`, `HWLOC_FSROOT`)."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Mapping

from topocheck.host.base import Answer, HostError
from topocheck.host.output import open_folder
from topocheck.host.recording.snapshot import SnapshotError

_H8, _H2 = "([0-9A-F]{8})", "([0-9A-F]{2})"
_MODALIAS = re.compile(f"pci:v{_H8}d{_H8}sv{_H8}sd{_H8}bc{_H2}sc{_H2}i{_H2}")
_MAX_LINKS = 40  # as the kernel's own limit, fs/namei.c MAXSYMLINKS


def export_tree(answers: Mapping[str, Answer], folder: str) -> int:
    """Write the recorded files, folders and links under `folder`, which must be empty or new; return how many files.

    Links are worked out on paper first and made last, so nothing is ever written through one. Where it fails, the
    folder is empty again.

    Raises:
        SnapshotError: a path with `..` or a NUL, a link that leads out of the tree or round in circles, a file
            where another answer needs a folder, `folder` is not empty, or the disk says no.
    """
    links, folders, files = _recorded(answers)
    files = {_resolve(p, links): data for p, data in files.items()}
    folders = {_resolve(p, links) for p in folders}
    real_links = {_place(p, links): _resolve(target, links) for p, target in links.items()}
    real_links = {p: t for p, t in real_links.items() if p != t and p not in folders and p not in files}
    try:
        with _NewFolder(folder) as top:
            for path in sorted(folders):
                top.enter(path)
            for path in sorted(files):
                top.add_file(path, files[path])
            for path in sorted(real_links):
                top.add_link(path, posixpath.relpath(real_links[path], posixpath.dirname(path)))
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else e
        raise SnapshotError(f"{folder!r}: the recorded tree cannot be written: {why}") from None
    return len(files)


class _NewFolder:
    """An empty folder that is filled by descriptors, so that nobody can turn a part of it into a link meanwhile.

    Where filling it fails, what was put into it is removed again.
    """

    def __init__(self, folder: str) -> None:
        self._top = open_folder(folder, make=True)
        self._opened: list[tuple[str, int]] = []  # the folders from the top down to the last one entered
        if self._listed():
            os.close(self._top)
            raise SnapshotError(f"{folder!r}: not empty; give a new folder")

    def __enter__(self) -> _NewFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave(0)
        try:
            if kind is not None:
                self._empty()
        finally:
            os.close(self._top)

    def enter(self, path: str) -> int:
        """Return a descriptor of a folder, which is made where it is not there; it is closed by the next call."""
        parts = [p for p in path.split("/") if p]
        same = 0
        while same < min(len(parts), len(self._opened)) and self._opened[same][0] == parts[same]:
            same += 1
        self._leave(same)
        for part in parts[same:]:
            at = self._opened[-1][1] if self._opened else self._top
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=at)
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._opened.append((part, os.open(part, flags, dir_fd=at)))
        return self._opened[-1][1] if self._opened else self._top

    def add_file(self, path: str, data: bytes) -> None:
        """Write a new file."""
        folder, _, name = path.rpartition("/")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o644, dir_fd=self.enter(folder)), "wb") as file:
            file.write(data)

    def add_link(self, path: str, target: str) -> None:
        """Make a symbolic link."""
        folder, _, name = path.rpartition("/")
        os.symlink(target, name, dir_fd=self.enter(folder))

    def _leave(self, depth: int) -> None:
        while len(self._opened) > depth:
            os.close(self._opened.pop()[1])

    def _listed(self) -> list[str]:
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._top)
        try:
            return os.listdir(readable)
        finally:
            os.close(readable)

    def _empty(self) -> None:
        import shutil

        for name in self._listed():
            with contextlib.suppress(OSError):
                try:
                    os.unlink(name, dir_fd=self._top)
                except IsADirectoryError:
                    shutil.rmtree(name, ignore_errors=True, dir_fd=self._top)


def _recorded(answers: Mapping[str, Answer]) -> tuple[dict[str, str], set[str], dict[str, bytes]]:
    """Return link -> target, folders, and file -> content, all with paths as they were asked."""
    links: dict[str, str] = {}
    written: dict[str, str] = {}
    folders: set[str] = set()
    files: dict[str, bytes] = {}
    for question, answer in answers.items():
        kind, _, rest = question.partition(":")
        if kind not in ("read", "list", "readlink", "realpath") or isinstance(answer, HostError):
            continue
        path = _clean(rest.split("|")[0])
        if kind == "list":
            folders.add(path)
        elif kind == "read":
            data = answer if isinstance(answer, bytes) else str(answer).encode()
            if len(data) >= len(files.get(path, b"")):
                files[path] = data
        elif kind == "readlink":
            written[path] = str(answer)
        elif _clean(str(answer)) != path:
            links[path] = _clean(str(answer))
    for path in [p for p in files if p.endswith("/modalias")]:
        # No probe asks for it, but without it lspci ends.
        files.setdefault(f"{path.rpartition('/')[0]}/irq", b"0\n")
        for name, data in _ids(files[path].decode("ascii", "replace")).items():
            files.setdefault(f"{path.rpartition('/')[0]}/{name}", data)
    # A relative link counts from where its folder really is; shorter paths first, so that this is known by then.
    for path in sorted(written, key=lambda p: p.count("/")):
        links.setdefault(path, _target(_place(path, links), written[path]))
    return links, folders, files


def _ids(modalias: str) -> dict[str, bytes]:
    """Return the files of a PCI function whose content its modalias repeats (modalias_show, drivers/pci/pci-sysfs.c).

    Readers of a captured tree want `vendor`, `device`, `class` and their like, which topocheck need not ask for.
    """
    m = _MODALIAS.match(modalias)
    if not m:
        return {}
    vendor, device, sub_vendor, sub_device, *code = (part.lower() for part in m.groups())
    four = {"vendor": vendor, "device": device, "subsystem_vendor": sub_vendor, "subsystem_device": sub_device}
    return {n: f"0x{v[-4:]}\n".encode() for n, v in four.items()} | {"class": f"0x{''.join(code)}\n".encode()}


def _clean(path: str) -> str:
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or "\0" in path:
        raise SnapshotError(f"{path[:80]!r}: expected an absolute path without '..'")
    return "/" + "/".join(p for p in parts if p not in ("", "."))


def _target(path: str, target: str) -> str:
    """Return where the link at `path` leads, as a path from the root of the tree; refuses to go above it."""
    at = [] if target.startswith("/") else path.split("/")[1:-1]
    for part in target.split("/"):
        if part == "..":
            if not at:
                raise SnapshotError(f"{path[:80]!r}: the link to {target[:80]!r} leads out of the tree")
            at.pop()
        elif part not in ("", "."):
            at.append(part)
    return _clean("/" + "/".join(at))


def _resolve(path: str, links: Mapping[str, str]) -> str:
    """Return `path` with every recorded link followed."""
    followed = 0
    at, rest = "", path.split("/")[1:]
    while rest:
        step = f"{at}/{rest.pop(0)}"
        if step in links:
            followed += 1
            if followed > _MAX_LINKS:
                raise SnapshotError(f"{path[:80]!r}: links that lead round in circles")
            at, rest = "", links[step].split("/")[1:] + rest
        else:
            at = step
    return at or "/"


def _place(path: str, links: Mapping[str, str]) -> str:
    """Return where the link `path` itself lies: its folder resolved, its own name kept."""
    folder, _, name = path.rpartition("/")
    return posixpath.join(_resolve(folder, links) if folder else "/", name)
