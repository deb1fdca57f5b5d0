"""NCCL's rules by version, one table each. A row holds from its version on, until a newer row takes its place."""

import functools
from collections.abc import Iterable
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta

from topocheck.knowledge.nccl import Version
from topocheck.knowledge.tables import BY_SPACES, PcieSpeed, Release, Source, SysFiles, Table, YesNo

PathWord = Literal["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS", "SOC", "NODE"]
"""Path types of all versions (src/graph/topo.h); SOC and NODE are those of versions before 2.6."""

Switch = Literal[
    "c2c_links",
    "cpuid_family",
    "fuses_pex890xx",
    "nic_user_is_nearest",
    "one_host_drops_nics",
    "first_nic_by_sharers",
    "path_type_first",
    "c2c",
    "cumem",
    "dmabuf",
    "gdr_read_ampere",
    "graph_dev_hex",
    "graph_rank",
    "joins_ports",
    "mnnvl",
    "net_beats_p2p",
    "nvb",
    "nvlink_always",
    "nvls",
    "nvls_across",
    "nvls_mnnvl",
    "nvml_status",
    "p2c",
    "p2c_local_only",
    "p2p_disable_wins",
    "pxn",
    "pxn_higher_bw",
    "pxn_needs_gdr",
    "ranks_share_gpu",
    "strict_lists",
]
"""Rules that hold or do not."""

Number = Literal["intel_p2p_overhead", "max_subs", "nvls_min_gpus"]
"""Rules whose value is a number."""

Word = Literal["gpu_link", "pxn_avoids", "shm_text"]
"""Rules whose value is a word."""

Arch = Literal["*", "x86_64", "arm64", "ppc64"]
CpuVendor = Literal["*", "GenuineIntel", "AuthenticAMD", "Zhaoxin"]
ModelClass = Literal["*", "BDW", "SKL", "SRP", "ERP", "YONGFENG", "ZEN12", "ZEN34", "ZEN5"]
GbS = Annotated[float, Meta(gt=0, le=5000)]


class Rule(msgspec.Struct, frozen=True):
    """Whether a rule holds from a version on."""

    rule: Switch
    from_version: Release
    holds: YesNo
    meaning: str
    source: Source


class RuleNumber(msgspec.Struct, frozen=True):
    """A number that NCCL goes by from a version on."""

    rule: Number
    from_version: Release
    value: Annotated[float, Meta(gt=0, le=10000)]
    meaning: str
    source: Source


class RuleWord(msgspec.Struct, frozen=True):
    """A word that NCCL goes by, or writes, from a version on."""

    rule: Word
    from_version: Release
    value: Literal["maximum", "current", "PXB", "PXN", "SHM", "SHM/direct", "SHM/direct/direct"]
    meaning: str
    source: Source


class PathOrder(msgspec.Struct, frozen=True):
    """The path types of a version, closest first."""

    from_version: Release
    order: Annotated[tuple[PathWord, ...], BY_SPACES]
    source: Source


class P2pLevel(msgspec.Struct, frozen=True):
    """The farthest path type with which P2P is used by default, by what the host is; `*` fits all.

    `cpus` is the number of NUMA nodes in the tree, `max_gpus` the most GPUs that the row is for.
    """

    from_version: Release
    arch: Arch
    vendor: CpuVendor
    model_class: ModelClass
    cpus: Annotated[int, Meta(ge=1, le=1024)] | Literal["*"]
    max_gpus: Annotated[int, Meta(ge=1, le=1024)] | Literal["*"]
    level: PathWord
    source: Source


class GdrLevel(msgspec.Struct, frozen=True):
    """The farthest path type with which GPUDirect RDMA is used by default; `c2c_off` with NCCL_NET_GDR_C2C=0.

    `c2c_exception`: the C2C rule lets P2C pairs in whatever the level.
    """

    from_version: Release
    level: PathWord
    c2c_off: PathWord
    c2c_exception: YesNo
    source: Source


class PeermemFiles(msgspec.Struct, frozen=True):
    """The files of which one must be readable for the peer-memory module to count as loaded."""

    from_version: Release
    files: SysFiles
    source: Source


class CpuModel(msgspec.Struct, frozen=True):
    """A class of CPU models: from the model number on, of the CPUID family or of all (`*`)."""

    vendor: CpuVendor
    family: Annotated[int, Meta(ge=0, le=255)] | Literal["*"]
    model_from: Annotated[int, Meta(ge=0, le=255)]
    model_class: ModelClass
    from_version: Release
    source: Source


class NvlinkRate(msgspec.Struct, frozen=True, kw_only=True):
    """GB/s of one NVLink, from a compute capability on (90 for 9.0); None for all below."""

    compute_capability: Annotated[int, Meta(ge=10, le=999)] | None = None
    from_version: Release
    gb_s: GbS
    source: Source


class PcieRate(msgspec.Struct, frozen=True, kw_only=True):
    """GB/s of one PCIe lane whose speed text begins with `speed`; None for any other text."""

    speed: PcieSpeed | None = None
    from_version: Release
    gb_s: GbS
    source: Source


class CpuRate(msgspec.Struct, frozen=True):
    """GB/s between two CPU nodes of a kind; `*` fits all."""

    arch: Arch
    vendor: CpuVendor
    model_class: ModelClass
    from_version: Release
    gb_s: GbS
    source: Source


class OtherRate(msgspec.Struct, frozen=True):
    """GB/s within a device, between two partitions of a GPU, and of a NIC whose speed is not known."""

    what: Literal["local", "partition", "nic"]
    from_version: Release
    gb_s: GbS
    source: Source


_RULES = Table("nccl_rules", Rule, key=("rule", "from_version"))
_NUMBERS = Table("nccl_rule_numbers", RuleNumber, key=("rule", "from_version"))
_WORDS = Table("nccl_rule_words", RuleWord, key=("rule", "from_version"))
PATH_ORDERS = Table("nccl_path_orders", PathOrder, key=("from_version",))
P2P_LEVELS = Table(
    "nccl_p2p_levels", P2pLevel, key=("from_version", "arch", "vendor", "model_class", "cpus", "max_gpus")
)
GDR_LEVELS = Table("nccl_gdr_levels", GdrLevel, key=("from_version",))
PEERMEM_FILES = Table("nccl_peermem", PeermemFiles, key=("from_version",))
CPU_MODELS = Table("nccl_cpu_models", CpuModel, key=("vendor", "family", "model_from", "from_version"))
NVLINK_RATES = Table("nccl_nvlink_rates", NvlinkRate, key=("compute_capability", "from_version"))
PCIE_RATES = Table("nccl_pcie_rates", PcieRate, key=("speed", "from_version"))
CPU_RATES = Table("nccl_cpu_rates", CpuRate, key=("arch", "vendor", "model_class", "from_version"))
OTHER_RATES = Table("nccl_other_rates", OtherRate, key=("what", "from_version"))

OLDEST_RATES: Version = (2, 6, 0)
"""The first version whose bandwidths are known; an older one takes them too."""


class Versioned(Protocol):
    """A row that holds from a version on."""

    @property
    def from_version(self) -> Version:
        """The first version that the row is for."""


V = TypeVar("V", bound=Versioned)


def at_version(rows: Iterable[V], version: Version) -> tuple[V, ...]:
    """Return the rows whose `from_version` is the newest that is not above `version`, in their order."""
    fits = [r for r in rows if r.from_version <= version]
    newest = max((r.from_version for r in fits), default=None)
    return tuple(r for r in fits if r.from_version == newest)


@functools.cache
def has(name: Switch, version: Version) -> bool:
    """Tell whether a rule holds in a version."""
    return any(r.holds for r in at_version((r for r in _RULES.rows() if r.rule == name), version))


@functools.cache
def number(name: Number, version: Version, default: float) -> float:
    """Return the value of a rule in a version; the default before it existed."""
    found = at_version((r for r in _NUMBERS.rows() if r.rule == name), version)
    return found[0].value if found else default


@functools.cache
def word(name: Word, version: Version, default: str) -> str:
    """Return the value of a rule in a version; the default before it existed."""
    found = at_version((r for r in _WORDS.rows() if r.rule == name), version)
    return found[0].value if found else default


@functools.cache
def path_order(version: Version) -> tuple[PathWord, ...]:
    """Return the path types of a version, closest first; a version older than all takes the oldest order."""
    found = at_version(PATH_ORDERS.rows(), version) or PATH_ORDERS.rows()
    return found[0].order
