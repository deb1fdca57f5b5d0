"""Mutations of values made of mappings, lists, texts and numbers: what JSON, TOML and msgpack hold."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

from tests.fuzz import hostile

Place = tuple[Any, Any]
"""A mapping or list, and the key or index in it."""


def mutated(rng: Random, tree: Any, most: int = 4) -> Any:
    """Return a copy of a tree with a few mutations."""
    box = [copy.deepcopy(tree)]
    for _ in range(rng.randint(1, most)):
        mutate(rng, box, _any_place(rng, box))
    return box[0]


def retouched(rng: Random, tree: Any, most: int = 8) -> Any:
    """Return a copy of a tree whose leaves were changed and whose lists grew or shrank: every value keeps its type."""
    box = [copy.deepcopy(tree)]
    for _ in range(rng.randint(1, most)):
        holder, key = _any_place(rng, box)
        value = holder[key]
        if isinstance(value, list) and value:
            _resize(rng, value)
        elif isinstance(value, dict) and value:
            names = list(value)
            holder, key = value, rng.choice(names)
            value = holder[key]
        if isinstance(value, bool) or value is None:
            holder[key] = value if value is None else not value
        elif isinstance(value, int):
            holder[key] = rng.choice((value + 1, value - 1, 0, 1, -1, 2**31, 2**53, 2**63 - 1, -(2**63), value * 1000))
        elif isinstance(value, float):
            holder[key] = rng.choice((value * 2, -value, 0.0, 1e-300, 1e308, 1e18, -1e308, 5e-324, 0.1))
        elif isinstance(value, str):
            holder[key] = hostile.edit(rng, value).encode("utf-8", "replace").decode()
    return box[0]


def _resize(rng: Random, value: list[Any]) -> None:
    pick = rng.randrange(4)
    if pick == 0:
        del value[rng.randrange(len(value)) :]
    elif pick == 1:
        _repeat(rng, value, rng.randrange(len(value)))
    elif pick == 2:
        rng.shuffle(value)
    else:
        del value[rng.randrange(len(value))]


def mutate(rng: Random, box: list[Any], place: Place) -> None:
    """Change what stands in one place."""
    holder, key = place
    value = holder[key]
    pick = rng.randrange(12)
    if pick < 5:
        holder[key] = _like(rng, value)
    elif pick == 5:
        holder[key] = hostile.scalar(rng)
    elif pick == 6 and holder is not box:
        del holder[key]
    elif pick == 7:
        _repeat(rng, holder, key)
    elif pick == 8:
        other, at = _any_place(rng, box)
        holder[key], other[at] = copy.deepcopy(other[at]), copy.deepcopy(value)
    elif pick == 9 and isinstance(holder, dict):
        del holder[key]
        holder[hostile.edit(rng, str(key))] = value
    elif pick == 10 and rng.random() < 0.2:
        holder[key] = hostile.deep(rng)
    elif isinstance(value, dict):
        value[hostile.text(rng)] = hostile.scalar(rng)
    elif isinstance(value, list):
        rng.shuffle(value)
    else:
        holder[key] = [value]


def _like(rng: Random, value: Any) -> Any:
    """Return a value of the same type, mostly."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice((hostile.number(rng), value + 1, -value, value * 2, str(value), float(value)))
    if isinstance(value, str):
        return hostile.edit(rng, value)
    if isinstance(value, bytes):
        return hostile.raw(hostile.edit(rng, value.decode("utf-8", "surrogateescape")))
    if isinstance(value, list | dict):
        return type(value)()
    return hostile.scalar(rng)


def _repeat(rng: Random, holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        times = rng.choice((1, 1, 1, 3, 40))
        holder[key:key] = [copy.deepcopy(holder[key]) for _ in range(times)]
    else:
        holder[f"{key}{hostile.text(rng)}"] = copy.deepcopy(holder[key])


def _any_place(rng: Random, box: list[Any]) -> Place:
    """Walk down from the top and stop somewhere, so that a long list does not draw all the attention."""
    holder: Any = box
    key: Any = 0
    while True:
        value = holder[key]
        if not isinstance(value, list | dict) or not value or rng.random() < 0.1:
            return holder, key
        holder = value
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))


def to_json(tree: Any) -> bytes:
    """Return JSON, and for what JSON has no form for, what other programs write: NaN, lone surrogates, long numbers."""
    return json.dumps(tree, default=_plain, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def to_toml(tree: dict[str, Any], prefix: str = "") -> str:
    """Return TOML; a value that it has no form for becomes text."""
    plain = {k: v for k, v in tree.items() if not isinstance(v, dict)}
    out = [f"{_key(k)} = {_toml(v)}\n" for k, v in plain.items()]
    for key, value in tree.items():
        if isinstance(value, dict):
            name = prefix + _key(key)
            out.append(f"\n[{name}]\n{to_toml(value, name + '.')}")
    return "".join(out)


def _key(key: object) -> str:
    return json.dumps(str(key))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps("" if value is None else str(value))
