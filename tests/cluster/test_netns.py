"""Four hosts with addresses of their own, links of 200 Mbit/s: who is slow, who is gone, and that nobody is accused.

benchmarks/netns_trials.py does the first two twenty times; docs/measurements/node_pairs_netns.txt is its record.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.netns import hosts, tournament

pytest.importorskip("torch", reason="ranks meet through torch")
pytestmark = [pytest.mark.service, pytest.mark.torch]


def accused(report: dict[str, Any]) -> set[tuple[str, str]]:
    return {(f["id"], f["subject"]) for f in report["findings"]}


def test_the_slow_host_is_named(tmp_path):
    with hosts([200, 200, 100, 200]) as made:
        status, out, err = tournament(made, tmp_path, seconds=0.4)
    assert status == 1, err
    report = json.loads(out)
    assert accused(report) == {("bw.slow-node", "host3")}
    assert len([p for p in report["pairs"] if p["phase"] == "pairs"]) == 6
    sends = {m["node"]: m["sends_gb_s"] * 8000 for m in report["medians"]}
    # The shaper counts frames: of 1514 bytes on the wire 1448 are ours (Ethernet, IPv4, TCP with time stamps).
    assert 60 < sends["host3"] < 100 < 140 < min(sends[n] for n in ("host1", "host2", "host4")) < 200


def test_healthy_hosts_accuse_nobody(tmp_path):
    with hosts([200, 200, 200, 200]) as made:
        status, out, err = tournament(made, tmp_path, seconds=0.4)
    assert status == 0, err
    assert accused(json.loads(out)) == set()


def test_a_host_cut_off_in_mid_run_is_named_and_the_rest_kept(tmp_path):
    with hosts([200, 200, 200, 200]) as made:
        status, out, err = tournament(made, tmp_path, seconds=0.4, cut=4)
    assert status == 1, err
    report = json.loads(out)
    assert accused(report) == {("bw.silent-node", "host4")}
    measured = {(p["a"], p["b"]) for p in report["pairs"] if p["phase"] == "pairs" and p["a_to_b_gb_s"]}
    # Three pairs among those that stay, and what host4 had done before.
    assert {frozenset(p) for p in measured} >= {
        frozenset((f"host{a}", f"host{b}")) for a, b in ((1, 2), (1, 3), (2, 3))
    }
    lost = [p["error"] for p in report["pairs"] if "host4" in (p["a"], p["b"]) and not p["a_to_b_gb_s"]]
    assert lost
    assert all("host4" in e for e in lost)
