"""NCCL's topology XML: a dump (NCCL_TOPO_DUMP_FILE) or a file that a provider hands out.

NCCL joins the ports of a switch to one element, leaves root ports out, and writes the smaller of two links' speeds: so
neither the place of a device nor a link's speed is taken from it (`nccl predict --topo` uses the file as NCCL does).
"""

from __future__ import annotations

import re

from topocheck.model.address import normalize_address
from topocheck.readers import pci_answers as pci
from topocheck.readers import rdma_answers as rdma
from topocheck.readers.base import Answers, Reader
from topocheck.readers.xml_tree import Element, parse


def recognise(text: str) -> bool:
    """Tell whether NCCL's root element with a CPU in it, or a part of such a file with GPUs, stands in the text."""
    whole = re.search(r"<system[\s>]", text) is not None and "<cpu " in text
    return whole or (_PART.search(text) is not None and re.search(r'<gpu dev="|<net name="', text) is not None)


_PART = re.compile(r'^[ \t]*<(?:cpu (?:host_hash|numaid)=|pci busid=")', re.M)


def read(text: str) -> Answers:
    """Return PCI functions with their ids and NUMA node, and NICs.

    Raises:
        XmlError: it is no XML.
    """
    start, end = text.find("<system"), text.find("</system>")
    part = _PART.search(text) if start < 0 else None
    body = text[max(start, 0) : end + len("</system>") if end >= 0 else None]
    if part is not None:
        start = part.start()
        body = f"<system>{text[start : text.rfind('>') + 1]}"
    before = text.count("\n", 0, max(start, 0))
    root = parse(body, cut=True, before=text[: max(start, 0)])
    found = Answers()
    addresses: list[str] = []
    names: list[str] = []
    stack: list[tuple[Element, str, str]] = [(root, "", "")]
    while stack:
        e, node, above = stack.pop()
        if e.name == "cpu":
            node = e.get("numaid")
        elif e.name == "pci":
            address = normalize_address(e.get("busid"))
            if address and len(addresses) < 1 << 13:
                above = address
                addresses.append(address)
                _function(found, e, address, node, before)
        elif e.name == "net" and re.fullmatch(r"[\w.\-]{1,64}", e.get("name")):
            names += [e.get("name")] if _nic(found, e, e.get("name"), above, before) else []
        stack += [(c, node, above) for c in reversed(e.children)]
    if addresses:
        found.names(root.line + before, pci.DEVICES, addresses, whole=False)
    if names:
        found.names(root.line + before, rdma.CLASS, names, whole=False)
    return found


def _function(found: Answers, e: Element, address: str, node: str, before: int) -> None:
    line = e.line + before
    for name in ("class", "vendor", "device", "subsystem_vendor", "subsystem_device"):
        if re.fullmatch(r"0x[0-9a-f]{4,6}", e.get(name)):
            pci.file(found, line, address, name, e.get(name))
    if re.fullmatch(r"[0-9]{1,4}", node):
        pci.file(found, line, address, "numa_node", node)


def _nic(found: Answers, e: Element, name: str, address: str, before: int) -> bool:
    """Take down an RDMA NIC: one with a GUID; an interface of sockets has none."""
    guid = rdma.guid(e.get("guid"))
    line = e.line + before
    if guid is None or guid == "0000:0000:0000:0000":
        return False
    if address:
        rdma.address(found, line, name, address)
    port = e.get("port")
    if re.fullmatch(r"[1-9][0-9]?", port):
        found.names(line, f"{rdma.CLASS}/{name}/ports", [port], whole=False)
        if re.fullmatch(r"[1-9][0-9]{2,6}", e.get("speed")):
            rdma.rate(found, line, name, int(port), int(e.get("speed")) / 1000)
    return True


READER = Reader(name="NCCL topology XML", tells="GPUs, NICs and their NUMA nodes", recognise=recognise, read=read)
