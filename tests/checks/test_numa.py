"""Each check of NUMA fires on one planted fault, and is quiet on its near miss."""

from __future__ import annotations

import msgspec
import pytest

from tests.checks import support
from tests.checks.software import findings, healthy, one, run, state, variant, with_nccl, with_node
from tests.checks.support import software_checks
from topocheck.checks.registry import Context
from topocheck.host.base import Host, RecordedBackend
from topocheck.model.base import ABSENT, Missing, State
from topocheck.pipeline import read_node
from topocheck.probes.registry import PROBES

HGX = "hgx_h100_cx7"
# Of hgx_h100_cx7: node 0 has CPUs 0-47 and 96-143 and GPU0 to GPU3, node 1 the rest and GPU4 to GPU7.
FAR, NEAR = "48-95", "0-47"


def test_a_process_that_sees_gpus_of_both_sockets_gets_a_note() -> None:
    f = one("numa.process-far-from-gpus", variant(HGX, process={"cpus": FAR}))
    assert f.state is State.NOTE
    assert "GPU0, GPU1, GPU2, GPU3" in f.title
    assert f.evidence[0].raw == FAR


def test_a_rank_on_the_wrong_socket_warns() -> None:
    far = variant(HGX, process={"cpus": FAR}, environment={"LOCAL_RANK": "0"})
    near = variant(HGX, process={"cpus": NEAR}, environment={"LOCAL_RANK": "0"})
    assert one("numa.process-far-from-gpus", far).state is State.WARN
    assert findings("numa.process-far-from-gpus", near) == ()


def test_a_process_whose_only_gpu_is_far_warns() -> None:
    c = variant(HGX, process={"cpus": FAR}, environment={"CUDA_VISIBLE_DEVICES": "1"})
    f = one("numa.process-far-from-gpus", c)
    assert (f.state, f.subject) == (State.WARN, "process")
    assert "GPU1" in f.title


def test_one_cpu_near_the_gpu_is_a_note() -> None:
    c = variant(HGX, process={"cpus": "0,48-95"}, environment={"LOCAL_RANK": "0"})
    assert "one CPU" in one("numa.process-far-from-gpus", c).title


def test_an_unbound_process_and_a_single_node_are_quiet() -> None:
    assert findings("numa.process-far-from-gpus", healthy(HGX)) == ()
    assert state("numa.process-far-from-gpus", healthy("laptop")) is State.NOT_APPLICABLE


def test_cpus_nobody_could_tell_are_unknown() -> None:
    c = healthy(HGX)
    hidden = with_node(c, numa=msgspec.structs.replace(c.node.numa, allowed_cpus=ABSENT))
    assert one("numa.process-far-from-gpus", hidden).state is State.UNKNOWN


def test_memory_of_the_other_socket_only_warns() -> None:
    far = variant(HGX, process={"mems": "1"}, environment={"LOCAL_RANK": "2"})
    assert one("numa.memory-nodes-excluded", far).state is State.WARN
    assert one("numa.memory-nodes-excluded", variant(HGX, process={"mems": "1"})).state is State.NOTE
    near = variant(HGX, process={"mems": "0"}, environment={"LOCAL_RANK": "2"})
    assert findings("numa.memory-nodes-excluded", near) == ()


def test_gpu_memory_nodes_may_be_left_out() -> None:
    # On gb200_tray nodes 2, 10, 18 and 26 are the GPUs' own memory.
    assert findings("numa.memory-nodes-excluded", variant("gb200_tray", process={"mems": "0-1"})) == ()


def _placeless(*labels: str, name: str = HGX) -> Context:
    """Return a machine on whose devices, and the ports above them, firmware is silent."""
    c = healthy(name)
    devices = {d.address: d for d in c.node.pci.devices}
    gone = set()
    for d in (*c.topology.gpus, *c.topology.nics):
        address: str | None = d.address if not labels or d.label in labels else None
        while address is not None and address in devices:
            gone.add(address)
            address = c.topology.tree[address].parent
    changed = tuple(msgspec.structs.replace(d, numa_node=ABSENT) if d.address in gone else d for d in devices.values())
    topology = msgspec.structs.replace(c.topology, devices={d.address: d for d in changed})
    c = msgspec.structs.replace(c, topology=topology)
    return with_node(c, pci=msgspec.structs.replace(c.node.pci, devices=changed))


def test_no_device_with_a_node_warns_on_bare_metal() -> None:
    f = one("numa.node-missing", _placeless())
    assert f.state is State.WARN
    assert "18 GPUs and NICs" in f.title  # 8 GPUs, 10 NICs
    assert findings("numa.node-mixed", _placeless()) == ()


def test_the_same_in_a_guest_is_a_note() -> None:
    c = _placeless()
    guest = with_node(c, system=msgspec.structs.replace(c.node.system, hypervisor="KVM"))
    assert one("numa.node-missing", guest).state is State.NOTE


def test_one_gpu_without_a_node_warns() -> None:
    f = one("numa.node-mixed", _placeless("GPU5", "mlx5_5"))
    assert f.state is State.WARN
    assert "GPU5, mlx5_5 report no NUMA node" in f.title
    assert findings("numa.node-missing", _placeless("GPU5")) == ()


def test_nics_without_a_node_beside_gpus_on_c2c_warn() -> None:
    """NCCL puts such NICs on a CPU of their own (SYS): its C2C road, known since 2.26.2, leads no farther than P2C."""
    tray = healthy("gb200_tray")
    assert one("numa.node-mixed", with_nccl(tray, "2.26.2")).state is State.WARN
    assert one("numa.node-mixed", tray).state is State.WARN
    assert one("numa.node-mixed", with_nccl(tray, "2.25.1")).state is State.NOTE
    guest = with_node(tray, system=msgspec.structs.replace(tray.node.system, hypervisor="KVM"))
    assert one("numa.node-mixed", guest).state is State.NOTE


def test_nics_without_a_node_beside_gpus_on_pcie_lose_nothing() -> None:
    """Across host bridges (PHB) NCCL stages by default, on the GPU's node or on another."""
    every = [n.label for n in healthy("nic_wrong_socket").topology.nics]
    assert every
    c = support.context(_placeless(*every, name="nic_wrong_socket").node)
    assert any(isinstance(p.crosses_nodes, Missing) for p in c.topology.paths)
    assert one("numa.node-mixed", c).state is State.NOTE


@pytest.mark.parametrize("name", ["cloud_vm_17nic", "laptop", "gb10"])
def test_with_one_node_there_is_nothing_to_be_far_from(name: str) -> None:
    assert state("numa.node-missing", healthy(name)) is State.NOT_APPLICABLE
    assert state("numa.node-mixed", healthy(name)) is State.NOT_APPLICABLE


def test_a_job_spread_over_sockets_is_a_note() -> None:
    # rtxpro6000_x8_asus: no NVLink, GPUs on both sockets.
    c = healthy("rtxpro6000_x8_asus")
    sides = {str(g.cpu_affinity): str(g.index) for g in c.topology.gpus}
    assert len(sides) == 2
    spread = variant("rtxpro6000_x8_asus", environment={"CUDA_VISIBLE_DEVICES": ",".join(sides.values())})
    f = one("numa.gpus-over-sockets", spread)
    assert f.state is State.NOTE
    first = [str(g.index) for g in c.topology.gpus if g.cpu_affinity == c.topology.gpus[0].cpu_affinity][:2]
    together = variant("rtxpro6000_x8_asus", environment={"CUDA_VISIBLE_DEVICES": ",".join(first)})
    assert findings("numa.gpus-over-sockets", together) == ()
    assert state("numa.gpus-over-sockets", c) is State.NOT_APPLICABLE


def test_gpus_on_nvlink_may_be_on_any_socket() -> None:
    assert findings("numa.gpus-over-sockets", variant(HGX, environment={"CUDA_VISIBLE_DEVICES": "3,4"})) == ()


def test_four_nodes_a_socket_are_a_note() -> None:
    f = one("numa.nps", healthy("dgx_a100"))
    assert f.state is State.NOTE
    assert "8 NUMA nodes with CPUs on 2 sockets" in f.title
    assert findings("numa.nps", healthy(HGX)) == ()


def test_balancing_matters_where_gpu_memory_is_a_node() -> None:
    assert one("numa.balancing", variant("gh200", system={"numa_balancing": True})).state is State.NOTE
    assert findings("numa.balancing", healthy("gh200")) == ()
    assert state("numa.balancing", variant(HGX, system={"numa_balancing": True})) is State.NOT_APPLICABLE


NUMA_CHECKS = (
    "numa.balancing",
    "numa.gpus-over-sockets",
    "numa.memory-nodes-excluded",
    "numa.node-missing",
    "numa.node-mixed",
    "numa.nodes-across-sockets",
    "numa.nps",
    "numa.one-affinity",
    "numa.process-far-from-gpus",
)


def test_every_check_of_this_area_is_in_the_list() -> None:
    assert {c.id for c in software_checks() if c.id.startswith("numa.")} == set(NUMA_CHECKS)


@pytest.mark.parametrize("id_", NUMA_CHECKS)
def test_an_empty_recording_is_told_as_such(id_: str) -> None:
    """Nobody looked, so neither `one NUMA node` nor `no GPU` is known."""
    result, found = run(id_, support.context(read_node(Host(RecordedBackend({}), "empty"), PROBES)))
    assert (result.state, found) == (State.NOT_APPLICABLE, ())
    assert "not_recorded" in result.detail


@pytest.mark.parametrize("id_", ["numa.node-missing", "numa.node-mixed", "numa.nps", "numa.process-far-from-gpus"])
def test_nodes_that_did_not_answer_are_unknown_beside_gpus(id_: str) -> None:
    f = one(id_, variant(HGX, hangs=["read:/sys/devices/system/node/online"]))
    assert (f.state, f.subject) == (State.UNKNOWN, "node")
    assert "timed_out" in f.title


def test_a_kernel_without_numa_has_nothing_to_judge() -> None:
    c = healthy(HGX)
    c = with_node(c, numa=msgspec.structs.replace(c.node.numa, nodes=ABSENT))
    assert state("numa.node-missing", c) is State.NOT_APPLICABLE
