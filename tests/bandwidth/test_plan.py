"""Plans made for described machines: what is covered, what is left out, what it costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import builder
from topocheck.bandwidth.buffers import fit_size
from topocheck.bandwidth.cases import HOST, Plan
from topocheck.bandwidth.collective_plan import collective_named, group_sizes
from topocheck.bandwidth.link_rates import efficiency_key, host_hop, rate
from topocheck.bandwidth.options import Options
from topocheck.bandwidth.plan import choose_gpus, make_plan, rounds
from topocheck.pipeline import read_node
from topocheck.topology.build import build
from topocheck.topology.types import Topology

MIB = 1 << 20


def topology(name: str) -> Topology:
    return build(read_node(builder.cached(name).host()))


def plan(name: str, **options: object) -> Plan:
    return make_plan(topology(name), Options(**options))  # type: ignore[arg-type]


def reasons(p: Plan) -> dict[str, str]:
    return {n.id: n.reason for n in p.left_out}


@given(st.integers(0, 40))
def test_rounds_of_the_circle_method(n: int) -> None:
    made = rounds(n)
    pairs = [p for r in made for p in r]
    assert sorted(pairs) == [(a, b) for a in range(n) for b in range(a + 1, n)]
    for r in made:
        members = [m for p in r for m in p]
        assert len(set(members)) == len(members)
    assert len(made) == (0 if n < 2 else n - 1 if n % 2 == 0 else n)


def test_quick_on_two_gpus_is_the_four_matrices_and_takes_no_torch() -> None:
    p = plan("h100_x2_vm", budget="quick", all_pairs=True)
    assert {(r.kind, r.transfers[0].source == r.transfers[0].issuer) for r in p.copies if r.kind == "p2p"} == {
        ("p2p", True),
        ("p2p", False),
    }
    assert sorted(r.kind for r in p.copies) == ["d2h"] * 2 + ["h2d"] * 2 + ["p2p"] * 4
    assert {r.group for r in p.copies} == {"driver"}
    assert {r.size_bytes for r in p.copies} == {128 * MIB}
    assert p.collectives == ()
    assert p.estimate_s < 3


def test_standard_on_eight_gpus_has_every_ordered_pair_push_pull_and_both() -> None:
    p = plan("hgx_h100_cx7")
    push = [r for r in p.copies if r.kind == "p2p" and r.id.endswith("push")]
    pull = [r for r in p.copies if r.kind == "p2p" and r.id.endswith("pull")]
    assert len({(r.transfers[0].source, r.transfers[0].destination) for r in push}) == 56
    assert len(pull) == 56
    assert len([r for r in p.copies if r.kind == "p2p_both"]) == 28
    assert len([r for r in p.copies if r.kind == "p2p_round"]) == 7
    for r in pull:
        assert r.transfers[0].issuer == r.transfers[0].destination
    # One pair of the one class there is without peer access, in a process of its own, after all others.
    (staged,) = [r for r in p.copies if r.group == "staged" and r.kind == "p2p"]
    assert staged.peer_access is False
    assert [r.group for r in p.copies] == sorted((r.group for r in p.copies), key=["driver", "staged"].index)
    assert len({r.id for r in p.copies}) == len(p.copies)
    assert {c.ranks for c in p.collectives} == {2, 4, 8}
    # Buffers that are pinned at once stay within 1 GiB.
    (every,) = [r for r in p.copies if r.kind == "h2d_all"]
    assert every.size_bytes * 8 <= 1 << 30


def test_host_buffers_are_near_their_gpu() -> None:
    t = topology("hgx_h100_cx7")
    p = make_plan(t, Options(far_numa=True))
    nodes = {g.address: g.cpu_node for g in t.gpus}
    cpus = {g.address: g.cpu_affinity for g in t.gpus}
    for r in p.copies:
        if r.kind in ("h2d", "d2h") and not r.far:
            (gpu,) = {e for e in (r.transfers[0].source, r.transfers[0].destination) if e != HOST}
            assert r.host_cpus == cpus[gpu]
            assert r.host_node == nodes[gpu]
    far = [r for r in p.copies if r.far]
    assert len(far) == 16
    for r in far:
        (gpu,) = {e for e in (r.transfers[0].source, r.transfers[0].destination) if e != HOST}
        assert r.host_node != nodes[gpu]


def test_guests_without_numa_nodes_have_no_far_node() -> None:
    assert not [r for r in plan("h100_x2_vm", far_numa=True).copies if r.far]


def test_what_is_left_out_says_why() -> None:
    lost = plan("gpu_lost", budget="quick")
    assert "lost from the bus" in reasons(lost)["GPU5"]
    gone = next(g.address for g in topology("gpu_lost").gpus if g.label == "GPU5")
    assert not [r for r in lost.copies for t in r.transfers if gone in (t.source, t.destination)]
    mig = plan("mig_node")
    assert "MIG" in reasons(mig)["GPU0"]
    split = next(g.address for g in topology("mig_node").gpus if g.label == "GPU0")
    assert not [r for r in mig.copies for t in r.transfers if split == t.source and t.destination not in (HOST, split)]
    assert [r for r in mig.copies if r.kind == "h2d" and r.transfers[0].destination == split]
    assert "one GPU for each rank" in reasons(plan("laptop"))["collectives over nccl"]
    assert "pip install" in reasons(plan("h100_x2_vm", driver_available=False))["copies"]
    assert "pip install" in reasons(plan("h100_x2_vm", torch_available=False))["collectives over nccl"]


def test_what_was_asked_for_and_left_out_is_required() -> None:
    """3: something asked for could not be measured; what a standard run would do beside is only noted."""

    def required(name: str, **options: object) -> dict[str, bool]:
        return {n.id: n.required for n in plan(name, **options).left_out}

    assert required("laptop") == {"collectives over nccl": False}
    assert required("laptop", backends=("nccl",)) == {"collectives over nccl": True}
    assert required("no_pci") == {}
    assert required("no_pci", all_pairs=True, engine="torch") == {"--all-pairs": True, "--engine torch": True}
    # The MPI standard has no 16-bit floating type.
    assert required("no_pci", backends=("mpi", "gloo"), dtype="bfloat16") == {"collectives over mpi": True}
    assert required("no_pci", backends=("mpi",), dtype="float64") == {}
    assert required("no_pci", allocator="nccl") == {"--allocator nccl": True}
    assert required("h100_x2_vm", allocator="nccl") == {}
    # 16 GiB are copied as what memory allows, and that is said.
    assert "copies of 16 GiB" in required("h100_x2_vm", sizes_bytes=(16 << 30,))


def test_sizes_of_which_nothing_can_be_measured_are_refused() -> None:
    def refused(**options: object) -> str:
        with pytest.raises(ValueError, match="--sizes") as e:
            plan("no_pci", **options)
        return str(e.value)

    assert "3 B holds no float32" in refused(sizes_bytes=(3, 4096))
    assert plan("no_pci", sizes_bytes=(4,)).collectives
    # all_gather's size is that of all ranks' parts: 3 ranks x 8 bytes.
    assert "24 B or more" in refused(sizes_bytes=(16,), ranks=3, dtype="float64", collectives=("all_gather",))
    assert plan("no_pci", sizes_bytes=(24,), ranks=3, dtype="float64", collectives=("all_gather",)).collectives
    # 4 buffers x 2 ranks x 1 GiB.
    assert "about 8 GiB of memory" in refused(sizes_bytes=(1 << 30,), host_available_bytes=(8 << 30) - 1)
    assert plan("no_pci", sizes_bytes=(1 << 30,), host_available_bytes=8 << 30).collectives
    with pytest.raises(ValueError, match="the fullest GPU"):
        plan("h100_x2_vm", sizes_bytes=(64 << 30,), copies=False)


def test_more_ranks_than_a_node_should_start_are_refused_and_many_take_longer() -> None:
    with pytest.raises(ValueError, match="at most 256"):
        plan("no_pci", ranks=257)
    assert plan("no_pci", ranks=257, joined=True).collectives[0].ranks == 257
    few, many = (plan("no_pci", budget="quick", ranks=n, cpus=2).estimate_s for n in (2, 32))
    # 30 s were measured with 32 ranks on two cores, 5 s with 2.
    assert few < 6 < 15 < many < 60


def test_every_plan_takes_three_samples_or_more() -> None:
    for budget in ("quick", "standard", "full"):
        for name in ("no_pci", "h100_x2_vm"):
            p = plan(name, budget=budget, backends=("gloo",))
            assert min(r.samples_min for r in (*p.copies, *p.collectives)) >= 3


def test_without_gpus_gloo_between_two_processes() -> None:
    p = plan("no_pci", budget="quick")
    assert p.copies == ()
    (row,) = p.collectives
    assert (row.collective, row.backend, row.ranks) == ("all_reduce", "gloo", 2)
    assert [c.ranks for c in plan("no_pci", ranks=4, collectives=("reduce",)).collectives] == [4]


def test_collectives_alone_and_joined() -> None:
    alone = plan("h100_x2_vm", copies=False)
    assert alone.copies == ()
    assert {c.collective for c in alone.collectives} == {"all_reduce", "all_gather", "reduce_scatter", "send_recv"}
    quick = plan("h100_x2_vm", budget="quick", copies=False, backends=("nccl",))
    assert [(c.collective, c.sizes_bytes) for c in quick.collectives] == [("all_reduce", (65536, 256 * MIB))]
    # 16 ranks of a launcher over eight nodes of two GPUs: one group of all, and only this node's GPUs are known.
    joined = plan("h100_x2_vm", budget="quick", copies=False, joined=True, ranks=16)
    assert [(c.ranks, len(c.members)) for c in joined.collectives] == [(16, 2)]


def test_gpus_are_named_in_any_way_and_unknown_names_are_told() -> None:
    t = topology("h100_x2_vm")
    g = t.gpus[1]
    for name in ("GPU1", "1", g.address, str(g.uuid)):
        assert choose_gpus(t, (name,)) == (g,)
    with pytest.raises(ValueError, match="GPU0"):
        choose_gpus(t, ("GPU7",))
    with pytest.raises(ValueError, match="gossip"):
        collective_named("gossip")
    with pytest.raises(ValueError, match="2 ranks or more"):
        make_plan(t, Options(ranks=1))


def test_sizes_shrink_to_what_memory_allows() -> None:
    assert fit_size(512 * MIB, (), None) == 512 * MIB
    # A tenth of 4 GiB for two buffers: 204.8 MiB each, so 128.
    assert fit_size(512 * MIB, (), 4 << 30) == 128 * MIB
    assert fit_size(512 * MIB, (), 1) == 16 * MIB
    # An 8 GB laptop GPU: a quarter of what is free, for two buffers.
    gpus = topology("laptop").gpus
    nvml = gpus[0].nvml
    assert nvml is not None
    free = nvml.memory_total_bytes - nvml.memory_used_bytes  # type: ignore[operator]
    assert fit_size(8 << 30, gpus, None) * 2 <= free // 4 < fit_size(8 << 30, gpus, None) * 4


def test_group_sizes() -> None:
    assert [group_sizes(n) for n in (2, 3, 4, 6, 8)] == [[2], [2, 3], [2, 4], [2, 4, 6], [2, 4, 8]]


@pytest.mark.parametrize(
    ("machine", "gb_s", "key"),
    [
        # 32 GT/s x 16 x 128/130 / 8; links that rest are taken at what both ends can do.
        ("h100_x2_vm", 63.015, ("host_copy", "pcie5")),
        ("rtx4090_x8", 31.508, ("host_copy", "pcie4")),
        ("gh200", 447.12, ("host_copy", "c2c")),
    ],
)
def test_the_road_to_the_host(machine: str, gb_s: float, key: tuple[str, str]) -> None:
    t = build(read_node(builder.cached(machine).host()))
    hop = host_hop(t, t.gpus[0].address)
    assert hop is not None
    assert rate(hop) == pytest.approx(gb_s, rel=1e-3)
    assert efficiency_key(hop) == key


def test_plan_says_what_it_does() -> None:
    lines = plan("h100_x2_vm").lines()
    assert any("host to GPU" in line and "512 MiB" in line for line in lines)
    assert any("all_reduce over nccl, 2 ranks" in line for line in lines)


def test_gpus_that_cannot_be_opened_are_one_line_a_cause() -> None:
    hgx = topology("hgx_h100_cx7")
    every = {g.address: "CUDA_VISIBLE_DEVICES='' hides every GPU" for g in hgx.gpus}
    plan = make_plan(hgx, Options(unusable=every))
    assert (plan.copies, plan.collectives) == ((), ())
    (only,) = plan.left_out
    assert (only.id.count("GPU"), only.required) == (8, True)
    some = dict(list(every.items())[:6])
    plan = make_plan(hgx, Options(budget="quick", unusable=some))
    assert [n.required for n in plan.left_out] == [False]
    used = {e for r in plan.copies for t in r.transfers for e in (t.source, t.destination)}
    assert used == {"host", *(a for a in every if a not in some)}
