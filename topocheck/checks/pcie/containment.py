"""Downstream Port Containment that has fired."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import ends, listed, pci_devices
from topocheck.checks.sources import Needs
from topocheck.model.base import Evidence, Finding, State
from topocheck.topology.inventory import nvswitches


@check(
    "pcie.containment",
    title="A PCIe port has cut off what is below it",
    severity=State.FAIL,
    reads=("/sys/bus/pci/devices/*/config (Downstream Port Containment, root only)",),
    needs=Needs(("pci", "config")),
)
def containment(context: Context) -> Iterator[Finding]:
    """A PCIe port has cut off what is below it.

    Looks at:
        The trigger status of Downstream Port Containment of every port (PCI Express Base Specification 5.0, 7.9.14).

    Why it matters:
        After an uncorrectable error such a port takes its link down, so that the error does not spread. The device
        below is gone until software releases the port; the kernel usually has removed it from its list already, so
        that nothing else shows that it ever was there.

    Fix:
        Look in the kernel log for `DPC` and for the error before it. Drain the node and reset the slot (or
        power-cycle); if it happens again, check card, riser, cable and power.

    Does not apply:
        Where no port has the capability, and without root, who alone can read it. It fails where a GPU, NIC or
        NVSwitch still is listed below the port, and warns where nothing of the kind is.
    """
    devices = pci_devices(context)
    told = [d for d in devices.values() if isinstance(d.dpc_triggered, bool)]
    if not told:
        raise not_applicable("no port shows the state of its containment (root only)")
    labels = {d.address: d.label for d in ends(context)} | {g.address: g.label for g in context.topology.gpus}
    labels |= {d.address: "NVSwitch" for d in nvswitches(devices.values())}
    inside: dict[str, list[str]] = {}
    for address, label in labels.items():
        for element in context.topology.chains.get(address, ())[:-1]:
            inside.setdefault(element, []).append(label)
    for port in told:
        if port.dpc_triggered is not True:
            continue
        below = inside.get(port.address, [])
        yield Finding(
            state=State.FAIL if below else State.WARN,
            subject=f"{port.address} (port above {below[0]})" if below else f"{port.address} (port)",
            devices=(port.address,),
            title="the port has taken its link down after an uncorrectable error (DPC triggered)"
            + ("" if below else "; nothing is listed below it"),
            consequence=f"{listed(below, 4)} cannot be reached"
            if below
            else "what was plugged in here is gone, and nothing else shows that it was there",
            evidence=port.evidence("config DPC") or (Evidence(f"{port.source}/config DPC", "triggered"),),
            rule="DPC Trigger Status (bit 0 of DPC Status) is clear",
            fix="check dmesg for `DPC` and the error before it; drain the node and reset the slot, or power-cycle; "
            "if it comes back, check card, riser, cable and power",
        )
