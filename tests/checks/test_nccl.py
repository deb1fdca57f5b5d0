"""Each check of NCCL's settings fires on one planted setting, and is quiet on its near miss."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

from tests.checks.software import findings, healthy, one, state, variant, with_env, with_nccl, with_node
from tests.checks.support import software_checks
from tests.probes.answers import host_of
from topocheck.checks import registry
from topocheck.host.base import HostError
from topocheck.model.base import Missing, Reason, State
from topocheck.model.system import Setting, SettingFacts
from topocheck.probes.settings import read

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
    assert "the space next to its name" in f.title
    assert findings("nccl.conf-shadowed", variant(HGX, files={"/etc/nccl.conf": "NCCL_IB_HCA=mlx5_0\n"})) == ()


def test_a_file_that_may_not_be_read_warns() -> None:
    c = healthy(HGX)
    facts = msgspec.structs.replace(c.node.settings, conf_files={"/etc/nccl.conf": Missing(Reason.DENIED)})
    f = one("nccl.conf-shadowed", with_node(c, settings=facts))
    assert (f.state, f.subject) == (State.WARN, "/etc/nccl.conf")


@pytest.mark.parametrize("answer", [HostError(Reason.NOT_RECORDED, "conf"), HostError(Reason.TIMED_OUT, "conf")])
def test_a_file_that_nobody_could_look_at_is_unknown(answer: HostError) -> None:
    settings = read(host_of({"environ:": {}, "process:": {"home": ""}, "conf:/etc/nccl.conf": answer}))
    f = one("nccl.conf-shadowed", with_node(healthy(HGX), settings=settings))
    assert (f.state, f.fix) == (State.UNKNOWN, None)


@pytest.mark.parametrize(("environment", "warned"), [({"NCCL_CONF_FILE": "/x.conf"}, ["/x.conf"]), ({}, [])])
def test_a_settings_file_that_is_named_and_not_there_warns(environment: dict[str, str], warned: list[str]) -> None:
    """~/.nccl.conf and /etc/nccl.conf need not be there; what NCCL_CONF_FILE names should."""
    absent = HostError(Reason.ABSENT, "ENOENT")
    conf = dict.fromkeys(("conf:/x.conf", "conf:/home/u/.nccl.conf", "conf:/etc/nccl.conf"), absent)
    settings = read(host_of({"environ:": environment, "process:": {"home": "/home/u"}, **conf}))
    found = findings("nccl.conf-shadowed", with_node(healthy(HGX), settings=settings))
    assert [f.subject for f in found] == warned
    assert all("there is no such file" in f.title and "unset NCCL_CONF_FILE" in str(f.fix) for f in found)


def test_a_settings_file_that_is_none_warns() -> None:
    folder = HostError(Reason.UNSUPPORTED, "EISDIR")
    settings = read(host_of({"environ:": {}, "process:": {"home": ""}, "conf:/etc/nccl.conf": folder}))
    assert one("nccl.conf-shadowed", with_node(healthy(HGX), settings=settings)).state is State.WARN


def _with_switch_gpus(n: int) -> registry.Context:
    """Return an NVSwitch machine with NVLS off, of which `n` GPUs are on the switch."""
    c = with_env(HGX, NCCL_NVLS_ENABLE="0")
    (group,) = c.topology.nvlink_groups
    group = msgspec.structs.replace(group, gpus=group.gpus[:n])
    return msgspec.structs.replace(c, topology=msgspec.structs.replace(c.topology, nvlink_groups=(group,)))


@pytest.mark.parametrize(("gpus", "expected"), [(2, State.NOTE), (4, State.NOTE), (5, State.WARN), (8, State.WARN)])
def test_nvls_off_costs_from_five_gpus_up(gpus: int, expected: State) -> None:
    """Public measurements (NVIDIA/nccl issue 1455): ring and NVLS are equal for 2 to 4 H100, NVLS wins from 5."""
    f = one("nccl.transport-disabled", _with_switch_gpus(gpus))
    assert f.state is expected
    assert ("as fast" in f.title) is (expected is State.NOTE)
    assert ("collectives lose" in f.consequence) is (expected is State.WARN)


def test_nvls_off_costs_where_the_switch_joins_hosts() -> None:
    """A tray of four GPUs is a part of an NVLink domain of 72."""
    assert one("nccl.transport-disabled", with_env("gb200_tray", NCCL_NVLS_ENABLE="0")).state is State.WARN


def test_relaxed_ordering_off_matters_in_guests() -> None:
    assert one("nccl.harmful-value", with_env("cloud_vm_17nic", NCCL_IB_PCI_RELAXED_ORDERING="0")).state is State.WARN
    assert findings("nccl.harmful-value", with_env(HGX, NCCL_IB_PCI_RELAXED_ORDERING="0")) == ()


def test_an_exact_name_is_not_ambiguous() -> None:
    assert findings("nccl.interface-ambiguous", variant("h16_socket_ifname_prefix")) != ()
    for good in ("=bond0", "bon", "bond0,bond0.2973,bond0.2973.1"):
        c = variant("h16_socket_ifname_prefix", environment={"NCCL_SOCKET_IFNAME": good})
        assert findings("nccl.interface-ambiguous", c) == (), good


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


@run_settings(max_examples=25)
@given(st.text(max_size=40))
def test_any_value_of_any_setting_is_judged(value: str) -> None:
    settings = tuple(
        Setting(name=n, value=value, source="environment")
        for n in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_IB_GID_INDEX", "NCCL_NET")
    )
    c = with_node(healthy(HGX), settings=SettingFacts(nccl=settings))
    for result, _ in registry.run(software_checks(), c):
        assert "topocheck's own fault" not in result.detail
