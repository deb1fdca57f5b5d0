"""All probes, in the order their results are shown, and the version of the set as a whole."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import msgspec

from topocheck.host.base import Host

PROBE_SET_VERSION = 2
"""Raised whenever a probe asks something new, so that a recording can say what it was never asked."""


NVML_PER_GPU_S = 2.0
"""Start of NVML per GPU where nothing holds the GPUs initialised (no persistence mode): 16 GPUs took over 25 s."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One probe.

    Attributes:
        name: as shown in reports.
        function: `module:function` below topocheck.probes, imported when first used.
        group: probes of one group share a child process; groups run at the same time.
        deadline_s: how long it may take before it is given up.
        per_gpu_s: how much longer for each GPU.
        asks: the kind of question without which it has told nothing of its source; any where empty.
        unasked: why it may have asked none, for its status.
    """

    name: str
    function: str
    group: str = "files"
    deadline_s: float = 3.0
    per_gpu_s: float = 0.0
    asks: str = ""
    unasked: str = ""

    def for_gpus(self, number: int) -> Probe:
        """Return this probe with the deadline that it has on a machine of so many GPUs."""
        return msgspec.structs.replace(self, deadline_s=self.deadline_s + self.per_gpu_s * number)

    @property
    def path(self) -> str:
        """Where its function is, as `module:function`."""
        return f"topocheck.probes.{self.function}"

    def load(self) -> Callable[[Host], Any]:
        """Return the probe's function."""
        module, _, function = self.path.partition(":")
        found: Callable[[Host], Any] = getattr(importlib.import_module(module), function)
        return found

    def read(self, host: Host) -> Any:
        """Run the probe."""
        return self.load()(host)


PROBES = (
    Probe(name="pci", function="pci.sysfs:read", deadline_s=5.0),
    Probe(name="numa", function="numa:read"),
    Probe(name="system", function="system:read"),
    # Apart from the other files: loading psutil takes as long as all of them.
    Probe(name="net", function="net:read", group="net"),
    Probe(name="limits", function="limits:read"),
    Probe(name="settings", function="settings:read"),
    Probe(name="software", function="software:read"),
    Probe(name="nvml", function="nvml:read", group="nvml", deadline_s=10.0, per_gpu_s=NVML_PER_GPU_S),
    Probe(
        name="cuda",
        function="cuda:read",
        group="cuda",
        deadline_s=10.0,
        per_gpu_s=NVML_PER_GPU_S,
        asks="cuda",
        unasked="not asked: no RDMA NIC here, and CUDA_VISIBLE_DEVICES is not set",
    ),
    Probe(name="services", function="system:read_services", group="commands", deadline_s=4.0),
    Probe(name="programs", function="software:read_commands", group="commands", deadline_s=4.0),
)
OPTIONAL_PROBES = (
    Probe(name="smi_topo", function="smi.topo:read", group="commands", deadline_s=20.0, per_gpu_s=NVML_PER_GPU_S),
)
PROBE_NAMES = tuple(p.name for p in (*PROBES, *OPTIONAL_PROBES))
