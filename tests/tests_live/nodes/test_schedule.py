"""Every pair meets once, and no node is in two pairs of a round."""

from __future__ import annotations

import pytest

from topocheck.tests_live.nodes.schedule import FULL_UP_TO, disjoint, rounds, together


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 17, 64])
def test_round_robin(n):
    names = [f"n{i}" for i in range(n)]
    made = rounds(names)
    # n-1 rounds for an even number of nodes, n for an odd one, where one rests in each.
    assert len(made) == (n - 1 if n % 2 == 0 else n)
    for r in made:
        flat = [x for p in r for x in p]
        assert len(flat) == len(set(flat)) == n // 2 * 2
    met = [frozenset(p) for r in made for p in r]
    assert len(met) == len(set(met)) == n * (n - 1) // 2


def test_no_pair_of_one_node():
    assert rounds(["a"]) == []
    assert rounds([]) == []


def test_together_takes_all_pairs_of_few_nodes_and_a_pattern_of_many():
    few = [f"n{i}" for i in range(5)]
    assert {frozenset(p) for p in together(few)} == {frozenset((a, b)) for a in few for b in few if a != b}
    many = [f"n{i}" for i in range(4 * FULL_UP_TO)]
    pairs = together(many)
    assert len({frozenset(p) for p in pairs}) == len(pairs)
    # 1, 2, 4 ... 64 places apart: seven steps, the last of which pairs each node once.
    assert len(pairs) == 128 * 6 + 64


def test_disjoint_rounds():
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")]
    made = disjoint(pairs)
    assert sorted(p for r in made for p in r) == sorted(pairs)
    assert len(made) == 2
