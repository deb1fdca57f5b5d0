"""Whether NVIDIA's driver is loaded here, and how many GPUs it has: what its probes' start and deadlines depend on."""

from __future__ import annotations

import os

MOST = 64


def count_gpus() -> int:
    """Return the number of GPUs that the loaded driver lists in /proc; 0 where it is not loaded, 64 at most."""
    try:
        return min(MOST, len(os.listdir("/proc/driver/nvidia/gpus")))
    except OSError:
        return 0


def driver_is_loaded() -> bool:
    """Tell whether NVIDIA's kernel module, or WSL's GPU in place of it, shows itself; without one NVML ends at once."""
    return any(os.path.exists(path) for path in ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg"))
