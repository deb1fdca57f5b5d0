"""Recordings made with `topocheck snapshot save` on real machines, and what other programs printed there.

`h100_x2_vm.snap`: a virtual machine with two H100 SXM cards behind NVSwitch, recorded as root; `..._user.snap` the
same as an ordinary user. On it, at the same moment (docs/measurements/):
`nvidia-smi topo -m`: NV18; `-mp`: PHB; `-p2p` r, w, n, a: OK, p: NS; CPU affinity 0-31.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import require_program
from topocheck.host.base import Host, RecordedBackend
from topocheck.host.recording.export import export_tree
from topocheck.host.recording.snapshot import load
from topocheck.model.base import State, Verdict
from topocheck.pipeline import build_report

FOLDER = Path(__file__).parent / "recordings"
FILES = ("h100_x2_vm.snap", "h100_x2_vm_user.snap")


@pytest.fixture(scope="module", params=FILES)
def report(request):
    return build_report(Host(RecordedBackend(load(str(FOLDER / request.param))[1]), request.param))


def test_classes_are_those_that_nvidia_smi_printed(report):
    pair = report.topology.path("0000:00:06.0", "0000:00:07.0")
    assert (pair.class_, pair.pcie_class, pair.nvlinks) == ("NV18", "PHB", 18)
    assert pair.theoretical_gb_s == 18 * 25.0
    assert [g.cpu_affinity for g in report.topology.gpus] == ["0-31", "0-31"]
    assert report.topology.flat_tree


def test_peer_access_is_that_which_nvidia_smi_printed(report):
    said = {(p.read, p.write, p.nvlink, p.atomics, p.pcie) for p in report.node.nvml.p2p}
    assert said == {("OK", "OK", "OK", "OK", "NS")}
    assert {v.verdict for v in report.gpudirect.p2p} == {Verdict.YES}
    assert {v.link for v in report.gpudirect.p2p} == {"nvlink"}


def test_its_own_cross_check_agreed(report):
    result = next(r for r in report.results if r.id == "consistency.smi-matrix-differs")
    assert result.state is State.OK


def test_healthy_machine_is_quiet(report):
    bad = [(f.id, f.title) for f in report.findings if f.state is not State.NOTE]
    assert not bad


def test_identifiers_were_replaced(report):
    """The serial numbers and UUIDs of the cards are not in the file; both UUIDs differ, as on the machine."""
    header, _ = load(str(FOLDER / FILES[0]))
    assert header.identifiers == "replaced"
    assert len({g.uuid for g in report.topology.gpus}) == 2


@pytest.mark.service
def test_lspci_reads_the_recorded_tree_as_we_do(tmp_path):
    """The functions of the machine by vendor:device, as its own sysfs files state them, and the GPUs' links."""
    require_program("lspci")
    tree = tmp_path / "tree"
    answers = load(str(FOLDER / FILES[0]))[1]
    export_tree(answers, str(tree))
    argv = ["lspci", "-O", f"sysfs.path={tree}/sys/bus/pci", "-n"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert [line.split()[2] for line in listed.splitlines()] == [
        "8086:0d57", "1af4:1042", "1af4:1042", "1af4:1041", "1af4:1053", "1af4:1044", "10de:2330", "10de:2330",
    ]  # fmt: skip
    # It exits with 1 here, for files that no probe asked for (irq).
    detail = subprocess.run([*argv, "-vv", "-s", "00:06.0"], capture_output=True, text=True, check=False).stdout
    devices = build_report(Host(RecordedBackend(answers))).node.pci.devices
    device = next(d for d in devices if d.address == "0000:00:06.0")
    link = re.search(r"LnkSta:\s*Speed ([\d.]+)GT/s.*?Width x(\d+)", detail)
    assert link is not None
    assert (device.sta_speed_gt_s, device.sta_width_lanes) == (float(link[1]), int(link[2]))
