"""A real Slurm of two nodes on this machine: report --cluster, bw, network bw and scale as its tasks."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.cluster.launching import BW, CLUSTER, PAIRS, ROOT, SCALE, environment, topocheck
from tests.support.slurm import Slurm, free_ports, slurm_cluster
from tests.support.snapshots import write_snapshot
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.service, pytest.mark.torch]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), {}) as cluster:
        # n1 and n2 are names of Slurm's alone: no resolver knows where rank 0 is.
        cluster.environment = environment() | cluster.environment | {"MASTER_ADDR": "127.0.0.1"}
        yield cluster


def srun(slurm: Slurm, *argv: str) -> str:
    slurm.environment["MASTER_PORT"] = str(free_ports(1)[0])
    done = slurm.run("srun", "-N2", "-n2", "--overcommit", "--chdir=/", *argv, timeout=PATIENCE_S)
    assert done.returncode in (0, 1), done.stderr + slurm.logs()
    # munge vouches for every rank.
    assert "not authenticated" not in done.stderr
    return done.stdout


def test_report_of_two_nodes_with_a_recording_each(slurm, tmp_path):
    write_snapshot(tmp_path / "n1.snap", "hgx_h100_cx7")
    write_snapshot(tmp_path / "n2.snap", "hgx_h100_cx7", system={"kernel": "6.1.0-odd"})
    report = json.loads(srun(slurm, *topocheck(*CLUSTER, "--from", f"{tmp_path}/%N.snap")))
    assert report["launcher"] == "slurm"
    assert report["unresponsive"] == {}
    (kind,) = report["fleet"]["hardware_types"]
    assert sorted(n for g in kind["groups"] for n in g["nodes"]) == ["n1", "n2"]
    assert [(p["rank"], p["node"]) for p in report["places"]] == [(0, "n1"), (1, "n2")]
    # Of two nodes neither is the odd one; that they differ is reported.
    (m,) = [m for m in kind["no_majority"] if m["field"] == "kernel_release"]
    assert "6.1.0-odd" in dict(m["values"])
    assert report["fleet"]["rails"]


def test_nodes_of_one_kernel_ask_it_once_each(slurm):
    report = json.loads(srun(slurm, *topocheck(*CLUSTER)))
    (kind,) = report["fleet"]["hardware_types"]
    (group,) = kind["groups"]
    assert sorted(group["nodes"]) == ["n1", "n2"]
    assert report["fleet"]["outliers"] == []


def test_pairs_of_nodes(slurm):
    report = json.loads(srun(slurm, *topocheck(*PAIRS)))
    assert sorted(n["node"] for n in report["nodes"]) == ["n1", "n2"]
    (pair,) = [p for p in report["pairs"] if (p["transport"], p["phase"]) == ("tcp", "pairs")]
    assert pair["a_to_b_gb_s"] > 0
    assert pair["b_to_a_gb_s"] > 0


def test_scale_by_nodes(slurm):
    report = json.loads(srun(slurm, *topocheck(*SCALE, "none")))
    steps = {p["ranks"]: p for p in report["points"] if p["curve"] == "training step"}
    assert {n: p["nodes"] for n, p in steps.items()} == {1: 1, 2: 2}
    assert report["not_measured"] == []


def test_bw_over_gloo(slurm):
    report = json.loads(srun(slurm, *topocheck(*BW)))
    (m,) = [m for m in report["measurements"] if m["kind"] == "collective" and m["mode"] == "back_to_back"]
    assert (m["ranks"], m["backend"], m["verified"]) == (2, "gloo", True)


def test_neither_report_nor_placement_needs_torch(slurm, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    slurm.environment["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    try:
        report = json.loads(srun(slurm, *topocheck(*CLUSTER)))
        placement = json.loads(srun(slurm, *topocheck("placement", "--format", "json")))
    finally:
        slurm.environment["PYTHONPATH"] = str(ROOT)
    assert report["ranks"] == 2
    assert [(r["rank"], r["node"]) for r in placement["ranks"]] == [(0, "n1"), (1, "n2")]


def test_two_jobs_at_once_meet_each_at_its_own_place(slurm):
    env = {k: v for k, v in slurm.environment.items() if k != "MASTER_PORT"}
    argv = ["srun", "-N2", "-n2", "--overcommit", "--overlap", "--chdir=/", "--exact", "--cpus-per-task=1"]
    with slurm.allocation("-N2", "-n2", "--overcommit") as job:
        running = [
            subprocess.Popen(
                [*argv, f"--jobid={job}", *topocheck(*CLUSTER)],
                env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        outs = [p.communicate(timeout=120) for p in running]
    assert [p.returncode for p in running] == [0, 0], outs
    for out, _ in outs:
        report = json.loads(out)
        assert [(p["rank"], p["node"]) for p in report["places"]] == [(0, "n1"), (1, "n2")]
        assert report["unresponsive"] == {}
