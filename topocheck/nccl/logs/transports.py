"""The words by which a log names a transport, taken apart."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from topocheck.nccl.predict.types import P2P_KINDS, TransportKind

_NET = re.compile(r"(?:\[(?:send|receive)\] )?NET/([^/]+)/(-?[0-9]{1,9})(?:\(([0-9]{1,9})\))?(.*)")
_SIDES: tuple[Literal["send", "receive"], ...] = ("send", "receive")
_INDIRECT = re.compile(r"P2P/indirect/([0-9]{1,9})\[")


class LoggedTransport(msgspec.Struct, frozen=True, kw_only=True):
    """A transport as the log words it, taken apart: of NET with the side that it is of, and the network's name."""

    kind: TransportKind
    text: str
    side: Literal["send", "receive"] | None = None
    network: str = ""
    dev: int | None = None
    proxy_rank: int | None = None
    gdr: bool = False
    through: int | None = None


def take_apart(text: str) -> LoggedTransport:
    """Return what a transport text of any version says."""
    bare = re.sub(r"^(send|receive) ", "", text)
    if m := _NET.match(bare):
        return LoggedTransport(
            kind="NET",
            text=text,
            side=next((side for side in _SIDES if text.startswith(side)), None),
            network=m[1],
            dev=int(m[2]),
            proxy_rank=int(m[3]) if m[3] else None,
            gdr="/GDRDMA" in m[4],
        )
    if bare.startswith("SHM") or bare == "direct shared memory":
        return LoggedTransport(kind="SHM", text=text)
    if m := _INDIRECT.match(bare):
        return LoggedTransport(kind="P2P/indirect", text=text, through=int(m[1]))
    begins = "/".join(bare.split("/")[:2])
    return LoggedTransport(kind=next((k for k in P2P_KINDS if k == begins), "other"), text=text)
