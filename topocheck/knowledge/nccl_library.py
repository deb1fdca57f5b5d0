"""Sets the table of settings beside the names that stand in an NCCL library, to see whether the table is whole."""

import fnmatch
import re
from collections.abc import Iterable

import msgspec

from topocheck.knowledge.nccl import Version, foreign_reader, known_in, parse_version, settings
from topocheck.knowledge.tables import SettingGlob, Source, Table


class LibraryConstant(msgspec.Struct, frozen=True):
    """A name, as a glob, that begins with NCCL_, stands in the library and is no setting."""

    pattern: SettingGlob
    what: str
    source: Source


_CONSTANTS = Table("nccl_library_constants", LibraryConstant, key=("pattern",))

# A name as a string of its own: between two zero bytes.
_NAME = re.compile(rb"(?<=\0)NCCL_[A-Z0-9_]{2,80}(?=\0)")
_VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")
_OVERLAP = 256


def names_in(chunks: Iterable[bytes]) -> tuple[frozenset[str], Version | None]:
    """Return the names in the bytes of a library, and its version where it states one. Keeps one piece at a time."""
    names: set[str] = set()
    version: Version | None = None
    rest = b"\0"
    for chunk in chunks:
        data = rest + chunk
        names.update(m.decode() for m in _NAME.findall(data))
        if version is None and (m := _VERSION.search(data)):
            version = parse_version(m[1].decode())
        rest = data[-_OVERLAP:]
    return frozenset(names), version


def is_constant(name: str) -> bool:
    """Tell whether a name is one of the library's own constants and no setting."""
    return any(fnmatch.fnmatchcase(name, r.pattern) for r in _CONSTANTS.rows())


def unknown_to_table(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that may be settings and that the table does not hold."""
    table = settings()
    return tuple(sorted(n for n in names if n not in table and not foreign_reader(n) and not is_constant(n)))


def absent_from_library(names: Iterable[str], version: Version) -> tuple[str, ...]:
    """Return the settings that the table says a version reads and whose names do not stand in its library."""
    found = set(names)
    return tuple(
        sorted(
            n
            for n, s in settings().items()
            if known_in(s, version) and n not in found and s.status == "current" and s.reads != "text"
        )
    )
