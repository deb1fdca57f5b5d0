"""A recording as a folder of files, for programs that read a captured file system (`lspci -O`, `HWLOC_FSROOT`)."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping

from topocheck.host.base import Answer, HostError
from topocheck.host.snapshot import SnapshotError

_H8, _H2 = "([0-9A-F]{8})", "([0-9A-F]{2})"
_MODALIAS = re.compile(f"pci:v{_H8}d{_H8}sv{_H8}sd{_H8}bc{_H2}sc{_H2}i{_H2}")
_MAX_LINKS = 40  # as the kernel's own limit, fs/namei.c MAXSYMLINKS


def export_tree(answers: Mapping[str, Answer], folder: str) -> int:
    """Write the recorded files, folders and links under `folder`, which must be empty or new; return how many files.

    Links are worked out on paper first and made last, so nothing is ever written through one.

    Raises:
        SnapshotError: a path with `..` or a NUL, a link that leads out of the tree or round in circles, a file
            where another answer needs a folder, `folder` is not empty, or the disk says no.
    """
    links, folders, files = _recorded(answers)
    files = {_resolve(p, links): data for p, data in files.items()}
    folders = {_resolve(p, links) for p in folders}
    real_links = {_place(p, links): _resolve(target, links) for p, target in links.items()}
    try:
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise SnapshotError(f"{folder!r}: not empty; give a new folder")
        root = os.path.realpath(folder)
        for path in folders:
            os.makedirs(root + path, exist_ok=True)
        for path, data in files.items():
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            with open(root + path, "xb") as file:
                file.write(data)
        for path, target in real_links.items():
            if path != target and path not in folders and path not in files:
                os.makedirs(os.path.dirname(root + path), exist_ok=True)
                os.symlink(posixpath.relpath(target, posixpath.dirname(path)), root + path)
    except (OSError, ValueError) as e:
        raise SnapshotError(
            f"{folder!r}: the recorded tree cannot be written: {e.strerror if isinstance(e, OSError) else e}"
        ) from None
    return len(files)


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
