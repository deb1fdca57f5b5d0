"""PCIe functions by themselves: gone from the bus, or with errors counted."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import ends, living, named, pci_devices, quote
from topocheck.checks.shared.fixes import Fix, first_fitting, in_guest
from topocheck.checks.sources import NICS, Needs
from topocheck.model.base import Evidence, Finding, Missing, State
from topocheck.model.kernel_log import lost, xid
from topocheck.model.pci import PciDevice
from topocheck.topology.inventory import nvswitches, rests_suspended
from topocheck.topology.types import Gpu

REPLAYS = 100.0
"""Replays since the driver was loaded from which on they are noted. One look cannot give a rate; a link in order
replays a packet now and then (PCI Express Base Specification 5.0, 3.6.2)."""

CORRECTABLE = 1000.0
"""Corrected errors since boot from which on they are noted; as for replays, the rate cannot be known."""

_GONE = "no longer answers on the bus"

_HARMLESS = frozenset({"UnsupReq"})
"""Counted on healthy machines: software that asks a device for something it does not have."""


@check(
    "pcie.device-lost",
    title="A device no longer answers on the bus",
    severity=State.FAIL,
    reads=("/sys/bus/pci/devices/*/config", "NVML GPU_IS_LOST"),
    needs=Needs(NICS, ("config",)),
)
def device_lost(context: Context) -> Iterator[Finding]:
    """A device no longer answers on the bus.

    Looks at:
        GPUs that NVML calls lost, or of which it tells neither name nor performance state (`ERR!` in the table of
        nvidia-smi), and GPUs, NICs and NVSwitches whose config space reads all ones, which is what the bus returns
        where nobody answers.

    Why it matters:
        The device is gone until it is reset; jobs that touch it fail or hang, and one lost GPU stops many tools for
        all GPUs. The kernel log usually holds `Xid 79` (fallen off the bus), 119 or 120 (its GSP stopped answering).

    Fix:
        Drain the node, then reset the GPU or power-cycle. If it happens again, check power, riser, slot and
        temperature. A reset ends everything that runs on the GPU.

    Does not apply:
        Suspended devices also read all ones; they are asleep, not lost.
    """
    devices = pci_devices(context)
    gpus = {g.address: g for g in context.topology.gpus}
    nics = {n.address: n.label for n in context.topology.nics}
    switches = {d.address for d in nvswitches(devices.values())}
    if not gpus and not nics and not switches:
        raise not_applicable("no GPU, NIC or NVSwitch on this machine")
    for gpu in gpus.values():
        if not gpu.on_bus:
            evidence = _lost_evidence(gpu) + _from_log(context, gpu)
            error = _error_of(gpu)
            # A GPU that the bus has lost gives any error of NVML's, so only of one that answers does it say more.
            otherwise = (_lost_title(gpu), _LOST if error is None else _NOT_REACHED)
            title, fixes = _BY_ERROR.get(error, otherwise) if error else otherwise
            yield _lost(gpu.address, gpu.label, evidence, title, first_fitting(context, *fixes))
    for address in sorted(nics.keys() | switches):
        device = devices.get(address)
        if device is not None and device.config_all_ones is True and not rests_suspended(device):
            label = nics.get(address, "NVSwitch")
            fix = first_fitting(context, *_LOST_NIC)
            yield _lost(address, label, device.evidence("config", "current_link_width"), _GONE, fix)


def _lost_evidence(gpu: Gpu) -> tuple[Evidence, ...]:
    out: tuple[Evidence, ...] = ()
    if gpu.nvml is not None and gpu.nvml.lost:
        out += (Evidence(gpu.nvml.source or "NVML", gpu.nvml.error or "GPU is lost"),)
    if gpu.pci is not None and gpu.pci.config_all_ones is True:
        out += (Evidence(f"{gpu.pci.source}/config", "all bytes read ff"),)
    return out


def _from_log(context: Context, gpu: Gpu) -> tuple[Evidence, ...]:
    """Quote the last Xid of a GPU in the kernel's log, or that it is off the bus."""
    lines = context.node.system.kernel_log
    found = [] if isinstance(lines, Missing) else [line for line in lines if _is_xid_of(gpu, line)]
    return tuple(Evidence("kernel log", line) for line in found[-1:])


def _is_xid_of(gpu: Gpu, line: str) -> bool:
    found = xid(line)
    return gpu.address.rpartition(".")[0] in (found[0] if found else "", lost(line))


def _lost_title(gpu: Gpu) -> str:
    """Tell a GPU that the bus has lost from one that only NVML cannot reach."""
    gone = gpu.pci is not None and gpu.pci.config_all_ones is True
    if gpu.nvml is None or gone or "lost" in gpu.nvml.error.lower() or not gpu.nvml.error:
        return _GONE
    answers = gpu.pci is not None and gpu.pci.config_all_ones is False
    return f"NVML cannot reach it ({gpu.nvml.error})" + (", though it answers on the bus" if answers else "")


def _error_of(gpu: Gpu) -> str | None:
    """Return NVML's error of a GPU that answers on the bus; one that the bus has lost gives any."""
    answers = gpu.pci is not None and gpu.pci.config_all_ones is False
    return gpu.nvml.error.removeprefix("NVMLError_") if gpu.nvml is not None and answers else None


_AGAIN = "; if it comes back, check power, riser and slot"
_LOST = (
    Fix(
        "drain the guest, look for `Xid 79` in its kernel log (dmesg), and have its host reset the GPU or power-cycle",
        (in_guest,),
    ),
    Fix(
        "drain the node, look for `Xid 79` in the kernel log (dmesg), then reset the GPU (nvidia-smi -r, ends all "
        f"that runs on it) or power-cycle{_AGAIN}"
    ),
)
_NOT_REACHED = (
    Fix(
        "drain the guest, look for `Xid 79`, 119 or 120 in its kernel log (dmesg), and have its host reset the GPU or "
        "power-cycle",
        (in_guest,),
    ),
    Fix(
        "drain the node, look in the kernel log (dmesg) for `Xid 119` or 120 (its GSP stopped answering) and for 79 "
        "(fallen off the bus), then reset the GPU (nvidia-smi -r, ends all that runs on it) or power-cycle; if it "
        "comes back, update the driver (119, 120), or check power, riser and slot (79)"
    ),
)
"""A GPU that answers on the bus and not to NVML (NVIDIA, Xid Errors: 119 and 120 are of the GSP)."""
_LOST_NIC = (
    Fix("drain the guest, look at its kernel log (dmesg), and have its host check the device", (in_guest,)),
    Fix(
        "drain the node, look for its driver's messages and PCIe errors (AER, DPC) in the kernel log (dmesg), then "
        f"power-cycle the node{_AGAIN}"
    ),
)
_BY_ERROR: dict[str, tuple[str, tuple[Fix, ...]]] = {
    "ResetRequired": (
        "it needs a reset before it can be used again (NVMLError_ResetRequired)",
        (
            Fix("drain the guest, and have its host reset the GPU", (in_guest,)),
            Fix(
                "drain the node and reset the GPU (nvidia-smi -r, ends all that runs on it; with NVSwitch all GPUs "
                "together), or reboot; the Xid in dmesg says what happened"
            ),
        ),
    ),
    "InsufficientPower": (
        "its external power is missing or insufficient (NVMLError_InsufficientPower)",
        (
            Fix("have the host's administrator check the power cables of this GPU", (in_guest,)),
            Fix("switch the node off and check the card's power cables and the supply's rating"),
        ),
    ),
    "IrqIssue": (
        "the driver gets no interrupts from it (NVMLError_IrqIssue)",
        (
            Fix("restart the guest; if it comes back, have its host check the GPU's interrupts (MSI)", (in_guest,)),
            Fix(
                "check dmesg for NVRM and IRQ lines and /proc/interrupts for nvidia; reboot, update the firmware, and "
                "take pci=nomsi off the kernel's command line"
            ),
        ),
    ),
}
"""NVML's error of a GPU -> (what is the matter, what to do) (nvml.h, nvmlReturn_t)."""


def _lost(address: str, label: str, evidence: tuple[Evidence, ...], title: str, fix: str | None) -> Finding:
    return Finding(
        state=State.FAIL,
        subject=f"{address} {label}",
        devices=(address,),
        title=title,
        consequence="jobs that use it fail or hang, and what depends on it cannot be judged",
        evidence=evidence,
        rule="config space reads all ones, or NVML says GPU_IS_LOST",
        fix=fix,
    )


@check(
    "pcie.replays",
    title="Many packets had to be sent again over a GPU's PCIe link",
    severity=State.NOTE,
    reads=("NVML NVML_FI_DEV_PCIE_REPLAY_COUNTER",),
    thresholds=("count",),
)
def replays(context: Context) -> Iterator[Finding]:
    """Many packets had to be sent again over a GPU's PCIe link.

    Looks at:
        NVML's replay counter since the driver was loaded. Threshold `count` of the policy, 100 by default.

    Why it matters:
        A replay costs time, and a growing count announces a link that will drop lanes or speed. One look cannot
        tell a burst at boot from a steady trickle, so it is a note.

    Fix:
        Look again after an hour of work. Where it grows, reseat the card or riser; treat it as `pcie.link-width`.

    Does not apply:
        Where NVML does not offer the counter (virtual GPUs).
    """
    limit = context.threshold("pcie.replays", "count", REPLAYS)
    counted = [g for g in living(context) if g.nvml is not None and isinstance(g.nvml.pcie_replays, int)]
    if not counted:
        raise not_applicable("no GPU reports its replays")
    for gpu in counted:
        count = gpu.nvml.pcie_replays if gpu.nvml is not None else 0
        if isinstance(count, int) and count > limit:
            yield Finding(
                state=State.NOTE,
                subject=named(gpu),
                devices=(gpu.address,),
                title=f"{count} packets were sent again since the driver was loaded",
                consequence="if the count grows, the link is marginal and may lose lanes or speed",
                evidence=quote(gpu.nvml, "DeviceGetPcieReplayCounter", count),
                rule=f"more than {limit:g} replays",
                fix="re-check after an hour under load; if it grows, reseat the card (switches the node off)",
            )


@check(
    "pcie.aer-errors",
    title="PCIe errors were reported on the way to a GPU or NIC",
    severity=State.WARN,
    reads=("/sys/bus/pci/devices/*/aer_dev_fatal", "aer_dev_nonfatal", "aer_dev_correctable"),
    needs=Needs(NICS, ("errors",)),
    thresholds=("correctable",),
)
def aer_errors(context: Context) -> Iterator[Finding]:
    """PCIe errors were reported on the way to a GPU or NIC.

    Looks at:
        The kernel's error counters (Advanced Error Reporting) since boot, of each GPU, NIC and NVSwitch and of the
        ports above them. Threshold `correctable` of the policy, 1000 by default.

    Why it matters:
        An uncorrectable error is one that lost data or a device; fatal ones take the link down. Corrected errors
        cost only time, but many of them announce worse: a note, and a warning where one device has ten times the
        threshold and its siblings have next to none.

    Fix:
        Look in the kernel log for the time and kind. Reseat card, riser or cable; update the firmware of switch and
        card. Counters start at zero with the next boot.

    Does not apply:
        Where the kernel does not offer the counters. Requests that a device does not support (UnsupReq) alone are
        only noted: software causes them on healthy machines.
    """
    limit = context.threshold("pcie.aer-errors", "correctable", CORRECTABLE)
    concerned = _concerned(context)
    if not any(isinstance(d.aer_fatal, int) or isinstance(d.aer_nonfatal, int) for d, _ in concerned):
        raise not_applicable("the kernel offers no error counters here")
    for device, label in concerned:
        fatal, nonfatal, corrected = (
            _count(x) for x in (device.aer_fatal, device.aer_nonfatal, device.aer_correctable)
        )
        harmless = sum(device.aer_counters.get(f"nonfatal {name}", 0) for name in _HARMLESS)
        serious = fatal + nonfatal - min(harmless, nonfatal)
        if serious or nonfatal:
            yield Finding(
                state=State.WARN if serious else State.NOTE,
                subject=f"{device.address} {label}",
                devices=(device.address,),
                title=f"{fatal} fatal and {nonfatal} non-fatal PCIe errors since boot",
                consequence="data or the device itself was lost at least once" if serious else "none felt so far",
                evidence=device.evidence("aer_dev_fatal", "aer_dev_nonfatal"),
                rule="uncorrectable errors > 0 (unsupported requests alone are a note)",
                fix="check dmesg for the time and kind; reseat the card, riser or cable (switches the node off)",
            )
        elif corrected > limit:
            others = [_count(d.aer_correctable) for d, _ in concerned if _alike(d, device)]
            alone = corrected > _MANY * limit and len(others) > 2 and max(others) * _MANY < corrected
            yield Finding(
                state=State.WARN if alone else State.NOTE,
                subject=f"{device.address} {label}",
                devices=(device.address,),
                title=f"{corrected} corrected PCIe errors since boot"
                + (f"; {len(others)} of its kind have {max(others)} at most" if alone else ""),
                consequence="each costs a little time; a growing count announces a failing link",
                evidence=device.evidence("aer_dev_correctable"),
                rule=f"more than {limit:g} corrected errors"
                + (
                    f"; more than {_MANY * limit:g}, and {_MANY} times those of each of its kind, warns"
                    if alone
                    else ""
                ),
                fix="re-check after an hour under load; if it grows, reseat the card (switches the node off)",
            )


_MANY = 10
"""How many times the threshold, and the count of each other device of a kind, corrected errors are more than a note."""


def _alike(a: PciDevice, b: PciDevice) -> bool:
    """Tell whether two functions are of one kind; the same function is none."""
    return a.address != b.address and (a.vendor_id, a.device_id) == (b.vendor_id, b.device_id)


def _count(value: int | Missing) -> int:
    return value if isinstance(value, int) else 0


def _concerned(context: Context) -> list[tuple[PciDevice, str]]:
    """Return GPUs, NICs, NVSwitches and the ports above them, each once, with a label."""
    devices = pci_devices(context)
    places = context.topology.chains
    out: dict[str, str] = {}
    labels = [(d.address, d.label) for d in ends(context)]
    labels += [(d.address, "NVSwitch") for d in nvswitches(devices.values())]
    for address, label in labels:
        if address in devices:
            out[address] = label
        for element in places.get(address, ())[:-1]:
            if element in devices:
                out.setdefault(element, f"(port above {label})")
    return [(devices[a], label) for a, label in out.items() if devices[a].config_all_ones is not True]
