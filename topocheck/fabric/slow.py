"""Links slower, or with a smaller MTU, than most of their kind; gathered by switch where one has many of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from topocheck.fabric.tiers import Tiers
from topocheck.fabric.uplinks import AGREE, MIN_ALIKE
from topocheck.model.fabric import FabricLink


class Below(msgspec.Struct, frozen=True, kw_only=True):
    """Links below what is usual of their kind (rate in Gb/s, or MTU in bytes).

    Attributes:
        links: one, or several of one switch.
        switch: id of that switch; empty for a single link.
        usual: what most links of the kind have.
        alike, siblings: how many links of the kind have it.
        of_switch: links of that switch in all.
    """

    links: tuple[FabricLink, ...]
    switch: str = ""
    usual: float
    alike: int
    siblings: int
    of_switch: int = 0


def slow_links(tiers: Tiers) -> tuple[Below, ...]:
    """Return the links below the usual rate of their kind.

    Of one kind are the links between two tiers, and those of one adapter of nodes that have the same adapters: nodes of
    other kinds (storage, login) have links of their own. Where such a rail alone has no usual rate, the rails of these
    nodes are compared together.
    """
    rails: dict[str, set[str]] = defaultdict(set)
    for a in tiers.attachments:
        rails[a.node].add(a.rail)
    of_rail: dict[frozenset[str], dict[str, list[FabricLink]]] = defaultdict(lambda: defaultdict(list))
    for a in tiers.attachments:
        if a.node:
            of_rail[frozenset(rails[a.node])][a.rail].append(a.link)
    found: list[Below] = []
    for each in of_rail.values():
        whole = [x for links in each.values() for x in links]
        for links in each.values():
            by = _usual(links, _rate) or _usual(whole, _rate)
            found += _below(links, by, _rate)
    between: dict[tuple[int, ...], list[FabricLink]] = defaultdict(list)
    for link in _between(tiers):
        between[tuple(sorted(tiers.tier.get(e.device, -1) for e in (link.a, link.b)))].append(link)
    for links in between.values():
        found += _below(links, _usual(links, _rate), _rate)
    return _gathered(tiers, found)


def small_mtus(tiers: Tiers) -> tuple[Below, ...]:
    """Return the links with a smaller MTU than most links of the fabric: a path has the smallest of its links."""
    links = list(tiers.fabric.links)
    return _gathered(tiers, _below(links, _usual(links, _mtu), _mtu))


def _between(tiers: Tiers) -> Iterable[FabricLink]:
    return {id(x): x for links in tiers.between.values() for x in links}.values()


def _rate(link: FabricLink) -> float | None:
    return link.rate_gbit_s


def _mtu(link: FabricLink) -> float | None:
    return link.mtu


def _usual(links: Sequence[FabricLink], value: Callable[[FabricLink], float | None]) -> tuple[float, int, int] | None:
    """Return the usual value, how many links have it and how many have one; None where too few agree."""
    known = [v for x in links if (v := value(x)) is not None]
    if len(known) < MIN_ALIKE:
        return None
    usual, alike = Counter(known).most_common(1)[0]
    return (usual, alike, len(known)) if alike >= AGREE * len(known) else None


def _below(
    links: Iterable[FabricLink], by: tuple[float, int, int] | None, value: Callable[[FabricLink], float | None]
) -> list[Below]:
    if by is None:
        return []
    usual, alike, siblings = by
    return [
        Below(links=(x,), usual=usual, alike=alike, siblings=siblings)
        for x in links
        if (v := value(x)) is not None and v < usual
    ]


def _gathered(tiers: Tiers, found: list[Below]) -> tuple[Below, ...]:
    """Return one entry for each switch of whose links most are below, and for each link of no such switch."""
    total: Counter[str] = Counter()
    for link in tiers.fabric.links:
        total.update({link.a.device, link.b.device})
    per: dict[str, list[Below]] = defaultdict(list)
    for b in found:
        for device in {b.links[0].a.device, b.links[0].b.device}:
            per[device].append(b)
    whole = [d for d, own in per.items() if len(own) >= MIN_ALIKE and len(own) >= AGREE * total[d] and d in tiers.tier]
    taken: set[int] = set()
    out = []
    for device in sorted(whole, key=lambda d: (-len(per[d]), d)):
        own = [b for b in per[device] if id(b) not in taken]
        if len(own) < AGREE * len(per[device]):
            continue
        taken |= {id(b) for b in own}
        out.append(
            msgspec.structs.replace(
                own[0], links=tuple(b.links[0] for b in own), switch=device, of_switch=total[device]
            )
        )
    out += [b for b in found if id(b) not in taken]
    return tuple(sorted(out, key=lambda b: (b.links[0].a, b.links[0].b)))
