"""What is replaced in answers, what stays, and what keeps its relation to what."""

from __future__ import annotations

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.host.anonymizing import IB, SECRET, UUID, anonymize, one
from topocheck.host.base import Answer, HostError
from topocheck.model.base import Reason


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
