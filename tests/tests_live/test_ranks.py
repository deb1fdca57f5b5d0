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
from tests.support.slurm import free_ports
from tests.support.waiting import PATIENCE_S
from topocheck.tests_live.launch.world import LaunchError, detect, ports_from


def test_torchrun() -> None:
    env = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    world = detect(env)
    assert world is not None
    assert (world.launcher, world.rank, world.size, world.local_rank) == ("torchrun", 3, 16, 1)
    assert (world.address, world.ports) == ("n1", (29500,))
    assert world.environment() == {n: env[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}


def test_torchruns_agent_has_the_port_already() -> None:
    agent = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1"}
    agent |= {"MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "77", "TORCHELASTIC_RESTART_COUNT": "0"}
    world = detect(agent)
    assert world is not None
    assert (world.address, world.local_size) == ("n1", 2)
    assert 29500 not in world.ports
    assert len(world.ports) == len(set(world.ports)) > 1
    other = detect(agent | {"TORCHELASTIC_RUN_ID": "78"})
    assert other is not None
    assert (other.job, other.ports) != (world.job, world.ports)
    # Started anew by its agent, a rank meets the others where they look for it.
    assert detect(agent | {"TORCHELASTIC_RESTART_COUNT": "1"}) == world


def test_ranks_of_one_node_meet_over_loopback() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n1"}
    for one in (env, slurm | {"SLURM_STEP_NUM_NODES": "1"}):
        world = detect(one)
        assert world is not None
        assert (world.address, world.local_size) == ("127.0.0.1", 2)


def test_srun_step_and_not_the_batch_script() -> None:
    step = {
        "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1",
        "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "gpu-[003,005-007]",
    }  # fmt: skip
    world = detect(step)
    assert world is not None
    assert (world.launcher, world.rank, world.size, world.address) == ("slurm", 5, 8, "gpu-003")
    assert world.job == "slurm/77.0"
    assert world.ports == ports_from("slurm/77.0")
    named = detect(step | {"MASTER_PORT": "1234"})
    assert named is not None
    assert named.ports == (1234,)
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
        {"RANK": "\u00b2", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2" * 5000},
        {"RANK": "-1", "WORLD_SIZE": "2"},
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
    world = detect(
        {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": nodes}
    )
    assert world is not None
    assert world.address == first


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
    assert ports_from("77.0") == ports_from("77.0")
    # /proc/sys/net/ipv4/ip_local_port_range begins at 32768.
    assert all(20000 <= p < 30000 for n in range(200) for p in ports_from(str(n)))


JOIN = (
    "import sys\n"
    "from topocheck.tests_live.launch.world import detect_here\n"
    "from topocheck.tests_live.launch.rendezvous import join\n"
    "from topocheck.tests_live.launch.ranks import run_collectives\n"
    "from topocheck.bandwidth.cases import CollectiveRow\n"
    "w = detect_here()\n"
    "row = CollectiveRow(id='r', collective='all_reduce', backend='gloo', ranks=w.size, sizes_bytes=(4096,),\n"
    "    samples_min=2, samples_max=2, budget_s=0.1)\n"
    "with join(w, 'test', 600) as meeting:\n"
    "    for m in run_collectives((row,), meeting=meeting, quiet_s=600, join_s=600):\n"
    "        print('rank', w.rank, m.id, getattr(m, 'verified', m), flush=True)\n"
)


@pytest.mark.torch
def test_joins_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port", str(free_ports(1)[0])]
    env = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    script = tmp_path / "join.py"
    script.write_text(JOIN)
    out = subprocess.run([*argv, str(script)], capture_output=True, text=True, timeout=PATIENCE_S, env=env, check=False)
    assert out.stdout.splitlines() == ["rank 0 r:4096:in:back_to_back True"], out.stderr[-1500:]


@pytest.mark.torch
@pytest.mark.service
def test_joins_mpirun() -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    require_program("mpirun")
    argv = ["mpirun", "-np", "2", "--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    env = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    out = subprocess.run(
        [*argv, sys.executable, "-c", JOIN],
        capture_output=True, text=True, timeout=PATIENCE_S, env=env, check=False,
    )  # fmt: skip
    assert out.stdout.splitlines() == ["rank 0 r:4096:in:back_to_back True"], out.stderr[-1500:]
