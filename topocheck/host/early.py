"""What a forked child does first, in as little as Python itself has loaded.

Starting NVML takes 0.1 s and more, about as long as loading this program: so a child that starts NVML is forked before
anything else is imported, and imports what it needs while the driver starts (`topocheck.asking.begin`).
"""

from __future__ import annotations

import _thread
import gc
import os
import sys

TYPE_CHECKING = False  # not from typing: loading it costs milliseconds before the driver is asked
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FORK_UNSAFE = ("torch", "pynvml", "cuda.bindings", "cupy")


def fork_is_safe() -> bool:
    """Tell whether this process has one thread and no library that does not survive a fork.

    A lock that another thread holds at the moment of the fork is held for ever in the child.
    """
    if not sys.executable:
        return True
    try:
        threads = len(os.listdir("/proc/self/task"))
    except OSError:  # no /proc here: threads that Python did not start cannot be seen
        import threading

        threads = threading.active_count()
    return threads == 1 and not any(m in sys.modules for m in _FORK_UNSAFE)


def piped(launch: Callable[[int], int]) -> tuple[int, int]:
    """Give `launch` the writing end of a new pipe; return the pid it returns and the reading end, not blocking.

    Raises:
        OSError: no pipe can be had, or what `launch` raises.
    """
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        os.set_blocking(ours, False)
        return launch(theirs), ours
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)


def fork(body: Callable[[int], None], pipe: int) -> int:
    """Fork a child that owns nothing of its parent but `pipe`, runs `body(pipe)` and ends; return its pid.

    Raises:
        OSError: no process can be had.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            gc.freeze()  # so that no file object of the parent is closed here under a number that is now ours
            _forget_handlers()
            detach([pipe])
            body(pipe)
            status = 0
        finally:
            os._exit(status)
    return pid


def _forget_handlers() -> None:
    """Undo what the parent did about signals; nothing, where it has not even loaded the module."""
    if (signal := sys.modules.get("signal")) is not None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


def start_nvml() -> None:
    """Load NVML, and start it in a thread: a later start finds it done, or waits for it.

    What goes wrong here is not told: the start that follows meets it again, as the answer to a question.
    """
    import ctypes

    try:
        # Loaded in this thread: two threads that import at once wait for each other at every file.
        start = ctypes.CDLL("libnvidia-ml.so.1").nvmlInitWithFlags
    except (OSError, AttributeError):
        return
    # Not by `threading`, whose import would delay the driver's start; nobody has to know of this thread.
    _thread.start_new_thread(start, (0,))


def _open_files() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # no /proc here
        return list(range(1024))


def detach(keep: Sequence[int]) -> None:
    """Let go of everything of the parent: its standard streams, its open files, its session."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for fd in _open_files():
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:  # not open: the descriptor that listed the folder
                continue
    try:
        os.setsid()
    except OSError:  # already leads a session
        return
