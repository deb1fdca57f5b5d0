"""All facts of one node."""

from __future__ import annotations

import msgspec

from topocheck.model.base import ABSENT, Missing, ProbeStatus
from topocheck.model.gpu import CudaFacts, NvmlFacts
from topocheck.model.net import NetFacts
from topocheck.model.pci import PciDevice
from topocheck.model.smi import SmiFacts
from topocheck.model.system import Limits, NumaFacts, SettingFacts, SoftwareFacts, SystemFacts


class PciFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All PCI functions, sorted by address (domain, bus, device, function as numbers)."""

    devices: tuple[PciDevice, ...] | Missing = ABSENT


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one node, as one run of all probes gathered them. `taken_at` is RFC 3339, UTC."""

    source: str
    taken_at: str = ""
    pci: PciFacts = msgspec.field(default_factory=PciFacts)
    nvml: NvmlFacts = msgspec.field(default_factory=NvmlFacts)
    cuda: CudaFacts = msgspec.field(default_factory=CudaFacts)
    net: NetFacts = msgspec.field(default_factory=NetFacts)
    numa: NumaFacts = msgspec.field(default_factory=NumaFacts)
    system: SystemFacts = msgspec.field(default_factory=SystemFacts)
    limits: Limits = msgspec.field(default_factory=Limits)
    settings: SettingFacts = msgspec.field(default_factory=SettingFacts)
    software: SoftwareFacts = msgspec.field(default_factory=SoftwareFacts)
    smi_topo: SmiFacts = msgspec.field(default_factory=SmiFacts)
    """What nvidia-smi printed, where the run was asked for a cross-check."""
    probes: tuple[ProbeStatus, ...] = ()
