"""What NCCL makes of a topology file together with the machine (src/graph/xml.cc and topo.cc).

The file's values stay; what it leaves out of a device is found out; devices of the job that it does not name are
added where the machine shows them; devices that the machine does not have are dropped, invented switches stay.
"""

from __future__ import annotations

from topocheck.nccl.xml import Element


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


class _Tree:
    """Builds the merged tree of one CPU by CPU."""

    def __init__(self, machine: dict[str, tuple[Element, str, tuple[Element, ...]]]) -> None:
        self.machine = machine
        self.placed: set[str] = set()

    def below(self, element: Element) -> tuple[Element, ...]:
        """Return the children of a CPU or switch of the file that NCCL keeps."""
        out = []
        for pci in element.having("pci"):
            address = (pci.get("busid") or "").lower()
            if address in self.machine:
                self.placed.add(address)
                out.append(_device(pci, self.machine[address][0]))
                continue
            inside = self.below(pci)
            if inside:
                out.append(Element(name="pci", attributes=pci.attributes, children=inside))
        return tuple(out)


def merge(file: Element, machine: Element) -> Element:
    """Return the topology NCCL goes by, given a file and what it would find without one."""
    ours = _leaves(machine)
    tree = _Tree(ours)
    cpus = [Element(name="cpu", attributes=cpu.attributes, children=tree.below(cpu)) for cpu in file.having("cpu")]
    by_numa = {c.get("numaid") or "": i for i, c in enumerate(cpus)}
    machine_cpus = {c.get("numaid") or "": c for c in machine.having("cpu")}
    for address, (pci, numa, above) in ours.items():
        if address in tree.placed:
            continue
        branch = pci
        for up in reversed(above):
            branch = Element(name="pci", attributes=up.attributes, children=(branch,))
        if numa not in by_numa:
            by_numa[numa] = len(cpus)
            cpus.append(Element(name="cpu", attributes=machine_cpus[numa].attributes))
        i = by_numa[numa]
        cpus[i] = Element(name="cpu", attributes=cpus[i].attributes, children=(*cpus[i].children, branch))
    loose = [n for c in machine.having("cpu") for n in c.having("nic")]
    cpus = [
        Element(name="cpu", attributes=_cpu_attributes(c, machine_cpus), children=c.children)
        for c in cpus
        if c.children
    ]
    if loose:
        first = cpus[0] if cpus else Element(name="cpu", attributes=(("numaid", "0"),))
        with_nics = Element(name="cpu", attributes=first.attributes, children=(*first.children, *loose))
        cpus = [with_nics, *cpus[1:]]
    return Element(name="system", attributes=file.attributes, children=tuple(cpus))


def _cpu_attributes(cpu: Element, machine: dict[str, Element]) -> tuple[tuple[str, str], ...]:
    """Return a CPU's attributes, with arch, vendor and model found out where the file leaves them out."""
    known = {k for k, _ in cpu.attributes}
    ours = machine.get(cpu.get("numaid") or "") or next(iter(machine.values()), None)
    extra = ours.attributes if ours is not None else ()
    wanted = ("arch", "vendor", "familyid", "modelid")
    return cpu.attributes + tuple((k, v) for k, v in extra if k in wanted and k not in known)
