"""Probes and backends that hang, crash and misbehave; importable, so that a fresh interpreter can run them."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Callable
from typing import Any

import msgspec

from topocheck.host.base import Answer, Host, HostError
from topocheck.host.gather.worker import BackendSpec
from topocheck.model.base import Reason


class SickProbe(msgspec.Struct, frozen=True):
    name: str
    group: str
    deadline_s: float
    read: Callable[[Host], Any]
    asks: str = ""
    unasked: str = ""

    @property
    def path(self) -> str:
        return f"{self.read.__module__}:{self.read.__qualname__}"


class SickBackend(msgspec.Struct, frozen=True):
    """Answers NVML-like questions; hangs, crashes, exits or writes over its pipe at the keys named.

    With `bytes_each` every answer is that large. `nvml` questions about GPU `lost` never come back.
    """

    hang: tuple[str, ...] = ()
    crash: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    garbage: tuple[str, ...] = ()
    bytes_each: int = 0
    hang_gpu: int | None = None
    asked_log: str = ""

    def ask(self, kind: str, *args: str | int) -> Answer:
        key = f"{kind}:{'|'.join(map(str, args))}"
        if self.asked_log:
            with open(self.asked_log, "a") as file:
                file.write(key + "\n")
        if key in self.hang or (kind == "nvml" and len(args) > 1 and args[1] == self.hang_gpu):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(60)
        if key in self.crash:
            os.kill(os.getpid(), signal.SIGSEGV)
        if key in self.leave:
            os._exit(7)
        if key in self.garbage:
            write_garbage()
        if self.bytes_each:
            return bytes(self.bytes_each)
        if kind == "absent":
            raise HostError(Reason.ABSENT, "ENOENT")
        if kind == "denied":
            raise HostError(Reason.DENIED, "EACCES")
        if kind == "bug":
            raise KeyError("binding")
        return f"value of {key}"


def write_garbage() -> None:
    """Write what is no frame into the pipe to the parent, as a library may that has lost its mind."""
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b"\xff" * 64)


def sick_backend(**settings: Any) -> BackendSpec:
    return BackendSpec("tests.host.sick:SickBackend", settings)


CALLS = ("DeviceGetName", "DeviceGetUUID", "DeviceGetSerial")


def read_four_gpus(host: Host) -> list[dict[str, str]]:
    out = []
    for gpu in range(4):
        values = {}
        for call in CALLS:
            try:
                values[call] = host.nvml(call, gpu)
            except HostError as e:
                values[call] = str(e)
        out.append(values)
    return out


def read_letters(host: Host) -> list[str]:
    out = []
    for letter in "abc":
        try:
            out.append(host.psutil(letter))
        except HostError as e:
            out.append(str(e))
    return out


def read_bug(host: Host) -> None:
    host.psutil("before")
    raise ZeroDivisionError("a fault in the probe")


def read_stuck_between(host: Host) -> None:
    host.psutil("before")
    time.sleep(600)


def read_absent(host: Host) -> None:
    host._ask("absent", "x")


def read_denied(host: Host) -> None:
    host._ask("denied", "x")


def read_binding_bug(host: Host) -> None:
    host._ask("bug", "x")


def read_fifo(host: Host) -> list[str]:
    """Reads the files of the folder that the variable names; one of them is a FIFO."""
    folder = os.environ["TOPOCHECK_TEST_FOLDER"]
    out = []
    for name in host.listdir(folder):
        try:
            out.append(host.read_text(f"{folder}/{name}"))
        except HostError as e:
            out.append(e.reason.value)
    return out


def read_slow_program(host: Host) -> None:
    folder = os.environ["TOPOCHECK_TEST_FOLDER"]
    host.run(("sh", "-c", f"echo $$ > {folder}/pid; exec sleep 1000"), timeout_s=1000)
