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


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A question of a probe whose answer may exist and did not come (`topocheck.model.base.is_lost`).

    `question` is written as in a recording (`read:/proc/modules`); `probe:NAME` stands for all of a probe's.
    """

    probe: str
    question: str
    why: Missing

    @property
    def shown(self) -> str:
        """The source as people know it: a path, `NVML DeviceGetName(0)`, a command line, `environment`."""
        kind, _, rest = self.question.partition(":")
        name, *args = rest.split("|")
        if kind in _CALLS:
            return f"{_CALLS[kind]} {name}" + (f"({', '.join(args)})" if args else "")
        if kind == "run":
            return " ".join((name, *args))
        if name.startswith("/"):
            return name
        return f"{_SOURCES.get(kind, kind)} {rest}".strip()

    @property
    def why_text(self) -> str:
        """Why it did not come, without the question said again."""
        return self.why.reason.value if self.why.detail in ("", self.question) else str(self.why)


_CALLS = {"nvml": "NVML", "cuda": "CUDA"}
_SOURCES = {"environ": "environment", "process": "this process", "kernel_options": "options of the kernel",
            "now": "clock"}  # fmt: skip


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that facts were read from, and what was recognised in it."""

    name: str
    formats: tuple[str, ...] = ()


class SourcesDiffer(msgspec.Struct, frozen=True, kw_only=True):
    """Two texts that answer one question differently; places are `file:line`, and `first` is what the facts hold."""

    question: str
    first: str
    first_at: str
    other: str
    other_at: str


class MadeFrom(msgspec.Struct, frozen=True, kw_only=True):
    """The texts that a recording was made from (readers/).

    Attributes:
        files: in the order in which they were given.
        unseen: what none of them tells, in words.
        differ: what two of them say differently.
        places: question -> `file:line` that answered it.
        selection: they list some of the machine's PCI functions, and not all, or none.
    """

    files: tuple[SourceFile, ...] = ()
    unseen: tuple[str, ...] = ()
    differ: tuple[SourcesDiffer, ...] = ()
    places: dict[str, str] = msgspec.field(default_factory=dict)
    selection: bool = False


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
    lost: tuple[Lost, ...] = ()
    made_from: MadeFrom | None = None
    """The texts that the facts were read from, where they are not those of a machine or a snapshot of one."""

    def is_lost(self, question: str) -> bool:
        """Tell whether the answer to a question that begins so was lost."""
        return any(x.question.startswith(question) for x in self.lost)

    @property
    def lists_modules(self) -> bool:
        """Whether a kernel module that is not named is not loaded: there is a list, and a text's is whole."""
        if not self.system.modules and not self.system.loaded_modules:
            return False
        return self.made_from is None or not self.is_lost("lines:/proc/modules")
