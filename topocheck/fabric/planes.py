"""Planes next to each other: parts of a fabric that no link joins, and that the same nodes have adapters on."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from topocheck.fabric.tiers import Tiers


class Plane(msgspec.Struct, frozen=True, kw_only=True):
    """A part that no link joins to others: a switch of it by which it is named, and what it has.

    Attributes:
        switch: id of its first switch.
        switches: how many of each tier, from the leaves up.
        nodes: how many nodes have an adapter on it.
        between: links between its switches; `gbit_s` of them in all, None where a rate is not known.
    """

    switch: str
    switches: tuple[int, ...]
    nodes: int
    between: int
    gbit_s: float | None


class OddPlane(msgspec.Struct, frozen=True, kw_only=True):
    """A plane that has less than the others, of which `alike` of `planes` are equal to `usual`."""

    plane: Plane
    usual: Plane
    alike: int
    planes: int


def planes_of(tiers: Tiers) -> tuple[Plane, ...]:
    """Return the planes: the parts on which half or more of the nodes of the largest have adapters.

    A network of its own for storage or management, which other nodes have, is no plane of the same fabric.
    """
    on: dict[str, set[str]] = defaultdict(set)
    for a in tiers.attachments:
        on[a.leaf.device].add(a.node or a.end.device)
    nodes = [{n for s in p for n in on.get(s, ())} for p in tiers.planes]
    largest = max(nodes, key=len, default=set())
    out = []
    for part, own in zip(tiers.planes, nodes, strict=True):
        if not own or 2 * len(own & largest) < len(largest):
            continue
        links = {id(x): x for s in part for x in tiers.between.get(s, ())}.values()
        levels = Counter(tiers.tier[s] for s in part if s in tiers.tier)
        rates = [x.rate_gbit_s for x in links]
        out.append(
            Plane(
                switch=min(part, key=lambda s: tiers.label(s)),
                switches=tuple(levels[t] for t in sorted(levels)),
                nodes=len(own),
                between=len(links),
                gbit_s=None if None in rates else sum(r for r in rates if r is not None),
            )
        )
    return tuple(out)


def odd_planes(planes: tuple[Plane, ...]) -> tuple[OddPlane, ...]:
    """Return the planes with less than the usual; of two that differ the smaller, of more those unlike most."""
    sizes = Counter(_size(p) for p in planes)
    if len(sizes) < 2:
        return ()
    best = max(sizes, key=lambda s: (sizes[s], s))
    if len(planes) > 2 and 2 * sizes[best] <= len(planes):
        return ()
    usual = next(p for p in planes if _size(p) == best)
    return tuple(
        OddPlane(plane=p, usual=usual, alike=sizes[best], planes=len(planes)) for p in planes if _size(p) < best
    )


def _size(p: Plane) -> tuple[float, int, tuple[int, ...]]:
    """Return what planes are compared by. Nodes are not in it: one that lacks an adapter is named by itself."""
    return (p.gbit_s or 0.0, p.between, p.switches)
