"""How the driver keeps the GPUs: persistence mode, and clocks that are held down."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import listed, living, named, quote
from topocheck.checks.shared.fixes import Fix, first_fitting, in_container, in_guest
from topocheck.checks.sources import Needs
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, known

_MANY = 2
"""GPUs from which on a machine counts as a compute node even without an RDMA NIC."""

REASONS = {
    0x8: "hardware slowdown (temperature or power)",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x20: "software thermal slowdown",
}
"""Bits of nvmlClocksEventReasons (nvml.h) that hold clocks below what power and work allow. The power cap (0x4), idle
(0x1), applications clocks (0x2) and sync boost (0x10) are how a GPU works when it is well."""


@check(
    "driver.no-gpu",
    title="No GPU was found",
    severity=State.NOTE,
    reads=("/sys/bus/pci/devices/*", "NVML DeviceGetCount"),
)
def no_gpu(c: Context) -> Iterator[Finding]:
    """No GPU was found.

    Looks at:
        The PCI bus, and the GPUs that NVML lists.

    Why it matters:
        Nothing of GPUs was checked: where a GPU is expected, this is its loss, and no sign that all is well.

    Fix:
        Where a GPU should be: look for it in lspci, in its slot and in the firmware setup; a policy with the number of
        GPUs (`topocheck check --write-policy`) makes its absence a failure.

    Does not apply:
        Where the PCI bus cannot be seen (`probe.failed`), or the given files list some of its functions only. An
        accelerator of another maker counts as a GPU.
    """
    if c.topology.gpus or c.topology.accelerators:
        return
    devices = c.node.pci.devices
    # A text in which nvidia-smi finds none needs no list of PCI functions.
    none = c.node.made_from is not None and c.node.nvml.gpus == ()
    if not none and isinstance(devices, Missing) and devices.reason is not Reason.ABSENT:
        raise not_applicable(f"the PCI bus cannot be seen ({devices})")
    if not none and c.node.made_from is not None and c.node.made_from.selection:
        raise not_applicable("the given files list some of the PCI functions, none of them a GPU")
    seen = str(devices) if isinstance(devices, Missing) else f"{len(devices)} functions, none of them a GPU"
    yield Finding(
        state=State.NOTE,
        subject="node",
        title="no GPU found, GPU checks did not run",
        consequence="none, if this node should have no GPU",
        evidence=(Evidence("/sys/bus/pci/devices", seen), Evidence("NVML", c.node.nvml.error or "lists no GPU")),
        rule="a GPU on the PCI bus, or in NVML's list",
        fix=first_fitting(c, *_LOOK),
    )


_LOOK = (
    Fix(
        "where a GPU is expected: WSL shows it through the driver of Windows, so check nvidia-smi.exe there, and that "
        "/usr/lib/wsl/lib/libnvidia-ml.so.1 is here; then wsl --shutdown",
        (lambda c: c.node.system.hypervisor == "WSL",),
    ),
    Fix(
        "where a GPU is expected: have the host's administrator check what is passed to this guest; a policy with the "
        "number of GPUs makes its absence a failure",
        (in_guest,),
    ),
    Fix(
        "where a GPU is expected: look for it in lspci and in its slot; a policy with the number of GPUs makes its "
        "absence a failure"
    ),
)


@check(
    "driver.persistence-off",
    title="Persistence mode is off on a compute node",
    severity=State.NOTE,
    reads=("NVML DeviceGetPersistenceMode", "systemctl show nvidia-persistenced", "/sys/bus/pci/devices/*/boot_vga"),
)
def persistence_off(c: Context) -> Iterator[Finding]:
    """Persistence mode is off on a compute node.

    Looks at:
        The persistence mode of each GPU on a machine with several GPUs or an RDMA NIC.

    Why it matters:
        When the last program ends, the driver shuts the GPUs down; the next waits until they are started, one to two
        seconds for each. Health checks and prologs wait too: 16 GPUs took over 25 s. Settings of nvidia-smi are lost.

    Fix:
        `systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` (as root, until the next boot).

    Does not apply:
        To a workstation: a single GPU without an RDMA NIC, or one that drives the display, which keeps it started.
    """
    gpus = [g for g in living(c) if g.nvml is not None and isinstance(g.nvml.persistence_mode, bool)]
    shown = any(g.pci is not None and g.pci.boot_vga is True for g in living(c))
    if not gpus or shown or (len(gpus) < _MANY and not c.topology.nics):
        raise not_applicable(
            "not a compute node: no GPUs, one alone without an RDMA NIC, or one that drives the display"
        )
    off = [g for g in gpus if g.nvml is not None and g.nvml.persistence_mode is False]
    if not off:
        return
    yield Finding(
        state=State.NOTE,
        subject=named(off[0]) if len(off) == 1 else "node",
        devices=(off[0].address,) if len(off) == 1 else (),
        title=f"persistence mode is off for {listed(g.label for g in off)}",
        consequence="each first program waits while the driver starts the GPUs (one to two seconds for each)",
        evidence=tuple(
            e for g in off[:4] if g.nvml is not None for e in quote(g.nvml, "DeviceGetPersistenceMode", "0")
        ),
        rule="persistence mode on where jobs come and go",
        fix=first_fitting(c, *_PERSIST),
    )


_PERSIST = (
    Fix("on the node, outside this container, as root: systemctl enable --now nvidia-persistenced", (in_container,)),
    Fix("as root: systemctl enable --now nvidia-persistenced (or nvidia-smi -pm 1, until the next boot)"),
)


@check(
    "driver.clocks-held-down",
    title="A GPU holds its clocks down to protect itself",
    severity=State.WARN,
    reads=("NVML DeviceGetCurrentClocksEventReasons",),
    needs=Needs(("nvml", "clocks")),
)
def clocks_held_down(c: Context) -> Iterator[Finding]:
    """A GPU holds its clocks down to protect itself.

    Looks at:
        The reasons that NVML gives for the clocks at this moment: hardware slowdown, thermal slowdown, power brake.

    Why it matters:
        The GPU computes and copies slower than its siblings, and collectives run at the speed of the slowest
        GPU. The cause is outside:
        cooling, a power supply or cable.

    Fix:
        Look at fans, air flow and the temperature of siblings; for a power brake at the supplies and their cables.

    Does not apply:
        Idle GPUs, the power cap, and clocks that somebody set: that is how a GPU works.
    """
    gpus = [g for g in living(c) if g.nvml is not None and isinstance(g.nvml.clock_event_reasons, int)]
    if not gpus:
        raise not_applicable("no GPU reports why its clocks are what they are")
    for g in gpus:
        mask = g.nvml.clock_event_reasons if g.nvml is not None else 0
        held = [words for bit, words in REASONS.items() if known(mask) and mask & bit]
        if g.nvml is None or not held:
            continue
        yield Finding(
            state=State.WARN,
            subject=named(g),
            devices=(g.address,),
            title=f"its clocks are held down: {', '.join(held)}",
            consequence="it computes and copies slower than its siblings, and collectives run at the "
            "speed of the slowest GPU",
            evidence=(
                Evidence(f"{g.nvml.source} DeviceGetCurrentClocksEventReasons", f"0x{mask:x}"),
                *g.nvml.evidence("DeviceGetTemperature"),
            ),
            rule="none of the bits " + ", ".join(f"0x{bit:x}" for bit in REASONS) + " is set",
            fix=first_fitting(c, *_COOL),
        )


_COOL = (
    Fix("ask the host's administrator to look at the cooling and power of this GPU", (in_guest,)),
    Fix("check fans, air flow and the temperature of its siblings; for a power brake, power supplies and cables"),
)
