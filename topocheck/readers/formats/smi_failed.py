"""What nvidia-smi prints where NVML fails: no driver, two versions, no GPU, a GPU that cannot be had.

nvidia-smi writes NVML's errors in words of its own (`nvmlErrorString`, nvml.h): each is taken down as that error.
"""

from __future__ import annotations

import re

from topocheck.host.base import Answer, HostError
from topocheck.model.base import Reason
from topocheck.readers import nvml_answers
from topocheck.readers.base import Answers, Reader, numbered

MAX_GPUS = 256
_INIT: tuple[tuple[re.Pattern[str], Answer], ...] = (
    (
        re.compile(
            r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
            r"|Failed to initialize NVML: Driver Not Loaded",
            re.I,
        ),
        HostError(Reason.ABSENT, "NVMLError_DriverNotLoaded"),
    ),
    (
        re.compile(r"Failed to initialize NVML: Driver/library version mismatch", re.I),
        HostError(Reason.UNSUPPORTED, "NVMLError_LibRmVersionMismatch"),
    ),
    (
        re.compile(r"Failed to initialize NVML: Insufficient Permissions", re.I),
        HostError(Reason.DENIED, "NVMLError_NoPermission"),
    ),
    (
        re.compile(r"Failed to initialize NVML: GPU is lost", re.I),
        HostError(Reason.UNSUPPORTED, "NVMLError_GpuIsLost"),
    ),
    (
        re.compile(r"Failed to initialize NVML: Unknown Error", re.I),
        HostError(Reason.UNSUPPORTED, "NVMLError_Unknown"),
    ),
    (
        re.compile(r"Failed to initialize NVML: GPU access blocked by the operating system", re.I),
        HostError(Reason.UNSUPPORTED, "NVMLError_OperatingSystem"),
    ),
    (
        re.compile(r"Failed to initialize NVML: Timeout", re.I),
        HostError(Reason.TIMED_OUT, "NVMLError_Timeout"),
    ),
    (re.compile(r"No devices were found\s*$"), 0),
)
"""The line with which nvidia-smi ends -> NVML's answer to how many GPUs there are."""
_LIBRARY = re.compile(r"NVML library version: ([0-9]{3}(?:\.[0-9]{1,4}){1,2})\s*$")
_LOST = re.compile(
    r"Unable to determine the device handle for GPU ?(?P<index>[0-9]{1,3}(?=: ))?:? ?"
    r"(?P<address>[0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]): (?P<why>\S.*)",
    re.I,
)
_WITH_VALUES = re.compile(r"Driver Version\s*:|NVSMI LOG|^[ \t]*GPU [0-9A-Fa-f]{8}:", re.M)
_LISTED = re.compile(r"GPU ([0-9]{1,3}): \S")


def recognise(text: str) -> bool:
    """Tell whether a line of the text is such a failure; the table and `-q` have their own readers, and indices."""
    if _WITH_VALUES.search(text):
        return False
    return any(
        _LOST.match(line) or any(p.match(line) for p, _ in _INIT) for line in (x.strip() for x in text.split("\n"))
    )


def read(text: str) -> Answers:
    """Return the error as NVML's answer: of the whole driver, or of one GPU."""
    found = Answers()
    last = -1
    mismatch = False
    for number, raw in numbered(text):
        line = raw.strip()
        if m := _LISTED.match(line):
            last = max(last, min(int(m[1]), MAX_GPUS - 1))
        elif m := _LOST.match(line):
            # Without an index in the line, its place in the list of GPUs is its index.
            index = int(m["index"]) if m["index"] else last + 1
            if index < MAX_GPUS:
                last = max(last, index)
                nvml_answers.lost(found, index, number, "GPU is lost", (m["address"].lower(), number))
        elif mismatch and (m := _LIBRARY.match(line)):
            found.put(number, m[1], "nvml", "SystemGetNVMLVersion")
        else:
            for pattern, answer in _INIT:
                if pattern.match(line):
                    found.put(number, answer, "nvml", "DeviceGetCount")
                    mismatch = mismatch or "Mismatch" in str(getattr(answer, "detail", ""))
    if found.answers and "nvml:DeviceGetCount" not in found.answers:
        found.put(min(found.lines.values()), last + 1, "nvml", "DeviceGetCount")
        found.soft.add("nvml:DeviceGetCount")
    return found


READER = Reader(
    name="nvidia-smi that failed",
    tells="why NVML does not answer: no driver, two versions, no GPU, a GPU that is lost",
    recognise=recognise,
    read=read,
)
