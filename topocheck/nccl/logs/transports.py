"""The words by which a log names a transport, taken apart."""

from __future__ import annotations

import re

import msgspec

_NET = re.compile(r"(?:\[(?:send|receive)\] )?NET/([^/]+)/(-?[0-9]{1,9})(?:\(([0-9]{1,9})\))?(.*)")
_INDIRECT = re.compile(r"P2P/indirect/([0-9]{1,9})\[")


class LoggedTransport(msgspec.Struct, frozen=True, kw_only=True):
    """A transport as the log words it, taken apart."""

    family: str
    text: str
    dev: int | None = None
    proxy_rank: int | None = None
    gdr: bool = False
    through: int | None = None


def take_apart(text: str) -> LoggedTransport:
    """Return what a transport text of any version says; `family` is P2P/CUMEM, P2P/IPC, SHM, NET..."""
    bare = re.sub(r"^(send|receive) ", "", text)
    if m := _NET.match(bare):
        return LoggedTransport(
            family="NET",
            text=text,
            dev=int(m[2]),
            proxy_rank=int(m[3]) if m[3] else None,
            gdr="/GDRDMA" in m[4],
        )
    if bare.startswith("SHM") or bare == "direct shared memory":
        return LoggedTransport(family="SHM", text=text)
    if m := _INDIRECT.match(bare):
        return LoggedTransport(family="P2P/indirect", text=text, through=int(m[1]))
    if bare.startswith("P2P/"):
        kind = bare.split("/")[1]
        return LoggedTransport(family=f"P2P/{kind}", text=text)
    return LoggedTransport(family=bare.split("/")[0], text=text)
