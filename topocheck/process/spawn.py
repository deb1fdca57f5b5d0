"""Starting a program as a child of its own session that ends with this process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from topocheck.process.fork import one_thread
from topocheck.process.lifeline import VARIABLE, bind, bind_myself, named
from topocheck.process.parent import deathsig
from topocheck.process.python import not_started, python_argv

Stream = int | None


def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
    keep: Sequence[int] = (),
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a program that inherits the descriptors `keep`; return it and this end of its lifeline.

    The program, and all it starts in its process group, is killed when this end is closed. One of ours reads the
    number of its own end from the environment (`topocheck.process.parent`).

    Raises:
        OSError: it could not be started.
    """
    alone = one_thread()
    if not alone and argv[0] != sys.executable:
        argv = python_argv("topocheck.process.become", *argv)
    life, ours = os.pipe2(os.O_CLOEXEC)
    try:
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            pass_fds=(*keep, life),
            start_new_session=True,
            env=dict(environment) | {VARIABLE: named(life)},
            preexec_fn=_before_exec(life) if alone else None,
        )
    except BaseException as e:
        os.close(ours)
        os.close(life)
        if isinstance(e, OSError) and argv[0] == sys.executable:
            raise not_started(e, argv[0]) from None
        raise
    with contextlib.suppress(OSError):  # it has ended already
        bind(life, -process.pid)
    os.close(life)
    return process, ours


def _before_exec(life: int) -> Callable[[], None]:
    """Return what the new process does before it becomes the program.

    Not where this process has threads, of which one may hold a lock: then the program is one of ours, which binds
    itself as it starts.
    """
    ask = deathsig()  # for a program that closes what it inherits, and with it the lifeline

    def run() -> None:
        ask()
        bind_myself(life)  # ends this process where the parent is gone by now

    return run


def end(process: subprocess.Popen[bytes], lifeline: int, signals: Sequence[tuple[int, float]]) -> bool:
    """End a program and its process group by signals, each with its seconds of patience.

    Returns:
        False where it sleeps in the kernel and stays; nobody waits for it, and it is not waited for at exit.
    """
    for number, seconds in signals:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        if wait(process, seconds) is not None:
            break
    os.close(lifeline)  # with it goes whatever of its process group is left
    return process.poll() is not None


def wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return its exit status (negative: the signal that ended it), or None where it still runs after `seconds`."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(max(0.0, seconds))
    return None
