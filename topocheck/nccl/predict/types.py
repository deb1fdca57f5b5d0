"""What NCCL will do, pair by pair, and what that is worked out from."""

from __future__ import annotations

from typing import Literal

import msgspec

from topocheck.model.base import ABSENT, Missing, ReasonStep
from topocheck.model.system import Setting
from topocheck.nccl.topofile.xml import Element

TransportKind = Literal[
    "P2P/CUMEM", "P2P/IPC", "P2P/direct pointer", "P2P/indirect", "P2P/MNNVL", "SHM", "NET", "other"
]
"""Kinds of transports, whatever the versions word them; `other` is one that a log names and the rules do not know."""
P2P_KINDS: frozenset[TransportKind] = frozenset(
    ("P2P/CUMEM", "P2P/IPC", "P2P/direct pointer", "P2P/indirect", "P2P/MNNVL")
)


class Transport(msgspec.Struct, frozen=True):
    """A transport: its kind, and the version's words for it (`P2P/CUMEM/read`, `SHM/direct/direct`)."""

    kind: TransportKind
    text: str


class NcclPair(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename={"from_": "from"}):
    """NCCL's view of one pair, with the chain of rules that led there.

    `nccl_class` is NCCL's own path class (NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, NET); `transport` is
    what it will choose (`P2P/CUMEM`, `P2P/IPC`, `SHM`, `NET/GDRDMA`, `NET`, ...).
    """

    from_: str
    to: str
    from_label: str
    to_label: str
    nccl_class: str | Missing = ABSENT
    transport: str | Missing = ABSENT
    reasons: tuple[ReasonStep, ...] = ()


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a job.

    Attributes:
        host: name of its HostInput.
        gpu: PCI address of its GPU.
        process: mark of its process; ranks with the same mark on a host share one. Empty: a process of its own.
        container: mark of its container; ranks with different marks do not share /dev/shm.
        visible: PCI addresses of the GPUs its process sees; None for all.
    """

    rank: int
    host: str
    gpu: str
    process: str = ""
    container: str = ""
    visible: tuple[str, ...] | None = None


class HostInput(msgspec.Struct, frozen=True, kw_only=True):
    """What the prediction knows of a host.

    Attributes:
        topology: its topology XML, `<system>`.
        settings: NCCL settings in force there.
        p2p_status: (from, to) addresses -> NVML's P2P status (read, write) in nvidia-smi's codes (OK, CNS, ...).
        peer_access: (from, to) addresses -> what cuDeviceCanAccessPeer says.
        assume: what NVML and CUDA did not say counts as yes (a topology file alone, without its machine).
        cumem: whether driver and GPUs offer CUDA's virtual memory management.
        legacy_ipc: whether CUDA's older memory handles work; not on WSL.
        multicast: whether the driver offers multicast objects.
        fabric: address -> (state, cluster UUID, clique) as NVML says.
        imex: whether IMEX channels are there.
        fatal: why its topology file or its network ends NCCL's init; empty where neither does.
        left_out: addresses of the GPUs that no job can use -> why.
        notes: what else must be said of it.
    """

    name: str
    topology: Element
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    p2p_status: dict[tuple[str, str], tuple[str, str]] = msgspec.field(default_factory=dict)
    peer_access: dict[tuple[str, str], bool] = msgspec.field(default_factory=dict)
    assume: bool = False
    cumem: bool | Missing = ABSENT
    legacy_ipc: bool = True
    multicast: bool | Missing = ABSENT
    fabric: dict[str, tuple[str, str, int]] = msgspec.field(default_factory=dict)
    imex: bool | Missing = ABSENT
    fatal: str = ""
    left_out: dict[str, str] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()


class RankPair(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What NCCL does between two ranks, in one direction.

    Attributes:
        path: NCCL's path type between the GPUs, before its tests re-route it; NET between hosts.
        routed: the type after them, as its log shows it.
        gb_s: bandwidth NCCL gives to that path; over NET the lower of the two ways to the NICs, 0 without a NIC.
        transport: as the log words it (`P2P/CUMEM`, `SHM/direct/direct`, `NET/GDRDMA`); Missing where a fact it
            hangs on is not known. `transport_kind` is its kind, None where it is Missing.
        nic_send, nic_receive: names of the NICs on either side, where NET is used.
        gdr_send, gdr_receive: whether GPUDirect RDMA is used on either side.
        proxy_rank: rank that sends for this one (PXN).
        through: rank that an indirect path goes through.
    """

    from_rank: int
    to_rank: int
    path: str
    routed: str
    gb_s: float
    transport: str | Missing
    transport_kind: TransportKind | None = None
    nic_send: str = ""
    nic_receive: str = ""
    gdr_send: bool = False
    gdr_receive: bool = False
    proxy_rank: int | None = None
    through: int | None = None
    reasons: tuple[ReasonStep, ...] = ()


class NicPair(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU and a NIC: path, and whether GPUDirect RDMA is used for sending and receiving."""

    rank: int
    nic: str
    path: str
    gb_s: float
    gdr_send: bool | Missing
    gdr_receive: bool | Missing
    proxy_rank: int | None = None
    local: bool = False
    reasons: tuple[ReasonStep, ...] = ()


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """An upper bound of an AllReduce's bus bandwidth, and the link that sets it.

    `busbw_gb_s` uses NCCL's own constants, which lie below the wire rate; `limited_by` names the link.
    """

    algorithm: str
    busbw_gb_s: float
    limited_by: str
    formula: str


class NcclView(msgspec.Struct, frozen=True, kw_only=True):
    """NCCL's version, the settings in force, and its decision per pair.

    Attributes:
        version: that a job here would load; Missing where none was found.
        predicted_for: the version the pairs are worked out for (the newest known where none is installed).
        fatal: why its init would end with all GPUs of the node in one job; empty where it would not.
        nvls: whether it would reduce in the NVSwitch, and `nvls_reason` the rule.
        bounds: upper bounds of an AllReduce over all GPUs.
        network: what it goes by between nodes: `IB` (InfiniBand and RoCE), `Socket`, or a plugin.
    """

    version: str | Missing = ABSENT
    network: str | Missing = ABSENT
    settings: tuple[Setting, ...] = ()
    pairs: tuple[NcclPair, ...] = ()
    predicted_for: str = ""
    fatal: str = ""
    nvls: bool | Missing = ABSENT
    nvls_reason: str = ""
    bounds: tuple[Bound, ...] = ()


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """All that NCCL will do. `fatal` says why its init would end; empty where it would not.

    `version_note` says what the version has against it: none installed here, or not known to the rules. `unplaced` are
    the ranks whose GPU is not in the topology, so that nothing is known of the job as a whole. `settings` are those in
    force that this version reads, by name, without those of its log; several values where hosts differ.
    """

    version: str
    version_note: str = ""
    ranks: tuple[RankSpec, ...]
    pairs: tuple[RankPair, ...]
    nics: tuple[NicPair, ...] = ()
    nvls: bool | Missing = False
    nvls_reason: str = ""
    bounds: tuple[Bound, ...] = ()
    fatal: str = ""
    notes: tuple[str, ...] = ()
    unplaced: tuple[int, ...] = ()
    settings: dict[str, str] = {}

    def pair(self, from_rank: int, to_rank: int) -> RankPair:
        """Return the pair of two ranks; StopIteration where there is none."""
        return next(p for p in self.pairs if (p.from_rank, p.to_rank) == (from_rank, to_rank))


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a communication library fits this machine: `fits` is best, yes, no or unknown; `reason` says why."""

    name: str
    fits: str
    reason: str
