"""The NVIDIA driver: not loaded, of two versions, GPUs given to guests; and probes that told nothing."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.hidden import nvml_silent, pci_hidden
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.subjects import given_away, listed, living, named, pci_devices, quote
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.topology.types import Gpu

_MISMATCH = "NVMLError_LibRmVersionMismatch"


def _mine(context: Context) -> list[Gpu]:
    """Return the GPUs on the bus that are not given to a guest.

    Raises:
        NotApplicableError: there are none.
    """
    gpus = [g for g in living(context) if not given_away(g)]
    if not gpus:
        raise not_applicable("no NVIDIA GPU that this node drives itself")
    return gpus


def _loaded(context: Context) -> bool:
    system = context.node.system
    return "nvidia" in system.modules or "nvidia" in system.loaded_modules or known(system.nvidia_module_version)


@check(
    "driver.not-loaded",
    title="NVIDIA GPUs are on the bus and their driver is not loaded",
    severity=State.FAIL,
    reads=("/proc/modules", "/sys/module/nvidia", "NVML"),
)
def not_loaded(context: Context) -> Iterator[Finding]:
    """NVIDIA GPUs are on the bus and their driver is not loaded.

    Looks at:
        NVIDIA GPUs of the PCI bus, the kernel module, and whether NVML answers.

    Why it matters:
        No CUDA program runs, and nothing of NVLink and peer access can be told.

    Fix:
        modprobe nvidia; if that fails, the module was not built for this kernel: install the driver again (DKMS).
        Where only the library is missing (a container), start it with the NVIDIA container toolkit.

    Does not apply:
        Where all GPUs are given to guests (vfio-pci) or driven by nouveau: a note.
    """
    gpus = _mine(context)
    nvml = context.node.nvml
    if not isinstance(nvml.gpus, Missing) or nvml.gpus.detail == _MISMATCH:
        return
    other = sorted({g.pci.driver for g in gpus if g.pci is not None and isinstance(g.pci.driver, str)} - {"nvidia"})
    seen = tuple(e for g in gpus[:2] if g.pci is not None for e in quote(g.pci, "driver", g.pci.driver))
    seen += (Evidence("NVML", nvml.error or str(nvml.gpus)),)
    if other:
        state, title = State.NOTE, f"{len(gpus)} NVIDIA GPUs are driven by {listed(other)}, not by NVIDIA's driver"
    elif _loaded(context):
        state, title = State.UNKNOWN, f"the driver is loaded, and NVML does not answer: {nvml.error or nvml.gpus}"
    else:
        state, title = State.FAIL, f"{len(gpus)} NVIDIA GPUs are on the bus and the nvidia module is not loaded"
    yield Finding(
        id="driver.not-loaded",
        state=state,
        subject="node",
        title=title,
        consequence="NVLink, peer access and health of the GPUs cannot be told"
        if state is State.UNKNOWN
        else "no CUDA program runs here",
        evidence=seen,
        rule="GPUs of this node need the nvidia module and NVML",
        fix="modprobe nvidia; if that fails, build the driver for this kernel (dkms autoinstall)"
        if state is State.FAIL
        else "install the driver's library (libnvidia-ml.so.1) in its version, or start the container with it"
        if state is State.UNKNOWN
        else None,
    )


@check(
    "driver.versions-differ",
    title="The NVIDIA library and the loaded kernel module are of two versions",
    severity=State.FAIL,
    reads=("NVML nvmlInit", "/sys/module/nvidia/version"),
)
def versions_differ(context: Context) -> Iterator[Finding]:
    """The NVIDIA library and the loaded kernel module are of two versions.

    Looks at:
        What NVML says when it is started, and the versions of the kernel module and of the library.

    Why it matters:
        After an upgrade of the packages the old module stays loaded until the GPUs are free: nvidia-smi says
        "Driver/library version mismatch" and new jobs fail, while running ones go on.

    Fix:
        Drain the node, then unload and load the modules, or reboot. Hold the driver's packages back from
        unattended upgrades.

    Does not apply:
        Without NVIDIA GPUs.
    """
    _mine(context)
    nvml, system = context.node.nvml, context.node.system
    module = system.nvidia_module_version
    refused = isinstance(nvml.gpus, Missing) and nvml.gpus.detail == _MISMATCH
    differ = isinstance(module, str) and isinstance(nvml.driver_version, str) and module != nvml.driver_version
    if refused or differ:
        library = f", the library {nvml.driver_version}" if isinstance(nvml.driver_version, str) else ""
        yield Finding(
            id="driver.versions-differ",
            state=State.FAIL,
            subject="node",
            title="Driver/library version mismatch: "
            + (f"the loaded module is {module}{library}" if isinstance(module, str) else "module and library differ"),
            consequence="new CUDA programs fail; those that run go on",
            evidence=(
                *quote(system, "/sys/module/nvidia/version", module),
                Evidence("NVML", nvml.error or str(nvml.driver_version)),
            ),
            rule="kernel module and user libraries must be of one version",
            fix="drain the node, then reload the modules (rmmod nvidia_uvm nvidia; modprobe nvidia) or reboot",
        )


@check(
    "driver.gpu-not-listed",
    title="A GPU is on the bus and NVML does not list it",
    severity=State.FAIL,
    reads=("/sys/bus/pci/devices/*", "NVML DeviceGetCount", "/proc/driver/nvidia/gpus/*/information"),
)
def gpu_not_listed(context: Context) -> Iterator[Finding]:
    """A GPU is on the bus and NVML does not list it.

    Looks at:
        NVIDIA GPUs of the PCI bus that NVML, which works here, does not name.

    Why it matters:
        The driver could not start the GPU (the kernel log then says RmInitAdapter failed), and jobs see one less.

    Fix:
        Look at dmesg, reset or power-cycle; a GPU that never starts needs service.

    Does not apply:
        GPUs given to guests, excluded by a setting of the driver, or hidden from this container.
    """
    if isinstance(context.node.nvml.gpus, Missing):
        raise not_applicable("NVML does not answer")
    excluded = set(context.node.system.nvidia_gpus_excluded)
    devices = pci_devices(context)
    for gpu in living(context):
        if gpu.nvml is not None or gpu.address not in devices or given_away(gpu):
            continue
        hidden = known(context.node.system.container) and bool(context.node.nvml.gpus)
        left_out = gpu.address in excluded
        driver = devices[gpu.address].driver
        other = isinstance(driver, str) and driver != "nvidia"
        yield Finding(
            id="driver.gpu-not-listed",
            state=State.NOTE if hidden or left_out or other else State.FAIL,
            subject=named(gpu),
            title="on the PCI bus, and NVML does not list it"
            + (": excluded by a setting of the driver" if left_out else "")
            + (": this container does not see it" if hidden else "")
            + (f": driven by {driver}" if other else ""),
            consequence="jobs here have one GPU less",
            evidence=(
                *devices[gpu.address].evidence("device", "driver"),
                Evidence("NVML DeviceGetCount", str(len(context.node.nvml.gpus))),
            ),
            rule="every NVIDIA GPU of the bus should be known to the driver",
            fix=None if hidden or left_out or other else "look for RmInitAdapter in dmesg, then reset or power-cycle",
        )


@check(
    "driver.gpu-given-away",
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
                id="driver.gpu-given-away",
                state=State.NOTE,
                subject=named(gpu),
                title=f"it is bound to {gpu.pci.driver}, for a virtual machine",
                consequence="programs of this node do not see it",
                evidence=quote(gpu.pci, "driver", gpu.pci.driver),
                rule="bound to vfio-pci or pci-stub",
                fix=f"driverctl unset-override {gpu.address}, if this node is to use it",
            )


@check(
    "probe.failed",
    title="A part of the machine could not be looked at",
    severity=State.UNKNOWN,
    reads=("the state of every probe",),
)
def probe_failed(context: Context) -> Iterator[Finding]:
    """A part of the machine could not be looked at.

    Looks at:
        How each probe went: those that failed, crashed or did not answer in time, with the call that hung. And
        what must be there and was not shown: the PCI functions of GPUs that NVML or the driver lists, NVML where
        the driver is loaded.

    Why it matters:
        What was not looked at is not known to be healthy. A driver that hangs here will hang jobs too.

    Fix:
        Look at the named file or call by hand. A call of NVML that hangs or crashes is usually a GPU in trouble:
        see dmesg, then reset or reboot. A container that hides /sys: mount it read-only.

    Does not apply:
        Where every probe answered.
    """
    yield from _hidden(context)
    for probe in context.node.probes:
        if probe.state in ("failed", "timed_out"):
            yield Finding(
                id="probe.failed",
                state=State.UNKNOWN,
                subject=f"probe {probe.name}",
                title=f"{probe.name}: {'no answer in time' if probe.state == 'timed_out' else 'failed'}"
                + (f" ({probe.detail})" if probe.detail else ""),
                consequence="what it would have told is not known, so it is not called healthy",
                evidence=(Evidence(f"probe {probe.name}", f"{probe.state} {probe.detail}".strip()),),
                rule="every probe must answer",
                fix="look at the named file or call by hand; for NVML and CUDA see dmesg, then reset or reboot",
            )


def _hidden(context: Context) -> Iterator[Finding]:
    """Name what a probe that calls itself well did not bring, where no other check names it."""
    node = context.node
    named_already = {p.name for p in node.probes if p.state in ("failed", "timed_out")}
    pci, nvml = pci_hidden(node), nvml_silent(node)
    if pci is not None and "pci" not in named_already:
        yield Finding(
            id="probe.failed",
            state=State.UNKNOWN,
            subject="probe pci",
            title=f"the PCI tree is hidden from here ({pci})",
            consequence="the PCI tree is hidden, nothing of its links was judged",
            evidence=(Evidence("/sys/bus/pci/devices", str(node.pci.devices) if not known(node.pci.devices) else pci),),
            rule="every GPU that the driver lists is a function below /sys/bus/pci/devices",
            fix="mount /sys read-only into the container, or run topocheck on the node itself",
        )
    driven = [g for g in living(context) if g.pci is not None and not given_away(g)]
    if nvml is not None and "nvml" not in named_already and (not driven or known(node.nvml.gpus)):
        yield Finding(
            id="probe.failed",
            state=State.UNKNOWN,
            subject="probe nvml",
            title=f"NVIDIA's driver is loaded, and NVML tells nothing ({nvml})",
            consequence="NVLink, peer access and health of the GPUs cannot be told",
            evidence=(Evidence("NVML", nvml),),
            rule="NVML must answer where the driver is loaded",
            fix="see dmesg; install the driver's library (libnvidia-ml.so.1), or start the container with it",
        )
