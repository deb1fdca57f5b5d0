"""Bridges that let too little address space through to a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.bar_windows import DISPLAY_MODE, Narrow, has_display_mode, narrow_windows
from topocheck.checks.shared.common import is_guest, living, named
from topocheck.checks.shared.fixes import Fix, first_fitting, in_guest
from topocheck.checks.sources import NICS, Needs
from topocheck.model.base import Finding, State


@check(
    "pcie.bridge-window-small",
    title="A bridge's memory window has no room for a GPU's BAR1",
    severity=State.WARN,
    reads=("/sys/bus/pci/devices/*/resource (GPUs and bridges)", "kernel log: BAR ... no space"),
    needs=Needs(NICS, ("hypervisor",)),
)
def bridge_window_small(c: Context) -> Iterator[Finding]:
    """A bridge's memory window has no room for a GPU's BAR1.

    Looks at:
        BAR1 of each GPU against that of its model's other GPUs here, the memory windows of every bridge above it
        (rows of `resource`, which anybody may read), and the kernel's log where it can be read.

    Why it matters:
        Peers and NICs reach the GPU's memory through BAR1. Where the firmware gave a bridge too little address space,
        the driver cannot enlarge BAR1 of the GPU below, though Resizable BAR is on: it keeps 256 MiB, and peer access
        with its siblings is slow or refused.

    Fix:
        Give PCIe more address space in the firmware setup (MMIO High Size, Above 4G), or move the card to a slot
        whose bridge has room. Resizable BAR is on already where siblings have the large BAR1.

    Does not apply:
        Where all GPUs of a model have the same BAR1 and the kernel's log says nothing: `pcie.bar1-small` then.
    """
    if not living(c):
        raise not_applicable("no NVIDIA GPU")
    for x in narrow_windows(c).values():
        yield Finding(
            state=State.WARN,
            subject=named(x.gpu),
            devices=(x.gpu.address,),
            title=_title(x),
            consequence="peers and NICs reach a small part of its memory at a time: PCIe P2P and GPUDirect RDMA with "
            "it are slow or refused",
            evidence=x.evidence(),
            rule="the window of every bridge above a GPU holds the BAR1 that its model has here",
            fix=_fix(c, x),
        )


def _fix(c: Context, x: Narrow) -> str | None:
    """Return what to do; a card in display mode asks for a small BAR1 whatever room there is."""
    fix = first_fitting(c, *_FIXES)
    if fix is None or x.log or not has_display_mode(x.gpu) or is_guest(c):
        return fix
    return f"{DISPLAY_MODE}; else {fix}"


_FIXES = (
    Fix(
        "have the host give the guest more address space for PCIe (QEMU: pci-hole64-size, or a larger -m phys-bits)",
        (in_guest,),
    ),
    Fix(
        "give PCIe more address space in the firmware setup (MMIO High Size or MMIOH; needs a reboot), or move the "
        "card to a slot whose bridge has room; Resizable BAR itself is on"
    ),
)


def _title(x: Narrow) -> str:
    now = f"BAR1 is {x.now_bytes >> 20} MiB" if x.now_bytes else "BAR1 has no address"
    siblings = f", its siblings have {_size(x.wanted_bytes)}" if x.wanted_bytes else ""
    if x.bridge is not None:
        return f"{now}{siblings}: the window of the bridge above it ({x.bridge.address}) has {_size(x.window_bytes)}"
    return f"{now}{siblings}: the kernel found no address space for more"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):g} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / (1 << 20):g} MiB"
