"""What a fabric is as levels: nodes below a leaf, what leaves the leaf, and so on; rates for each adapter."""

from __future__ import annotations

from collections import Counter

import msgspec

from topocheck.fabric.places import places
from topocheck.fabric.tiers import Tiers


class FabricLevels(msgspec.Struct, frozen=True, kw_only=True):
    """A fabric in numbers.

    Attributes:
        nodes: nodes with adapters that announce them.
        adapters: adapters of most nodes.
        adapter_gbit_s: rate of most of their links; None where the dump gives none.
        nodes_per_leaf: nodes that most leaves (or sets of leaves, a rail each) have.
        oversubscription: largest ratio of a leaf's rate to adapters over its rate up; None where it is not known.
        tiers: tiers of switches.
        aligned: the same adapter of nodes in one place is on one leaf.
    """

    nodes: int
    adapters: int
    adapter_gbit_s: float | None
    nodes_per_leaf: int
    oversubscription: float | None
    tiers: int
    aligned: bool


def fabric_levels(tiers: Tiers) -> FabricLevels | None:
    """Return the levels of a fabric; None where no adapter announces its node."""
    if not tiers.nodes:
        return None
    adapters = Counter(len(own) for own in tiers.nodes.values()).most_common(1)[0][0]
    kind = [own for own in tiers.nodes.values() if len(own) == adapters]
    rates = Counter(a.link.rate_gbit_s for own in kind for a in own.values() if a.link.rate_gbit_s is not None)
    found = places(tiers)
    sizes = [len(p.nodes) for p in found]
    ratios = [r for x in tiers.leaves.values() if (r := x.oversubscription) is not None]
    spread = 0
    for p in found:
        rails: dict[str, set[str]] = {}
        for node in p.nodes:
            for rail, a in tiers.nodes[node].items():
                rails.setdefault(rail, set()).add(a.leaf.device)
        spread += sum(len(s) > 1 for s in rails.values())
    return FabricLevels(
        nodes=len(tiers.nodes),
        adapters=adapters,
        adapter_gbit_s=rates.most_common(1)[0][0] if rates else None,
        nodes_per_leaf=max(sizes),
        oversubscription=max(1.0, *ratios) if ratios else None,
        tiers=len(set(tiers.tier.values())),
        aligned=2 * spread <= adapters * len(found),
    )
