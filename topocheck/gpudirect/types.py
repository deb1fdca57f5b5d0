"""Verdicts of GPUDirect P2P and RDMA: what was found, and the sentences that say so."""

from __future__ import annotations

import enum
import functools
from typing import Literal

import msgspec

from topocheck.model.base import Evidence, ReasonStep, Verdict
from topocheck.model.pci import PciDevice


class IommuMode(enum.StrEnum):
    """How an IOMMU treats the DMA of some devices."""

    OFF = "off"
    IDENTITY = "identity"
    TRANSLATED = "translated"
    UNKNOWN = "unknown"


class Iommu(msgspec.Struct, frozen=True):
    """The mode, and what says so."""

    mode: IommuMode
    evidence: tuple[Evidence, ...]


class Acs(msgspec.Struct, frozen=True):
    """Ports on the path of a pair: those that redirect, and those whose ACS word could not be read."""

    redirecting: tuple[PciDevice, ...]
    unread: tuple[PciDevice, ...]


class PciePath(msgspec.Struct, frozen=True):
    """What peer traffic of a pair passes by PCIe on bare metal."""

    acs: Acs
    iommu: Iommu


class PeerMemoryState(enum.StrEnum):
    """What became of the peer-memory module (nvidia_peermem)."""

    NOT_LOADED = "not_loaded"
    NOT_REGISTERED = "not_registered"
    REGISTERED = "registered"
    UNKNOWN = "unknown"


class PeerMemory(msgspec.Struct, frozen=True):
    """The state of the peer-memory module, and what says so."""

    state: PeerMemoryState
    step: ReasonStep


Link = Literal["nvlink", "pcie", "none", "unknown"]
"""What a pair of GPUs copies over."""


class P2pVerdict(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename={"from_": "from"}):
    """GPUDirect P2P of one ordered GPU pair.

    Attributes:
        pcie: what its traffic passes; None where it goes by NVLink, and in a guest, where that is the host's.
    """

    from_: str
    to: str
    from_label: str
    to_label: str
    verdict: Verdict
    link: Link
    reasons: tuple[ReasonStep, ...] = ()
    pcie: PciePath | None = None


class RdmaVerdict(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """GPUDirect RDMA of one GPU-NIC pair.

    Attributes:
        peermem, dma_buf: the verdicts of the two mechanisms, of which one is enough.
        common: the reasons that hold for both: the GPU, the port, the path.
        registration: those of the peer-memory module and of DMA-BUF, in this order; none for a GPU that is not driven.
        pcie: what its traffic passes; None where it goes by C2C, and in a guest, where that is the host's.
        peer_memory: the module; None for a GPU that is not driven.
    """

    from_: str
    to: str
    from_label: str
    to_label: str
    verdict: Verdict
    peermem: Verdict
    dma_buf: Verdict
    common: tuple[ReasonStep, ...] = ()
    registration: tuple[ReasonStep, ...] = ()
    pcie: PciePath | None = None
    peer_memory: PeerMemory | None = None

    @property
    def reasons(self) -> tuple[ReasonStep, ...]:
        """The whole chain of reasons."""
        return self.common + self.registration


class GpuDirect(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All verdicts of one node."""

    p2p: tuple[P2pVerdict, ...] = ()
    rdma: tuple[RdmaVerdict, ...] = ()

    @functools.cached_property
    def of_gpus(self) -> dict[tuple[str, str], P2pVerdict]:
        """The verdict of each ordered pair of GPUs, by address."""
        return {(v.from_, v.to): v for v in self.p2p}

    @functools.cached_property
    def of_nics(self) -> dict[tuple[str, str], RdmaVerdict]:
        """The verdict of each pair, by the GPU's address and the NIC's label."""
        return {(v.from_, v.to_label): v for v in self.rdma}
