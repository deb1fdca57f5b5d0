"""Tiers of a fabric: leaves, which adapters of nodes are plugged into, and what is above them; each leaf's capacity."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping

import msgspec

from topocheck.model.fabric import DeviceKind, End, Fabric, FabricDevice, FabricLink

SHARE = 0.75
"""Part of a switch's links to other switches that shows which tier it is of."""


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A port of a node's adapter and the switch port that it is plugged into.

    Attributes:
        node: host name; empty where the adapter announces none.
        adapter: its name on the node; empty where it announces none.
        end: the port of the adapter.
        leaf: the port of the switch, which is above the leaves where the cable is plugged in wrongly.
        link: the cable.
    """

    node: str
    adapter: str
    end: End
    leaf: End
    link: FabricLink

    @property
    def rail(self) -> str:
        """The adapter's name, with its port where that is not the first."""
        return self.adapter if self.end.port == "1" else f"{self.adapter}/{self.end.port}"


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """What a leaf carries, Gb/s: to adapters and to the tier above; None where a rate is not known."""

    id: str
    nodes: int
    down: int
    up: int
    down_gbit_s: float | None
    up_gbit_s: float | None

    @property
    def oversubscription(self) -> float | None:
        """Rate to adapters over the rate to the tier above; None where a rate is not known or nothing is above."""
        return self.down_gbit_s / self.up_gbit_s if self.down_gbit_s is not None and self.up_gbit_s else None


class Tiers(msgspec.Struct, frozen=True, kw_only=True):
    """A fabric in tiers.

    Attributes:
        fabric: the facts.
        tier: id of a switch -> 0 for a leaf, 1 for what leaves are joined to, and so on; no entry where no leaf is
            reached.
        between: id of a switch -> its links to other switches.
        attachments: every adapter port of a node on a switch, in order.
        duplicates: (node, rail) that several adapters announce; which of them is which cannot be said.
        nodes: node -> rail -> where it is plugged in, of nodes whose adapters have names of their own.
        leaves: by id.
        planes: ids of the switches of each part that is joined in itself; the largest first.
    """

    fabric: Fabric
    tier: Mapping[str, int]
    between: Mapping[str, list[FabricLink]]
    attachments: tuple[Attachment, ...]
    duplicates: Mapping[tuple[str, str], tuple[Attachment, ...]]
    nodes: Mapping[str, Mapping[str, Attachment]]
    leaves: Mapping[str, Leaf]
    planes: tuple[frozenset[str], ...]

    def label(self, device: str) -> str:
        """Return the name of a device, or its id."""
        found = self.fabric.devices.get(device)
        return device if found is None else found.label


def tiers_of(fabric: Fabric) -> Tiers:
    """Return the tiers of a fabric. Linear in its links."""
    switches = {i for i, d in fabric.devices.items() if d.kind is DeviceKind.SWITCH}
    switches |= {end.device for x in fabric.links for end in (x.a, x.b)} - fabric.devices.keys()
    between: dict[str, list[FabricLink]] = defaultdict(list)
    attachments = []
    for link in fabric.links:
        inside = [end.device in switches for end in (link.a, link.b)]
        if all(inside) and link.a.device != link.b.device:
            between[link.a.device].append(link)
            between[link.b.device].append(link)
        elif all(inside):
            continue
        elif any(inside):
            leaf, end = (link.a, link.b) if inside[0] else (link.b, link.a)
            device = fabric.devices[end.device]
            if device.kind is DeviceKind.ADAPTER:
                attachments.append(_attachment(device, end, leaf, link))
    leaves = _leaf_switches(Counter(a.leaf.device for a in attachments), between)
    tier = _raised(_distances(leaves, between), between)
    attachments.sort(key=lambda a: (a.node, a.rail, a.end))
    duplicates = _duplicates(attachments)
    return Tiers(
        fabric=fabric,
        tier=tier,
        between=between,
        attachments=tuple(attachments),
        duplicates=duplicates,
        nodes=_nodes(attachments, {node for node, _ in duplicates}),
        leaves=_leaves(attachments, between, tier),
        planes=_planes(switches, between),
    )


def _attachment(device: FabricDevice, end: End, leaf: End, link: FabricLink) -> Attachment:
    return Attachment(node=device.node, adapter=device.adapter, end=end, leaf=leaf, link=link)


def _duplicates(attachments: list[Attachment]) -> dict[tuple[str, str], tuple[Attachment, ...]]:
    found: dict[tuple[str, str], list[Attachment]] = defaultdict(list)
    for a in attachments:
        if a.node:
            found[a.node, a.rail].append(a)
    return {k: tuple(v) for k, v in found.items() if len(v) > 1 and len({a.end.device for a in v}) > 1}


def _nodes(attachments: list[Attachment], unclear: set[str]) -> dict[str, dict[str, Attachment]]:
    out: dict[str, dict[str, Attachment]] = {}
    for a in attachments:
        if a.node and a.node not in unclear:
            out.setdefault(a.node, {})[a.rail] = a
    return out


def _leaf_switches(down: Mapping[str, int], between: Mapping[str, list[FabricLink]]) -> set[str]:
    """Return the switches that are leaves: those with adapters, but not a spine into which a few are plugged.

    Such a spine has few adapters for its links, and most of its neighbours that have any have many.
    """
    share = {s: n / (n + len(between.get(s, ()))) for s, n in down.items()}
    out = set()
    for switch, own in share.items():
        others = {x.other(switch).device for x in between.get(switch, ())} & share.keys()
        above = sum(share[o] >= 2 * own for o in others)
        if own >= 1 - SHARE or above < 3 or above < SHARE * len(others):
            out.add(switch)
    return out or set(down)


def _distances(leaves: set[str], between: Mapping[str, list[FabricLink]]) -> dict[str, int]:
    """Return how many links each switch is from the nearest leaf."""
    out = dict.fromkeys(sorted(leaves), 0)
    todo = deque(out)
    while todo:
        here = todo.popleft()
        for link in between.get(here, ()):
            there = link.other(here).device
            if there not in out:
                out[there] = out[here] + 1
                todo.append(there)
    return out


def _raised(tier: dict[str, int], between: Mapping[str, list[FabricLink]]) -> dict[str, int]:
    """Return the tiers with those switches raised that a cable past a tier makes look lower than they are.

    Nearly all links of such a switch lead to switches of what then is its own tier.
    """
    out = dict(tier)
    for switch, level in tier.items():
        same = sum(tier.get(x.other(switch).device) == level for x in between.get(switch, ()))
        if level > 0 and same and same >= SHARE * len(between[switch]):
            out[switch] = level + 1
    return out


def _leaves(
    attachments: list[Attachment], between: Mapping[str, list[FabricLink]], tier: Mapping[str, int]
) -> dict[str, Leaf]:
    own: dict[str, list[Attachment]] = defaultdict(list)
    for a in attachments:
        if tier[a.leaf.device] == 0:
            own[a.leaf.device].append(a)
    out = {}
    for leaf in sorted(own):
        up = [x for x in between.get(leaf, ()) if tier.get(x.other(leaf).device, 0) > 0]
        out[leaf] = Leaf(
            id=leaf,
            nodes=len({a.node or a.end.device for a in own[leaf]}),
            down=len(own[leaf]),
            up=len(up),
            down_gbit_s=_total([a.link for a in own[leaf]]),
            up_gbit_s=_total(up),
        )
    return out


def _total(links: list[FabricLink]) -> float | None:
    rates = [x.rate_gbit_s for x in links]
    return None if None in rates else sum(r for r in rates if r is not None)


def _planes(switches: set[str], between: Mapping[str, list[FabricLink]]) -> tuple[frozenset[str], ...]:
    """Return the parts of the fabric that no link joins to each other."""
    left, out = set(switches), []
    while left:
        part, todo = set(), [min(left)]
        while todo:
            here = todo.pop()
            if here not in part:
                part.add(here)
                todo += [x.other(here).device for x in between.get(here, ())]
        left -= part
        out.append(frozenset(part))
    return tuple(sorted(out, key=lambda p: (-len(p), min(p))))


def majority(values: list[str]) -> tuple[str, int]:
    """Return the most frequent value and how often it occurs; the first in order among equals."""
    counted = Counter(values)
    best = min(counted, key=lambda v: (-counted[v], v))
    return best, counted[best]
