"""Reading a policy: where it is looked for, and what is wrong with it in one line."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from topocheck.knowledge.rates import WIDTHS, pcie_generations
from topocheck.model import old_names
from topocheck.model.base import InputError
from topocheck.model.excerpt import excerpt, place_of_key
from topocheck.model.toml import TomlError, parse_toml
from topocheck.policy.types import CheckPolicy, Expect, Policy

SITE_FILE = Path("/etc/topocheck/policy.toml")
VARIABLE = "TOPOCHECK_POLICY"
MAX_BYTES = 1 << 20
SEVERITIES = ("note", "warn", "fail")


class PolicyError(InputError):
    """A policy that cannot be used: the file, the place in it, and what was expected.

    Attributes:
        keys: the tables and the key that it is about, outermost first.
    """

    def __init__(self, message: str = "", *, excerpt: tuple[str, ...] = (), keys: Sequence[str] = ()) -> None:
        super().__init__(message, excerpt=excerpt)
        self.keys = keys


def find(option: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the policy file to read: the option, else the variable TOPOCHECK_POLICY, else the site's file."""
    if option is not None:
        return option
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    try:
        os.stat(SITE_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # there, or hidden from this user: whoever reads it says so
    return SITE_FILE


def parse(
    data: bytes,
    name: str,
    check_ids: Iterable[str] | Mapping[str, Sequence[str]],
    probe_names: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Policy:
    """Return the policy that TOML text states.

    Args:
        data: the text, in UTF-8.
        name: its file, for messages.
        check_ids: all ids there are, so that a misspelt one is reported; as a mapping, each with the names of its
            thresholds, so that a misspelt one of these is reported too.
        probe_names: all probes there are, so that a misspelt one in `require_probes` is reported; none: not looked at.
        say: called with a line for each old id of a check, which is taken for the id that it has now.

    Raises:
        PolicyError: it is no TOML, or holds a name or value that means nothing.
    """
    try:
        document = parse_toml(data)
    except TomlError as e:
        raise PolicyError(f"policy {name}: {e}", excerpt=e.excerpt) from None
    try:
        return _judged(document, name, check_ids, probe_names, say)
    except PolicyError as e:
        text = data.decode("utf-8")
        place = place_of_key(text, e.keys) if e.keys else None
        if place is None:
            raise
        start = f"policy {name}: "
        what = str(e).removeprefix(start)
        raise PolicyError(f"{start}line {place[0]}: {what}", excerpt=excerpt(text, place), keys=e.keys) from None


def _judged(
    document: dict[str, Any],
    name: str,
    check_ids: Iterable[str] | Mapping[str, Sequence[str]],
    probe_names: Sequence[str],
    say: Callable[[str], None],
) -> Policy:
    document.setdefault("source", name)
    _rename_checks(document, name, say)
    try:
        policy = msgspec.convert(document, Policy)
    except msgspec.ValidationError as e:
        raise _invalid(str(e), name) from e
    _check_names(policy, name, list(check_ids))
    _check_values(policy, name)
    if probe_names:
        _check_probes(policy, name, probe_names)
    if isinstance(check_ids, Mapping):
        _check_thresholds(policy, name, check_ids)
    return policy


_UNKNOWN = re.compile(r"unknown field `([^`]+)`")
_WRONG_KIND = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_PATH = re.compile(r"at `\$([^`]*)`")
_KINDS = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "object": "a table",
    "array": "a list", "null": "nothing",
}  # fmt: skip
_TABLES: dict[tuple[str, ...], type[msgspec.Struct]] = {(): Policy, ("expect",): Expect, ("checks", "*"): CheckPolicy}


def _invalid(message: str, name: str) -> PolicyError:
    """Return what msgspec says of a policy in the words of TOML, with the nearest key there is."""
    path = _PATH.search(message)
    keys = tuple(
        "*" if k in ("[...]", "...") else k for k in re.findall(r"\[\.\.\.\]|[^.\[\]]+", path[1] if path else "")
    )
    where = ".".join(k for k in keys if k != "*")
    if (unknown := _UNKNOWN.search(message)) is not None:
        key = unknown[1]
        known = sorted(_TABLES[keys].__struct_fields__) if keys in _TABLES else []
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
        return PolicyError(
            f"policy {name}: {where}{'.' if where else ''}{key}: there is no such key; {hint}", keys=(*keys, key)
        )
    if (wrong := _WRONG_KIND.search(message)) is not None:
        expected = " or ".join(_KINDS.get(k.strip(), k.strip()) for k in wrong[1].split("|") if k.strip() != "null")
        return PolicyError(
            f"policy {name}: {where or 'the file'}: expected {expected}, found {_KINDS.get(wrong[2], wrong[2])}",
            keys=keys,
        )
    return PolicyError(f"policy {name}: {message}", keys=keys)


def _rename_checks(document: dict[str, Any], name: str, say: Callable[[str], None]) -> None:
    """Call the checks of a policy's TOML by their ids of today, in place."""
    rules = document.get("checks")
    if not isinstance(rules, dict):
        return  # not a table: refused where the policy is converted
    for old in [i for i in rules if i in old_names.CHECKS]:
        new = old_names.current(old)
        if new in rules:
            raise PolicyError(f"policy {name}: checks.{old!r} is an old name of {new!r}, which is there too")
        rules[new] = rules.pop(old)
        say(f"policy {name}: {old_names.notice(old, new)}")


def _check_names(policy: Policy, name: str, ids: list[str]) -> None:
    areas = {i.split(".", 1)[0] + ".*" for i in ids}
    for check_id, rule in policy.checks.items():
        if check_id not in ids and check_id not in areas:
            near = difflib.get_close_matches(check_id, [*ids, *areas], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PolicyError(
                f"policy {name}: checks.{check_id!r}: there is no such check{hint}", keys=("checks", check_id)
            )
        if rule.severity is not None and rule.severity not in SEVERITIES:
            expected = ", ".join(SEVERITIES)
            raise PolicyError(
                f"policy {name}: checks.{check_id!r}.severity is {rule.severity!r}; expected one of {expected}",
                keys=("checks", check_id, "severity"),
            )


def _check_values(policy: Policy, name: str) -> None:
    known: dict[str, Sequence[int]] = {"pcie_gen": [g.generation for g in pcie_generations()], "pcie_width": WIDTHS}
    for field in policy.expect.__struct_fields__:
        value = getattr(policy.expect, field)
        if value == "":
            raise PolicyError(
                f"policy {name}: expect.{field} is empty; expected some text, or leave it out", keys=("expect", field)
            )
        if field in known and value is not None and value not in known[field]:
            there_are = ", ".join(map(str, known[field]))
            raise PolicyError(
                f"policy {name}: expect.{field} is {value}; there are {there_are}", keys=("expect", field)
            )
        for kind, rate in value.items() if isinstance(value, dict) else ():
            if not 0 <= rate < math.inf:
                raise PolicyError(
                    f"policy {name}: expect.{field}.{kind!r:.80} is {rate}; expected a number from 0",
                    keys=("expect", field, kind),
                )
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise PolicyError(
                f"policy {name}: expect.{field} is {value}; expected a number from 0", keys=("expect", field)
            )


def _check_probes(policy: Policy, name: str, names: Sequence[str]) -> None:
    for probe in policy.require_probes:
        if probe not in names:
            near = difflib.get_close_matches(probe, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise PolicyError(
                f"policy {name}: require_probes: there is no probe {probe!r}; {hint}", keys=("require_probes",)
            )


def _check_thresholds(policy: Policy, name: str, thresholds: Mapping[str, Sequence[str]]) -> None:
    for check_id, rule in policy.checks.items():
        area = check_id.removesuffix("*") if check_id.endswith(".*") else None
        of = [t for i, t in thresholds.items() if i == check_id or (area is not None and i.startswith(area))]
        known = sorted({n for t in of for n in t})
        for threshold, value in rule.thresholds.items():
            if not 0 <= value < math.inf:
                raise PolicyError(
                    f"policy {name}: checks.{check_id!r}.thresholds.{threshold} is {value}; expected a number from 0",
                    keys=("checks", check_id, "thresholds", threshold),
                )
            if threshold in known:
                continue
            near = difflib.get_close_matches(threshold, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
            raise PolicyError(
                f"policy {name}: checks.{check_id!r}.thresholds: there is no {threshold!r}; {hint}",
                keys=("checks", check_id, "thresholds", threshold),
            )
