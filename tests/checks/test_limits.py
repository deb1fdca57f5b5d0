"""Each check of limits fires on one planted fault, and is quiet on its near miss."""

from __future__ import annotations

import msgspec
import pytest

from tests.checks.software import findings, healthy, one, state, variant, with_nccl, with_node
from topocheck.checks.registry import Context
from topocheck.model.base import DENIED, Missing, Reason, State
from topocheck.policy.types import CheckPolicy, Policy

HGX, RTX = "hgx_h100_cx7", "rtx4090_x8"
MIB, GIB = 1 << 20, 1 << 30
DOCKER = {"cap_eff": "00000000a80425fb", "seccomp": 2}
"""Docker's default capabilities and filter: neither IPC_LOCK (bit 14) nor SYS_NICE (bit 23)."""


def limits(c: Context, **changed: object) -> Context:
    return with_node(c, limits=msgspec.structs.replace(c.node.limits, **changed))


def test_a_small_shm_warns_where_gpus_have_no_peer_access() -> None:
    f = one("limits.shm-small", variant(RTX, limits={"shm_bytes": 64 * MIB}))
    assert f.state is State.WARN
    assert "64 MiB" in f.title
    assert "28 of 28 GPU pairs" in f.title  # 8 * 7 / 2
    assert findings("limits.shm-small", variant(RTX, limits={"shm_bytes": GIB})) == ()


def test_a_small_shm_is_a_note_where_every_pair_has_peer_access() -> None:
    assert one("limits.shm-small", variant(HGX, limits={"shm_bytes": 64 * MIB})).state is State.NOTE


def test_a_full_shm_warns_too() -> None:
    f = one("limits.shm-small", variant(RTX, limits={"shm_bytes": 100 * GIB, "shm_free_bytes": 5 * MIB}))
    assert f.state is State.WARN
    assert "5 MiB free of 100 GiB" in f.title


def test_one_gpu_needs_no_shm_and_the_policy_may_ask_for_more() -> None:
    assert state("limits.shm-small", variant("laptop", limits={"shm_bytes": MIB})) is State.NOT_APPLICABLE
    c = variant(RTX, limits={"shm_bytes": 2 * GIB})
    more = Policy(checks={"limits.shm-small": CheckPolicy(thresholds={"min_bytes": 4 * GIB})})
    assert state("limits.shm-small", msgspec.structs.replace(c, policy=more)) is State.WARN
    assert one("limits.shm-small", limits(c, shm_total_bytes=DENIED)).state is State.UNKNOWN


def test_leftovers_warn_when_they_fill_shm() -> None:
    old, young = ("nccl-aXb3", 9637888, 1001, 7200), ("nccl-new1", 9637888, 1001, 20)
    c = healthy(HGX)
    f = one("limits.shm-leftovers", limits(c, shm_leftovers=(old, young)))
    assert f.state is State.NOTE
    assert "1 files" in f.title
    assert "1001" in str(f.fix)
    assert one("limits.shm-leftovers", limits(c, shm_leftovers=(old,), shm_total_bytes=16 * MIB)).state is State.WARN
    assert findings("limits.shm-leftovers", limits(c, shm_leftovers=(young,))) == ()


def test_locked_memory_fails_beside_rdma_only() -> None:
    told = {"limits": {"memlock": "8388608"}, "process": DOCKER}
    f = one("limits.memlock", variant(HGX, **told))
    assert f.state is State.FAIL
    assert "8 MiB" in f.title
    assert state("limits.memlock", variant(RTX, **told)) is State.NOT_APPLICABLE
    assert findings("limits.memlock", variant(HGX, process=DOCKER)) == ()


def test_locked_memory_without_the_devices_to_use_it_is_a_note() -> None:
    """A container without /dev/infiniband uses TCP, whatever it may lock; `rdma.verbs-device-missing` says so."""
    told = {"limits": {"memlock": "65536"}, "process": DOCKER}
    c = variant(HGX, **told, files={"/dev/infiniband": {"remove": True}})
    f = one("limits.memlock", c)
    assert f.state is State.NOTE
    assert "once they are" in f.consequence
    assert one("rdma.verbs-device-missing", c).state is State.WARN
    assert one("limits.memlock", variant(HGX, **told)).state is State.FAIL


def test_the_capability_lifts_the_limit_and_a_large_limit_is_a_note() -> None:
    assert one("limits.memlock", variant(HGX, limits={"memlock": "8388608"})).state is State.NOTE  # root, all bits
    small = one("limits.memlock", variant(HGX, limits={"memlock": "65536"}))
    assert small.consequence == (
        "a child of it without the capability cannot register memory with the NIC, and its job ends"
    )
    large = variant(HGX, limits={"memlock": str(64 * GIB)}, process=DOCKER)
    assert one("limits.memlock", large).state is State.NOTE
    assert one("limits.memlock", limits(large, memlock_bytes=DENIED)).state is State.UNKNOWN


def test_a_low_limit_beside_nics_nobody_could_read_is_unknown() -> None:
    c = variant(RTX, limits={"memlock": "8388608"})
    late = with_node(c, net=msgspec.structs.replace(c.node.net, rdma=Missing(Reason.TIMED_OUT)))
    assert one("limits.memlock", late).state is State.UNKNOWN


@pytest.mark.parametrize(("most", "expected"), [("512", State.WARN), ("1024", State.NOTE), ("131072", State.OK)])
def test_open_files(most: str, expected: State) -> None:
    assert state("limits.nofile", variant(HGX, limits={"nofile": most})) is expected


def test_an_unlimited_stack_warns_before_2_28() -> None:
    c = variant(HGX, limits={"stack": "unlimited"})
    assert one("limits.stack", c).state is State.NOTE
    assert one("limits.stack", with_nccl(c, "2.27.7")).state is State.WARN
    assert findings("limits.stack", with_nccl(c, "2.28.3")) == ()
    assert findings("limits.stack", with_nccl(healthy(HGX), "2.27.7")) == ()


def test_numa_calls_that_a_container_forbids() -> None:
    inside = {"system": {"marks": ["/.dockerenv"]}, "process": DOCKER}
    c = variant(HGX, **inside)
    assert one("limits.cumem-host", with_nccl(c, "2.25.1")).state is State.WARN
    assert state("limits.cumem-host", with_nccl(c, "2.26.3")) is State.NOT_APPLICABLE
    assert state("limits.cumem-host", with_nccl(c, "2.22.3")) is State.NOT_APPLICABLE
    nice = variant(HGX, system={"marks": ["/.dockerenv"]}, process={"cap_eff": "00000000a88425fb", "seccomp": 2})
    assert findings("limits.cumem-host", with_nccl(nice, "2.25.1")) == ()
    by_hand = variant(HGX, **inside, environment={"NCCL_CUMEM_HOST_ENABLE": "0"})
    assert state("limits.cumem-host", by_hand) is State.NOT_APPLICABLE


def test_a_node_with_cpus_and_no_memory() -> None:
    c = with_nccl(healthy(HGX), "2.25.1")
    bare = with_node(c, numa=msgspec.structs.replace(c.node.numa, has_memory="0"))
    assert "nodes 1 have CPUs" in one("limits.cumem-host", bare).title
    assert findings("limits.cumem-host", c) == ()


def test_remove_ipc_is_a_note_where_the_files_say_so() -> None:
    on = variant(HGX, files={"/etc/systemd/logind.conf": "[Login]\nRemoveIPC=yes\n"})
    assert one("limits.remove-ipc", on).state is State.NOTE
    off = variant(HGX, files={"/etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n"})
    assert findings("limits.remove-ipc", off) == ()
    assert state("limits.remove-ipc", healthy(HGX)) is State.NOT_APPLICABLE
