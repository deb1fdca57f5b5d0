"""NCCL's interfaces and NICs: each check fires on one planted setting, and is quiet on its near miss."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checks.software import findings, healthy, one, state, variant, with_env, with_node
from topocheck.checks.shared.settings import read_names, shadowed_twins
from topocheck.model.base import Missing, Reason, State
from topocheck.nccl.rules.settings import Settings
from topocheck.nccl.topofile.nic_selection import network_of, rdma_entries

HGX = "hgx_h100_cx7"


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


def test_a_network_that_is_not_here_fails() -> None:
    """With NCCL_NET=IB there is no way back to TCP or to a plugin: init fails where no device fits."""
    f = one("nccl.network-missing", with_env("l40s_x8", NCCL_NET="ib"))
    assert f.state is State.FAIL
    assert "no RDMA device with an active port" in f.title
    off = one("nccl.network-missing", with_env(HGX, NCCL_NET="IB", NCCL_IB_DISABLE="1"))
    assert "NCCL_IB_DISABLE=1" in off.title
    assert (
        "NCCL_IB_HCA=ens leaves" in one("nccl.network-missing", with_env(HGX, NCCL_NET="IB", NCCL_IB_HCA="ens")).title
    )
    assert findings("nccl.network-missing", with_env(HGX, NCCL_NET="IB")) == ()
    assert findings("nccl.network-missing", with_env(HGX, NCCL_NET="IB", NCCL_IB_DISABLE="0")) == ()
    for other in ({}, {"NCCL_NET": "Socket"}, {"NCCL_NET": "AWS Libfabric"}):
        assert state("nccl.network-missing", with_env(HGX, **other)) is State.NOT_APPLICABLE
    assert state("nccl.network-missing", with_env("no_pci", NCCL_NET="IB")) is State.NOT_APPLICABLE


def test_efa_is_no_infiniband() -> None:
    c = variant(HGX, nics={"layer": "Unspecified"}, environment={"NCCL_NET": "IB"})
    f = one("nccl.network-missing", c)
    assert "neither InfiniBand nor RoCE (Unspecified)" in f.title
    assert "unset NCCL_NET" in (f.fix or "")


def test_devices_that_are_not_in_the_container_are_no_network() -> None:
    """NCCL opens each device (ibv_open_device): where its file is not here, that NIC is as good as none."""
    gone = {"/dev/infiniband": {"remove": True}}
    c = variant(HGX, files=gone, environment={"NCCL_NET": "IB"})
    f = one("nccl.network-missing", c)
    assert "cannot use mlx5_0" in f.title
    assert "/dev/infiniband/uverbs0 is not here" in f.title
    assert "rdma.verbs-device-missing" in (f.fix or "")
    steps = [r for v in c.gpudirect.rdma if v.to_label == "mlx5_0" for r in v.common]
    assert any("not for this process: /dev/infiniband/uverbs0 is not here" in r.text for r in steps)
    assert network_of(c.node, (2, 27, 3), Settings({}, (2, 27, 3))) == "Socket"
    some = msgspec.structs.replace(c.node.net, verbs_devices=("rdma_cm", "uverbs3"))
    names = {
        e.name for e in rdma_entries(with_node(c, net=some).node, (2, 27, 3), Settings({}, (2, 27, 3)), frozenset())
    }
    assert names == {"mlx5_3"}
    unread = msgspec.structs.replace(c.node.net, verbs_devices=Missing(Reason.NOT_RECORDED))
    assert findings("nccl.network-missing", with_node(c, net=unread)) == ()


def test_a_list_that_matches_nothing_ends_init_where_the_network_is_asked_for() -> None:
    assert "uses TCP" in (one("nccl.hca-missing", with_env(HGX, NCCL_IB_HCA="mlx5_77")).consequence or "")
    for value in ("mlx5_77", "^mlx5"):
        f = one("nccl.hca-missing", with_env(HGX, NCCL_IB_HCA=value, NCCL_NET="IB"))
        assert "TCP" not in (f.consequence or "")
        assert "init fails" in (f.consequence or "")


def test_devices_nobody_could_read_are_no_lack() -> None:
    c = with_env(HGX, NCCL_NET="IB")
    late = with_node(c, net=msgspec.structs.replace(c.node.net, rdma=Missing(Reason.TIMED_OUT)))
    assert one("nccl.network-missing", late).state is State.UNKNOWN


def test_an_interface_to_type_is_one_word_of_a_shell() -> None:
    name = "e$(touch x)"
    told = {"interfaces": {"br-5f2a": {}, name: {}}, "addresses": {"br-5f2a": ["172.18.0.1/16"], name: ["10.1.2.3/16"]}}
    f = one("nccl.bootstrap-interface", variant("l40s_x8", **told))
    assert f.fix == f"export NCCL_SOCKET_IFNAME='{name}'"


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


# hgx_h100_cx7 has eight ports of 400 Gb/s InfiniBand, mlx5_0 to 7, each beside a GPU, and two of 100 Gb/s Ethernet.
@pytest.mark.parametrize(
    ("value", "leaves", "left_out"),
    [
        ("=mlx5_8,mlx5_9", 2 * 100, 8 * 400),
        ("=mlx5_0", 400, 7 * 400),
        ("^mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4", 3 * 400 + 2 * 100, 5 * 400),
    ],
)
def test_a_list_that_leaves_out_most_of_the_network_warns(value: str, leaves: int, left_out: int) -> None:
    f = one("nccl.hca-excluded", with_env(HGX, NCCL_IB_HCA=value))
    assert f.state is State.WARN
    assert f"leaves {leaves} Gb/s and leaves out {left_out} Gb/s" in f.title
    assert f.fix is not None
    assert "emit nccl-env" in f.fix


@pytest.mark.parametrize("good", ["mlx5", "^mlx5_8,mlx5_9", "=mlx5_0,mlx5_1,mlx5_2,mlx5_3", "^mlx5_0"])
def test_a_list_that_leaves_out_storage_or_a_part_is_quiet(good: str) -> None:
    assert findings("nccl.hca-excluded", with_env(HGX, NCCL_IB_HCA=good)) == ()


def test_a_rank_that_is_given_the_nic_of_its_gpu_is_right() -> None:
    assert findings("nccl.hca-excluded", with_env(HGX, NCCL_IB_HCA="=mlx5_3", LOCAL_RANK="3")) == ()
    assert one("nccl.hca-excluded", with_env(HGX, NCCL_IB_HCA="=mlx5_8", LOCAL_RANK="3")).state is State.WARN


def test_ethernet_of_the_same_rate_is_left_out_on_purpose() -> None:
    eth = {f"mlx5_{n}": {"layer": "Ethernet"} for n in range(1, 8)}
    c = variant(HGX, environment={"NCCL_IB_HCA": "=mlx5_0"}, patch=eth)
    layers = [p.link_layer for n in c.topology.nics if n.rdma for p in n.rdma.ports]
    assert layers.count("InfiniBand") == 1
    assert findings("nccl.hca-excluded", c) == ()


def test_ports_without_a_rate_cannot_be_weighed() -> None:
    c = with_env(HGX, NCCL_IB_HCA="=mlx5_0")
    nics = tuple(
        msgspec.structs.replace(
            n,
            rdma=msgspec.structs.replace(
                n.rdma,
                ports=tuple(msgspec.structs.replace(p, rate_gbit_s=Missing(Reason.UNPARSABLE)) for p in n.rdma.ports),
            ),
        )
        for n in c.topology.nics
        if n.rdma
    )
    dumb = msgspec.structs.replace(c, topology=msgspec.structs.replace(c.topology, nics=nics))
    assert one("nccl.hca-excluded", dumb).state is State.UNKNOWN


def test_a_list_that_nothing_reads_is_not_judged() -> None:
    off = with_env(HGX, NCCL_IB_HCA="=mlx5_8", NCCL_IB_DISABLE="1")
    assert state("nccl.hca-excluded", off) is State.NOT_APPLICABLE
    assert state("nccl.hca-excluded", healthy(HGX)) is State.NOT_APPLICABLE


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


def test_the_loopback_interface_alone_serves_one_host() -> None:
    f = one("nccl.bootstrap-interface", variant("hgx_h100_cx7", environment={"NCCL_SOCKET_IFNAME": "lo"}))
    assert f.state is State.NOTE
    assert "several hosts cannot start" in f.consequence
    both = variant("hgx_h100_cx7", environment={"NCCL_SOCKET_IFNAME": "lo,ens7f0np0"})
    assert findings("nccl.bootstrap-interface", both) == ()
