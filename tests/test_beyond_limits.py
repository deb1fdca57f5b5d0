"""Machines of more than any machine has: only the first part is looked at or judged, and that is said."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck import checks
from topocheck.cli import fleet_files, smi
from topocheck.host import base
from topocheck.host import input as given_files
from topocheck.host.base import Answer, Host, RecordedBackend, key
from topocheck.host.recording import snapshot
from topocheck.model import address, toml
from topocheck.model.address import format_cpulist, parse_cpulist, short_cpulist
from topocheck.model.base import Finding, State, known
from topocheck.nccl.logs import reader as log
from topocheck.nccl.predict import rank_file
from topocheck.nccl.topofile import graph_types, xml
from topocheck.pipeline import Report, build_report
from topocheck.policy import load as policy
from topocheck.probes import cuda, netdev, numa
from topocheck.probes import rdma as rdma_probe
from topocheck.probes.nvml import p2p
from topocheck.probes.nvml import probe as nvml
from topocheck.probes.pci import sysfs as pci
from topocheck.probes.pci import text as pci_text
from topocheck.probes.smi import text as smi_text
from topocheck.topology import build

PCI = "/sys/bus/pci/devices"
GPU, HCA, NVME = ("0x030200", "0x10de", "0x2330"), ("0x020700", "0x15b3", "0x1021"), ("0x010802", "0x144d", "0xa80a")


class Asked(RecordedBackend):
    """A recording that keeps which calls were asked."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        super().__init__(answers)
        self.calls: list[str] = []

    def ask(self, kind: str, *args: str | int) -> Answer:
        self.calls.append(key(kind, args[:1]))
        return super().ask(kind, *args)


@pytest.fixture(autouse=True)
def checks_are_found() -> None:
    checks.all_checks()


def place(n: int, first_domain: int = 0) -> str:
    return f"{first_domain + n // 32:04x}:{n % 32:02x}:00.0"


def functions(n: int, ids: tuple[str, str, str], first_domain: int = 0) -> dict[str, Answer]:
    """Answers of n functions, each right below a host bridge of its own."""
    class_, vendor, device = ids
    out: dict[str, Answer] = {f"list:{PCI}": [place(i, first_domain) for i in range(n)]}
    for i in range(n):
        a = place(i, first_domain)
        out |= {
            f"realpath:{PCI}/{a}": f"/sys/devices/pci{a[:7]}/{a}",
            f"read:{PCI}/{a}/class": class_,
            f"read:{PCI}/{a}/vendor": vendor,
            f"read:{PCI}/{a}/device": device,
        }
    return out


def report_of(answers: dict[str, Answer]) -> Report:
    return build_report(Host(RecordedBackend(answers), "made up"))


def cuts(report: Report) -> str:
    """What was left out, as the findings say."""
    found: Iterable[Finding] = (
        f for f in report.findings if f.id == "probe.failed" and f.title.startswith("more than")
    )
    texts = []
    for f in found:
        assert f.state is State.UNKNOWN
        texts.append(f.title)
    return "\n".join(texts)


def test_of_400_gpus_256_are_judged() -> None:
    report = report_of(functions(400, GPU))
    assert len(report.topology.gpus) == 256
    assert len(report.topology.paths) == 256 * 255
    assert report.topology.left_out == "144 of 400 GPUs"
    assert cuts(report) == "more than is looked at (devices: without 144 of 400 GPUs)"


def test_256_gpus_are_judged_without_a_cut() -> None:
    report = report_of(functions(256, GPU))
    assert (len(report.topology.gpus), report.topology.left_out, cuts(report)) == (256, "", "")


def test_of_gpus_times_nics_8192_pairs_are_judged() -> None:
    """64 GPUs leave 8192 / 64 = 128 NICs."""
    answers = functions(64, GPU) | rdma(200)
    answers[f"list:{PCI}"] = [*functions(64, GPU)[f"list:{PCI}"], *functions(200, HCA, 0x100)[f"list:{PCI}"]]  # type: ignore[misc]
    report = report_of(answers)
    assert (len(report.topology.gpus), len(report.topology.nics)) == (64, 128)
    assert report.topology.left_out == "72 of 200 RDMA NICs"


def rdma(n: int) -> dict[str, Answer]:
    out = functions(n, HCA, 0x100)
    out["list:/sys/class/infiniband"] = [f"mlx5_{i}" for i in range(n)]
    for i in range(n):
        device, a = f"/sys/class/infiniband/mlx5_{i}", place(i, 0x100)
        out |= {
            f"realpath:{device}/device": f"/sys/devices/pci{a[:7]}/{a}",
            f"list:{device}/ports": ["1"],
            f"read:{device}/ports/1/state": "4: ACTIVE",
        }
    return out


@pytest.mark.slow
def test_of_3000_hcas_1024_are_read() -> None:
    report = report_of(rdma(3000))
    assert len(report.topology.nics) == 1024
    assert cuts(report) == "more than is looked at (RDMA devices: the first 1024 of 3000)"


@pytest.mark.slow
def test_of_10000_pci_functions_8192_are_read() -> None:
    report = report_of(functions(10_000, NVME))
    assert known(report.node.pci.devices)
    assert len(report.node.pci.devices) == 8192
    assert "PCI functions: the first 8192 of 10000" in cuts(report)


@pytest.mark.parametrize("count", [257, 2**31 - 1, 2**31, -1])
def test_a_driver_that_counts_more_gpus_than_there_can_be_is_not_asked_of_each(count: int) -> None:
    backend = Asked({"nvml:DeviceGetCount": count})
    build_report(Host(backend, "made up"))
    assert [q for q in backend.calls if q.startswith("nvml:DeviceGet")] == ["nvml:DeviceGetCount"]


def test_a_count_of_gpus_beyond_reason_is_unknown() -> None:
    report = report_of({"nvml:DeviceGetCount": 2**31})
    assert not known(report.node.nvml.gpus)
    assert "2147483648: more than 256 GPUs" in str(report.node.nvml.gpus)


def test_lost_answers_to_one_call_are_named_up_to_a_number() -> None:
    """33 GPUs of which nothing else is known make 33 * 32 = 1056 questions of each kind, and 1024 are named."""
    answers: dict[str, Answer] = {"nvml:DeviceGetCount": 33}
    answers |= {f"nvml:DeviceGetPciInfo|{i}": {"busId": f"00000000:{i + 1:02x}:00.0"} for i in range(33)}
    report = report_of(answers)
    lost = [x for x in report.node.lost if x.question.startswith("nvml:DeviceGetP2PStatus|")]
    assert len(lost) == 1024
    assert "lost answers to nvml:DeviceGetP2PStatus: the first 1024 of 5280" in cuts(report)


def test_lines_names_variables_and_options_are_bounded() -> None:
    host = Host(
        RecordedBackend(
            {
                "lines:/proc/modules|ib": [f"ib{i} 1" for i in range(5000)],
                "list:/sys/module": [str(i) for i in range(20_000)],
                "environ:": {f"NCCL_{i}": "1" for i in range(2000)} | {"NCCL_LONG": "x" * 20_000},
                "kernel_options:": ["iommu=pt"] * 2000,
            }
        )
    )
    assert len(host.read_lines("/proc/modules", "ib")) == 4096
    assert len(host.listdir("/sys/module")) == 16_384
    assert len(host.environ()) == 1024
    assert len(host.kernel_options()) == 1024
    assert host.left_out[0] == "lines of /proc/modules: the first 4096 of 5000"
    assert len(host.left_out) >= 4


@pytest.mark.parametrize("text", ["0-9999999", "0-8192", "8192", "0-8191,0-8191", ",".join(["7"] * 8193)])
def test_a_list_of_more_numbers_than_the_kernel_has_is_no_list(text: str) -> None:
    for read in (parse_cpulist, short_cpulist):
        with pytest.raises(ValueError, match="not a kernel list"):
            read(text)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9)), max_size=20))
def test_the_shortest_form_of_a_kernel_list(ranges: list[tuple[int, int]]) -> None:
    text = ",".join(f"{first}-{first + more}" for first, more in ranges)
    assert short_cpulist(text) == format_cpulist(parse_cpulist(text))


def test_the_page_names_the_limits() -> None:
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    limits = page.partition("## Limits\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", limits, re.M))
    numbers = {what: [int(n) for n in re.findall(r"[0-9]+", row.replace(",", ""))] for what, row in rows.items()}
    mib = 1 << 20
    assert [numbers[what] for what in numbers if what.startswith("GPUs that NVML")] == [[build.MAX_GPUS]]
    assert {nvml.MAX_GPUS, cuda.MAX_DEVICES} == {build.MAX_GPUS}
    assert numbers["pairs of a GPU and a NIC"] == [build.MAX_NIC_PATHS]
    assert numbers["PCI functions; depth of the tree"] == [pci.MAX_FUNCTIONS, pci_text._MAX_DEPTH]
    assert numbers["RDMA devices; ports of one; GIDs of one"] == [
        rdma_probe.MAX_DEVICES,
        rdma_probe.MAX_PORTS,
        rdma_probe.MAX_GIDS,
    ]
    assert numbers["network interfaces"] == [netdev.MAX_INTERFACES]
    assert numbers["CPUs, and NUMA nodes"] == [address.MAX_NUMBERS, numa._MAX_NODES]
    assert numbers["names in a folder; lines of a file"] == [base.MAX_NAMES, base.MAX_LINES]
    assert numbers["variables and settings; characters of one"] == [base.MAX_VARIABLES, base.MAX_VALUE_CHARS]
    assert numbers["lost answers to one call that are named"] == [base.MAX_LOST]
    assert numbers["snapshot"] == [
        snapshot.MAX_FILE_BYTES // mib, snapshot.MAX_BYTES // mib, snapshot.MAX_ANSWERS // 10**6,
        snapshot.MAX_VALUES // 10**6,
    ]  # fmt: skip
    assert numbers["report for `fleet` and `diff`"] == [fleet_files.MAX_BYTES // mib, fleet_files.MAX_VALUES // 10**6]
    assert numbers["policy"] == [policy.MAX_BYTES // mib, toml.MAX_VALUES, toml.MAX_KEY_PARTS]
    assert numbers["rank file"] == [rank_file.MAX_BYTES // mib, rank_file.MAX_RANKS]
    nodes = graph_types.MAX_NODES
    assert numbers["topology file"] == [
        xml.MAX_BYTES // mib, xml.MAX_ELEMENTS, xml.MAX_DEPTH, nodes["GPU"], nodes["NET"], nodes["CPU"], nodes["PCI"],
    ]  # fmt: skip
    assert numbers["text of `nvidia-smi topo`"] == [smi.LIMIT_BYTES // mib, smi_text.MAX_TABLES, smi_text.MAX_LABELS]
    assert numbers["log of NCCL"] == [log.MAX_LINE]
    assert f"after {given_files.WRITER_S:g} s" in limits
    assert f"after {given_files.WAIT_S:g} s" in limits
    assert f"more than {p2p.ALL_KINDS_UP_TO} GPUs" in limits
