"""RDMA devices and interfaces. File contents are those of the kernel's ABI documents (sysfs-class-infiniband,
sysfs-class-net) and of drivers/infiniband/core/sysfs.c; machines are invented.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import builder
from tests.probes.answers import Answers, host_of, put
from tests.support.recorder import Recorder
from topocheck.host.base import Host, HostError, RecordedBackend
from topocheck.model.base import Missing, Reason
from topocheck.model.names import natural_key
from topocheck.probes import netdev, rdma
from topocheck.probes.net import read

PF = "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:0202:c9ff:fe00:0001"
MAPPED = "0000:0000:0000:0000:0000:ffff:c0a8:0001"


def device(at, name, gids, **port_files):
    port = f"{at}/infiniband/{name}/ports/1"
    files = {
        f"/sys/class/infiniband/{name}": f"->{_up(3)}{at.removeprefix('/')}/infiniband/{name}",
        f"{at}/infiniband/{name}/device": "->../..",
        f"{at}/infiniband/{name}/fw_ver": "28.41.1000\n",
        f"{at}/infiniband/{name}/board_id": "MT_0000000838\n",
        f"{at}/infiniband/{name}/hca_type": "MT4129\n",
        f"{at}/infiniband/{name}/hw_rev": "0\n",
        f"{at}/infiniband/{name}/node_type": "1: CA\n",
        f"{at}/infiniband/{name}/node_guid": "0202:c9ff:FE00:0001\n",
        f"{at}/infiniband/{name}/sys_image_guid": "0202:c9ff:fe00:0000\n",
    }
    told = {
        "state": "4: ACTIVE\n",
        "phys_state": "5: LinkUp\n",
        "rate": "400 Gb/sec (4X NDR)\n",
        "link_layer": "InfiniBand\n",
        "lid": "0x1b\n",
        "sm_lid": "0x1\n",
    }
    files |= {f"{port}/{k}": v for k, v in (told | port_files).items()}
    for i, (gid, kind, net) in enumerate(gids):
        files[f"{port}/gids/{i}"] = gid + "\n"
        files[f"{port}/gid_attrs/types/{i}"] = kind + "\n"
        files[f"{port}/gid_attrs/ndevs/{i}"] = net + "\n"
    return files


def _up(levels):
    return "../" * levels


def rdma_of(tmp_path, files, answers=None):
    put(tmp_path, files)
    found = rdma.read_rdma(host_of(answers or {}, tmp_path))
    assert not isinstance(found, Missing)
    return found


def test_infiniband_port(tmp_path):
    files = device(PF, "mlx5_0", [(LINK_LOCAL, "IB/RoCE v1", "")] + [(ZERO, "IB/RoCE v1", "")] * 7)
    port = f"{PF}/infiniband/mlx5_0/ports/1"
    files |= {f"{port}/counters/link_downed": "3\n", f"{port}/counters/unicast_rcv_packets": "9\n"}
    files |= {f"{port}/hw_counters/out_of_sequence": "1\n", f"{PF}/net/ibs3/mtu": "4092\n"}
    (d,) = rdma_of(tmp_path, files)
    assert (d.name, d.address, d.netdevs, d.firmware) == ("mlx5_0", "0000:3b:00.0", ("ibs3",), "28.41.1000")
    assert (d.node_guid, d.sys_image_guid, d.node_type) == ("0202:c9ff:fe00:0001", "0202:c9ff:fe00:0000", "CA")
    assert isinstance(d.physfn, Missing)
    (p,) = d.ports
    assert (p.port, p.state, p.phys_state, p.link_layer) == (1, "ACTIVE", "LinkUp", "InfiniBand")
    assert (p.rate_gbit_s, p.rate_text, p.lid, p.sm_lid) == (400.0, "400 Gb/sec (4X NDR)", 27, 1)
    assert [(g.index, g.gid, g.type) for g in p.gids] == [(0, LINK_LOCAL, "IB/RoCE v1")]
    assert (p.counters, p.hw_counters, p.counters_missing) == ({"link_downed": 3}, {"out_of_sequence": 1}, {})
    assert p.evidence("rate")[0].source == "/sys/class/infiniband/mlx5_0/ports/1/rate"
    assert p.evidence("counters/link_downed")[0].raw == "3"


def test_roce_bond_names_its_interface_by_gid(tmp_path):
    gids = [(LINK_LOCAL, "IB/RoCE v1", "bond0"), (ZERO, "", ""), (MAPPED, "RoCE v2", "bond0")]
    files = device(PF, "mlx5_bond_0", gids, link_layer="Ethernet\n", lid="0x0\n", sm_lid="0x0\n")
    files |= {f"{PF}/net/eth2/mtu": "9000\n"}
    (d,) = rdma_of(tmp_path, files)
    assert d.netdevs == ("bond0", "eth2")
    assert [(g.index, g.type, g.netdev) for g in d.ports[0].gids] == [
        (0, "IB/RoCE v1", "bond0"),
        (2, "RoCE v2", "bond0"),
    ]
    assert d.ports[0].lid == 0


def test_subfunction_hangs_on_the_auxiliary_bus(tmp_path):
    (d,) = rdma_of(tmp_path, device(f"{PF}/mlx5_core.sf.4", "mlx5_3", []))
    assert d.address == "0000:3b:00.0"


def test_virtual_function_names_its_physical_one(tmp_path):
    vf = "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.2"
    files = device(vf, "rocep59s0v0", [])
    files |= {f"{PF}/vendor": "0x15b3\n", f"{vf}/physfn": "->../0000:3b:00.0"}
    (d,) = rdma_of(tmp_path, files)
    assert (d.address, d.physfn) == ("0000:3b:00.2", "0000:3b:00.0")


def test_software_rdma_has_no_address(tmp_path):
    at = "/sys/devices/virtual/infiniband/rxe0"
    files = {
        "/sys/class/infiniband/rxe0": "->../../devices/virtual/infiniband/rxe0",
        f"{at}/node_type": "1: CA\n",
        f"{at}/ports/1/state": "4: ACTIVE\n",
        f"{at}/ports/1/rate": "2.5 Gb/sec (1X SDR)\n",
    }
    (d,) = rdma_of(tmp_path, files)
    assert isinstance(d.address, Missing)
    assert d.address.reason is Reason.ABSENT
    assert d.ports[0].rate_gbit_s == 2.5
    assert isinstance(d.ports[0].gids, Missing)


def test_one_unreadable_counter_loses_only_itself(tmp_path):
    port = f"{PF}/infiniband/hfi1_0/ports/1"
    files = device(PF, "hfi1_0", [])
    files |= {f"{port}/counters/{n}": "5\n" for n in ("link_downed", "symbol_error", "port_rcv_errors")}
    files |= {f"{port}/counters/VL15_dropped": "N/A (no PMA)\n"}
    at = "/sys/class/infiniband/hfi1_0/ports/1/counters"
    (d,) = rdma_of(tmp_path, files, {f"read:{at}/symbol_error": HostError(Reason.UNSUPPORTED, "EINVAL")})
    (p,) = d.ports
    assert p.counters == {"link_downed": 5, "port_rcv_errors": 5}
    assert p.counters_missing == {
        "counters/symbol_error": "unsupported: EINVAL",
        "counters/VL15_dropped": "unparsable: N/A (no PMA)",
    }
    assert p.hw_counters == {}


def test_broken_device_loses_only_itself(tmp_path):
    files = device(PF, "mlx5_0", []) | device(PF.replace("3b:00.0", "3b:00.1"), "mlx5_1", [])
    denied = HostError(Reason.DENIED, "EACCES")
    at = "/sys/class/infiniband/mlx5_0"
    broken = {f"list:{at}/ports": denied, f"realpath:{at}/device": denied, f"read:{at}/fw_ver": denied}
    first, second = rdma_of(tmp_path, files, broken)
    assert (first.ports, first.address, first.firmware) == ((), denied.missing(), denied.missing())
    assert first.hca_type == "MT4129"
    assert len(second.ports) == 1


def test_gid_table_is_read_only_as_far_as_it_is_used(tmp_path):
    gids = [(LINK_LOCAL, "RoCE v2", "eth0")] + [(ZERO, "", "")] * 254
    put(tmp_path, device(PF, "mlx5_0", gids))
    backend = Answers({}, tmp_path)
    rdma.read_rdma(Host(backend, "test"))
    read_gids = [q for q in backend.asked if "/gids/" in q]
    assert len(read_gids) == 1 + rdma.EMPTY_GID_RUN
    assert [q.rsplit("/", 1)[1] for q in backend.asked if "gid_attrs" in q] == ["0", "0"]


def test_gid_whose_interface_is_hidden(tmp_path):
    # In a network namespace of its own a container sees the GID, and EINVAL for its interface.
    at = "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs"
    files = device(PF, "mlx5_0", [(MAPPED, "RoCE v2", "eth0")])
    hidden = HostError(Reason.UNSUPPORTED, "EINVAL")
    (d,) = rdma_of(tmp_path, files, {f"read:{at}/ndevs/0": hidden, f"read:{at}/types/0": hidden})
    (g,) = d.ports[0].gids
    assert (g.gid, g.type, g.netdev) == (MAPPED, hidden.missing(), hidden.missing())
    assert d.netdevs == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("400 Gb/sec (4X NDR)\n", 400.0),
        ("200 Gb/sec (2X NDR)", 200.0),
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("40 Gb/sec (4X QDR)", 40.0),
        ("800 Gb/sec (4X XDR)", 800.0),
        ("100 Gb/sec", 100.0),
        ("400 GB/sec (4X NDR)", None),  # bytes: eight times as much
        ("400 gb/sec (4X NDR)", None),
        ("400 Mb/sec (4X NDR)", None),
        ("400", None),
        ("0 Gb/sec (1X SDR)", None),
        ("-1 Gb/sec", None),
        ("", None),
    ],
)
def test_rate(text, expected):
    got = rdma.parse_rate(text)
    assert got == expected if expected else isinstance(got, Missing)


def test_states_lids_and_guids():
    assert rdma.parse_state("2: INIT\n") == "INIT"
    assert rdma.parse_state("3: Disabled") == "Disabled"
    assert isinstance(rdma.parse_state("ACTIVE"), Missing)
    assert rdma.parse_lid("0xffff\n") == 65535
    assert isinstance(rdma.parse_lid("27"), Missing)
    assert isinstance(rdma.parse_guid("0202:c9ff:fe00"), Missing)
    assert rdma.parse_gid(ZERO) == rdma.ABSENT


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PF, "0000:3b:00.0"),
        (f"{PF}/mlx5_core.sf.4", "0000:3b:00.0"),
        ("/sys/devices/pci0000:00/0000:00:03.0/virtio0/net/eth0", "0000:00:03.0"),
        ("/sys/devices/pci10000:00/10000:00:02.0/10000:01:00.0", "10000:01:00.0"),
        ("/sys/devices/LNXSYSTM:00/PNP0A08:00/VMBUS:01/47505500-0001/pci0001:00/0001:00:02.0", "0001:00:02.0"),
        ("/sys/devices/virtual/net/lo", None),
        ("", None),
    ],
)
def test_address_in_path(path, expected):
    assert rdma.address_in_path(path) == expected


def netdevs_of(tmp_path, files, answers=None):
    put(tmp_path, files)
    told = {"psutil:net_addresses": {}} | (answers or {})
    found = netdev.read_interfaces(host_of(told, tmp_path))
    assert not isinstance(found, Missing)
    return {i.name: i for i in found}


def interface(at, name, speed="100000\n", **files):
    told = {"mtu": "9000\n", "operstate": "up\n", "flags": "0x1003\n", "speed": speed} | files
    return {f"/sys/class/net/{name}": f"->{_up(3)}{at.removeprefix('/')}/net/{name}"} | {
        f"{at}/net/{name}/{k}": v for k, v in told.items()
    }


VIRTUAL = "/sys/devices/virtual"


def test_interfaces_of_every_kind(tmp_path):
    virtio = "/sys/devices/pci0000:00/0000:00:03.0/virtio0"
    files = interface(PF, "eth2", **{"master": "->../../../../../virtual/net/bond0", "device": "->../.."})
    files |= {f"{PF}/driver": "->../../../../bus/pci/drivers/mlx5_core", "/sys/bus/pci/drivers/mlx5_core/x": ""}
    files |= interface(virtio, "ens3", "-1\n", **{"device": "->../.."})
    files |= interface(VIRTUAL, "bond0", "200000\n", **{"bonding/slaves": "eth2 eth3\n"})
    files |= interface(VIRTUAL, "lo", flags="0x9\n", mtu="65536\n", operstate="unknown\n")
    files |= interface(VIRTUAL, "veth1", **{"master": "->../br0"}) | interface(VIRTUAL, "br0")
    files |= {"/sys/class/net/bonding_masters": "bond0\n"}
    addresses = {
        "psutil:net_addresses": {
            "bond0": [["inet", "192.0.2.7"], ["inet6", "fe80::1%bond0"], ["link", "02:00:00:00:00:01"]],
        }
    }
    found = netdevs_of(tmp_path, files, addresses)
    assert sorted(found) == ["bond0", "br0", "ens3", "eth2", "lo", "veth1"]
    eth2 = found["eth2"]
    assert (eth2.address, eth2.driver, eth2.speed_mbit_s, eth2.mtu_bytes) == ("0000:3b:00.0", "mlx5_core", 100000, 9000)
    assert (eth2.bond_master, eth2.is_virtual, eth2.flags, eth2.operstate) == ("bond0", False, 0x1003, "up")
    assert eth2.ip_addresses == ()
    bond = found["bond0"]
    assert (bond.bond_slaves, bond.speed_mbit_s, bond.is_virtual) == (("eth2", "eth3"), 200000, True)
    assert bond.ip_addresses == ("192.0.2.7", "fe80::1")
    assert found["ens3"].address == "0000:00:03.0"
    assert found["ens3"].speed_mbit_s.reason is Reason.UNSUPPORTED
    assert (found["lo"].is_virtual, found["lo"].flags) == (True, 9)
    assert isinstance(found["veth1"].bond_master, Missing)  # its master is a bridge


def test_unreadable_speed_loses_only_itself(tmp_path):
    einval = HostError(Reason.UNSUPPORTED, "EINVAL")
    found = netdevs_of(tmp_path, interface(PF, "eth2"), {"read:/sys/class/net/eth2/speed": einval})
    assert found["eth2"].speed_mbit_s == einval.missing()
    assert found["eth2"].mtu_bytes == 9000
    assert found["eth2"].raw["speed"] == "!unsupported: EINVAL"


def test_addresses_that_cannot_be_had(tmp_path):
    absent = HostError(Reason.ABSENT, "psutil is not installed")
    found = netdevs_of(tmp_path, interface(PF, "eth2"), {"psutil:net_addresses": absent})
    assert found["eth2"].ip_addresses == absent.missing()


@pytest.mark.parametrize("text", ["-1", "4294967295", "65535", "0", "fast", "", "1e5"])
def test_no_speed(text):
    assert isinstance(netdev.parse_speed(text), Missing)


VERBS = ["issm0", "rdma_cm", "umad0", "uverbs0", "uverbs1"]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"list:/dev/infiniband": VERBS, "access:/dev/infiniband/uverbs0|rw": True}, None),
        (
            {
                "list:/dev/infiniband": VERBS,
                "access:/dev/infiniband/uverbs0|rw": True,
                "access:/dev/infiniband/uverbs1|rw": True,
            },
            True,
        ),
        (
            {
                "list:/dev/infiniband": VERBS,
                "access:/dev/infiniband/uverbs0|rw": True,
                "access:/dev/infiniband/uverbs1|rw": False,
            },
            False,
        ),
        ({"list:/dev/infiniband": ["rdma_cm"]}, None),
        ({"list:/dev/infiniband": HostError(Reason.ABSENT, "ENOENT")}, None),
    ],
)
def test_verbs_devices(answers, expected):
    facts = read(host_of(answers))
    got = facts.verbs_accessible
    assert got is expected if expected is not None else isinstance(got, Missing)


def test_machine_without_any_network_class():
    facts = read(host_of({"list:/sys/class/infiniband": HostError(Reason.ABSENT, "ENOENT")}))
    assert (facts.rdma.reason, facts.interfaces.reason) == (Reason.ABSENT, Reason.NOT_RECORDED)


@pytest.mark.parametrize("name", ["hgx_h100_cx7", "cloud_vm_17nic", "power9_ac922", "gb200_tray"])
def test_described_machines_and_their_replay(name):
    machine = builder.machine(name)
    recorder = Recorder(machine.backend)
    facts = read(Host(recorder, name))
    described = {f.address for f in machine.functions.values() if f.kind == "nic" and f.options.get("rdma") != "none"}
    assert {d.address for d in facts.rdma} == described
    assert [d.name for d in facts.rdma] == sorted((d.name for d in facts.rdma), key=lambda n: (n[:5], len(n), n))
    for d in facts.rdma:
        assert all(p.counters_missing == {} and p.state == "ACTIVE" for p in d.ports)
        assert {i.address for i in facts.interfaces if i.name in d.netdevs} == {d.address}
    assert read(Host(RecordedBackend(recorder.answers), name)) == facts


def test_natural_order():
    names = ["mlx5_10", "mlx5_2", "mlx5_bond_0", "eth0", "eth00", "9" * 5000]
    assert sorted(names, key=natural_key)[1:] == ["eth0", "eth00", "mlx5_2", "mlx5_10", "mlx5_bond_0"]


@given(st.text(max_size=80))
def test_arbitrary_text_never_raises(text):
    for parse in (
        rdma.parse_rate,
        rdma.parse_state,
        rdma.parse_lid,
        rdma.parse_guid,
        rdma.parse_gid,
        rdma.parse_counter,
        rdma.address_in_path,
        netdev.parse_speed,
        netdev.parse_flags,
        netdev.parse_mtu,
    ):
        parse(text)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x)
    )
)
def test_arbitrary_addresses_never_raise(answer):
    netdev.parse_addresses(answer)


@given(st.floats(0.1, 9999).map(lambda x: round(x, 1)), st.sampled_from(["SDR", "QDR", "FDR", "NDR", "XDR"]))
def test_every_rate_of_the_kernels_form_reads_back(rate, generation):
    assert rdma.parse_rate(f"{rate:g} Gb/sec (4X {generation})\n") == float(f"{rate:g}")
