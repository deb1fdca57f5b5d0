"""Four hosts with addresses of their own, links of 48 Mbit/s: who is slow, who is gone, and that nobody is accused.

Links that slow leave a busy machine's processors enough time: it is the shaper that limits, not the scheduler.
benchmarks/netns_trials.py does the first two twenty times; docs/measurements/node_pairs_netns.txt is its record.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.netns import hosts, tournament

pytestmark = [pytest.mark.service, pytest.mark.torch, pytest.mark.slow]


def accused(report: dict[str, Any]) -> set[tuple[str, str]]:
    return {(f["id"], f["subject"]) for f in report["findings"] if f["state"] != "unknown"}


def busy(report: dict[str, Any]) -> bool:
    """Tell whether this machine was too busy to judge: the rates scatter, and the report says so."""
    return any(f["id"] == "network.scattered-rates" for f in report["findings"])


def test_the_slow_host_is_named(tmp_path):
    with hosts([48, 48, 24, 48]) as made:
        status, out, err = tournament(made, tmp_path, seconds=1)
    assert status in (1, 3), err
    report = json.loads(out)
    named = {("network.slow-node", "host3")}
    assert accused(report) <= named
    if busy(report):
        return
    assert accused(report) == named
    # Six pairs, all of them once more where they scatter.
    assert len([p for p in report["pairs"] if p["phase"] == "pairs"]) in (6, 12, 18)
    sends = {m["node"]: m["sends_gb_s"] * 8000 for m in report["medians"]}
    # The shaper counts frames: of 1514 bytes on the wire 1448 are ours (Ethernet, IPv4, TCP with time stamps).
    assert 14 < sends["host3"] < 24 < 34 < min(sends[n] for n in ("host1", "host2", "host4")) < 48


def test_healthy_hosts_accuse_nobody(tmp_path):
    with hosts([48, 48, 48, 48]) as made:
        status, out, err = tournament(made, tmp_path, seconds=1)
    report = json.loads(out)
    assert status == (3 if busy(report) else 0), err
    assert accused(report) == set()


def test_a_host_cut_off_in_mid_run_is_named_and_the_rest_kept(tmp_path):
    with hosts([48, 48, 48, 48]) as made:
        status, out, err = tournament(made, tmp_path, seconds=1, cut=4)
    assert status == 1, err
    report = json.loads(out)
    assert accused(report) == {("network.unresponsive-node", "host4")}
    measured = {(p["a"], p["b"]) for p in report["pairs"] if p["phase"] == "pairs" and p["a_to_b_gb_s"]}
    # Three pairs among those that stay, and what host4 had done before.
    assert {frozenset(p) for p in measured} >= {
        frozenset((f"host{a}", f"host{b}")) for a, b in ((1, 2), (1, 3), (2, 3))
    }
    lost = [p["error"] for p in report["pairs"] if "host4" in (p["a"], p["b"]) and not p["a_to_b_gb_s"]]
    assert lost
    assert all("host4" in e for e in lost)
