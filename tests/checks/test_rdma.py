"""Each check of RDMA fires on one planted fault, and is quiet on its near miss."""

from __future__ import annotations

import msgspec
import pytest

from tests.checks import support
from tests.checks.software import findings, healthy, one, run, state, variant, with_env, with_nccl, with_node
from tests.machines.builder import build
from tests.machines.description import load
from topocheck.checks import registry
from topocheck.checks.rdma.gids import best, is_ipv4, is_link_local
from topocheck.model.base import Missing, Reason, State, Verdict
from topocheck.model.net import Gid
from topocheck.policy.types import CheckPolicy, Expect, Policy

HGX = "hgx_h100_cx7"
PORT = "/sys/bus/pci/devices/0000:{bus}:00.0/infiniband/{name}/ports/1"
MLX0 = PORT.format(bus="19", name="mlx5_0")


@pytest.mark.parametrize(
    ("told", "expected", "words"),
    [
        ("DOWN/Polling", State.WARN, "no signal from the other end"),
        ("DOWN/Disabled", State.NOTE, "switched off"),
        ("INIT/LinkUp", State.WARN, "no subnet manager"),
        ("DOWN/LinkUp", State.WARN, "the link is up, and the port is not"),
    ],
)
def test_a_port_that_is_down_is_told_apart_by_how(told: str, expected: State, words: str) -> None:
    f = one("rdma.port-down", variant(HGX, patch={"mlx5_5": {"state": told}}))
    assert f.state is expected
    assert words in f.title
    assert "mlx5_5" in f.subject
    assert any(e.source.endswith("phys_state") for e in f.evidence)


def test_a_port_that_is_down_fails_where_the_policy_expects_a_rate() -> None:
    c = variant(HGX, patch={"mlx5_5": {"state": "DOWN/Polling"}})
    c = msgspec.structs.replace(c, policy=Policy(expect=Expect(nic_rate_gbit_s=400)))
    assert state("rdma.port-down", c) is State.FAIL


def test_a_port_nobody_cabled_is_a_note() -> None:
    # Both storage NICs wait for a partner: of the port's kind no other is up.
    c = variant(HGX, patch={"mlx5_8": {"state": "DOWN/Polling"}, "mlx5_9": {"state": "DOWN/Polling"}})
    assert {f.state for f in findings("rdma.port-down", c)} == {State.NOTE}


def test_half_of_the_ports_cabled_looks_like_design() -> None:
    down = {f"mlx5_{i}": {"state": "DOWN/Polling"} for i in range(4)}
    assert {f.state for f in findings("rdma.port-down", variant(HGX, patch=down))} == {State.NOTE}
    down = {f"mlx5_{i}": {"state": "DOWN/Polling"} for i in range(3)}
    assert {f.state for f in findings("rdma.port-down", variant(HGX, patch=down))} == {State.WARN}


def test_one_card_left_in_the_other_mode_warns() -> None:
    f = one("rdma.link-layer-differs", variant(HGX, patch={"mlx5_4": {"layer": "Ethernet"}}))
    assert f.state is State.WARN
    assert "mlx5_4" in f.subject
    assert f.fix is not None
    assert "LINK_TYPE_P1=1" in f.fix  # its siblings speak InfiniBand
    two = variant(HGX, patch={"mlx5_4": {"layer": "Ethernet"}, "mlx5_5": {"layer": "Ethernet"}})
    assert findings("rdma.link-layer-differs", two) == ()
    assert findings("rdma.link-layer-differs", healthy("dgx_a100")) == ()


def test_the_rate_of_a_port_that_is_down_is_not_judged() -> None:
    c = variant(HGX, patch={"mlx5_5": {"state": "DOWN/Polling", "rate": "10_Gb/sec_(1X_SDR)"}})
    assert findings("rdma.port-slower-than-siblings", c) == ()


def test_one_port_at_half_rate_fails_with_the_share_that_is_left() -> None:
    f = one("rdma.port-slower-than-siblings", variant(HGX, patch={"mlx5_3": {"rate": "200_Gb/sec_(2X_NDR)"}}))
    assert f.state is State.FAIL
    assert "mlx5_3" in f.subject
    assert "50 %" in f.consequence  # 200 of 400 Gb/s
    assert "200 Gb/sec (2X NDR)" in f.title
    assert "7 of its kind" in f.title


def test_half_of_the_ports_at_another_rate_looks_like_design() -> None:
    slow = {f"mlx5_{i}": {"rate": "200_Gb/sec_(4X_HDR)"} for i in range(4)}
    assert {f.state for f in findings("rdma.port-slower-than-siblings", variant(HGX, patch=slow))} == {State.NOTE}


def test_a_rate_that_cannot_be_read_is_unknown() -> None:
    c = variant(HGX, files={f"{MLX0}/rate": "50 GB/sec"})
    assert one("rdma.port-slower-than-siblings", c).state is State.UNKNOWN


def test_mixed_link_layers_are_a_note_until_the_setting_chooses() -> None:
    f = one("rdma.mixed-link-layers", healthy(HGX))
    assert f.state is State.NOTE
    assert "Ethernet: mlx5_8, mlx5_9" in f.title
    assert findings("rdma.mixed-link-layers", with_env(HGX, NCCL_IB_HCA="=mlx5_0")) == ()


def test_software_rdma_is_a_note_and_real_devices_are_not() -> None:
    assert one("rdma.software-device", variant(HGX, software_rdma=["rxe0"])).subject == "rxe0"
    assert state("rdma.software-device", healthy(HGX)) is State.NOT_APPLICABLE


def test_no_module_and_no_dma_buf_is_no_road() -> None:
    c = variant(HGX, driver={"flavor": "proprietary"}, modules={"nvidia_peermem": {"absent": True}})
    f = one("rdma.no-gdr-path", c)
    assert f.state is State.WARN
    assert "nvidia_peermem is not loaded" in f.title
    assert "proprietary" in f.title
    assert f.fix is not None
    assert "modprobe nvidia-peermem" in f.fix


def test_one_road_is_enough() -> None:
    open_module = variant(HGX, modules={"nvidia_peermem": {"absent": True}})
    by_peermem = variant(HGX, driver={"flavor": "proprietary"})
    assert findings("rdma.no-gdr-path", open_module) == ()
    assert findings("rdma.no-gdr-path", by_peermem) == ()


def test_without_an_active_port_no_road_is_needed() -> None:
    down = {f"mlx5_{i}": {"state": "DOWN/Polling"} for i in range(10)}
    c = variant(HGX, patch=down, modules={"nvidia_peermem": {"absent": True}}, driver={"flavor": "proprietary"})
    assert state("rdma.no-gdr-path", c) is State.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("version", "words"),
    [("2.22.3", "does not see the module"), ("2.23.4", "assumes that the module works")],
)
def test_what_nccl_makes_of_an_unregistered_module_depends_on_its_version(version: str, words: str) -> None:
    c = with_nccl(healthy("h18_peermem_not_registered"), version)
    f = one("rdma.peermem-not-registered", c)
    assert f.state is State.WARN
    assert words in f.consequence


def test_an_unregistered_module_does_not_matter_beside_dma_buf_unless_nccl_is_older_than_it() -> None:
    c = healthy("h18b_peermem_not_registered_open")
    assert {v.dma_buf for v in c.gpudirect.rdma} == {Verdict.YES}
    assert findings("rdma.peermem-not-registered", with_nccl(c, "2.21.5")) == ()
    assert state("rdma.peermem-not-registered", with_nccl(c, "2.12.12")) is State.WARN


def test_one_gpu_whose_nic_is_missing_stands_out_from_its_siblings() -> None:
    f = one("rdma.nearest-nic-far", variant(HGX, patch={"mlx5_2": {"hidden": 1}}))
    assert f.state is State.WARN
    assert "GPU2" in f.subject
    assert "NODE" in f.title


def test_a_near_nic_that_is_down_is_no_matter_of_place() -> None:
    assert findings("rdma.nearest-nic-far", variant(HGX, patch={"mlx5_2": {"state": "DOWN/Polling"}})) == ()


def test_the_only_nic_on_the_other_socket_warns() -> None:
    f = one("rdma.nearest-nic-far", healthy("nic_wrong_socket"))
    assert (f.state, f.subject) == (State.WARN, "node")
    assert "SYS" in f.title


@pytest.mark.parametrize("name", ["gb200_tray", "cloud_vm_17nic", "h26_vm_flat_a800"])
def test_far_nics_are_not_judged_on_grace_and_in_guests(name: str) -> None:
    assert state("rdma.nearest-nic-far", healthy(name)) is State.NOT_APPLICABLE


def test_a_guest_with_ats_off_gets_a_note() -> None:
    off = variant("cloud_vm_17nic", patch={"mlx5_2": {"ats": "off"}})
    assert {f.state for f in findings("rdma.vf-without-ats", off)} <= {State.NOTE, State.UNKNOWN}
    assert any("mlx5_2" in f.subject and f.state is State.NOTE for f in findings("rdma.vf-without-ats", off))
    assert state("rdma.vf-without-ats", healthy(HGX)) is State.NOT_APPLICABLE


def _without_ats() -> registry.Context:
    """Return the guest whose NICs show their whole config space, and no ATS capability in it."""
    d = {k: v for k, v in load("cloud_vm_17nic").items() if k != "patch"}
    return support.context(support.facts(build(d, "cloud_vm_17nic")))


def test_a_guest_whose_nics_have_no_ats_gets_a_note_and_no_advice_to_be_root() -> None:
    c = _without_ats()
    nics = [n for n in c.topology.nics if n.pci is not None]
    assert {n.pci.ats_supported for n in nics if n.pci is not None} == {False}
    found = findings("rdma.vf-without-ats", c)
    assert found
    assert {f.state for f in found} == {State.NOTE}
    assert all("no ATS capability" in f.title and f.evidence[0].source.endswith("config") for f in found)


def test_gpudirect_rdma_without_ats_is_degraded_in_a_guest() -> None:
    near = [v for v in _without_ats().gpudirect.rdma if any("PXB" in r.text or "PIX" in r.text for r in v.reasons)]
    assert near
    for v in near:
        assert v.verdict is Verdict.DEGRADED
        words = " ".join(r.text for r in v.reasons)
        assert "no ATS capability" in words
        assert "root to read" not in words


def test_ats_is_quoted_by_its_register() -> None:
    off = variant("cloud_vm_17nic", patch={"mlx5_2": {"ats": "off"}})
    steps = [r for v in off.gpudirect.rdma if v.to_label == "mlx5_2" for r in v.reasons if "ATS is off" in r.text]
    assert steps
    assert all(e.source.endswith("/config ATSCtl") for r in steps for e in r.evidence)


def test_ats_that_cannot_be_read_is_unknown() -> None:
    assert state("rdma.vf-without-ats", variant("cloud_vm_17nic", system={"root": False})) is State.UNKNOWN


def test_one_nic_with_other_firmware_warns() -> None:
    f = one("rdma.siblings-differ", variant(HGX, patch={"mlx5_6": {"firmware": "28.36.1010"}}))
    assert f.state is State.WARN
    assert "mlx5_6" in f.subject
    assert "28.36.1010" in f.title
    assert state("rdma.siblings-differ", healthy(HGX)) is State.OK


def test_another_board_of_the_same_model_is_a_note() -> None:
    f = one("rdma.siblings-differ", variant(HGX, patch={"mlx5_6": {"board": "MT_0000000970"}}))
    assert f.state is State.NOTE
    assert "MT_0000000970" in f.title


def test_a_container_without_verbs_devices_warns() -> None:
    c = variant(HGX, system={"marks": ["/.dockerenv"]}, files={"/dev/infiniband": {"remove": True}})
    f = one("rdma.verbs-device-missing", c)
    assert f.state is State.WARN
    assert f.fix is not None
    assert "--device=/dev/infiniband" in f.fix
    assert state("rdma.verbs-device-missing", healthy(HGX)) is State.OK
    assert state("rdma.verbs-device-missing", healthy("l40s_x8")) is State.NOT_APPLICABLE


def test_a_container_with_its_share_of_nics_is_a_note() -> None:
    net = msgspec.structs.replace(healthy(HGX).node.net, verbs_devices=("rdma_cm", "uverbs3"))
    assert one("rdma.verbs-device-missing", with_node(healthy(HGX), net=net)).state is State.NOTE


def test_verbs_devices_that_may_not_be_opened_warn() -> None:
    net = msgspec.structs.replace(healthy(HGX).node.net, verbs_accessible=False)
    assert "may not be opened" in one("rdma.verbs-device-missing", with_node(healthy(HGX), net=net)).title


def test_a_link_that_fell_often_warns_against_quiet_siblings() -> None:
    c = variant(HGX, files={f"{MLX0}/counters/link_downed": "57"})
    f = one("rdma.counters", c)
    assert f.state is State.WARN
    assert "link downs: 57" in f.title
    assert any(e.source.endswith("link_downed") and e.raw == "57" for e in f.evidence)


def test_a_full_counter_says_that_it_is_full() -> None:
    # As a public capture of eight ConnectX-7 shows: 255 on one port, which is all that 8 bits hold, 0 on the others,
    # and 14 broken packets on each.
    told = {f"{n.rdma.source}/ports/1/counters/port_rcv_errors": "14" for n in healthy(HGX).topology.nics if n.rdma}
    f = one("rdma.counters", variant(HGX, files={**told, f"{MLX0}/counters/link_downed": "255"}))
    assert f.state is State.WARN
    assert "255 or more" in f.title


def test_few_flaps_are_quiet_and_the_policy_may_ask_for_less() -> None:
    c = variant(HGX, files={f"{MLX0}/counters/link_downed": "3"})
    assert findings("rdma.counters", c) == ()
    strict = Policy(checks={"rdma.counters": CheckPolicy(thresholds={"link_downed": 2})})
    # 3 flaps are above that, and not 10 times what the siblings have (none counts as one).
    assert state("rdma.counters", msgspec.structs.replace(c, policy=strict)) is State.NOTE


def test_a_count_that_all_siblings_share_is_a_note() -> None:
    at = {f"{n.rdma.source}/ports/1/hw_counters/rnr_nak_retry_err": "500" for n in healthy(HGX).topology.nics if n.rdma}
    assert {f.state for f in findings("rdma.counters", variant(HGX, files=at))} == {State.NOTE}


def test_the_gid_must_be_v2_on_a_routable_address() -> None:
    at = {"NCCL_IB_GID_INDEX": "3"}
    c = variant("h17_gid_link_local", environment=at)
    assert run("rdma.gid-index", c)[0].state is State.OK
    v1 = variant("h17_gid_link_local", environment={"NCCL_IB_GID_INDEX": "2"})
    assert one("rdma.gid-index", v1).state is State.WARN
    empty = variant("h17_gid_link_local", environment={"NCCL_IB_GID_INDEX": "6"})
    assert one("rdma.gid-index", empty).state is State.FAIL
    auto = variant("h17_gid_link_local", environment={"NCCL_IB_GID_INDEX": "-1"})
    assert state("rdma.gid-index", auto) is State.NOT_APPLICABLE


def test_an_old_nccl_takes_index_0_by_itself() -> None:
    c = variant("h17_gid_link_local", environment={"NCCL_IB_GID_INDEX": ""})
    assert state("rdma.gid-index", c) is State.NOT_APPLICABLE
    assert one("rdma.gid-index", with_nccl(c, "2.20.5")).state is State.NOTE
    assert state("rdma.gid-index", with_nccl(c, "2.21.5")) is State.NOT_APPLICABLE


def test_a_gid_whose_type_a_container_hides_is_unknown() -> None:
    nic = next(n for n in healthy("h17_gid_link_local").topology.nics)
    assert nic.rdma is not None
    hidden = {f"{nic.rdma.source}/ports/1/gid_attrs/types/1": {"error": "EINVAL"}}
    assert one("rdma.gid-index", variant("h17_gid_link_local", files=hidden)).state is State.UNKNOWN


def test_one_setting_is_one_finding_however_many_ports_it_fits_badly() -> None:
    c = with_env("h66_mtu_9000", NCCL_IB_GID_INDEX="97")
    f = one("rdma.gid-index", c)
    ports = [n for n in c.topology.nics if n.rdma and any(p.link_layer == "Ethernet" for p in n.rdma.ports)]
    assert len(ports) > 1
    assert set(f.devices) == {n.address for n in ports}
    assert f.subject == "NCCL_IB_GID_INDEX"
    assert f.title.startswith("index 97 of mlx5_0")
    assert "is empty" in f.title


def test_gid_index_does_not_apply_to_infiniband() -> None:
    c = with_env(HGX, NCCL_IB_GID_INDEX="1", NCCL_IB_HCA="=mlx5_0,mlx5_1")
    assert state("rdma.gid-index", c) is State.NOT_APPLICABLE


def test_the_best_gid_is_v2_on_ipv4() -> None:
    local, mapped = "fe80:0000:0000:0000:0ac0:ebff:feda:1cfb", "0000:0000:0000:0000:0000:ffff:c800:d106"
    table = (
        Gid(index=0, gid=local, type="IB/RoCE v1"),
        Gid(index=1, gid=local, type="RoCE v2"),
        Gid(index=2, gid=mapped, type="IB/RoCE v1"),
        Gid(index=3, gid=mapped, type="RoCE v2"),
    )
    found = best(table)
    assert found is not None
    assert found.index == 3
    assert best(table[:3]) is None
    assert (is_link_local(local), is_ipv4(local)) == (True, False)
    assert (is_link_local(mapped), is_ipv4(mapped)) == (False, True)


def test_devices_that_cannot_be_read_are_unknown_and_absent_ones_do_not_apply() -> None:
    c = healthy(HGX)
    late = with_node(c, net=msgspec.structs.replace(c.node.net, rdma=Missing(Reason.TIMED_OUT, "list")))
    late = msgspec.structs.replace(late, topology=msgspec.structs.replace(late.topology, nics=()))
    assert one("rdma.port-down", late).state is State.UNKNOWN
    assert "cannot be determined" in run("rdma.no-gdr-path", late)[0].detail
    assert state("rdma.port-down", healthy("l40s_x8")) is State.NOT_APPLICABLE


_COMPUTE = load(HGX)["pci"]["tree"]
_STORAGE = """
root 0000:d8 node=1
  rp 01.0 5x16
    cx7 rdma=mlx5_10 {0}
root 0000:dc node=1
  rp 01.0 5x16
    cx7 rdma=mlx5_11 {0}
"""


def _with_storage(options: str, **more: dict[str, dict[str, str]]) -> registry.Context:
    """Return eight NICs beside GPUs and two of the same model on root ports of their own."""
    return variant(HGX, pci={"tree": _COMPUTE + _STORAGE.format(options)}, **more)


def test_storage_nics_of_the_same_model_are_no_siblings_of_those_beside_gpus() -> None:
    assert findings("rdma.port-slower-than-siblings", _with_storage("rate=200_Gb/sec_(4X_HDR)")) == ()
    assert findings("rdma.siblings-differ", _with_storage("firmware=28.36.1010")) == ()
    down = findings("rdma.port-down", _with_storage("state=DOWN/Polling"))
    assert [f.state for f in down] == [State.NOTE, State.NOTE]
    assert all("no GPU is nearest" in f.consequence for f in down)


def test_one_slow_port_among_those_beside_gpus_still_fails_beside_storage() -> None:
    c = _with_storage("rate=200_Gb/sec_(4X_HDR)", patch={"mlx5_3": {"rate": "200_Gb/sec_(2X_NDR)"}})
    f = one("rdma.port-slower-than-siblings", c)
    assert f.state is State.FAIL
    assert "mlx5_3" in f.subject


def test_two_slow_ports_warn_where_gpus_have_no_other_nic_as_near() -> None:
    slow = {f"mlx5_{i}": {"rate": "200_Gb/sec_(4X_HDR)"} for i in (2, 3)}
    assert {f.state for f in findings("rdma.port-slower-than-siblings", variant(HGX, patch=slow))} == {State.WARN}


def test_a_group_of_slow_ports_beside_faster_ones_as_near_is_a_note() -> None:
    # Each switch of this board holds two GPUs and two NICs of one model: one pair of NICs may be on another fabric.
    c = healthy("dgx_a100")
    near = next(n.nics for n in c.topology.nearest_nics if len(n.nics) > 1)
    other = next(n.nics for n in c.topology.nearest_nics if len(n.nics) > 1 and n.nics != near)
    names = {n.address: n.label for n in c.topology.nics}
    slow = {names[a[0]]: {"rate": "100_Gb/sec_(4X_EDR)"} for a in (near, other)}
    found = findings("rdma.port-slower-than-siblings", variant("dgx_a100", patch=slow))
    assert [f.state for f in found] == [State.NOTE, State.NOTE]


def test_an_unused_second_port_does_not_speak_of_gpus_far_away() -> None:
    off = {name: {"state": "DOWN/Disabled"} for name in ("mlx5_1", "mlx5_3")}
    found = findings("rdma.port-down", variant("rtx6000ada_x4", patch=off))
    assert [f.state for f in found] == [State.NOTE, State.NOTE]
    assert all("the card's other port" in f.consequence and "farther" not in f.consequence for f in found)
    both = {name: {"state": "DOWN/Disabled"} for name in ("mlx5_0", "mlx5_1")}
    found = findings("rdma.port-down", variant("rtx6000ada_x4", patch=both))
    assert not any("other port" in f.consequence for f in found)
