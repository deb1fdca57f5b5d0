"""Why a loaded driver tells nothing: each reason is a finding of its own, with a fix that can work there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.checks.support import Row, assert_row, context, facts, findings, healthy, run, variant
from tests.machines.builder import machine
from topocheck.checks.result import conclude
from topocheck.checks.shared.driver_state import Cause, silence
from topocheck.model.base import Finding, Hung, Missing, ProbeStatus, Reason, State
from topocheck.model.system import DeviceFile, library_version
from topocheck.policy.types import Policy

HGX, L40S = "hgx_h100_cx7", "l40s_x8"
F, W, N, U = State.FAIL, State.WARN, State.NOTE, State.UNKNOWN
ERROR = {"*": {"error": "Unknown"}}
ALL_FILES = ("nvidiactl", "nvidia-uvm", *(f"nvidia{i}" for i in range(8)))
ABSENT_LIBRARY = {"*": {"reason": "absent", "detail": "libnvidia-ml.so.1 not found"}}
DOCKER = {"marks": ["/.dockerenv"]}

ROWS = [
    Row(id="driver.not-answering", machine="h40_device_cgroup", state=F, subject="node",
        says=("device cgroup", "/dev/nvidia0", "restart the container", "CDI", "/dev/char")),
    Row(id="driver.not-answering", machine="h41_nvml_hangs", state=F, subject="node",
        says=("does not answer", "hangs", "dmesg")),
    Row(id="driver.not-answering", machine=L40S, change={"nvml": ERROR}, state=F, says=("NVMLError_Unknown", "dmesg")),
    Row(id="driver.not-answering", machine=L40S, change={"nvml": ABSENT_LIBRARY}, state=U,
        says=("install", "libnvidia-ml.so.1")),
    Row(id="driver.not-answering", machine=L40S, change={"nvml": ABSENT_LIBRARY, "system": DOCKER}, state=U,
        says=("NVIDIA Container Toolkit", "utility")),
    Row(id="driver.not-answering", machine=L40S, change={"nvml": {"*": {"error": "NoPermission"}}}, state=U,
        says=("refuses",)),
    Row(id="driver.not-answering", machine=L40S),
    Row(id="driver.not-answering", machine="laptop"),
    Row(id="driver.not-answering", machine="driver_not_loaded", applies=False),
    Row(id="driver.persistence-off", machine=HGX, change={"gpus": {"persistence": 0}}, state=N, subject="node",
        says=("GPU0", "nvidia-persistenced")),
    Row(id="driver.persistence-off", machine=HGX),
    Row(id="driver.persistence-off", machine="laptop", change={"gpus": {"persistence": 0}}, applies=False),
    Row(id="driver.clocks-held-down", machine=HGX, change={"gpu": {"2": {"clock_reasons": 0x48}}}, state=W,
        subject="0000:4b:00.0 GPU2", says=("hardware slowdown", "thermal")),
    Row(id="driver.clocks-held-down", machine=HGX, change={"gpu": {"2": {"clock_reasons": 0x4}}}),
    Row(id="driver.kernel-log-errors", machine=HGX, state=N, subject="0000:4b:00.0 GPU2", says=("Xid 79", "dcgmi"),
        change={"files": {"/dev/kmsg": "6,1,2,-;NVRM: Xid (PCI:0000:4b:00): 79, pid=1, name=x"}}),
    Row(id="driver.kernel-log-errors", machine=HGX, state=N, subject="0000:3b:00.0 mlx5_1",
        says=("too little power", "power limit"), change={"files": {"/dev/kmsg":
        "mlx5_core 0000:3b:00.0: mlx5_pcie_event:301:(pid 9): Detected insufficient power on the PCIe slot (27W)."}}),
    Row(id="driver.kernel-log-errors", machine=HGX, state=N, subject="0000:3b:00.0 mlx5_1", says=("transceiver",),
        change={"files": {"/dev/kmsg": "mlx5_core 0000:3b:00.0: Port module event[error]: module 0, Cable error"}}),
    Row(id="driver.kernel-log-errors", machine=HGX, state=N, subject="0000:3b:00.0 mlx5_1", says=("health",),
        change={"files": {"/dev/kmsg": "mlx5_core 0000:3b:00.0: poll_health:812:(pid 0): Fatal error 1 detected"}}),
    Row(id="driver.kernel-log-errors", machine=HGX,
        change={"files": {"/dev/kmsg": "NVRM: Xid (PCI:0000:4b:00): 31, pid=4711, name=python3"}}),
    Row(id="driver.no-gpu", machine="no_pci", state=N, subject="node", says=("no GPU found",)),
    Row(id="driver.no-gpu", machine="mi300x_x8"),
    Row(id="driver.no-gpu", machine=HGX),
    Row(id="driver.gpu-not-listed", machine="h46_task_of_one_gpu", state=N, subject="process", says=("1 of 4",)),
    Row(id="driver.gpu-not-listed", machine="h47_step_of_two_gpus", state=N, subject="process",
        says=("2 of 8", "GPU7")),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_rows(row: Row) -> None:
    assert_row(row)


def only(id_: str, name: str, **overrides: Any) -> Finding:
    (f,) = findings(id_, variant(name, **overrides) if overrides else healthy(name))
    return f


@pytest.mark.parametrize("name", ["h40_device_cgroup", "h41_nvml_hangs"])
def test_a_driver_that_does_not_answer_ends_a_check_with_1(name: str) -> None:
    """A prolog lets no job onto the node, and nothing reports it to install a library that is there."""
    c = healthy(name)
    result, found = run("driver.not-answering", c)
    assert conclude(c.node, found, [result], Policy()).exit_code == 1
    assert "install" not in (found[0].fix or "")


def test_refused_files_are_quoted() -> None:
    evidence = {e.source: e.raw for e in only("driver.not-answering", "h40_device_cgroup").evidence}
    assert evidence["/dev/nvidiactl"].startswith("may not be opened")
    assert evidence["/dev/nvidia3"].startswith("may not be opened")


def test_files_that_the_mode_keeps_from_a_user() -> None:
    """Mode 0660: the fix is a group, and no container is named."""
    files = {f"/dev/{n}": {"text": "", "kind": "char", "mode": 0o660} for n in ALL_FILES}
    f = only("driver.not-answering", L40S, nvml=ERROR, files=files, system={"root": False})
    assert f.state is F
    assert "this user may not open" in f.title
    assert "group" in (f.fix or "")


@pytest.mark.parametrize(("marks", "state", "says"), [([], F, "nvidia-modprobe"), (["/.dockerenv"], U, "--gpus all")])
def test_files_that_are_missing(marks: list[str], state: State, says: str) -> None:
    """On a node the driver cannot be used; a container without GPUs was given none."""
    files = {f"/dev/{n}": {"remove": True} for n in ALL_FILES}
    f = only("driver.not-answering", L40S, nvml=ERROR, files=files, system={"marks": marks})
    assert f.state is state
    assert says in (f.fix or "")


def test_cuda_needs_its_file_for_unified_memory() -> None:
    """NVML does without, so the driver seems well."""
    f = only("driver.not-answering", L40S, files={"/dev/nvidia-uvm": {"error": "EPERM"}}, system=DOCKER)
    assert f.state is F
    assert "/dev/nvidia-uvm" in f.title
    assert "restart the container" in (f.fix or "")


def test_a_service_in_slurm_is_told_of_its_step() -> None:
    f = only("driver.not-answering", "h40_device_cgroup", system={"marks": []}, environment={"SLURM_JOB_ID": "5"})
    assert "srun --gpus" in (f.fix or "")


@pytest.mark.parametrize("masked", ["/proc/modules", "/sys/module/nvidia"])
def test_masked_modules_are_no_driver_that_is_not_loaded(masked: str) -> None:
    """A GPU that is bound to nvidia shows that the driver is loaded, whatever a container masks."""
    c = variant(L40S, nvml=ABSENT_LIBRARY, files={p: {"remove": True} for p in (masked, "/proc/driver/nvidia")})
    assert findings("driver.not-loaded", c) == ()
    assert findings("driver.not-answering", c)[0].state is U


def test_both_versions_of_a_mismatch_are_told() -> None:
    """NVML cannot be asked for its version then: the name of the library's file has it."""
    library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so"
    c = variant(
        HGX,
        driver={"state": "LibRmVersionMismatch", "module_version": "570.86.15"},
        files={f"{library}.1": {"link": "libnvidia-ml.so.570.172.08"}, f"{library}.570.172.08": "x"},
    )
    (f,) = findings("driver.versions-differ", c)
    assert "570.86.15" in f.title
    assert "570.172.08" in f.title
    assert findings("driver.not-answering", c) == ()


def with_nvml(state: str, ms: float, hung: Hung | None = None) -> Any:
    """Return what is judged of a machine whose NVML probe timed out so."""
    node = facts(machine(L40S, hangs=["nvml:DeviceGetCount"]))
    status = ProbeStatus(name="nvml", state=state, ms=ms, detail="nvml:DeviceGetCount: no answer", hung=hung)
    probes = (*(p for p in node.probes if p.name != "nvml"), status)
    return context(msgspec.structs.replace(node, probes=probes))


def test_the_child_that_hangs_is_described() -> None:
    hung = Hung(question="nvml:DeviceGetCount", pid=4321, state="D", waits_in="nvidia_open", waited_s=26.0)
    (f,) = findings("driver.not-answering", with_nvml("timed_out", 26000.0, hung))
    assert f.state is F
    assert all(x in f.title for x in ("DeviceGetCount", "4321", "state D", "nvidia_open"))
    assert [e.raw for e in f.evidence if e.source == "/proc/4321/wchan"] == ["nvidia_open"]


@pytest.mark.parametrize(
    ("ms", "hung", "state"),
    [
        (10046.8, None, F),  # as 0.1.0 recorded it
        (900.0, None, U),  # a run that was given a second
        (900.0, Hung(question="nvml:DeviceGetCount", waited_s=0.9, cut_short=True), U),
        (18000.0, Hung(question="nvml:DeviceGetCount", waited_s=18.0, cut_short=True), U),
    ],
)
def test_a_run_with_too_little_time_is_no_hang(ms: float, hung: Hung | None, state: State) -> None:
    (f,) = findings("driver.not-answering", with_nvml("timed_out", ms, hung))
    assert f.state is state
    if hung is not None:
        assert "--budget" in (f.fix or "")


def test_a_call_that_hangs_later_is_told_too() -> None:
    """NVML started and lists GPUs; a question about one of them does not come back."""
    node = facts(machine(L40S))
    hung = Hung(question="nvml:DeviceGetName|3", pid=77, state="D", waits_in="rm_ioctl", waited_s=9.0)
    status = ProbeStatus(name="nvml", state="timed_out", ms=26000.0, hung=hung)
    c = context(msgspec.structs.replace(node, probes=(status,)))
    (f,) = findings("driver.not-answering", c)
    assert f.state is F
    assert "DeviceGetName|3" in f.title
    assert findings("probe.failed", c) == ()


def test_an_old_recording_says_nothing_of_device_files() -> None:
    """What was never asked is no refusal: the reason is NVML's word alone."""
    c = variant(L40S, nvml=ERROR)
    system = msgspec.structs.replace(c.node.system, nvidia_files=Missing(Reason.NOT_RECORDED))
    found = silence(context(msgspec.structs.replace(c.node, system=system)))
    assert found is not None
    assert found.cause is Cause.ERROR


def test_a_file_may_be_refused_by_its_mode_or_by_the_cgroup() -> None:
    assert DeviceFile(path="/dev/nvidia0", opens=False).refused
    assert not DeviceFile(path="/dev/nvidia0", opens=True).refused
    assert not DeviceFile(path="/dev/nvidia0").refused  # not known


@pytest.mark.parametrize(
    ("name", "version"),
    [("libnvidia-ml.so.580.95.05", "580.95.05"), ("libnvidia-ml.so.535.183", "535.183"), ("libnvidia-ml.so.1", None)],
)
def test_the_name_of_a_library_is_its_version(name: str, version: str | None) -> None:
    assert library_version(name) == version


def test_old_mig_form_names_the_parent() -> None:
    """`MIG-GPU-UUID/GI/CI` carries the GPU: it is named, and whether the slice is there stays unknown."""
    uuid = "GPU-11112222-3333-4444-8555-666677778888"
    c = variant(
        "h42_mig_handles_refused",
        gpu={"0": {"mig": 1, "uuid": uuid}},
        environment={"CUDA_VISIBLE_DEVICES": f"MIG-{uuid}/1/0"},
    )
    (f,) = findings("consistency.visible-devices", c)
    assert f.state is U
    assert "on GPU 0" in f.title
    assert "NVMLError_NoPermission" in f.title


def test_refused_mig_handles_are_no_invalid_entry() -> None:
    f = only("consistency.visible-devices", "h42_mig_handles_refused")
    assert f.state is U
    assert "invalid" not in f.title
    assert "every tenant" in (f.fix or "")
    assert "CAP_SYS_ADMIN" in (f.fix or "")
