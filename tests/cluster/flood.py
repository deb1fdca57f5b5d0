"""A user of another host who writes whatever comes to mind to rank 0's port: `python flood.py HOST PORT FOLDER`.

Ends when FOLDER/over is there; FOLDER/calls has the number of connections so far.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
from pathlib import Path

HELD = 400


def pieces(own: bytes) -> list[bytes]:
    """What is sent, one after the other."""
    return [
        b"",
        os.urandom(300),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        (1 << 30).to_bytes(4, "big") + bytes(1000),
        b"\x3c\x85\xf7\xce" + bytes(100),
        len(own).to_bytes(4, "big") + own,
        (len(own).to_bytes(4, "big") + own) * 3,
        len(own).to_bytes(4, "big") + own[: len(own) // 2],
    ]


def main() -> None:
    host, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    sys.path.insert(0, sys.argv[4])
    from topocheck.tests_live.launch import frames

    own = frames.encode(
        frames.Hello(
            protocol=frames.PROTOCOL, version=sys.argv[5], job="", command="report --cluster", rank=1, size=2,
            instance=os.urandom(32), node="forged", nonce=os.urandom(32),
        )
    )  # fmt: skip
    held: list[socket.socket] = []
    for i, piece in enumerate(itertools.cycle(pieces(own))):
        if (folder / "over").exists():
            break
        with contextlib.suppress(OSError):
            s = socket.create_connection((host, port), timeout=2)
            held.append(s)
            s.settimeout(2)
            s.sendall(piece)
            if piece == len(own).to_bytes(4, "big") + own:
                # Then a proof that is none.
                s.recv(4096)
                s.sendall(frames.frame(frames.encode(frames.Proof(tag=bytes(32)))))
        while len(held) > HELD:
            held.pop(0).close()
        if i % 20 == 0:
            (folder / "calls.new").write_text(str(i))
            (folder / "calls.new").rename(folder / "calls")


if __name__ == "__main__":
    main()
