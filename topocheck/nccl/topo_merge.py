"""What NCCL makes of a topology file together with the machine (src/graph/xml.cc and topo.cc).

The file's values stay; what it leaves out of a device is found out; devices of the job that it does not name are
added where the machine shows them; devices that the machine does not have are dropped, invented switches stay.
"""

from __future__ import annotations

from collections.abc import Collection

from topocheck.nccl.graph_types import integer
from topocheck.nccl.xml import Element

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
                out[(pci.get("busid") or "").lower()] = pci, numa, above
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
    """A CPU or PCI element while the tree grows; `element` is without the PCI elements below it."""

    __slots__ = ("below", "element")

    def __init__(self, element: Element, below: list[_Branch] | None = None) -> None:
        self.element = element
        self.below = below if below is not None else []

    @property
    def address(self) -> str:
        return _address(self.element)

    def insert(self, branch: _Branch) -> None:
        """Put a branch below, in the order of addresses, as NCCL does."""
        after = (i for i, b in enumerate(self.below) if b.address > branch.address)
        self.below.insert(next(after, len(self.below)), branch)

    def trimmed(self, wanted: Collection[str]) -> Element | None:
        """Return the element with all below it that leads to a wanted device; None where nothing does."""
        below = [e for b in self.below if (e := b.trimmed(wanted)) is not None]
        if not below and self.address not in wanted and not any(self.element.having("nic")):
            return None
        e = self.element
        return Element(name=e.name, attributes=e.attributes, children=(*below, *e.children))


def _address(e: Element) -> str:
    return (e.get("busid") or "").lower()


class _Tree:
    """The file's tree, to which the machine's devices are added."""

    def __init__(self, file: Element, machine: Element) -> None:
        self.ours = _leaves(machine)
        self.switches = {_address(up): up for _, _, above in self.ours.values() for up in above}
        self.machine_cpus = {c.get("numaid") or "": c for c in machine.having("cpu")}
        self.places: dict[str, _Branch] = {}
        self.cpus = [self._cpu(cpu, [self._of_file(pci) for pci in cpu.having("pci")]) for cpu in file.having("cpu")]

    def _cpu(self, cpu: Element, below: list[_Branch]) -> _Branch:
        return _Branch(Element(name="cpu", attributes=_cpu_attributes(cpu, self.machine_cpus)), below)

    def _of_file(self, pci: Element) -> _Branch:
        address = _address(pci)
        if address in self.ours:
            branch = _Branch(_device(pci, self.ours[address][0]))
        else:
            ours = self.switches.get(address)
            branch = _Branch(Element(name="pci", attributes=_attributes(pci, ours) if ours else pci.attributes))
        self.places.setdefault(address, branch)
        branch.below = [self._of_file(p) for p in pci.having("pci")]
        return branch

    def add(self, address: str) -> None:
        """Put a device that the file lacks below the switches the machine shows, up to the first that is there."""
        pci, numa, above = self.ours[address]
        inside = tuple(c for c in pci.children if c.name != "pci")
        branch = _Branch(Element(name="pci", attributes=pci.attributes, children=inside))
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
            cpu = self._cpu(self.machine_cpus[numa], [])
            self.cpus.append(cpu)
        cpu.insert(branch)


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
    loose = tuple(n for c in machine.having("cpu") for n in c.having("nic"))
    if loose:
        first = tree.cpus[0] if tree.cpus else _Branch(Element(name="cpu", attributes=(("numaid", "0"),)))
        with_nics = Element(name="cpu", attributes=first.element.attributes, children=loose)
        tree.cpus[:1] = [_Branch(with_nics, first.below)]
    cpus = [e for c in tree.cpus if (e := c.trimmed(tree.ours)) is not None]
    return Element(name="system", attributes=file.attributes, children=tuple(cpus))


def silence_note(path: str, file: Element, machine: Element) -> str:
    """Return which GPUs and NICs a file says nothing of, and what NCCL then does; empty where it names all."""
    named = {_address(e) for e in file.walk() if e.name == "pci"}
    ours = _leaves(machine)
    absent = sorted(a for a in ours if a not in named)
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
