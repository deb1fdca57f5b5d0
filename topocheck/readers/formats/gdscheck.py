"""Text of `gdscheck -p` (GPUDirect Storage): GPUs with the size of BAR1, and the platform."""

from __future__ import annotations

import re

from topocheck.readers.base import Answers, Reader, numbered

_GPU = re.compile(r"\s*GPU index ([0-9]{1,3}) (\S.*?) bar:1 bar size \(MiB\):([0-9]{1,8})\b")


def recognise(text: str) -> bool:
    """Tell whether its first line stands in the text."""
    return re.search(r"^[ \t]*GDS release version:", text, re.M) is not None


def read(text: str) -> Answers:
    """Return names and BAR1 sizes of GPUs, CUDA's version, the kernel."""
    found = Answers()
    for at, line in numbered(text):
        if m := _GPU.match(line):
            found.put(at, m[2], "nvml", "DeviceGetName", int(m[1]))
            found.put(
                at,
                {"bar1Total": int(m[3]) << 20, "bar1Used": None, "bar1Free": None},
                "nvml",
                "DeviceGetBAR1MemoryInfo",
                int(m[1]),
            )
        elif m := re.match(r"\s*Cuda Driver Version Installed:\s+([0-9]{5})\s*$", line):
            found.put(at, int(m[1]), "nvml", "SystemGetCudaDriverVersion_v2")
        elif m := re.match(r"\s*Platform: (\S.*), Arch: (\w+)\(Linux (\S+)\)", line):
            found.file(at, "/sys/class/dmi/id/product_name", m[1])
            found.file(at, "/proc/sys/kernel/arch", m[2])
            found.file(at, "/proc/sys/kernel/osrelease", m[3])
    indices = [int(q.rpartition("|")[2]) for q in found.answers if q.startswith("nvml:DeviceGetName|")]
    if indices:
        found.put(1, max(indices) + 1, "nvml", "DeviceGetCount")
        found.soft.add("nvml:DeviceGetCount")
    return found


READER = Reader(name="gdscheck -p", tells="GPUs, BAR1, the platform", recognise=recognise, read=read)
