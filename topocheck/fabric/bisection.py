"""Bisection bandwidth: what half of the nodes can send to the other half at once, at most.

Of a tree: a group of nodes (below one leaf; below one pod; and so on) sends no more to other groups than its adapters
carry, and no more than its links up do; half of the groups send while the other half receives. So at each tier the
bound is half of the sum over groups of the lesser of the two, and the least tier decides. Groups that are joined
directly (dragonfly) send over the links between the two halves. It is a bound: routing and congestion are not in it.
(W. J. Dally and B. Towles, "Principles and Practices of Interconnection Networks", 2004, 3.2; C. Leiserson,
"Fat-Trees", IEEE Transactions on Computers C-34, 1985.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from topocheck.fabric.groups import connected_parts, switch_groups
from topocheck.fabric.tiers import Tiers
from topocheck.model.fabric import FabricLink
from topocheck.model.names import natural_key


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds it: `tier` of the groups (0: leaves), how many groups, and Gb/s of both sides of the sum.

    Attributes:
        down_gbit_s, up_gbit_s: of all groups, to adapters and to other groups.
        gbit_s: half of the sum over groups of the lesser of the two; of groups that are joined directly, what the
            links between two halves carry.
        direct: the groups are joined directly.
    """

    tier: int
    groups: int
    down_gbit_s: float
    up_gbit_s: float
    gbit_s: float
    direct: bool = False


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """Bandwidth per direction between two halves of the nodes, Gb/s.

    Attributes:
        full_gbit_s: half of what all adapters carry: that of a fabric that does not block.
        gbit_s: the least of it and of the bounds.
        bounds: by tier, from the leaves up.
    """

    full_gbit_s: float
    gbit_s: float
    bounds: tuple[Bound, ...]


def bisection(tiers: Tiers) -> Bisection | None:
    """Return the bisection bandwidth; None where rates are not known, cables not shown, or nodes not all joined."""
    links = [a.link for a in tiers.attachments]
    between = {id(x): x for own in tiers.between.values() for x in own}.values()
    if not links or not tiers.fabric.whole or any(x.rate_gbit_s is None for x in (*links, *between)):
        return None
    down: dict[str, float] = defaultdict(float)
    nodes: dict[str, set[str]] = defaultdict(set)
    for a in tiers.attachments:
        down[a.leaf.device] += a.link.rate_gbit_s or 0.0
        nodes[a.leaf.device].add(a.node or a.end.device)
    planes = [p for p in tiers.planes if any(s in down for s in p)]
    if len(planes) > 1 and len({frozenset(n for s in p for n in nodes.get(s, ())) for p in planes}) > 1:
        return None
    bounds = []
    for tier in range(max(tiers.tier.values(), default=0) + 1):
        bound = _at(tiers, tier, down, planes)
        if bound is not None:
            bounds.append(bound)
    full = sum(down.values()) / 2
    return Bisection(full_gbit_s=full, gbit_s=min([full, *(b.gbit_s for b in bounds)]), bounds=tuple(bounds))


def _at(tiers: Tiers, tier: int, down: Mapping[str, float], planes: Sequence[frozenset[str]]) -> Bound | None:
    """Return the bound of the groups of switches of a tier and below; None where one group holds all nodes."""
    joined = _joined(tiers, tier)
    carried = total_down = total_up = 0.0
    count, direct = 0, False
    for plane in planes:
        groups = [g for g in joined if g[0] in plane and any(s in down for s in g)]
        if len(groups) < 2:
            # The halves meet inside: nothing of this tier is crossed.
            carried += sum(down.get(s, 0.0) for s in plane) / 2
            continue
        of = {s: i for i, g in enumerate(groups) for s in g}
        ups = [_up(tiers, g, tier) for g in groups]
        downs = [sum(down.get(s, 0.0) for s in g) for g in groups]
        count += len(groups)
        total_down += sum(downs)
        if any(ups):
            total_up += sum(ups)
            carried += sum(map(min, downs, ups)) / 2
        else:
            direct = True
            cut = _cut(tiers, of, len(groups))
            total_up += cut
            carried += cut
    if not count:
        return None
    return Bound(tier=tier, groups=count, down_gbit_s=total_down, up_gbit_s=total_up, gbit_s=carried, direct=direct)


def _joined(tiers: Tiers, tier: int) -> list[tuple[str, ...]]:
    """Return the groups of switches that links below a tier join; of the topmost tier those of a dragonfly."""
    top = max(tiers.tier.values(), default=0)
    if tier == top:
        return switch_groups(tiers) if top == 0 else _parts(tiers, top)
    return _parts(tiers, tier)


def _parts(tiers: Tiers, tier: int) -> list[tuple[str, ...]]:
    """Return the switches of a tier and below that links between different tiers join."""
    inside = [s for s, t in tiers.tier.items() if t <= tier]
    near = {s: set[str]() for s in sorted(inside, key=lambda s: natural_key(tiers.label(s)))}
    for s, others in near.items():
        ends = (link.other(s).device for link in tiers.between.get(s, ()))
        others.update(e for e in ends if e in near and tiers.tier[e] != tiers.tier[s])
    return connected_parts(near)


def _up(tiers: Tiers, group: Iterable[str], tier: int) -> float:
    return sum(
        x.rate_gbit_s or 0.0
        for s in group
        for x in tiers.between.get(s, ())
        if tiers.tier.get(x.other(s).device, 0) > tier
    )


def _cut(tiers: Tiers, of: Mapping[str, int], groups: int) -> float:
    """Return what the links carry between the first half of groups and the second, in the order of names."""
    crossing: dict[int, FabricLink] = {}
    for s, i in of.items():
        for x in tiers.between.get(s, ()):
            j = of.get(x.other(s).device)
            if j is not None and (i < groups / 2) != (j < groups / 2):
                crossing[id(x)] = x
    return sum(x.rate_gbit_s or 0.0 for x in crossing.values())
