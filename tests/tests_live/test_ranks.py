"""Who started this process, and bytes from every rank to rank 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import require_program
from topocheck.tests_live.ranks import LaunchError, detect, first_host, free_port, port_from


def test_torchrun() -> None:
    env = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    world = detect(env)
    assert world is not None
    assert (world.launcher, world.rank, world.size, world.local_rank) == ("torchrun", 3, 16, 1)
    assert (world.address, world.port) == ("n1", 29500)
    assert world.environment() == env


def test_srun_step_and_not_the_batch_script() -> None:
    step = {
        "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1",
        "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "gpu-[003,005-007]",
    }  # fmt: skip
    world = detect(step)
    assert world is not None
    assert (world.launcher, world.rank, world.size, world.address) == ("slurm", 5, 8, "gpu-003")
    assert world.port == port_from("77.0")
    # What a batch script sees before it runs srun: tasks were allocated and none was started.
    assert detect({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"}) is None
    # A step of one task (an interactive shell) is no group of ranks.
    assert detect({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "0"}) is None


def test_mpirun_before_the_srun_that_carries_it() -> None:
    env = {
        "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job.1",
        "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0",
    }  # fmt: skip
    world = detect(env)
    assert world is not None
    assert (world.launcher, world.rank, world.size, world.address) == ("openmpi", 1, 2, "127.0.0.1")
    hydra = detect({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"})
    assert hydra is not None
    assert (hydra.launcher, hydra.size, hydra.address) == ("mpich", 4, "")


def test_nothing_and_one_rank_are_no_launcher() -> None:
    assert detect({}) is None
    assert detect({"RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    "env",
    [
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "5", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "http"},
    ],
)
def test_contradictions_are_told(env: dict[str, str]) -> None:
    with pytest.raises(LaunchError):
        detect(env)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n[1-2]", "n1"), ("a1,b[2-9]", "a1"), ("gpu-[003,005-007]-ib", "gpu-003-ib"), ("", "")],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@given(st.dictionaries(st.sampled_from(["RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID",
       "SLURM_STEP_NODELIST", "PMI_RANK", "PMI_SIZE", "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]),
       st.text(max_size=12)))  # fmt: skip
def test_detect_raises_nothing_else(env: dict[str, str]) -> None:
    try:
        world = detect(env)
    except LaunchError:
        return
    assert world is None or 0 <= world.rank < world.size


def test_ports_are_the_same_for_all_ranks_and_below_the_ephemeral_ones() -> None:
    assert port_from("77.0") == port_from("77.0")
    assert all(20000 <= port_from(str(n)) < 30000 for n in range(200))


GATHER = (
    "import os,sys\n"
    "from topocheck.tests_live.ranks import detect_here, gather\n"
    "w = detect_here()\n"
    "if w.rank == 2 and 'ABSENT' in os.environ: sys.exit(0)\n"
    "g = gather(bytes([w.rank]) * 3_000_000, w, float(os.environ.get('DEADLINE', '60')))\n"
    "if g: print({r: (len(p), p[0]) for r, p in g.payloads.items()}, g.missing)\n"
)


@pytest.mark.torch
def test_gather_gives_rank_0_every_payload_and_names_who_did_not_come() -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    port = free_port()
    base = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="3")
    for extra, expected in (
        ({"ABSENT": "1", "DEADLINE": "8"}, "{0: (3000000, 0), 1: (3000000, 1)} {2: 'rank 2 sent nothing within 8 s'}"),
    ):
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", GATHER],
                env=base | extra | {"RANK": str(r)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for r in range(3)
        ]
        outs = [p.communicate(timeout=90) for p in ranks]
        assert outs[0][0].strip() == expected, outs[0][1][-500:]


JOIN = (
    "import sys\n"
    "from topocheck.tests_live.ranks import detect_here, meet\n"
    "from topocheck.tests_live.collect import run_collectives\n"
    "from topocheck.tests_live.rows import CollectiveRow\n"
    "w = detect_here()\n"
    "row = CollectiveRow(id='r', collective='all_reduce', backend='gloo', ranks=w.size, sizes_bytes=(4096,),\n"
    "    samples_min=2, samples_max=2, budget_s=0.1)\n"
    "for m in run_collectives((row,), world=w, quiet_s=40, join_s=60):\n"
    "    print('rank', w.rank, m.id, getattr(m, 'verified', m), flush=True)\n"
)


@pytest.mark.torch
def test_joins_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port", str(free_port())]
    env = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    script = tmp_path / "join.py"
    script.write_text(JOIN)
    out = subprocess.run([*argv, str(script)], capture_output=True, text=True, timeout=120, env=env, check=False)
    assert out.stdout.splitlines() == ["rank 0 r:4096:in:back_to_back True"], out.stderr[-1500:]


@pytest.mark.torch
@pytest.mark.service
def test_joins_mpirun() -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    require_program("mpirun")
    argv = ["mpirun", "-np", "2", "--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    env = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    out = subprocess.run(
        [*argv, sys.executable, "-c", JOIN.replace("detect_here()", "meet(detect_here())", 1)],
        capture_output=True, text=True, timeout=120, env=env, check=False,
    )  # fmt: skip
    assert out.stdout.splitlines() == ["rank 0 r:4096:in:back_to_back True"], out.stderr[-1500:]
