"""The child process in which an engine runs. Reads one job from its standard input, writes events to a pipe.

An event is one JSON object on one line: `ready`, `at` (the call that comes next), `row` (a row begins), `measured`,
`unsupported`, `failed`, `done`. Only this pipe is read by the parent; what libraries print goes to a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from topocheck.tests_live.measure import Engine, UnsupportedRowError, run_row
from topocheck.tests_live.rows import CopyRow

PR_SET_PDEATHSIG = 1


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told: which engine, for which devices, and the rows."""

    group: str
    addresses: tuple[str, ...] = ()
    rows: tuple[CopyRow, ...] = ()


EngineMaker = Callable[[str], Engine]


def make_engine(group: str) -> Engine:
    """Return the engine of a group."""
    if group in ("driver", "staged"):
        from topocheck.tests_live.engine_driver import DriverEngine

        return DriverEngine(peers=group == "driver")
    if group == "torch":
        from topocheck.tests_live.engine_torch import TorchEngine

        return TorchEngine()
    from topocheck.tests_live.engine_host import HostEngine

    return HostEngine()


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, however that comes about."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Pipe:
    """Writes events; a parent that is gone ends the child."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.row = ""

    def send(self, event: str, **fields: Any) -> None:
        """Write one event."""
        line = msgspec.json.encode({"event": event, "row": self.row} | fields) + b"\n"
        try:
            while line:
                line = line[os.write(self.fd, line) :]
        except BrokenPipeError:
            os._exit(1)

    def at(self, call: str) -> None:
        """Say which call comes next."""
        self.send("at", call=call)


def work(job: Job, pipe: Pipe, make: EngineMaker = make_engine) -> None:
    """Open the engine and run the rows; one bad row loses only itself."""
    try:
        engine = make(job.group)
        software = engine.open(job.addresses, pipe.at)
    except Exception as e:  # noqa: BLE001 - whatever an engine or a driver raises must reach the parent as words
        pipe.send("failed", reason=f"{type(e).__name__}: {e}", fatal=True)
        return
    pipe.send("ready", software=software)
    for row in job.rows:
        pipe.row = row.id
        pipe.send("row")
        try:
            pipe.send("measured", measurement=run_row(engine, row, pipe.at))
        except UnsupportedRowError as e:
            pipe.send("unsupported", reason=str(e))
        except Exception as e:  # noqa: BLE001 - see above
            pipe.send("failed", reason=f"{type(e).__name__}: {e}", fatal=False)
    # Nothing is given back by hand: the process ends, and with it all it holds on the host and the devices.
    pipe.row = ""
    pipe.send("done")


def main(make: EngineMaker = make_engine) -> None:
    """`python -m topocheck.tests_live.child FD`: the job on standard input, events to the descriptor."""
    die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = Pipe(int(sys.argv[1]))
    if len(sys.argv) > 2 and sys.argv[2] in ("driver", "staged"):
        # Done while the parent still looks at the machine; whatever goes wrong is told when the job comes.
        with contextlib.suppress(Exception):
            import_module("topocheck.tests_live.engine_driver")
            import_module("cuda.bindings.driver").cuInit(0)
    text = sys.stdin.buffer.readline()
    if not text:
        return
    work(msgspec.json.decode(text, type=Job), pipe, make)


if __name__ == "__main__":
    main()
