"""Where ranks run, and what is wrong in it."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.placement.machines import look
from topocheck.placement.plan import Plan
from topocheck.placement.ranks import Problem, RankPlace, problems, rank_place
from topocheck.render.page import Style
from topocheck.render.placement import placement_text

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


def judged(ranks: list[RankPlace], **more: Any) -> tuple[Problem, ...]:
    """Return what is wrong with ranks that do not say how many there are."""
    return problems([msgspec.structs.replace(r, world_size=None) for r in ranks], **more)


def test_a_rank_finds_itself() -> None:
    r = _rank(5, 5, node="gpu07", cpus="48-95")
    assert (r.launcher, r.rank, r.world_size, r.local_rank, r.node) == ("torchrun", 5, 16, 5, "gpu07")
    assert (r.gpu_label, r.gpu_node, r.nics) == ("GPU5", 1, ("mlx5_5",))
    assert (r.cpus, r.numa_nodes) == ("48-95", (1,))


def test_rank_variables_of_each_launcher() -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    slurm |= {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    mpi = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    for launcher, environment in (("srun", slurm), ("mpirun", mpi)):
        r = rank_place(*look(BASE, environment=environment))
        assert (r.launcher, r.rank, r.world_size, r.local_rank, r.gpu_label) == (launcher, 3, 4, 1, "GPU1")
        assert r.local_world_size == 2
    assert rank_place(*look(BASE)).rank is None


def test_a_good_placement_is_quiet() -> None:
    near = ("0-47,96-143", "48-95,144-191")
    ranks = [_rank(i, i, cpus=near[i // 4]) for i in range(8)]
    assert judged(ranks) == ()


def test_two_ranks_on_one_gpu() -> None:
    seen = {"CUDA_VISIBLE_DEVICES": "2"}
    found = judged([_rank(0, 0, environment=seen), _rank(1, 1, environment=seen)])
    assert [p.text for p in found if p.state == "warn"] == [
        "2 ranks on GPU2 0000:4b:00.0 of a: NCCL refuses two on one GPU"
    ]
    assert found[0].ranks == (0, 1)


def test_the_same_gpu_on_two_nodes_is_right() -> None:
    assert not [p for p in judged([_rank(0, 0, node="a"), _rank(8, 0, node="b")]) if p.state == "warn"]


def test_a_rank_far_from_its_gpu() -> None:
    found = judged([_rank(0, 0, cpus="48-95")])
    assert [p.state for p in found] == ["warn"]
    assert "NUMA node 1" in found[0].text
    assert "0-47,96-143" in found[0].text


def test_an_unbound_rank_is_a_note() -> None:
    assert [p.state for p in judged([_rank(0, 0)])] == ["note"]


def test_all_ranks_on_the_first_core() -> None:
    found = judged([_rank(i, i, cpus="0,96") for i in range(4)])
    assert [(p.state, p.ranks) for p in found] == [("warn", (0, 1, 2, 3))]


def test_the_advice_points_below_only_where_something_is_suggested() -> None:
    crowded = [_rank(i, i, cpus="0,96") for i in range(4)]
    for ranks in (crowded, [_rank(0, 0, cpus="48-95")], [_rank(0, 0)]):
        (p,) = judged(ranks)
        (alone,) = judged(ranks, suggested=False)
        assert p.fix == f"{alone.fix}, as suggested below"
        assert alone.fix.startswith("bind")
        assert "below" not in alone.fix
    # That a GPU serves two ranks is no matter of binding.
    seen = {"CUDA_VISIBLE_DEVICES": "2"}
    shared = judged([_rank(0, 0, environment=seen), _rank(1, 1, environment=seen)])[0]
    assert "below" not in shared.fix


def test_crossed_rails() -> None:
    # Node c lists its GPUs the other way round, so its local rank 0 sits on the last rail.
    ranks = [_rank(0, 0, node="a"), _rank(1, 0, node="b")]
    ranks.append(_rank(2, 0, node="c", environment={"CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}))
    found = [p for p in judged(ranks) if p.state == "warn"]
    assert [p.ranks for p in found] == [(2,)]
    assert "another rail" in found[0].text


def test_a_rank_without_its_gpu_says_why() -> None:
    r = _rank(0, 3, environment={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert r.gpu is None
    assert "local rank 3 of 2" in r.gpu_missing_reason
    assert [p.state for p in judged([r])] == ["note"]


def test_places_travel_as_json() -> None:
    r = _rank(5, 5)
    assert msgspec.json.decode(msgspec.json.encode(r), type=RankPlace) == r


def _bare(rank: int, size: int, local: int, node: str = "a") -> RankPlace:
    return RankPlace(rank=rank, world_size=size, local_rank=local, node=node)


def test_ranks_that_are_missing_are_named_in_folded_form() -> None:
    ranks = [_bare(r, 32, r % 8, f"n{r // 8}") for r in range(32) if not 8 <= r < 20]
    (p,) = problems(ranks)
    assert (p.state, p.ranks) == ("warn", tuple(range(8, 20)))
    assert "20 of 32 ranks" in p.text
    text = placement_text(ranks, [p], Plan(hostname="n0", bindings=()), {}, Style(width=100))
    assert "ranks 8-19: " in text


def test_world_sizes_that_differ() -> None:
    (p,) = problems([_bare(0, 3, 0), _bare(1, 3, 1), _bare(2, 2, 2)])
    assert (p.state, p.ranks) == ("warn", (2,))
    assert p.text == "world sizes differ: 3 by ranks 0-1; 2 by rank 2"


def test_the_local_world_size_of_uneven_nodes_is_not_known() -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4,2(x2)"}
    assert rank_place(*look(BASE, environment=slurm)).local_world_size is None


def test_local_world_sizes_that_differ_on_one_node() -> None:
    ranks = [msgspec.structs.replace(_bare(i, 2, i), local_world_size=i + 1) for i in range(2)]
    assert [p.text for p in problems(ranks)] == ["local world sizes differ on a: 1, 2"]
    assert problems([msgspec.structs.replace(r, local_world_size=2) for r in ranks]) == ()


def test_local_ranks_that_repeat_on_one_node() -> None:
    (p,) = problems([_bare(0, 4, 0), _bare(1, 4, 1), _bare(2, 4, 0), _bare(3, 4, 0, "b")])
    assert (p.state, p.ranks) == ("warn", (0, 2))
    assert "local rank 0 on a" in p.text


def test_a_job_that_is_all_there_is_quiet() -> None:
    assert problems([_bare(r, 4, r % 2, "ab"[r // 2]) for r in range(4)]) == ()
    # One recording of a larger job says nothing of the others.
    assert problems([_bare(0, 4, 0)]) == ()
