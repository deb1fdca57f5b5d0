"""Each check of NCCL's settings fires on one planted setting, and is quiet on its near miss."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

from tests.checks.software import findings, healthy, one, own_checks, state, variant, with_env, with_nccl, with_node
from topocheck.checks import registry
from topocheck.checks.settings import read_names, shadowed_twins
from topocheck.model.base import Missing, Reason, State
from topocheck.model.system import Setting, SettingFacts

HGX, L40S, RTX = "hgx_h100_cx7", "l40s_x8", "rtx4090_x8"


def test_without_settings_nothing_is_judged() -> None:
    for id_ in ("nccl.unknown-setting", "nccl.removed-setting", "nccl.value-ignored", "nccl.transport-disabled"):
        assert state(id_, healthy(HGX)) is State.NOT_APPLICABLE


def test_a_misspelt_name_gets_the_nearest_right_one() -> None:
    f = one("nccl.unknown-setting", with_env(HGX, NCCL_P2P_DISABEL="1"))
    assert f.state is State.WARN
    assert f.fix == "NCCL_P2P_DISABLE=1"
    assert f.evidence[0].source == "environment"


@pytest.mark.parametrize("name", ["NCCL_DEBUG_SUBSYS", "NCCL_TESTS_DEVICE", "NCCL_ASYNC_ERROR_HANDLING"])
def test_names_that_nccl_or_its_companions_read_are_no_mistakes(name: str) -> None:
    assert findings("nccl.unknown-setting", with_env(HGX, **{name: "1"})) == ()


def test_a_removed_name_is_judged_by_the_installed_version() -> None:
    c = with_env(HGX, NCCL_LL_THRESHOLD="0")  # removed in 2.5.6
    assert one("nccl.removed-setting", with_nccl(c, "2.21.5")).state is State.WARN
    assert findings("nccl.removed-setting", with_nccl(c, "2.4.8")) == ()


def test_a_name_of_a_later_version_is_ignored_by_an_older_one() -> None:
    c = with_env(HGX, NCCL_MNNVL_CROSS_CLIQUE="1")  # since 2.30.3
    assert one("nccl.removed-setting", with_nccl(c, "2.21.5")).state is State.WARN
    assert findings("nccl.removed-setting", with_nccl(c, "2.30.3")) == ()


def test_a_deprecated_name_is_a_note() -> None:
    c = with_env(HGX, NCCL_MAX_NCHANNELS="16")  # deprecated in 2.17, still read
    assert one("nccl.removed-setting", with_nccl(c, "2.21.5")).state is State.NOTE


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("NCCL_IB_DISABLE", "true", "NCCL_IB_DISABLE=1"),
        ("NCCL_P2P_DISABLE", "2", "NCCL_P2P_DISABLE=1, or unset it"),
        ("NCCL_P2P_LEVEL", "sys", "NCCL_P2P_LEVEL=SYS"),
    ],
)
def test_values_that_nccl_misreads(name: str, value: str, fix: str) -> None:
    f = one("nccl.value-ignored", with_env(HGX, **{name: value}))
    assert f.state is State.WARN
    assert f.fix == fix


@pytest.mark.parametrize(("name", "value"), [("NCCL_IB_DISABLE", "0"), ("NCCL_P2P_LEVEL", "SYS"), ("NCCL_IB_TC", "")])
def test_values_that_nccl_understands(name: str, value: str) -> None:
    assert findings("nccl.value-ignored", with_env(HGX, **{name: value}, NCCL_DEBUG="WARN")) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_DEBUG", "info"), ("NCCL_CHECK_POINTERS", "1"), ("NCCL_CHECK_MODE", "DEBUG_GLOBAL")],
)
def test_debugging_that_was_left_on_is_a_note(name: str, value: str) -> None:
    f = one("nccl.debug-left-on", with_env(HGX, **{name: value}))
    assert (f.state, f.subject) == (State.NOTE, name)


def test_warnings_in_the_log_are_harmless_and_blocking_launches_are_told() -> None:
    assert findings("nccl.debug-left-on", with_env(HGX, NCCL_DEBUG="WARN")) == ()
    assert one("nccl.debug-left-on", with_env(HGX, CUDA_LAUNCH_BLOCKING="1")).state is State.NOTE
    assert findings("nccl.debug-left-on", with_env(HGX, CUDA_LAUNCH_BLOCKING="0")) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_P2P_LEVEL", "LOC"),
        ("NCCL_P2P_LEVEL", "0"),
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_NET", "socket"),
        ("NCCL_NET_GDR_LEVEL", "LOC"),
        ("NCCL_NET_GDR_READ", "0"),
    ],
)
def test_switching_off_what_the_machine_has_warns(name: str, value: str) -> None:
    f = one("nccl.transport-disabled", with_env(HGX, **{name: value}))
    assert f.state is State.WARN
    assert f.evidence[0].raw == f"{name}={value}"


def test_what_the_machine_does_not_have_is_not_missed() -> None:
    # rtx4090_x8: no peer access by its product, no RDMA NIC.
    assert findings("nccl.transport-disabled", with_env(RTX, NCCL_P2P_DISABLE="1", NCCL_IB_DISABLE="1")) == ()
    # On it shared memory is the only way between GPUs; on the NVLink machine it hardly matters.
    assert one("nccl.transport-disabled", with_env(RTX, NCCL_SHM_DISABLE="1")).state is State.WARN
    assert one("nccl.transport-disabled", with_env(HGX, NCCL_SHM_DISABLE="1")).state is State.NOTE


def test_dma_buf_off_matters_where_it_is_the_only_road() -> None:
    both = with_env(HGX, NCCL_DMABUF_ENABLE="0")
    alone = variant(HGX, environment={"NCCL_DMABUF_ENABLE": "0"}, modules={"nvidia_peermem": {"absent": True}})
    assert one("nccl.transport-disabled", both).state is State.NOTE
    assert one("nccl.transport-disabled", alone).state is State.WARN


@pytest.mark.parametrize(("name", "value"), [("NCCL_P2P_DISABLE", "0"), ("NCCL_NET", "IB"), ("NCCL_NET_GDR_READ", "1")])
def test_a_switch_that_is_not_on_is_quiet(name: str, value: str) -> None:
    assert findings("nccl.transport-disabled", with_env(HGX, **{name: value})) == ()


def test_values_of_the_harmful_table_without_a_check_of_their_own() -> None:
    assert one("nccl.harmful-value", with_env(HGX, NCCL_IB_TIMEOUT="0")).state is State.WARN
    assert findings("nccl.harmful-value", with_env(HGX, NCCL_IB_TIMEOUT="22", NCCL_P2P_DISABLE="1")) == ()


def test_a_file_that_loses_to_the_environment_is_told() -> None:
    files = {"/etc/nccl.conf": "NCCL_IB_HCA=mlx5_0\nNCCL_DEBUG=WARN\n"}
    c = variant(HGX, files=files, environment={"NCCL_IB_HCA": "mlx5_1", "NCCL_DEBUG": "WARN"})
    f = one("nccl.conf-shadowed", c)  # equal values are no finding
    assert f.state is State.NOTE
    assert f.evidence[0].source == "/etc/nccl.conf:1"
    assert "environment sets 'mlx5_1'" in f.title


def test_a_line_that_nccl_does_not_see_warns() -> None:
    f = one("nccl.conf-shadowed", variant(HGX, files={"/etc/nccl.conf": "NCCL_IB_HCA = mlx5_0\n"}))
    assert f.state is State.WARN
    assert "blank" in f.title
    assert findings("nccl.conf-shadowed", variant(HGX, files={"/etc/nccl.conf": "NCCL_IB_HCA=mlx5_0\n"})) == ()


def test_a_file_that_may_not_be_read_warns() -> None:
    c = healthy(HGX)
    facts = msgspec.structs.replace(c.node.settings, conf_files={"/etc/nccl.conf": "denied"})
    f = one("nccl.conf-shadowed", with_node(c, settings=facts))
    assert (f.state, f.subject) == (State.WARN, "/etc/nccl.conf")


def test_relaxed_ordering_off_matters_in_guests() -> None:
    assert one("nccl.harmful-value", with_env("cloud_vm_17nic", NCCL_IB_PCI_RELAXED_ORDERING="0")).state is State.WARN
    assert findings("nccl.harmful-value", with_env(HGX, NCCL_IB_PCI_RELAXED_ORDERING="0")) == ()


def test_interfaces_nobody_could_read_are_unknown() -> None:
    c = with_env(HGX, NCCL_SOCKET_IFNAME="eno1")
    late = with_node(c, net=msgspec.structs.replace(c.node.net, interfaces=Missing(Reason.TIMED_OUT)))
    assert one("nccl.interface-missing", late).state is State.UNKNOWN


def test_an_interface_that_is_not_here_fails() -> None:
    f = one("nccl.interface-missing", with_env(HGX, NCCL_SOCKET_IFNAME="ens99"))
    assert f.state is State.FAIL
    assert "no interface matches" in f.title
    for good in ("eno1", "en", "=eno1", "^docker,lo"):
        assert findings("nccl.interface-missing", with_env(HGX, NCCL_SOCKET_IFNAME=good)) == (), good
    assert one("nccl.interface-missing", with_env(HGX, NCCL_SOCKET_IFNAME="eno1,ens99")).state is State.WARN
    assert one("nccl.interface-missing", with_env(HGX, NCCL_SOCKET_IFNAME="=en")).state is State.FAIL


def test_a_node_without_gpus_runs_no_job() -> None:
    assert state("nccl.interface-missing", with_env("no_pci", NCCL_SOCKET_IFNAME="ens99")) is State.NOT_APPLICABLE


def test_an_interface_that_is_down_fails() -> None:
    c = variant(HGX, environment={"NCCL_SOCKET_IFNAME": "eno1"})
    interfaces = tuple(
        msgspec.structs.replace(i, operstate="down", flags=0x1002) if i.name == "eno1" else i
        for i in c.node.net.interfaces
    )
    net = msgspec.structs.replace(c.node.net, interfaces=interfaces)
    assert "eno1 is down" in one("nccl.interface-missing", with_node(c, net=net)).title


def test_an_exact_name_is_not_ambiguous() -> None:
    assert findings("nccl.interface-ambiguous", variant("h16_socket_ifname_prefix")) != ()
    for good in ("=bond0", "bon", "bond0,bond0.2973,bond0.2973.1"):
        c = variant("h16_socket_ifname_prefix", environment={"NCCL_SOCKET_IFNAME": good})
        assert findings("nccl.interface-ambiguous", c) == (), good


def test_a_bridge_that_nccl_may_choose_is_a_note() -> None:
    told = {"interfaces": {"br-5f2a": {}}, "addresses": {"br-5f2a": ["172.18.0.1/16"], "eno1": ["10.1.2.3/16"]}}
    f = one("nccl.bootstrap-interface", variant("l40s_x8", **told))
    assert f.state is State.NOTE
    assert "br-5f2a" in f.title
    chosen = variant("l40s_x8", **told, environment={"NCCL_SOCKET_IFNAME": "eno1"})
    assert state("nccl.bootstrap-interface", chosen) is State.NOT_APPLICABLE
    assert findings("nccl.bootstrap-interface", healthy("l40s_x8")) == ()


def test_a_nic_that_is_not_here_warns() -> None:
    f = one("nccl.hca-missing", with_env(HGX, NCCL_IB_HCA="mlx5_77"))
    assert f.state is State.WARN
    assert "TCP" in f.consequence
    some = one("nccl.hca-missing", with_env(HGX, NCCL_IB_HCA="=mlx5_0:1,mlx5_1:2"))
    assert "nothing here matches mlx5_1:2" in some.title  # its only port is 1
    for good in ("mlx5", "=mlx5_0:1,mlx5_1", "^mlx5_8,mlx5_9"):
        assert findings("nccl.hca-missing", with_env(HGX, NCCL_IB_HCA=good)) == (), good
    assert one("nccl.hca-missing", with_env(HGX, NCCL_IB_HCA="^mlx5")).state is State.WARN


def test_a_nic_that_is_down_warns() -> None:
    c = variant(HGX, environment={"NCCL_IB_HCA": "=mlx5_5"}, patch={"mlx5_5": {"state": "DOWN/Polling"}})
    assert "no active port of mlx5_5" in one("nccl.hca-missing", c).title


@pytest.mark.parametrize("good", ["=mlx5_1", "mlx5", "mlx5_2", "mlx5_1,mlx5_10,mlx5_11"])
def test_a_list_that_means_what_it_says(good: str) -> None:
    assert findings("nccl.hca-prefix", with_env("dgx_a100", NCCL_IB_HCA=good)) == ()


def test_excluding_by_a_beginning_is_told_too() -> None:
    f = one("nccl.hca-prefix", with_env("dgx_a100", NCCL_IB_HCA="^mlx5_1"))
    assert f.fix is not None
    assert f.fix.startswith("NCCL_IB_HCA=^=mlx5_1")


def test_nics_of_two_infiniband_subnets_are_a_note() -> None:
    nic = next(n for n in healthy(HGX).topology.nics if n.label == "mlx5_3")
    assert nic.rdma is not None
    other = {f"{nic.rdma.source}/ports/1/gids/0": "fec0:0000:0000:0002:0c42:a103:0016:054c"}
    f = one("nccl.cross-nic", variant(HGX, files=other))
    assert f.state is State.NOTE
    assert "fec0:0000:0000:0002" in f.title
    assert findings("nccl.cross-nic", variant(HGX, files=other, environment={"NCCL_CROSS_NIC": "0"})) == ()
    assert state("nccl.cross-nic", healthy(HGX)) is State.NOT_APPLICABLE


def test_forced_relaxed_ordering() -> None:
    assert (
        one("nccl.relaxed-ordering", with_env("cloud_vm_17nic", NCCL_IB_PCI_RELAXED_ORDERING="1")).state is State.NOTE
    )
    assert findings("nccl.relaxed-ordering", with_env(HGX, NCCL_IB_PCI_RELAXED_ORDERING="1")) == ()
    c = with_env(HGX, NCCL_IB_PCI_RELAXED_ORDERING="1")
    nics = tuple(
        msgspec.structs.replace(n, rdma=msgspec.structs.replace(n.rdma, physfn="0000:19:00.0"))
        for n in c.topology.nics
        if n.rdma
    )
    virtual = msgspec.structs.replace(c, topology=msgspec.structs.replace(c.topology, nics=nics))
    assert one("nccl.relaxed-ordering", virtual).state is State.WARN


def test_amd_hosts_lose_pcie_p2p_by_default() -> None:
    f = one("nccl.p2p-level-default", with_nccl(healthy("rtxpro6000_x8_asus"), "2.23.4"))
    assert f.state is State.NOTE
    assert state("nccl.p2p-level-default", with_nccl(healthy("rtxpro6000_x8_asus"), "2.22.3")) is State.NOT_APPLICABLE
    by_hand = with_env("rtxpro6000_x8_asus", NCCL_P2P_LEVEL="SYS")
    assert state("nccl.p2p-level-default", by_hand) is State.NOT_APPLICABLE
    assert state("nccl.p2p-level-default", healthy(HGX)) is State.NOT_APPLICABLE


def test_a_level_set_by_hand_is_a_note_where_it_changes_something() -> None:
    assert one("nccl.p2p-level-set", with_env("rtxpro6000_x8_asus", NCCL_P2P_LEVEL="SYS")).state is State.NOTE
    assert one("nccl.p2p-level-set", with_env(HGX, NCCL_P2P_LEVEL="NVL")).state is State.NOTE
    assert findings("nccl.p2p-level-set", with_env(HGX, NCCL_P2P_LEVEL="PXB")) == ()
    assert findings("nccl.p2p-level-set", with_env(HGX, NCCL_P2P_LEVEL="SYS")) == ()  # all pairs are on NVLink


def test_a_raised_gdr_level_is_a_note() -> None:
    assert one("nccl.gdr-level-set", with_env(HGX, NCCL_NET_GDR_LEVEL="SYS")).state is State.NOTE
    no_road = variant("h18_peermem_not_registered", environment={"NCCL_NET_GDR_LEVEL": "SYS"})
    assert "does nothing" in one("nccl.gdr-level-set", no_road).title
    assert state("nccl.gdr-level-set", with_env(HGX, NCCL_NET_GDR_LEVEL="PXB")) is State.NOT_APPLICABLE


def test_nvls_by_force() -> None:
    able = with_env(HGX, NCCL_NVLS_ENABLE="1")
    said = {g.cuda.multicast for g in able.topology.gpus if g.cuda is not None}
    assert one("nccl.nvls-forced", able).state is (State.NOTE if said == {True} else State.WARN)
    assert one("nccl.nvls-forced", with_env(RTX, NCCL_NVLS_ENABLE="1")).state is State.WARN
    assert state("nccl.nvls-forced", with_env(HGX, NCCL_NVLS_ENABLE="2")) is State.NOT_APPLICABLE
    assert state("nccl.nvls-forced", with_nccl(able, "2.17.1")) is State.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("value", "fires"),
    [("LL128", True), ("Simple,ll128", True), ("allreduce:LL128", True), ("^LL128", False), ("Simple", False)],
)
def test_ll128_by_force(value: str, fires: bool) -> None:
    assert bool(findings("nccl.ll128-forced", with_env(HGX, NCCL_PROTO=value))) is fires


def test_ll128_over_c2c_by_force() -> None:
    assert one("nccl.ll128-forced", with_env("gh200", NCCL_LL128_C2C="1")).state is State.WARN
    assert findings("nccl.ll128-forced", with_env(HGX, NCCL_LL128_C2C="1")) == ()


def test_passing_over_nvlink_faults() -> None:
    assert one("nccl.disabled-p2p-ignored", with_env(HGX, NCCL_IGNORE_DISABLED_P2P="1")).state is State.WARN
    assert state("nccl.disabled-p2p-ignored", with_env(HGX, NCCL_IGNORE_DISABLED_P2P="0")) is State.NOT_APPLICABLE


def test_a_topology_file_that_was_not_read_is_unknown() -> None:
    assert one("nccl.topo-file", with_env(HGX, NCCL_TOPO_FILE="/opt/topo.xml")).state is State.UNKNOWN
    assert state("nccl.topo-file", healthy(HGX)) is State.NOT_APPLICABLE


def test_lists_of_names_are_read_as_nccl_reads_them() -> None:
    names = read_names("^=mlx5_1:1,mlx5_2")
    assert (names.exclude, names.exact, names.words) == (True, True, (("mlx5_1", "1"), ("mlx5_2", "")))
    assert names.chosen(["mlx5_0", "mlx5_1", "mlx5_10", "mlx5_2"]) == ["mlx5_0", "mlx5_10"]
    assert read_names("mlx5_1").chosen(["mlx5_0", "mlx5_1", "mlx5_10"]) == ["mlx5_1", "mlx5_10"]
    assert read_names("^lo,docker").chosen(["lo", "docker0", "eth0"]) == ["eth0"]
    assert shadowed_twins(read_names("mlx5_1"), ["mlx5_1", "mlx5_12"]) == {"mlx5_1": ["mlx5_12"]}
    assert shadowed_twins(read_names("=mlx5_1"), ["mlx5_1", "mlx5_12"]) == {}


@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=8), max_size=6))
def test_any_text_is_a_list_of_names(text: str, present: list[str]) -> None:
    names = read_names(text)
    assert set(names.chosen(present)) <= set(present)
    assert all(word in present and others for word, others in shadowed_twins(names, present).items())


@run_settings(max_examples=25, deadline=None)
@given(st.text(max_size=40))
def test_any_value_of_any_setting_is_judged(value: str) -> None:
    settings = tuple(
        Setting(name=n, value=value, source="environment")
        for n in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_IB_GID_INDEX", "NCCL_NET")
    )
    c = with_node(healthy(HGX), settings=SettingFacts(nccl=settings))
    for result, _ in registry.run(own_checks(), c):
        assert "topocheck's own fault" not in result.detail
