"""Runs cases: forks a process for each from one that has loaded everything, under limits.

Started as `python -P -m tests.fuzz.server IN OUT FOLDER`, with two descriptors of pipes that carry frames.
"""

from __future__ import annotations

import contextlib
import encodings
import faulthandler
import gc
import importlib
import io
import os
import pkgutil
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec

from tests.fuzz.case import Case, Outcome, Request

MEMORY_BYTES = 1 << 30
"""What a run may take beyond what the process began with."""
OUTPUT_BYTES = 4 << 20
"""What is kept of an output; more is cut."""
FILE_BYTES = 256 << 20
CPU_S = 60
NOBODY = 65534
WHOLE = ("topocheck", "typer", "rich", "jinja2")
"""Packages of which every module is loaded before the server is nobody, who may not be able to read them."""
LATE = (
    "tomllib", "prometheus_client", "junitparser", "psutil", "uuid",
    "difflib", "zoneinfo", "concurrent.futures.process", "multiprocessing.pool", "xml.etree.ElementTree",
    "ipaddress", "csv", "statistics",
    "lzma", "bz2", "html", "textwrap", "ctypes.util", "queue", "unicodedata", "stringprep", "getpass", "pwd", "grp",
    "traceback",
)  # fmt: skip
"""Further modules that commands import only when they need them."""
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", "TZ": "UTC"}
_FRAME = struct.Struct("<I")


def send(stream: BinaryIO, data: bytes) -> None:
    """Write one frame."""
    stream.write(_FRAME.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> bytes:
    """Return the next frame.

    Raises:
        EOFError: there is none.
    """
    head = stream.read(_FRAME.size)
    if len(head) < _FRAME.size:
        raise EOFError
    data = stream.read(_FRAME.unpack(head)[0])
    if len(data) < _FRAME.unpack(head)[0]:
        raise EOFError
    return data


def main(argv: list[str]) -> None:
    """Serve until the other end is closed."""
    source, sink = os.fdopen(int(argv[0]), "rb"), os.fdopen(int(argv[1]), "wb")
    folder = Path(argv[2])
    _preload()
    _drop_root(folder)
    decode = msgspec.msgpack.Decoder(Request).decode
    while True:
        try:
            request = decode(receive(source))
        except EOFError:
            return
        send(sink, msgspec.msgpack.encode(run(request.case, folder, request.wall_s)))


def _drop_root(folder: Path) -> None:
    """Be nobody: hostile paths lead to devices and files of this machine."""
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _preload() -> None:
    """Load every module of topocheck, and what its commands import when they need it."""
    names = [f"encodings.{m.name}" for m in pkgutil.iter_modules(encodings.__path__)]
    for whole in WHOLE:
        names += (m.name for m in pkgutil.walk_packages(importlib.import_module(whole).__path__, f"{whole}."))
    for name in (*LATE, *names):
        if not name.endswith("__main__"):
            with contextlib.suppress(ImportError, AssertionError):  # an optional dependency; another platform's
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def run(case: Case, folder: Path, wall_s: float) -> Outcome:
    """Run a case in a process of its own below `folder`, which is empty before and after."""
    work = folder / "work"
    _lay_out(case, work)
    streams = [os.memfd_create(name) for name in ("in", "out", "err", "told")]
    os.write(streams[0], case.stdin)
    os.lseek(streams[0], 0, os.SEEK_SET)
    resident = _status("VmRSS")
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(case, work, streams)
    outcome = _wait(pid, wall_s)
    outcome.wall_s = time.monotonic() - began
    outcome.grown_bytes -= resident
    outcome.out, outcome.err, told = (_content(fd) for fd in streams[1:])
    if told:
        outcome.error, outcome.trace = msgspec.json.decode(told, type=tuple[str, str])
    outcome.written = _written(case, work)
    for fd in streams:
        os.close(fd)
    _remove(work)
    return outcome


def _lay_out(case: Case, work: Path) -> None:
    work.mkdir()
    for name, data in case.files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for name, kind in case.odd.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path.name)
        elif kind == "dangling":
            path.symlink_to("nowhere")
        else:
            path.write_bytes(b"")
            path.chmod(0)


def _remove(work: Path) -> None:
    with contextlib.suppress(RecursionError):
        shutil.rmtree(work, ignore_errors=True)
    if work.exists():  # a folder that was made unreadable, a file that a process still makes, or very many levels
        for entry in _entries(work):
            if entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # below so many levels that the path is too long
                    os.chmod(entry.path, 0o700)
        subprocess.run(["rm", "-rf", "--", work], check=True)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all that is below a folder; os.walk calls itself, and Python goes no deeper than a thousand levels."""
    todo = [str(folder)]
    while todo:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as inside:
            for entry in inside:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)


def _written(case: Case, work: Path) -> dict[str, bytes]:
    """Return the files that were not there before, or hold something else now."""
    out = {}
    for entry in _entries(work):
        short = os.path.relpath(entry.path, work)
        if not entry.is_file(follow_symlinks=False) or short in case.odd:
            continue
        with open(entry.path, "rb") as f:
            data = f.read(OUTPUT_BYTES)
        if case.files.get(short, b"")[:OUTPUT_BYTES] != data or short not in case.files:
            out[short.encode("utf-8", "backslashreplace").decode()] = data
    return out


def _content(fd: int) -> bytes:
    return os.pread(fd, OUTPUT_BYTES, 0)


def _status(field: str) -> int:
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(field + ":"))


def _wait(pid: int, wall_s: float) -> Outcome:
    """Wait for the process; end it, and all of its session, when its time is up."""
    pidfd = os.pidfd_open(pid)
    hung = not select.select([pidfd], [], [], wall_s)[0]
    if hung:
        os.kill(pid, signal.SIGUSR1)  # faulthandler writes where it is
        select.select([pidfd], [], [], 0.3)
        os.kill(pid, signal.SIGKILL)
    os.close(pidfd)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return Outcome(
        code=os.WEXITSTATUS(status) if os.WIFEXITED(status) and not hung else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) and not hung else 0,
        cpu_s=usage.ru_utime + usage.ru_stime,
        grown_bytes=usage.ru_maxrss << 10,
        hung=hung,
    )


def _child(case: Case, work: Path, streams: list[int]) -> NoReturn:
    code = 70
    try:
        os.setsid()
        os.chdir(work)
        for number, fd in enumerate(streams[:3]):
            os.dup2(fd, number)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        _limit()
        os.environ.clear()
        os.environb.update({os.fsencode(k): os.fsencode(v) for k, v in ENVIRONMENT.items()})
        os.environb.update({os.fsencode(k): v for k, v in case.env.items()})
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
        code = _enter(case, streams[3])
    except BaseException:  # noqa: BLE001 - no process of ours goes on from here
        traceback.print_exc()
    finally:
        os._exit(code)


def _limit() -> None:
    most = _status("VmSize") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _enter(case: Case, told: int) -> int:
    """Run the command as its script does; say on `told` what exception left it."""
    code = 0
    try:
        if case.call:
            module, function = case.call.split(":")
            getattr(importlib.import_module(module), function)(case)
        else:
            from topocheck.cli.main import main as topocheck

            sys.argv = ["topocheck", *case.words]
            topocheck()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except BaseException as e:  # noqa: BLE001 - it is what is looked for
        os.write(told, msgspec.json.encode((_place(e), traceback.format_exc(limit=-12)[-6000:])))
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, io.UnsupportedOperation):
            continue
    return code & 0xFF


def _place(error: BaseException) -> str:
    """Return `type at file:function` of the last line of ours that the exception passed."""
    place = "?"
    for frame in traceback.extract_tb(error.__traceback__):
        if "/topocheck/" in frame.filename:
            place = frame.filename.rpartition("/topocheck/")[2] + ":" + frame.name
    return f"{type(error).__name__} at {place}"


if __name__ == "__main__":
    main(sys.argv[1:])
