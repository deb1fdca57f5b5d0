"""Xids of NVIDIA's driver, and the other events of NVML's event sets."""

from __future__ import annotations

XIDS = {
    48: "uncorrectable memory error",
    63: "memory row remapped, or its page retired",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's system processor (GSP) does not answer",
    120: "error of the GPU's system processor (GSP)",
    140: "unrecovered memory error",
    143: "GPU could not be initialised",
    **dict.fromkeys((144, 145, 146, 147, 148, 149, 150), "error of NVLink 5"),
}
"""Xids of the hardware (NVIDIA, Xid Errors); those of programs (13, 31, 43, 45) say nothing of the machine."""
HANDLED = frozenset((63, 92, 144, 145, 146, 147, 148, 149, 150))
"""Xids after which the GPU may go on as before (NVIDIA, Xid Errors: the row is replaced, errors were corrected, or
it is one of NVLink 5, of which many are not fatal)."""

XID_EVENT = 0x8
EVENTS = {
    0x2: "uncorrectable memory error",
    0x200: "many corrected memory errors",
    0x400: "memory page retired",
    0x800: "memory page could not be retired",
    0x1000: "poisoned memory was read (not fatal)",
    0x2000: "poisoned memory was read (fatal)",
    0x4000: "GPU is unavailable",
    0x8000: "GPU asks for a recovery action",
}
"""Bits of nvmlEventType* (nvml.h) that are faults; clocks, performance states and power sources change all the time."""
MINOR_EVENTS = frozenset((0x200, 0x400, 0x1000))
