"""From the facts of a node to what is drawn of it: which boxes, which links, and in what state.

Drawn are GPUs, accelerators and NICs with what leads to them. Bridges that only pass through are folded into a link,
with the rate of the narrowest; branches without any of these are counted. Pure.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from topocheck.knowledge.products import nic_port
from topocheck.model.address import parse_cpulist
from topocheck.model.base import Finding, Missing, State, known
from topocheck.model.node import Node
from topocheck.model.pci import PciDevice
from topocheck.picture.fabric import Nvlinks
from topocheck.picture.pcie import drawn_link, folded, network_link
from topocheck.picture.stacks import stack
from topocheck.picture.types import Domain, Link, LinkState, Part, PartKind, Scene
from topocheck.picture.words import named, numbers, product, short_address
from topocheck.topology.inventory import nvswitches
from topocheck.topology.tree import is_host_bridge
from topocheck.topology.types import Gpu, HopKind, Nic, Topology

MAX_ROWS = 72
"""Devices that get a row each; of more, equal neighbours are stacked."""
_WORST = (State.FAIL, State.WARN, State.UNKNOWN)
_DIRECT = (HopKind.C2C, HopKind.NVLINK)
"""First hops to the host that replace a GPU's PCIe link."""


def scene(node: Node, topology: Topology, findings: Sequence[Finding] = ()) -> Scene:
    """Return what is drawn of a node.

    Args:
        node: its facts.
        topology: what was made of them.
        findings: those of the checks; what they are about is marked.
    """
    builder = _Builder(node, topology, findings)
    return builder.scene()


def devices(node: Node, topology: Topology, findings: Sequence[Finding] = ()) -> dict[str, tuple[Part, Link | None]]:
    """Return GPUs, accelerators and NICs by address, none stacked.

    Each comes with its own link, and with the first faulty link of the switches above it; None where there is none.
    """
    builder = _Builder(node, topology, findings)
    return {a: (builder.device(a), builder.uplink(a)) for a in (*builder.gpus, *builder.nics)}


def nic_product(nic: Nic) -> str:
    """Return a NIC's trade name, else what it says of itself; empty where it says nothing."""
    name = ""
    if nic.pci is not None:
        vendor, device = nic.pci.vendor_id, nic.pci.device_id
        chip = None if isinstance(vendor, Missing) or isinstance(device, Missing) else nic_port(vendor, device)
        name = chip.name if chip is not None else product(nic.pci.device_name)
    if not name and nic.rdma is not None and known(nic.rdma.hca_type):
        name = nic.rdma.hca_type
    return name


def can_be_drawn(topology: Topology) -> bool:
    """Tell whether it is known where the devices are; of a pasted matrix only their classes are."""
    return bool(topology.tree) or not (topology.gpus or topology.accelerators or topology.nics)


class _Builder:
    """Makes one scene."""

    def __init__(self, node: Node, topology: Topology, findings: Sequence[Finding]) -> None:
        self.node, self.topology = node, topology
        self.guest = known(node.system.hypervisor)
        self.gpus: dict[str, Gpu] = {g.address: g for g in (*topology.gpus, *topology.accelerators)}
        self.accelerators = {g.address for g in topology.accelerators}
        self.nics: dict[str, list[Nic]] = {}
        for n in topology.nics:
            self.nics.setdefault(n.address, []).append(n)
        self.ends = {*self.gpus, *self.nics}
        self.cards = {a.rpartition(".")[0] for a in self.ends}
        self.direct = {
            a for a, p in topology.host_paths.items() if p.hops and p.hops[0].kind in _DIRECT and a in self.gpus
        }
        self.domains = len({a.split(":", 1)[0] for a in topology.devices}) or 1
        self.findings = _worst_of(findings)
        self.about_nvlink = _worst_of(f for f in findings if f.area == "nvlink")
        self.ids, self.links = itertools.count(), itertools.count()
        self.wanted = self._wanted()
        self.nvlinks = Nvlinks(topology, self.about_nvlink, self.link_id)

    def link_id(self) -> str:
        """Return the id of the next link."""
        return f"k{next(self.links)}"

    def scene(self) -> Scene:
        """Return the scene."""
        parts = self._placed()
        domains = self._domains(parts)
        if len(domains) > 1:
            domains = [
                msgspec.structs.replace(d, tap=Link(id=self.link_id(), kind="inside", what="inter-socket link"))
                if d.cpu
                else d
                for d in domains
            ]
        inside = [d for d in domains if d.tap is not None]
        between = Link(id=self.link_id(), kind="inside", what="between NUMA nodes", mark="rate not readable")
        every = [p for d in domains for p in d.parts]
        switches = nvswitches(self.topology.devices.values())
        return Scene(
            title=self._title(),
            domains=tuple(domains),
            fabrics=self.nvlinks.fabrics(every, tuple(d.address for d in switches)),
            between=between if len(inside) > 1 else None,
            notes=self._notes(domains),
        )

    def uplink(self, address: str) -> Link | None:
        """Return the first link of the switches above a device that is worse than it should be."""
        chain = self.topology.chains.get(address, ())[:-1]
        links = [
            self._pcie(self.topology.devices[e], e)
            for e in chain
            if e in self.topology.devices and self.topology.tree[e].role in ("upstream_port", "bridge")
        ]
        return next((k for k in links if k.state in (LinkState.DOWN, LinkState.REDUCED)), None)

    # The tree

    def _wanted(self) -> set[str]:
        """Return every element of the tree on the way to a device that is drawn below it."""
        wanted: set[str] = set()
        for address in self.ends - self.direct:
            step: str | None = address
            while step is not None and step not in wanted and step in self.topology.tree:
                wanted.add(step)
                step = self.topology.tree[step].parent
        return wanted

    def _placed(self) -> list[tuple[int | None, Part]]:
        """Return the parts below the CPUs with the NUMA node of each, None where it is not known."""
        out: list[tuple[int | None, Part]] = []
        tree = self.topology.tree
        roots = [e for e in tree if e in self.wanted and tree[e].parent not in self.wanted]
        seen: set[str] = set()
        for root in roots:
            for part in self._grown(root):
                seen |= {a for p in part.walk() for a in p.devices}
                out.append((self._node_of(part), part))
        for address in (*self.gpus, *self.nics):
            if address not in seen:
                seen.add(address)
                part = self.device(address)
                out.append((self._node_of(part), part))
        return self._stacked(out)

    def _node_of(self, part: Part) -> int | None:
        """Return the NUMA node that most devices of a branch report."""
        told = Counter(n for p in part.walk() for a in p.devices if (n := self._cpu_node(a)) is not None)
        return told.most_common(1)[0][0] if told else None

    def _cpu_node(self, address: str) -> int | None:
        device: Gpu | Nic = self.gpus[address] if address in self.gpus else self.nics[address][0]
        return device.cpu_node if known(device.cpu_node) else None

    def _grown(self, element: str) -> list[Part]:
        """Return the parts at and below an element; ports and bridges that lead to one part are folded into it."""
        node = self.topology.tree[element]
        below = [p for c in node.children if c in self.wanted for p in self._grown(c)]
        if element in self.ends and element not in self.direct:
            end = self.device(element)
            return [msgspec.structs.replace(end, children=tuple(below))] if below else [end]
        device = self.topology.devices.get(element)
        if node.role == "host_bridge" and (node.parent is None or node.parent not in self.wanted):
            return self._complex(element, below)
        if node.role in ("upstream_port", "bridge"):
            link = self._inside() if device is None else self._pcie(device, element)
            if len(below) == 1:
                return [msgspec.structs.replace(below[0], link=folded(link, below[0].link))]
            return [self._part("switch", "PCIe switch", element, below, link)]
        if node.role == "root_port" and len(below) > 1:
            return [self._part("port", "root port", element, below, self._inside())]
        return below

    def _complex(self, element: str, below: list[Part]) -> list[Part]:
        """Return the root complex; its only root port is drawn with it, and one without devices below is left out."""
        if not below:
            return []
        if len(below) == 1 and below[0].kind == "port":
            below = list(below[0].children)
        return [self._part("complex", "root complex", element, below, self._inside())]

    def _part(self, kind: PartKind, title: str, element: str, below: list[Part], link: Link) -> Part:
        device = self.topology.devices.get(element)
        name = product(device.device_name) if device is not None and kind == "switch" else ""
        place = element.removeprefix("pci") if is_host_bridge(element) else short_address(element, self.domains)
        return Part(
            id=f"p{next(self.ids)}",
            kind=kind,
            title=title,
            place=place,
            name=name,
            addresses=(element,),
            link=link,
            finding=self.findings.get(element),
            others=self._others(element),
            children=tuple(below),
        )

    def _others(self, element: str) -> int:
        """Return how many cards below an element are not drawn; NVSwitches are drawn elsewhere."""
        tree, devices = self.topology.tree, self.topology.devices
        cards = set()
        todo = list(tree[element].children)
        while todo:
            e = todo.pop()
            todo += tree[e].children
            if tree[e].role == "endpoint" and e in devices and not nvswitches([devices[e]]):
                cards.add(e.rpartition(".")[0])
        return len(cards - self.cards)

    # Devices and links

    def _inside(self) -> Link:
        return Link(id=self.link_id(), kind="inside")

    def _pcie(self, device: PciDevice, element: str) -> Link:
        chain = self.topology.chains.get(element, ())
        above = self.topology.devices.get(chain[-2]) if len(chain) > 1 else None
        if known(device.physfn):
            device = self.topology.devices.get(device.physfn, device)
        gpu = self.gpus.get(element)
        return drawn_link(self.link_id(), device, above, gpu, guest=self.guest)

    def device(self, address: str) -> Part:
        """Return a GPU, accelerator or NIC with its own link."""
        return self._gpu(self.gpus[address]) if address in self.gpus else self._nic(self.nics[address])

    def _gpu(self, gpu: Gpu) -> Part:
        link = self._inside()
        path = self.topology.host_paths.get(gpu.address)
        if gpu.address in self.direct and path is not None:
            link = self.nvlinks.to_cpu(path.hops[0])
        elif gpu.pci is not None:
            link = self._pcie(gpu.pci, gpu.address)
        elif path is not None and path.hops:
            link = drawn_link(self.link_id(), PciDevice(address=gpu.address), None, gpu, guest=self.guest)
        name = product(gpu.name) or gpu.vendor
        if gpu.nvml is not None and gpu.nvml.mig_current is True:
            name += ", MIG"
        return Part(
            id=f"p{next(self.ids)}",
            kind="accelerator" if gpu.address in self.accelerators else "gpu",
            title=gpu.label,
            place=short_address(gpu.address, self.domains),
            name=name,
            addresses=(gpu.address,),
            devices=(gpu.address,),
            link=link,
            outward=self.nvlinks.outward(gpu),
            finding=self.findings.get(gpu.address),
        )

    def _nic(self, nics: list[Nic]) -> Part:
        first = nics[0]
        return Part(
            id=f"p{next(self.ids)}",
            kind="nic",
            title=named([n.label for n in nics]),
            place=short_address(first.address, self.domains),
            name=nic_product(first),
            addresses=(first.address,),
            devices=(first.address,),
            link=self._inside() if first.pci is None else self._pcie(first.pci, first.address),
            outward=network_link(
                self.link_id(),
                [p for n in nics if n.rdma is not None for p in n.rdma.ports],
                faulty=first.address in self.findings,
            ),
            finding=self.findings.get(first.address),
        )

    def _stacked(self, parts: list[tuple[int | None, Part]]) -> list[tuple[int | None, Part]]:
        """Return the parts; where there are too many devices, equal neighbours as one."""
        if sum(1 for _, p in parts for _ in p.leaves()) <= MAX_ROWS:
            return parts
        return [
            (node, p) for node in dict.fromkeys(n for n, _ in parts) for p in stack(p for n, p in parts if n == node)
        ]

    # Domains

    def _domains(self, parts: list[tuple[int | None, Part]]) -> list[Domain]:
        numa = self.node.numa
        listed = numa.nodes if known(numa.nodes) else ()
        with_cpus = [n.node for n in listed if known(n.cpulist) and n.cpulist.strip()]
        by_node: dict[int | None, list[Part]] = {}
        for n, p in parts:
            if n is None and len(with_cpus) == 1:
                n = with_cpus[0]
            by_node.setdefault(n, []).append(p)
        shown = sorted(n for n in by_node if n is not None)
        sockets = self._sockets()
        # A socket whose nodes have no devices is drawn by its first node; other empty nodes are named in a note.
        present = {sockets.get(n) for n in shown}
        for n in sorted(with_cpus):
            if sockets.get(n) not in present or not (shown or sockets):
                present.add(sockets.get(n))
                shown.append(n)
        out = []
        for i, n in enumerate(sorted(shown)):
            out.append(self._domain(f"d{i}", n, sockets.get(n), by_node.get(n, [])))
        if None in by_node:
            title = "NUMA node not reported" if with_cpus or known(numa.nodes) else "Host"
            cpu = "" if out else "CPUs"
            out.append(Domain(id=f"d{len(out)}", title=title, name="", cpu=cpu, parts=tuple(by_node[None])))
        if not out:
            out.append(Domain(id="d0", title="Host", name="", cpu="CPUs"))
        return out

    def _domain(self, id_: str, node: int, socket: str | None, parts: list[Part]) -> Domain:
        numa = self.node.numa
        found = next((n for n in (numa.nodes if known(numa.nodes) else ()) if n.node == node), None)
        about = []
        if found is not None and known(found.cpulist) and found.cpulist.strip():
            about.append(f"CPUs {found.cpulist}")
        if found is not None and known(found.memory_total_bytes):
            about.append(f"{found.memory_total_bytes / 2**30:.0f} GiB")
        title = f"NUMA node {node}" if socket is None else f"Socket {socket}, NUMA node {node}"
        cpu = f"Socket {socket}" if socket is not None else f"Node {node}"
        return Domain(id=id_, title=title, name=", ".join(about), cpu=cpu, parts=tuple(parts))

    def _sockets(self) -> dict[int, str]:
        """Return the socket of each NUMA node that lies in one."""
        numa = self.node.numa
        out: dict[int, str] = {}
        try:
            packages = {k: parse_cpulist(v) for k, v in numa.cpu_packages.items()}
            for n in numa.nodes if known(numa.nodes) else ():
                cpus = parse_cpulist(n.cpulist) if known(n.cpulist) else frozenset()
                within = [k for k, v in packages.items() if cpus and cpus <= v]
                if len(within) == 1:
                    out[n.node] = within[0]
        except ValueError:
            return {}
        return out

    # Words

    def _title(self) -> str:
        counts = Counter(product(g.name) or g.vendor for g in self.gpus.values())
        named_ = [f"{n} × {model}" for model, n in counts.items()] or ["no GPU"]
        if self.topology.nics:
            named_.append(f"{len(self.topology.nics)} RDMA NIC{'s' if len(self.topology.nics) > 1 else ''}")
        return ", ".join(named_)

    def _notes(self, domains: Sequence[Domain]) -> tuple[str, ...]:
        out = []
        if self.topology.flat_tree:
            out.append("The hypervisor shows a flat PCI bus: which devices share a switch cannot be known from here.")
        drawn = {d.title for d in domains}
        listed = self.node.numa.nodes if known(self.node.numa.nodes) else ()
        empty = [n.node for n in listed if not any(t.endswith(f"NUMA node {n.node}") for t in drawn)]
        if empty and self.ends:
            out.append(
                f"NUMA node{'s' if len(empty) > 1 else ''} {numbers(empty)}: no GPU or NIC reports "
                f"{'one of these' if len(empty) > 1 else 'it'}."
            )
        if self.topology.left_out:
            out.append(f"Not drawn: {self.topology.left_out}.")
        if self.topology.nics_untold is not None:
            out.append(f"NICs are not known: {self.topology.nics_untold}.")
        if not self.ends and isinstance(self.node.pci.devices, Missing):
            out.append(f"PCI devices are not known: {self.node.pci.devices}.")
        elif not self.ends:
            out.append("No GPU, accelerator or RDMA NIC was found.")
        return tuple(out)


def _worst_of(findings: Sequence[Finding] | Iterator[Finding]) -> dict[str, State]:
    """Return the worst state of what was found of each PCI function; notes need no attention."""
    out: dict[str, State] = {}
    for f in findings:
        for a in f.devices if f.state in _WORST else ():
            out[a] = min(out.get(a, f.state), f.state, key=_WORST.index)
    return out
