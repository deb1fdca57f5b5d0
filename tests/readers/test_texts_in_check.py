"""Texts given to `check`: one finding for all that they lack, a matrix judged as by `report`, NICs of lspci named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.machines.builder import machine
from tests.readers import texts
from topocheck.cli.check import check
from topocheck.cli.report import report
from topocheck.host.base import Host, HostError, RecordedBackend
from topocheck.model.base import Missing, Reason
from topocheck.model.node import Lost
from topocheck.pipeline import Report, build_report, read_node
from topocheck.readers.files import read_data

LSPCI = """\
00:01.0 PCI bridge: Intel Corporation Device 352a (rev 04)
\tNUMA node: 0
\tBus: primary=00, secondary=01, subordinate=01, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #1, Speed 32GT/s, Width x16
\t\tLnkSta:\tSpeed 32GT/s (ok), Width x16 (ok)
\tKernel driver in use: pcieport
01:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
\tNUMA node: 0
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16
\t\tLnkSta:\tSpeed 32GT/s (ok), Width x16 (ok)
\tKernel driver in use: nvidia
02:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\tNUMA node: 0
\tKernel driver in use: mlx5_core
"""

OFF_NVLINK = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tNODE\tNV18\t0-31\t0
GPU1\tNV18\t X \tNODE\tNV18\t0-31\t0
GPU2\tNODE\tNODE\t X \tNODE\t0-31\t0
GPU3\tNV18\tNV18\tNODE\t X \t0-31\t0
"""

REFUSED = """\
\tGPU0\tGPU1
 GPU0\tX\tCNS
 GPU1\tCNS\tX

Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
"""

DMESG = """\
[    0.000000] Linux version 6.8.0-60-generic (buildd@host) #63-Ubuntu SMP
[    1.000000] pci 0000:01:00.0: [10de:2330] type 00 class 0x030200 PCIe Endpoint
[    1.100000] pci 0000:00:01.0: PCI bridge to [bus 01]
[  100.000000] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
"""


def _of(name: str, text: str) -> set[tuple[str, str]]:
    read = read_data(name, text.encode())
    return {(f.id, f.state.value) for f in build_report(Host(RecordedBackend(read.answers), name)).findings}


def test_what_lspci_lacks_is_said_once() -> None:
    assert _of("lspci.txt", LSPCI) == {("probe.answers-lost", "unknown")}


def test_a_nic_of_lspci_is_named_though_its_ports_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "lspci.txt"
    path.write_text(LSPCI)
    out = run(report, "--from", path, "--all", "--width", "200").out
    assert "0000:02:00.0 MT2910 Family [ConnectX-7]" in out
    assert "RDMA devices and ports not known" in out
    assert "no RDMA" not in out
    assert "NICs per server   not known" in out


def test_rdma_devices_without_an_address_are_not_missing(tmp_path: Path) -> None:
    path, ports = tmp_path / "lspci.txt", tmp_path / "ibstat.txt"
    path.write_text("00:00.0 Host bridge: Intel Corporation Device 09a2\n" + LSPCI)
    ports.write_text(IBSTAT)
    given = ("--from", path, "--from", ports)
    told = json.loads(run(check, *given, "--format", "json").out)
    assert "rdma.no-device" not in {f["id"] for f in told["findings"]}
    assert next(r for r in told["checks"] if r["id"] == "rdma.no-device")["state"] == "unknown"
    verbose = run(check, *given, "-v").out
    assert "-v lists them" not in verbose
    # two functions and one device: one of them has none
    second = LSPCI[LSPCI.index("02:00.0") :].replace("02:00.0", "03:00.0")
    path.write_text(f"00:00.0 Host bridge: Intel Corporation Device 09a2\n{LSPCI}{second}")
    said = " ".join(run(check, *given).out.split())
    assert "2 InfiniBand functions on the PCI bus" in said
    assert "and only 1 RDMA device" in said


def test_check_judges_a_matrix_as_report_does(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(OFF_NVLINK)
    ran = run(check, "--from", path, "--width", "200")
    assert ran.code == 1
    assert "nvlink.links-down  GPU2" in ran.out
    assert "GPU2 alone has no NVLink" in ran.out
    assert "probe.answers-lost" not in ran.out
    assert "GPU2 alone has no NVLink" in run(report, "--from", path, "--width", "200").out


def test_check_of_a_matrix_keeps_to_the_checks_that_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(OFF_NVLINK)
    ran = run(check, "--from", path, "--only", "p2p.*")
    assert "nvlink.links-down" not in ran.out


def test_a_p2p_matrix_alone_is_one_too(tmp_path: Path) -> None:
    path = tmp_path / "p2p.txt"
    path.write_text(REFUSED)
    ran = run(check, "--from", path, "-v", "--notes", "--width", "200")
    assert "p2p.refused" in ran.out
    assert "CNS" in ran.out
    assert "hidden from here" not in ran.out


@pytest.mark.parametrize("name", ["h100_x2_vm", "l40s_x8"])  # one pair of GPUs, and many
def test_peer_access_that_the_files_cannot_hold_is_no_finding_of_a_pair(tmp_path: Path, name: str) -> None:
    gpus = read_node(Host(machine(name).backend, name)).nvml
    asked, given = tmp_path / "smi_q.xml", tmp_path / "topo.txt"
    asked.write_text(texts.smi_xml(gpus))
    assert not isinstance(gpus.gpus, Missing)
    labels = [f"GPU{g.index}" for g in gpus.gpus]
    rows = [[" X " if a == b else "NODE" for b in labels] for a in labels]
    given.write_text(
        "\t"
        + "\t".join(labels)
        + "\n"
        + "".join(f"{a}\t" + "\t".join(r) + "\n" for a, r in zip(labels, rows, strict=True))
    )
    told = json.loads(run(check, "--from", asked, "--from", given, "--format", "json").out)
    assert [f["id"] for f in told["findings"] if f["id"].startswith("p2p.")] == []
    assert next(r for r in told["checks"] if r["id"] == "p2p.refused")["state"] == "unknown"
    shown = run(report, "--from", asked, "--from", given, "--width", "200").out
    assert "UNKNOWN  p2p." not in shown
    matrix = shown[shown.index("Matrix") : shown.index("Devices")]
    assert "UNKNOWN" not in matrix


def test_peer_access_that_was_asked_for_and_not_answered_stays_a_finding(tmp_path: Path) -> None:
    gpus = read_node(Host(machine("h100_x2_vm").backend, "x")).nvml
    answers = dict(read_data("smi_q.xml", texts.smi_xml(gpus).encode()).answers)
    answers |= {
        f"nvml:DeviceGetP2PStatus|{pair}|{n}": HostError(Reason.DENIED) for pair in ("0|1", "1|0") for n in range(5)
    }
    found = {f.id for f in build_report(Host(RecordedBackend(answers), "x")).findings}
    assert "p2p.refused" in found


def test_xids_of_a_text_of_dmesg_are_judged() -> None:
    assert ("driver.kernel-log-errors", "note") in _of("dmesg.txt", DMESG)
    lost = (
        "[  100.000000] NVRM: The NVIDIA GPU 0000:01:00.0\n"
        "               NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    assert ("driver.kernel-log-errors", "note") in _of("dmesg.txt", DMESG[: DMESG.index("[  100")] + lost)


NCCL_XML = """\
<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:19:00.0" class="0x030200" vendor="0x10de" device="0x2330">
      <gpu dev="0" sm="90" rank="0" gdr="1"/>
    </pci>
  </cpu>
</system>
"""
IBSTAT = """\
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tLink layer: InfiniBand
"""


TREE = (
    "-[0000:00]-+-00.0  Device 8086:0d57\n           +-06.0  Device 10de:2335\n           \\-07.0  Device 10de:2335\n"
)
"""Of a node with two GPUs, by `lspci -tv` without pci.ids: no class stands in it."""


@pytest.mark.parametrize("text", [NCCL_XML, IBSTAT, LSPCI, TREE], ids=["nccl-xml", "ibstat", "lspci", "lspci-tv"])
def test_what_does_not_tell_what_the_driver_says_is_not_determined(text: str, tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_text(text)
    said = run(check, "--from", path)
    assert said.code == 3
    assert "probe nvml: not in the given files" in " ".join(said.out.split())
    assert "no GPU was found" not in said.out


def test_a_tree_without_gpus_needs_no_driver(tmp_path: Path) -> None:
    path = tmp_path / "lspci.txt"
    path.write_text(
        LSPCI.replace("NVIDIA Corporation Device 2330", "Matrox Device 0536").replace(
            "driver in use: nvidia", "driver in use: mgag200"
        )
    )
    assert run(check, "--from", path).code == 0


def test_gpus_that_a_file_cannot_name_are_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "ibstat.txt"
    path.write_text(IBSTAT)
    out = run(report, "--from", path).out
    assert "not recorded in the given files" in out
    assert "none found" not in out


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    path = tmp_path / "ibstat.txt"
    path.write_text("")
    assert "is empty; expected a snapshot" in run(check, "--from", path).error


def _port(n: int, state: str, physical: str) -> str:
    return (
        IBSTAT.replace("mlx5_0", f"mlx5_{n}")
        .replace("Active", state)
        .replace("LinkUp", physical)
        .replace("\tPort 1", f"\tSystem image GUID: 0xa088c2030{n:07x}\n\tPort 1")
    )


@pytest.mark.parametrize(
    ("state", "physical", "found"),
    [
        ("Down", "Polling", ("warn", "is down (DOWN, Polling): no signal from the other end; of the other")),
        ("Down", "Disabled", ("note", "is down (DOWN, Disabled): it is switched off")),
        ("Initializing", "LinkUp", ("warn", "is down (INIT, LinkUp): the link is up, and no subnet manager")),
        ("Active", "LinkUp", None),
    ],
)
def test_ports_of_ibstat_alone_are_shown_and_judged(
    state: str, physical: str, found: tuple[str, str] | None, tmp_path: Path
) -> None:
    """Seven cards, of which the last has a port in some state; no text tells the PCI functions."""
    path = tmp_path / "ibstat.txt"
    path.write_text("".join(_port(n, "Active", "LinkUp") for n in range(6)) + _port(6, state, physical))
    down = [f for f in _report(path.read_text()).findings if f.id == "rdma.port-down"]
    assert [(f.state.value, f.subject) for f in down] == ([(found[0], "mlx5_6 port 1")] if found else [])
    assert found is None or found[1] in down[0].title
    shown = run(report, "--from", path, "--section", "nics").out
    assert ("mlx5_0-mlx5_5  MT4129" if found else "mlx5_0-mlx5_6  MT4129") in shown
    assert "PCI address not known" in shown


def test_two_functions_of_one_card_are_no_siblings_of_each_other() -> None:
    """A card's second port that nobody cabled: the functions of a card have one system image (IBTA 14.2.5.3)."""
    texts = []
    for card in range(4):
        for function, state in ((0, ("Active", "LinkUp")), (1, ("Down", "Polling"))):
            guid = f"System image GUID: 0xa088c2030{card:07x}"
            text = _port(2 * card + function, *state)
            texts.append(text.replace(f"System image GUID: 0xa088c2030{2 * card + function:07x}", guid))
    states = {f.state.value for f in _report("".join(texts)).findings if f.id == "rdma.port-down"}
    assert states == {"note"}


def _report(text: str) -> Report:
    return build_report(Host(RecordedBackend(read_data("ibstat.txt", text.encode()).answers)))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('<system version="1">\n <cpu numaid="0"\n</system>\n', "line 3, column 1:"),
        ('$ uname -a\nx\n$ nvidia-smi -q -x\n<?xml version="1.0"?>\n<nvidia_smi_log>\n <a b>', "line 6, column 6:"),
        (
            '<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
            '<topology version="2.0">\n <object type="Machine"\n</topology>',
            "line 5, column 1:",
        ),
    ],
)
def test_damaged_xml_is_named_with_line_and_column_of_the_file(text: str, place: str, tmp_path: Path) -> None:
    """Where the parser stops, counted by hand: at a `<` inside a tag, at a `>` for a `=`."""
    path = tmp_path / "given.xml"
    path.write_text(text)
    assert run(report, "--from", path).error.startswith(f"given.xml: {place}")


def test_a_matrix_alone_says_what_it_cannot_show(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(OFF_NVLINK)
    said = " ".join(run(check, "--from", path).out.split())
    assert "probe pci: a matrix alone does not show the PCI tree; add lspci -vvv" in said
    assert "not run" not in said


def test_what_is_lost_is_named_as_people_know_it() -> None:
    found = next(f for f in _report(IBSTAT).findings if f.id == "probe.answers-lost")
    sources = [e.source for e in found.evidence]
    assert sources
    assert not [s for s in sources if "|" in s or s.startswith(("lines:", "read:", "conf:", "nvml:"))]


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        ("lines:/proc/modules|nvidia |nvidia_uvm ", "/proc/modules"),
        ("read:/sys/bus/pci/devices/0000:01:00.0/config|64", "/sys/bus/pci/devices/0000:01:00.0/config"),
        ("nvml:DeviceGetP2PStatus|0|1|1", "NVML DeviceGetP2PStatus(0, 1, 1)"),
        ("cuda:DriverGetVersion", "CUDA DriverGetVersion"),
        ("environ:", "environment"),
        ("run:nvidia-smi|topo|-m", "nvidia-smi topo -m"),
        ("psutil:net_netmasks", "psutil net_netmasks"),
        ("probe:nvml", "probe nvml"),
    ],
)
def test_source_of_a_lost_answer(question: str, shown: str) -> None:
    assert Lost(probe="x", question=question, why=Missing(Reason.DENIED)).shown == shown


NARROW = (
    LSPCI.replace("Width x16 (ok)", "Width x8")
    .replace("LnkSta:\tSpeed 32GT/s (ok)", "LnkSta:\tSpeed 32GT/s")
    .partition("02:00.0")[0]
)


def test_a_link_with_both_ends_in_the_text_is_judged_as_on_bare_metal() -> None:
    assert ("pcie.link-width", "fail") in _of("lspci.txt", NARROW)


@pytest.mark.parametrize(
    "bridge",
    [
        "00:00.0 Host bridge [0600]: Intel Corporation 82G33/G31/P35/P31 Express DRAM Controller [8086:29c0]\n",
        "00:02.0 VGA compatible controller [0300]: Red Hat, Inc. QXL paravirtual graphic card [1b36:0100] (rev 05)\n",
        "00:03.0 Ethernet controller [0200]: Red Hat, Inc. Virtio network device [1af4:1041]\n",
    ],
)
def test_an_emulated_function_in_the_text_tells_a_guest(bridge: str) -> None:
    assert ("pcie.link-width", "fail") not in _of("lspci.txt", bridge + NARROW)


def test_without_a_known_hypervisor_nothing_is_said_of_hosts_and_guests(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    path.write_text(WIDTH)
    out = run(check, "--from", path, "--width", "200").out
    assert "x8 of the card's x16" in out
    assert "DeviceGetCurrPcieLinkWidth" in out
    assert "host" not in out
    assert "guest" not in out


WIDTH = """\
==============NVSMI LOG==============

Driver Version                            : 535.129.03

Attached GPUs                             : 1
GPU 00000000:17:00.0
    Product Name                          : NVIDIA A100 80GB PCIe
    PCI
        Bus Id                            : 00000000:17:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 4
            Link Width
                Max                       : 16x
                Current                   : 8x
    Performance State                     : P0
"""

LOST_TABLE = """\
| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |
| N/A   31C    P0              62W / 400W |      4MiB / 81920MiB |      0%      Default |
|   1  ERR!                           On  | 00000000:47:00.0 Off |                 ERR! |
|ERR!  ERR!  ERR!              N/A / ERR! |  GPU is lost         |     ERR!        ERR! |
"""

SILENT_TABLE = """\
| NVIDIA-SMI 525.85.12    Driver Version: 525.85.12    CUDA Version: 12.0     |
|   0  NVIDIA A100-SXM...  On   | 00000000:07:00.0 Off |                    0 |
| N/A   34C    P0    60W / 400W |      0MiB / 81920MiB |      0%      Default |
|   1  ERR!                On   | 00000000:47:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!    ERR! / ERR! |      0MiB / 81920MiB |    ERR!      Default |
|                               |                      |                 ERR! |
"""
"""Of a GPU whose firmware does not answer the driver (Xid 119)."""

LOST_QUERY = """\
==============NVSMI LOG==============

Attached GPUs                             : 2
GPU 00000000:07:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
GPU 00000000:47:00.0
    Product Name                          : GPU is lost
    GPU UUID                              : GPU is lost
    PCI
        Bus Id                            : GPU is lost
"""


@pytest.mark.parametrize("text", [LOST_TABLE, SILENT_TABLE, LOST_QUERY])
def test_a_lost_gpu_fails(text: str) -> None:
    found = build_report(Host(RecordedBackend(read_data("smi.txt", text.encode()).answers)))
    assert [(f.id, f.devices) for f in found.findings if f.state.value == "fail"] == [
        ("pcie.device-lost", ("0000:47:00.0",))
    ]
    assert not any(g.name in ("ERR!", "GPU is lost") for g in found.topology.gpus)


def test_an_error_of_one_sensor_is_no_lost_gpu() -> None:
    table = LOST_TABLE.split("|   1")[0].replace("62W / 400W", "ERR! / 400W")
    found = build_report(Host(RecordedBackend(read_data("smi.txt", table.encode()).answers)))
    assert not [f.id for f in found.findings if f.state.value == "fail"]


_ZERO = "[    0.000000] Linux version 6.8.0 (b@h) #1 SMP\n[    0.000000] "
_CPU = "Architecture: x86_64\nByte Order: Little Endian\nVendor ID: GenuineIntel\nModel name: Xeon\n"


@pytest.mark.parametrize(
    ("text", "hypervisor"),
    [
        (_ZERO + "DMI: Supermicro SYS-420GP-TNR/X12DPG-OA6, BIOS 1.4 07/11/2022\n", Reason.NOT_RECORDED),
        (_ZERO + "DMI: QEMU Standard PC (Q35 + ICH9, 2009), BIOS 1.16 04/01/2014\n", "KVM"),
        (_ZERO + "DMI: Microsoft Corporation Virtual Machine/Virtual Machine, BIOS 090008 12/07/2018\n", "Microsoft"),
        (_ZERO + "DMI: Amazon EC2 p4d.24xlarge/, BIOS 1.0 10/16/2017\n", "KVM"),
        (_ZERO + "DMI: Amazon EC2 i3.metal/, BIOS 1.0 10/16/2017\n", Reason.NOT_RECORDED),
        (_ZERO + "Hypervisor detected: KVM\n", "KVM"),
        (_CPU + "NUMA node(s): 1\nNUMA node0 CPU(s): 0-7\nFlags: fpu vme\n", Reason.ABSENT),
        (_CPU + "Hypervisor vendor: KVM\nNUMA node(s): 1\nNUMA node0 CPU(s): 0-7\n", "KVM"),
        (_CPU, Reason.NOT_RECORDED),
    ],
)
def test_what_tells_a_guest(text: str, hypervisor: str | Reason) -> None:
    found = read_node(Host(RecordedBackend(read_data("a.txt", text.encode()).answers))).system.hypervisor
    assert (found.reason if isinstance(found, Missing) else found) == hypervisor
