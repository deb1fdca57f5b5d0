"""GPUs as NVML describes them, split by subject. `read(host)` is the probe."""

from topocheck.probes.nvml.probe import read

__all__ = ["read"]
