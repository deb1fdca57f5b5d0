"""The slow node, direction or link is named; nobody is accused where rates merely jitter."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.tests_live.node_ports import find_slow, reference, suspects


def rates(n: int, usual: float = 25.0, jitter: float = 0.0, seed: int = 1) -> dict[tuple[str, str], float]:
    rng = random.Random(seed)
    names = [f"n{i}" for i in range(n)]
    return {(a, b): usual * (1 + rng.uniform(-jitter, jitter)) for a in names for b in names if a != b}


@pytest.mark.parametrize("n", [3, 4, 5, 8, 16])
def test_a_slow_node_is_named_for_both_directions(n):
    r = {p: v / 2 if "n1" in p else v for p, v in rates(n, jitter=0.03).items()}
    found = find_slow(r)
    assert {(s.node, s.direction, s.other) for s in found} == {("n1", "sends", ""), ("n1", "receives", "")}
    assert all(s.share == pytest.approx(0.5, abs=0.05) for s in found)


def test_a_node_that_only_sends_slowly():
    r = {p: v * 0.6 if p[0] == "n2" else v for p, v in rates(4).items()}
    (s,) = find_slow(r)
    assert (s.node, s.direction) == ("n2", "sends")
    assert s.share == pytest.approx(0.6)


@pytest.mark.parametrize("n", [3, 4, 6])
def test_a_slow_link_accuses_neither_node(n):
    r = rates(n)
    r["n0", "n1"] = r["n1", "n0"] = 10.0
    found = find_slow(r)
    assert {(s.node, s.other) for s in found} == {("n0", "n1"), ("n1", "n0")}
    assert suspects(r) == (("n0", "n1"),)


def test_a_slow_node_beside_a_slow_link():
    r = {p: v / 2 if "n5" in p else v for p, v in rates(6).items()}
    r["n0", "n1"] = 5.0
    found = {(s.node, s.direction, s.other) for s in find_slow(r)}
    assert found == {("n5", "sends", ""), ("n5", "receives", ""), ("n0", "", "n1")}


def test_two_slow_nodes_of_six():
    r = {p: v / 2 if {"n1", "n4"} & set(p) else v for p, v in rates(6).items()}
    assert {s.node for s in find_slow(r)} == {"n1", "n4"}
    assert reference(r)[0] == 25.0


def test_a_pair_without_connection_is_a_broken_link():
    r = rates(4)
    r["n0", "n3"] = r["n3", "n0"] = 0.0
    assert {(s.node, s.other, s.share) for s in find_slow(r)} == {("n0", "n3", 0.0), ("n3", "n0", 0.0)}


def test_two_nodes_have_no_siblings():
    assert find_slow({("a", "b"): 1.0, ("b", "a"): 9.0}) == ()
    assert find_slow({}) == ()


def test_all_failed_accuses_nobody():
    assert find_slow(dict.fromkeys(rates(4), 0.0)) == ()


@given(n=st.integers(3, 12), seed=st.integers(0, 10_000), jitter=st.floats(0, 0.07))
def test_jitter_accuses_nobody(n, seed, jitter):
    # Rates within 7 % of the usual one stay within 15 % of their median.
    assert find_slow(rates(n, jitter=jitter, seed=seed)) == ()


@given(n=st.integers(4, 12), seed=st.integers(0, 10_000), share=st.floats(0.05, 0.6))
def test_a_slow_node_is_always_the_one_named(n, seed, share):
    r = {p: v * share if "n2" in p else v for p, v in rates(n, jitter=0.04, seed=seed).items()}
    assert {s.node for s in find_slow(r)} == {"n2"}
    assert not any(s.other for s in find_slow(r))


def test_two_nodes_are_measured_again_where_one_direction_is_slower():
    assert suspects({("a", "b"): 12.0, ("b", "a"): 11.0}) == ()
    assert suspects({("b", "a"): 5.0, ("a", "b"): 12.0}) == (("a", "b"),)
    assert suspects({("a", "b"): 0.0, ("b", "a"): 0.0}) == ()
