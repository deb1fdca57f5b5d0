"""Links between switches of neighbouring tiers that should be there, by what their siblings have."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from topocheck.fabric.rails import stem
from topocheck.fabric.tiers import Tiers

MIN_ALIKE = 4
"""Links or switches of a kind that it takes to say what is usual."""
AGREE = 0.75
"""Part of them that must be alike."""


class MissingLinks(msgspec.Struct, frozen=True, kw_only=True):
    """Two switches joined by fewer links than their siblings.

    Attributes:
        lower, upper: ids; `upper` is empty where the lower one has no link to any switch above it.
        found, usual: links there are, and links that are usual.
        alike, siblings: how many of the switches compared have the usual number.
        below: they are the switches below `upper`; else the switches above `lower`, or (no upper) leaves of its kind.
        more: ids of switches above to which `lower` has more links than usual: a cable may be on the wrong one.
    """

    lower: str
    upper: str
    found: int
    usual: int
    alike: int
    siblings: int
    below: bool = True
    more: tuple[str, ...] = ()


class _Family(msgspec.Struct, frozen=True):
    """Switches that are joined to the same switches above."""

    above: frozenset[str]
    members: tuple[str, ...]


def missing_links(tiers: Tiers) -> tuple[MissingLinks, ...]:
    """Return the pairs of switches of neighbouring tiers that are joined by fewer links than usual.

    Compared are the switches of a pod: those that have most of their switches above in common, joined to the one in
    question or not. Where their numbers agree on no usual one (half of them have lost theirs), the links of a switch
    to the other switches above it are compared instead.
    """
    number: Counter[tuple[str, str]] = Counter()
    above: dict[str, set[str]] = defaultdict(set)
    for link in tiers.fabric.links:
        low, high = sorted((link.a.device, link.b.device), key=lambda i: tiers.tier.get(i, -1))
        if tiers.tier.get(low, -1) < 0 or tiers.tier[high] != tiers.tier[low] + 1:
            continue
        number[low, high] += 1
        above[low].add(high)
    families = _families(above)
    uppers = {u for f in families for u in f.above}
    out: dict[tuple[str, str], MissingLinks] = {}
    usual_below: dict[str, int] = {}
    for upper in sorted(uppers):
        lowers = _lowers(upper, families)
        found = _usual([number[low, upper] for low in lowers])
        if found is None:
            continue
        usual_below[upper], alike = found
        for low in lowers:
            if number[low, upper] < usual_below[upper]:
                out[low, upper] = MissingLinks(
                    lower=low, upper=upper, found=number[low, upper], usual=usual_below[upper], alike=alike,
                    siblings=len(lowers),
                )  # fmt: skip
    for family in families:
        pod = sorted(_pod(_siblings(family, families)))
        for low in family.members:
            found = _usual([number[low, u] for u in pod])
            if found is None:
                continue
            for upper in pod:
                if number[low, upper] < found[0] and usual_below.get(upper) is None:
                    out[low, upper] = MissingLinks(
                        lower=low, upper=upper, found=number[low, upper], usual=found[0], alike=found[1],
                        siblings=len(pod), below=False,
                    )  # fmt: skip
    more: dict[str, list[str]] = defaultdict(list)
    for (low, upper), n in number.items():
        if n > usual_below.get(upper, n):
            more[low].append(upper)
    named = [msgspec.structs.replace(m, more=tuple(sorted(more.get(m.lower, ())))) for _, m in sorted(out.items())]
    return (*named, *_cut_off(tiers, above))


def _families(above: Mapping[str, Iterable[str]]) -> list[_Family]:
    members: dict[frozenset[str], list[str]] = defaultdict(list)
    for low in sorted(above):
        members[frozenset(above[low])].append(low)
    return [_Family(a, tuple(m)) for a, m in members.items()]


def _pod(families: Iterable[_Family]) -> set[str]:
    """Return the switches above to which half of the members or more are joined."""
    weight: Counter[str] = Counter()
    total = 0
    for f in families:
        total += len(f.members)
        for u in f.above:
            weight[u] += len(f.members)
    return {u for u, n in weight.items() if 2 * n >= total}


def _siblings(family: _Family, families: Iterable[_Family]) -> list[_Family]:
    return [
        f for f in families if len(f.above & family.above) >= AGREE * max(len(f.above), len(family.above))
    ]  # fmt: skip


def _lowers(upper: str, families: Iterable[_Family]) -> list[str]:
    """Return the switches below `upper`, and those of the same pod that should be."""
    joined = [f for f in families if upper in f.above]
    pod = _pod(joined)
    near = [f for f in families if upper not in f.above and len(f.above & pod) >= AGREE * len(pod)]
    return sorted(m for f in (*joined, *near) for m in f.members)


def _usual(counts: list[int]) -> tuple[int, int] | None:
    """Return the number that most have and how many have it; None where too few agree."""
    if len(counts) < MIN_ALIKE:
        return None
    usual, alike = Counter(counts).most_common(1)[0]
    return (usual, alike) if alike >= AGREE * len(counts) else None


def _cut_off(tiers: Tiers, above: Mapping[str, set[str]]) -> list[MissingLinks]:
    """Return the leaves with no link up, whose adapters are of a kind that is on leaves with such links."""
    kinds: dict[tuple[str, str], set[str]] = defaultdict(set)
    names: dict[str, set[str]] = defaultdict(set)
    for a in tiers.attachments:
        if a.node and tiers.tier.get(a.leaf.device) == 0:
            kinds[stem(a.node), a.rail].add(a.leaf.device)
            names[stem(a.node)].add(a.leaf.device)
    out = []
    for leaf in sorted(x for x in tiers.leaves if not above.get(x) and not tiers.between.get(x)):
        own = [k for k, leaves in kinds.items() if leaf in leaves]
        # A switch that alone carries some adapters, such as those of a storage network, is a network of its own.
        if not own or not all(any(above.get(x) for x in kinds[k]) for k in own):
            continue
        alike = set().union(*(names[name] for name, _ in own))
        joined = [x for x in alike if above.get(x)]
        if len(alike) >= MIN_ALIKE and len(joined) >= AGREE * len(alike):
            usual = Counter(tiers.leaves[x].up for x in joined).most_common(1)[0][0]
            out.append(
                MissingLinks(
                    lower=leaf, upper="", found=0, usual=usual, alike=len(joined), siblings=len(alike), below=False
                )
            )
    return out
