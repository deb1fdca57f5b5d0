"""What the world knows of NCCL's settings: what each does, since when, its default by version, and who reads it."""

import fnmatch
import functools
import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from topocheck.knowledge.tables import (
    BY_COMMAS,
    Release,
    ReleaseText,
    SettingGlob,
    SettingName,
    Source,
    Table,
    YesNo,
)

TABLE_VERSION = "2.31.2"
"""The NCCL version whose source `nccl_settings.tsv` was made from (stated in its first line too)."""

Version = tuple[int, int, int]


def parse_version(text: str) -> Version | None:
    """Return the version in a text such as `2.28.9+cuda13.0`, `v2.19.4-1`, `<=2.3.5` or `(2, 28, 9)`; None for none.

    A missing patch number counts as 0. NCCL's own integer form (21805, 2708) is read too: thousands before 2.9,
    ten thousands from then on (src/nccl.h.in, NCCL_VERSION).
    """
    if m := re.search(r"(?<![0-9])([0-9]{1,3})\s*[.,]\s*([0-9]{1,3})(?:\s*[.,]\s*([0-9]{1,3}))?", text):
        return int(m[1]), int(m[2]), int(m[3] or 0)
    if m := re.fullmatch(r"\s*([0-9]{4,6})\s*", text):
        n = int(m[1])
        base = 1000 if n < 10000 else 10000
        return n // base, n % base // 100, n % 100
    return None


@functools.cache
def version_key(text: str) -> Version:
    """Return the version in a text that always holds one.

    Raises:
        ValueError: it holds none.
    """
    v = parse_version(text)
    if v is None:
        raise ValueError(f"no version in {text!r}")
    return v


Category = Literal["algo", "debug", "gdr", "ib", "init", "misc", "net", "p2p", "shm", "topo"]
ValueType = Literal["bool", "enum", "int", "list", "path", "size", "string"]
Reads = Literal["integer", "switch", "flag", "word", "words", "exact_word", "level", "text"]
Status = Literal["current", "deprecated", "removed", "unused"]
Limit = Annotated[int, Meta(ge=-(2**31), le=2**63 - 1)]


class NcclSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. Texts are those of `data/nccl_settings.tsv`.

    Attributes:
        reads: how NCCL reads the text: integer, switch (only 1 acts), flag, word, words, exact_word, level, text.
        words: the words it knows, where it reads words.
        minimum, maximum: what it takes without complaint, where it reads a number.
        step: what that number must be a multiple of, or `2^n` for a power of two; None for neither.
        default: in TABLE_VERSION; of a removed name, its last.
        since: first public version that reads it; `<=` where it may be older.
        status_version: since when it is deprecated or removed; None for the other states.
        debug_section: the user guide lists it among those not meant for production.
        risk: what a value can cost, where that is known.
    """

    name: SettingName
    category: Category
    type: ValueType
    accepted: str
    reads: Reads
    words: Annotated[tuple[str, ...], BY_COMMAS] = ()
    minimum: Limit | None = None
    maximum: Limit | None = None
    step: Annotated[int, Meta(ge=2, le=4096)] | Literal["2^n"] | None = None
    default: str
    since: ReleaseText
    status: Status
    status_version: ReleaseText | None = None
    replaced_by: SettingName | None = None
    documented: YesNo
    debug_section: YesNo
    risk: str | None = None
    effect: str
    source: Source

    def __post_init__(self) -> None:
        if (self.status == "current") is not (self.status_version is None):
            raise ValueError("status_version: a version for every status but current, and none for that")


class DefaultChange(msgspec.Struct, frozen=True):
    """The default of a setting from a version on, where it changed."""

    name: SettingName
    from_version: Release
    default: str
    source: Source


class ForeignName(msgspec.Struct, frozen=True):
    """A name, as a glob, that begins with NCCL_ and that others than the core of NCCL read."""

    pattern: SettingGlob
    reader: str
    source: Source


_SETTINGS = Table("nccl_settings", NcclSetting, key=("name",))
_DEFAULTS = Table("nccl_default_history", DefaultChange, key=("name", "from_version"))
_FOREIGN = Table("nccl_foreign_names", ForeignName, key=("pattern",))


@functools.cache
def settings() -> dict[str, NcclSetting]:
    """Return all settings by name."""
    return {s.name: s for s in _SETTINGS.rows()}


@functools.cache
def lookup(name: str) -> NcclSetting | None:
    """Return a setting by its exact name, or None."""
    return next(iter(_SETTINGS.starting(name)), None)


@functools.cache
def nearest(name: str) -> str | None:
    """Return the known name most like `name`, or None where none is near. Case and a missing prefix are forgiven."""
    wanted = name.strip().upper().replace("-", "_")
    if not wanted.startswith("NCCL_"):
        wanted = f"NCCL_{wanted}"
    if wanted in settings():
        return wanted
    import difflib

    found = difflib.get_close_matches(wanted, settings(), n=1, cutoff=0.8)
    return found[0] if found else None


def foreign_reader(name: str) -> str | None:
    """Return who reads a name that the core of NCCL does not read (a plugin, nccl-tests, PyTorch), or None."""
    return next((r.reader for r in _FOREIGN.rows() if fnmatch.fnmatchcase(name, r.pattern)), None)


def known_in(setting: NcclSetting, version: Version) -> bool:
    """Tell whether a version reads this setting."""
    if not setting.since.startswith("<=") and version_key(setting.since) > version:
        return False
    return setting.status != "removed" or version < version_key(setting.status_version or "")


@functools.cache
def _changes(name: str) -> tuple[DefaultChange, ...]:
    return _DEFAULTS.starting(name)


@functools.cache
def default_in(name: str, version: Version | None = None) -> str | None:
    """Return the default of a setting in a version (the table's where None), or None for an unknown name."""
    s = lookup(name)
    if s is None:
        return None
    history = _changes(name)
    if version is None or not history or history[-1].from_version <= version:
        return s.default
    past = [r.default for r in history if r.from_version <= version]
    return past[-1] if past else history[0].default


def default_history(name: str) -> tuple[tuple[str, str], ...]:
    """Return (version, default from it on) where the default of a setting changed; empty where it never did."""
    return tuple((".".join(map(str, r.from_version)), r.default) for r in _changes(name))
