"""Cases from the field about RDMA, settings and limits: the verdict each must get. Healthy machines stay quiet."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checks.software import findings, healthy, one, state, variant
from tests.checks.support import software_checks
from tests.machines.builder import healthy_names
from topocheck.checks import registry
from topocheck.checks.registry import Context, Scope
from topocheck.model.base import Finding, State

TROUBLE = (State.FAIL, State.WARN, State.UNKNOWN)


def every(c: Context) -> list[Finding]:
    """Return the findings of all checks of these areas."""
    return [f for _, found in registry.run(software_checks(), c) for f in found]


def trouble(c: Context) -> set[tuple[str, State]]:
    """Return the checks that came to more than a note."""
    return {(f.id, f.state) for f in every(c) if f.state in TROUBLE}


@pytest.mark.parametrize("name", healthy_names())
def test_a_healthy_machine_is_quiet(name: str) -> None:
    assert trouble(healthy(name)) == set()


@pytest.mark.parametrize("name", ["hgx_h100_cx7", "dgx_a100", "azure_ndv4_vm", "gb200_tray", "power9_ac922", "l40s_x8"])
@pytest.mark.parametrize(
    "less",
    [{"system": {"root": False}}, {"cuda": {"state": "absent"}}, {"nvml": {"*": {"error": "NoPermission"}}}],
    ids=["without root", "without CUDA", "NVML refuses"],
)
def test_knowing_less_raises_no_alarm(name: str, less: dict[str, Any]) -> None:
    alarms = {f for f in trouble(variant(name, **less)) if f[1] is not State.UNKNOWN}
    assert alarms <= trouble(healthy(name))


@pytest.mark.parametrize("c", software_checks(), ids=lambda c: c.id)
def test_an_explanation_has_its_parts(c: registry.Check) -> None:
    for part in ("Looks at:", "Why it matters:", "Fix:", "Does not apply:"):
        assert part in c.doc, part
    assert c.reads


def test_checks_of_the_environment_are_of_the_process() -> None:
    node_only = {c.id for c in software_checks() if c.scope is Scope.NODE}
    assert {i for i in node_only if i.startswith("nccl.")} == set()
    assert {i for i in node_only if i.startswith("limits.")} == {"limits.remove-ipc"}


def test_every_finding_tells_evidence_rule_consequence_and_fix() -> None:
    names = ("h01_software_rdma", "h15_hca_prefix", "h16_socket_ifname_prefix", "h17_gid_link_local")
    names += ("h18_peermem_not_registered", "h21_port_polling", "h27_small_limits", "nic_wrong_socket")
    for name in names:
        for f in every(healthy(name)):
            assert f.evidence, f
            assert f.rule, f
            assert f.consequence, f
            assert f.fix, f


def test_h01_software_rdma_is_a_note_beside_real_nics() -> None:
    c = healthy("h01_software_rdma")
    assert one("rdma.software-device", c).state is State.NOTE
    assert len(c.topology.nics) == 10
    assert trouble(c) == set()


def test_h15_the_name_of_one_nic_matches_three() -> None:
    f = one("nccl.hca-prefix", healthy("h15_hca_prefix"))
    assert f.state is State.WARN
    assert "mlx5_1, mlx5_10, mlx5_11" in f.title
    assert f.fix is not None
    assert f.fix.startswith("NCCL_IB_HCA==mlx5_1:1")
    assert trouble(healthy("h15b_hca_exact")) == set()


def test_h16_three_interfaces_match() -> None:
    f = one("nccl.interface-ambiguous", healthy("h16_socket_ifname_prefix"))
    assert f.state is State.WARN
    assert "3 interfaces" in f.title
    for words in ("bond0 (MTU 8888, 192.168.42.7)", "bond0.2973 (MTU 1500, 10.0.106.189)", "link-local only"):
        assert words in f.title
    assert "most likely bond0" in f.title
    assert f.fix is not None
    assert "NCCL_SOCKET_IFNAME==bond0" in f.fix


def test_h17_the_gid_is_link_local() -> None:
    f = one("rdma.gid-index", healthy("h17_gid_link_local"))
    assert f.state is State.FAIL
    assert "index 3" in f.title
    assert f.fix is not None
    assert "NCCL_IB_GID_INDEX=3" in f.fix


def test_h18_neither_road_with_the_proprietary_module() -> None:
    c = healthy("h18_peermem_not_registered")
    f = one("rdma.no-gdr-path", c)
    assert f.state is State.FAIL
    assert "not registered" in f.title
    assert f.fix is not None
    assert f.fix.index("open kernel modules") < f.fix.index("after the RDMA stack")


def test_h18_the_open_module_passes_over_dma_buf() -> None:
    assert trouble(healthy("h18b_peermem_not_registered_open")) == set()


def test_h19_counters_that_cannot_be_read_lose_only_themselves() -> None:
    c = healthy("h19_unreadable_counter")
    assert trouble(c) == set()
    assert state("rdma.counters", c) is State.OK


def test_h21_a_polling_port_warns_and_its_rate_is_not_judged() -> None:
    c = healthy("h21_port_polling")
    assert trouble(c) == {("rdma.port-down", State.WARN)}
    assert "Polling" in one("rdma.port-down", c).title


def test_h24_gpu_memory_nodes_are_not_far_nodes() -> None:
    c = healthy("h24_gpu_memory_nodes")
    assert trouble(c) == set()
    assert [g.memory_node for g in c.topology.gpus] == [2, 10, 18, 26]
    assert [g.cpu_node for g in c.topology.gpus] == [0, 0, 1, 1]
    assert findings("numa.process-far-from-gpus", c) == ()


def test_h27_memlock_fails_beside_rdma_and_shm_hardly_matters_there() -> None:
    c = healthy("h27_small_limits")
    assert one("limits.memlock", c).state is State.FAIL
    assert one("limits.shm-small", c).state is State.NOTE


def test_h27_without_rdma_memlock_does_not_apply_and_shm_warns() -> None:
    c = healthy("h27b_small_limits_no_rdma")
    assert state("limits.memlock", c) is State.NOT_APPLICABLE
    assert trouble(c) == {("limits.shm-small", State.WARN)}


def test_h28_odd_bytes_change_nothing() -> None:
    def told(c: Context) -> list[tuple[str, State, str]]:
        return [(f.id, f.state, f.title) for f in every(c)]

    assert told(healthy("h28_odd_bytes")) == told(variant("hgx_h100_cx7"))
