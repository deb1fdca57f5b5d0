"""What is replaced, what stays, and what keeps its relation to what."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.snapshots import record
from topocheck.host.base import Answer, HostError
from topocheck.host.recording import anonymize as engine
from topocheck.host.recording.pseudonyms import Mapping
from topocheck.host.recording.redaction import Redaction
from topocheck.model.base import Reason
from topocheck.model.hostlist import expand_hostlist
from topocheck.probes.kept.table import table
from topocheck.probes.modules import CONFIG

SECRET = b"0123456789abcdef"
MAP = Mapping(SECRET)
OCTETS = st.integers(0, 255)
V4 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
U48 = st.integers(0, (1 << 48) - 1)


def anonymize(answers: dict[str, Answer], secret: bytes | None = None) -> dict[str, Answer]:
    return engine.anonymize(answers, table(), secret)


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


@pytest.mark.parametrize(
    "text",
    [
        "00000000-0000-0000-0000-000000000000",
        "0000:0000:0000:0000",
        "0000:0000:0000:0000:0000:0000:0000:0000",
        "00:00:00:00:00:00",
        "::",
        "::1",
        "ff:ff:ff:ff:ff:ff",
        "01:00:5e:00:00:fb",
    ],
)
def test_zero_broadcast_and_known_groups_stay(text: str) -> None:
    assert Redaction(MAP).identifier(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "8932f937-d72c-4106-c12f-20bd9faed9f6",
        "8932F937_D72C_4106_C12F_20BD9FAED9F6",
        "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
        "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0",
        "0c:42:a1:12:34:56",
        "0C-42-A1-12-34-56",
        "0c42.a112.3456",
        "0c42a1123456",
        "1b:42:a1:12:34:56",
        "0c42:a103:0012:3456",
        "0c-42-a1-03-00-12-34-56",
        "0x0c42a10300123456",
        "80:00:00:48:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:12:34:56",
        "10.1.2.3",
        "10.1.0.0/16",
        "fe80::e42:a1ff:fe12:3456",
        "2001:db8:1:2:3:4:5:6/64",
        "::ffff:10.1.2.3",
        "3f" * 32,
    ],
)
def test_every_form_is_found_and_keeps_its_form(text: str) -> None:
    new = Redaction(MAP).identifier(text)
    assert new is not None
    assert new != text
    if "::" not in text and "/64" not in text:  # these are written in their shortest form
        assert re.sub("[0-9a-fA-F]", "0", re.sub(r"\d+", "0", new)) == re.sub(
            "[0-9a-fA-F]", "0", re.sub(r"\d+", "0", text)
        ) or len(new) == len(text)


@pytest.mark.parametrize("text", ["0", "12", "4096", "0000:3b:00.0", "mlx5_0", "580.65.06", "1.2.3", "word", "", "a-b"])
def test_other_texts_are_no_identifiers(text: str) -> None:
    assert Redaction(MAP).identifier(text) is None


# -- whole answers


UUID = "8932f937-d72c-4106-c12f-20bd9faed9f6"


def test_uuid_in_every_place_is_the_same() -> None:
    after = anonymize(
        {
            "nvml:DeviceGetUUID|0": f"GPU-{UUID}",
            "cuda:DeviceGetUuid|0": f"GPU-{UUID}",
            "environ:": {"CUDA_VISIBLE_DEVICES": "GPU-8932f,MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0,2"},
            "conf:/root/.nccl.conf": HostError(Reason.ABSENT, UUID.upper()),
        }
    )
    new = after["nvml:DeviceGetUUID|0"]
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", new)
    assert new != f"GPU-{UUID}"
    assert after["cuda:DeviceGetUuid|0"] == new
    first, second, third = after["environ:"]["CUDA_VISIBLE_DEVICES"].split(",")
    assert (first, second, third) == (new[:9], f"MIG-{new}/1/0", "2")
    assert UUID.upper() not in after["conf:/root/.nccl.conf"].detail


IB = "/sys/class/infiniband/mlx5_0"


def test_one_adapter_holds_together() -> None:
    """MAC 0c:42:a1:12:34:56 of a RoCE port: node GUID and GIDs are made from it (and from 10.1.2.3)."""
    after = anonymize(
        {
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
        }
    )
    inet, inet6, mac = (a for _, a in after["psutil:net_addresses"]["eth0"])
    assert mac.startswith("0c:42:a1:")
    assert mac != "0c:42:a1:12:34:56"
    m = mac.split(":")
    assert after["list:/sys/class/net"] == ["enx" + "".join(m)]
    guid = f"0c42:a103:00{m[3]}:{m[4]}{m[5]}"
    assert after[f"read:{IB}/node_guid"].decode() == guid + "\n"
    assert after[f"read:{IB}/ports/1/gids/0"].decode() == f"fe80:0000:0000:0000:0e42:a1ff:fe{m[3]}:{m[4]}{m[5]}\n"
    assert after[f"read:{IB}/ports/1/gids/2"].decode() == f"fe80:0000:0000:0000:{guid}\n"
    assert inet6.endswith("%eth0")
    assert int(ipaddress.IPv6Address(inet6[:-5])) & 0xFFFFFF == int("".join(m[3:]), 16)
    v4 = ipaddress.IPv4Address(inet)
    assert v4 in ipaddress.IPv4Network("10.0.0.0/8")
    assert str(v4) != "10.1.2.3"
    assert after[f"read:{IB}/ports/1/gids/1"].decode().strip().replace(":", "")[-8:] == v4.packed.hex()


def test_ipoib_address_follows_the_gid() -> None:
    after = anonymize(
        {
            "psutil:net_addresses": {"ib0": [["link", "80:00:00:48:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:12:34:56"]]},
            f"read:{IB}/node_guid": b"0c42:a103:0012:3456\n",
        }
    )
    address = after["psutil:net_addresses"]["ib0"][0][1]
    assert address.startswith("80:00:00:48:fe:80:00:00:00:00:00:00:")
    assert address.replace(":", "")[-16:] == after[f"read:{IB}/node_guid"].decode().strip().replace(":", "")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("list:/usr/lib/python3/site-packages", ["nvidia_nccl_cu12-2.21.5.dist-info"]),
        ("nvml:SystemGetNVMLVersion", "13.580.159.04"),
        ("run:2|ofed_info|-s", {"rc": 0, "stdout": "24.10-1.1.4.0", "stderr": ""}),
        ("run:2|dcgmi|--version", {"rc": 0, "stdout": "3.3.5.0", "stderr": ""}),
        ("nvml:DeviceGetVbiosVersion|0", "96.00.61.00.01"),
        (
            "read:/sys/bus/pci/devices/0000:3b:00.0/resource",
            b"0x00000000fb000000 0x00000000fbffffff 0x0000000000040200",
        ),
        ("realpath:/sys/bus/pci/devices/0000:3b:00.0", "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"),
        ("nvml:DeviceGetPciInfo|0", {"busId": "00000000:3B:00.0", "domain": 0}),
        ("now:", "2026-11-28T01:36:27Z"),
        ("run:8|nvidia-smi|topo|-m", {"rc": 0, "stdout": "GPU0\tmlx5_0\tCPU Affinity\nGPU0\t X \tNV18\tNODE\t0-31"}),
        ("read:/sys/bus/pci/devices/0000:3b:00.0/modalias", b"pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"),
        ("conf:/etc/nccl.conf", ["3\tNCCL_IB_HCA=mlx5_0:1,mlx5_1:1", "4\t NCCL_DEBUG = INFO\r"]),
        ("environ:", {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "NCCL_BUFFSIZE": "4M", "LANG": "C.UTF-8"}),
        ("read:/proc/version", b"Linux version 6.8.0-45-generic"),
        ("read:/sys/class/infiniband/mlx5_0/ports/1/rate", b"400 Gb/sec (4X NDR)\n"),
        ("nvml:DeviceGetName|0", "NVIDIA A100-SXM4-80GB"),
        ("readlink:/sys/bus/pci/devices/0000:3b:00.0/driver", "../../../../bus/pci/drivers/vfio-pci"),
        ("kernel_options:", ["iommu=pt", "pci=realloc,noats", "vfio-pci.ids=10de:2330", "isolcpus=1-3,8"]),
    ],
)
def test_what_is_no_identifier_stays(question: str, answer: Answer) -> None:
    assert anonymize({question: answer}) == {question: answer}


def test_host_names() -> None:
    after = anonymize(
        {
            "read:/proc/sys/kernel/hostname": b"dgx-a17\n",
            "environ:": {
                "SLURMD_NODENAME": "dgx-a17",
                "SLURM_JOB_NODELIST": "dgx-a[17-18],dgx-b1",
                "MASTER_ADDR": "dgx-b1.cluster.example.org",
                "NCCL_COMM_ID": "dgx-a17:4242",
                "NCCL_SOCKET_IFNAME": "eth0",
            },
            "conf:/etc/nccl.conf": ["1\tNCCL_HOSTID = dgx-a17", "2\tNCCL_DEBUG=INFO"],
            "read:/proc/self/cgroup": b"0::/system.slice/dgx-a17_slurmstepd.scope/job_4711\n",
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
    assert after["read:/proc/self/cgroup"] == f"0::/system.slice/{me}_slurmstepd.scope/job_1\n".encode()


@pytest.mark.parametrize(
    ("host", "driver", "interface"),
    [("nvidia", "nvidia", "eth0"), ("gpu0", "nvme", "gpu0"), ("eth0", "vfio-pci", "eth0"), ("localhost", "ice", "lo")],
)
def test_host_named_like_a_word_of_the_field(host: str, driver: str, interface: str) -> None:
    """Its own files say another name; public drivers and devices of that name stay."""
    answers: dict[str, Answer] = {
        "readlink:/sys/bus/pci/devices/0000:3b:00.0/driver": f"../../../bus/pci/drivers/{driver}",
        "list:/sys/class/net": [interface],
    }
    after = anonymize({"read:/proc/sys/kernel/hostname": host.encode(), **answers})
    hostname = after.pop("read:/proc/sys/kernel/hostname")
    assert hostname == (b"localhost" if host == "localhost" else b"node-1")
    assert after == answers


def test_users() -> None:
    after = anonymize(
        {
            "process:": {
                "uid": 1000,
                "home": "/nfs/people/alice",
                "sys_path": ["/nfs/people/alice/venv/site-packages", "/home/bob/x/dist-packages", "/home/bob/job"],
            },
            "conf:/nfs/people/alice/.nccl.conf": HostError(Reason.ABSENT, "ENOENT"),
            "environ:": {"NCCL_TOPO_FILE": "/scratch/alice/topo.xml"},
        }
    )
    assert "alice" not in repr(after)
    assert "bob" not in repr(after)
    home = after["process:"]["home"]
    assert f"conf:{home}/.nccl.conf" in after, "the probe that asks for the file below the home still finds it"
    assert after["process:"]["sys_path"][0] == f"{home}/venv/site-packages"
    assert len(after["process:"]["sys_path"]) == 2
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
            "run:10|nvidia-smi|-q": "Serial Number : 1650522004321\nGPU PDI : 0x8ad9e6ce7e3c0b4d",
            "read:/sys/class/dmi/id/product_serial": b"ABC1234\n",
        }
    )
    serial = after["nvml:DeviceGetSerial|0"]
    assert re.fullmatch(r"\d{13}", serial)
    assert serial != "1650522004321"
    assert after["nvml:DeviceGetSerial|1"] == serial
    assert after["nvml:DeviceGetSerial|2"] == "0"
    assert len(after) == 3, "what no probe asks is left out"


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
    assert len(one("read:/sys/bus/pci/devices/0000:3b:00.0/config|4096", bytes(data))) == 4096


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
    [
        *(
            "conf:/etc/nccl.conf",
            "environ:",
            "process:",
            "psutil:net_addresses",
            "nvml:DeviceGetSerial|0",
            "run:2|slurmd|-V",
        ),
        *("read:/proc/sys/kernel/hostname", f"read:{IB}/node_guid", f"read:{IB}/ports/1/gids/0", "list:/sys/class/net"),
        *("read:/sys/bus/pci/devices/0000:3b:00.0/config|1024", "probe:pci", "pci_names:10de:2330", "list:/dev/shm"),
        *("read:/var/run/nvidia-topologyd/virtualTopology.xml", "read:/proc/self/cgroup", "stat:/dev/shm", "now:"),
        *(
            "nvml:DeviceGetGpuFabricInfoV|0",
            "readlink:/sys/class/net/eth0/master",
            "kernel_options:",
            "read:/proc/cpuinfo|4096",
        ),
    ]
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


# -- names keep their relations

NAMES = st.text("abcdegx019._-", min_size=1, max_size=12)
LISTS = st.lists(NAMES, max_size=8, unique=True)


@given(LISTS)
def test_names_of_devices_keep_their_beginnings_and_stay_different(names: list[str]) -> None:
    r = Redaction(Mapping(SECRET))
    own = [n for n in names if not r.device_is_public(n)]
    new = [r.device(n) for n in own]
    assert len(set(new)) == len(own)
    for a, x in zip(own, new, strict=True):
        for b, y in zip(own, new, strict=True):
            assert y.startswith(x) == b.startswith(a)
        assert not r.device_is_public(x), "no pseudonym is the name of another device"
        assert r.device(a) == x


def test_a_setting_means_the_same_devices() -> None:
    """`stor` is the beginning of storage0 and storage1, `e` of eth0 and edge0; `=` asks for exact names."""
    names = ["eth0", "edge0", "storage0", "storage1", "mlx5_0"]
    environ = {"NCCL_SOCKET_IFNAME": "e,stor", "NCCL_OOB_NET_IFNAME": "^=storage0,eth0", "NCCL_IB_HCA": "mlx5_0:1"}
    after = anonymize({"list:/sys/class/net": names, "environ:": environ}, SECRET)
    new = dict(zip(names, after["list:/sys/class/net"], strict=True))
    first, second = after["environ:"]["NCCL_SOCKET_IFNAME"].split(",")
    assert [n for n in new if new[n].startswith(first)] == ["eth0", "edge0"]
    assert [n for n in new if new[n].startswith(second)] == ["storage0", "storage1"]
    assert after["environ:"]["NCCL_OOB_NET_IFNAME"] == f"^={new['storage0']},eth0"
    assert after["environ:"]["NCCL_IB_HCA"] == "mlx5_0:1"
    assert "storage" not in repr(after)
    assert "edge" not in repr(after)


def test_names_of_one_pattern_are_replaced_alike_on_every_node() -> None:
    """Else nodes of one kind would differ in a fleet."""
    one = anonymize({"list:/sys/class/net": ["fabric0", "fabric1", "mgmt-lan"]})
    other = anonymize({"list:/sys/class/net": ["fabric0", "fabric1", "mgmt-lan"]})
    assert one == other


PATHS = st.lists(
    st.sampled_from("alice data home usr lib job_4711 a.xml x pod7 docker slice 5f5f5f5f5f5f".split()), max_size=5
)


@given(st.lists(PATHS, max_size=6))
def test_paths_and_control_groups_stay_different_and_share_their_folders(paths: list[list[str]]) -> None:
    for method in (Redaction.path, Redaction.cgroup):
        r = Redaction(Mapping(SECRET))
        texts = sorted({"/" + "/".join(p) for p in paths})
        new = [method(r, t) for t in texts]
        assert len(set(new)) == len(texts)
        for a, x in zip(texts, new, strict=True):
            assert x.count("/") == a.count("/")
            for b, y in zip(texts, new, strict=True):
                if b.startswith(f"{a}/"):
                    assert y.startswith(f"{x}/")


@given(st.lists(st.integers(0, 1 << 32), max_size=6, unique=True), LISTS)
def test_numbers_users_and_unknown_texts_stay_different(numbers: list[int], names: list[str]) -> None:
    r = Redaction(Mapping(SECRET))
    assert len({r.map.uid(n) for n in numbers}) == len(numbers)
    assert len({r.number(str(n)) for n in numbers}) == len(numbers)
    assert len({r.user(n) for n in names}) == len(names)
    unknown = {r.unknown(n) for n in names}
    assert len(unknown) == len(names)
    assert {r.unknown(u) for u in unknown} == unknown, "what was replaced once stays"


@pytest.mark.parametrize("name", ["hgx_h100_cx7", "laptop", "h22_mixed_gpus"])
def test_replaced_again_it_has_the_same_form(name: str) -> None:
    answers = record(name)
    once = anonymize(answers)
    twice = anonymize(once)
    assert len(twice) == len(once) == len(answers)
    assert repr(anonymize(answers, SECRET)) == repr(anonymize(answers, SECRET))

    def form(text: str) -> str:
        return re.sub("[0-9a-f]", "0", text)

    left = [q for q in twice if q not in once]
    assert left == [], "names have their second names"
    assert form(repr(twice["environ:"])) == form(repr(once["environ:"]))


def test_the_order_of_drop_ins_stays() -> None:
    """The last by name counts (logind.conf(5))."""
    folder = "/etc/systemd/logind.conf.d"
    answers: dict[str, Answer] = {f"list:{folder}": ["10-z.conf", "50-a.conf", "readme"]}
    for name, value in (("10-z.conf", "yes"), ("50-a.conf", "no")):
        answers[f"lines:{folder}/{name}|RemoveIPC"] = [f"RemoveIPC={value}"]
    after = anonymize(answers)
    files = [n for n in after[f"list:{folder}"] if n.endswith(".conf")]
    assert files == sorted(files)
    assert [after[f"lines:{folder}/{n}|RemoveIPC"] for n in files] == [["RemoveIPC=yes"], ["RemoveIPC=no"]]


def test_the_release_of_a_kernel_is_the_same_in_questions() -> None:
    """Its parts are numbered alike wherever they stand; another version holds another word before."""
    release = "6.8.0-orchid7-tulip"
    prefixes = "|".join(CONFIG)
    after = anonymize(
        {
            "nvml:SystemGetDriverVersion": "580.65.06-tulip",
            "read:/proc/sys/kernel/osrelease": f"{release}\n".encode(),
            f"lines:/lib/modules/{release}/config|{prefixes}": ["CONFIG_PCI_P2PDMA=y"],
        }
    )
    new = after["read:/proc/sys/kernel/osrelease"].decode().strip()
    assert new.startswith("6.8.0-redacted-")
    assert after[f"lines:/lib/modules/{new}/config|{prefixes}"] == ["CONFIG_PCI_P2PDMA=y"]
    assert "tulip" not in repr(after)
