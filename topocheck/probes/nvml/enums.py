"""NVML's numbers in words: enums of nvml.h (driver 580) as nvidia-smi and NVML's manual spell them."""

from __future__ import annotations

from collections.abc import Mapping

from topocheck.model.base import Missing, unparsable
from topocheck.model.gpu import P2P_CODES

COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
VIRTUALIZATION_MODES = {0: "None", 1: "PassThrough", 2: "vGPU", 3: "HostVGPU", 4: "HostVSGA"}
ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}
FABRIC_STATES = {0: "Not Supported", 1: "Not Started", 2: "In Progress", 3: "Completed"}
FABRIC_HEALTH_SUMMARIES = {0: "Not Supported", 1: "Healthy", 2: "Unhealthy", 3: "Limited Capacity"}
P2P_STATUSES = dict(enumerate(P2P_CODES))
ANCESTORS = {0: "X", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t -> the word of `nvidia-smi topo`; 0 (internal) is two GPUs of one board."""

NVLINK_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""nvmlNvlinkVersion_t -> generation: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0, 6.0."""

NVLINK_REMOTE_TYPES = {0: "gpu", 1: "ibmnpu", 2: "switch", 255: "unknown"}
NVLINK_CAPABILITIES = ("p2p", "system_memory", "p2p_atomics", "system_memory_atomics")
"""nvmlNvLinkCapability_t, counted from 0. The two after these (SLI bridge, valid) are not asked: each question
takes a third of a millisecond, there is one per link, and nothing depends on them."""

RETURN_CODES = {
    0: "Success",
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    13: "Function Not Found",
    15: "GPU is lost",
    16: "GPU requires reset",
    17: "Operating System",
    19: "In Use",
    20: "Insufficient Memory",
    23: "Insufficient Resources",
    27: "Not Ready",
    28: "GPU Not Found",
    29: "Invalid State",
    999: "Unknown Error",
}
"""nvmlReturn_t in words, those that a fabric registration or a field value may hold."""


def lookup(numbers: Mapping[int, int], number: int | Missing) -> int | Missing:
    """Return what a number stands for; one that nvml.h does not name is unparsable."""
    if isinstance(number, Missing):
        return number
    return numbers[number] if number in numbers else unparsable(str(number))


def word(words: Mapping[int, str], number: int | Missing) -> str | Missing:
    """Return the word for a number; one that nvml.h does not name is unparsable."""
    if isinstance(number, Missing):
        return number
    return words[number] if number in words else unparsable(str(number))


def return_code(number: int) -> str:
    """Return nvmlReturn_t in words; `NVML error 42` for one without."""
    return RETURN_CODES.get(number, f"NVML error {number}")
