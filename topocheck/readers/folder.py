"""A folder of files that people hand over: an unpacked sosreport, or the outputs of some commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from topocheck.host.input import read_file, walk
from topocheck.model.base import InputError
from topocheck.readers.archive import MAX_MEMBER_BYTES, MAX_MEMBERS

KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
"""Folders that the kernel makes up: nobody handed these over."""


def names(folder: Path, *, below: bool = True) -> Iterator[str]:
    """Yield the paths within a folder of its files and links. `below`: also of the folders in it.

    Links to folders are not followed. Names that begin with a point are left out.

    Raises:
        InputError: the folder is the kernel's, or holds more than an archive may.
    """
    top = os.path.realpath(folder)
    if top == "/" or any(f"{top}/".startswith(f"{k}/") for k in KERNEL_FOLDERS):
        raise InputError(f"{folder}: this machine's own files; expected a folder of collected ones")
    count = 0
    for at, folders, files in walk(folder):
        links = [f for f in folders if os.path.islink(os.path.join(at, f))]
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in links) if below else []
        for name in sorted((*files, *links)):
            count += 1
            if count > MAX_MEMBERS:
                raise InputError(f"{folder}: more than {MAX_MEMBERS} files; name the folder that holds one machine's")
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(at, name), folder)


def members(folder: Path, *, below: bool = True) -> Iterator[tuple[str, bytes | str]]:
    """Yield (path, bytes of a file or target of a link) of a folder; a file that cannot be read is left out."""
    for name in names(folder, below=below):
        path = os.path.join(folder, name)
        try:
            if os.path.islink(path):
                yield name, os.readlink(path)
            else:
                yield name, read_file(path, MAX_MEMBER_BYTES, "a collected file", regular=True)
        except (InputError, OSError):
            continue
