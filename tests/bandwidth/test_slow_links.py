"""The slow node, direction or link is named; nobody is accused where rates merely jitter."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.bandwidth.scatter import PairMeasured
from topocheck.bandwidth.slow_links import judge, suspects, times_again
from topocheck.bandwidth.student import t_critical


def measured(rates: dict[tuple[str, str], float]) -> dict[tuple[str, str], PairMeasured]:
    return {pair: PairMeasured(gb_s=rate) for pair, rate in rates.items()}


def find_slow(rates):
    return judge(measured(rates)).slow


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
    assert suspects(measured(r)) == (("n0", "n1"),)


def test_a_slow_node_beside_a_slow_link():
    r = {p: v / 2 if "n5" in p else v for p, v in rates(6).items()}
    r["n0", "n1"] = 5.0
    found = {(s.node, s.direction, s.other) for s in find_slow(r)}
    assert found == {("n5", "sends", ""), ("n5", "receives", ""), ("n0", "", "n1")}


def test_two_slow_nodes_of_six():
    r = {p: v / 2 if {"n1", "n4"} & set(p) else v for p, v in rates(6).items()}
    assert {s.node for s in find_slow(r)} == {"n1", "n4"}
    assert judge(measured(r)).usual_gb_s == 25.0


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
    # Uniform within 7 %, a standard deviation of 4 %: a pair would have to lose 10 % and four standard deviations.
    assert find_slow(rates(n, jitter=jitter, seed=seed)) == ()


@given(n=st.integers(4, 12), seed=st.integers(0, 10_000), share=st.floats(0.05, 0.6))
def test_a_slow_node_is_always_the_one_named(n, seed, share):
    r = {p: v * share if "n2" in p else v for p, v in rates(n, jitter=0.04, seed=seed).items()}
    assert {s.node for s in find_slow(r)} == {"n2"}
    assert not any(s.other for s in find_slow(r))


def test_two_nodes_are_measured_again_where_one_direction_is_slower():
    assert suspects(measured({("a", "b"): 12.0, ("b", "a"): 11.0})) == ()
    assert suspects(measured({("b", "a"): 5.0, ("a", "b"): 12.0})) == (("a", "b"),)
    assert suspects(measured({("a", "b"): 0.0, ("b", "a"): 0.0})) == ()


def scattered(n: int, sigma: float, seed: int, slow: dict[str, float] | None = None) -> dict[tuple[str, str], float]:
    """Return log-normal rates; `slow` has the share of a node's usual rate."""
    rng = random.Random(seed)
    share = slow or {}
    return {
        (a, b): r * min(share.get(a, 1.0), share.get(b, 1.0)) * math.exp(rng.gauss(0, sigma))
        for (a, b), r in rates(n).items()
    }


@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("share", [0.75, 0.8, 0.85])
def test_a_node_somewhat_slower_of_three_or_four_is_named(n, share):
    # A scatter of 0.5 %, as of links shaped by tbf.
    for seed in range(20):
        found = find_slow(scattered(n, 0.005, seed, {"n1": share}))
        assert {(s.node, s.other) for s in found} == {("n1", "")}


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.135, 0.2, 0.4])
@pytest.mark.parametrize("n", [3, 4, 8, 16])
def test_a_node_a_hundred_times_slower_is_named_however_far_the_rates_scatter(n, sigma):
    for seed in range(10):
        found = find_slow(scattered(n, sigma, seed, {"n1": 0.01}))
        # Single measurements of this scatter may suspect others too; they are measured anew.
        assert {"sends", "receives"} <= {s.direction for s in found if s.node == "n1"}


def test_two_faults_do_not_hide_each_other():
    r = scattered(8, 0.02, 1, {"n1": 0.8, "n6": 0.8})
    assert {s.node for s in find_slow(r)} == {"n1", "n6"}
    assert not [s for s in find_slow(r) if s.other]


@pytest.mark.parametrize("n", [3, 4, 8])
def test_where_rates_scatter_too_far_nothing_is_not_the_answer(n):
    for seed in range(10):
        said = judge(measured(scattered(n, 0.4, seed)))
        assert not said.clear
    assert judge(measured(scattered(n, 0.01, 1))).clear


def test_half_of_the_nodes_slow_is_not_all_well():
    r = {p: v * 0.4 if {"n0", "n1"} & set(p) else v for p, v in rates(4).items()}
    assert not judge(measured(r)).clear


def test_samples_that_vary_more_than_the_pairs_make_the_limits_wider():
    quiet = {p: PairMeasured(gb_s=r, spread=0.0) for p, r in scattered(4, 0.01, 3).items()}
    loud = {p: PairMeasured(gb_s=m.gb_s, spread=0.6) for p, m in quiet.items()}
    assert judge(loud).node_limit < judge(quiet).node_limit
    # An interquartile range of 0.6 is a standard deviation of 0.6 / 0.99; that of the median of five is 0.56 of it.
    assert 0.25 < judge(loud).scatter < 0.35


def test_more_low_pairs_are_measured_more_often():
    few = scattered(8, 0.02, 1)
    few["n0", "n1"] = 10.0
    many = dict(few)
    for i in range(8):
        many[f"n{i}", f"n{(i + 3) % 8}"] = 11.0
    assert times_again(measured(few)) == 3
    assert times_again(measured(many)) > 3


def test_a_link_that_once_did_well_is_not_named():
    now = measured(scattered(6, 0.02, 1))
    now["n0", "n1"] = PairMeasured(gb_s=12.0, again=(12.0, 11.0, 24.9))
    assert judge(now).slow == ()
    now["n0", "n1"] = PairMeasured(gb_s=12.0, again=(12.0, 11.0, 13.0))
    assert [(s.node, s.other) for s in judge(now).slow] == [("n0", "n1")]
    assert suspects(now) == ()


@pytest.mark.parametrize(
    ("alpha", "degrees", "value"),
    # Student's table (NIST/SEMATECH e-Handbook 1.3.6.7.2).
    [(0.025, 1, 12.706), (0.005, 2, 9.925), (0.01, 3, 4.541), (0.05, 5, 2.015), (0.001, 5, 5.893), (0.01, 30, 2.457)],
)
def test_critical_values_of_student(alpha, degrees, value):
    assert t_critical(alpha, degrees) == pytest.approx(value, abs=6e-4)
