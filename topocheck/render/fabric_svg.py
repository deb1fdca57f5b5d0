"""A picture of a fabric as SVG: switches in rows by tier, the links between them, and the nodes below the leaves.

A leaf shows what it carries and its rail (the name of most of its adapters); nodes on the same leaves are one box.
"""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from topocheck.model.base import State
from topocheck.model.hostlist import compress_hostlist
from topocheck.model.names import natural_key
from topocheck.render.quoting import one_line, xml_text
from topocheck.render.words import plural

if TYPE_CHECKING:
    from topocheck.checks.fabric.run import FabricResult
    from topocheck.fabric.places import NodeGroup
    from topocheck.fabric.tiers import Tiers

MAX_SWITCHES = 160
"""Switches of a tier that are drawn; wider pictures cannot be read."""
BOX_WIDTH, BOX_HEIGHT, GAP, ROW = 92, 34, 10, 120
RAIL = 0.75
"""Part of a leaf's adapters that have one name where it is the leaf of that rail."""
BAD = (State.FAIL, State.WARN)


def fabric_svg(tiers: Tiers, result: FabricResult) -> str:
    """Return the picture; switches that a warning or failure names are red. Empty where no switch has a tier."""
    rows: dict[int, list[str]] = defaultdict(list)
    for switch, tier in tiers.tier.items():
        rows[tier].append(switch)
    if not rows:
        return ""
    for row in rows.values():
        row.sort(key=lambda s: natural_key(tiers.label(s)))
    drawn = {tier: row[:MAX_SWITCHES] for tier, row in rows.items()}
    width = max(len(row) for row in drawn.values()) * (BOX_WIDTH + GAP) + GAP
    groups = result.groups if len(result.groups) <= MAX_SWITCHES else ()
    width = max(width, len(groups) * (BOX_WIDTH + GAP) + GAP)
    height = (len(drawn) + bool(groups)) * ROW
    at: dict[str, tuple[float, float]] = {}
    for line, tier in enumerate(sorted(drawn, reverse=True)):
        row = drawn[tier]
        step = width / len(row)
        at |= {s: (step * (i + 0.5), 20 + line * ROW) for i, s in enumerate(row)}
    below = {i: (width / len(groups) * (i + 0.5), 20 + len(drawn) * ROW) for i in range(len(groups))}
    bad = {d for f in result.findings if f.state in BAD for d in f.devices}
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'style="width:100%;min-width:{min(width, 1000):.0f}px;font:10px system-ui,sans-serif">',
        "<title>Switches by tier, and the links between them</title>",
    ]
    out += _links(tiers, at)
    rails = _rails(tiers)
    for i, g in enumerate(groups):
        out += _group(g, below[i], [at[s] for s in g.leaves if s in at])
    for switch, (x, y) in at.items():
        out += _box(tiers, switch, x, y, rails.get(switch, ""), named=switch in bad)
    more = sum(len(row) for row in rows.values()) - len(at)
    if more:
        out.append(f'<text x="4" y="{height - 4:.0f}">and {more} more switches</text>')
    return "\n".join([*out, "</svg>"])


def _escaped(text: str) -> str:
    """Return a text as it may stand in SVG that is part of HTML."""
    return html.escape(xml_text(one_line(text)))


def _links(tiers: Tiers, at: dict[str, tuple[float, float]]) -> list[str]:
    counts: Counter[tuple[str, str]] = Counter()
    for link in {id(x): x for links in tiers.between.values() for x in links}.values():
        if link.a.device in at and link.b.device in at:
            counts[link.a.device, link.b.device] += 1
    most = max(counts.values(), default=1)
    out = []
    for (a, b), n in counts.items():
        (xa, ya), (xb, yb) = sorted((at[a], at[b]), key=lambda p: p[1])
        # Links of one tier are drawn as a bow below it.
        bow = f"M{xa:.1f} {ya + BOX_HEIGHT:.1f} Q{(xa + xb) / 2:.1f} {ya + 80:.1f} {xb:.1f} {yb + BOX_HEIGHT:.1f}"
        path = bow if ya == yb else f"M{xa:.1f} {ya + BOX_HEIGHT:.1f} L{xb:.1f} {yb:.1f}"
        out.append(f'<path d="{path}" fill="none" stroke="#9ab" stroke-width="{0.5 + 2 * n / most:.1f}"/>')
    return out


def _rails(tiers: Tiers) -> dict[str, str]:
    """Return the rail of each leaf: the name that most adapters on it have."""
    names: dict[str, Counter[str]] = defaultdict(Counter)
    for a in tiers.attachments:
        names[a.leaf.device][a.rail] += 1
    out = {}
    for leaf, counted in names.items():
        rail, n = counted.most_common(1)[0]
        if rail and n >= RAIL * counted.total():
            out[leaf] = rail
    return out


def _group(group: NodeGroup, at: tuple[float, float], leaves: list[tuple[float, float]]) -> list[str]:
    x, y = at
    names = compress_hostlist(group.nodes)
    shown = names if len(names) <= 16 else f"{names[:7]}…{names[-8:]}"
    lines = [
        f'<path d="M{xl:.1f} {yl + BOX_HEIGHT:.1f} L{x:.1f} {y:.1f}" fill="none" stroke="#cdd" stroke-width="0.7"/>'
        for xl, yl in leaves
    ]
    count = plural(len(group.nodes), "node")
    return [
        *lines,
        f"<g><title>{_escaped(names)}</title>",
        f'<rect x="{x - BOX_WIDTH / 2:.1f}" y="{y:.1f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" fill="#fff" '
        'stroke="#9ab" stroke-dasharray="3 2"/>',
        f'<text x="{x:.1f}" y="{y + 14:.1f}" text-anchor="middle">{_escaped(shown)}</text>',
        f'<text x="{x:.1f}" y="{y + 27:.1f}" text-anchor="middle" fill="#666">{count}</text></g>',
    ]


def _box(tiers: Tiers, switch: str, x: float, y: float, rail: str, *, named: bool) -> list[str]:
    leaf = tiers.leaves.get(switch)
    below = "" if leaf is None else f"{leaf.down} down, {leaf.up} up, {leaf.nodes} nodes"
    label = tiers.label(switch)
    title = f"{label}, rail {rail}" if rail else label
    shown = label if len(label) <= 16 else f"{label[:7]}…{label[-8:]}"
    stroke, fill = ("#b00020", "#fde8ea") if named else ("#456", "#eef3f8")
    return [
        f"<g><title>{_escaped(title)}</title>",
        f'<rect x="{x - BOX_WIDTH / 2:.1f}" y="{y:.1f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" '
        f'fill="{fill}" stroke="{stroke}"/>',
        f'<text x="{x:.1f}" y="{y + 14:.1f}" text-anchor="middle">{_escaped(shown)}</text>',
        f'<text x="{x:.1f}" y="{y + 27:.1f}" text-anchor="middle" fill="#666">{_escaped(below)}</text></g>',
        f'<text x="{x:.1f}" y="{y + BOX_HEIGHT + 11:.1f}" text-anchor="middle" fill="#666">{_escaped(rail)}</text>',
    ]
