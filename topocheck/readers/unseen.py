"""What a set of answers holds: the state of each probe, and in words what nothing of it tells."""

from __future__ import annotations

import re

from topocheck.host.base import Answer, HostError
from topocheck.probes.registry import PROBES

_PCI = "/sys/bus/pci/devices"
_OF_PROBE = {
    "pci": rf"(list|read|readlink|realpath):{_PCI}",
    "numa": r"read:/sys/devices/system/(node|cpu)/",
    "system": r"(read|lines|list|kernel_options|stat):(/proc/|/etc/|/boot/|/sys/(module|class/(dmi|iommu)|kernel)|$)",
    "net": r"(list|read|realpath|readlink|psutil):(/sys/class/(infiniband|net)|/dev/infiniband|net_[an])",
    "limits": r"(read|stat|statvfs|list):(/proc/self/limits|/dev/shm)",
    "settings": r"(environ|conf):|read:.*\.xml$",
    "software": r"(list|read|readlink|run):(.*packages|/usr/local/cuda|.*libnccl)",
    "nvml": r"nvml:",
    "cuda": r"cuda:",
    "services": r"run:.*systemctl",
    "programs": r"run:.*(--version|-V|ofed_info|ucx_info)",
    "smi_topo": r"run:.*nvidia-smi",
}
"""Probe -> its questions, as far as texts answer them."""

_TOLD = (
    ("the PCI tree", rf"realpath:{_PCI}/"),
    ("PCI links", rf"read:{_PCI}/[^/]+/(max_link_speed|config\|)"),
    ("ACS and other registers", rf"(lspci:[\s\S]|read:{_PCI}/[^/]+/config\|)"),
    ("NUMA nodes", r"read:/sys/devices/system/node/"),
    ("NVIDIA's driver and its GPUs", r"nvml:DeviceGet(Name|UUID)"),
    ("NVLinks", r"nvml:DeviceGetNvLinkState|run:.*nvidia-smi\|topo\|-m$"),
    ("peer access (nvidia-smi topo -p2p)", r"nvml:DeviceGetP2PStatus"),
    ("RDMA devices and ports", r"list:/sys/class/infiniband$"),
    ("kernel modules", r"lines:/proc/modules"),
    ("the IOMMU", r"kernel_options:|list:/sys/kernel/iommu_groups|list:/sys/class/iommu"),
    ("NCCL's settings", r"environ:|conf:"),
    ("limits of processes", r"read:/proc/self/limits"),
)
"""What can be determined -> the questions of which one answer tells some of it."""


def statuses(answers: dict[str, Answer]) -> dict[str, Answer]:
    """Return the state of each probe: `empty` where no text answers any of its questions."""
    out: dict[str, Answer] = {}
    for probe in (*(p.name for p in PROBES), "smi_topo"):
        pattern = re.compile(_OF_PROBE[probe])
        told = any(pattern.match(q) for q in answers)
        if probe == "smi_topo" and not told:
            continue
        detail = "" if told else "not in what was given"
        out[f"probe:{probe}"] = {"state": "ok" if told else "empty", "ms": 0.0, "detail": detail}
    return out


def unseen(answers: dict[str, Answer]) -> tuple[str, ...]:
    """Return what none of the answers tells, in words."""
    told = [q for q, a in answers.items() if not isinstance(a, HostError)]
    return tuple(what for what, pattern in _TOLD if not any(re.match(pattern, q) for q in told))
