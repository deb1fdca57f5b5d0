"""Texts as people paste them into tickets: cut, with values taken out, blanks lost, or picked by grep.

Nothing of them may be read wrong: what a cut leaves open is not known.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.readers.facts import read
from topocheck.host.base import Host, RecordedBackend
from topocheck.model.base import Missing, known
from topocheck.pipeline import build_report
from topocheck.readers.files import read_data
from topocheck.readers.formats import lscpu

LANGUAGES = sorted((Path(__file__).parent / "lscpu").glob("*.txt"))


def test_numactl_that_ends_within_a_node() -> None:
    """Node 1's list of CPUs may go on, and nodes 2 and 3 are not there: how many CPUs are online is not known."""
    text = "available: 4 nodes (0-3)\nnode 0 cpus: 0 1 2 3\nnode 0 size: 1000 MB\nnode 0 free: 900 MB\nnode 1 cpus: 4 5"
    numa = read(text).numa
    assert known(numa.nodes)
    assert [(n.node, n.cpulist) for n in numa.nodes if known(n.cpulist)] == [(0, "0-3")]
    assert not known(numa.online_cpus)


def test_numactl_that_ends_within_a_row_of_distances() -> None:
    text = (
        "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 1000 MB\nnode 1 cpus: 2 3\nnode 1 size: 1000 MB\n"
        "node distances:\nnode   0   1\n  0:  10  21\n  1:  21"
    )
    nodes = read(text).numa.nodes
    assert known(nodes)
    assert [n.distances for n in nodes if known(n.distances)] == [(10, 21)]


@pytest.mark.parametrize("end", ["", "...\n", "\u2026\n", "[snip]\n"])
def test_nvlinks_of_a_list_that_is_cut(end: str) -> None:
    """Of GPU 1 two links are listed, of its sibling four: it may have more."""
    gpu = "GPU {0}: NVIDIA Example (UUID: GPU-0000000{0}-0000-0000-0000-000000000000)\n"
    links = [f"\t Link {n}: 53.125 GB/s\n" for n in range(4)]
    text = gpu.format(0) + "".join(links) + gpu.format(1) + "".join(links[:2]) + end
    gpus = read(text).nvml.gpus
    assert known(gpus)
    assert gpus[0].nvlink_count == 4
    assert isinstance(gpus[1].nvlink_count, Missing)
    judged = build_report(Host(RecordedBackend(read_data("x", text.encode()).answers)))
    assert [f.title for f in judged.findings if f.state.value in ("warn", "fail")] == []


@pytest.mark.parametrize("taken_out", ["...", "XXXXXXXX", "<redacted>", "[REMOVED]", "xxxx:xxxx:xxxx:xxxx", "****"])
def test_values_that_were_taken_out(taken_out: str) -> None:
    text = (
        f"CA 'mlx5_7'\n\tCA type: {taken_out}\n\tNumber of ports: 1\n\tFirmware version: {taken_out}\n"
        f"\tNode GUID: {taken_out}\n\tPort 1:\n\t\tState: Active\n\t\tRate: 200\n\t\tLink layer: InfiniBand\n"
        f"$ nvidia-smi nvlink -s\nGPU 3: Tesla V100-SXM2-32GB (UUID: {taken_out})\n\t Link 0: 25.781 GB/s\n"
    )
    node = read(text)
    assert known(node.net.rdma)
    (device,) = node.net.rdma
    assert not any(map(known, (device.hca_type, device.firmware, device.node_guid)))
    assert (device.ports[0].state, device.ports[0].rate_gbit_s) == ("ACTIVE", 200.0)
    assert known(node.nvml.gpus)
    assert not known(node.nvml.gpus[3].uuid)


def test_ibv_devinfo_without_its_blanks() -> None:
    """A web page drops the blanks at the start of lines. GIDs of RoCE v2 are written in the short form."""
    text = (
        "hca_id: mlx5_0\ntransport: InfiniBand (0)\nfw_ver: 22.36.1010\nnode_guid: 0200:0000:0000:0001\n"
        "phys_port_cnt: 1\nport: 1\nstate: PORT_ACTIVE (4)\nlink_layer: Ethernet\nactive_width: 4X (2)\n"
        "active_speed: 25.0 Gbps (32)\nGID[ 0]: fe80:0000:0000:0000:0200:00ff:fe00:0001, RoCE v1\n"
        "**GID[ 1]: fe80::200:ff:fe00:1, RoCE v2\nGID[ 3]: ::ffff:192.0.2.7, RoCE v2\n"
    )
    rdma = read(text).net.rdma
    assert known(rdma)
    port = rdma[0].ports[0]
    assert (port.state, port.rate_gbit_s) == ("ACTIVE", 100.0)
    assert known(port.gids)
    link_local, mapped = "fe80:0000:0000:0000:0200:00ff:fe00:0001", "0000:0000:0000:0000:0000:ffff:c000:0207"
    assert [(g.index, g.gid, g.type) for g in port.gids] == [
        (0, link_local, "IB/RoCE v1"),
        (1, link_local, "RoCE v2"),
        (3, mapped, "RoCE v2"),
    ]


def test_show_gids_and_ibv_devices() -> None:
    text = (
        "# show_gids\nDEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n---\t----\t-----\t---\t\t---\t---\n"
        "mlx5_0\t1\t4\tfe80:0000:0000:0000:0200:00ff:fe00:0001\t\t\tv1\tnet1\n"
        "mlx5_0\t1\t7\t0000:0000:0000:0000:0000:ffff:c000:0207\t192.0.2.7  \tv2\tnet1\nn_gids_found=2\n"
        "# ibv_devices\n    device          \t   node GUID\n    ------          \t----------------\n"
        "    mlx5_0          \t0200000000000001\n    mlx5_1          \t0200000000000002\n"
    )
    rdma = read(text).net.rdma
    assert known(rdma)
    assert [(d.name, d.node_guid) for d in rdma] == [
        ("mlx5_0", "0200:0000:0000:0001"),
        ("mlx5_1", "0200:0000:0000:0002"),
    ]
    gids = rdma[0].ports[0].gids
    assert known(gids)
    assert [(g.index, g.type, g.netdev) for g in gids] == [(4, "IB/RoCE v1", "net1"), (7, "RoCE v2", "net1")]


def test_nvidia_smi_q_with_the_line_ends_of_markdown() -> None:
    """A `\\` at the end is Markdown's: it must not make `Attached GPUs: 1` a machine without GPUs."""
    text = (
        "==============NVSMI LOG==============\n\nDriver Version                      : 367.106\n\n"
        "Attached GPUs                       : 1 \\\nGPU 0000:00:1E.0 \\\n"
        "    Product Name                    : Tesla K80 \\\n"
    )
    gpus = read(text).nvml.gpus
    assert known(gpus)
    assert [(g.name, g.address) for g in gpus] == [("Tesla K80", "0000:00:1e.0")]


def test_nvidia_smi_q_that_grep_cut() -> None:
    text = (
        "==============NVSMI LOG==============\nAttached GPUs                             : 1\nGPU 00000000:01:00.0\n"
        "    Product Name                          : NVIDIA A40\n--\n    GPU Virtualization Mode\n"
        "        Virtualization Mode               : Host VGPU\n"
    )
    gpus = read(text).nvml.gpus
    assert known(gpus)
    assert gpus[0].virtualization_mode == "HostVGPU"


def test_table_of_nvidia_smi_without_its_head() -> None:
    text = (
        "|=========================================+========================+======================|\n"
        "|   0  NVIDIA RTX PRO 6000 Blac...    On  |   00000000:42:00.0 Off |                    0 |\n"
        "| N/A   30C    P8             39W /  600W |       0MiB /  97887MiB |      0%      Default |\n"
        "|                                         |                        |             Disabled |\n"
    )
    gpus = read(text).nvml.gpus
    assert known(gpus)
    assert [(g.address, g.memory_total_bytes, g.mig_current) for g in gpus] == [("0000:42:00.0", 97887 << 20, False)]


def test_slices_show_that_mig_is_on() -> None:
    """`nvidia-smi -L` lists them below their GPU, `mig -lgi` in a table; neither says what is pending."""
    listed = (
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"
        "  MIG 1g.10gb     Device  0: (UUID: MIG-00000000-0000-0000-0000-000000000001)\n"
        "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-00000000-0000-0000-0000-000000000002)\n"
    )
    gpus = read(listed).nvml.gpus
    assert known(gpus)
    assert [g.mig_current for g in gpus][:1] == [True]
    assert not known(gpus[1].mig_current)
    table = "|   1  MIG 1g.10gb         19        9          2:1     |\n"
    gpus = read(f"$ nvidia-smi -L\n{listed}$ nvidia-smi mig -lgi\n{table}").nvml.gpus
    assert known(gpus)
    assert [g.mig_current for g in gpus] == [True, True]
    assert not known(gpus[1].mig_pending)


def test_modules_that_grep_picked() -> None:
    """What is shown is loaded; of what is not shown nothing is known."""
    node = read(
        "# lsmod | grep nvidia_fs\nnvidia_fs             253952  0\nnvidia              56508416  3 nvidia_fs\n"
    )
    assert sorted(node.system.modules) == ["nvidia", "nvidia_fs"]
    assert not node.lists_modules
    whole = read("Module                  Size  Used by\nnvidia_fs             253952  0\n")
    assert whole.lists_modules


def test_lines_of_lscpu_about_nodes() -> None:
    """Whether there are more nodes they do not say: a topology needs another text."""
    text = "NUMA node0 CPU(s):   0-15,128-143\nNUMA node1 CPU(s):   16-31,144-159\n"
    assert isinstance(read(text).numa.nodes, Missing)
    nodes = read(f"{text}$ cat /sys/devices/system/node/online\n0-1\n").numa.nodes
    assert known(nodes)
    assert [(n.node, n.cpulist) for n in nodes] == [(0, "0-15,128-143"), (1, "16-31,144-159")]


@pytest.mark.parametrize("path", LANGUAGES, ids=lambda p: p.stem)
def test_lscpu_in_another_language(path: Path) -> None:
    """What lscpu 2.38.1 prints on one guest under each of these locales: a machine of one node with two CPUs."""
    node = read(path.read_bytes())
    system = node.system
    assert (system.machine, system.cpu_vendor, system.cpu_model_name) == ("x86_64", "AuthenticAMD", "AMD EPYC")
    assert node.numa.online_cpus == "0-1"
    assert known(node.numa.nodes)
    assert [(n.node, n.cpulist) for n in node.numa.nodes] == [(0, "0-1")]
    assert lscpu.recognise(path.read_text())


def test_mst_status() -> None:
    text = (
        "DEVICE_TYPE             MST                           PCI       RDMA            NET                 NUMA  \n"
        "ConnectX7(rev:0)        /dev/mst/mt4129_pciconf5      e5:00.0   mlx5_5          net-ibp229s0        1     \n\n"
        "ConnectX7(rev:0)        /dev/mst/mt4129_pciconf0      41:00.0                                       0     \n"
    )
    rdma = read(text).net.rdma
    assert known(rdma)
    assert [(d.name, d.address, d.netdevs) for d in rdma] == [("mlx5_5", "0000:e5:00.0", ("ibp229s0",))]


@pytest.mark.parametrize(
    ("text", "total", "free"),
    [
        ("shm              64M     0   64M   0% /dev/shm\n", 64 << 20, 64 << 20),
        ("Dateisystem    1K-Bl\u00f6cke Benutzt Verf\u00fcgbar Verw% Eingeh\u00e4ngt auf\n"
         "tmpfs             65536     4096     61440    7% /dev/shm\n", 64 << 20, 60 << 20),
        ("tmpfs           1,5G     0   1,5G   0% /dev/shm\n", 3 << 29, 3 << 29),
    ],
)  # fmt: skip
def test_df(text: str, total: int, free: int) -> None:
    limits = read(f"$ df -h\n{text}").limits
    assert (limits.shm_total_bytes, limits.shm_free_bytes) == (total, free)


@pytest.mark.parametrize(
    "line",
    ["shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k,inode64 0 0",
     "shm on /dev/shm type tmpfs (rw,nosuid,nodev,noexec,relatime,size=65536k)"],
)  # fmt: skip
def test_the_size_that_mount_shows(line: str) -> None:
    """Docker's 64 MiB; how much is free a list of mounts does not say."""
    limits = read(f"$ mount | grep shm\n{line}\n").limits
    assert limits.shm_total_bytes == 64 << 20
    assert not known(limits.shm_free_bytes)
    assert read(f"{line}\nshm              64M   16M   48M  25% /dev/shm\n").limits.shm_free_bytes == 48 << 20


def test_df_without_a_unit_is_not_guessed() -> None:
    text = "$ df /dev/shm\ntmpfs 65536 0 65536 0% /dev/shm\n$ uname -a\nLinux n 6.8.0-31 #1 SMP x86_64 GNU/Linux\n"
    assert not known(read(text).limits.shm_total_bytes)


def test_service_that_failed() -> None:
    text = (
        "# systemctl status nvidia-fabricmanager.service\n\u00d7 nvidia-fabricmanager.service - NVIDIA fabric manager\n"
        "     Loaded: loaded (/lib/systemd/system/nvidia-fabricmanager.service; enabled)\n"
        "     Active: failed (Result: exit-code) since Wed 2026-01-28 10:12:13 UTC; 2 weeks ago\n"
    )
    assert read(text).system.fabric_manager == "failed"
    assert not known(read(text.replace("fabricmanager", "persistenced")).system.fabric_manager)
    gone = read("$ systemctl status nvidia-fabricmanager\nUnit nvidia-fabricmanager.service could not be found.\n")
    assert isinstance(gone.system.fabric_manager, Missing)
    assert "no such unit" in str(gone.system.fabric_manager)


def test_parts_that_are_not_understood_are_named() -> None:
    text = (
        "$ ibstat\nCA 'mlx5_0'\n\tCA type: MT4129\n$ mlxconfig -d /dev/secret0 q\nsomething\n```\na\nb\nc\n```\nprose\n"
    )
    answers = read_data("x", text.encode()).answers
    (file,) = answers["sources:"]["files"]  # type: ignore[index, call-overload]
    assert file["formats"] == ("ibstat", "not read: mlxconfig (line 4), lines 6-9")


def test_lines_of_lspci_that_grep_picked() -> None:
    """With their headers, or below a command that names the function; registers that are not shown are not known."""
    cap, sta = (
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n",
        "\t\tLnkSta:\tSpeed {}GT/s{}, Width x8 (downgraded)\n",
    )
    text = (
        '# lspci -vvv | grep -E "^[0-9a-f]|Lnk"\n01:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2331]\n'
        + cap + sta.format(32, "")
        + "# lspci -vvv -s 0000:02:00.0 | grep Lnk\n" + cap + sta.format(2.5, " (downgraded)")
        + "\t\tLnkSta2: Current De-emphasis Level: -3.5dB\n"
    )  # fmt: skip
    devices = read(text).pci.devices
    assert known(devices)
    assert [(d.address, d.current_speed_gt_s, d.current_width_lanes, d.max_speed_gt_s) for d in devices] == [
        ("0000:01:00.0", 32.0, 8, 32.0),
        ("0000:02:00.0", 2.5, 8, 32.0),
    ]
    assert not any(known(d.acs_control_word) for d in devices)


def test_a_block_of_lspci_that_ends_within_its_regions() -> None:
    text = (
        "41:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [15b3:1021]\n"
        "\tControl: I/O- Mem+ BusMaster+\n\tNUMA node: 0\n"
        "\tRegion 0: Memory at 23e044000000 (64-bit, prefetchable) [size=32M]\n"
    )
    assert "read:/sys/bus/pci/devices/0000:41:00.0/resource" not in read_data("x", text.encode()).answers
    whole = f"{text}\tCapabilities: [60] Express (v2) Endpoint, MSI 00\n"
    assert "read:/sys/bus/pci/devices/0000:41:00.0/resource" in read_data("x", whole.encode()).answers


def _block(n: int) -> str:
    return (
        f"GPU 00000000:{n + 16:02X}:00.0\n    Product Name                          : NVIDIA H100\n"
        f"    Minor Number                          : {n}\n"
    )


def test_nvidia_smi_q_without_its_head() -> None:
    """The driver's minor numbers tell which GPUs these are; a last block that ends before its own is not taken."""
    text = "        Pending                           : Disabled\n" + "".join(map(_block, (2, 3, 5)))
    gpus = read("==============NVSMI LOG==============\n" + text).nvml.gpus
    assert known(gpus)
    named = [(g.index, g.address) for g in gpus if known(g.address)]
    assert named == [(2, "0000:12:00.0"), (3, "0000:13:00.0"), (5, "0000:15:00.0")]
    gpus = read(text + "GPU 00000000:17:00.0\n    Product Name                          : NVIDIA H1").nvml.gpus
    assert known(gpus)
    assert [(g.index, g.address) for g in gpus if known(g.address)] == named


def test_a_uuid_that_a_text_ends_within() -> None:
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    text = f"==============NVSMI LOG==============\nAttached GPUs : 1\nGPU 00000000:01:00.0\n    GPU UUID  : {uuid}"
    whole, cut = (read(t).nvml.gpus for t in (text, text[:-4]))
    assert known(whole)
    assert known(cut)
    assert whole[0].uuid == uuid
    assert not known(cut[0].uuid)


@pytest.mark.parametrize("word", ["Infi", "Ethern", "InfiniBand; rm"])
def test_words_that_the_kernel_does_not_have(word: str) -> None:
    texts = (
        f"CA 'm'\n\tCA type: MT4129\n\tPort 1:\n\t\tLink layer: {word}\n",
        f"Infiniband device 'm' port 1 status:\n\tstate:\t\t 4: ACTIV\n\tlink_layer:\t {word}\n",
        f"hca_id:\tm\n\ttransport:\tInfiniBand (0)\n\tphys_port_cnt:\t1\n\t\tport:\t1\n\t\t\tlink_layer:\t{word}\n",
    )
    for text in texts:
        answers = read_data("x", text.encode()).answers
        assert not [q for q in answers if q.endswith(("link_layer", "/state"))]
