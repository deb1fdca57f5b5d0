"""What is replaced, what stays, and what keeps its relation to what."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topocheck.host.anonymize import anonymize
from topocheck.host.base import Answer, HostError
from topocheck.host.hostlist import expand_hostlist
from topocheck.host.mapping import Mapping
from topocheck.model.base import Reason

SECRET = b"0123456789abcdef"
MAP = Mapping(SECRET)
OCTETS = st.integers(0, 255)
V4 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
U48 = st.integers(0, (1 << 48) - 1)


def one(question: str, answer: Answer, **others: Answer) -> Any:
    return anonymize({question: answer, **others}, SECRET)[question]


def common_bits(a: int, b: int, bits: int) -> int:
    return bits - (a ^ b).bit_length()


# -- the permutations


@given(V4, V4)
def test_ipv4_keeps_prefixes(a: int, b: int) -> None:
    whole = [ipaddress.IPv4Network(n) for n in ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")]
    if not any(ipaddress.IPv4Address(x) in n for x in (a, b) for n in whole):
        assert common_bits(MAP.ipv4(a), MAP.ipv4(b), 32) == common_bits(a, b, 32)


@given(st.sampled_from("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 169.254.0.0/16 100.64.0.0/10 0.0.0.0/0".split()), V4)
def test_ipv4_keeps_its_class(network: str, low: int) -> None:
    net = ipaddress.IPv4Network(network)
    before = ipaddress.IPv4Address(int(net.network_address) | low & int(net.hostmask))
    after = ipaddress.IPv4Address(MAP.ipv4(int(before)))
    assert after in net
    for question in ("is_private", "is_global", "is_loopback", "is_link_local", "is_multicast", "is_unspecified"):
        if before not in ipaddress.IPv4Network("192.0.0.0/24"):  # protocol assignments; no host has one
            assert getattr(after, question) == getattr(before, question) or after in ipaddress.IPv4Network(
                "192.0.0.0/24"
            )


@pytest.mark.parametrize("kept", ["127.0.0.1", "0.0.0.0", "255.255.255.0", "255.255.255.255", "224.0.0.1", "240.0.0.0"])
def test_ipv4_that_stays(kept: str) -> None:
    assert one("psutil:net_addresses", {"lo": [["inet", kept]]}) == {"lo": [["inet", kept]]}


@given(U64, U64, U64)
def test_gids_of_one_subnet_stay_together(prefix: int, a: int, b: int) -> None:
    x, y = MAP.ipv6(prefix << 64 | a), MAP.ipv6(prefix << 64 | b)
    if prefix > 0xFF << 56 or prefix == 0:
        return
    assert x >> 64 == y >> 64
    assert (x == y) == (a == b)


@given(U64)
def test_link_local_stays_and_shares_the_guid(guid: int) -> None:
    after = MAP.ipv6(0xFE80 << 112 | guid)
    assert after >> 64 == 0xFE80 << 48
    assert after & (1 << 64) - 1 == MAP.eui64(guid)


@given(V4)
def test_mapped_gid_follows_the_address(address: int) -> None:
    assert MAP.ipv6(0xFFFF << 32 | address) == 0xFFFF << 32 | MAP.ipv4(address)


@given(U48)
def test_guid_and_gid_follow_the_mac(mac: int) -> None:
    new = MAP.mac(mac)
    turned = mac ^ 1 << 41
    new_turned = new ^ 1 << 41
    assert MAP.eui64(turned >> 24 << 40 | 0xFFFE << 24 | turned & 0xFFFFFF) == (
        new_turned >> 24 << 40 | 0xFFFE << 24 | new_turned & 0xFFFFFF
    )
    if mac:
        assert MAP.eui64(mac >> 24 << 40 | 0x0300 << 24 | mac & 0xFFFFFF) == (
            new >> 24 << 40 | 0x0300 << 24 | new & 0xFFFFFF
        )


@given(U48)
def test_mac_keeps_kind_and_maker(mac: int) -> None:
    new = MAP.mac(mac)
    assert new >> 40 & 3 == mac >> 40 & 3
    if not mac >> 41 & 1:
        assert new >> 24 == mac >> 24


@given(st.text("0123456789abcdef", min_size=1, max_size=32), st.integers(0, 32))
def test_start_of_a_uuid_stays_its_start(digits: str, length: int) -> None:
    if digits[:length].strip("0"):
        assert MAP.hexadecimal(digits).startswith(MAP.hexadecimal(digits[:length]))


@given(st.text(max_size=20))
def test_serial_keeps_its_form(text: str) -> None:
    after = MAP.serial(text)
    assert re.sub(r"[0-9]", "0", re.sub(r"[a-z]", "a", re.sub("[A-Z]", "A", after))) == re.sub(
        r"[0-9]", "0", re.sub(r"[a-z]", "a", re.sub("[A-Z]", "A", text))
    )


def test_zero_stays_zero() -> None:
    for text in (
        "00000000-0000-0000-0000-000000000000",
        "0000:0000:0000:0000",
        "0000:0000:0000:0000:0000:0000:0000:0000",
        "00:00:00:00:00:00",
        "::",
        "::1",
    ):
        assert one("read:/sys/class/infiniband/mlx5_0/x", text.encode()) == text.encode()


def test_ff_stays() -> None:
    assert one("read:/sys/class/net/eth0/broadcast", b"ff:ff:ff:ff:ff:ff\n") == b"ff:ff:ff:ff:ff:ff\n"


# -- whole answers


UUID = "8932f937-d72c-4106-c12f-20bd9faed9f6"


def test_uuid_in_every_place_is_the_same() -> None:
    after = anonymize(
        {
            "nvml:DeviceGetUUID|0": f"GPU-{UUID}",
            "cuda:DeviceGetUuid|0": f"GPU-{UUID}",
            "environ:": {"CUDA_VISIBLE_DEVICES": "GPU-8932f,MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0,2"},
            f"nvml:DeviceGetHandleByUUID|GPU-{UUID}": 0,
            f"read:/proc/{UUID}": HostError(Reason.ABSENT, UUID.upper()),
            "lines:/proc/driver/nvidia/gpus/0000:3b:00.0/information|GPU UUID": [f"GPU UUID:\tGPU-{UUID}"],
        }
    )
    new = after["nvml:DeviceGetUUID|0"]
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", new)
    assert new != f"GPU-{UUID}"
    assert after["cuda:DeviceGetUuid|0"] == new
    first, second, third = after["environ:"]["CUDA_VISIBLE_DEVICES"].split(",")
    assert (first, second, third) == (new[:9], f"MIG-{new}/1/0", "2")
    assert after[f"nvml:DeviceGetHandleByUUID|{new}"] == 0
    assert after[f"read:/proc/{new[4:]}"].detail == new[4:].upper()
    assert after["lines:/proc/driver/nvidia/gpus/0000:3b:00.0/information|GPU UUID"] == [f"GPU UUID:\t{new}"]


IB = "/sys/class/infiniband/mlx5_0"


def test_one_adapter_holds_together() -> None:
    """MAC 0c:42:a1:12:34:56 of a RoCE port: node GUID and GIDs are made from it (and from 10.1.2.3)."""
    after = anonymize(
        {
            "read:/sys/class/net/eth0/address": b"0c:42:a1:12:34:56\n",
            "list:/sys/class/net": ["enx0c42a1123456"],
            f"read:{IB}/node_guid": b"0c42:a103:0012:3456\n",
            f"read:{IB}/ports/1/gids/0": b"fe80:0000:0000:0000:0e42:a1ff:fe12:3456\n",
            f"read:{IB}/ports/1/gids/1": b"0000:0000:0000:0000:0000:ffff:0a01:0203\n",
            f"read:{IB}/ports/1/gids/2": b"fe80:0000:0000:0000:0c42:a103:0012:3456\n",
            "psutil:net_addresses": {
                "eth0": [
                    ["inet", "10.1.2.3"],
                    ["inet6", "fe80::e42:a1ff:fe12:3456%eth0"],
                    ["link", "0c:42:a1:12:34:56"],
                ]
            },
            "run:10|ibstat": {
                "rc": 0,
                "stdout": "Node GUID: 0x0c42a10300123456\nimage 0x0c42a10300123456",
                "stderr": "",
            },
        }
    )
    mac = after["read:/sys/class/net/eth0/address"].decode().strip()
    assert mac.startswith("0c:42:a1:")
    assert mac != "0c:42:a1:12:34:56"
    m = mac.split(":")
    assert after["list:/sys/class/net"] == ["enx" + "".join(m)]
    guid = f"0c42:a103:00{m[3]}:{m[4]}{m[5]}"
    assert after[f"read:{IB}/node_guid"].decode() == guid + "\n"
    assert after[f"read:{IB}/ports/1/gids/0"].decode() == f"fe80:0000:0000:0000:0e42:a1ff:fe{m[3]}:{m[4]}{m[5]}\n"
    assert after[f"read:{IB}/ports/1/gids/2"].decode() == f"fe80:0000:0000:0000:{guid}\n"
    inet, inet6, link = (a for _, a in after["psutil:net_addresses"]["eth0"])
    assert link == mac
    assert inet6.endswith("%eth0")
    assert int(ipaddress.IPv6Address(inet6[:-5])) & 0xFFFFFF == int("".join(m[3:]), 16)
    v4 = ipaddress.IPv4Address(inet)
    assert v4 in ipaddress.IPv4Network("10.0.0.0/8")
    assert str(v4) != "10.1.2.3"
    assert after[f"read:{IB}/ports/1/gids/1"].decode().strip().replace(":", "")[-8:] == v4.packed.hex()
    number = guid.replace(":", "")
    assert after["run:10|ibstat"]["stdout"] == f"Node GUID: 0x{number}\nimage 0x{number}"


def test_ipoib_address_follows_the_gid() -> None:
    after = anonymize(
        {
            "read:/sys/class/net/ib0/address": b"80:00:00:48:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:12:34:56\n",
            f"read:{IB}/node_guid": b"0c42:a103:0012:3456\n",
        }
    )
    address = after["read:/sys/class/net/ib0/address"].decode().strip()
    assert address.startswith("80:00:00:48:fe:80:00:00:00:00:00:00:")
    assert address.replace(":", "")[-16:] == after[f"read:{IB}/node_guid"].decode().strip().replace(":", "")


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("list:/usr/lib/python3/site-packages", "nvidia_cublas_cu12-12.4.5.8.dist-info"),
        ("nvml:SystemGetNVMLVersion", "13.580.159.04"),
        ("run:10|ofed_info|-s", "MLNX_OFED_LINUX-24.10-1.1.4.0:"),
        ("run:10|dcgmi|--version", "Version 3.3.5.0"),
        ("nvml:DeviceGetVbiosVersion|0", "96.00.61.00.01"),
        ("read:/sys/bus/pci/devices/0000:3b:00.0/resource", "0x00000000fb000000 0x00000000fbffffff 0x0000000000040200"),
        ("realpath:/sys/bus/pci/devices/0000:3b:00.0", "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"),
        ("nvml:DeviceGetPciInfo|0", "00000000:3B:00.0"),
        ("now:", "2026-11-28T01:36:27Z"),
        ("read:/sys/devices/system/node/node0/cpumap", "ffffffff,ffffffff,00000000"),
        ("run:10|nvidia-smi|topo|-m", "GPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tNV18\tNODE\t0-31"),
        ("read:/sys/bus/pci/devices/0000:3b:00.0/modalias", "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"),
        ("conf:/etc/nccl.conf", "3\tNCCL_IB_HCA=mlx5_0:1,mlx5_1:1"),
        ("environ:", "0:1:2:3:4:5:6:7"),
        ("read:/proc/version", "Linux version 6.8.0-45-generic"),
    ],
)
def test_what_is_no_identifier_stays(question: str, text: str) -> None:
    assert one(question, text) == text
    assert list(anonymize({question: text})) == [question]


def test_host_names() -> None:
    after = anonymize(
        {
            "read:/proc/sys/kernel/hostname": b"dgx-a17\n",
            f"read:{IB}/node_desc": b"dgx-a17 mlx5_0\n",
            "read:/sys/class/infiniband/mlx5_1/node_desc": b"MT4129 ConnectX7   Mellanox Technologies\n",
            "environ:": {
                "SLURMD_NODENAME": "dgx-a17",
                "SLURM_JOB_NODELIST": "dgx-a[17-18],dgx-b1",
                "MASTER_ADDR": "dgx-b1.cluster.example.org",
                "NCCL_COMM_ID": "dgx-a17:4242",
                "NCCL_SOCKET_IFNAME": "eth0",
            },
            "conf:/etc/nccl.conf": ["1\tNCCL_HOSTID = dgx-a17", "2\tNCCL_DEBUG=INFO"],
            "run:10|scontrol|show|node|dgx-a17": {"rc": 0, "stdout": "NodeName=dgx-a17 Arch=x86_64", "stderr": ""},
        }
    )
    me = after["read:/proc/sys/kernel/hostname"].decode()[:-1]
    assert re.fullmatch(r"node-\d", me)
    env = after["environ:"]
    assert env["SLURMD_NODENAME"] == me
    first, second, third = env["SLURM_JOB_NODELIST"].split(",")
    assert first == me
    assert len({first, second, third}) == 3
    assert env["MASTER_ADDR"] == f"{third}.domain-1"
    assert env["NCCL_COMM_ID"] == f"{me}:4242"
    assert env["NCCL_SOCKET_IFNAME"] == "eth0"
    assert after["conf:/etc/nccl.conf"] == [f"1\tNCCL_HOSTID = {me}", "2\tNCCL_DEBUG=INFO"]
    assert after[f"run:10|scontrol|show|node|{me}"]["stdout"] == f"NodeName={me} Arch=x86_64"
    assert after[f"read:{IB}/node_desc"].decode() == f"{me} mlx5_0\n"
    assert b"ConnectX7" in after["read:/sys/class/infiniband/mlx5_1/node_desc"]


@pytest.mark.parametrize("host", ["nvidia", "localhost", "gpu0", "eth0", "node1"])
def test_host_named_like_a_word_of_the_field(host: str) -> None:
    """Its own files say another name; paths, drivers and devices of that name stay."""
    after = anonymize(
        {
            "read:/etc/hostname": host.encode(),
            "readlink:/sys/bus/pci/devices/0000:3b:00.0/driver": f"../../../bus/pci/drivers/{host}",
            "list:/sys/class/net": [host],
        }
    )
    assert after["readlink:/sys/bus/pci/devices/0000:3b:00.0/driver"].endswith(f"/{host}")
    assert after["list:/sys/class/net"] == [host]


def test_users() -> None:
    after = anonymize(
        {
            "process:": {
                "uid": 1000,
                "home": "/nfs/people/alice",
                "sys_path": ["/nfs/people/alice/venv", "/home/bob/x"],
            },
            "conf:/nfs/people/alice/.nccl.conf": HostError(Reason.ABSENT, "ENOENT"),
            "environ:": {"NCCL_TOPO_FILE": "/scratch/alice/topo.xml"},
        }
    )
    assert "alice" not in repr(after)
    assert "bob" not in repr(after)
    home = after["process:"]["home"]
    assert f"conf:{home}/.nccl.conf" in after, "the probe that asks for the file below the home still finds it"
    assert after["process:"]["sys_path"][0] == f"{home}/venv"
    assert after["process:"]["uid"] == 1000


def test_topology_file_of_nccl() -> None:
    """NCCL writes a GUID's bytes in the order of memory, and both numbers without leading zeros (xml.cc, `%lx`)."""
    guid = "0c42:a103:0012:3456"
    xml = (
        '<system version="1">\n  <cpu host_hash="0x9c5f81a3b2d4e6f" numaid="0" familyid="6">\n'
        '    <nic>\n      <net name="mlx5_0" guid="0x56341200' + '03a1420c" gdr="1"/>\n'
        '      <net name="eth0" guid="0x0"/>\n    </nic>\n  </cpu>\n</system>\n'
    )
    after = anonymize(
        {
            "environ:": {"NCCL_TOPO_FILE": "/scratch/alice/topo.xml"},
            "process:": {"home": "/home/alice"},
            "read:/scratch/alice/topo.xml": xml.encode(),
            "read:/sys/class/infiniband/mlx5_0/sys_image_guid": guid.encode(),
        },
        SECRET,
    )
    path = after["environ:"]["NCCL_TOPO_FILE"]
    text = after[f"read:{path}"].decode()
    assert "alice" not in path
    assert "9c5f81a3b2d4e6f" not in text
    assert 'numaid="0" familyid="6"' in text
    assert 'name="mlx5_0"' in text
    assert 'guid="0x0"' in text
    written = int(re.findall(r'guid="0x([0-9a-f]+)"', text)[0], 16).to_bytes(8, "little")
    told = after["read:/sys/class/infiniband/mlx5_0/sys_image_guid"].decode().replace(":", "")
    assert written.hex() == told != guid.replace(":", "")


def test_root_stays() -> None:
    assert one("process:", {"home": "/root"}) == {"home": "/root"}


def test_serials() -> None:
    after = anonymize(
        {
            "nvml:DeviceGetSerial|0": "1650522004321",
            "nvml:DeviceGetSerial|1": "1650522004321",
            "nvml:DeviceGetSerial|2": "0",
            "run:10|nvidia-smi|-q": "Serial Number : 1650522004321\nSerial Number : N/A\n"
            "board 1650522004321 GPU PDI : 0x8ad9e6ce7e3c0b4d",
            "read:/sys/class/dmi/id/product_serial": b"ABC1234\n",
        }
    )
    serial = after["nvml:DeviceGetSerial|0"]
    assert re.fullmatch(r"\d{13}", serial)
    assert serial != "1650522004321"
    assert after["nvml:DeviceGetSerial|1"] == serial
    assert after["nvml:DeviceGetSerial|2"] == "0"
    text = after["run:10|nvidia-smi|-q"]
    assert text.startswith(f"Serial Number : {serial}\nSerial Number : N/A\nboard {serial} GPU PDI : 0x")
    assert "8ad9e6ce7e3c0b4d" not in text
    assert re.fullmatch(rb"[A-Z]{3}\d{4}\n", after["read:/sys/class/dmi/id/product_serial"])


def test_container_ids_in_paths() -> None:
    cid = "3f" * 31 + "a0"
    after = anonymize(
        {
            "read:/proc/self/cgroup": f"0::/system.slice/docker-{cid}.scope\n".encode(),
            f"read:/sys/fs/cgroup/system.slice/docker-{cid}.scope/cpuset.cpus.effective": b"0-3\n",
        }
    )
    path = after["read:/proc/self/cgroup"].decode().strip()[3:]
    assert cid not in path
    assert after[f"read:/sys/fs/cgroup{path}/cpuset.cpus.effective"] == b"0-3\n"


def config_space(serial: bytes) -> bytes:
    """4096 bytes; at 0x100 AER (id 1) that leads to 0x150, the serial number (id 3), which ends the list."""
    data = bytearray(4096)
    data[0:4] = bytes.fromhex("de103023")
    data[0x100:0x104] = (0x150 << 20 | 1 << 16 | 1).to_bytes(4, "little")
    data[0x150:0x154] = (0 << 20 | 1 << 16 | 3).to_bytes(4, "little")
    data[0x154:0x15C] = serial
    return bytes(data)


def test_serial_in_a_config_space() -> None:
    """lspci prints the bytes 56 34 12 ff fe a1 42 0c as 0c-42-a1-fe-ff-12-34-56."""
    question = "read:/sys/bus/pci/devices/0000:3b:00.0/config|4096"
    before = config_space(bytes.fromhex("5634120003a1420c"))
    after = anonymize({question: before, f"read:{IB}/node_guid": b"0c42:a103:0012:3456\n"})
    serial = after[question][0x154:0x15C]
    assert after[question][:0x154] == before[:0x154]
    assert after[question][0x15C:] == before[0x15C:]
    assert serial[::-1].hex() == after[f"read:{IB}/node_guid"].decode().strip().replace(":", "")
    assert serial != before[0x154:0x15C]


@given(st.binary(max_size=600))
def test_any_config_space(data: bytes) -> None:
    assert len(one("read:/sys/bus/pci/devices/0000:3b:00.0/config|4096", data)) == len(data)


def test_config_space_that_goes_in_circles() -> None:
    data = bytearray(4096)
    data[0x100:0x104] = (0x100 << 20 | 3).to_bytes(4, "little")
    assert len(one("read:/x/config", bytes(data))) == 4096


def test_subnet_in_a_setting() -> None:
    after = anonymize(
        {"environ:": {"NCCL_IB_ADDR_RANGE": "10.1.0.0/16", "MASTER_ADDR": "10.1.2.3"}},
    )["environ:"]
    network = ipaddress.ip_network(after["NCCL_IB_ADDR_RANGE"])
    assert network.prefixlen == 16
    assert ipaddress.ip_address(after["MASTER_ADDR"]) in network


def test_same_file_same_key_same_result_and_random_otherwise() -> None:
    answers = {"nvml:DeviceGetUUID|0": f"GPU-{UUID}"}
    assert anonymize(answers, SECRET) == anonymize(answers, SECRET)
    assert anonymize(answers) != anonymize(answers)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda i: st.lists(i, max_size=3) | st.dictionaries(st.text(), i, max_size=3),
)
HEXISH = st.text("0123456789abcdef:-./ GPUMIGserial", max_size=60)
QUESTIONS = st.sampled_from(
    "read:/x conf:/etc/nccl.conf environ: process: psutil:net_addresses nvml:DeviceGetSerial|0 read:/etc/hostname "
    "read:/sys/class/infiniband/m/node_desc read:/sys/class/net/e/phys_switch_id read:/x/node_guid "
    "read:/x/config".split()
)


@settings(max_examples=200)
@given(
    st.dictionaries(
        QUESTIONS,
        JSON | HEXISH | st.lists(HEXISH, max_size=3) | st.binary(max_size=80) | HEXISH.map(str.encode),
        max_size=5,
    )
)
def test_any_answers(answers: dict[str, Any]) -> None:
    """Never an exception, never another shape."""
    after = anonymize(answers, SECRET)
    assert len(after) == len(answers)
    for question, answer in answers.items():
        if question in after:
            assert type(after[question]) is type(answer)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("rack[1-2]n[3-4]", ["rack1n3", "rack1n4", "rack2n3", "rack2n4"]),
        ("a,b", ["a", "b"]),
        ("a[x-y]", ["a[x-y]"]),
        ("a[1", ["a", "1"]),
        ("", []),
        ("a[1-999999999]", ["a[1-999999999]"]),
    ],
)
def test_hostlist(text: str, hosts: list[str]) -> None:
    assert expand_hostlist(text) == hosts


@given(st.text("ab[]-,0123456789", max_size=40))
def test_any_hostlist(text: str) -> None:
    assert len(expand_hostlist(text)) <= 1 << 16
