"""The child process in which an engine runs. Reads one job from its standard input, writes events to a pipe.

An event is one JSON object on one line: `ready`, `at` (the call that comes next), `row` (a row begins), `measured`,
`unsupported`, `failed`, `done`. Only this pipe is read by the parent; what libraries print goes to a file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
from collections.abc import Callable
from importlib import import_module

import msgspec

from topocheck.bandwidth.cases import CopyRow
from topocheck.process.parent import EventPipe, die_with_parent
from topocheck.tests_live.copies.measure import Engine, UnsupportedRowError, run_row


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is reported: which engine, for which devices, and the rows."""

    group: str
    addresses: tuple[str, ...] = ()
    rows: tuple[CopyRow, ...] = ()


EngineMaker = Callable[[str], Engine]


def make_engine(group: str) -> Engine:
    """Return the engine of a group."""
    if group in ("driver", "staged"):
        from topocheck.tests_live.copies.driver import DriverEngine

        return DriverEngine(peers=group == "driver")
    if group == "torch":
        from topocheck.tests_live.copies.torch import TorchEngine

        return TorchEngine()
    from topocheck.tests_live.copies.host import HostEngine

    return HostEngine()


def work(job: Job, pipe: EventPipe, make: EngineMaker = make_engine) -> None:
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
    """`python -m topocheck.tests_live.copies.child FD`: the job on standard input, events to the descriptor."""
    die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = EventPipe(int(sys.argv[1]))
    if len(sys.argv) > 2 and sys.argv[2] in ("driver", "staged"):
        # Done while the parent still looks at the machine; whatever goes wrong is reported when the job comes.
        with contextlib.suppress(Exception):
            import_module("topocheck.tests_live.copies.driver")
            import_module("cuda.bindings.driver").cuInit(0)
    text = sys.stdin.buffer.readline()
    if not text:
        return
    work(msgspec.json.decode(text, type=Job), pipe, make)


if __name__ == "__main__":
    main()
