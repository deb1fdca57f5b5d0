"""mpirun, torchrun, and ranks that never come."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cluster.launching import BW, CLUSTER, PAIRS, SCALE, environment, run, topocheck
from tests.conftest import require_program
from tests.support.slurm import free_ports

pytest.importorskip("torch", reason="ranks meet through torch")
pytestmark = [pytest.mark.service, pytest.mark.torch]


def mpirun(*argv: str) -> list[str]:
    """Two ranks that are told to be two nodes, since both have this host's name."""
    start = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    start += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*start, "-np", "1", "-x", "TOPOCHECK_NODE=a", *argv, ":", "-np", "1", "-x", "TOPOCHECK_NODE=b", *argv]


@pytest.mark.parametrize("command", [CLUSTER, PAIRS, (*SCALE, "none"), BW], ids=["report", "pairs", "scale", "bw"])
def test_mpirun(command):
    require_program("mpirun")
    done = run(mpirun(*topocheck(*command)), environment())
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    if command is CLUSTER:
        assert [(p["rank"], p["node"]) for p in report["places"]] == [(0, "a"), (1, "b")]
    elif command is PAIRS:
        assert {n["node"] for n in report["nodes"]} == {"a", "b"}
        assert [(p["way"], p["error"]) for p in report["pairs"] if p["phase"] == "pairs"] == [("tcp", ""), ("gloo", "")]
        assert all(p["a_to_b_gb_s"] > 0 and p["b_to_a_gb_s"] > 0 and p["latency_us"] > 0 for p in report["pairs"])
    elif command[0] == "scale":
        assert {p["ranks"] for p in report["points"] if p["curve"] == "training step"} == {1, 2}
    else:
        assert report["measurements"]


def torchrun(*argv: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--no-python",
        *argv,
    ]


def test_torchrun_report_of_one_node_with_two_ranks():
    done = run(torchrun(*topocheck(*CLUSTER)), environment(NCCL_DEBUG="WARN"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["ranks"], report["fleet"]["nodes"]) == (2, 1)
    assert [p["local_rank"] for p in report["places"]] == [0, 1]
    assert report["mixed_settings"] == []


def test_torchrun_pairs():
    # torchrun's own store must not be taken for the pair's: every pair, TCP and Gloo, is measured.
    alone = ["bash", "-c", 'export TOPOCHECK_NODE=n$RANK; exec "$0" "$@"', *topocheck(*PAIRS)]
    done = run(torchrun(*alone), environment())
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {n["node"] for n in report["nodes"]} == {"n0", "n1"}
    assert [(p["way"], p["error"]) for p in report["pairs"] if p["phase"] == "pairs"] == [("tcp", ""), ("gloo", "")]


def test_pairs_of_one_node_are_not_measured_and_that_is_said():
    done = run(torchrun(*topocheck(*PAIRS, "--way", "nccl_tcp")), environment())
    report = json.loads(done.stdout)
    assert set(report["not_tried"]) == {"tcp", "gloo", "nccl_tcp"}
    assert {f["id"] for f in report["findings"]} == {"bw.unmeasured-pairs"}
    # torchrun ends with 1 where a rank ends with anything but 0, and says with what.
    assert "exitcode  : 3" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("bw", "--backend", "mpi", "--sizes", "64K"),
        ("scale", "--backend", "mpi", "--quick", "--no-digits", "--no-patterns"),
    ],
    ids=["bw", "scale"],
)
def test_ranks_of_torchrun_are_none_of_mpi(command):
    # Each would be an MPI world of its own, and nothing would be exchanged.
    done = run(torchrun(*topocheck(*command)), environment())
    assert done.returncode != 0
    assert "the ranks of torchrun are no ranks of MPI" in " ".join((done.stdout + done.stderr).split())
    assert "samples/s" not in done.stdout
    assert "64 KiB" not in done.stdout


def test_a_killed_rank_is_told_of_by_the_others():
    # torchrun ends the other ranks with SIGTERM once one is gone.
    kill = (
        'export TOPOCHECK_NODE=n$RANK; me=$BASHPID; if [ $RANK = 1 ]; then (sleep 8; kill -9 $me) & fi; exec "$0" "$@"'
    )
    victim = ["bash", "-c", kill, *topocheck("bw", "--pairs", "nodes", "--way", "tcp", "--seconds", "30")]
    done = run(torchrun(*victim), environment())
    assert done.returncode != 0
    assert "topocheck: stopped by SIGTERM; a launcher sends it to all ranks where one of them ended" in done.stderr


def test_torchrun_scale():
    done = run(torchrun(*topocheck(*SCALE, "fp16")), environment())
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ground"]["launcher"] == "torchrun"
    (fp16,) = [t for t in report["training"] if t["hook"] == "fp16"]
    # Half precision has 11 significant bits: an error of some 2^-12 of each value.
    assert 1e-5 < fp16["gradient_error"] < 1e-2


def test_a_rank_that_never_comes_is_named_and_the_rest_reported():
    port = str(free_ports(1)[0])
    ranks = [
        subprocess.Popen(
            topocheck(*CLUSTER[:-1], "15"),
            env=environment(
                RANK=str(r), WORLD_SIZE="3", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                TOPOCHECK_NODE=f"n{r}", NCCL_ALGO="Ring" if r else "Tree",
            ),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for r in range(2)
    ]  # fmt: skip
    out, err = ranks[0].communicate(timeout=90)
    ranks[1].communicate(timeout=30)
    assert ranks[0].returncode == 0, err
    report = json.loads(out)
    assert list(report["silent"]) == ["rank 2"]
    assert report["fleet"]["nodes"] == 2
    # Two ranks, two values: no one is usual, and both are told.
    assert dict(report["mixed_settings"]) == {"NCCL_ALGO": ["Tree: rank 0", "Ring: rank 1"]}


def test_without_a_launcher_the_error_says_how_to_start():
    from topocheck.cli.cluster import cluster_report
    from topocheck.cli.node_pairs import node_pairs
    from topocheck.model.base import InputError

    for command in (cluster_report, node_pairs):
        with pytest.raises(InputError, match="srun"):
            command()
