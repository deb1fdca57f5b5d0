"""Slurm's view of the network: topology.conf(5), topology.yaml(5), `scontrol show topology` and `show topoconf`.

SwitchName=core Switches=leaf[1-2]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[01-16]
BlockName=nvl1 Nodes=gpu[01-18]
"""

from __future__ import annotations

import re
from typing import Any

from topocheck.fabric.build import Builder, Side
from topocheck.model.base import Evidence, InputError
from topocheck.model.fabric import DeviceKind, End, Fabric, FabricDevice, PlannedGroup, Protocol
from topocheck.model.hostlist import expand_hostlist

_RECORD = re.compile(r"\s*(SwitchName|BlockName|AggregatedBlock)=(\S+)(.*)", re.IGNORECASE)
_FIELD = re.compile(r"([A-Za-z]+)=(\S+)")
_YAML = re.compile(r"^\s*-\s+topology:\s", re.MULTILINE)
MAX_YAML_BYTES = 16 << 20
MAX_YAML_DEPTH = 8


def recognise(text: str) -> bool:
    """Tell whether a text is topology.conf, topology.yaml or `scontrol show topology`."""
    return bool(_YAML.search(text)) or any(_RECORD.fullmatch(line) for line in text.splitlines())


def parse(text: str, name: str) -> Fabric:
    """Return the switches and nodes of a topology; of several in topology.yaml the cluster's default.

    Args:
        text: the file or output.
        name: of the file, for evidence.

    Raises:
        InputError: topology.yaml is not of the form in the manual, or PyYAML is missing.
    """
    if _YAML.search(text):
        return _yaml(text, name)
    rows = []
    unread = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0]
        m = _RECORD.fullmatch(content)
        if m is not None:
            fields = {k.lower(): v for k, v in _FIELD.findall(m[3])}
            rows.append((m[1].lower(), m[2], fields, Evidence(f"{name}:{number}", line.strip()[:200])))
        elif content.strip() and not content.strip().lower().startswith("blocksizes"):
            unread.append((number, line.strip()))
    builder = _built(rows, name)
    for number, line in unread:
        builder.problem(number, line)
    return builder.fabric()


_Row = tuple[str, str, dict[str, str], Evidence]


def _built(rows: list[_Row], name: str) -> Builder:
    """Make the graph: a port of a switch is named after what is plugged into it.

    It is not whole: the file gives each switch one parent, whatever cables there are.
    """
    blocks = not any(kind == "switchname" for kind, *_ in rows)
    builder = Builder(Protocol.UNKNOWN, name, whole=False)
    for kind, switch, fields, evidence in rows:
        if kind != "aggregatedblock" and not fields.get("switches"):
            nodes = tuple(expand_hostlist(fields.get("nodes", "")))
            block = kind == "blockname"
            builder.add_planned(PlannedGroup(name=switch, nodes=nodes, block=block, evidence=evidence))
        if kind == "aggregatedblock" or (kind == "blockname" and not blocks):
            continue
        builder.add_device(FabricDevice(id=switch, kind=DeviceKind.SWITCH, name=switch, source=evidence.source))
        for child in expand_hostlist(fields.get("switches", "")):
            builder.add_side(Side(here=End(switch, child), there=End(child, switch), evidence=evidence))
        # `scontrol` lists all nodes below a switch; only a leaf has nodes of its own.
        for node in expand_hostlist(fields.get("nodes", "")) if not fields.get("switches") else ():
            builder.add_device(
                FabricDevice(id=f"node {node}", kind=DeviceKind.ADAPTER, name=node, node=node, source=evidence.source)
            )
            builder.add_side(Side(here=End(switch, node), there=End(f"node {node}", "1"), evidence=evidence))
    return builder


def _yaml(text: str, name: str) -> Fabric:
    try:
        import yaml
    except ImportError:
        raise InputError(f"{name}: topology.yaml needs PyYAML: pip install pyyaml") from None
    if len(text) > MAX_YAML_BYTES:
        raise InputError(f"{name}: more than {MAX_YAML_BYTES >> 20} MiB; expected a topology.yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.events.CollectionStartEvent)
            depth -= isinstance(event, yaml.events.CollectionEndEvent)
            # An alias repeats what is elsewhere, and a few of them repeat it a billion times.
            if isinstance(event, yaml.events.AliasEvent) or depth > MAX_YAML_DEPTH:
                raise InputError(
                    f"{name}:{event.start_mark.line + 1}: aliases or deep nesting are not of topology.yaml"
                )
        tree = yaml.load(text, Loader=loader)
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(e, "problem", None) or type(e).__name__
        raise InputError(f"{name}{where}: no YAML: {problem}") from None
    return _built(_rows(_default(tree, name), name), name).fabric()


def _default(tree: Any, name: str) -> dict[str, Any]:
    """Return the topology that the cluster uses by default, or the first with switches."""
    found = [t for t in tree if isinstance(t, dict)] if isinstance(tree, list) else []
    filled = [t for t in found if _parts(t)]
    chosen = [t for t in filled if t.get("cluster_default") is True] + [t for t in filled if t.get("tree")] + filled
    if not chosen:
        raise InputError(f"{name}: no topology with a tree or blocks in it; see topology.yaml(5)")
    return chosen[0]


def _parts(topology: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the switches and blocks of a topology; `scontrol show topoconf` also shows kinds without any."""
    out: list[tuple[str, Any]] = []
    for kind, key, item in (("tree", "switches", "switch"), ("block", "blocks", "block")):
        part = topology.get(kind)
        found = part.get(key) if isinstance(part, dict) else None
        out += [(item, x) for x in found] if isinstance(found, list) else []
    return out


def _rows(topology: dict[str, Any], name: str) -> list[_Row]:
    where = str(topology.get("topology", "?"))
    rows: list[_Row] = []
    for item, entry in _parts(topology):
        if not isinstance(entry, dict) or not isinstance(entry.get(item), str):
            raise InputError(f"{name}: topology {where}: an entry has no {item}; see topology.yaml(5)")
        fields = {
            "switches": _text(entry.get("children")),
            "nodes": _text(entry.get("nodes")),
        }
        shown = ", ".join(f"{k}: {v}" for k, v in entry.items())
        rows.append((f"{item}name", entry[item], fields, Evidence(f"{name}: topology {where}", shown[:200])))
    return rows


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
