"""Verdicts of the two GPUDirect roads."""

from __future__ import annotations

import msgspec

from topocheck.model.base import ReasonStep, Verdict


class P2pVerdict(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """GPUDirect P2P of one ordered GPU pair. `road` is nvlink, pcie, none or unknown."""

    from_: str
    to: str
    from_label: str
    to_label: str
    verdict: Verdict
    road: str
    reasons: tuple[ReasonStep, ...] = ()


class RdmaVerdict(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """GPUDirect RDMA of one GPU-NIC pair; `peermem` and `dma_buf` are the verdicts of the two roads."""

    from_: str
    to: str
    from_label: str
    to_label: str
    verdict: Verdict
    peermem: Verdict
    dma_buf: Verdict
    reasons: tuple[ReasonStep, ...] = ()


class GpuDirect(msgspec.Struct, frozen=True, kw_only=True):
    """All verdicts of one node."""

    p2p: tuple[P2pVerdict, ...] = ()
    rdma: tuple[RdmaVerdict, ...] = ()
