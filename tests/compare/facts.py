"""Small hand-made nodes."""

from __future__ import annotations

from typing import Any

import msgspec

from topocheck.compare.decode import LeanReport
from topocheck.compare.facts import node_facts
from topocheck.compare.types import NodeFacts

NOTHING = {
    "schema_version": "2.0",
    "host": {},
    "gpus": [],
    "nics": [],
    "numa_nodes": [],
    "pci": [],
    "paths": [],
    "nccl": {},
    "limits": {},
}


def lean(**parts: Any) -> LeanReport:
    """Return a report with these parts and nothing else."""
    return msgspec.convert({**NOTHING, **parts}, LeanReport)


def named(name: str, /, **parts: Any) -> NodeFacts:
    """Return the facts of a node with these parts."""
    host = {"dmi_product": "Server", **parts.pop("host", {})}
    return node_facts(lean(host=host, **parts), name=name)


def gpu(address: str, **more: Any) -> dict[str, Any]:
    """Return a GPU of a report."""
    return {"address": address, "label": "GPU", "vendor": "NVIDIA", "name": "A", **more}


def device(address: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a PCI function of a report: a GPU by default."""
    return {"address": address, "parent": parent, "class_code": 0x030200, "vendor_id": 0x10DE, "device_id": 1, **more}


def nic(address: str, label: str, gids: tuple[str, ...] = (), **port: Any) -> dict[str, Any]:
    """Return a NIC of a report with one port."""
    told = {
        "port": 1,
        "state": "ACTIVE",
        "link_layer": "Ethernet",
        "gids": [{"index": i, "gid": g} for i, g in enumerate(gids)],
        **port,
    }
    return {"address": address, "label": label, "ports": [told]}


def mapped(a: int, b: int, c: int, d: int) -> str:
    """Return the GID that maps an IPv4 address (RFC 4291, 2.5.5.2)."""
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"
