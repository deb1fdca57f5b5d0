"""What a PCIe port says about a device that is not there: containment that fired, a place that alone is empty."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.subjects import ends, is_guest, listed, pci_devices
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.model.pci import PciDevice
from topocheck.topology.inventory import nvswitches
from topocheck.topology.paths import product_of
from topocheck.topology.tree import chains
from topocheck.topology.types import TreeNode


@check(
    "pcie.containment",
    title="A PCIe port has cut off what is below it",
    severity=State.FAIL,
    reads=("/sys/bus/pci/devices/*/config (Downstream Port Containment, root only)",),
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
        power-cycle); if it happens again, look at card, riser, cable and power.

    Does not apply:
        Where no port has the capability, and without root, who alone can read it. It fails where a GPU, NIC or
        NVSwitch still is listed below the port, and warns where nothing of the kind is.
    """
    devices = pci_devices(context)
    told = [d for d in devices.values() if isinstance(d.dpc_triggered, bool)]
    if not told:
        raise not_applicable("no port shows the state of its containment (root only)")
    places = chains(devices.values())
    labels = {d.address: d.label for d in ends(context)} | {g.address: g.label for g in context.topology.gpus}
    labels |= {d.address: "NVSwitch" for d in nvswitches(devices.values())}
    for port in told:
        if port.dpc_triggered is not True:
            continue
        below = [label for a, label in labels.items() if port.address in places.get(a, ())[:-1]]
        yield Finding(
            id="pcie.containment",
            state=State.FAIL if below else State.WARN,
            subject=f"{port.address} (port above {below[0]})" if below else f"{port.address} (port)",
            title="the port has taken its link down after an uncorrectable error (DPC triggered)"
            + ("" if below else "; nothing is listed below it"),
            consequence=f"{listed(below, 4)} cannot be reached"
            if below
            else "what was plugged in here is gone, and nothing else shows that it was there",
            evidence=port.evidence("config DPC") or (Evidence(f"{port.source}/config DPC", "triggered"),),
            rule="DPC Trigger Status (bit 0 of DPC Status) is clear",
            fix="look in dmesg for `DPC` and the error before it; drain the node and reset the slot, or power-cycle; "
            "if it comes back, check card, riser, cable and power",
        )


@check(
    "consistency.gpu-missing",
    title="A place that holds a GPU below every other switch is empty",
    severity=State.WARN,
    reads=("/sys/bus/pci/devices (the tree)", "/sys/bus/pci/devices/*/config (Link Status, root only)"),
)
def gpu_missing(context: Context) -> Iterator[Finding]:
    """A place that holds a GPU below every other switch is empty.

    Looks at:
        PCIe switches of one model with equally many ports: which port of each holds a GPU. A port without a device,
        where the same port of all others of its kind holds a GPU, is named.

    Why it matters:
        A GPU that fell off before the kernel looked leaves no trace: every other check is content with one less.
        Jobs sized for the whole node then fail, or run on fewer GPUs.

    Fix:
        Look in the kernel log and in the log of the BMC for the slot. Power-cycle; if the GPU stays away, reseat or
        replace it.

    Does not apply:
        In a guest, which may have been given a part of the machine. With fewer than three switches of a kind, or
        where they are not equally filled otherwise. Cards in slots may be missing on purpose: there it speaks only
        where the port says that its link is up.
    """
    if is_guest(context):
        raise not_applicable("a guest may have been given a part of the GPUs")
    devices, tree = pci_devices(context), context.topology.tree
    gpus = {g.address for g in (*context.topology.gpus, *context.topology.accelerators)}
    groups: dict[tuple[object, ...], list[TreeNode]] = {}
    for node in tree.values():
        device = devices.get(node.id)
        if node.role == "upstream_port" and device is not None:
            groups.setdefault(_kind(node, device, tree), []).append(node)
    alike = [g for g in groups.values() if len(g) > 2]
    if not gpus or not alike:
        raise not_applicable("no three PCIe switches of one kind that could be compared")
    products = [p for g in context.topology.gpus if (p := product_of(g)) is not None]
    modules = bool(products) and all(p.form_factor == "SXM" for p in products)
    for switches in alike:
        holds = {s.id: tuple(_holds(c, tree, gpus) for c in s.children) for s in switches}
        for switch in switches:
            for i, port in enumerate(switch.children):
                others = [holds[s.id] for s in switches if s is not switch]
                if not _alone_empty(holds[switch.id], others, i):
                    continue
                device = devices.get(port)
                if device is not None and (modules or device.link_active is True):
                    yield _missing(device, len(gpus), others, switches, i, tree)


def _kind(node: TreeNode, device: PciDevice, tree: dict[str, TreeNode]) -> tuple[object, ...]:
    """Return what makes switches comparable: chip, number of ports, and the place below an outer switch."""
    above = tree.get(node.parent) if node.parent else None
    place = above.id.partition(":")[2].partition(":")[2] if above and above.role == "downstream_port" else ""
    ids = (device.vendor_id, device.device_id, device.subsystem_device_id)
    return (*(x if known(x) else None for x in ids), len(node.children), place)


def _holds(port: str, tree: dict[str, TreeNode], gpus: set[str]) -> str:
    """Return what is right below a port: `gpu`, `other` or `nothing`."""
    below = tree[port].children if port in tree else ()
    return "gpu" if gpus & set(below) else "other" if below else "nothing"


def _alone_empty(mine: tuple[str, ...], others: list[tuple[str, ...]], i: int) -> bool:
    """Tell whether port `i` alone is empty where all others hold a GPU, the other ports being filled alike."""
    if mine[i] != "nothing" or any(o[i] != "gpu" for o in others):
        return False
    return all((*o[:i], *o[i + 1 :]) == (*mine[:i], *mine[i + 1 :]) for o in others)


def _missing(
    port: PciDevice,
    gpus: int,
    others: list[tuple[str, ...]],
    switches: list[TreeNode],
    i: int,
    tree: dict[str, TreeNode],
) -> Finding:
    full = next(s for s in switches if tree[s.children[i]].children)
    link = port.evidence("config LnkSta") if not isinstance(port.link_active, Missing) else ()
    return Finding(
        id="consistency.gpu-missing",
        state=State.WARN,
        subject=f"{port.address} (port)",
        title=f"nothing is below this port; the same port of {len(others)} switches of its kind holds a GPU",
        consequence=f"there are {gpus} GPUs where {gpus + 1} have their place; jobs sized for all of them fail",
        evidence=(
            Evidence("PCI tree", f"{port.address}: nothing"),
            Evidence("PCI tree", f"{full.children[i]}: {', '.join(tree[full.children[i]].children)}"),
            *link,
        ),
        rule="switches of one kind, filled alike otherwise, hold a GPU at the same port",
        fix="look at dmesg and the BMC's log for this slot; power-cycle the node; if the GPU stays away, reseat or "
        "replace it",
    )
