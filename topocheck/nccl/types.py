"""What NCCL will do, pair by pair."""

from __future__ import annotations

import msgspec

from topocheck.model.base import ABSENT, Missing, ReasonStep
from topocheck.model.system import Setting


class NcclPair(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
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
    why: tuple[ReasonStep, ...] = ()


class NcclView(msgspec.Struct, frozen=True, kw_only=True):
    """NCCL's version, the settings in force, and its decision per pair."""

    version: str | Missing = ABSENT
    settings: tuple[Setting, ...] = ()
    pairs: tuple[NcclPair, ...] = ()


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a communication library fits this machine: `fits` is best, yes, no or unknown; `why` in words."""

    name: str
    fits: str
    why: str
