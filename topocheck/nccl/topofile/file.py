"""The topology file that NCCL opens on a node, and whether its reader would end there.

src/graph/xml.cc (ncclTopoGetXmlFromFile, 2.30.7): a file that cannot be opened is passed over with a line at INFO; one
that is open and malformed ends the init of every communicator.
"""

from __future__ import annotations

import msgspec

from topocheck.knowledge.nccl import Version
from topocheck.model.base import Missing
from topocheck.model.node import Node
from topocheck.nccl.topofile.rules import check_topology
from topocheck.nccl.topofile.xml import Element, NcclXmlError, Remark, parse_topology


class TopoFile(msgspec.Struct, frozen=True, kw_only=True):
    """A topology file in force.

    Attributes:
        path: where it lies.
        root: what it says, as far as our reader came; None where it is malformed.
        remarks: what NCCL would refuse or pass over in it.
        fatal: why NCCL's init ends with it; empty where it does not.
    """

    path: str
    root: Element | None
    remarks: tuple[Remark, ...] = ()
    fatal: str = ""


def judge_file(path: str, data: str | bytes, version: Version) -> TopoFile:
    """Return what a version of NCCL would make of the text of a file.

    Raises:
        NcclXmlError: it is malformed.
    """
    document = parse_topology(data)
    remarks = (*document.remarks, *check_topology(document.root, version))
    stops = next((r for r in remarks if r.fatal), None)
    fatal = "" if stops is None else f"{path}: line {stops.line}: {stops.text}"
    return TopoFile(path=path, root=document.root, remarks=remarks, fatal=fatal)


def file_in_force(node: Node, version: Version) -> TopoFile | None:
    """Return the topology file that NCCL would read on a node; None where there is none, or its text is not known."""
    text, path = node.settings.topo_file, node.settings.topo_file_path
    if isinstance(text, Missing):
        return None
    try:
        return judge_file(path, text, version)
    except NcclXmlError as e:
        return TopoFile(path=path, root=None, fatal=f"{path}: {e}")
