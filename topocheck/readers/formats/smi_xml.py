"""XML of `nvidia-smi -q -x`: the values of `-q` under other names (nvsmi_device_v*.dtd)."""

from __future__ import annotations

import re

from topocheck.model.base import is_digits
from topocheck.readers import nvml_answers
from topocheck.readers.base import Answers, Reader
from topocheck.readers.nvml_answers import Value
from topocheck.readers.xml_tree import Element, parse

MAX_GPUS = 256
_START = re.compile(r"<nvidia_smi_log[\s>]")

NAMES = {
    "product_name": "name", "uuid": "uuid", "minor_number": "minor", "serial": "serial", "vbios_version": "vbios",
    "board_id": "board id", "board_part_number": "board part", "gpu_module_id": "module id",
    "platforminfo/module_id": "module id", "product_architecture": "architecture", "pci/pci_bus_id": "bus id",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "gen max",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "gen current",
    "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen": "gen device max",
    "pci/pci_gpu_link_info/link_widths/max_link_width": "width max",
    "pci/pci_gpu_link_info/link_widths/current_link_width": "width current", "pci/replay_counter": "replays",
    "performance_state": "performance", "clocks/sm_clock": "sm clock", "max_clocks/sm_clock": "sm clock max",
    "temperature/gpu_temp": "temperature", "compute_mode": "compute mode", "persistence_mode": "persistence",
    "gpu_virtualization_mode/virtualization_mode": "virtualization", "addressing_mode": "addressing",
    "mig_mode/current_mig": "mig current", "mig_mode/pending_mig": "mig pending",
    "ecc_mode/current_ecc": "ecc current", "ecc_mode/pending_ecc": "ecc pending",
    "fb_memory_usage/total": "memory total", "fb_memory_usage/used": "memory used",
    "fb_memory_usage/free": "memory free", "fb_memory_usage/reserved": "memory reserved",
    "bar1_memory_usage/total": "bar1 total", "bar1_memory_usage/used": "bar1 used",
    "bar1_memory_usage/free": "bar1 free", "utilization/gpu_util": "utilization", "c2c_mode": "c2c",
    "fabric/state": "fabric state", "fabric/status": "fabric status", "fabric/cliqueid": "fabric clique",
    "fabric/clusteruuid": "fabric cluster", "fabric/health/summary": "health summary",
    "fabric/health/bandwidth": "health bandwidth",
    "fabric/health/route_recovery_in_progress": "health route recovery in progress",
    "fabric/health/route_unhealthy": "health route unhealthy",
    "fabric/health/access_timeout_recovery": "health access timeout recovery",
}  # fmt: skip
"""Path of an element, lower case -> name of its value in nvml_answers."""
_REASON = re.compile(r"clocks_(?:event|throttle)_reasons/clocks_(?:event|throttle)_reason_(?:gpu_)?(\w+)")


def recognise(text: str) -> bool:
    """Tell whether the root element stands in the text."""
    return _START.search(text) is not None


def read(text: str) -> Answers:
    """Return what the GPUs and the driver say.

    Raises:
        XmlError: it is no XML.
    """
    found = Answers()
    begin = re.search(r"<\?xml|<!DOCTYPE nvidia_smi_log|<nvidia_smi_log[\s>]", text)
    start = begin.start() if begin else 0
    end = text.find("</nvidia_smi_log>")
    before = text.count("\n", 0, start)
    body = text[start : end + len("</nvidia_smi_log>") if end >= 0 else None]
    root = parse(body, cut=True, before=text[:start])
    tops = {e.name: (e.text.strip(), e.line + before) for e in root.children}
    if "driver_version" in tops:
        found.put(tops["driver_version"][1], tops["driver_version"][0], "nvml", "SystemGetDriverVersion")
    if "cuda_version" in tops:
        nvml_answers.cuda_version(found, tops["cuda_version"])
    gpus = [e for e in root.children if e.name == "gpu"][:MAX_GPUS]
    told, line = tops.get("attached_gpus", ("", root.line + before))
    attached = int(told) if is_digits(told) and len(told) < 5 else len(gpus)
    values = [_values(g, before) for g in gpus]
    minors = [int(t) if is_digits(t := v.get("minor", ("", 0))[0]) and len(t) < 5 else -1 for v in values]
    whole = len(gpus) >= attached or len(set(minors)) < len(minors) or not all(0 <= m < attached for m in minors)
    for order, v in enumerate(values):
        nvml_answers.gpu(found, order if whole else minors[order], v)
    found.put(line, max(attached, len(gpus)), "nvml", "DeviceGetCount")
    return found


def _values(gpu: Element, before: int) -> dict[str, Value]:
    out: dict[str, Value] = {}
    if gpu.get("id"):
        out["bus id"] = (gpu.get("id"), gpu.line + before)
    stack = [("", e) for e in reversed(gpu.children)]
    while stack:
        above, e = stack.pop()
        path = f"{above}{e.name.lower()}"
        value = (e.text.strip(), e.line + before)
        if path in NAMES and not e.children:
            out.setdefault(NAMES[path], value)
        elif m := _REASON.fullmatch(path):
            out.setdefault(f"reason {m[1].replace('_', ' ')}", value)
        if path.count("/") < 8:
            stack += [(f"{path}/", c) for c in reversed(e.children)]
    return out


READER = Reader(
    name="nvidia-smi -q -x",
    tells="what -q reports",
    recognise=recognise,
    read=read,
)
