"""All formats, found by walking the folder `formats`: no list is kept anywhere."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil

import topocheck.readers
from topocheck.readers.base import Reader

_FOLDER = "formats"


@functools.cache
def readers() -> tuple[Reader, ...]:
    """Return every reader, by the name of its file."""
    folders = [os.path.join(f, _FOLDER) for f in topocheck.readers.__path__]
    names = sorted(m.name for m in pkgutil.iter_modules(folders))
    return tuple(importlib.import_module(f"topocheck.readers.{_FOLDER}.{name}").READER for name in names)


def understood() -> str:
    """Return what is understood, on one line: a few of the many, and where all are named."""
    return (
        "a snapshot of topocheck, or what one of the programs of docs/readers.md printed (nvidia-smi -q, "
        "nvidia-smi topo -m, lspci -vvv, ibstat, ...), also gzip'd, in a folder, or in a tar or zip archive"
    )
