"""What the order of a job's nodes costs on a fabric: how often NCCL's ring and trees cross from leaf to leaf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from topocheck.model.names import natural_key
from topocheck.placement.ranks import Problem, RankPlace


class LeafRates(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf (or the leaves of a place's rails) of a job: its nodes, and what it carries, Gb/s.

    Attributes:
        leaf: its name.
        nodes: below it.
        node_gbit_s: of all adapters of a node together; None where it is not known.
        up_gbit_s: of all links to other switches; None where it is not known.
    """

    leaf: str
    nodes: tuple[str, ...]
    node_gbit_s: float | None = None
    up_gbit_s: float | None = None


class NodeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a job in the order of their ranks, and what rings and trees over them cross.

    Attributes:
        nodes: in that order.
        crossings, least: edges of a ring between leaves, and how few there can be.
        tree_crossings, tree_least: the same of a binary tree.
        limit_share: part of its adapters' rate that a node gets in a ring, as far as uplinks limit it; None where rates
            are not known.
        limited_by: the leaf whose uplinks do.
        limit_gb_s: what that leaves a node, GB/s; None where it is not limited, or rates are not known.
        tree_limit_gb_s: bytes of an all_reduce a second, GB/s, that the uplinks let through two trees; None where no
            edge crosses them, or rates are not known.
        tree_limited_by: the leaf whose uplinks do.
        better: nodes leaf by leaf; empty where the order is as good.
        unknown: nodes that the dump does not hold.
    """

    nodes: tuple[str, ...]
    crossings: int
    least: int
    tree_crossings: int
    tree_least: int
    limit_share: float | None = None
    limited_by: str = ""
    limit_gb_s: float | None = None
    tree_limit_gb_s: float | None = None
    tree_limited_by: str = ""
    better: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def node_order(ranks: Sequence[RankPlace], leaves: Sequence[LeafRates]) -> NodeOrder | None:
    """Return what the order of the nodes costs; None with fewer than two nodes of known leaves.

    NCCL numbers nodes by their lowest rank, and builds rings and trees over these numbers (ncclTopoPreset, src/graph).
    """
    placed = [r for r in ranks if r.rank is not None and r.node]
    nodes = tuple(dict.fromkeys(r.node for r in sorted(placed, key=lambda r: r.rank or 0)))
    short = {n.partition(".")[0].lower(): x for x in leaves for n in x.nodes}
    of = {n: short[n.partition(".")[0].lower()] for n in nodes if n.partition(".")[0].lower() in short}
    known = [n for n in nodes if n in of]
    if len(known) < 2:
        return None
    names = {n: x.leaf for n, x in of.items()}
    first = {leaf: i for i, leaf in reversed(list(enumerate(names[n] for n in known)))}
    better = tuple(sorted(known, key=lambda n: (first[names[n]], natural_key(n))))
    share, by = _limit(known, of)
    rate = next((x.node_gbit_s for x in of.values() if x.leaf == by), None)
    crossings, least = _ring(known, names), _ring(better, names)
    through, tree_by = _tree_limit(known, of)
    return NodeOrder(
        nodes=nodes,
        crossings=crossings,
        least=least,
        tree_crossings=_tree(known, names),
        tree_least=_tree(better, names),
        limit_share=share,
        limited_by=by,
        limit_gb_s=None if rate is None or share is None else share * rate / 8,
        tree_limit_gb_s=through,
        tree_limited_by=tree_by,
        better=better if crossings > least else (),
        unknown=tuple(n for n in nodes if n not in of),
    )


def _edges(nodes: Sequence[str]) -> list[tuple[str, str]]:
    return [(a, nodes[(i + 1) % len(nodes)]) for i, a in enumerate(nodes)]


def _ring(nodes: Sequence[str], leaf: Mapping[str, str]) -> int:
    return sum(leaf[a] != leaf[b] for a, b in _edges(nodes))


def _tree(nodes: Sequence[str], leaf: Mapping[str, str]) -> int:
    return sum(leaf[nodes[i]] != leaf[nodes[p]] for i, p in enumerate(parents(len(nodes))) if p is not None)


def parents(nodes: int) -> list[int | None]:
    """Return the parent of each node in NCCL's binary tree (ncclGetBtree, src/graph/trees.cc); None for the root."""
    out: list[int | None] = [None]
    for node in range(1, nodes):
        bit = node & -node
        up = (node ^ bit) | (bit << 1)
        out.append(up if up < nodes else node ^ bit)
    return out


def two_trees(nodes: int) -> list[tuple[int, int]]:
    """Return the edges (node, parent) of both trees of NCCL's double binary tree (ncclGetDtree, src/graph/trees.cc).

    The second is the first mirrored, or with an odd number of nodes shifted by one, so that who is inside one is at the
    end of the other.
    """
    first = [(i, p) for i, p in enumerate(parents(nodes)) if p is not None]
    if nodes % 2:
        return first + [((i + 1) % nodes, (p + 1) % nodes) for i, p in first]
    return first + [(nodes - 1 - i, nodes - 1 - p) for i, p in first]


def _tree_limit(nodes: Sequence[str], of: Mapping[str, LeafRates]) -> tuple[float | None, str]:
    """Return the bytes of an all_reduce a second, GB/s, that uplinks let through, and the leaf that limits them.

    Each tree brings half of the bytes up and half down, so every edge carries half of them in either direction.
    """
    crossing: Counter[str] = Counter()
    for i, p in two_trees(len(nodes)):
        a, b = of[nodes[i]].leaf, of[nodes[p]].leaf
        if a != b:
            crossing.update((a, b))
    rates = {x.leaf: x.up_gbit_s for x in of.values()}
    if not crossing or any(rates[leaf] is None for leaf in crossing):
        return None, ""
    return min((2 * (rates[leaf] or 0.0) / 8 / n, leaf) for leaf, n in crossing.items())


def _limit(nodes: Sequence[str], of: Mapping[str, LeafRates]) -> tuple[float | None, str]:
    """Return what part of its rate a node gets in a ring, and the leaf that limits it."""
    leaving = Counter(of[a].leaf for a, b in _edges(nodes) if of[a].leaf != of[b].leaf)
    rates = {x.leaf: x for x in of.values()}
    if any(rates[leaf].node_gbit_s is None or rates[leaf].up_gbit_s is None for leaf in leaving):
        return None, ""
    share, by = 1.0, ""
    for leaf, n in sorted(leaving.items()):
        now = (rates[leaf].up_gbit_s or 0.0) / (n * (rates[leaf].node_gbit_s or 1.0))
        if now < share:
            share, by = now, leaf
    return share, by


def order_problems(order: NodeOrder) -> tuple[Problem, ...]:
    """Return what is worth saying of an order: a warning where uplinks limit it and another order would not."""
    if not order.better:
        return ()
    slower = order.limit_share is not None and order.limit_share < 1
    text = (
        f"a ring over the nodes in this order crosses between leaves {order.crossings} times, at best {order.least}; "
        f"a tree {order.tree_crossings} times, leaf by leaf {order.tree_least}"
    )
    if slower:
        percent = 100 * (order.limit_share or 0)
        text += f"; the uplinks of {order.limited_by} leave a node {percent:.0f} % of its adapters' rate"
    return (
        Problem(
            state="warn" if slower else "note",
            ranks=(),
            text=text,
            fix=f"give ranks to nodes leaf by leaf: {', '.join(order.better[:64])}"
            + (f" and {len(order.better) - 64} more" if len(order.better) > 64 else ""),
        ),
    )
