"""The pages of docs/reference/ that are made from the code: commands, JSON, policy keys, metrics.

`python -m tests.support.renew` writes them; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from topocheck.cli.command_tree import Command, Parameter, commands
from topocheck.model.exit_codes import EXIT_INTERRUPTED, MEANINGS

if TYPE_CHECKING:
    from topocheck.render.formats.metrics import Metric

MADE = "<!-- Made from the code by `python -m tests.support.renew`; edit {} instead. -->"
HOST_AT = {
    "report": ".host.hostname",
    "check": ".hostname",
    "watch": ".hostname",
    "bw": ".machine.hostname",
    "network bw": ".nodes[].node",
    "nccl env": ".hostname",
    "nccl predict": ".ranks[].host",
    "fleet": ".fleet.hardware_types[].groups[].nodes[]",
    "report --cluster": ".fleet.hardware_types[].groups[].nodes[]",
    "diff": ".first",
    "scale": ".machine.hostname",
    "lab": ".record.nodes[].node",
    "placement": ".plan.hostname",
}
"""Command whose `--format json` is about nodes -> where the document names them, as jq has it."""


def commands_page() -> str:
    """Return every command with its options, and the exit codes."""
    lines = ["# Commands and options", "", MADE.format("the help texts in topocheck/cli/"), ""]
    lines += ["The same as `topocheck COMMAND --help` and `man topocheck`. `--json` is short for `--format json`.", ""]
    lines += [*_table(("exit code", "means"), ((str(c), t) for c, t in MEANINGS.items())), ""]
    stopped = ", ".join(f"{code} ({name})" for name, code in EXIT_INTERRUPTED.items())
    lines += [f"What a signal stops ends with {stopped}. Formats of other programs have exit codes of their own: "]
    lines[-1] += "[checks](../checks.md#formats)."
    for command in commands():
        lines += ["", *_command(command)]
    return "\n".join(lines) + "\n"


def _command(command: Command) -> list[str]:
    level = "##" if " " not in command.name else "###"
    lines = [f"{level} topocheck {command.name}", "", "```text", f"topocheck {command.name} {command.usage}".rstrip()]
    lines.append("```")
    for paragraph in command.text.split("\n\n"):
        if paragraph.startswith("\b"):  # click's mark: the lines stay as they are
            lines += ["", "```text", *paragraph.splitlines()[1:], "```"]
        else:
            lines += ["", _prose(" ".join(paragraph.split()))]
    rows = [(f"`{p.names}`", _prose(p.text)) for p in _shown(command.parameters)]
    return [*lines, "", *_table(("argument, option", "means"), rows)] if rows else lines


def _shown(parameters: Iterable[Parameter]) -> list[Parameter]:
    return sorted(parameters, key=lambda p: p.is_option)


def json_page() -> str:
    """Return what the JSON documents have in common, and every field of those that have a schema."""
    from topocheck.model.version import SCHEMA_VERSION
    from topocheck.render.schema import DOCUMENTS

    lines = ["# JSON documents", "", MADE.format("topocheck/model/document.py"), ""]
    lines += [
        f'Every document begins with `"schema_version": "{SCHEMA_VERSION}"`. Fields may be added within a major',
        "version; none is renamed or removed. A field that could not be known is null, and its reason stands under its",
        "name in the sibling `missing`. `topocheck schema report` and `topocheck schema check` print the JSON Schema;",
        "the files are also in the wheel (`topocheck/schema/`).",
        "",
        "Where a document names its nodes:",
        "",
        *_table(("`--format json` of", "node"), ((f"`{c}`", f"`{p}`") for c, p in HOST_AT.items())),
    ]
    for name, (kind, command) in DOCUMENTS.items():
        (_, parts) = msgspec.json.schema_components([kind], ref_template="{name}")
        lines += ["", f"## `{command}`"]
        root = kind.__name__
        for part in [root, *sorted(p for p in parts if p != root)]:
            lines += ["", *_struct(name, part, parts[part])]
    return "\n".join(lines) + "\n"


def _struct(document: str, name: str, schema: dict[str, Any]) -> list[str]:
    rows = [(f"`{field}`", _type(document, s)) for field, s in schema.get("properties", {}).items()]
    return [
        f"### {document}: {name}",
        "",
        _prose(" ".join(str(schema.get("description", "")).split())),
        "",
        *_table(("field", "type"), rows),
    ]


def _type(document: str, schema: dict[str, Any]) -> str:
    """Return the type of a field in a few words; structs are links."""
    if "$ref" in schema:
        name = schema["$ref"]
        return f"[{name}](#{document}-{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(document, s) for s in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(document, schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of text to {_type(document, schema['additionalProperties'])}"
    return {"string": "text", "boolean": "true or false", "object": "map"}.get(
        schema.get("type", ""), str(schema.get("type", "any"))
    )


def policy_page() -> str:
    """Return every key of the policy with its type and default."""
    from topocheck.policy.types import CheckPolicy, Expect, Policy

    lines = ["# Policy keys", "", MADE.format("topocheck/policy/types.py"), ""]
    lines += [
        "What each key means: [the policy](../policy.md). Ids and thresholds of checks: [checks](../checks.md).",
        "",
    ]
    rows = []
    for prefix, kind in (("", Policy), ('checks."ID".', CheckPolicy), ("expect.", Expect)):
        for field in msgspec.structs.fields(kind):
            if not prefix and field.name in ("source", "checks", "expect"):
                continue
            rows.append((f"`{prefix}{field.encode_name}`", _toml_type(field.type), _default(field)))
    lines += _table(("key", "type", "default"), rows)
    return "\n".join(lines) + "\n"


_TOML = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _toml_type(kind: Any) -> str:
    arguments = [a for a in getattr(kind, "__args__", ()) if a not in (type(None), ...)]
    origin = getattr(kind, "__origin__", None)
    if origin is tuple:
        return f"array of {_toml_type(arguments[0])}s"
    if origin is dict:
        return f"table of {_toml_type(arguments[1])}s"
    return _TOML.get(kind) or _toml_type(arguments[0])


def _default(field: Any) -> str:
    if field.default is None or field.default is msgspec.NODEFAULT:
        return "not set"
    if isinstance(field.default, tuple):
        return "`[" + ", ".join(f'"{v}"' for v in field.default) + "]`"
    return f"`{str(field.default).lower()}`"


def metrics_page() -> str:
    """Return every Prometheus metric."""
    from topocheck.render.formats import prometheus, watch_prometheus

    lines = ["# Metrics", "", MADE.format("the tables in topocheck/render/formats/"), ""]
    lines += [
        "Labels of a GPU are DCGM-Exporter's: `gpu` is NVML's index, `UUID` the GPU's UUID; `bdf` is the PCI address.",
        "So series of both join, for instance the utilization of GPUs whose link is below what both ends support:",
        "",
        "```promql",
        "DCGM_FI_DEV_GPU_UTIL and on (UUID)",
        "  (topocheck_pcie_link_bytes_per_second < topocheck_pcie_link_max_bytes_per_second)",
        "```",
    ]
    for title, made in (
        ("`topocheck check --format prometheus`, and `--metrics FILE`", prometheus.METRICS),
        ("`topocheck watch --prometheus FILE`", watch_prometheus.METRICS),
    ):
        rows = [(f"`{m.full_name}`", _kind(m), ", ".join(m.labels) or "-", _prose(m.text)) for m in made]
        lines += ["", f"## {title}", "", *_table(("metric", "type", "labels", "means"), rows)]
    alike = [(f"`{m.full_name}`", m.alike) for m in watch_prometheus.METRICS if m.alike]
    lines += ["", "## Next to DCGM-Exporter and node_exporter", "", *_ALIKE, ""]
    lines += _table(("metric of `watch`", "there"), alike)
    return "\n".join(lines) + "\n"


_ALIKE = (
    "The same quantities in DCGM-Exporter's `etc/default-counters.csv` and node_exporter's collectors `infiniband` and",
    "`aer`. Names and base units follow Prometheus's rules as node_exporter's do (`_total`, `_bytes`, `_seconds`,",
    "`_hertz`); DCGM-Exporter keeps the names and units of DCGM's fields. `device` and `port` of an RDMA port are",
    "node_exporter's labels, `gpu` and `UUID` DCGM-Exporter's.",
)


def _kind(metric: Metric) -> str:
    return "counter" if metric.counter else "gauge"


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands_page,
    "json": json_page,
    "policy_keys": policy_page,
    "metrics": metrics_page,
}
"""Name of a page of docs/reference/ -> what makes it."""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return [f"| {' | '.join(c.replace('|', chr(92) + '|') for c in row)} |" for row in lines]


def _prose(text: str) -> str:
    """Return a text of the code for Markdown, where `<` and `*` mean something outside of code."""
    parts = text.split("`")
    parts[::2] = [p.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_") for p in parts[::2]]
    return "`".join(parts)
