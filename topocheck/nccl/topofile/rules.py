"""What NCCL demands of a topology file beyond its syntax (src/graph/topo.cc and xml.cc)."""

from __future__ import annotations

import re

from topocheck.knowledge.nccl import Version
from topocheck.knowledge.nccl_rules import number
from topocheck.nccl.rules import versions
from topocheck.nccl.rules.values import read_integer
from topocheck.nccl.topofile.graph_types import integer, kind_of_class
from topocheck.nccl.topofile.xml import Element, Remark

_BUS_ID = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]"
_CHILDREN = {
    "system": {"cpu"},
    "cpu": {"pci", "nic"},
    "pci": {"pci", "gpu", "nic", "pcilink"},
    "gpu": {"nvlink", "c2c"},
    "nic": {"net"},
}
_NEEDED = {
    "cpu": ("numaid",),
    "nvlink": ("count",),
    "c2c": ("count", "bw"),
    "pci": ("busid",),
    "pcilink": ("target",),
}
_NUMBERS = {
    "cpu": ("numaid", "familyid", "modelid"),
    "pci": ("link_width",),
    "gpu": ("dev", "sm", "rank", "gdr"),
    "nvlink": ("count",),
    "c2c": ("count", "bw"),
    "net": ("dev", "speed", "port", "gdr", "maxconn"),
}
"""Attributes that NCCL reads with strtol (xmlGetAttrInt, src/graph/xml.h): a text that is none counts as 0."""


def check_topology(root: Element, version: Version) -> tuple[Remark, ...]:
    """Return where NCCL would stop (`fatal`) or pass over something in a topology that is well formed."""
    out: list[Remark] = []
    if integer(root.get("version")) != 1:
        found = root.get("version")
        text = f"version {found!r}: NCCL accepts only 1 (RCCL uses 2)" if found else "no version: NCCL needs version=1"
        out.append(_at(root, text, fatal=True))
    most = int(number("max_subs", version, 640))
    seen: dict[str, Element] = {}
    for e in root.walk():
        out += _element(e, most, version)
        address = (e.get("busid") or "").lower()
        if e.name == "pci" and address:
            if address in seen:
                out.append(_at(e, f"{address} appears twice, first in line {seen[address].line}", fatal=False))
            seen.setdefault(address, e)
    return (*out, *_one_sided(root))


def _one_sided(root: Element) -> list[Remark]:
    """Return the NVLinks that one of two GPUs of the file lists alone (src/graph/paths.cc, "reverse path")."""
    gpus = {(p.get("busid") or "").lower(): g for p in root.walk() if p.name == "pci" for g in p.having("gpu")}
    targets = {
        address: {
            (x.get("target") or "").lower() for x in g.having("nvlink") if kind_of_class(x.get("tclass")) == "GPU"
        }
        for address, g in gpus.items()
    }
    out = []
    for address, found in targets.items():
        for other in sorted(found & gpus.keys()):
            if address in targets[other] or other == address:
                continue
            listed = any(gpus[other].having("nvlink"))
            text = f"{address} has an NVLink to {other}, which lists none back: "
            text += (
                "NCCL ends with 'Failed to find reverse path'"
                if listed
                else "NCCL asks NVML for the links of that GPU, and ends with 'Failed to find reverse path' without it"
            )
            out.append(_at(gpus[address], text, fatal=listed))
    return out


def _at(e: Element, text: str, *, fatal: bool) -> Remark:
    return Remark(e.line, e.column, text, fatal)


def _element(e: Element, most: int, version: Version) -> list[Remark]:
    out = []
    if len(e.children) > most:
        version_text = ".".join(map(str, version))
        out.append(_at(e, f"<{e.name}> has more than the {most} children that NCCL {version_text} takes", fatal=True))
    known = _CHILDREN.get(e.name)
    passed_over = [c for c in e.children if known is None or c.name not in known]
    out += [_at(c, f"<{c.name}> in <{e.name}>: NCCL passes over it", fatal=False) for c in passed_over]
    absent = [n for n in _NEEDED.get(e.name, ()) if e.get(n) is None]
    out += [_at(e, f"<{e.name}> without {n}: NCCL needs it", fatal=True) for n in absent]
    bus = e.get("busid")
    if e.name == "pci" and bus is not None and not re.fullmatch(_BUS_ID, bus):
        text = f"busid {bus[:30]!r} is not written dddd:bb:dd.f"
        short = re.fullmatch(r"[0-9a-fA-F]{3}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]", bus) is not None
        out.append(_at(e, text, fatal=not short))
    elif e.name == "pci" and bus is not None and bus != bus.lower():
        text = f"busid {bus}: NCCL writes addresses in small letters, so it does not find this one on a machine"
        out.append(_at(e, text, fatal=False))
    speed = e.get("link_speed")
    if speed and not versions.knows_speed(speed, version):
        out.append(_at(e, f"link_speed {speed[:30]!r} is none NCCL knows: taken as 8 GT/s", fatal=False))
    for name in _NUMBERS.get(e.name, ()):
        number, rest = read_integer(e.get(name) or "0")
        if rest.strip():
            lanes = ", which counts as 16 lanes" if name == "link_width" and number == 0 else ""
            out.append(_at(e, f"{name} {(e.get(name) or '')[:30]!r} is read as {number}{lanes}", fatal=False))
    if e.name == "pci" and not e.children and e.get("class") and kind_of_class(e.get("class")) == "PCI":
        out.append(_at(e, f"{bus}: a switch with nothing below it: NCCL drops it", fatal=False))
    return out
