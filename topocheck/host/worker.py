"""The child that runs the probes of one group and streams every question and answer to its parent.

The stream is length-prefixed msgpack: `["begin", probe]`, `["ask", key]`, `["answer", key, value]`,
`["error", key, reason, detail]`, `["end", probe, state, detail, ms]`, `["done"]`. Each question is announced before it
is asked, so the parent always knows what hung or crashed. The child owns no file of the parent but this pipe: a
child that nobody can kill holds nothing that anybody waits for.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from topocheck.host.base import Answer, Backend, Host, HostError, key
from topocheck.host.early import detach
from topocheck.host.plain import plain, plain_text
from topocheck.model.base import Reason

LENGTH = struct.Struct("<I")
PIPE_FD, JOB_FD = 3, 4


class Probe(Protocol):
    """What the gatherer needs of a probe.

    Attributes:
        name: unique name (`pci`).
        group: probes of one group share a child.
        deadline_s: after this long without being done, the question being asked counts as hung.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def group(self) -> str: ...  # noqa: D102
    @property
    def deadline_s(self) -> float: ...  # noqa: D102
    @property
    def read(self) -> Callable[[Host], Any]: ...  # noqa: D102


class Job(msgspec.Struct):
    """What one child is to do.

    Attributes:
        answers: what earlier children of this group were told; not asked again.
        given_up: subject (see `subjects`) -> the error that answers every question about it.
        left_s: what is left of the whole run's time. Some seconds later the kernel ends the child, even if the
            parent is gone.
    """

    probes: list[Probe]
    make_backend: Callable[[], Backend]
    answers: dict[str, Answer]
    given_up: dict[str, HostError]
    left_s: float

    def alarm(self) -> None:
        """Have the kernel end this process when the parent cannot be waiting any more."""
        signal.alarm(int(self.left_s) + 5)


_CALLS_ABOUT_PAIRS = ("DeviceGetP2PStatus", "DeviceGetTopologyCommonAncestor", "DeviceCanAccessPeer")


def subjects(question: str) -> tuple[str, ...]:
    """Return what a question is about, narrowest first: what hangs or crashes twice is not asked again.

    For NVML and CUDA the GPU that the first argument gives (both GPUs of a pair), then the library itself; for a
    command the program; for a file its folder.
    """
    kind, _, rest = question.partition(":")
    args = rest.split("|")
    if kind in ("nvml", "cuda"):
        devices = 2 if args[0] in _CALLS_ABOUT_PAIRS else 1
        return (*(f"{kind}|{a}" for a in args[1 : 1 + devices] if a.isdigit()), kind)
    if kind == "run":
        return (f"run|{args[1] if len(args) > 1 else ''}",)
    if args[0].startswith("/"):
        return (args[0].rpartition("/")[0] or "/",)
    return (f"{kind}:{args[0]}",)


class Asker:
    """A backend that asks each question once, announces it, and streams the answer."""

    def __init__(self, inner: Backend, job: Job, send: Callable[[list[Any]], None]) -> None:
        self._inner = inner
        self._answers = job.answers
        self._given_up = job.given_up
        self._send = send
        self.seen: dict[str, Answer] = {}

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Return the answer; see Host."""
        k = plain_text(key(kind, args))
        if k not in self._answers:
            self._answers[k] = self._fetch(k, kind, args)
        answer = self.seen[k] = self._answers[k]
        if isinstance(answer, HostError):
            raise HostError(answer.reason, answer.detail)
        return answer

    def _fetch(self, k: str, kind: str, args: tuple[str | int, ...]) -> Answer:
        answer: Answer = next((self._given_up[s] for s in subjects(k) if s in self._given_up), None)
        if answer is None:
            self._send(["ask", k])
            try:
                answer = plain(self._inner.ask(kind, *args))
            except HostError as e:
                answer = e
            except Exception as e:  # noqa: BLE001 - a fault in a binding must lose this answer only
                answer = HostError(Reason.UNSUPPORTED, f"{type(e).__name__}: {e}")
        if isinstance(answer, HostError):
            answer = HostError(answer.reason, plain_text(answer.detail))
            self._send(["error", k, answer.reason.value, answer.detail])
        else:
            self._send(["answer", k, answer])
        return answer


def state_of(answers: dict[str, Answer]) -> tuple[str, str]:
    """Return (state, detail) of a probe that ran to its end, from all it was told.

    `timed_out` if something was; `ok` if anything was answered; `empty` if there was nothing to find; else `failed`.
    """
    errors = {k: a for k, a in answers.items() if isinstance(a, HostError)}
    for k, e in errors.items():
        if e.reason is Reason.TIMED_OUT:
            return "timed_out", f"{k}: {e.detail}"
    for k, e in errors.items():
        if e.detail.startswith(CRASHED):
            return "failed", f"{k}: {e.detail}"
    if len(errors) < len(answers):
        return "ok", ""
    for k, e in errors.items():
        if e.reason not in (Reason.ABSENT, Reason.UNSUPPORTED, Reason.NOT_VISIBLE_HERE):
            return "failed", f"{k}: {e}"
    return "empty", next((str(e) for e in errors.values()), "")


CRASHED = "the process that asked it crashed"
"""How the detail of a question begins whose asking ended the child."""


def run_job(job: Job, pipe: int) -> None:
    """Run the probes, streaming into `pipe`. Ends the process when the parent is gone, or cannot be waiting."""
    job.alarm()
    encoder = msgspec.msgpack.Encoder()
    backend = job.make_backend()
    end = time.monotonic() + 0.9 * job.left_s

    def send(frame: list[Any]) -> None:
        data = encoder.encode(frame)
        view = memoryview(LENGTH.pack(len(data)) + data)
        try:
            while view:
                view = view[os.write(pipe, view) :]
        except OSError:
            os._exit(1)

    for probe in job.probes:
        send(["begin", probe.name])
        began = time.perf_counter()
        if hasattr(backend, "until"):
            # A command gives up a little before this process is, so that it is ended by the one who started it.
            backend.until = min(time.monotonic() + 0.8 * probe.deadline_s, end)
        asker = Asker(backend, job, send)
        try:
            probe.read(Host(asker))
            state, detail = state_of(asker.seen)
        except HostError as e:
            state, detail = state_of(asker.seen)
            if state == "ok":
                state, detail = ("empty", str(e)) if e.reason is Reason.ABSENT else ("failed", str(e))
        except Exception as e:  # noqa: BLE001 - a fault in one probe must not lose the others
            state, detail = "failed", f"{type(e).__name__}: {e}"
        send(["end", probe.name, state, plain_text(detail), (time.perf_counter() - began) * 1000])
    send(["done"])


def spawned_main() -> None:
    """Body of a child that is a fresh interpreter: the job lies in a file, the pipe is open."""
    detach([PIPE_FD, JOB_FD])
    os.set_inheritable(PIPE_FD, False)
    with os.fdopen(JOB_FD, "rb") as file:
        file.seek(0)
        job = pickle.load(file)
    run_job(job, PIPE_FD)
    os._exit(0)
