"""The network between nodes: what it is made of, each leaf's capacity, and the findings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from topocheck.model.base import State
from topocheck.model.fabric import DeviceKind
from topocheck.model.hostlist import compress_hostlist
from topocheck.model.names import natural_key
from topocheck.model.version import SCHEMA_VERSION
from topocheck.render.findings import add_findings
from topocheck.render.page import Page, Style
from topocheck.render.quoting import json_text
from topocheck.render.report_json import finding
from topocheck.render.words import plural

if TYPE_CHECKING:
    from topocheck.checks.fabric.run import FabricResult, JudgedFabric
    from topocheck.fabric.tiers import Tiers
    from topocheck.model.fabric import SubnetManager

MAX_LEAVES = 48
"""Leaves listed in the text; the JSON holds all."""


def fabric_text(tiers: Tiers, result: FabricResult, style: Style, *, all_: bool = False) -> str:
    """Return the fabric for a person: findings first.

    Args:
        tiers: the fabric.
        result: what its checks came to.
        style: of the page.
        all_: list every leaf and every note.
    """
    page = Page(style)
    bad = [f for f in result.findings if f.state is not State.NOTE]
    notes = [f for f in result.findings if f.state is State.NOTE]
    page.line((summary(tiers), "bold"))
    for line in details(tiers, result):
        page.text(line, hang=2)
    page.blank()
    if bad:
        counts = Counter(f.state for f in bad)
        page.line(("Findings", "bold"), ": " + ", ".join(f"{n} {s.value}" for s, n in sorted(counts.items())))
        add_findings(bad, page)
    else:
        page.line(("Nothing wrong found", "bold green"), f" by {plural(len(result.results), 'check')}.")
    shown = notes if all_ else notes[:4]
    for f in shown:
        page.text(f"note  {f.id}  {f.subject}: {f.title}", style="cyan", hang=6)
    if len(notes) > len(shown):
        page.text(f"and {plural(len(notes) - len(shown), 'more note')} (--all)", style="dim")
    _leaves(tiers, page, all_=all_)
    return page.render()


def summary(tiers: Tiers) -> str:
    """Return in one line how many nodes, adapters, switches and links there are."""
    kinds = Counter(d.kind for d in tiers.fabric.devices.values())
    switches = Counter(tiers.tier.values())
    levels = " + ".join(str(switches[level]) for level in sorted(switches))
    rates = Counter(x.rate_gbit_s for x in tiers.fabric.links)
    nodes = len({a.node for a in tiers.attachments if a.node})
    links = ", ".join(f"{n} of {r:g} Gb/s" if r else f"{n} of unknown rate" for r, n in rates.most_common(4))
    return (
        f"{plural(nodes, 'node')} with {plural(kinds[DeviceKind.ADAPTER], 'adapter')}, "
        f"{plural(kinds[DeviceKind.SWITCH], 'switch', 'switches')}" + (f" ({levels} by tier)" if levels else "") + ", "
        f"{plural(len(tiers.fabric.links), 'link')}" + (f" ({links})" if links else "")
    )


def details(tiers: Tiers, result: FabricResult) -> list[str]:
    """Return what else is known of the whole, a line each: bisection bandwidth with its arithmetic, subnet managers."""
    out = []
    found = result.bisection
    if found is not None and found.bounds:
        least = min(found.bounds, key=lambda b: b.gbit_s)
        where = "leaves" if least.tier == 0 and not least.direct else f"groups of tier {least.tier}"
        if found.gbit_s == found.full_gbit_s:
            why = "full: half of what all adapters carry"
        elif least.direct:
            why = f"what the links between two halves of {least.groups} groups carry"
        else:
            why = (
                f"half of {2 * least.gbit_s:g}, the sum over {least.groups} {where} of the lesser of links up "
                f"({least.up_gbit_s:g}) and adapters ({least.down_gbit_s:g})"
            )
        share = (
            "" if found.gbit_s == found.full_gbit_s else f" ({100 * found.gbit_s / found.full_gbit_s:.0f} % of full)"
        )
        out.append(f"Bisection bandwidth: at most {found.gbit_s:g} Gb/s per direction{share}, {why}")
    managers = tiers.fabric.managers
    if managers:
        out.append(
            "Subnet managers: "
            + ", ".join(f"{_holder(tiers, m)} {m.state} (priority {m.priority})" for m in managers[:4])
        )
    return out


def _holder(tiers: Tiers, m: SubnetManager) -> str:
    device = tiers.fabric.devices.get(m.guid) or next(
        (d for d in tiers.fabric.devices.values() if d.lid == m.lid), None
    )
    return f"LID {m.lid}" if device is None else f"{device.label} (LID {m.lid})"


def _leaves(tiers: Tiers, page: Page, *, all_: bool) -> None:
    leaves = sorted(tiers.leaves.values(), key=lambda x: (-(x.oversubscription or 0), tiers.label(x.id)))
    shown = leaves if all_ else leaves[:MAX_LEAVES]
    if not leaves:
        return
    page.heading("Leaves, most oversubscribed first")
    page.table(
        ("switch", "nodes", "down", "up", "Gb/s down", "Gb/s up", "ratio"),
        [
            (
                tiers.label(x.id),
                str(x.nodes),
                str(x.down),
                str(x.up),
                _rate(x.down_gbit_s),
                _rate(x.up_gbit_s),
                f"{r:.2f}" if (r := x.oversubscription) is not None else "-",
            )
            for x in shown
        ],
        right=frozenset(range(1, 7)),
    )
    if len(leaves) > len(shown):
        page.text(f"and {plural(len(leaves) - len(shown), 'more leaf', 'more leaves')} (--all)", style="dim")


def _rate(gbit_s: float | None) -> str:
    return "unknown" if gbit_s is None else f"{gbit_s:g}"


def fabric_section(judged: JudgedFabric, page: Page, *, limit: int) -> None:
    """Add the fabric to a report of nodes: what was joined, the findings, and which NICs are on which leaf."""
    tiers, joined = judged.tiers, judged.joined
    page.heading("Fabric")
    page.text(summary(tiers))
    for line in details(tiers, judged.result):
        page.text(line, hang=2)
    if joined is not None:
        page.text(f"{plural(joined.ports, 'recorded port')} of {plural(joined.nodes, 'node')} found in it")
        if joined.unrecorded:
            names = compress_hostlist(joined.unrecorded)
            page.text(f"of {plural(len(joined.unrecorded), 'node')} in it there is no snapshot: {names}", hang=2)
    bad = [f for f in judged.result.findings if f.state is not State.NOTE]
    add_findings(bad[:limit], page)
    if len(bad) > limit:
        page.text(f"and {plural(len(bad) - limit, 'more finding')} (--all)", style="dim")
    domains = _domains(judged)
    if domains:
        shown = [(d, compress_hostlist(n), ", ".join(map(tiers.label, leaves)) or "-") for d, n, leaves in domains]
        page.table(("NVLink domain", "nodes", "on leaves"), shown[:limit])
        page.blank()
    on: dict[tuple[str, str], list[str]] = {}
    for a in tiers.attachments:
        if a.node:
            on.setdefault((a.rail or "-", a.leaf.device), []).append(a.node)
    rows = [(rail, tiers.label(leaf), str(len(nodes)), compress_hostlist(nodes)) for (rail, leaf), nodes in on.items()]
    page.table(
        ("NIC", "switch", "nodes", ""), sorted(rows, key=lambda r: (natural_key(r[0]), natural_key(r[1])))[:limit]
    )
    if len(rows) > limit:
        page.text(f"and {plural(len(rows) - limit, 'more row')} (--all)", style="dim")


def _domains(judged: JudgedFabric) -> list[tuple[str, list[str], list[str]]]:
    """Return the NVLink domains of recorded nodes, (domain, nodes, ids of the leaves that these are on)."""
    if judged.joined is None:
        return []
    members: dict[str, list[str]] = {}
    for node, domain in judged.joined.domains.items():
        members.setdefault(domain, []).append(node)
    on: dict[str, set[str]] = {}
    for a in judged.tiers.attachments:
        on.setdefault(a.node, set()).add(a.leaf.device)
    label = judged.tiers.label
    return [
        (d, sorted(nodes, key=natural_key), sorted(set().union(*(on.get(n, set()) for n in nodes)), key=label))
        for d, nodes in sorted(members.items())
    ]


def fabric_json(tiers: Tiers, result: FabricResult, version: str) -> str:
    """Return the fabric and its findings as JSON."""
    return json_text({"schema_version": SCHEMA_VERSION, "topocheck_version": version, **fabric_tree(tiers, result)})


def joined_tree(judged: JudgedFabric | None) -> dict[str, Any] | None:
    """Return a fabric joined with nodes as it stands in JSON; None without one."""
    if judged is None:
        return None
    tiers = judged.tiers
    tree = fabric_tree(tiers, judged.result)
    if (joined := judged.joined) is not None:
        tree["joined"] = {
            "ports": joined.ports,
            "nodes": joined.nodes,
            "without_recording": list(joined.unrecorded),
            "nvlink_domains": [
                {"domain": domain, "nodes": nodes, "leaves": [tiers.label(x) for x in leaves]}
                for domain, nodes, leaves in _domains(judged)
            ],
            "not_in_dump": [{"node": p.node, "adapter": p.adapter, "port": p.port} for p in joined.missing],
        }
    return tree


def fabric_tree(tiers: Tiers, result: FabricResult) -> dict[str, Any]:
    """Return the fabric and its findings: switches with their tier, leaves, attachments, links, findings, checks."""
    devices = tiers.fabric.devices
    return {
        "sources": list(tiers.fabric.sources),
        "protocol": tiers.fabric.protocol,
        "switches": [
            {"id": d.id, "name": d.name, "tier": tiers.tier.get(d.id), "ports": d.ports}
            for d in devices.values()
            if d.kind is DeviceKind.SWITCH
        ],
        "leaves": [
            {
                "id": x.id,
                "name": tiers.label(x.id),
                "nodes": x.nodes,
                "links_down": x.down,
                "links_up": x.up,
                "down_gbit_s": x.down_gbit_s,
                "up_gbit_s": x.up_gbit_s,
                "oversubscription": x.oversubscription,
            }
            for x in tiers.leaves.values()
        ],
        "adapters": [
            {
                "node": a.node,
                "adapter": a.adapter,
                "guid": a.end.device,
                "port": a.end.port,
                "leaf": a.leaf.device,
                "leaf_port": a.leaf.port,
                "rate_gbit_s": a.link.rate_gbit_s,
            }
            for a in tiers.attachments
        ],
        "links": [
            {
                "a": {"device": x.a.device, "port": x.a.port},
                "b": {"device": x.b.device, "port": x.b.port},
                "width": x.width,
                "speed": x.speed or None,
                "rate_gbit_s": x.rate_gbit_s,
                "mtu": x.mtu,
            }
            for x in tiers.fabric.links
        ],
        "bisection": None if result.bisection is None else msgspec.to_builtins(result.bisection),
        "subnet_managers": [
            {"guid": m.guid, "lid": m.lid, "state": m.state, "priority": m.priority} for m in tiers.fabric.managers
        ],
        "findings": [finding(f) for f in result.findings],
        "checks": [{"id": r.id, "state": r.state, "detail": r.detail} for r in result.results],
    }
