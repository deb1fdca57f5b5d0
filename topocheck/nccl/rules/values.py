"""Reads the values of NCCL's settings as NCCL itself reads them, and judges one setting.

The rules are those of src/misc/param.cc and src/graph/paths.cc: a number goes through a C integer parse that takes
any base and stops at the first character it does not know, so that `true` is 0 and `08` is 0.
"""

import re
from typing import Annotated, Literal

import msgspec

from topocheck.knowledge.nccl import (
    NcclSetting,
    Version,
    foreign_reader,
    known_in,
    lookup,
    nearest,
    version_key,
)
from topocheck.knowledge.nccl_rules import PathWord, path_order
from topocheck.knowledge.tables import BY_COMMAS, SettingName, Source, Table
from topocheck.model.base import REDACTED, is_digits

_DIGITS = {8: "01234567", 10: "0123456789", 16: "0123456789abcdefABCDEF"}
_C_DIGITS = 24
"""More digits than 64 bits have in any base of C: strtoll then gives its largest number."""
_OLD_LEVELS: tuple[PathWord, ...] = ("LOC", "PIX", "PXB", "PHB", "SYS")

ProblemKind = Literal[
    "unknown_name",
    "not_yet",
    "removed",
    "deprecated",
    "unused",
    "not_understood",
    "no_effect",
    "out_of_range",
    "risky",
]


class SettingProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one setting.

    Attributes:
        kind: `risky` is understood, and known to do harm; the others say themselves.
        text: one sentence.
        fix: what to write instead; None where there is nothing to write.
    """

    kind: ProblemKind
    text: str
    fix: str | None = None


class Harmful(msgspec.Struct, frozen=True, kw_only=True):
    """Values of a setting that are known to cost speed or safety.

    `match`: exact (one of `values`), nonzero (any number but 0), word (one of `values` among the words of a list).
    """

    name: SettingName
    match: Literal["exact", "nonzero", "word"]
    values: Annotated[tuple[str, ...], BY_COMMAS] = ()
    consequence: str
    source: Source

    def __post_init__(self) -> None:
        if (self.match == "nonzero") is not (not self.values):
            raise ValueError("values: texts for the matches exact and word, none for nonzero")


_HARMFUL = Table("nccl_harmful", Harmful, key=("name", "match", "values"))


def read_integer(text: str) -> tuple[int, str]:
    """Return the number that a C integer parse with automatic base gives, and the rest it did not read.

    `0x10` is 16, `010` is 8, `08` is 0 with the rest `8`, `true` is 0 with the rest `true`.
    """
    bare = text.lstrip(" \t\n\v\f\r")
    unsigned = bare[1:] if bare[:1] in ("+", "-") else bare
    # A prefix with no digit behind it is the number 0, and the rest begins with the x.
    hexadecimal = unsigned[:2].lower() == "0x" and unsigned[2:3] in tuple(_DIGITS[16])
    base = 16 if hexadecimal else 8 if unsigned[:1] == "0" else 10
    digits = unsigned[2:] if hexadecimal else unsigned
    rest = digits.lstrip(_DIGITS[base])
    body = digits[: len(digits) - len(rest)]
    if not body:
        return 0, text
    n = (1 << 63) - 1 if len(body) > _C_DIGITS else int(body, base)
    return -n if bare[0] == "-" else n, rest


def read_level(text: str, version: Version) -> str | None:
    """Return the path type that a level setting names in a version, or None where NCCL ignores the text.

    Exact upper-case words of that version, closest to SYS; or the old numbers: 0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and
    above SYS (src/graph/paths.cc, ncclGetLevel).
    """
    order = path_order(version)
    if text in order and text not in ("NET", "DIS", "SOC", "NODE"):
        return text
    if is_digits(text[:1]):
        return _OLD_LEVELS[min(read_integer(text)[0], 4)]
    return None


def _fits_step(n: int, step: int | Literal["2^n"] | None) -> bool:
    """Tell whether a number is the multiple or the power of two that a setting must be."""
    if step == "2^n":
        return n & (n - 1) == 0
    return step is None or n % step == 0


def _judge_number(s: NcclSetting, value: str) -> list[SettingProblem]:
    n, rest = read_integer(value)
    if rest.strip():
        fix = f"{s.name}=NUMBER, of {s.accepted}" if s.accepted else f"{s.name}=NUMBER"
        meant = value.strip().lower() if s.type == "bool" else ""
        if meant in ("true", "yes", "on", "y", "t"):
            fix = f"{s.name}=1"
        elif meant in ("false", "no", "off", "n", "f"):
            fix = f"{s.name}=0"
        return [
            SettingProblem(
                kind="not_understood",
                text=f"{s.name} is a number; NCCL silently reads {value!r} as {n}",
                fix=fix,
            )
        ]
    if s.reads == "switch" and n not in (0, 1):
        return [
            SettingProblem(
                kind="no_effect",
                text=f"{s.name}={value} does nothing: only the value 1 acts",
                fix=f"{s.name}=1, or unset it",
            )
        ]
    too_low = s.minimum is not None and n < s.minimum
    too_high = s.maximum is not None and n > s.maximum and s.type != "bool"
    # A negative number is the "not set" of most settings.
    if n not in (-1, -2) and (too_low or too_high or not _fits_step(n, s.step)):
        return [
            SettingProblem(
                kind="out_of_range",
                text=f"{s.name}={value} is outside what NCCL expects ({s.accepted})",
                fix=f"a value of {s.accepted}",
            )
        ]
    return []


def _judge_words(s: NcclSetting, value: str) -> list[SettingProblem]:
    if s.reads in ("word", "exact_word"):
        asked = [value]
    else:
        asked = [w for w in re.split(r"[,;:]", value.replace("^", "")) if w]
    known = {w.lower() for w in s.words}
    extra = (
        {"allreduce", "allgather", "reducescatter", "broadcast", "reduce", "sendrecv"}
        if s.category == "algo"
        else set()
    )
    bad = []
    for w in asked:
        bare = w.split(":", 1)[0]
        if s.reads == "exact_word":
            good = w in s.words
        else:
            good = w.lower() in known | extra or any(k.endswith(":n") and bare.lower() == k[:-2] for k in known)
        if not good:
            bad.append(w)
    if not bad:
        return []
    case = ", in exactly this spelling" if s.reads == "exact_word" else ""
    return [
        SettingProblem(
            kind="not_understood",
            text=f"{s.name} does not know {', '.join(bad)}: it knows {', '.join(s.words)}{case}",
            fix=f"one of {', '.join(s.words)}",
        )
    ]


def _judge_level(s: NcclSetting, value: str, version: Version) -> list[SettingProblem]:
    words = s.words or tuple(w for w in path_order(version) if w not in ("NET", "DIS"))
    if value in words or (not s.words and read_level(value, version) is not None):
        if is_digits(value[:1]):
            level = read_level(value, version)
            return [
                SettingProblem(
                    kind="deprecated",
                    text=f"{s.name}={value} is the old numbering, read as {level}",
                    fix=f"{s.name}={level}",
                )
            ]
        return []
    upper = value.strip().upper()
    fix = f"{s.name}={upper}" if upper in words else f"one of {', '.join(words)}"
    return [
        SettingProblem(
            kind="not_understood",
            text=f"{s.name}={value} is ignored: NCCL accepts the values {', '.join(words)} in upper case",
            fix=fix,
        )
    ]


def _judge_value(s: NcclSetting, value: str, version: Version) -> list[SettingProblem]:
    if s.reads in ("integer", "switch"):
        return _judge_number(s, value)
    if s.reads == "level":
        return _judge_level(s, value, version)
    if s.reads in ("word", "words", "exact_word"):
        return _judge_words(s, value)
    if s.reads == "flag" and value.lower() not in ("0", "1", "f", "false", "t", "true"):
        return [
            SettingProblem(
                kind="not_understood",
                text=f"{s.name} is on with 1, T or TRUE; {value!r} is none of them",
                fix=f"{s.name}=1",
            )
        ]
    return []


def _judge_name(name: str, s: NcclSetting, version: Version) -> list[SettingProblem]:
    instead = f"; use {s.replaced_by}" if s.replaced_by else ""
    fix = f"unset {name}" + (f" and set {s.replaced_by}" if s.replaced_by else "")
    text_version = ".".join(map(str, version))
    if s.status == "removed" and not known_in(s, version):
        if version < version_key(s.status_version or ""):
            return [SettingProblem(kind="not_yet", text=f"{name} is not read by NCCL {text_version}", fix=fix)]
        return [
            SettingProblem(kind="removed", text=f"{name} is ignored since NCCL {s.status_version}{instead}", fix=fix)
        ]
    if not known_in(s, version):
        text = f"{name} is read from NCCL {s.since} on; {text_version} ignores it"
        return [SettingProblem(kind="not_yet", text=text, fix=f"unset {name}")]
    if s.status == "unused":
        return [SettingProblem(kind="unused", text=f"{name} is declared by NCCL but used by nothing", fix=fix)]
    if s.status == "deprecated":
        text = f"{name} is deprecated since NCCL {s.status_version}{instead}"
        return [SettingProblem(kind="deprecated", text=text, fix=fix)]
    return []


def judge_setting(name: str, value: str, nccl_version: Version) -> list[SettingProblem]:
    """Return what is wrong with a setting in a version of NCCL; an empty list where nothing is.

    Names that others read (plugins, nccl-tests, PyTorch) are no problem, an empty value counts as unset. A value
    that NCCL understands but that is known to do harm (nccl_harmful.tsv) gives one problem of kind `risky`.
    """
    s = lookup(name)
    if s is None:
        if foreign_reader(name):
            return []
        near = nearest(name)
        return [
            SettingProblem(
                kind="unknown_name",
                text=f"no version of NCCL known here reads {name}" + (f"; did you mean {near}?" if near else ""),
                # A value that is not in the snapshot cannot be written out.
                fix=f"unset {name}" if not near else f"{near}={'VALUE' if REDACTED in value else value}",
            )
        ]
    if value == "":
        return []
    problems = _judge_name(name, s, nccl_version)
    if any(p.kind in ("removed", "not_yet", "unused") for p in problems):
        return problems
    problems += _judge_value(s, value, nccl_version)
    if not problems and (harm := _harm(s, value)):
        problems.append(SettingProblem(kind="risky", text=f"{name}={value}: {harm}", fix=f"unset {name}"))
    return problems


def _harm(s: NcclSetting, value: str) -> str | None:
    """Return what a value is known to cost (nccl_harmful.tsv), or None."""
    words = {w.lower() for w in re.split(r"[,;:]", value)} if not value.startswith("^") else set()
    for r in _HARMFUL.rows():
        if r.name != s.name:
            continue
        if r.match == "nonzero":
            hit = read_integer(value)[0] != 0
        elif r.match == "word":
            hit = any(w.lower() in words for w in r.values)
        elif s.reads in ("integer", "switch"):
            hit = str(read_integer(value)[0]) in r.values
        else:
            hit = value in r.values
        if hit:
            return r.consequence
    return None
