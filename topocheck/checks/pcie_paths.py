"""What the shape of the PCIe tree means: emulated switches, NICs that outrun their slot, shared uplinks."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.pcie_links import Link, links
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.subjects import ends, is_guest, listed, living, named, pci_devices
from topocheck.knowledge.rates import port_data_gbit_s
from topocheck.model.base import Finding, Missing, State, known
from topocheck.model.net import RdmaPort
from topocheck.model.pci import PciDevice
from topocheck.topology.links import is_emulated, maximum
from topocheck.topology.paths import joined_to_cpu
from topocheck.topology.tree import chains
from topocheck.topology.types import Gpu, Nic

_EMULATED_GT_S, _EMULATED_LANES = 2.5, 1
"""What emulated switch ports say of themselves (QEMU hw/pci-bridge/xio3130_*.c)."""


@check(
    "pcie.emulated-switch",
    title="A hypervisor's emulated port says gen 1 x1 above a GPU or NIC",
    severity=State.NOTE,
    reads=("/sys/bus/pci/devices/*/max_link_speed", "/sys/bus/pci/devices/*/max_link_width", "vendor and device ids"),
)
def emulated_switch(context: Context) -> Iterator[Finding]:
    """A hypervisor's emulated port says gen 1 x1 above a GPU or NIC.

    Looks at:
        Every port above a GPU or NIC of a virtual machine that claims to do no more than 2.5 GT/s x1.

    Why it matters:
        The number is invented and nothing is slow, but NCCL believes it: its log shows `PCI[0.2]`, and it plans its
        rings and trees around a link of a quarter of a GB/s.

    Fix:
        Give NCCL a topology file with the true speeds (`NCCL_TOPO_FILE`; keep only the cpu and pci levels), usually
        from the cloud's provider, or ask the host's keeper for ports that state their real link.

    Does not apply:
        On bare metal, and to the placeholder link of a GPU that a chip-to-chip link joins to its CPU.
    """
    if not is_guest(context):
        raise not_applicable("this is not a virtual machine")
    devices = pci_devices(context)
    places = chains(devices.values())
    below: dict[str, list[str]] = {}
    for device in ends(context):
        if isinstance(device, Gpu) and joined_to_cpu(device):
            continue
        for element in places.get(device.address, ())[:-1]:
            if element in devices and _claims_nothing(devices[element]):
                below.setdefault(element, []).append(device.label)
    if below:
        labels = list(dict.fromkeys(x for names in below.values() for x in names))
        yield Finding(
            id="pcie.emulated-switch",
            state=State.NOTE,
            subject="node",
            title=f"{len(below)} emulated port(s) above {listed(labels)} claim gen 1 x1",
            consequence="the link is not slow, but NCCL plans with 0.25 GB/s and may choose poor paths",
            evidence=tuple(
                e for a in list(below)[:4] for e in devices[a].evidence("device", "max_link_speed", "max_link_width")
            ),
            rule="a port of a guest that says 2.5 GT/s x1 is the hypervisor's invention",
            fix="set NCCL_TOPO_FILE to a file with the true speeds, as the provider offers for this type of machine",
        )


def _claims_nothing(port: PciDevice) -> bool:
    most = maximum(port)
    return most.speed_gt_s == _EMULATED_GT_S and most.width_lanes == _EMULATED_LANES


@check(
    "pcie.nic-slot-too-slow",
    title="A NIC's port is faster than the PCIe link that feeds it",
    severity=State.WARN,
    reads=("/sys/class/infiniband/*/ports/*/rate", "/sys/bus/pci/devices/*/current_link_*"),
)
def nic_slot_too_slow(context: Context) -> Iterator[Finding]:
    """A NIC's port is faster than the PCIe link that feeds it.

    Looks at:
        The data rate of each active port against the narrowest PCIe link from the NIC up to its root port, after
        the line coding: gen 4 x16 carries 252 Gb/s, so it feeds a 200 Gb/s port and not a 400 Gb/s one.

    Why it matters:
        The network is bought at one rate and used at another; all-reduce between nodes stops at the slot's.

    Fix:
        Move the NIC to a slot of the generation and width it was made for; where the link is trained below what
        both ends can do (`pcie.link-width`, `pcie.link-speed`), mend that first.

    Does not apply:
        In a guest, whose ports are not hardware, and to ports that are down. A NIC whose own interface is narrower
        than its port is only noted: it was built so.
    """
    if is_guest(context):
        raise not_applicable("the links of a guest are the hypervisor's")
    if not context.topology.nics:
        raise not_applicable("no RDMA device with a PCI function")
    every = [link for link in links(context) if not link.formal and not link.suspended]
    for nic in context.topology.nics:
        rates = [(p, r) for p in (nic.rdma.ports if nic.rdma else ()) if (r := _data_rate(p)) is not None]
        hops = [(r, link) for link in every if nic.label in link.users and (r := _working(link)) is not None]
        if not rates or not hops:
            continue
        port, gbit_s = max(rates, key=lambda x: x[1])
        gb_s, narrow = min(hops, key=lambda x: x[0])
        if gbit_s > gb_s * 8:
            yield _too_slow(nic, port, gbit_s, narrow, gb_s * 8, every)


def _data_rate(port: RdmaPort) -> float | None:
    if port.state != "ACTIVE" or isinstance(port.rate_text, Missing) or isinstance(port.link_layer, Missing):
        return None
    try:
        return port_data_gbit_s(port.rate_text, port.link_layer)
    except ValueError:
        return None


def _working(link: Link) -> float | None:
    rate = link.now.rate()
    return None if isinstance(rate, Missing) or link.idle else rate


def _too_slow(nic: Nic, port: RdmaPort, gbit_s: float, narrow: Link, carries: float, every: list[Link]) -> Finding:
    own = next((x.lower_max.rate() for x in every if x.own and x.lower.address == nic.address), None)
    built_so = isinstance(own, float) and own * 8 < gbit_s
    could = [r for r in (narrow.lower_max.rate(), narrow.upper_max.rate()) if isinstance(r, float)]
    fix = "move the NIC to a slot that can do what the card can (switches the node off)"
    if narrow.both_ends and min(could) * 8 >= gbit_s:
        fix = "mend the link first: both its ends can do more (pcie.link-width, pcie.link-speed)"
    return Finding(
        id="pcie.nic-slot-too-slow",
        state=State.NOTE if built_so else State.WARN,
        subject=named(nic),
        title=f"port {port.port} runs at {gbit_s:g} Gb/s, its PCIe link ({narrow.now.text()} at "
        f"{narrow.lower.address}) carries {carries:.0f} Gb/s",
        consequence=f"this NIC reaches at most {100 * carries / gbit_s:.0f} % of its port's rate",
        evidence=port.evidence("rate") + narrow.evidence("speed") + narrow.evidence("width"),
        rule="data rate of the port > rate of the narrowest PCIe link after line coding",
        fix=None if built_so else fix,
    )


@check(
    "pcie.shared-uplink",
    title="Several GPUs share one link towards the CPU",
    severity=State.NOTE,
    reads=("/sys/bus/pci/devices/* (resolved paths)", "/sys/bus/pci/devices/*/current_link_*"),
)
def shared_uplink(context: Context) -> Iterator[Finding]:
    """Several GPUs share one link towards the CPU.

    Looks at:
        Which upstream ports of PCIe switches have more than one GPU below them.

    Why it matters:
        Copies to and from host memory by all of them at once divide the uplink, so data loading that is fast on one
        GPU slows when all work. Traffic between the GPUs below the switch is not concerned.

    Fix:
        None needed: the board is built so. Spread jobs that use few GPUs over different switches.

    Does not apply:
        In a guest, whose switches are not hardware, and to machines without switches.
    """
    if is_guest(context):
        raise not_applicable("the switches of a guest are the hypervisor's")
    devices = pci_devices(context)
    places = chains(devices.values())
    below: dict[str, list[Gpu]] = {}
    for gpu in living(context):
        for element in places.get(gpu.address, ())[:-1]:
            node = context.topology.tree.get(element)
            if node is not None and node.role == "upstream_port":
                below.setdefault(element, []).append(gpu)
    if not below:
        raise not_applicable("no GPU below a PCIe switch")
    shared: dict[str, list[Gpu]] = {}
    for port, gpus in sorted(below.items(), key=lambda x: -len(x[1])):
        inside = any({g.address for g in gpus} <= {g.address for g in others} for others in shared.values())
        if len(gpus) > 1 and not inside and port in devices and not is_emulated(devices[port]):
            shared[port] = gpus
    if shared:
        yield Finding(
            id="pcie.shared-uplink",
            state=State.NOTE,
            subject="node",
            title="one uplink towards the CPU for " + ", for ".join(_crowd(context, p, g) for p, g in shared.items()),
            consequence="copies from and to host memory by all GPUs of a switch at once divide its uplink",
            evidence=tuple(
                e for p in list(shared)[:4] for e in devices[p].evidence("current_link_speed", "current_link_width")
            ),
            rule="more than one GPU below one upstream port",
        )


def _crowd(context: Context, port: str, gpus: list[Gpu]) -> str:
    rate = context.topology.tree[port].link_gb_s
    shown = f", {rate:.1f} GB/s" if known(rate) else ""
    return f"{'+'.join(g.label for g in gpus)} ({port}{shown})"
