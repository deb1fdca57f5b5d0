"""The NVIDIA driver is loaded and tells nothing: each reason by itself, with the fix that can work here."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.driver_state import (
    Cause,
    Silence,
    did_hang,
    file_evidence,
    probe,
    silence,
    uvm_refused,
)
from topocheck.checks.shared.fixes import (
    Fix,
    first_fitting,
    in_container,
    in_guest,
    in_kubernetes,
    in_slurm,
    in_system_container,
    is_root,
    never,
)
from topocheck.checks.sources import Needs
from topocheck.checks.visibility import driver_loaded
from topocheck.model.base import Evidence, Finding, Hung, Missing, State, known
from topocheck.model.system import DeviceFile

_HUNG_FIX = (
    "check the kernel's log for NVRM and Xid lines (dmesg | grep -i -e nvrm -e xid) and drain the node; a process "
    "in state D cannot be killed"
)


def _error(c: Context) -> str:
    why = c.node.nvml.gpus
    return why.detail if isinstance(why, Missing) else ""


def _unknown(c: Context) -> bool:
    return _error(c) == "NVMLError_Unknown"


def _blocked(c: Context) -> bool:
    """Tell whether NVML says that the operating system blocks the GPU, which Windows does to WSL."""
    return _error(c) == "NVMLError_OperatingSystem"


_FIXES: dict[Cause, tuple[Fix, ...]] = {
    Cause.HANGS: (
        Fix(f"{_HUNG_FIX}: restart the guest, and have its host reset the GPU if that does not help", (in_guest,)),
        Fix(f"{_HUNG_FIX}: reset the GPU from the node, outside this container, or reboot the node", (in_container,)),
        Fix(f"{_HUNG_FIX}: stop what uses the GPUs and try nvidia-smi -r, else reboot"),
    ),
    Cause.SLOW: (
        Fix(
            "give it more time (--budget); as root, nvidia-smi -pm 1 or the service nvidia-persistenced keeps the GPUs "
            "initialised, so that the driver starts at once"
        ),
    ),
    Cause.CRASHES: (
        Fix("run nvidia-smi: if it crashes too, check dmesg and install the driver's library again in its version"),
    ),
    Cause.NO_LIBRARY: (
        Fix(
            "start the container with the NVIDIA Container Toolkit and NVIDIA_DRIVER_CAPABILITIES=compute,utility: "
            "the driver's library (libnvidia-ml.so.1) comes from the node",
            (in_container,),
        ),
        Fix(
            "install the driver's library (libnvidia-ml.so.1) in the version of the kernel module, or tell the loader "
            "where it is (ldconfig)"
        ),
    ),
    Cause.NO_BINDING: (Fix("install the Python package nvidia-ml-py for the Python that runs topocheck"),),
    Cause.MISMATCH: (),
    Cause.NO_FILE: (
        Fix("request GPUs for the pod (nvidia.com/gpu) with NVIDIA's device plugin", (in_kubernetes,)),
        Fix(
            "start the container with GPUs: docker run --gpus all, or --device nvidia.com/gpu=all (CDI)",
            (in_container,),
        ),
        Fix("as root: nvidia-modprobe -c 0 -u, which makes the files; the service nvidia-persistenced does so at boot"),
    ),
    Cause.REFUSED_BY_MODE: (
        Fix(
            "add the user to the group that owns the files, or load the module with NVreg_DeviceFileMode=0666 (as root)"
        ),
    ),
    Cause.REFUSED_BY_CGROUP: (
        Fix("request GPUs for this job step (srun --gpus=N): Slurm's device cgroup opens only those", (in_slurm,)),
        Fix(
            "restart the pod; so that it lasts, have NVIDIA's device plugin and the container runtime use CDI: "
            "systemctl daemon-reload takes devices away that systemd does not know of",
            (in_kubernetes,),
        ),
        Fix(
            "allow the devices in the container's configuration on the node and restart it (lxc: "
            "lxc.cgroup2.devices.allow = c 195:* rwm, and a line with the number of nvidia-uvm in /proc/devices; "
            "systemd-nspawn: DeviceAllow= of its unit)",
            (in_system_container,),
        ),
        Fix(
            "restart the container; so that it lasts, start it with CDI (--device nvidia.com/gpu=all), or make the "
            "links in /dev/char as root on the node (nvidia-ctk system create-dev-char-symlinks --create-all): "
            "systemctl daemon-reload takes devices away that systemd does not know of",
            (in_container,),
        ),
        Fix("allow the devices in the service's unit: DeviceAllow=char-nvidia rw, DeviceAllow=char-nvidia-uvm rw"),
    ),
    Cause.REFUSED: (
        Fix("run it outside the container, on the node", (in_container, is_root)),
        Fix("run topocheck as root", (never(is_root),)),
        Fix("look for a security module (SELinux, AppArmor) that refuses the driver: ausearch -m avc, dmesg"),
    ),
    Cause.ERROR: (
        Fix(
            "in a container, restart it (systemctl daemon-reload takes devices away that systemd does not know of) and "
            "start it with CDI; on the node check dmesg for NVRM lines, reload the driver or reboot",
            (lambda c: c.node.made_from is not None and _unknown(c), never(in_container)),
        ),
        Fix(
            "check that Windows sees the GPU (nvidia-smi.exe) and that the library of /usr/lib/wsl/lib is the one that "
            "is loaded; then wsl --shutdown, and update the driver of Windows",
            (lambda c: c.node.system.hypervisor == "WSL" or _blocked(c),),
        ),
        Fix("run nvidia-smi on the node, outside the container; if it fails there, check dmesg", (in_container,)),
        Fix("check dmesg for NVRM lines; reload the driver, or reboot the node"),
    ),
    Cause.NOT_TOLD: (Fix("run nvidia-smi; if it answers, save a new snapshot with this version of topocheck"),),
}

_WORDS = {
    Cause.SLOW: "NVML did not answer in the time that it was given",
    Cause.CRASHES: "NVML crashes the process that asks it",
    Cause.NO_BINDING: "NVML cannot be asked: the Python package nvidia-ml-py is not installed",
    Cause.NO_FILE: "the driver's device files (/dev/nvidiactl, /dev/nvidia0) are missing here",
    Cause.REFUSED: "NVML refuses this user",
    Cause.NOT_TOLD: "what NVML says is not known",
}


@check(
    "driver.not-answering",
    title="The NVIDIA driver is loaded and does not answer",
    severity=State.FAIL,
    reads=("NVML", "/dev/nvidia*", "/proc/PID/stat and wchan of a child that hangs"),
    needs=Needs(("nvml", "modules", "driver")),
)
def not_answering(c: Context) -> Iterator[Finding]:
    """The NVIDIA driver is loaded and does not answer.

    Looks at:
        What NVML said, or that it did not answer in time, where the nvidia module is loaded; whether this process may
        open the driver's device files; whether NVML's library is here; a child that hangs in a call of NVML or CUDA.

    Why it matters:
        Programs that use a GPU fail or hang as topocheck did. Which of them, and what helps, depends on the reason.

    Fix:
        By the reason. A hang: the kernel's log, then a reset or reboot. Files that may not be opened: the device
        cgroup of the job or container. A library that is absent: install it, or start the container with it.

    Does not apply:
        Where NVML answers, or no driver is loaded (`driver.not-loaded`). Two versions of library and module are
        `driver.versions-differ`. It is unknown, and no failure, where NVML could not be asked: no library, no
        permission, no device files in a container, or a run that was given too little time.
    """
    found = silence(c)
    if found is not None and found.cause is not Cause.MISMATCH:
        yield _finding(c, found)
    for name in ("nvml", "cuda"):
        hung = did_hang(probe(c, name))
        if hung is not None and not (found is not None and found.hung == hung):
            yield _hung_call(c, hung)
    if found is None and (uvm := uvm_refused(c)) is not None:
        yield _no_uvm(c, uvm)
    if found is None and not driver_loaded(c.node):
        raise not_applicable("no NVIDIA driver is loaded")


def _finding(c: Context, found: Silence) -> Finding:
    contained = found.cause is Cause.NO_FILE and in_container(c)
    dead = found.dead or (found.cause is Cause.NO_FILE and not contained)
    return Finding(
        state=State.FAIL if dead else State.UNKNOWN,
        subject="node",
        title=_title(c, found),
        consequence="no CUDA program runs here"
        if dead
        else "no GPU was given to this container"
        if contained
        else "NVLink, peer access and health of the GPUs are not known",
        evidence=(
            Evidence("NVML", found.said),
            *_hung_evidence(found.hung),
            *file_evidence(c, found.files),
            *_loaded(c),
        ),
        rule="a loaded driver must answer NVML's first call",
        fix=first_fitting(c, *_FIXES[found.cause]),
    )


def _title(c: Context, found: Silence) -> str:
    refused = ", ".join(f.path for f in found.files[:4])
    if found.cause is Cause.HANGS:
        return f"the NVIDIA driver does not answer: NVML hangs{_hung_words(found.hung) or ' in its first call'}"
    if found.cause is Cause.REFUSED_BY_CGROUP:
        return f"the device cgroup does not let this process open {refused}, so the driver cannot be used"
    if found.cause is Cause.REFUSED_BY_MODE:
        return f"this user may not open {refused}, so the driver cannot be used"
    if found.cause is Cause.NO_LIBRARY:
        there = ", ".join(c.node.system.nvml_libraries)
        where = f"; {there} is there and the loader does not find it" if there else ""
        return f"the driver is loaded and its library (libnvidia-ml.so.1) is not found, so NVML cannot be asked{where}"
    if found.cause in _WORDS:
        return f"the driver is loaded, and {_WORDS[found.cause]}"
    why = c.node.nvml.gpus
    said = why.detail if isinstance(why, Missing) and why.detail else found.said
    return f"the NVIDIA driver is loaded and does not answer: NVML's first call fails with {said}"


def _hung_words(hung: Hung | None) -> str:
    if hung is None:
        return ""
    state = f", state {hung.state}" if hung.state else ""
    waits = f", waits in {hung.waits_in}" if hung.waits_in else ""
    return f" for {hung.waited_s:g} s in {hung.question.partition(':')[2]} (process {hung.pid}{state}{waits})"


def _hung_evidence(hung: Hung | None) -> tuple[Evidence, ...]:
    if hung is None:
        return ()
    state = hung.state or "not readable"
    return (
        Evidence(f"/proc/{hung.pid}/stat", f"state {state}"),
        Evidence(f"/proc/{hung.pid}/wchan", hung.waits_in or "not readable"),
    )


def _hung_call(c: Context, hung: Hung) -> Finding:
    what = "CUDA" if hung.question.startswith("cuda:") else "NVML"
    return Finding(
        state=State.FAIL,
        subject="node",
        title=f"the NVIDIA driver does not answer: a call of {what} hangs{_hung_words(hung)}",
        consequence="programs that make this call hang as well",
        evidence=(Evidence(hung.question, f"no answer in {hung.waited_s:g} s"), *_hung_evidence(hung)),
        rule="a call of the driver comes back",
        fix=first_fitting(c, *_FIXES[Cause.HANGS]),
    )


def _no_uvm(c: Context, uvm: DeviceFile) -> Finding:
    return Finding(
        state=State.FAIL,
        subject="node",
        title=f"NVML answers, and this process may not open {uvm.path}, so that CUDA does not start",
        consequence="no CUDA program runs here",
        evidence=file_evidence(c, (uvm,)),
        rule="CUDA needs /dev/nvidia-uvm besides /dev/nvidiactl and the GPUs' files",
        fix=first_fitting(c, *_FIXES[Cause.REFUSED_BY_MODE if uvm.by_mode else Cause.REFUSED_BY_CGROUP]),
    )


def _loaded(c: Context) -> tuple[Evidence, ...]:
    """Quote what shows that the driver is loaded."""
    system = c.node.system
    if known(system.nvidia_module_version):
        return system.evidence("/proc/driver/nvidia/version")
    bound = next((g.pci for g in c.topology.gpus if g.pci is not None and g.pci.driver == "nvidia"), None)
    return system.evidence("/proc/modules nvidia") or (bound.evidence("driver") if bound is not None else ())
