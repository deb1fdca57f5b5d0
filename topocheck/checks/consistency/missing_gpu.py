"""A port that alone of its kind holds no GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import is_guest, pci_devices
from topocheck.checks.sources import Needs
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.model.pci import PciDevice
from topocheck.topology.paths import product_of
from topocheck.topology.types import TreeNode


@check(
    "consistency.gpu-missing",
    title="A place that holds a GPU below every other switch is empty",
    severity=State.WARN,
    reads=("/sys/bus/pci/devices (the tree)", "/sys/bus/pci/devices/*/config (Link Status, root only)"),
    needs=Needs(("pci", "hypervisor"), ("gpu name",)),
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
    alike = [g for g in _joined(groups) if len(g) > 2]
    if not gpus or not alike:
        raise not_applicable("no three PCIe switches of one kind that could be compared")
    products = [p for g in context.topology.gpus if (p := product_of(g)) is not None]
    modules = bool(products) and all(p.form_factor == "SXM" for p in products)
    for switches in alike:
        found = _alone_empty([tuple(_holds(c, tree, gpus) for c in s.children) for s in switches])
        if found is None:
            continue
        switch, i = found
        device = devices.get(switches[switch].children[i])
        if device is not None and (modules or device.link_active is True):
            yield _missing(device, len(gpus), switches, i, tree)


def _kind(node: TreeNode, device: PciDevice, tree: dict[str, TreeNode]) -> tuple[object, ...]:
    """Return what makes switches comparable: chip, number of ports, and the place below an outer switch."""
    above = tree.get(node.parent) if node.parent else None
    place = above.id.partition(":")[2].partition(":")[2] if above and above.role == "downstream_port" else ""
    ids = (device.vendor_id, device.device_id, device.subsystem_device_id)
    return (*(x if known(x) else None for x in ids), len(node.children), place)


def _joined(groups: dict[tuple[object, ...], list[TreeNode]]) -> list[list[TreeNode]]:
    """Return the groups; a switch with an id that could not be read joins the only kind that it may be of."""
    out: dict[tuple[object, ...], list[TreeNode]] = {}
    for key, nodes in sorted(groups.items(), key=lambda item: None in item[0]):
        fits = [k for k in out if all(a is None or a == b for a, b in zip(key, k, strict=True))]
        if len(fits) < 2:
            out.setdefault(fits[0] if fits else key, []).extend(nodes)
    return list(out.values())


def _holds(port: str, tree: dict[str, TreeNode], gpus: set[str]) -> str:
    """Return what is right below a port: `gpu`, `other` or `nothing`."""
    below = tree[port].children if port in tree else ()
    return "gpu" if gpus & set(below) else "other" if below else "nothing"


def _alone_empty(holds: list[tuple[str, ...]]) -> tuple[int, int] | None:
    """Return (switch, port) of the one port that is empty where all others hold a GPU, all else being filled alike."""
    numbers = Counter(holds)
    odd = next((h for h, n in numbers.items() if n == 1), None)
    if len(numbers) != 2 or odd is None:
        return None
    usual = next(h for h in numbers if h is not odd)
    differ = [i for i, (a, b) in enumerate(zip(odd, usual, strict=True)) if a != b]
    if len(differ) != 1 or (odd[differ[0]], usual[differ[0]]) != ("nothing", "gpu"):
        return None
    return holds.index(odd), differ[0]


def _missing(
    port: PciDevice,
    gpus: int,
    switches: list[TreeNode],
    i: int,
    tree: dict[str, TreeNode],
) -> Finding:
    full = next(s for s in switches if tree[s.children[i]].children)
    link = port.evidence("config LnkSta") if not isinstance(port.link_active, Missing) else ()
    return Finding(
        state=State.WARN,
        subject=f"{port.address} (port)",
        devices=(port.address,),
        title=f"nothing is below this port; the same port of {len(switches) - 1} switches of its kind holds a GPU",
        consequence=f"there are {gpus} GPUs where {gpus + 1} have their place; jobs sized for all of them fail",
        evidence=(
            Evidence("PCI tree", f"{port.address}: nothing"),
            Evidence("PCI tree", f"{full.children[i]}: {', '.join(tree[full.children[i]].children)}"),
            *link,
        ),
        rule="switches of one kind, filled alike otherwise, hold a GPU at the same port",
        fix="check dmesg and the BMC's log for this slot; power-cycle the node; if the GPU stays away, reseat or "
        "replace it",
    )
