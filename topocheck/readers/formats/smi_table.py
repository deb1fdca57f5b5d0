"""The table that `nvidia-smi` prints without options, of drivers 352 to 590; `nvidia-smi -L`; `nvidia-smi mig -lgi`.

Names that do not fit into the table end with `...` and are not taken. Sizes are MiB, rounded down.
"""

from __future__ import annotations

import re

from topocheck.host.base import HostError
from topocheck.model.address import normalize_address
from topocheck.model.base import Reason
from topocheck.readers import nvml_answers
from topocheck.readers.base import Answers, Reader, numbered
from topocheck.readers.nvml_answers import Value

MAX_GPUS = 256
_HEAD = re.compile(
    r"\|\s+NVIDIA-SMI [0-9.]+\s+(?:Driver|KMD) Version:\s+([0-9.]+)(?:\s+CUDA (?:UMD )?Version:\s+([0-9.]+))?"
)
_GPU = re.compile(
    r"\|\s+([0-9]{1,3})\s+(\S.*?)\s+(On|Off|N/A|TCC|WDDM|MCDM)\s+\|\s+([0-9A-Fa-f:.]{7,16})\s+(?:On|Off|N/A)\s*\|"
)
_USE = re.compile(
    r"\|.*?\bP([0-9]{1,2})\b.*?\|\s+([0-9]{1,9})MiB\s*/\s*([0-9]{1,9})MiB\s*\|\s+([0-9]{1,3}%|N/A)\s+(\S.*?)\s*\|"
)
_MIG = re.compile(r"\|\s+\|\s+\|\s+(Enabled|Disabled|N/A)\s*\|\s*$")
_LOST = re.compile(r"\|\s*GPU is lost\s*\|")
"""NVML's words in place of the memory: the GPU has fallen off the bus."""
_SLICE = re.compile(r"\s*MIG [0-9]+g\.[0-9]+gb\S*\s+Device\s+[0-9]{1,2}: \(UUID: MIG-")
"""A slice in the list of `nvidia-smi -L`, below its GPU."""
_INSTANCE = re.compile(r"\|\s+([0-9]{1,3})\s+MIG [0-9]+g\.[0-9]+gb\S*(?:\s+[0-9]{1,3}){2}\s+[0-9]{1,2}:[0-9]{1,2}\s*\|")
"""A GPU instance in the table of `nvidia-smi mig -lgi`."""
_LIST = re.compile(r"GPU ([0-9]{1,3}): (\S.*?) \(UUID: (GPU-[0-9a-fA-F\-]{36})\)\s*$")
_COMPUTE = {
    "E. Process": "Exclusive_Process",
    "Default": "Default",
    "Prohibited": "Prohibited",
    "E. Thread": "Exclusive_Thread",
}


def recognise(text: str) -> bool:
    """Tell whether the head of the table, two rows of a GPU, or a line of a list stands in the text."""
    rows = rf"{_GPU.pattern}.*\n[ \t]*{_USE.pattern}"
    return re.search(rf"^[ \t]*(?:{_HEAD.pattern}|{_LIST.pattern}|{_INSTANCE.pattern}|{rows})", text, re.M) is not None


def read(text: str) -> Answers:
    """Return the driver, and of each GPU what a row of the table or of the list holds."""
    found = Answers()
    values: dict[int, dict[str, Value]] = {}
    current: dict[str, Value] | None = None
    listed: dict[str, Value] | None = None
    for number, raw in numbered(text):
        line = raw.strip()
        if m := _HEAD.match(line):
            found.put(number, m[1], "nvml", "SystemGetDriverVersion")
            if m[2]:
                nvml_answers.cuda_version(found, (m[2], number))
        elif m := _LIST.match(line):
            listed = values.setdefault(int(m[1]), {})
            listed.update({"name": (m[2], number), "uuid": (m[3], number)})
        elif listed is not None and _SLICE.match(line):
            listed.setdefault("mig current", ("Enabled", number))
        elif m := _INSTANCE.match(line):
            values.setdefault(int(m[1]), {}).setdefault("mig current", ("Enabled", number))
        elif m := _GPU.match(line):
            current = values.setdefault(int(m[1]), {})
            _row(current, m, number)
        elif current is not None and _LOST.search(line):
            current["lost"] = ("GPU is lost", number)
        elif current is not None and (m := _USE.match(line)):
            _use(current, m, number)
        elif current is not None and (m := _MIG.match(line)):
            # A star behind it says that another mode is pending; without one both are the same.
            current.update({"mig current": (m[1], number), "mig pending": (m[1], number)})
        elif line.startswith(("+", "|==")) or "Processes:" in line:
            current = None if "+" not in line[:1] else current
    known = {i: v for i, v in values.items() if i < MAX_GPUS}
    for index, of in known.items():
        if "dead" in of and "lost" not in of:
            # What is left of its row (memory, modes) the driver remembers: it says nothing of the GPU now.
            nvml_answers.gpu(found, index, {n: v for n, v in of.items() if n == "bus id"})
            for call in ("DeviceGetName", "DeviceGetPerformanceState"):
                found.put(of["dead"][1], HostError(Reason.UNSUPPORTED, "NVMLError_Unknown"), "nvml", call, index)
        elif "lost" in of:
            nvml_answers.lost(found, index, of["lost"][1], of["lost"][0], of.get("bus id"))
        else:
            nvml_answers.gpu(found, index, of)
    if known:
        # `-i` shows some: any other text knows better how many there are.
        found.put(min(line for v in known.values() for _, line in v.values()), max(known) + 1, "nvml", "DeviceGetCount")
        found.soft.add("nvml:DeviceGetCount")
    return found


def _row(of: dict[str, Value], m: re.Match[str], number: int) -> None:
    if m[2] == "ERR!":
        of["dead"] = (m[2], number)
    elif not m[2].endswith("..."):
        of["name"] = (m[2], number)
    if m[3] in ("On", "Off"):
        of["persistence"] = ("Enabled" if m[3] == "On" else "Disabled", number)
    if normalize_address(m[4]):
        of["bus id"] = (m[4], number)


def _use(of: dict[str, Value], m: re.Match[str], number: int) -> None:
    of["performance"] = (f"P{m[1]}", number)
    of["memory used"], of["memory total"] = (f"{m[2]} MiB", number), (f"{m[3]} MiB", number)
    if m[4] != "N/A":
        of["utilization"] = (m[4].replace("%", " %"), number)
    if m[5] in _COMPUTE:
        of["compute mode"] = (_COMPUTE[m[5]], number)


READER = Reader(
    name="nvidia-smi, nvidia-smi -L",
    tells="the driver, its GPUs, their memory and modes",
    recognise=recognise,
    read=read,
)
