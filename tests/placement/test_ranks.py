"""Where ranks run, and what is wrong in it."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.placement.machines import look
from topocheck.placement.ranks import RankPlace, problems, rank_place

BASE = "hgx_h100_cx7"


def _rank(rank: int, local: int, *, node: str = "a", cpus: str = "0-191", **more: Any) -> RankPlace:
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": "16",
        "LOCAL_RANK": str(local),
        "SLURMD_NODENAME": node,
        **more.pop("environment", {}),
    }
    return rank_place(*look(BASE, environment=environment, process={"cpus": cpus}, **more))


def test_a_rank_finds_itself() -> None:
    r = _rank(5, 5, node="gpu07", cpus="48-95")
    assert (r.launcher, r.rank, r.world_size, r.local_rank, r.node) == ("torchrun", 5, 16, 5, "gpu07")
    assert (r.gpu_label, r.gpu_node, r.nics) == ("GPU5", 1, ("mlx5_5",))
    assert (r.cpus, r.numa_nodes) == ("48-95", (1,))


def test_rank_variables_of_each_launcher() -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    mpi = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    for launcher, environment in (("srun", slurm), ("mpirun", mpi)):
        r = rank_place(*look(BASE, environment=environment))
        assert (r.launcher, r.rank, r.world_size, r.local_rank, r.gpu_label) == (launcher, 3, 4, 1, "GPU1")
    assert rank_place(*look(BASE)).rank is None


def test_a_good_placement_is_quiet() -> None:
    near = ("0-47,96-143", "48-95,144-191")
    ranks = [_rank(i, i, cpus=near[i // 4]) for i in range(8)]
    assert problems(ranks) == ()


def test_two_ranks_on_one_gpu() -> None:
    seen = {"CUDA_VISIBLE_DEVICES": "2"}
    found = problems([_rank(0, 0, environment=seen), _rank(1, 1, environment=seen)])
    assert [p.text for p in found if p.state == "warn"] == [
        "2 ranks on GPU2 0000:4b:00.0 of a: NCCL refuses two on one GPU"
    ]
    assert found[0].ranks == (0, 1)


def test_the_same_gpu_on_two_nodes_is_right() -> None:
    assert not [p for p in problems([_rank(0, 0, node="a"), _rank(8, 0, node="b")]) if p.state == "warn"]


def test_a_rank_far_from_its_gpu() -> None:
    found = problems([_rank(0, 0, cpus="48-95")])
    assert [p.state for p in found] == ["warn"]
    assert "NUMA node 1" in found[0].text
    assert "0-47,96-143" in found[0].text


def test_an_unbound_rank_is_a_note() -> None:
    assert [p.state for p in problems([_rank(0, 0)])] == ["note"]


def test_all_ranks_on_the_first_core() -> None:
    found = problems([_rank(i, i, cpus="0,96") for i in range(4)])
    assert [(p.state, p.ranks) for p in found] == [("warn", (0, 1, 2, 3))]


def test_the_advice_points_below_only_where_something_is_suggested() -> None:
    crowded = [_rank(i, i, cpus="0,96") for i in range(4)]
    for ranks in (crowded, [_rank(0, 0, cpus="48-95")], [_rank(0, 0)]):
        (p,) = problems(ranks)
        (alone,) = problems(ranks, suggested=False)
        assert p.fix == f"{alone.fix}, as suggested below"
        assert alone.fix.startswith("bind")
        assert "below" not in alone.fix
    # That a GPU serves two ranks is no matter of binding.
    seen = {"CUDA_VISIBLE_DEVICES": "2"}
    shared = problems([_rank(0, 0, environment=seen), _rank(1, 1, environment=seen)])[0]
    assert "below" not in shared.fix


def test_crossed_rails() -> None:
    # Node c lists its GPUs the other way round, so its local rank 0 sits on the last rail.
    ranks = [_rank(0, 0, node="a"), _rank(1, 0, node="b")]
    ranks.append(_rank(2, 0, node="c", environment={"CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}))
    found = [p for p in problems(ranks) if p.state == "warn"]
    assert [p.ranks for p in found] == [(2,)]
    assert "another rail" in found[0].text


def test_a_rank_without_its_gpu_says_why() -> None:
    r = _rank(0, 3, environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert r.gpu is None
    assert "local rank 3 of 2" in r.why_no_gpu
    assert [p.state for p in problems([r])] == ["note"]


def test_places_travel_as_json() -> None:
    r = _rank(5, 5)
    assert msgspec.json.decode(msgspec.json.encode(r), type=RankPlace) == r
