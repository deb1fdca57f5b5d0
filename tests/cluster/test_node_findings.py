"""From a tournament to findings that name the node, the NIC or the link."""

from __future__ import annotations

from itertools import combinations

from topocheck.bandwidth.node_pairs import NodeHello, NodePairsReport, PairRate
from topocheck.bandwidth.node_pairs_summary import summarize
from topocheck.checks.network.pairs import judge_pairs
from topocheck.model.base import State
from topocheck.render.node_pairs import pairs_markdown, pairs_text
from topocheck.render.page import Style


def hello(name: str) -> NodeHello:
    return NodeHello(node=name, rank=0, host=name, address="10.0.0.1", port=1)


def pair(a: str, b: str, rate: float | None, back: float | None = None, **fields) -> PairRate:
    return PairRate(a=a, b=b, a_to_b_gb_s=rate, b_to_a_gb_s=rate if back is None else back, **fields)


def judged(names: str, pairs: list[PairRate], **fields) -> NodePairsReport:
    report = NodePairsReport(nodes=tuple(hello(n) for n in names), pairs=tuple(pairs), **fields)
    return judge_pairs(summarize(report))


def found(report: NodePairsReport) -> list[tuple[str, str, State]]:
    return [(f.id, f.subject, f.state) for f in report.findings]


def test_healthy_nodes_are_quiet():
    report = judged("abcd", [pair(x, y, 12.0) for x, y in combinations("abcd", 2)])
    assert found(report) == []
    assert {m.sends_gb_s for m in report.medians} == {12.0}


def test_the_slow_node_is_named_once():
    report = judged("abcd", [pair(x, y, 6.0 if "b" in (x, y) else 12.0) for x, y in combinations("abcd", 2)])
    assert found(report) == [("network.slow-node", "b", State.FAIL)]
    assert "50 %" in report.findings[0].title
    assert report.findings[0].evidence


def test_a_slow_pair_measured_again_and_found_well_accuses_nobody():
    pairs = [pair(x, y, 4.0 if (x, y) == ("a", "b") else 12.0) for x, y in combinations("abcd", 2)]
    assert found(judged("abcd", pairs))[0][0] == "network.slow-link"
    assert found(judged("abcd", [*pairs, pair("a", "b", 11.9, phase="again")])) == []


def test_one_nic_of_one_node():
    pairs = [pair(x, y, 12.0) for x, y in combinations("abcd", 2)]
    for rail in ("mlx5_0", "mlx5_1"):
        pairs += [
            pair(x, y, 20.0 if rail == "mlx5_1" and "c" in (x, y) else 45.0, transport="nccl_gdr", rail=rail)
            for x, y in combinations("abcd", 2)
        ]
    report = judged("abcd", pairs)
    assert found(report) == [("network.slow-node", "c mlx5_1", State.FAIL)]
    assert [(r.rail, r.median_gb_s, r.slowest_gb_s) for r in report.rails] == [
        ("mlx5_0", 45.0, 45.0),
        ("mlx5_1", 32.5, 20.0),  # three of six pairs at 20
    ]


def test_the_gain_of_each_way_is_a_number():
    pairs = []
    for way, rate in (("nccl_tcp", 4.0), ("nccl_rdma", 20.0), ("nccl_gdr", 40.0)):
        pairs += [pair(x, y, rate, transport=way) for x, y in combinations("abc", 2)]
    gains = judged("abc", pairs).transport_comparison
    assert "5.00 times NCCL over TCP" in gains[0]
    assert "2.00 times NCCL, RDMA" in gains[1]


def test_a_silent_node_is_named_and_the_others_kept():
    pairs = [
        pair("a", "b", 12.0),
        pair("a", "c", 12.0),
        pair("b", "c", 12.0),
        pair("a", "d", None, error="d did not answer"),
    ]
    report = judged("abcd", pairs, unresponsive={"d": "answered nothing in round 2"})
    assert found(report) == [("network.unresponsive-node", "d", State.FAIL)]


def test_all_pairs_failed_is_unknown_not_ok():
    pairs = [pair(x, y, None, error="connection refused") for x, y in combinations("abc", 2)]
    assert found(judged("abc", pairs)) == [("network.unmeasured-pairs", "tcp", State.UNKNOWN)]


def test_a_way_that_cannot_be_tried_is_unknown_not_ok():
    why = {"nccl_tcp": "torch with NCCL sees no GPU on b"}
    report = judged("ab", [pair("a", "b", 12.0)], skipped=why)
    assert found(report) == [("network.unmeasured-pairs", "nccl_tcp", State.UNKNOWN)]
    assert report.findings[0].title == "NCCL over TCP: not tried: torch with NCCL sees no GPU on b"


def test_one_node_is_told_what_to_do_and_not_that_all_is_well():
    report = judged("a", [], skipped={"tcp": "all ranks that came are on one node (a)"})
    assert found(report) == [("network.unmeasured-pairs", "tcp", State.UNKNOWN)]
    assert "TOPOCHECK_NODE" in report.findings[0].fix
    text = pairs_text(report, Style(width=100))
    assert "nothing stands out" not in text
    assert "By node" not in text


def test_markdown_holds_what_the_text_does():
    pairs = [pair(x, y, 12.0) for x, y in combinations("abc", 2)]
    pairs += [pair(x, y, 4.0, phase="together") for x, y in combinations("abc", 2)]
    text = pairs_markdown(judged("abc", pairs, unresponsive={"rank 3": "did not come"}))
    assert "### All at once" in text
    # Each node has two peers at 4 GB/s.
    assert "| a | 12 GB/s | 12 GB/s | 8 GB/s | 8 GB/s |" in text
    assert "- **rank 3** did not come" in text


def test_two_nodes_compare_their_directions():
    assert found(judged("ab", [pair("a", "b", 12.0, 11.0)])) == []
    assert found(judged("ab", [pair("a", "b", 12.0, 5.0)])) == [("network.uneven-directions", "b to a", State.WARN)]


def test_two_nodes_whose_samples_vary_as_much_are_no_warning():
    # 5 of 12 GB/s: 58 % less. Measured once more, 11 GB/s: even.
    assert found(judged("ab", [pair("a", "b", 12.0, 5.0, spread=0.7)]))[0][2] is State.NOTE
    assert found(judged("ab", [pair("a", "b", 12.0, 5.0, spread=0.5)]))[0][2] is State.WARN
    assert found(judged("ab", [pair("a", "b", 12.0, 5.0), pair("a", "b", 12.0, 11.0, phase="again")])) == []


def test_rates_that_scatter_too_far_are_unknown_not_ok():
    rates = iter((12.0, 8.0, 10.0, 9.0, 7.0, 14.0))
    report = judged("abcd", [pair(x, y, next(rates)) for x, y in combinations("abcd", 2)])
    assert found(report) == [("network.scattered-rates", "tcp", State.UNKNOWN)]
    assert "scatter by" in report.findings[0].title
    assert "no problem found" not in pairs_text(report, Style(width=100))


def test_where_nothing_is_found_the_report_says_what_would_have_been():
    report = judged("abcd", [pair(x, y, 12.0) for x, y in combinations("abcd", 2)])
    (r,) = report.resolution
    assert (r.usual_gb_s, r.node_limit, r.clear) == (12.0, 0.9, True)
    assert "below 90 %" in pairs_text(report, Style(width=200))


def test_a_silent_node_is_not_slow_too():
    # d answered in two rounds, slowly, and then no more.
    pairs = [pair(x, y, 12.0) for x, y in combinations("abc", 2)]
    pairs += [pair("a", "d", 1.0), pair("b", "d", 1.0), pair("c", "d", None, error="d did not answer")]
    report = judged("abcd", pairs, unresponsive={"d": "answered nothing in round 2"})
    assert found(report) == [("network.unresponsive-node", "d", State.FAIL)]


def test_a_slow_node_that_was_busy_with_other_work_is_a_warning_and_says_so():
    pairs = [
        pair(x, y, 6.0 if "b" in (x, y) else 12.0, a_busy=0.97 if x == "b" else 0.05, b_busy=0.97 if y == "b" else 0.05)
        for x, y in combinations("abcd", 2)
    ]
    report = judged("abcd", pairs)
    assert found(report) == [("network.slow-node", "b", State.WARN)]
    assert "97 % of its CPU time" in report.findings[0].title
    assert "re-run" in report.findings[0].fix
