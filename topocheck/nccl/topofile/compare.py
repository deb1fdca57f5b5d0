"""Sets a topology file beside the machine: what NCCL would take from the file although the machine says otherwise.

NCCL keeps the file's speeds, widths, NUMA nodes and GPUDirect flags; only what is absent is found out
(src/graph/xml.cc). So an old file hides a real change.
"""

from __future__ import annotations

import re

import msgspec

from topocheck.nccl.topofile.graph_types import integer, kind_of_class
from topocheck.nccl.topofile.xml import Element

_SPEED = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"


class TopoDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One difference.

    Attributes:
        kind: missing (on the machine, not in the file), extra (the other way round), place (of a network device),
            speed, width, numa, switch, gdr, nvlink, cpu, or version.
        subject: PCI address, name of a NIC, or CPU.
        file, machine: the two values; empty where there is none.
        text: what NCCL will make of it.
    """

    kind: str
    subject: str
    file: str
    machine: str
    text: str


class _Place(msgspec.Struct, frozen=True):
    element: Element
    cpu: str
    switches: tuple[str, ...]


def _places(root: Element) -> dict[str, _Place]:
    out: dict[str, _Place] = {}
    todo: list[tuple[Element, str, tuple[str, ...]]] = [
        (cpu, cpu.get("numaid") or "", ()) for cpu in root.having("cpu")
    ]
    while todo:
        element, numa, above = todo.pop()
        for child in element.having("pci"):
            address = child.get("busid") or ""
            out[address] = _Place(child, numa, above)
            todo.append((child, numa, (*above, address)))
    return out


def _is_device(place: _Place) -> bool:
    e = place.element
    return not any(e.having("pci")) and (kind_of_class(e.get("class")) in ("GPU", "NIC") or not e.get("class"))


def _nets(root: Element) -> dict[str, Element]:
    return {
        f"{n.get('name') or ''}:{n.get('port') or '0'}": n for n in root.walk() if n.name == "net" and n.get("name")
    }


def _holders(root: Element) -> dict[str, str]:
    """Return the address of the PCI element that holds each network device, by its name; `cpu` outside of all."""
    out: dict[str, str] = {}
    for e in root.walk():
        for net in (n for nic in e.having("nic") for n in nic.having("net")):
            out.setdefault(net.get("name") or "", e.get("busid") or e.name)
    return out


def _number(text: str | None) -> float | None:
    m = re.fullmatch(_SPEED, (text or "").split(" GT/s")[0].strip())
    return float(m[0]) if m else None


def compare(file: Element, machine: Element) -> tuple[TopoDifference, ...]:
    """Return the differences between a topology file and the machine (as `write_topology` writes it)."""
    theirs, ours = _places(file), _places(machine)
    here, there = _holders(machine), _holders(file)
    moved = {n: (there[n], here[n]) for n in here if n and there.get(n, here[n]) != here[n]}
    told = {address for pair in moved.values() for address in pair}
    out: list[TopoDifference] = []
    if integer(file.get("version")) != 1:
        text = "NCCL accepts only version 1 and fails in init with another"
        out.append(_d("version", "system", file.get("version") or "", "1", text))
    for address, place in ours.items():
        if not _is_device(place):
            # A switch counts by its link upward; which switches there are is reported at the devices below.
            out += _link(address, theirs[address], place) if address in theirs else []
            continue
        if address not in theirs and address in told:
            continue
        if address not in theirs:
            text = "NCCL finds it by itself and puts it where the machine shows it"
            out.append(_d("missing", address, "", "there", text))
            continue
        out += _device(address, theirs[address], place)
    text = "NCCL finds it by its name and leaves it where the file puts it"
    out += [_d("place", name, file_has, machine_has, text) for name, (file_has, machine_has) in moved.items()]
    used = {address for a, place in theirs.items() if a in ours for address in place.switches}
    for address, place in theirs.items():
        if address in ours or address in told:
            continue
        if _is_device(place):
            text = "no such device here: NCCL drops it, and what the file meant by it is lost"
            out.append(_d("extra", address, "there", "", text))
        elif address not in used:
            out.append(_d("extra", address, "a switch", "", "a switch without any device of this machine below it"))
    out += _networks(file, machine)
    out += _cpus(file, machine)
    return tuple(out)


def _d(kind: str, subject: str, file: str, machine: str, text: str) -> TopoDifference:
    return TopoDifference(kind=kind, subject=subject, file=file, machine=machine, text=text)


def _link(address: str, file: _Place, machine: _Place) -> list[TopoDifference]:
    out = []
    for kind, name in (("speed", "link_speed"), ("width", "link_width")):
        theirs, ours = file.element.get(name), machine.element.get(name)
        if theirs is None or ours is None:
            continue
        same = _number(theirs) == _number(ours) if kind == "speed" else _lanes(theirs) == _lanes(ours)
        if not same:
            out.append(_d(kind, address, theirs, ours, f"NCCL plans with {_as_planned(kind, theirs)}"))
    return out


def _device(address: str, file: _Place, machine: _Place) -> list[TopoDifference]:
    out = _link(address, file, machine)
    if file.cpu != machine.cpu:
        out.append(_d("numa", address, file.cpu, machine.cpu, "paths to the others change between PHB and SYS"))
    if len(file.switches) != len(machine.switches):
        theirs, ours = " ".join(file.switches), " ".join(machine.switches)
        text = "the file puts other switches above it, so its distance to the others differs"
        out.append(_d("switch", address, theirs or "none", ours or "none", text))
    a, b = next(file.element.having("gpu"), None), next(machine.element.having("gpu"), None)
    if a is not None and b is not None:
        out += _gdr(address, a, b)
        links = [sum(integer(x.get("count")) for x in g.having("nvlink")) for g in (a, b)]
        if any(a.having("nvlink")) and links[0] != links[1]:
            text = "NCCL plans with the file's NVLinks and does not look for others"
            out.append(_d("nvlink", address, str(links[0]), str(links[1]), text))
        if a.get("sm") and b.get("sm") and a.get("sm") != b.get("sm"):
            out.append(_d("gpu", address, f"sm {a.get('sm')}", f"sm {b.get('sm')}", "another GPU than the file's"))
    return out


def _as_planned(kind: str, text: str) -> str:
    """Return what NCCL makes of the file's speed or width."""
    if kind == "width":
        return f"{_lanes(text):.0f} lanes"
    return f"the file's {text}" if _number(text) is not None else "8 GT/s, as with any speed it does not know"


def _lanes(text: str) -> float:
    # NCCL takes 0 and nothing as 16 lanes.
    return float(integer(text) or 16)


def _gdr(subject: str, file: Element, machine: Element) -> list[TopoDifference]:
    theirs, ours = file.get("gdr"), machine.get("gdr")
    if theirs is None or ours is None or integer(theirs) == integer(ours):
        return []
    if integer(theirs) == 1:
        text = "the file says GPUDirect RDMA works and NCCL believes it: registering memory may then fail"
    else:
        text = "the file switches GPUDirect RDMA off although the machine offers it"
    return [_d("gdr", subject, theirs, ours, text)]


def _networks(file: Element, machine: Element) -> list[TopoDifference]:
    theirs, ours = _nets(file), _nets(machine)
    out = []
    for key, net in theirs.items():
        name = net.get("name") or key
        if key not in ours:
            # The port of a socket interface is 0 and often left out.
            out.append(_d("extra", name, "there", "", "no such network device in use here: NCCL drops it"))
            continue
        out += _gdr(name, net, ours[key])
        a, b = integer(net.get("speed")), integer(ours[key].get("speed"))
        if net.get("speed") is not None and a != b:
            out.append(_d("speed", name, f"{a} Mb/s", f"{b} Mb/s", "NCCL plans with the file's speed"))
    if theirs:
        missing = [n for k, n in ours.items() if k not in theirs]
        out += [_d("missing", n.get("name") or "", "", "there", "NCCL adds it by itself") for n in missing]
    return out


def _cpus(file: Element, machine: Element) -> list[TopoDifference]:
    theirs = next(file.having("cpu"), None)
    ours = next(machine.having("cpu"), None)
    if theirs is None or ours is None:
        return []
    out = []
    for name in ("arch", "vendor", "familyid", "modelid"):
        a, b = theirs.get(name), ours.get(name)
        if a and b and a != b and not (name == "familyid" and _family(a) == _family(b)):
            text = "NCCL chooses its default distances and CPU bandwidth by the file's CPU"
            out.append(_d("cpu", name, a, b, text))
    return out


def _family(text: str) -> int | None:
    """Return a CPU family as CPUID means it; NCCL up to 2.30 wrote 16 times its extended part (write.family_in_xml)."""
    family = integer(text)
    if family is None or family <= 15 or (family - 15) % 16:
        return family
    return 15 + (family - 15) // 16
