"""What the shape of the PCIe tree means: emulated switches, NICs that outrun their slot, shared uplinks."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import ends, is_guest, listed, living, named, pci_devices, share
from topocheck.checks.shared.pcie_links import Link, links
from topocheck.checks.sources import GPUS, NICS, Needs
from topocheck.knowledge.rates import port_data_gbit_s
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.model.net import RdmaPort
from topocheck.model.pci import PciDevice
from topocheck.topology.links import LinkState, generation, is_emulated, maximum
from topocheck.topology.paths import joined_to_cpu, product_of
from topocheck.topology.types import Gpu, Hop, HopKind, HostPath, Nic

_EMULATED_GT_S, _EMULATED_LANES = 2.5, 1
"""What emulated switch ports say of themselves (QEMU hw/pci-bridge/xio3130_*.c)."""


@check(
    "pcie.emulated-switch",
    title="A hypervisor's emulated port says gen 1 x1 above a GPU or NIC",
    severity=State.NOTE,
    reads=("/sys/bus/pci/devices/*/max_link_speed", "/sys/bus/pci/devices/*/max_link_width", "vendor and device ids"),
    needs=Needs((*NICS, "hypervisor")),
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
        from the cloud's provider, or ask the host's administrator for ports that state their real link.

    Does not apply:
        On bare metal, and to the placeholder link of a GPU that a chip-to-chip link joins to its CPU.
    """
    if not is_guest(context):
        raise not_applicable("this is not a virtual machine")
    devices = pci_devices(context)
    places = context.topology.chains
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
    needs=Needs((*NICS, "hypervisor"), ("rate", "link", "config")),
)
def nic_slot_too_slow(context: Context) -> Iterator[Finding]:
    """A NIC's port is faster than the PCIe link that feeds it.

    Looks at:
        The data rate of each active port against the narrowest PCIe link from the NIC up to its root port, after
        the line coding: gen 4 x16 carries 252 Gb/s, so it feeds a 200 Gb/s port and not a 400 Gb/s one.

    Why it matters:
        The network is bought at one rate and used at another; all-reduce between nodes stops at the slot's.

    Fix:
        Move the NIC to a slot of the generation and width it was made for.

    Does not apply:
        In a guest, whose ports are not hardware, and to ports that are down. A link that trained below what both ends
        can do is judged by what it can do: its fault is `pcie.link-width` or `pcie.link-speed`. Only noted are a NIC
        whose own interface is narrower than its port (it was built so), and a narrow link above a switch that joins
        the NIC to a GPU, as on boards whose NICs hold the switch (ConnectX-8): GPUDirect RDMA does not pass it.
    """
    if is_guest(context):
        raise not_applicable("the links of a guest are the hypervisor's")
    if not context.topology.nics:
        raise not_applicable("no RDMA device with a PCI function")
    every = [link for link in links(context) if not link.formal and not link.suspended]
    gpus = {g.label: g for g in context.topology.gpus}
    used: dict[str, list[tuple[float, Link]]] = {}
    for link in every:
        rate = _can_work(link).rate()
        if known(rate) and not link.idle:
            for label in dict.fromkeys(link.users):
                used.setdefault(label, []).append((rate, link))
    for nic in context.topology.nics:
        rates = [(p, r) for p in (nic.rdma.ports if nic.rdma else ()) if (r := _data_rate(p)) is not None]
        hops = used.get(nic.label)
        if not rates or not hops:
            continue
        port, gbit_s = max(rates, key=lambda x: x[1])
        gb_s, narrow = min(hops, key=lambda x: x[0])
        if gbit_s > gb_s * 8:
            found = _too_slow(nic, port, gbit_s, narrow, gb_s * 8, every)
            beside = [gpus[x] for x in narrow.users if x in gpus] if not narrow.own else []
            own = [rate for rate, link in hops if not any(x in gpus for x in link.users)]
            if beside and own and gbit_s <= min(own) * 8 and _direct(beside):
                found = _beside_gpus(found, beside)
            yield found


def _direct(gpus: list[Gpu]) -> bool:
    """Tell whether a GPU is of a product with GPUDirect RDMA; why it is not to be had is said by other checks."""
    return any((p := product_of(g)) is not None and p.gpudirect_rdma for g in gpus)


def _beside_gpus(found: Finding, gpus: list[Gpu]) -> Finding:
    """Make a note of it where GPUs below the same switch reach the NIC without the narrow link."""
    names = listed(g.label for g in gpus)
    return msgspec.structs.replace(
        found,
        state=State.NOTE,
        consequence=f"transfers between this NIC and host memory are bounded by it; those with {names} do not pass it",
        rule=f"{found.rule}; a link above the switch that joins NIC and GPU is a note",
        fix=None,
    )


def _data_rate(port: RdmaPort) -> float | None:
    if port.state != "ACTIVE" or isinstance(port.rate_text, Missing) or isinstance(port.link_layer, Missing):
        return None
    try:
        return port_data_gbit_s(port.rate_text, port.link_layer)
    except ValueError:
        return None


def _can_work(link: Link) -> LinkState:
    """Return what a link works at once it is trained: what both ends can do, where both are known."""
    width, speed = link.width_limit(), link.speed_limit()
    if not link.both_ends or width is None or speed is None:
        return link.now
    return LinkState(speed, width)


def _too_slow(nic: Nic, port: RdmaPort, gbit_s: float, narrow: Link, carries: float, every: list[Link]) -> Finding:
    own = next((x.lower_max.rate() for x in every if x.own and x.lower.address == nic.address), None)
    slot = narrow.upper_max.rate()
    at_most = (
        f"; {narrow.upper.address} can do no more"
        if narrow.upper and isinstance(slot, float) and slot * 8 < gbit_s
        else ""
    )
    built_so = isinstance(own, float) and own * 8 < gbit_s
    fix = "move the NIC to a slot that can do what the card can, if the board has one (switches the node off)"
    return Finding(
        state=State.NOTE if built_so else State.WARN,
        subject=named(nic),
        devices=(nic.address,),
        title=f"port {port.port} runs at {gbit_s:g} Gb/s, its PCIe link ({_can_work(narrow).text()} at "
        f"{narrow.lower.address}) carries {carries:.0f} Gb/s{at_most}",
        consequence=f"this NIC reaches at most {100 * carries / gbit_s:.0f} % of its port's rate",
        evidence=port.evidence("rate") + narrow.evidence("speed") + narrow.evidence("width"),
        rule="data rate of the port > rate of the narrowest PCIe link after line coding",
        fix=None if built_so else fix,
    )


@check(
    "pcie.narrower-than-siblings",
    title="A GPU has a narrower PCIe path to the CPU than GPUs of its model",
    severity=State.WARN,
    reads=("/sys/bus/pci/devices/* (resolved paths)", "/sys/bus/pci/devices/*/max_link_*"),
    needs=Needs((*GPUS, "gpu name", "hypervisor"), ("link",)),
)
def narrower_than_siblings(context: Context) -> Iterator[Finding]:
    """A GPU has a narrower PCIe path to the CPU than GPUs of its model.

    Looks at:
        The narrowest link from each GPU up to its root port, by what both ends of each link can do, among GPUs of one
        model. A slot behind the chipset, or one with fewer lanes, shows here.

    Why it matters:
        `nvidia-smi topo` names all these paths PHB or NODE, and a pair with such a GPU copies at the rate of the narrow
        link. Collectives run at the speed of the slowest GPU. What else is behind the chipset shares its link.

    Fix:
        Move the GPU to a slot with as many lanes from the CPU, if the board has one; else leave it out of jobs that
        use several GPUs.

    Does not apply:
        In a guest, and to GPUs joined to their CPU by a chip-to-chip link. A link that trained below what both ends
        can do is `pcie.link-width` or `pcie.link-speed`.
    """
    if is_guest(context):
        raise not_applicable("the ports of a guest are the hypervisor's")
    models: dict[str, list[tuple[float, Hop, Gpu]]] = {}
    for gpu in living(context):
        found = None if joined_to_cpu(gpu) else _narrowest(context.topology.host_paths.get(gpu.address))
        if found is not None and isinstance(gpu.name, str):
            models.setdefault(gpu.name, []).append((*found, gpu))
    if all(len(same) < 2 for same in models.values()):
        raise not_applicable("no two GPUs of one model")
    for name, same in models.items():
        most = max(rate for rate, _, _ in same)
        by_rate: dict[float, list[tuple[Hop, Gpu]]] = {}
        for rate, hop, gpu in same:
            by_rate.setdefault(rate, []).append((hop, gpu))
        for rate, slow in by_rate.items():
            if rate < _CLEARLY * most:
                yield _narrower(context, name, rate, slow, most, [g for _, g in by_rate[most]])


def _narrower(
    context: Context, model: str, rate: float, found: list[tuple[Hop, Gpu]], most: float, widest: list[Gpu]
) -> Finding:
    """Return the finding about GPUs of a model whose way to the CPU has one rate (GB/s), below `most` of others."""
    gpus = [g for _, g in found]
    one = len(gpus) == 1
    at = listed((f"{_text(context, h)} at {h.upstream or h.address}{_others_below(context, h)}" for h, _ in found), 3)
    labels = listed((g.label for g in gpus), 4)
    return Finding(
        state=State.WARN,
        subject=named(gpus[0]) if one else "node",
        devices=tuple(g.address for g in gpus),
        title=f"{labels} {'reaches' if one else 'reach'} the CPU at {rate:.1f} GB/s, limited by {at}; "
        f"{listed((g.label for g in widest), 4)} {'has' if len(widest) == 1 else 'have'} {most:.1f} GB/s",
        consequence=f"copies with {labels} run at {share(rate, most)} the rate of the others, and collectives wait for "
        "them",
        evidence=tuple(e for h, _ in found[:2] for e in _link_evidence(context, h)),
        rule=f"GPUs of one model ({model}) with equal paths to the CPU",
        fix="move the card to a slot with as many lanes from the CPU, if the board has one (switches the node off); "
        "else leave it out of jobs over several GPUs",
    )


def _text(context: Context, hop: Hop) -> str:
    """Return what both ends of a link can do: `gen 3 x4`."""
    link = next((x for x in links(context) if x.lower.address == hop.address), None)
    speed, width = (link.speed_limit(), link.width_limit()) if link is not None else (None, None)
    return f"gen {generation(speed)} x{width}" if speed is not None and width is not None else hop.text


_CLEARLY = 0.9
"""Rates of two generations, or of two widths, differ by half; line coding makes up less than a tenth."""


def _narrowest(path: HostPath | None) -> tuple[float, Hop] | None:
    """Return the lowest rate (GB/s) that the links of a path can do, and the link nearest to the CPU that has it."""
    rated = [(h.attainable_gb_s, h) for h in (path.hops if path else ()) if h.kind is HopKind.PCIE and not h.formal]
    known_ = [(r, h) for r, h in rated if isinstance(r, float)]
    if not known_ or len(known_) < len(rated):
        return None
    least = min(r for r, _ in known_)
    return next((r, h) for r, h in reversed(known_) if r == least)


def _others_below(context: Context, hop: Hop) -> str:
    """Return how many endpoints that are neither GPUs nor their own functions share a link."""
    gpus = {g.address.rpartition(".")[0] for g in context.topology.gpus}
    todo, found = [hop.upstream or hop.address], set[str]()
    while todo:
        node = context.topology.tree.get(todo.pop())
        if node is None:
            continue
        todo += node.children
        card = node.id.rpartition(".")[0]
        if node.role == "endpoint" and card not in gpus:
            found.add(card)
    return f", which {len(found)} other device{' shares' if len(found) == 1 else 's share'}" if found else ""


def _link_evidence(context: Context, hop: Hop) -> tuple[Evidence, ...]:
    devices = pci_devices(context)
    ends_ = [devices[a] for a in (hop.upstream, hop.address) if a is not None and a in devices]
    return tuple(e for d in ends_ for e in d.evidence("max_link_speed", "max_link_width"))


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
    places = context.topology.chains
    below: dict[str, list[Gpu]] = {}
    for gpu in living(context):
        for element in places.get(gpu.address, ())[:-1]:
            node = context.topology.tree.get(element)
            if node is not None and node.role == "upstream_port":
                below.setdefault(element, []).append(gpu)
    if not below:
        raise not_applicable("no GPU below a PCIe switch")
    shared: dict[str, list[Gpu]] = {}
    taken: set[str] = set()
    for port, gpus in sorted(below.items(), key=lambda x: -len(x[1])):
        # The GPUs below two ports are disjoint, or those of the lower are all among those of the upper.
        if len(gpus) > 1 and gpus[0].address not in taken and port in devices and not is_emulated(devices[port]):
            shared[port] = gpus
            taken.update(g.address for g in gpus)
    if shared:
        yield Finding(
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
