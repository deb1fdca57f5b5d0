"""Files that say different things of one machine: each kind of fact is a finding; two ways to say the same is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.readers.test_files import LSPCI
from topocheck.host.base import Host, RecordedBackend
from topocheck.model.base import InputError
from topocheck.model.node import SourcesDiffer
from topocheck.pipeline import build_report
from topocheck.readers.base import Answers, Reading, Text
from topocheck.readers.merge import merge
from topocheck.readers.together import joined

SMI = """==============NVSMI LOG==============

Driver Version                            : 580.65.06
CUDA Version                              : 13.0
Attached GPUs                             : 1
GPU 00000000:01:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU UUID                              : GPU-00000001-0000-0000-0000-000000000000
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    BAR1 Memory Usage
        Total                             : 131072 MiB
"""
IBSTAT = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.43.2566
\tNode GUID: 0x0200000000000003
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 27
\t\tLink layer: InfiniBand
"""
NUMA = """available: 2 nodes (0-1)
node 0 cpus: 0 1 2 3
node 0 size: 100 MB
node 1 cpus: 4 5 6 7
node 1 size: 100 MB
node distances:
node   0   1
  0:  10  21
  1:  21  10
"""
LSCPU = """Architecture:        x86_64
Byte Order:          Little Endian
On-line CPU(s) list: 0-7
Vendor ID:           GenuineIntel
CPU family:          6
Model:               143
Model name:          Intel(R) Xeon(R) Platinum 8480+
NUMA node(s):        2
NUMA node0 CPU(s):   0-3
NUMA node1 CPU(s):   4-7
"""
IP = "2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default qlen 1000\n"
UNAME = "Linux gpu-01 6.8.0-31-generic #31-Ubuntu SMP PREEMPT_DYNAMIC Sat Apr 20 00:40:06 UTC 2024 x86_64 GNU/Linux\n"
NVLINK = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000001-0000-0000-0000-000000000000)\n\t Link 0: 26.562 GB/s\n"
DMESG = """[    0.000000] Linux version 6.8.0-31-generic (x@y) (gcc) #31-Ubuntu SMP
[    0.000000] Command line: BOOT_IMAGE=/vmlinuz ro iommu=pt
[    1.000000] pci 0000:01:00.0: [10de:20f1] type 00 class 0x030200 PCIe Endpoint
"""
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0-3\t0\nGPU1\tPIX\t X \t0-3\t0\n"
ENV = "PATH=/bin\nHOME=/root\nNCCL_DEBUG=INFO\n"


def differences(*files: str) -> tuple[SourcesDiffer, ...]:
    answers = joined([(Path(f"{n}.txt"), text.encode()) for n, text in enumerate(files)])
    judged = build_report(Host(RecordedBackend(answers)))
    assert judged.node.made_from is not None
    differ = judged.node.made_from.differ
    told = [f for f in judged.findings if f.id == "consistency.sources-differ"]
    assert [f.state.value for f in told] == ["warn"] * len(differ)
    for f, d in zip(sorted(told, key=lambda f: f.subject), sorted(differ, key=lambda d: d.question), strict=True):
        assert [e.raw for e in f.evidence] == [d.first, d.other]
    return differ


@pytest.mark.parametrize(
    ("text", "old", "new", "question"),
    [
        (LSPCI, "10de:20f1", "10de:2330", "/0000:01:00.0/device"),
        (LSPCI, "3D controller [0302]", "VGA compatible controller [0300]", "/0000:01:00.0/class"),
        (LSPCI, "Speed 16GT/s, Width x16, ASPM", "Speed 32GT/s, Width x16, ASPM", "max_link_speed"),
        (
            LSPCI,
            "LnkCap:\tPort #0, Speed 16GT/s, Width x16",
            "LnkCap:\tPort #0, Speed 16GT/s, Width x8",
            "max_link_width",
        ),
        (LSPCI, "Kernel driver in use: nvidia", "Kernel driver in use: vfio-pci", "/driver"),
        (LSPCI, "NUMA node: 0", "NUMA node: 1", "/numa_node"),
        (LSPCI, "[size=64G]", "[size=128G]", "/resource"),
        (SMI, "580.65.06", "570.86.15", "SystemGetDriverVersion"),
        (SMI, "GPU-00000001", "GPU-00000002", "DeviceGetUUID|0"),
        (
            SMI,
            "Current                           : Disabled",
            "Current                           : Enabled",
            "GetMigMode",
        ),
        (
            SMI,
            "CUDA Version                              : 13.0",
            "CUDA Version                              : 12.8",
            "Cuda",
        ),
        (IBSTAT, "0x0200000000000003", "0x0200000000000004", "node_guid"),
        (IBSTAT, "28.43.2566", "28.40.1000", "fw_ver"),
        (IBSTAT, "State: Active", "State: Down", "ports/1/state"),
        (IBSTAT, "Link layer: InfiniBand", "Link layer: Ethernet", "link_layer"),
        (NUMA, "node 1 cpus: 4 5 6 7", "node 1 cpus: 4 5 6", "node1/cpulist"),
        (NUMA, "  0:  10  21", "  0:  10  32", "node0/distance"),
        (LSCPU, "GenuineIntel", "AuthenticAMD", "/proc/cpuinfo"),
        (IP, "mtu 9000", "mtu 1500", "eth0/mtu"),
        (UNAME, "6.8.0-31-generic", "6.5.0-1-generic", "osrelease"),
        (UNAME, "gpu-01", "gpu-02", "hostname"),
        (NVLINK, "26.562 GB/s", "<inactive>", "DeviceGetNvLinkState|0|0"),
        (DMESG, "iommu=pt", "iommu=off", "kernel_options"),
        (DMESG, "10de:20f1", "10de:2330", "/device"),
        (MATRIX, "PIX", "SYS", "topo|-m"),
        (ENV, "NCCL_DEBUG=INFO", "NCCL_DEBUG=WARN", "environ"),
    ],
)
def test_each_kind_of_fact(text: str, old: str, new: str, question: str) -> None:
    assert old in text
    found = differences(text, text.replace(old, new))
    assert any(question in d.question for d in found), found
    first = found[0]
    assert first.first_at.startswith("0.txt")
    assert first.other_at.startswith("1.txt")


@pytest.mark.parametrize(
    "files",
    [
        (
            LSPCI,
            "\n".join(x for x in LSPCI.split("\n") if x[:1].isdigit()).replace(" (prog-if 00 [Normal decode])", ""),
        ),
        (LSPCI.replace("3D controller [0302]", "3D controller [0302]"), DMESG),
        (NUMA, LSCPU),
        (UNAME, UNAME.replace("gpu-01", "gpu-01.cluster.example")),
        (SMI, SMI.replace("580.65.06", "580.65.06 ")),
        (DMESG, DMESG + "[    9.000000] NVRM: Xid (PCI:0000:01:00): 31, pid=1\n"),
        (
            IBSTAT,
            "Infiniband device 'mlx5_0' port 1 status:\n\tstate:\t\t 4: ACTIVE\n\trate:\t\t 400 Gb/sec (4X NDR)\n",
        ),
        (SMI, "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000001-0000-0000-0000-000000000000)\n", NVLINK),
    ],
    ids=["-vvv and -nn", "lspci and dmesg", "numactl and lscpu", "host names", "blank", "two logs", "rates", "smi"],
)
def test_two_ways_to_say_the_same(files: tuple[str, ...]) -> None:
    assert differences(*files) == ()
    assert differences(*files[::-1]) == ()


def test_two_recordings_are_two_machines_or_two_moments() -> None:
    """The second one's findings must not be lost: it is refused, with the command that compares the two."""
    examples = Path(__file__).parents[2] / "docs/examples"
    files = [(p, p.read_bytes()) for p in (examples / "repaired.snap", examples / "half_width.snap")]
    with pytest.raises(InputError, match=r"topocheck diff \S*repaired.snap \S*half_width.snap"):
        joined(files)
    answers = joined([files[1], (Path("ibstat.txt"), IBSTAT.encode())])
    judged = build_report(Host(RecordedBackend(answers)))
    assert "pcie.link-width" in {f.id for f in judged.findings if f.state.value == "fail"}


def test_a_width_that_two_texts_differ_in() -> None:
    """Lanes do not change with load: it is told, and what is judged is of one of the texts, as its evidence is."""
    narrow = LSPCI.replace("Width x8 (downgraded)\n", "Width x4 (downgraded)\n")
    assert narrow != LSPCI
    found = differences(LSPCI, narrow)
    assert {(d.first, d.other) for d in found if d.question.endswith("current_link_width")} == {("8", "4")}
    answers = joined([(Path("0"), LSPCI.encode()), (Path("1"), narrow.encode())])
    places = answers["sources:"]["places"]  # type: ignore[index, call-overload]
    of_function = {v.partition(":")[0] for k, v in places.items() if k.startswith("lspci:") or "current_link" in k}
    assert of_function == {"0"}


def test_of_a_counter_the_larger_is_used() -> None:
    """Both are of one start of the machine, so the larger is the later."""
    texts = []
    for n in (0, 7):
        found = Answers()
        found.file(1, "/sys/bus/pci/devices/0000:01:00.0/aer_dev_correctable", f"RxErr {n}\nTOTAL_ERR_COR {n}")
        texts.append(Reading(text=Text(name=f"{n}.txt", text=""), reader="x", found=found))
    for order in (texts, texts[::-1]):
        merged = merge(order)
        assert merged.answers == texts[1].found.answers
        assert merged.differences == []


def test_the_fuller_text_is_taken_whichever_comes_first() -> None:
    short = "\n".join(x for x in LSPCI.split("\n") if x[:1].isdigit())
    for files in ((LSPCI, short), (short, LSPCI)):
        answers = joined([(Path(f"{n}.txt"), text.encode()) for n, text in enumerate(files)])
        judged = build_report(Host(RecordedBackend(answers)))
        devices = judged.node.pci.devices
        assert not isinstance(devices, tuple) or devices[1].acs_control_word == 0b11101
