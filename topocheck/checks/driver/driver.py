"""The NVIDIA driver: not loaded, of two versions, GPUs bound to vfio-pci."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import given_away, listed, living, named, pci_devices, quote
from topocheck.checks.shared.driver_start import refused_use, rejected_module
from topocheck.checks.shared.driver_state import MISMATCH, file_evidence, refused_gpus, unread_file
from topocheck.checks.shared.fixes import Fix, first_fitting, in_container, in_guest, in_slurm
from topocheck.checks.sources import GPUS, Needs
from topocheck.checks.visibility import driver_loaded
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.model.kernel_log import not_started
from topocheck.model.system import gpu_file, library_version
from topocheck.topology.types import Gpu


def _mine(context: Context) -> list[Gpu]:
    """Return the GPUs on the bus that are not given to a guest.

    Raises:
        NotApplicableError: there are none.
    """
    gpus = [g for g in living(context) if not given_away(g)]
    if not gpus:
        raise not_applicable("no NVIDIA GPU that this node drives itself")
    return gpus


@check(
    "driver.not-loaded",
    title="NVIDIA GPUs are on the bus and their driver is not loaded",
    severity=State.FAIL,
    reads=("/proc/modules", "/sys/module/nvidia", "NVML"),
    needs=Needs(GPUS, ("modules",)),
)
def not_loaded(context: Context) -> Iterator[Finding]:
    """NVIDIA GPUs are on the bus and their driver is not loaded.

    Looks at:
        NVIDIA GPUs of the PCI bus, and the kernel module: /proc/modules, /sys/module, the driver of each GPU. A
        driver that is loaded and does not answer is `driver.not-answering`.

    Why it matters:
        No CUDA program runs, and nothing of NVLink and peer access can be determined.

    Fix:
        modprobe nvidia; if that fails, the module was not built for this kernel: install the driver again (DKMS). Where
        the kernel's log says why (a signature that it rejects, a GPU that this kind of module does not support), that
        comes first.

    Does not apply:
        Where all GPUs are given to guests (vfio-pci). On a workstation (a single GPU, or one that drives the display,
        and no RDMA NIC) nouveau is a note.
    """
    nvml = context.node.nvml
    said = _said_in_texts(context, _NOT_LOADED)
    gpus = [g for g in living(context) if not given_away(g)] if said else _mine(context)
    if said and not gpus:
        yield _not_loaded_by_text(context)
        return
    if not isinstance(nvml.gpus, Missing) or nvml.gpus.detail == MISMATCH or driver_loaded(context.node):
        return
    other = sorted({g.pci.driver for g in gpus if g.pci is not None and isinstance(g.pci.driver, str)})
    seen = tuple(e for g in gpus[:2] if g.pci is not None for e in quote(g.pci, "driver", g.pci.driver))
    seen += (Evidence("NVML", nvml.error or str(nvml.gpus)),)
    one = len(gpus) == 1
    workstation = len(gpus) == 1 or any(g.pci is not None and g.pci.boot_vga is True for g in gpus)
    for_display = workstation and not context.topology.nics
    for_display = for_display and all(g.pci is not None and g.pci.base_class == _DISPLAY for g in gpus)
    refused = None if other else next((x for g in gpus if (x := refused_use(context, g)) is not None), None)
    line = None if other or refused else rejected_module(context)
    yield Finding(
        state=State.NOTE
        if other and for_display
        else State.FAIL
        if said
        else unless_lost(context, State.FAIL, "modules", "driver"),
        subject="node",
        title=f"{len(gpus)} NVIDIA GPU{' is' if one else 's are'} driven by {listed(other)}, not by NVIDIA's driver"
        if other
        else f"{len(gpus)} NVIDIA GPU{' is' if one else 's are'} on the bus and the nvidia module is not loaded"
        + (f": {refused.title}" if refused else ": the kernel rejects a module's signature" if line else ""),
        consequence="no CUDA program runs here",
        evidence=seen + (refused.evidence if refused else (Evidence("kernel log", line),) if line else ()),
        rule="GPUs of this node need the nvidia module and NVML",
        fix=refused.fix if refused else first_fitting(context, *(_REPLACE if other else _SIGN if line else _LOAD)),
    )


def _said_in_texts(context: Context, error: str) -> bool:
    """Tell whether a text in the place of this machine holds an error of NVML: that needs no list of PCI functions."""
    gpus = context.node.nvml.gpus
    return context.node.made_from is not None and isinstance(gpus, Missing) and gpus.detail == error


def _not_loaded_by_text(context: Context) -> Finding:
    """Return the finding of a text in which nvidia-smi says so; no text tells which GPUs are on the bus."""
    return Finding(
        state=State.FAIL,
        subject="node",
        title="nvidia-smi cannot communicate with the NVIDIA driver: it is not loaded",
        consequence="no CUDA program runs here",
        evidence=(Evidence("NVML DeviceGetCount", str(context.node.nvml.gpus)),),
        rule="GPUs of this node need the nvidia module and NVML",
        fix=first_fitting(context, *_LOAD),
    )


_NOT_LOADED = "NVMLError_DriverNotLoaded"
_DISPLAY = 0x0300
"""VGA-compatible controller; GPUs of servers are 3D controllers (PCI Code and ID Assignment Specification, 1.4)."""
_REPLACE = (
    Fix("install NVIDIA's driver on the node: a container has that of its node", (in_container,)),
    Fix(
        "install NVIDIA's driver, keep the other from loading (blacklist nouveau and options nouveau modeset=0 in a "
        "file of /etc/modprobe.d, then update-initramfs -u or dracut -f), and reboot"
    ),
)
_LOAD = (
    Fix("load the driver on the node (modprobe nvidia): a container cannot", (in_container,)),
    Fix("as root: modprobe nvidia; if that fails, build the driver for this kernel (dkms autoinstall)"),
)


_SIGN = (
    Fix("load the driver on the node, with a signature that its kernel accepts: a container cannot", (in_container,)),
    Fix(
        "sign the module with a key that the firmware knows (mokutil --import the key that DKMS signs with, then "
        "reboot and enrol it), or turn Secure Boot off in the firmware setup; then modprobe nvidia"
    ),
)


@check(
    "driver.versions-differ",
    title="The NVIDIA library and the loaded kernel module are of two versions",
    severity=State.FAIL,
    reads=("NVML nvmlInit", "/sys/module/nvidia/version", "libnvidia-ml.so.1"),
    needs=Needs(GPUS, ("versions",)),
)
def versions_differ(context: Context) -> Iterator[Finding]:
    """The NVIDIA library and the loaded kernel module are of two versions.

    Looks at:
        What NVML says when it is started, and the versions of the kernel module and of the library (the name of the
        file that libnvidia-ml.so.1 leads to).

    Why it matters:
        After an upgrade of the packages the old module stays loaded until the GPUs are free: nvidia-smi says
        "Driver/library version mismatch" and new jobs fail, while running ones go on.

    Fix:
        Drain the node, then unload and load the modules, or reboot. Hold the driver's packages back from
        unattended upgrades.

    Does not apply:
        Without NVIDIA GPUs.
    """
    if not _said_in_texts(context, MISMATCH):
        _mine(context)
    nvml, system = context.node.nvml, context.node.system
    module = system.nvidia_module_version
    refused = isinstance(nvml.gpus, Missing) and nvml.gpus.detail == MISMATCH
    differ = isinstance(module, str) and isinstance(nvml.driver_version, str) and module != nvml.driver_version
    if refused or differ:
        library, where = _library(context)
        yield Finding(
            state=State.FAIL,
            subject="node",
            title=f"Driver/library version mismatch: the loaded kernel module is "
            f"{module if isinstance(module, str) else 'of a version that cannot be read'}, the library is "
            f"{library or 'of another version, which cannot be read'}",
            consequence="new CUDA programs fail; those that run go on",
            evidence=(
                *quote(system, "/sys/module/nvidia/version", module),
                *where,
                Evidence("NVML", nvml.error or str(nvml.driver_version)),
            ),
            rule="kernel module and user libraries must be of one version",
            fix=first_fitting(context, *_RELOAD),
        )


_RELOAD = (
    Fix(
        "start the container anew: its libraries are of the driver that the node had when it was started",
        (in_container,),
    ),
    Fix("drain the node, then reload the modules (rmmod nvidia_uvm nvidia; modprobe nvidia) or reboot"),
)


def _library(context: Context) -> tuple[str | None, tuple[Evidence, ...]]:
    """Return the version of NVML's library, from its answer or the name of its file, with where it was read."""
    system, told = context.node.system, context.node.nvml.driver_version
    found = {path: v for path, name in system.nvml_libraries.items() if (v := library_version(name))}
    evidence = tuple(e for path in found for e in system.evidence(path))
    if isinstance(told, str):
        return told, evidence
    own = context.node.nvml.nvml_version
    if not found and isinstance(own, str):
        return own, context.node.nvml.evidence("SystemGetNVMLVersion")
    return " and ".join(dict.fromkeys(found.values())) or None, evidence


@check(
    "driver.gpu-not-listed",
    title="A GPU is on the bus and NVML does not list it",
    severity=State.FAIL,
    reads=(
        "/sys/bus/pci/devices/*",
        "NVML DeviceGetCount",
        "/proc/driver/nvidia/gpus/*/information",
        "/dev/nvidia*",
    ),
    needs=Needs(GPUS, ("driver",)),
)
def gpu_not_listed(context: Context) -> Iterator[Finding]:
    """A GPU is on the bus and NVML does not list it.

    Looks at:
        NVIDIA GPUs of the PCI bus that NVML, which works here, does not name.

    Why it matters:
        The driver could not start the GPU (the kernel log then says RmInitAdapter failed), and jobs see one less.

    Fix:
        Look at dmesg, reset or power-cycle; a GPU that never starts needs service. Where the log or the product says
        that this module does not support it (open or proprietary, release), install the one that does.

    Does not apply:
        GPUs given to guests, excluded by a setting of the driver, or hidden from this container or job step (its
        device cgroup does not let it open their files): a note. Where that cannot be read, it is unknown.
    """
    if isinstance(context.node.nvml.gpus, Missing):
        raise not_applicable("NVML does not answer")
    excluded = set(context.node.system.nvidia_gpus_excluded)
    devices = pci_devices(context)
    hidden_by_cgroup = refused_gpus(context)
    if out := [g for g in living(context) if g.nvml is None and g.address in hidden_by_cgroup]:
        yield _hidden(context, out)
    for gpu in living(context):
        if gpu.nvml is not None or gpu.address not in devices or given_away(gpu) or gpu in out:
            continue
        hidden = known(context.node.system.container) and bool(context.node.nvml.gpus)
        left_out = gpu.address in excluded
        driver = devices[gpu.address].driver
        other = isinstance(driver, str) and driver != "nvidia"
        refused = None if hidden or left_out or other else refused_use(context, gpu)
        logged = _from_log(context, gpu.address)
        if not (hidden or left_out or other or refused or logged) and (unread := unread_file(context, gpu.address)):
            yield _not_told(gpu, unread)
            continue
        yield Finding(
            state=State.NOTE if hidden or left_out or other else State.FAIL,
            subject=named(gpu),
            devices=(gpu.address,),
            title="on the PCI bus, and NVML does not list it"
            + (": excluded by a setting of the driver" if left_out else "")
            + (": this container does not see it" if hidden else "")
            + (f": driven by {driver}" if other else "")
            + (f": {refused.title}" if refused else ""),
            consequence="jobs here have one GPU less",
            evidence=(
                *devices[gpu.address].evidence("device", "driver"),
                Evidence("NVML DeviceGetCount", str(len(context.node.nvml.gpus))),
                *(refused.evidence if refused else logged),
            ),
            rule="every NVIDIA GPU of the bus should be known to the driver",
            fix=refused.fix if refused else None if hidden or left_out or other else first_fitting(context, *_START),
        )


def _not_told(gpu: Gpu, unread: Evidence) -> Finding:
    """Return that a GPU which NVML does not list may be hidden from this process: what would say so was lost."""
    return Finding(
        state=State.UNKNOWN,
        subject=named(gpu),
        devices=(gpu.address,),
        title="on the PCI bus, and NVML does not list it: whether the device cgroup hides it could not be read",
        consequence="jobs here may have one GPU less",
        evidence=(unread,),
        rule="a GPU whose device file may not be opened is hidden, not broken",
        fix=None,
    )


def _from_log(context: Context, address: str) -> tuple[Evidence, ...]:
    """Quote the last line in which the driver says that it could not start a GPU."""
    lines = context.node.system.kernel_log
    found = [] if isinstance(lines, Missing) else [x for x in lines if not_started(x) == address]
    return tuple(Evidence("kernel log", line) for line in found[-1:])


_START = (
    Fix("look for RmInitAdapter in the guest's dmesg; restart the guest, and have its host reset the GPU", (in_guest,)),
    Fix("look for RmInitAdapter in dmesg, then reset the GPU or power-cycle the node"),
)


def _hidden(context: Context, gpus: list[Gpu]) -> Finding:
    """Return the note about GPUs that the device cgroup keeps from this process: they are other jobs' to judge."""
    every = [g for g in living(context) if not given_away(g)]
    step = "this job step" if in_slurm(context) else "this process"
    files = [f for g in gpus if (f := gpu_file(context.node.system, g.address)) is not None]
    return Finding(
        state=State.NOTE,
        subject="process",
        title=f"{step} may open {len(every) - len(gpus)} of {len(every)} GPUs: the device cgroup hides "
        f"{listed(g.label for g in gpus)}",
        consequence="the hidden GPUs are not judged here",
        evidence=file_evidence(context, files),
        rule="a GPU whose device file may not be opened is hidden, not broken",
        fix=None,
    )


@check(
    "driver.gpu-bound-to-vfio",
    title="A GPU is bound to a driver for guests",
    severity=State.NOTE,
    reads=("/sys/bus/pci/devices/*/driver",),
)
def gpu_given_away(context: Context) -> Iterator[Finding]:
    """A GPU is bound to a driver for guests.

    Looks at:
        GPUs bound to vfio-pci or pci-stub.

    Why it matters:
        The GPU belongs to a virtual machine, or waits for one: programs of this node do not see it.

    Fix:
        None needed on a host of virtual machines. Else bind it to the nvidia driver (driverctl unset-override).

    Does not apply:
        Where no GPU is given away.
    """
    if not context.topology.gpus:
        raise not_applicable("no NVIDIA GPU")
    for gpu in living(context):
        if gpu.pci is not None and given_away(gpu):
            yield Finding(
                state=State.NOTE,
                subject=named(gpu),
                devices=(gpu.address,),
                title=f"it is bound to {gpu.pci.driver}, for a virtual machine",
                consequence="programs of this node do not see it",
                evidence=quote(gpu.pci, "driver", gpu.pci.driver),
                rule="bound to vfio-pci or pci-stub",
                fix=f"driverctl unset-override {gpu.address}, if this node is to use it",
            )
