"""Texts of which no described machine has a writer: what stands there, and nothing else."""

from __future__ import annotations

import pytest

from tests.machines.builder import machine
from tests.readers.facts import read
from topocheck.model.base import InputError, Missing, Reason, known
from topocheck.pipeline import build_report
from topocheck.render.report_json import encode, report_document

IBV_DEVINFO = """hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.43.2566
\tnode_guid:\t\t\t0200:0000:0000:0003
\tvendor_id:\t\t\t0x02c9
\tvendor_part_id:\t\t\t4129
\thw_ver:\t\t\t\t0x0
\tboard_id:\t\t\tMT_0000000834
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tsm_lid:\t\t\t1
\t\t\tport_lid:\t\t27
\t\t\tlink_layer:\t\tEthernet
\t\t\tactive_width:\t\t4X (2)
\t\t\tactive_speed:\t\t100.0 Gbps (128)
\t\t\tphys_state:\t\tLINK_UP (5)
\t\t\tGID[  3]:\t\tfe80:0000:0000:0000:0200:00ff:fe00:0003, RoCE v2
"""


def test_ibv_devinfo() -> None:
    """Four lanes of 100 Gb/s are 400; LID 27; the type of an HCA is MT and its part number."""
    rdma = read(IBV_DEVINFO).net.rdma
    assert known(rdma)
    (device,) = rdma
    assert (device.name, device.hca_type, device.firmware) == ("mlx5_0", "MT4129", "28.43.2566")
    assert device.node_guid == "0200:0000:0000:0003"
    assert device.address == Missing(Reason.NOT_RECORDED, "realpath:/sys/class/infiniband/mlx5_0/device")
    (port,) = device.ports
    assert (port.state, port.phys_state, port.link_layer) == ("ACTIVE", "LinkUp", "Ethernet")
    assert (port.rate_gbit_s, port.lid, port.sm_lid) == (400.0, 27, 1)


def test_rdma_link_and_ibdev2netdev() -> None:
    """The two of OFED and iproute2; the PCI function stands in `ibdev2netdev -v` alone."""
    text = (
        "0000:18:00.0 mlx5_0 (MT4129 - X) card fw 28.43.2566 port 1 (ACTIVE) ==> ens1 (Up)\n"
        "link mlx5_1/1 state DOWN physical_state DISABLED netdev eno34\n"
    )
    rdma = read(text).net.rdma
    assert known(rdma)
    assert [(d.name, d.netdevs, d.ports[0].state) for d in rdma] == [
        ("mlx5_0", ("ens1",), "ACTIVE"),
        ("mlx5_1", ("eno34",), "DOWN"),
    ]
    assert rdma[0].address == "0000:18:00.0"


def test_ip_and_ethtool() -> None:
    """Flags of linux/if.h: UP 1, BROADCAST 2, MULTICAST 0x1000."""
    text = (
        "2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default qlen 1000\n"
        "    inet 192.0.2.7/24 brd 192.0.2.255 scope global eth0\n"
        "Settings for eth0:\n\tSpeed: 100000Mb/s\n"
    )
    interfaces = read(text).net.interfaces
    assert known(interfaces)
    (one,) = interfaces
    assert (one.name, one.flags, one.mtu_bytes, one.operstate) == ("eth0", 0x1003, 9000, "up")
    assert (one.speed_mbit_s, one.ip_addresses) == (100000, ("192.0.2.7",))


def test_env() -> None:
    settings = read("PATH=/bin\nNCCL_DEBUG=INFO\nAWS_SECRET_ACCESS_KEY=x\nHOME=/root\n").settings
    assert [(s.name, s.value) for s in settings.nccl] == [("NCCL_DEBUG", "INFO")]
    assert "AWS" not in repr(settings)


def test_exports_of_a_script() -> None:
    text = 'export PATH=/bin\nexport NCCL_P2P_LEVEL=SYS   # all pairs\nexport NCCL_IB_HCA="mlx5_0,mlx5_1"\n'
    settings = read(text).settings
    assert {s.name: s.value for s in settings.nccl} == {"NCCL_P2P_LEVEL": "SYS", "NCCL_IB_HCA": "mlx5_0,mlx5_1"}


def test_lscpu() -> None:
    text = (
        "Architecture:        x86_64\nCPU op-mode(s):      32-bit, 64-bit\nByte Order:          Little Endian\n"
        "On-line CPU(s) list: 0-7\nVendor ID:           GenuineIntel\nModel name:          Xeon\nCPU family: 6\n"
        "Flags:               fpu hypervisor lm\nNUMA node0 CPU(s):   0-7\n"
    )
    node = read(text)
    assert (node.system.cpu_vendor, node.system.machine, node.numa.online_cpus) == ("GenuineIntel", "x86_64", "0-7")
    assert not isinstance(node.system.hypervisor, Missing)


def test_nccl_xml_tells_no_place_and_no_link() -> None:
    """NCCL joins ports and takes the smaller of two speeds."""
    text = (
        '<system version="1"><cpu numaid="1">'
        '<pci busid="0000:a1:00.0" class="0x060400" vendor="0x104c" device="0x8232">'
        '<pci busid="0000:a3:00.0" class="0x020000" vendor="0x15b3" device="0x101e" link_speed="32.0 GT/s PCIe">'
        '<nic><net name="mlx5_7" port="1" speed="200000" guid="0x0200000000000001"/></nic></pci></pci></cpu></system>'
    )
    node = read(text)
    assert known(node.pci.devices)
    assert [(d.address, d.numa_node, d.chain) for d in node.pci.devices] == [
        ("0000:a1:00.0", 1, ()),
        ("0000:a3:00.0", 1, ()),
    ]
    assert all(isinstance(d.max_speed_gt_s, Missing) for d in node.pci.devices)
    assert known(node.net.rdma)
    assert (node.net.rdma[0].address, node.net.rdma[0].ports[0].rate_gbit_s) == ("0000:a3:00.0", 200.0)


def test_lspci_without_pci_ids() -> None:
    """pciutils writes `Class cccc: Device vvvv:dddd` where pci.ids is not there (lib/names.c, format_name)."""
    text = (
        "00:06.0 Class 0302: Device 10de:2335 (rev a1)\n\tSubsystem: Device 10de:18be\n"
        "\tKernel driver in use: nvidia\n\n00:00.0 Class 0600: Device 8086:0d57\n\n"
    )
    devices = read(text).pci.devices
    assert known(devices)
    gpu = next(d for d in devices if d.address == "0000:00:06.0")
    assert (gpu.vendor_id, gpu.device_id, gpu.class_code, gpu.driver) == (0x10DE, 0x2335, 0x030200, "nvidia")
    assert (gpu.subsystem_vendor_id, gpu.subsystem_device_id) == (0x10DE, 0x18BE)


def test_a_command_line_without_boot_image() -> None:
    """Kernels that a hypervisor loads have no BOOT_IMAGE; what follows `--` is init's (kernel-parameters.txt)."""
    options = read("console=ttyS0 quiet panic=1 pci=realloc=off iommu=pt -- --addr 0.0.0.0\n").system.kernel_options
    assert known(options)
    assert "pci=realloc=off" in options


def test_a_report_of_a_later_schema_is_refused() -> None:
    made = encode(report_document(build_report(machine("laptop").host()), "2.0"))
    text = made if isinstance(made, str) else made.decode()
    later = text.replace('"2.0"', '"9.0"', 1)
    assert '"schema_version": "9.0"' in later
    with pytest.raises(InputError, match=r"schema version '9\.0'; this version reads 1\.x and 2\.x"):
        read(later)
