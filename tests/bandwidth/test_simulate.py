"""Model times by arithmetic that the tests show, levels from files, and what a fabric is as levels."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest

from tests.cli.commands import run
from tests.support.fabrics import fat_tree, rail_pods
from topocheck.bandwidth.simulate import Level, Network, Value, all_reduce, collective, counts, curves, step
from topocheck.cli.scale import scale
from topocheck.fabric.levels import fabric_levels
from topocheck.fabric.read import parse
from topocheck.fabric.tiers import tiers_of

MB = 10**6
US = 1e-6


def level(name: str, members: int, alpha_us: float, beta_gb_s: float) -> Level:
    return Level(name=name, members=members, alpha_us=Value.of(alpha_us), beta_gb_s=Value.of(beta_gb_s))


NET = Network(
    levels=(level("node", 8, 2.0, 400.0), level("leaf", 4, 10.0, 50.0), level("spine", 0, 20.0, 25.0)), base_us=5.0
)
"""Eight GPUs of 400 GB/s in a node, four nodes below a leaf with 50 GB/s a GPU, spines with half of that."""


def test_a_ring_in_one_node() -> None:
    # 2 x 7 steps of 2 us, and 2 x 7/8 of 800 MB at 400 GB/s = 3.5 ms.
    assert all_reduce(NET, 8, 800 * MB, "ring") == pytest.approx(5 * US + 14 * 2 * US + 3.5e-3)


def test_a_ring_over_nodes_below_one_leaf() -> None:
    # 16 GPUs on 2 nodes: 2 x (14 steps inside of 2 us + 2 between of 10 us); 8 x 50 = 400 GB/s as inside.
    seconds = 5 * US + 2 * (14 * 2 + 2 * 10) * US + 2 * 15 / 16 * 800e6 / 400e9
    assert all_reduce(NET, 16, 800 * MB, "ring") == pytest.approx(seconds)


def test_a_ring_over_leaves_crosses_each_leaf_once() -> None:
    # 8 nodes on 2 leaves: 6 edges below a leaf, 2 over the spine. One node a leaf sends up: no uplink limits it.
    seconds = 5 * US + 2 * (56 * 2 + 6 * 10 + 2 * 20) * US + 2 * 63 / 64 * 800e6 / 400e9
    assert all_reduce(NET, 64, 800 * MB, "ring") == pytest.approx(seconds)
    # In any other order each node sends over the spine, at half of its rate.
    loose = msgspec.structs.replace(NET, aligned=False)
    seconds = 5 * US + 2 * (56 * 2 + 8 * 20) * US + 2 * 63 / 64 * 800e6 / 200e9
    assert all_reduce(loose, 64, 800 * MB, "ring") == pytest.approx(seconds)


def test_a_tree_over_nodes() -> None:
    # 8 nodes: 2 levels below a leaf (4 nodes), 1 over the spine (2 leaves); up and down; every NIC carries it twice.
    seconds = 5 * US + 2 * (7 * 2 + 2 * 10 + 1 * 20) * US + 2 * 800e6 / 400e9
    assert all_reduce(NET, 64, 800 * MB, "tree") == pytest.approx(seconds)


def test_two_levels_with_stages_after_each_other_or_at_once() -> None:
    # Inside 2 x 7/8 x 800 MB / 400 GB/s = 3.5 ms; between 2 x 3/4 x 100 MB / 50 GB/s = 3 ms; 2 x 3 steps of 10 us.
    latency = 5 * US + 2 * 7 * 2 * US + 2 * 3 * 10 * US
    assert all_reduce(NET, 32, 800 * MB, "hierarchical") == pytest.approx(latency + 3.5e-3)
    assert all_reduce(NET, 32, 800 * MB, "hierarchical", 2) == pytest.approx(latency + 6.5e-3)


def test_one_server_takes_what_all_send() -> None:
    # 3 other nodes x 100 MB a GPU, in and out, at 50 GB/s: 12 ms, and 3.5 ms inside.
    latency = 5 * US + 2 * 7 * 2 * US + 2 * 10 * US
    assert all_reduce(NET, 32, 800 * MB, "server") == pytest.approx(latency + 15.5e-3)


def test_all_to_all_crosses_the_spine_with_all_that_is_not_below() -> None:
    # 64 GPUs: 56/64 of 640 MB leaves the node, at 25 GB/s over the spine.
    assert collective(NET, 64, 640 * MB, "all_to_all") == pytest.approx(
        5 * US + 7 * 2 * US + 20 * US + 56 / 64 * 640e6 / 25e9
    )


def test_a_step_hides_all_exchanges_but_the_last() -> None:
    # One bucket: computed, then exchanged. Many small ones: hidden but for the last.
    exchange = collective(NET, 32, 100 * MB, "all_reduce")
    assert step(NET, 32, 0.1, 100 * MB, 100 * MB) == pytest.approx(0.1 + exchange)
    small = collective(NET, 32, 10 * MB, "all_reduce")
    assert step(NET, 32, 0.1, 100 * MB, 10 * MB) == pytest.approx(0.1 + small)
    # Where exchanging takes longer than computing, the first bucket's gradients are waited for, then all exchanges.
    ready = 0.001 / 3 + 0.001 * 2 / 3 / 10
    assert step(NET, 32, 0.001, 100 * MB, 10 * MB) == pytest.approx(ready + 10 * small)
    assert step(NET, 1, 0.1, 100 * MB, 10 * MB) == 0.1


def test_ranges_enclose_the_middle_and_time_grows_with_size() -> None:
    net = Network(
        levels=(
            level("node", 8, 2.0, 400.0),
            Level(name="leaf", members=0, alpha_us=Value(5.0, 10.0, 20.0), beta_gb_s=Value(40.0, 50.0, 55.0)),
        )
    )
    for p in curves(net, 4096, 100 * MB, compute_s=0.1, gradient_bytes=100 * MB):
        assert 0 < p.low_s <= p.seconds <= p.high_s
        assert math.isfinite(p.high_s)
    times = [all_reduce(net, 256, s * MB, "ring") for s in (1, 10, 100, 1000)]
    assert times == sorted(times)


def test_numbers_of_gpus() -> None:
    assert counts(64, 8) == (2, 4, 8, 16, 32, 64)
    assert counts(100, 8) == (2, 4, 8, 16, 32, 64, 100)
    assert counts(288, 72) == (2, 4, 8, 16, 32, 64, 72, 144, 288)
    assert counts(2, 8) == (2,)


@pytest.mark.parametrize(
    ("made", "nodes", "oversubscription", "aligned"),
    [
        (rail_pods(2, 16, 8, 4, each=2), 16, 2.0, True),  # 16 down, 4 x 2 up
        (fat_tree(4, 16, 4, each=4), 16, 1.0, True),
    ],
)
def test_a_fabric_as_levels(made, nodes: int, oversubscription: float, aligned: bool) -> None:  # type: ignore[no-untyped-def]
    found = fabric_levels(tiers_of(parse(made.text().encode(), "dump")))
    assert found is not None
    assert (found.nodes_per_leaf, found.oversubscription, found.aligned, found.tiers) == (
        nodes, oversubscription, aligned, 2,
    )  # fmt: skip


LEVELS = """\
base_us = 5
[[level]]
name = "node"
members = 8
alpha_us = 2.0
beta_gb_s = 400
[[level]]
name = "leaf"
alpha_us = [5, 10, 20]
beta_gb_s = [40.0, 50.0, 55.0]
"""


@pytest.fixture
def levels(tmp_path: Path) -> Path:
    path = tmp_path / "levels.toml"
    path.write_text(LEVELS)
    return path


def test_the_command(levels: Path, tmp_path: Path) -> None:
    ran = run(scale, "--simulate", 64, "--levels", levels, "--size", "64MiB", "--step-ms", 100, "--width", 100)
    assert ran.code == 0
    assert "Model times up to 64 GPUs" in ran.out
    assert "10 (5-20)" in ran.out
    assert "Data-parallel step, gradients of 256 MiB" in ran.out
    out = run(scale, "--simulate", 64, "--levels", levels, "--format", "json", "--curve", tmp_path / "c.svg").out
    points = json.loads(out)["points"]
    assert {p["gpus"] for p in points} == {2, 4, 8, 16, 32, 64}
    # The bus bandwidth is nccl-tests': 2 (n - 1) / n of the bytes over the time.
    p = next(p for p in points if (p["gpus"], p["algorithm"]) == (64, "ring"))
    assert p["busbw_gb_s"] == pytest.approx(2 * 63 / 64 * p["size_bytes"] / p["seconds"] / 1e9)
    assert (tmp_path / "c.svg").read_text().count("<polyline") == 4
    assert run(scale, "--simulate", 64, "--levels", levels, "--format", "csv").out.startswith(
        "operation,algorithm,gpus"
    )


@pytest.mark.parametrize("format_", ["html", "markdown"])
def test_a_format_that_only_measured_runs_have(levels: Path, format_: str) -> None:
    """`scale --help` says which hold with --simulate, and so does the message."""
    ran = run(scale, "--simulate", 64, "--levels", levels, "--format", format_)
    assert ran.code == 2
    assert f"--format with --simulate '{format_}': expected one of text, json, csv" in ran.error


def test_the_command_on_a_fabric(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(rail_pods(2, 16, 8, 4, each=2).text())
    out = run(scale, "--simulate", 256, "--fabric", tmp_path / "f", "--width", 200).out
    assert "32 nodes with 8 adapters of 400 Gb/s, 16 below a leaf, 2.00 : 1" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 1 to 8 tables"),
        ("level = 3", "expected 1 to 8 tables"),
        (LEVELS.replace("members = 8", "members = 0"), "level 1: members"),
        (LEVELS.replace("2.0", "-1"), "level 1: alpha_us and beta_gb_s"),
        (LEVELS.replace("2.0", '"x"'), "level 1: alpha_us and beta_gb_s"),
        (LEVELS.replace("[5, 10, 20]", "[20, 10, 5]"), "level 2: alpha_us"),
        (LEVELS.replace("[5, 10, 20]", "nan"), "level 2: alpha_us"),
        (LEVELS + "speed = 3\n", "'speed' is not known"),
        (LEVELS.replace("base_us = 5", "base_us = inf"), "base_us: expected"),
        ("[[level", "not TOML"),
    ],
)
def test_levels_of_another_form_are_refused(levels: Path, text: str, message: str) -> None:
    levels.write_text(text)
    ran = run(scale, "--simulate", 64, "--levels", levels)
    assert ran.code == 2
    assert message in ran.error


@pytest.mark.parametrize(
    "options", [("--simulate", "64"), ("--simulate", "1", "--levels", "x"), ("--levels", "x", "--fabric", "y")]
)
def test_options_that_do_not_fit(options: tuple[str, ...]) -> None:
    assert run(scale, *options).code == 2
