"""mpirun, torchrun, and ranks that never come."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cluster.launching import BW, CLUSTER, PAIRS, ROOT, SCALE, environment, run, topocheck
from tests.conftest import require_program
from tests.support.slurm import free_ports
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.service, pytest.mark.torch]


def mpirun(*argv: str) -> list[str]:
    """Two ranks that are reported to be two nodes, since both have this host's name."""
    start = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    start += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*start, "-np", "1", "-x", "TOPOCHECK_NODE=a", *argv, ":", "-np", "1", "-x", "TOPOCHECK_NODE=b", *argv]


@pytest.mark.parametrize("command", [CLUSTER, PAIRS, (*SCALE, "none"), BW], ids=["report", "pairs", "scale", "bw"])
def test_mpirun(command):
    require_program("mpirun")
    done = run(mpirun(*topocheck(*command)), environment())
    assert done.returncode == 0, done.stderr
    # mpirun gives its ranks a random key.
    assert "not authenticated" not in done.stderr
    report = json.loads(done.stdout)
    if command is CLUSTER:
        assert [(p["rank"], p["node"]) for p in report["places"]] == [(0, "a"), (1, "b")]
    elif command is PAIRS:
        assert {n["node"] for n in report["nodes"]} == {"a", "b"}
        assert [(p["transport"], p["error"]) for p in report["pairs"] if p["phase"] == "pairs"] == [
            ("tcp", ""),
            ("gloo", ""),
        ]
        assert all(p["a_to_b_gb_s"] > 0 and p["b_to_a_gb_s"] > 0 and p["latency_us"] > 0 for p in report["pairs"])
    elif command[0] == "scale":
        assert {p["ranks"] for p in report["points"] if p["curve"] == "training step"} == {1, 2}
    else:
        assert report["measurements"]


OVER_MPI = """
import os
from topocheck.tests_live.launch.rendezvous import join
from topocheck.tests_live.launch.world import detect
# As another launcher of MPI, which tells its ranks no more than their numbers.
del os.environ["OMPI_MCA_orte_precondition_transports"]
hidden = ("OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
world = detect({k: v for k, v in os.environ.items() if k not in hidden})
assert not world.ports, world
with join(world, "test") as meeting:
    meeting.put(f"said/{world.rank}", meeting.ticket.secret.key)
    keys = {meeting.get(f"said/{r}", 60) for r in range(world.size)}
    said = f"{world.rank} {meeting.authenticated} {meeting.ticket.secret.source} {len(keys)}"
    os.write(1, f"{said}\\n".encode())  # in one piece: mpirun mixes what its ranks print
"""


def test_mpi_tells_the_ranks_where_rank_0_is_and_a_secret():
    require_program("mpirun")
    pytest.importorskip("mpi4py", reason="needs mpi4py (the [mpi] extra)")
    done = run(mpirun(sys.executable, "-c", OVER_MPI), environment())
    assert sorted(done.stdout.splitlines()) == ["0 True MPI 1", "1 True MPI 1"], done.stderr


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


@pytest.mark.parametrize("secret", ["", "correct horse battery staple"])
def test_torchrun_report_of_one_node_with_two_ranks(secret):
    more = {"TOPOCHECK_SECRET": secret} if secret else {}
    done = run(torchrun(*topocheck(*CLUSTER)), environment(NCCL_DEBUG="WARN", **more))
    assert done.returncode == 0, done.stderr
    # torchrun has no secret to give; that is said once, by rank 0.
    assert done.stderr.count("not authenticated") == (0 if secret else 1)
    report = json.loads(done.stdout)
    assert (report["ranks"], report["fleet"]["nodes"]) == (2, 1)
    assert [p["local_rank"] for p in report["places"]] == [0, 1]
    assert report["differing_settings"] == []


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_neither_report_nor_placement_needs_torch_or_mpi4py(launcher, tmp_path):
    """Torch's agent itself has torch; the ranks that it starts have none. tests/cluster/test_slurm.py has srun."""
    require_program("mpirun")
    for module in ("torch", "mpi4py", "numpy"):
        (tmp_path / f"{module}.py").write_text(f"raise ImportError('no {module} here')")
    start = {"mpirun": mpirun, "torchrun": torchrun}[launcher]
    bare = ["/usr/bin/env", f"PYTHONPATH={tmp_path}:{ROOT}"]
    report = json.loads(run(start(*bare, *topocheck(*CLUSTER)), environment()).stdout)
    assert (report["launcher"], report["ranks"]) == ({"mpirun": "openmpi"}.get(launcher, launcher), 2)
    placed = run(start(*bare, *topocheck("placement", "--format", "json")), environment())
    assert [r["rank"] for r in json.loads(placed.stdout)["ranks"]] == [0, 1]


def test_torchrun_pairs():
    # torchrun's own store must not be taken for the pair's: every pair, TCP and Gloo, is measured.
    alone = ["bash", "-c", 'export TOPOCHECK_NODE=n$RANK; exec "$0" "$@"', *topocheck(*PAIRS)]
    done = run(torchrun(*alone), environment())
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {n["node"] for n in report["nodes"]} == {"n0", "n1"}
    assert [(p["transport"], p["error"]) for p in report["pairs"] if p["phase"] == "pairs"] == [
        ("tcp", ""),
        ("gloo", ""),
    ]


def test_pairs_of_one_node_are_not_measured_and_that_is_said():
    done = run(torchrun(*topocheck(*PAIRS, "--transport", "nccl_tcp")), environment())
    report = json.loads(done.stdout)
    assert set(report["skipped"]) == {"tcp", "gloo", "nccl_tcp"}
    assert {f["id"] for f in report["findings"]} == {"network.unmeasured-pairs"}
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


KILL = """
export TOPOCHECK_NODE=n$RANK
me=$BASHPID
echo $me > $MARKS/$RANK
catches_sigterm() {  # bit 14 of the mask: signal 15 (proc(5), SigCgt)
    mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' /proc/$(cat $MARKS/$1)/status) && [ $((0x$mask & 0x4000)) != 0 ]
}
if [ $RANK = 1 ]; then
    (until catches_sigterm 0 && catches_sigterm 1; do sleep 0.05; done; kill -9 $me) 2>/dev/null &
fi
exec "$0" "$@"
"""
"""Kills rank 1 as soon as both ranks are ready to be stopped."""


def test_a_killed_rank_is_told_of_by_the_others(tmp_path):
    # torchrun ends the other ranks with SIGTERM once one is gone.
    victim = ["bash", "-c", KILL, *topocheck("network", "bw", "--transport", "tcp", "--seconds", "60")]
    done = run(torchrun(*victim), environment(MARKS=str(tmp_path)))
    assert done.returncode != 0
    assert "topocheck: stopped by SIGTERM; a launcher sends it to all ranks where one of them ended" in done.stderr


def test_torchrun_scale():
    done = run(torchrun(*topocheck(*SCALE, "fp16")), environment())
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["job"]["launcher"] == "torchrun"
    (fp16,) = [t for t in report["training"] if t["hook"] == "fp16"]
    # Half precision has 11 significant bits: an error of some 2^-12 of each value.
    assert 1e-5 < fp16["gradient_error"] < 1e-2


def test_a_rank_that_never_comes_is_named_and_the_rest_reported():
    port = str(free_ports(1)[0])
    ranks = [
        subprocess.Popen(
            topocheck(*CLUSTER[:-1], "40"),
            env=environment(
                RANK=str(r), WORLD_SIZE="3", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                TOPOCHECK_NODE=f"n{r}", NCCL_ALGO="Ring" if r else "Tree",
            ),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for r in range(2)
    ]  # fmt: skip
    out, err = ranks[0].communicate(timeout=PATIENCE_S)
    ranks[1].communicate(timeout=PATIENCE_S)
    assert ranks[0].returncode == 0, err
    report = json.loads(out)
    assert list(report["unresponsive"]) == ["rank 2"]
    assert report["fleet"]["nodes"] == 2
    # Two ranks, two values: no one is usual, and both are reported.
    assert dict(report["differing_settings"]) == {"NCCL_ALGO": ["Tree: rank 0", "Ring: rank 1"]}


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("placement",), 1, "did not come within 5 s"),
        (("report", "--cluster"), 0, "did not come within 5 s"),
        (("bw", "--quick"), 3, "did not come within 5 s"),
        (("network", "bw", "--transport", "tcp"), 1, "sent nothing within 5 s"),
        (("scale", "--quick"), 3, "did not come within 5 s"),
        (("lab", "collectives", "--quick"), 3, "did not come within 5 s"),
        (("lab", "record"), 3, "did not come within 5 s"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_a_thousand_ranks_that_do_not_come_are_named_in_one_place(command, code, says):
    # Codes: 1 a check failed, 3 not measured, 0 for a printed report (design of `report`).
    port = str(free_ports(1)[0])
    seen = environment(RANK="0", WORLD_SIZE="1001", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    done = run(topocheck(*command, "--deadline", "5"), seen)
    text = " ".join((done.stdout + done.stderr).split())
    assert says in text
    assert text.count("ranks 1-1000") >= 1
    assert "rank 500" not in text, "folded"
    assert done.returncode == code, text


def test_without_a_launcher_the_error_says_how_to_start():
    from topocheck.cli.cluster import cluster_report
    from topocheck.cli.network import node_pairs
    from topocheck.model.base import InputError

    for command in (cluster_report, node_pairs):
        with pytest.raises(InputError, match="srun"):
            command()


def test_all_ranks_end_with_the_exit_code_of_rank_0():
    """Both ranks are on one node, so no pair is measured: exit code 3, undetermined, not on rank 0 alone."""
    port = str(free_ports(1)[0])
    ranks = [
        subprocess.Popen(
            topocheck("network", "bw", "--transport", "tcp", "--format", "json"),
            env=environment(RANK=str(r), WORLD_SIZE="2", LOCAL_RANK=str(r), MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for r in range(2)
    ]  # fmt: skip
    outs = [p.communicate(timeout=PATIENCE_S) for p in ranks]
    assert [p.returncode for p in ranks] == [3, 3], outs
    assert json.loads(outs[0][0])["ranks_authenticated_by"] == "none"
    assert outs[1] == ("", "")
