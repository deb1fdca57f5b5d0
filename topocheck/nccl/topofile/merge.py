"""What NCCL makes of a topology file together with the machine (src/graph/xml.cc and topo.cc).

The file's values stay; what it leaves out of a device is found out; devices of the job that it does not name are
added where the machine shows them; devices that the machine does not have are dropped, invented switches stay. PCI
elements are found by their address, letter by letter, network devices by their name, wherever the file puts them.
"""

from __future__ import annotations

from collections.abc import Collection

from topocheck.nccl.topofile.graph_types import integer
from topocheck.nccl.topofile.xml import Element

_LISTED = 4
"""Most devices that a note names one by one."""


def _leaves(root: Element) -> dict[str, tuple[Element, str, tuple[Element, ...]]]:
    """Return the PCI elements with a GPU or NIC: address -> (element, numaid, switches above from the outermost)."""
    out: dict[str, tuple[Element, str, tuple[Element, ...]]] = {}
    todo: list[tuple[Element, str, tuple[Element, ...]]] = [(c, c.get("numaid") or "", ()) for c in root.having("cpu")]
    while todo:
        element, numa, above = todo.pop()
        for pci in element.having("pci"):
            if any(pci.having("gpu")) or any(pci.having("nic")):
                out[_address(pci)] = pci, numa, above
            todo.append((pci, numa, (*above, pci)))
    return out


def _attributes(file: Element, machine: Element) -> tuple[tuple[str, str], ...]:
    """Return the file's attributes, then those of the machine that it leaves out; the class is the machine's."""
    named = {k for k, _ in file.attributes}
    ours = dict(machine.attributes)
    kept = tuple((k, ours["class"] if k == "class" and "class" in ours else v) for k, v in file.attributes)
    return kept + tuple((k, v) for k, v in machine.attributes if k not in named)


def _device(file: Element, machine: Element) -> Element:
    """Return a device of both: GPU and NIC of the file filled up from the machine's."""
    children = []
    for name in ("gpu", "nic"):
        theirs, ours = next(file.having(name), None), next(machine.having(name), None)
        if ours is None:
            continue
        if theirs is None:
            children.append(ours)
        elif name == "gpu":
            links = theirs.children if any(theirs.having("nvlink")) else (*theirs.having("c2c"), *ours.having("nvlink"))
            if not any(theirs.having("c2c")):
                links = (*links, *ours.having("c2c"))
            children.append(Element(name="gpu", attributes=_gpu_attributes(theirs, ours), children=tuple(links)))
        else:
            children.append(_nic(theirs, ours))
    return Element(name="pci", attributes=_attributes(file, machine), children=tuple(children))


def _gpu_attributes(file: Element, machine: Element) -> tuple[tuple[str, str], ...]:
    ours = dict(machine.attributes)
    kept = tuple((k, ours.get(k, v) if k in ("rank", "dev") else v) for k, v in file.attributes)
    return kept + tuple((k, v) for k, v in machine.attributes if k not in {n for n, _ in file.attributes})


def _nic(file: Element, machine: Element) -> Element:
    named = {n.get("name"): n for n in file.having("net")}
    nets = []
    for net in machine.having("net"):
        theirs = named.get(net.get("name"))
        attributes = _gpu_attributes(theirs, net) if theirs is not None else net.attributes
        nets.append(Element(name="net", attributes=attributes))
    return Element(name="nic", children=tuple(nets))


class _Branch:
    """A CPU or PCI element while the tree grows: `element` without the PCI elements below it, which are `below`.

    `keep` marks what leads nowhere and stays all the same: GPUs and NICs of the job.
    """

    __slots__ = ("below", "element", "keep")

    def __init__(self, element: Element, below: list[_Branch] | None = None, *, keep: bool = False) -> None:
        self.element = Element(
            name=element.name,
            attributes=element.attributes,
            children=tuple(c for c in element.children if c.name != "pci"),
        )
        self.below = below if below is not None else []
        self.keep = keep

    @property
    def address(self) -> str:
        return self.element.get("busid") or ""

    def insert(self, branch: _Branch) -> None:
        """Put a branch below, in the order of addresses, as NCCL does."""
        after = (i for i, b in enumerate(self.below) if b.address > branch.address)
        self.below.insert(next(after, len(self.below)), branch)

    def add_nets(self, nets: list[Element]) -> None:
        """Add network devices to the NIC here, and stay for them."""
        e = self.element
        others = tuple(c for c in e.children if c.name != "nic")
        nic = Element(name="nic", children=(*(n for c in e.having("nic") for n in c.children), *nets))
        self.element = Element(name=e.name, attributes=e.attributes, children=(*others, nic))
        self.keep = True

    def trimmed(self) -> Element | None:
        """Return the element with all below it that leads to a device of the job; None where nothing does."""
        below = [e for b in self.below if (e := b.trimmed()) is not None]
        if not below and not self.keep:
            return None
        e = self.element
        return Element(name=e.name, attributes=e.attributes, children=(*below, *e.children))


def _without_nets(e: Element, names: Collection[str]) -> Element:
    """Return the machine's tree without some network devices, and without the NICs that then have none."""
    children = tuple(_without_nets(c, names) for c in e.children if c.name != "net" or c.get("name") not in names)
    children = tuple(c for c in children if c.name != "nic" or c.children)
    return Element(name=e.name, attributes=e.attributes, children=children)


def _bare(branch: _Branch, attributes: tuple[tuple[str, str], ...]) -> None:
    """Leave of a CPU or PCI element of the file only what it says of itself."""
    branch.element = Element(name=branch.element.name, attributes=attributes)


class _Tree:
    """The file's tree, to which the machine's devices are added."""

    def __init__(self, file: Element, machine: Element) -> None:
        self.places: dict[str, _Branch] = {}
        self.holders: dict[str, tuple[_Branch, Element]] = {}
        self.cpus = [self._of_file(cpu) for cpu in file.having("cpu")]
        moved = self._moved(machine)
        machine = _without_nets(machine, {n.get("name") or "" for n, _ in moved})
        self.ours = _leaves(machine)
        self.loose = [n for c in machine.having("cpu") for nic in c.having("nic") for n in nic.having("net")]
        self.machine_cpus = {c.get("numaid") or "": c for c in machine.having("cpu")}
        switches = {_address(up): up for _, _, above in self.ours.values() for up in above}
        for cpu in self.cpus:
            self._fill(cpu, switches)
        for net, holder in moved:
            theirs = self.holders[net.get("name") or ""][1]
            holder.add_nets([Element(name="net", attributes=_gpu_attributes(theirs, net))])

    def _of_file(self, e: Element) -> _Branch:
        branch = _Branch(e)
        if e.name == "pci":
            self.places.setdefault(branch.address, branch)
        for net in (n for nic in e.having("nic") for n in nic.having("net")):
            self.holders.setdefault(net.get("name") or "", (branch, net))
        branch.below = [self._of_file(p) for p in e.having("pci")]
        return branch

    def _moved(self, machine: Element) -> list[tuple[Element, _Branch]]:
        """Return the network devices that the file holds elsewhere than the machine: NCCL finds them by name."""
        out = []
        todo = [(machine, "")]
        while todo:
            e, address = todo.pop()
            for net in (n for nic in e.having("nic") for n in nic.having("net")):
                holder, _ = self.holders.get(net.get("name") or "", (None, net))
                if holder is not None and holder.address != address:
                    out.append((net, holder))
            todo += [(c, c.get("busid") or "") for c in e.children if c.name in ("cpu", "pci")]
        return sorted(out, key=lambda x: integer(x[0].get("dev")))

    def _fill(self, branch: _Branch, switches: dict[str, Element]) -> None:
        """Fill up what the file says of an element with what the machine says, and mark the devices of the job."""
        e = branch.element
        if e.name == "cpu":
            _bare(branch, _cpu_attributes(e, self.machine_cpus))
        elif branch.address in self.ours and self.places[branch.address] is branch:
            branch.element, branch.keep = _device(e, self.ours[branch.address][0]), True
        else:
            ours = switches.get(branch.address)
            _bare(branch, _attributes(e, ours) if ours is not None else e.attributes)
        for b in branch.below:
            self._fill(b, switches)

    def add(self, address: str) -> None:
        """Put a device that the file lacks below the switches the machine shows, up to the first that is there."""
        pci, numa, above = self.ours[address]
        branch = _Branch(pci, keep=True)
        self.places[address] = branch
        for up in reversed(above):
            known = self.places.get(_address(up))
            if known is not None:
                known.insert(branch)
                return
            branch = _Branch(Element(name="pci", attributes=up.attributes), [branch])
            self.places[_address(up)] = branch
        cpu = next((c for c in self.cpus if (c.element.get("numaid") or "") == numa), None)
        if cpu is None:
            cpu = _Branch(Element(name="cpu", attributes=self.machine_cpus[numa].attributes))
            self.cpus.append(cpu)
        cpu.insert(branch)

    def add_loose(self) -> None:
        """Put what is no PCI device under the first CPU."""
        if self.loose and not self.cpus:
            self.cpus.append(_Branch(Element(name="cpu", attributes=(("numaid", "0"),))))
        if self.loose:
            self.cpus[0].add_nets(self.loose)


def _address(e: Element) -> str:
    return e.get("busid") or ""


def _order(item: tuple[str, tuple[Element, str, tuple[Element, ...]]]) -> tuple[bool, int]:
    """Return the place of a device in the order in which NCCL looks for them: GPUs by rank, then NICs by number."""
    pci = item[1][0]
    gpu = next(pci.having("gpu"), None)
    if gpu is not None:
        return False, integer(gpu.get("rank"))
    return True, min((integer(n.get("dev")) for nic in pci.having("nic") for n in nic.having("net")), default=0)


def merge(file: Element, machine: Element) -> Element:
    """Return the topology NCCL goes by, given a file and what it would find without one."""
    tree = _Tree(file, machine)
    for address, _ in sorted(tree.ours.items(), key=_order):
        if address not in tree.places:
            tree.add(address)
    tree.add_loose()
    cpus = [e for c in tree.cpus if (e := c.trimmed()) is not None]
    return Element(name="system", attributes=file.attributes, children=tuple(cpus))


def _names_nets(pci: Element, held: Collection[str | None]) -> bool:
    nets = [n.get("name") for nic in pci.having("nic") for n in nic.having("net")]
    return bool(nets) and all(n in held for n in nets)


def silence_note(path: str, file: Element, machine: Element) -> str:
    """Return which GPUs and NICs a file says nothing of, and what NCCL then does; empty where it names all."""
    named = {_address(e) for e in file.walk() if e.name == "pci"}
    held = {n.get("name") for n in file.walk() if n.name == "net"}
    ours = _leaves(machine)
    absent = sorted(a for a, (pci, _, _) in ours.items() if a not in named and not _names_nets(pci, held))
    if not absent:
        return ""
    which = ", ".join(absent) if len(absent) <= _LISTED else f"{len(absent)} of the {len(ours)} GPUs and NICs"
    which = f"any of the {len(ours)} GPUs and NICs" if len(absent) == len(ours) else which
    return f"{path} does not name {which}: NCCL finds by itself what is absent and puts it where the machine shows it"


def _cpu_attributes(cpu: Element, machine: dict[str, Element]) -> tuple[tuple[str, str], ...]:
    """Return a CPU's attributes, with arch, vendor and model found out where the file leaves them out."""
    known = {k for k, _ in cpu.attributes}
    ours = machine.get(cpu.get("numaid") or "") or next(iter(machine.values()), None)
    extra = ours.attributes if ours is not None else ()
    wanted = ("arch", "vendor", "familyid", "modelid")
    return cpu.attributes + tuple((k, v) for k, v in extra if k in wanted and k not in known)
