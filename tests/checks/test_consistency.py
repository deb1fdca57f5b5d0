"""Checks of what should agree, on described machines with one planted difference, and on healthy look-alikes."""

from __future__ import annotations

import msgspec
import pytest

from tests.checks.support import Row, assert_row, context, findings, healthy, variant
from tests.machines.builder import machine
from topocheck.checks.consistency.visible_devices import resolve
from topocheck.model.base import ProbeStatus, State
from topocheck.model.gpu import MigInstance, NvmlGpu
from topocheck.pipeline import read_node

F, W, N, U = State.FAIL, State.WARN, State.NOTE, State.UNKNOWN
HGX = "hgx_h100_cx7"
GPU3 = "0000:5c:00.0 GPU3"
DIFFER, NVML_SYSFS = "consistency.siblings-differ", "consistency.nvml-vs-sysfs"
VISIBLE, ORDER = "consistency.visible-devices", "consistency.device-order"

ROWS = [
    Row(id=DIFFER, machine=HGX, change={"gpu": {"3": {"ecc": 0}}}, state=W, subject=GPU3,
        says=("ECC mode", "GPU3 off", "7 of this model on", "nvidia-smi")),
    Row(id=DIFFER, machine=HGX, change={"gpu": {"3": {"bar1_mib": 256}}}, state=W, subject=GPU3, says=("BAR1",)),
    Row(id=DIFFER, machine=HGX, change={"gpu": {"3": {"nvlink_mb_s": 25000}}}, state=W, subject=GPU3,
        says=("25000", "26562")),
    Row(id=DIFFER, machine=HGX, change={"gpu": {"3": {"vbios": "96.00.61.00.01"}}}, state=N, subject=GPU3,
        says=("VBIOS",)),
    Row(id=DIFFER, machine=HGX, change={"gpu": {str(i): {"vbios": "96.00.61.00.01"} for i in range(4)}}, state=N,
        subject="node"),
    Row(id=DIFFER, machine="h100_x2_vm", change={"patch": {"GPU1": {"now": "5x8"}}}, state=W, says=("x8", "x16")),
    Row(id=DIFFER, machine=HGX, change={"nvml": {"DeviceGetBAR1MemoryInfo|3": {"error": "Unknown"}}}, state=U,
        subject=GPU3, says=("does not report BAR1",)),
    Row(id=DIFFER, machine=HGX, change={"nvml": {"DeviceGetBAR1MemoryInfo|*": {"error": "NotSupported"}}}),
    Row(id=DIFFER, machine=HGX),
    Row(id=DIFFER, machine="h22_mixed_gpus"),
    Row(id=DIFFER, machine="laptop", applies=False),
    Row(id=NVML_SYSFS, machine=HGX, change={"nvml": {"DeviceGetCurrPcieLinkWidth|3": 8}}, state=W, subject=GPU3,
        says=("NVML says x8", "kernel x16")),
    Row(id=NVML_SYSFS, machine=HGX, change={"nvml": {"DeviceGetCurrPcieLinkGeneration|3": 1}}),
    Row(id=NVML_SYSFS, machine="gb10", change={"nvml": {"DeviceGetCurrPcieLinkWidth|0": 16}}),
    Row(id=NVML_SYSFS, machine="no_pci", applies=False),
    Row(id=VISIBLE, machine="h100_x2_vm", change={"environment": {"CUDA_VISIBLE_DEVICES": "0,7,1"}}, state=W,
        subject="process", says=("'7'", "there are 2 GPUs", "visible: 0000:00:06.0")),
    Row(id=VISIBLE, machine="h100_x2_vm", change={"environment": {"CUDA_VISIBLE_DEVICES": "0,0"}}, state=F,
        says=("more than once",)),
    Row(id=VISIBLE, machine="h100_x2_vm", change={"environment": {"CUDA_VISIBLE_DEVICES": ""}}, state=N,
        says=("hides every GPU",)),
    Row(id=VISIBLE, machine="h100_x2_vm", change={"environment": {"CUDA_VISIBLE_DEVICES": "1,0"}}),
    Row(id=VISIBLE, machine="h23_mig_visible"),
    Row(id=VISIBLE, machine="h23_mig_visible", change={"environment": {"CUDA_VISIBLE_DEVICES": "GPU-8c7c"}}),
    Row(id=VISIBLE, machine="h100_x2_vm", applies=False),
    Row(id=ORDER, machine="h22_mixed_gpus", state=W, says=("4 x", "1 x", "PCI_BUS_ID")),
    Row(id=ORDER, machine="h22_mixed_gpus", change={"environment": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}),
    Row(id=ORDER, machine=HGX, applies=False),
    Row(id="driver.not-loaded", machine="driver_not_loaded", state=F, subject="node",
        says=("8 NVIDIA GPUs", "modprobe")),
    Row(id="driver.not-loaded", machine="driver_not_loaded", change={"patch": {"all gpu": {"driver": "nouveau"}}},
        state=F, says=("nouveau", "blacklist nouveau")),
    Row(id="driver.not-loaded", machine="driver_not_loaded",
        change={"patch": {"all gpu": {"driver": "nouveau", "class": "0x030000"}}}, state=F, says=("nouveau",)),
    Row(id="driver.not-loaded", machine="driver_not_loaded", change={"patch": {"all gpu": {"driver": "vfio-pci"}}},
        applies=False),
    Row(id="driver.not-loaded", machine=HGX),
    Row(id="driver.not-loaded", machine="mi300x_x8", applies=False),
    Row(id="driver.versions-differ", machine=HGX,
        change={"driver": {"state": "LibRmVersionMismatch", "module_version": "570.86.15"}}, state=F,
        says=("570.86.15", "mismatch")),
    Row(id="driver.versions-differ", machine=HGX),
    Row(id="driver.gpu-bound-to-vfio", machine=HGX, change={"patch": {"GPU3": {"driver": "vfio-pci"}}}, state=N,
        says=("vfio-pci",)),
    Row(id="driver.gpu-bound-to-vfio", machine=HGX),
    Row(id="driver.gpu-not-listed", machine=HGX, change={"patch": {"GPU3": {"driver": "none"}}}, state=F,
        says=("NVML does not list it", "dmesg")),
    Row(id="driver.gpu-not-listed", machine=HGX, change={"patch": {"GPU3": {"driver": "vfio-pci"}}}),
    Row(id="driver.gpu-not-listed", machine="driver_not_loaded", applies=False),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(row: Row) -> None:
    """Each check fires on its difference, with subject and values, and is quiet on the look-alike."""
    assert_row(row)


_HEAD = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"


def _matrix(word: str) -> str:
    return f"{_HEAD}GPU0\t X \t{word}\t0-3\t0\t\tN/A\nGPU1\t{word}\t X \t0-3\t0\t\tN/A\n\nLegend:\n\n  X    = Self\n"


@pytest.mark.parametrize(
    ("answer", "state", "says"),
    [
        (_matrix("NV18"), None, ""),
        (_matrix("NV12"), W, "GPU0-GPU1 NV12 against NV18"),
        ({"rc": 255, "stdout": "Failed to run topology matrix\n"}, W, "gives no matrix"),
    ],
)
def test_smi_vs_ours(answer: object, state: State | None, says: str) -> None:
    """Equal cells are quiet, a differing cell is named, and a command that failed is reported."""
    commands = {"nvidia-smi topo -m": answer, "nvidia-smi topo -mp": {"rc": 255}}
    found = findings(
        "consistency.smi-matrix-differs", context(read_node(machine("h100_x2_vm", commands=commands).host()))
    )
    assert [f.state for f in found] == ([] if state is None else [state])
    assert says in "".join(f.title for f in found)


def test_a_probe_that_gave_up_is_unknown() -> None:
    """It is named with the call that hung; the healthy node has none."""
    assert findings("probe.failed", healthy(HGX)) == ()
    hung = ProbeStatus(name="nvml", state="timed_out", ms=10000.0, detail="DeviceGetNvLinkState(3, 4)")
    (f,) = findings("probe.failed", context(msgspec.structs.replace(healthy(HGX).node, probes=(hung,))))
    assert (f.state, f.subject) == (U, "probe nvml")
    assert "DeviceGetNvLinkState(3, 4)" in f.title


_TWO = (
    NvmlGpu(
        index=0,
        address="0000:01:00.0",
        uuid="GPU-7f57f032-aa",
        mig_instances=(MigInstance(uuid="MIG-377e0049-bb", name="2g.20gb"), MigInstance(uuid="MIG-f39aa248-cc")),
    ),
    NvmlGpu(index=1, address="0000:02:00.0", uuid="GPU-8c7c9c30-dd"),
)


@pytest.mark.parametrize(
    ("value", "addresses", "problem"),
    [
        ("0,1", ["0000:01:00.0", "0000:02:00.0"], ""),
        ("GPU-8c7c", ["0000:02:00.0"], ""),
        ("gpu-8C7C", ["0000:02:00.0"], ""),
        ("GPU-", [], "2 GPUs begin so"),
        ("GPU-ffff,0", [], "no such GPU here"),
        ("MIG-377e0049-bb", ["0000:01:00.0"], ""),
        ("1,x,0", ["0000:02:00.0"], "neither an index nor a UUID"),
        ("", [], ""),
    ],
)
def test_entries_of_visible_devices(value: str, addresses: list[str], problem: str) -> None:
    """An entry is an index or a unique beginning of a UUID; the first invalid one ends the list."""
    entries = resolve(value, _TWO)
    assert [e.address for e in entries if not e.problem] == addresses
    assert next((e.problem for e in entries if e.problem), "") == problem


def test_a_slice_is_resolved_with_its_gpu() -> None:
    """A MIG name stands for its parent's address and the slice."""
    (e,) = resolve("MIG-377e", _TWO)
    assert (e.address, e.slice_name) == ("0000:01:00.0", "2g.20gb")


def test_idle_links_are_no_difference() -> None:
    """One GPU at rest with a slow link differs from its working siblings by nothing that matters."""
    c = variant(HGX, patch={"GPU3": {"now": "1x16"}}, gpu={"3": {"pstate": 8}})
    assert findings(DIFFER, c) == ()
    assert findings(NVML_SYSFS, c) == ()
