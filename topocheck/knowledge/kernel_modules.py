"""Which of NVIDIA's kernel modules supports a GPU, by its PCI device id.

The open module needs the GPU's system processor (GSP), which came with Turing: the first id in the table of supported
GPUs of NVIDIA/open-gpu-kernel-modules (README.md) is 1E02. Grace Hopper, Blackwell and later are supported by the open
module only (NVIDIA driver README, "Open Linux Kernel Modules"). Maxwell, Pascal and Volta are supported up to branch
580 (NVIDIA, Unix driver deprecation schedule).
"""

from __future__ import annotations

FIRST_OPEN = 0x1E02
FIRST_OPEN_ONLY = 0x2900
OPEN_ONLY = frozenset({0x2342, 0x2343, 0x2345, 0x2348})
"""Grace Hopper, among the ids of Hopper."""
LAST_BEFORE_TURING = 580


def needs_proprietary(device_id: int) -> bool:
    """Tell whether the open kernel module does not support a GPU."""
    return device_id < FIRST_OPEN


def needs_open(device_id: int) -> bool:
    """Tell whether the proprietary kernel module does not support a GPU."""
    return device_id >= FIRST_OPEN_ONLY or device_id in OPEN_ONLY


def past_last_branch(device_id: int, branch: int) -> bool:
    """Tell whether a branch of the driver (580 of 580.95.05) came after the last that supports a GPU."""
    return device_id < FIRST_OPEN and branch > LAST_BEFORE_TURING
