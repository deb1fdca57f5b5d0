"""Text of `nvidia-smi -q` (and `-a`, its old name), of drivers 418 to 595: sections by indentation, `name : value`."""

from __future__ import annotations

import re

from topocheck.model.address import normalize_address
from topocheck.model.base import is_digits
from topocheck.readers import nvml_answers
from topocheck.readers.base import Answers, Reader, numbered
from topocheck.readers.nvml_answers import Value

MAX_GPUS = 256
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_LOST = re.compile(r"Unable to determine the device handle for (?:gpu|GPU)\s?([0-9A-Fa-f:.]+): (.*)", re.I)
_PAIR = re.compile(r"(\s*)(\S.*?)\s*: (.*)$|(\s*)(\S.*?)\s+:$")

NAMES = {
    "product name": "name", "gpu uuid": "uuid", "minor number": "minor", "serial number": "serial",
    "vbios version": "vbios", "board id": "board id", "board part number": "board part",
    "module id": "module id", "platform info/module id": "module id", "product architecture": "architecture",
    "pci/bus id": "bus id", "pci/gpu link info/pcie generation/max": "gen max",
    "pci/gpu link info/pcie generation/current": "gen current",
    "pci/gpu link info/pcie generation/device max": "gen device max",
    "pci/gpu link info/link width/max": "width max", "pci/gpu link info/link width/current": "width current",
    "pci/replays since reset": "replays", "performance state": "performance", "clocks/sm": "sm clock",
    "max clocks/sm": "sm clock max", "temperature/gpu current temp": "temperature", "compute mode": "compute mode",
    "persistence mode": "persistence", "gpu virtualization mode/virtualization mode": "virtualization",
    "addressing mode": "addressing", "mig mode/current": "mig current", "mig mode/pending": "mig pending",
    "ecc mode/current": "ecc current", "ecc mode/pending": "ecc pending", "fb memory usage/total": "memory total",
    "fb memory usage/used": "memory used", "fb memory usage/free": "memory free",
    "fb memory usage/reserved": "memory reserved", "bar1 memory usage/total": "bar1 total",
    "bar1 memory usage/used": "bar1 used", "bar1 memory usage/free": "bar1 free", "utilization/gpu": "utilization",
    "gpu c2c mode": "c2c", "fabric/state": "fabric state", "fabric/status": "fabric status",
    "fabric/cliqueid": "fabric clique", "fabric/clusteruuid": "fabric cluster",
    "fabric/health/summary": "health summary", "fabric/health/bandwidth": "health bandwidth",
    "fabric/health/route recovery in progress": "health route recovery in progress",
    "fabric/health/route unhealthy": "health route unhealthy",
    "fabric/health/access timeout recovery": "health access timeout recovery",
}  # fmt: skip
"""Path of a value, lower case -> its name in nvml_answers."""


def recognise(text: str) -> bool:
    """Tell whether the block of a GPU, or the heading of all, stands in the text."""
    return "NVSMI LOG==" in text or re.search(rf"^{_GPU.pattern}\n[ \t]+Product Name\s+:", text, re.M) is not None


def read(text: str) -> Answers:
    """Return what the GPUs and the driver say."""
    found = Answers()
    blocks: list[tuple[str, int, dict[str, Value]]] = []
    values: dict[str, Value] | None = None
    path: list[tuple[int, str]] = []
    system: dict[str, Value] = {}
    for number, raw in numbered(text):
        line = raw.rstrip().removesuffix(" \\")  # Markdown's mark for the end of a line
        if line == "--":
            continue  # grep's, between parts
        if m := _GPU.match(line):
            values, path = {}, []
            blocks.append((m[1], number, values))
        elif m := _LOST.search(line):
            blocks.append((m[1], number, {"lost": (m[2], number)}))
            values = None
        elif line.strip().startswith(("____", "====")) and blocks:
            values = None
        elif (m := _PAIR.match(line.rstrip() + (" " if line.rstrip().endswith(":") else ""))) and m[2]:
            _value(values if values is not None else system, path, m, number)
        elif line.strip() and len(line) < 120:
            _enter(path, len(line) - len(line.lstrip()), line.strip().lower())
    _system(found, system)
    _gpus(found, blocks[:MAX_GPUS], system)
    return found


def _enter(path: list[tuple[int, str]], indent: int, name: str) -> None:
    while path and path[-1][0] >= indent:
        path.pop()
    if len(path) < 16:
        path.append((indent, name))


def _value(values: dict[str, Value], path: list[tuple[int, str]], m: re.Match[str], number: int) -> None:
    indent, name, value = len(m[1]), m[2].lower(), m[3].strip()
    # The section may stand by itself or be a value (`GPU Virtualization Mode`, `HW Slowdown : Not Active`).
    while path and path[-1][0] >= indent:
        path.pop()
    at = "/".join([p for _, p in path] + [name])
    if at in NAMES:
        values.setdefault(NAMES[at], (value, number))
    elif (found := re.match(r"clocks (?:event|throttle) reasons/(?:.*/)?(.+)$", at)) is not None:
        values.setdefault(f"reason {found[1]}", (value, number))
    elif at in ("driver version", "cuda version", "attached gpus"):
        values.setdefault(at, (value, number))
    if at.startswith("clocks") and value in ("Active", "Not Active") and len(path) < 16:
        path.append((indent, name))


def _system(found: Answers, system: dict[str, Value]) -> None:
    if "driver version" in system:
        text, line = system["driver version"]
        found.put(line, text, "nvml", "SystemGetDriverVersion")
    if "cuda version" in system:
        nvml_answers.cuda_version(found, system["cuda version"])


def _gpus(found: Answers, blocks: list[tuple[str, int, dict[str, Value]]], system: dict[str, Value]) -> None:
    """Take down the GPUs in their order, which is NVML's.

    Where fewer are shown than are attached (`-i`, a text cut at either end), NVML's index of each is its minor number,
    as the driver counts both in the order of the bus; the others are distinguished by nothing. A text without its head
    does not say how many are attached: at least as many as the largest minor number tells.
    """
    text, line = system.get("attached gpus", ("", blocks[0][1] if blocks else 1))
    attached = int(text) if is_digits(text) and len(text) < 5 else len(blocks)
    told = is_digits(text)
    minors = [int(t) if is_digits(t := b[2].get("minor", ("", 0))[0]) and len(t) < 5 else -1 for b in blocks]
    if not told and len(minors) > 1 and minors[-1] < 0 <= min(minors[:-1]) and minors[0] > 0:
        blocks, minors = blocks[:-1], minors[:-1]  # cut at both ends: the index of the last is not known
    attached = attached if told else max(len(blocks), *(m + 1 for m in minors), 0)
    whole = len(blocks) >= attached or len(set(minors)) < len(minors) or not all(0 <= m < attached for m in minors)
    for order, (bus_id, at, values) in enumerate(blocks):
        index = order if whole else minors[order]
        if "lost" in values:
            nvml_answers.lost(found, index, at, values["lost"][0], (bus_id, at))
            continue
        if gone := next((v for v in values.values() if v[0].lower() == "gpu is lost"), None):
            nvml_answers.lost(found, index, gone[1], gone[0], (bus_id, at))
            continue
        if normalize_address(bus_id):
            values.setdefault("bus id", (bus_id, at))
        nvml_answers.gpu(found, index, values)
    if blocks or is_digits(text):  # `-q -u` names no GPUs
        found.put(line, max(attached, len(blocks)), "nvml", "DeviceGetCount")
        if not told:
            found.soft.add("nvml:DeviceGetCount")


READER = Reader(
    name="nvidia-smi -q",
    tells="the driver and its GPUs: links, BAR1, ECC, MIG, fabric",
    recognise=recognise,
    read=read,
)
