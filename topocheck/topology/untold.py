"""Which lists of a node may lack entries, since what they are read from did not answer or is not in the given files."""

from __future__ import annotations

from topocheck.model.base import Missing, Reason, is_lost, known
from topocheck.model.node import Node

_NOT_GIVEN = Missing(Reason.NOT_RECORDED, "not in the given files")

_ASKED = {
    "gpus.nvlinks": ("nvml:DeviceGetNvLinkState", "nvml:DeviceGetCount"),
    "gpus.p2p_status": ("nvml:DeviceGetP2PStatus", "nvml:DeviceGetCount"),
    "modules": ("lines:/proc/modules", "list:/sys/module"),
    "nccl.settings": ("environ:",),
    "host.iommu_group_types": ("list:/sys/kernel/iommu_groups",),
    "host.nvidia_params": ("read:/proc/driver/nvidia/params", "stat:/proc/driver/nvidia"),
    "host.topo_file_path": ("read:/var/run/nvidia-topologyd/virtualTopology.xml",),
    "host.services": ("stat:/proc/driver/nvidia",),
}
"""List -> the questions of which one that was lost leaves it open."""


def lists_untold(node: Node) -> dict[str, Missing]:
    """Return list of the report's document -> why entries may be missing in it; a list that is complete is left out.

    What is not in such a list may be in the machine all the same (of NICs see also `Topology.nics_untold`). Texts of
    other programs never say which software is not there, nor what of the host is absent: `software` and `host` stand
    for that.
    """
    parts = {"pci": node.pci.devices, "interfaces": node.net.interfaces, "numa_nodes": node.numa.nodes}
    out = {name: part for name, part in parts.items() if isinstance(part, Missing) and is_lost(part)}
    texts = node.made_from is not None and any(f.formats != ("snapshot",) for f in node.made_from.files)
    if texts and node.made_from is not None and node.made_from.selection:
        out.setdefault("pci", _NOT_GIVEN)
    gpus = node.nvml.gpus
    if "pci" in out and isinstance(gpus, Missing) and not _in_matrix(node):
        out["gpus"] = out["pci"]
    if known(node.net.rdma):
        # A NIC whose PCI function is not known has no place among the others (`ibstat` names none).
        placeless = [d.address for d in node.net.rdma if isinstance(d.address, Missing) and is_lost(d.address)]
        if placeless:
            out["nics"] = placeless[0]
    lost = {x.question.partition("|")[0]: x.why for x in node.lost}
    for name, questions in _ASKED.items():
        if (why := next((lost[q] for q in questions if q in lost), None)) is not None:
            out[name] = why
    if texts:
        out |= {"software": _NOT_GIVEN, "host": _NOT_GIVEN}
    return out


def _in_matrix(node: Node) -> bool:
    """Tell whether nvidia-smi's matrix lists the GPUs."""
    return node.made_from is not None and node.smi_topo.matrix is not None
