"""What the world knows of NCCL's settings: what each does, since when, its default by version, and who reads it."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import re

import msgspec

from topocheck.knowledge.tables import rows

TABLE_VERSION = "2.30.7"
"""The NCCL version whose source `nccl_settings.tsv` was made from (stated in its first line too)."""

Version = tuple[int, int, int]


def parse_version(text: str) -> Version | None:
    """Return the version in a text such as `2.28.9+cuda13.0`, `v2.19.4-1`, `<=2.3.5` or `(2, 28, 9)`; None for none.

    A missing patch number counts as 0. NCCL's own integer form (21805, 2708) is read too: thousands before 2.9,
    ten thousands from then on (src/nccl.h.in, NCCL_VERSION).
    """
    if m := re.search(r"(?<!\d)(\d{1,3})\s*[.,]\s*(\d{1,3})(?:\s*[.,]\s*(\d{1,3}))?", text):
        return int(m[1]), int(m[2]), int(m[3] or 0)
    if m := re.fullmatch(r"\s*(\d{4,6})\s*", text):
        n = int(m[1])
        base = 1000 if n < 10000 else 10000
        return n // base, n % base // 100, n % 100
    return None


@functools.cache
def version_key(text: str) -> Version:
    """Return the version of a cell of the data files, which always hold one."""
    v = parse_version(text)
    if v is None:
        raise ValueError(f"no version in {text!r}")
    return v


class NcclSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. Texts are those of `data/nccl_settings.tsv`; empty where there is nothing to say.

    Attributes:
        reads: how NCCL reads the text: integer, switch (only 1 acts), flag, word, words, exact_word, level, text.
        words: the words it knows, where it reads words.
        minimum, maximum: what it takes without complaint, where it reads a number.
        step: what that number must be a multiple of, or `2^n` for a power of two; empty for neither.
        default: in TABLE_VERSION; of a removed name, its last.
        since: first public version that reads it; `<=` where it may be older.
        status: current, deprecated, removed or unused; `status_version` says since when.
        debug_section: the user guide lists it among those not meant for production.
    """

    name: str
    category: str
    type: str
    accepted: str
    reads: str
    words: tuple[str, ...]
    minimum: int | None
    maximum: int | None
    step: str
    default: str
    since: str
    status: str
    status_version: str
    replaced_by: str
    documented: bool
    debug_section: bool
    risk: str
    effect: str
    source: str


@functools.cache
def settings() -> dict[str, NcclSetting]:
    """Return all settings by name."""
    out = {}
    for r in rows("nccl_settings"):
        out[r["name"]] = NcclSetting(
            name=r["name"],
            category=r["category"],
            type=r["type"],
            accepted=r["accepted"],
            reads=r["reads"],
            words=tuple(w for w in r["words"].split(",") if w),
            minimum=int(r["minimum"]) if r["minimum"] else None,
            maximum=int(r["maximum"]) if r["maximum"] else None,
            step=r["step"],
            default=r["default"],
            since=r["since"],
            status=r["status"],
            status_version=r["status_version"],
            replaced_by=r["replaced_by"],
            documented=r["documented"] == "yes",
            debug_section=r["debug_section"] == "yes",
            risk=r["risk"],
            effect=r["effect"],
            source=r["source"],
        )
    return out


@functools.cache
def lookup(name: str) -> NcclSetting | None:
    """Return a setting by its exact name, or None."""
    return settings().get(name)


@functools.cache
def nearest(name: str) -> str | None:
    """Return the known name most like `name`, or None where none is near. Case and a missing prefix are forgiven."""
    wanted = name.strip().upper().replace("-", "_")
    if not wanted.startswith("NCCL_"):
        wanted = f"NCCL_{wanted}"
    if wanted in settings():
        return wanted
    found = difflib.get_close_matches(wanted, settings(), n=1, cutoff=0.8)
    return found[0] if found else None


def foreign_reader(name: str) -> str | None:
    """Return who reads a name that the core of NCCL does not read (a plugin, nccl-tests, PyTorch), or None."""
    return next((r["reader"] for r in rows("nccl_foreign_names") if fnmatch.fnmatchcase(name, r["pattern"])), None)


def known_in(setting: NcclSetting, version: Version) -> bool:
    """Tell whether a version reads this setting."""
    if not setting.since.startswith("<=") and version_key(setting.since) > version:
        return False
    return setting.status != "removed" or version < version_key(setting.status_version)


def default_in(name: str, version: Version | None = None) -> str | None:
    """Return the default of a setting in a version (the table's where None), or None for an unknown name."""
    s = lookup(name)
    if s is None:
        return None
    history = [r for r in rows("nccl_default_history") if r["name"] == name]
    if version is None or not history or version_key(history[-1]["from_version"]) <= version:
        return s.default
    past = [r["default"] for r in history if version_key(r["from_version"]) <= version]
    return past[-1] if past else history[0]["default"]


def default_history(name: str) -> tuple[tuple[str, str], ...]:
    """Return (version, default from it on) where the default of a setting changed; empty where it never did."""
    return tuple((r["from_version"], r["default"]) for r in rows("nccl_default_history") if r["name"] == name)


@functools.cache
def at_version(table: str, version: Version) -> tuple[dict[str, str], ...]:
    """Return the rows of a table whose `from_version` is the newest that is not above `version`."""
    fits = [r for r in rows(table) if version_key(r["from_version"]) <= version]
    if not fits:
        return ()
    newest = max(version_key(r["from_version"]) for r in fits)
    return tuple(r for r in fits if version_key(r["from_version"]) == newest)


@functools.cache
def rule(name: str, version: Version) -> str | None:
    """Return the value of a rule of `nccl_rules.tsv` in a version, or None before it existed."""
    fits = [r for r in rows("nccl_rules") if r["rule"] == name and version_key(r["from_version"]) <= version]
    return max(fits, key=lambda r: version_key(r["from_version"]))["value"] if fits else None


@functools.cache
def path_order(version: Version) -> tuple[str, ...]:
    """Return the path types of a version, closest first."""
    found = at_version("nccl_path_orders", version)
    return tuple((found[0] if found else rows("nccl_path_orders")[0])["order"].split())
