"""A policy made from a node, as the file that people then edit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from topocheck.render.quoting import comment, toml_value

if TYPE_CHECKING:
    from topocheck.model.node import Node


def policy_toml(expected: Mapping[str, str | int | float | bool | Mapping[str, float]], node: Node) -> str:
    """Return a policy in TOML with this `expect` table, which was taken from `node`."""
    source = f"{node.source} at {node.taken_at or 'an unknown time'}"
    lines = [
        comment(f"What this kind of node must have, taken from {source}."),
        comment("Delete what may differ. All settings: docs/policy.md."),
        "",
        "[expect]",
    ]
    lines += [f"{name} = {toml_value(value)}" for name, value in expected.items() if not isinstance(value, Mapping)]
    for name, table in expected.items():
        if isinstance(table, Mapping):
            lines += ["", f"[expect.{name}]", *(f"{toml_value(key)} = {toml_value(v)}" for key, v in table.items())]
    return "\n".join(lines) + "\n"
