"""Cores, plans and launcher options. Expected values are worked out from the descriptions in the comments."""

from __future__ import annotations

import pytest

from tests.machines.description import load
from tests.placement.machines import cached, look
from topocheck.model.address import parse_cpulist
from topocheck.model.system import NumaFacts, NumaNode
from topocheck.placement import launch
from topocheck.placement.cores import core_map, cores_of, share
from topocheck.placement.plan import plan
from topocheck.render.emit import numactl_words


def _numa(cores: int, packages: dict[str, str], *nodes: str) -> NumaFacts:
    listed = tuple(NumaNode(node=i, cpulist=c) for i, c in enumerate(nodes))
    online = ",".join(packages.values())
    return NumaFacts(nodes=listed, cpu_packages=packages, online_cpus=online, cores=cores)


def test_cores_are_counted_socket_by_socket() -> None:
    # Two sockets of 48 cores with two threads: CPUs 0-47 and 96-143 are socket 0, so cores 0-47; the rest 48-95.
    cores = core_map(_numa(96, {"0": "0-47,96-143", "1": "48-95,144-191"}, "0-47,96-143", "48-95,144-191"))
    assert cores.threads == 2
    assert cores_of(parse_cpulist("48-95,144-191"), cores) == "48-95"
    assert cores_of(parse_cpulist("0-191"), cores) == "0-95"


def test_cores_of_several_numa_nodes_in_a_socket() -> None:
    # Four NUMA nodes of 8 cores in each of two sockets (NPS4), no second threads: node 5 is cores 40-47.
    nodes = [f"{8 * i}-{8 * i + 7}" for i in range(8)]
    cores = core_map(_numa(64, {"0": "0-31", "1": "32-63"}, *nodes))
    assert cores_of(parse_cpulist("40-47"), cores) == "40-47"
    assert (cores.ranges[5].socket, cores.ranges[5].socket_first) == (1, 8)


def test_sockets_whose_cpus_alternate() -> None:
    # Even CPUs on socket 0, odd on socket 1, as some firmware numbers them: socket 1 is cores 4-7 all the same.
    even, odd = "0,2,4,6", "1,3,5,7"
    cores = core_map(_numa(8, {"0": even, "1": odd}, even, odd))
    assert cores_of(parse_cpulist(odd), cores) == "4-7"


def test_part_of_a_numa_node_has_no_core_numbers() -> None:
    cores = core_map(_numa(8, {"0": "0-7"}, "0-7"))
    assert cores_of(parse_cpulist("0-3"), cores) is None


def test_offline_threads_give_no_core_numbers() -> None:
    # 96 cores, 191 CPUs online.
    cores = core_map(_numa(96, {"0": "0-47,96-143", "1": "48-95,144-190"}, "0-47,96-143", "48-95,144-190"))
    assert cores.why_not
    assert cores.ranges == ()


def test_share_keeps_both_threads_of_a_core_together() -> None:
    parts = share(parse_cpulist("0-47,96-143"), 2, 4)
    assert parts is not None
    assert parts[1] == parse_cpulist("12-23,108-119")
    assert frozenset().union(*parts) == parse_cpulist("0-47,96-143")


def test_share_of_ambiguous_numbers_is_refused() -> None:
    # 0-31 with two threads a core: 0 and 1 may be one core, or 0 and 16.
    assert share(parse_cpulist("0-31"), 2, 2) is None
    assert share(parse_cpulist("0-31"), 1, 2) == (parse_cpulist("0-15"), parse_cpulist("16-31"))
    assert share(parse_cpulist("0-1"), 1, 4) is None


def test_plan_of_an_hgx_node() -> None:
    p = plan(*cached("hgx_h100_cx7"))
    assert [b.gpu_label for b in p.bindings] == [f"GPU{i}" for i in range(8)]
    # Four GPUs share a socket of 48 cores: 12 cores each.
    assert p.bindings[5].cpus == "60-71,156-167"
    assert p.bindings[5].slot == "1:12-23"
    assert p.bindings[5].memory_node == 1
    assert p.bindings[5].nics == ("mlx5_5",)
    assert p.notes == ()


def test_memory_of_a_gpu_is_never_the_memory_node() -> None:
    # Grace: the first NUMA nodes have CPUs, all others are memory of the GPUs or empty.
    for name in ("h24_gpu_memory_nodes", "gb200_tray", "gh200"):
        p = plan(*cached(name))
        with_cpus = {int(n["id"]) for n in load(name)["numa"] if n.get("cpus")}
        assert p.bindings
        assert {b.memory_node for b in p.bindings} <= with_cpus
        assert "--membind=0" in numactl_words(p.bindings[0])


def test_more_and_fewer_ranks_than_gpus() -> None:
    node, topology = cached("hgx_h100_cx7")
    few = plan(node, topology, 4)
    assert len(few.bindings) == 4
    assert few.notes[0] == "4 ranks for 8 GPUs: 4 GPUs stay idle"
    assert plan(node, topology, 7).notes[0] == "7 ranks for 8 GPUs: 1 GPU stays idle"
    assert plan(node, topology, 1).notes[0] == "1 rank for 8 GPUs: 7 GPUs stay idle"
    many = plan(node, topology, 16)
    assert [b.gpu_label for b in many.bindings[8:10]] == ["GPU0", "GPU1"]
    cpus = [parse_cpulist(b.cpus) for b in many.bindings]
    assert sum(map(len, cpus)) == 192, "every CPU belongs to one rank"


def test_a_lost_gpu_gets_no_rank() -> None:
    node, topology = cached("gpu_lost")
    lost = [g.label for g in topology.gpus if not g.on_bus]
    assert len(lost) == 1
    assert lost[0] not in [b.gpu_label for b in plan(node, topology).bindings]


def test_a_node_without_gpus() -> None:
    p = plan(*cached("laptop"))
    assert p.bindings == () or all(b.gpu for b in p.bindings)
    assert launch.options(plan(*cached("no_pci")), "srun") == ()


def test_one_rank_shares_its_socket_with_nobody() -> None:
    # Threads and cores of this laptop cannot be distinguished, which matters only where ranks would share them.
    node, topology = cached("laptop")
    (binding,) = plan(node, topology).bindings
    assert (binding.cpus, binding.shared, plan(node, topology).notes) == ("0-19", False, ())
    two = plan(node, topology, 2)
    assert [b.shared for b in two.bindings] == [True, True]
    assert any("cannot be distinguished" in note for note in two.notes)


def test_srun_options() -> None:
    p = plan(*cached("gb200_tray"))
    # Two Grace of 72 cores, two GPUs each: masks of 36 ones, shifted by 36 each.
    masks = [hex(((1 << 36) - 1) << (36 * i)) for i in range(4)]
    command = launch.options(p, "srun", nodes=3)[-1]
    assert f"--cpu-bind=mask_cpu:{','.join(masks)}" in command
    assert command.startswith("srun -N 3 --ntasks-per-node=4 --gpus-per-node=4")
    assert "--gpu-bind=none" in command


def test_torchrun_and_mpirun_options() -> None:
    p = plan(*cached("hgx_h100_cx7"))
    assert "--nproc-per-node=8" in "\n".join(launch.options(p, "torchrun"))
    assert "mpirun -np 16 --rankfile" in launch.options(p, "mpirun", nodes=2)[-1]


def test_rankfile_counts_ranks_host_by_host() -> None:
    lines = launch.rankfile_lines(plan(*cached("hgx_h100_cx7")), ("a", "b"))
    assert lines[0] == "rank 0=a slot=0:0-11"
    assert lines[15] == "rank 15=b slot=1:36-47"


def test_a_guest_without_numa_is_not_bound() -> None:
    node, topology = look("h26_vm_flat_a800", nvml={"DeviceGetCpuAffinity*": {"error": "NotSupported"}})
    p = plan(node, topology)
    assert p.bindings
    if any(not b.cpus for b in p.bindings):
        assert "not bound" in " ".join(p.notes)
        assert "--cpu-bind" not in launch.options(p, "srun")[-1]
        with pytest.raises(ValueError, match="cannot be numbered"):
            launch.rankfile_lines(p, ("a",))
