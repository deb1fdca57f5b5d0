"""`topocheck lab`: what it refuses, and the labs that start no ranks."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.commands import run
from topocheck.bandwidth.lab_catalogue import BY_NAME
from topocheck.cli.check import explain
from topocheck.cli.lab import lab
from topocheck.cli.main import COMMANDS
from topocheck.knowledge.strategies import strategies


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["pipelin"], "no lab 'pipelin'; did you mean pipeline?"),
        (["p2p", "--ranks", "0"], "--ranks '0': expected numbers from 1 to 4096 by comma"),
        (["p2p", "--ranks", "2,x"], "--ranks '2,x': expected numbers"),
        (["p2p", "--sizes", "1MiB,foo"], "--sizes: 'foo' is not a size"),
        (["p2p", "--backend", "rdma"], "--backend"),
        (["broadcast", "--pieces", "-1"], "--pieces '-1': expected numbers"),
        (["pipeline", "--compute", "-5"], "--compute -5: expected 0 to 10000 milliseconds"),
        (["p2p", "--from", "x.snap"], "lab p2p measures; --from serves record and bounds alone"),
        (["p2p", "--format", "xml"], "--format"),
    ],
)
def test_what_it_refuses(argv, error):
    ran = run(lab, *argv)
    assert (ran.code, ran.out) == (2, "")
    assert error in ran.error
    assert len(ran.error.splitlines()) == 1


def test_the_list():
    ran = run(lab, "list")
    assert ran.code == 0
    assert all(name in ran.out for name in BY_NAME)


def test_a_lab_of_which_nothing_can_be_measured_ends_with_3():
    ran = run(lab, "p2p", "--backend", "nccl", "--ranks", "1")
    assert ran.code == 3
    assert "nccl, gpu: " in ran.out


HALF = Path(__file__).parents[2] / "docs" / "examples" / "half_width.snap"


def test_record_and_bounds_of_a_snapshot():
    ran = run(lab, "bounds", "--from", HALF, "--format", "json")
    assert ran.code == 0, ran.error
    report = json.loads(ran.out)
    assert report["record"]["nodes"][0]["gpus"].startswith("8 x NVIDIA")
    (table,) = report["tables"]
    found = {r["values"][0]: r["values"] for r in table["rows"]}
    # Eight GPUs behind NVSwitches: each needs the seven others' parts over its own links.
    assert found["all_gather"][1:3] == [1, "7"]
    assert found["all_to_all"][2] == "7/8"


def test_explain_strategies_names_commands_that_there_are():
    ran = run(explain, "strategies")
    assert ran.code == 0
    for s in strategies():
        assert s.name in ran.out
        for command in s.measure.split("; "):
            words = shlex.split(command)
            assert words[0] == "topocheck"
            assert words[1] in COMMANDS, command
            assert words[1] != "lab" or words[2] in BY_NAME, command


def test_the_list_is_json_where_that_is_asked_for() -> None:
    ran = run(lab, "list", "--format", "json")
    listed = json.loads(ran.out)
    assert {"name": "record", "question": "What does the experiment run on?", "backends": []} in listed
    refused = run(lab, "list", "--format", "csv")
    assert (refused.code, "text, json" in refused.error) == (2, True)
