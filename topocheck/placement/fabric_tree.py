"""Slurm's tree of switches from a fabric: nodes by the leaves they share, and these by the switches above them.

Slurm's tree gives each switch one parent, and each node one leaf (topology.conf(5)). So a leaf of the file is the
set of leaves that the same nodes are on (one, or a rail each), and what stands above it the set of switches by which
such leaves are joined.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from topocheck.fabric.groups import switch_groups
from topocheck.fabric.places import plain_name, together
from topocheck.fabric.tiers import Tiers
from topocheck.model.base import InputError
from topocheck.model.names import is_slurm_node, is_slurm_switch, natural_key
from topocheck.placement.blocks import Above, Tree, Unit


def fabric_tree(tiers: Tiers, only: Collection[str] = ()) -> Tree:
    """Return the tree of a fabric's nodes.

    Args:
        tiers: the fabric.
        only: nodes that Slurm knows; all of the dump where empty.

    Raises:
        InputError: a node of `only` is not in the dump, a name cannot stand in Slurm's files, or there is no node.
    """
    on: dict[str, set[str]] = defaultdict(set)
    for a in tiers.attachments:
        if a.node and (not only or a.node in only):
            on[a.node].add(a.leaf.device)
    absent = sorted(set(only) - on.keys(), key=natural_key)
    if absent:
        raise InputError(
            f"{absent[0]} is not in the dump of the fabric{_more(absent)}; a node that Slurm does not find in the "
            "topology is never given to a job"
        )
    if not on:
        raise InputError("no adapter in the dump of the fabric has a host name")
    bad = next((n for n in on if not is_slurm_node(n)), None)
    if bad is not None:
        raise InputError(f"{bad!r:.80} is no host name that Slurm's files can hold; choose with --nodes")
    names = _Names()
    sets = together({n: frozenset(s) for n, s in on.items()})
    leaves, places = [], {}
    for s in sorted(sets, key=lambda s: natural_key(min(s.members, key=natural_key))):
        name = names.of([tiers.label(x) for x in s.switches], "leaf")
        nodes = tuple(sorted(s.members, key=natural_key))
        leaves.append(Unit(name=name, nodes=nodes, source=_listed("on", [tiers.label(x) for x in s.switches])))
        places[name] = s.switches
    above, alone = _above(tiers, places, names)
    unnamed = sum(not a.node for a in tiers.attachments)
    notes = ["nodes have the names that their adapters announce, or that their snapshots have"]
    if unnamed:
        notes.append(f"{unnamed} adapters announce no host name: their nodes are not in this file")
    if alone:
        notes.append("no link of the dump joins the topmost switches: a job gets nodes below one of them alone")
    return Tree(leaves=tuple(leaves), above=tuple(above), notes=tuple(notes))


def _above(tiers: Tiers, places: Mapping[str, set[str]], names: _Names) -> tuple[list[Above], bool]:
    """Return the switches above the leaves, from below upwards, and whether the topmost ones are not joined."""
    out: list[Above] = []
    level = 0
    while len(places) > 1:
        ups: dict[str, frozenset[str]] = {}
        for name, switches in places.items():
            reached = {x.other(s).device for s in switches for x in tiers.between.get(s, ())}
            ups[name] = frozenset(s for s in reached if tiers.tier.get(s) == level + 1)
        if not any(ups.values()):
            break
        level += 1
        joined = together({n: u for n, u in ups.items() if u})
        loose = {n: places[n] for n, u in ups.items() if not u}
        places = {}
        for s in sorted(joined, key=lambda s: natural_key(min(s.members, key=natural_key))):
            name = names.of([tiers.label(x) for x in s.switches], "spine")
            labels = [tiers.label(x) for x in s.switches]
            out.append(Above(name=name, children=_sorted(s.members), source=_listed("joined by", labels)))
            places[name] = s.switches
        places |= loose
    if len(places) > 1:
        groups = switch_groups(tiers)
        of = {s: i for i, g in enumerate(groups) for s in g}
        by_group: dict[int, list[str]] = defaultdict(list)
        for name, switches in places.items():
            found = Counter(of[s] for s in switches if s in of)
            by_group[found.most_common(1)[0][0] if found else -1].append(name)
        if level == 0 and 1 < len(by_group) < len(places) and -1 not in by_group:
            for members in sorted(by_group.values(), key=lambda m: natural_key(m[0])):
                name = names.of([], "group")
                out.append(Above(name=name, children=_sorted(members), source="switches that are joined to each other"))
                places = {n: s for n, s in places.items() if n not in members} | {
                    name: set().union(*(places[m] for m in members))
                }
        plane = {s: i for i, p in enumerate(tiers.planes) for s in p}
        parts = {frozenset(plane.get(s, -1) for s in switches) for switches in places.values()}
        if len(set().union(*parts)) == 1 or len(parts) == 1:
            out.append(
                Above(name=names.of(["core"], "core"), children=_sorted(places), source="links between switches")
            )
            return out, False
    return out, len(places) > 1


class _Names:
    """Gives each switch of the file a name of its own: that of the switch it stands for, or a number."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._count: Counter[str] = Counter()

    def of(self, labels: Sequence[str], kind: str) -> str:
        name = plain_name(labels[0]) if len(labels) == 1 else ""
        while not name or name in self._used or not is_slurm_switch(name):
            self._count[kind] += 1
            name = f"{kind}{self._count[kind]}"
        self._used.add(name)
        return name


def _listed(how: str, labels: Iterable[str]) -> str:
    names = sorted((plain_name(x) for x in labels), key=natural_key)
    return f"{how} {', '.join(names[:16])}" + (f" and {len(names) - 16} more" if len(names) > 16 else "")


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=natural_key))


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
