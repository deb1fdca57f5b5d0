"""The kernel's log: what it says of GPUs, NICs and PCI. Root alone may read it on most systems (dmesg_restrict)."""

from __future__ import annotations

from topocheck.host.base import Host, HostError
from topocheck.model.base import Missing

MAX_LINES = 256


def read_kernel_log(host: Host) -> tuple[str, ...] | Missing:
    """Return the lines that matter (host/live/kmsg.py), the newest last, of repeated ones the last; no time."""
    try:
        lines = host.kernel_log()
    except HostError as e:
        return e.missing()
    newest = list(dict.fromkeys(reversed(lines)))
    if len(newest) > MAX_LINES:
        host.left_out.append(f"lines of the kernel's log: the last {MAX_LINES} of {len(newest)}")
    return tuple(reversed(newest[:MAX_LINES]))
