"""The child that runs the probes of one group and streams every question and answer to its parent.

The stream is length-prefixed msgpack: `["begin", probe]`, `["ask", key]`, `["answer", key, value]`,
`["error", key, reason, detail]`, `["end", probe, state, detail, ms]`, `["done"]`. Each question is announced before it
is asked, so the parent always knows what hung or crashed. The child owns no file of the parent but this pipe: a
child that nobody can kill holds nothing that anybody waits for.

`python -m topocheck.host.gather.worker FD` is such a child as a fresh interpreter, with its job on standard input.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from topocheck.host.base import Answer, Backend, Host, HostError, key
from topocheck.host.gather.jsonable import plain, plain_text
from topocheck.model.base import Reason, is_crash, is_digits
from topocheck.process.frames import write_frame
from topocheck.process.parent import die_with_parent

ANSWER_LIMIT = 16 << 20
"""Bytes of one answer as it is recorded; LiveBackend's own limits are half of it."""
ANSWERS_LIMIT = 64 << 20
"""Bytes of all answers of one group of probes together."""


class Probe(Protocol):
    """What the gatherer needs of a probe.

    Attributes:
        name: unique name (`pci`).
        group: probes of one group share a child.
        deadline_s: after this long without being done, the question being asked counts as hung.
        path: where its function is, as `module:function`.
        asks: the kind of question without which it has told nothing of its source; any where empty.
        unasked: why it may have asked none.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def group(self) -> str: ...  # noqa: D102
    @property
    def deadline_s(self) -> float: ...  # noqa: D102
    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def asks(self) -> str: ...  # noqa: D102
    @property
    def unasked(self) -> str: ...  # noqa: D102
    @property
    def read(self) -> Callable[[Host], Any]: ...  # noqa: D102


class BackendSpec(msgspec.Struct, frozen=True):
    """Which backend a child asks: where it is, as `module:class`, and what it is made with (plain values)."""

    path: str
    settings: dict[str, Any] = {}

    def make(self) -> Backend:
        """Return a new one."""
        backend: Backend = _named(self.path)(**self.settings)
        return backend


LIVE = BackendSpec("topocheck.host.live.backend:LiveBackend")
"""This machine."""


class Job(msgspec.Struct):
    """What one child is to do.

    Attributes:
        answers: what earlier children of this group were told; not asked again.
        given_up: subject (see `subjects`) -> the error that answers every question about it.
        left_s: what is left of the whole run's time. Some seconds later the kernel ends the child, even if the
            parent is gone.
        spent_bytes: what earlier children of this group have sent.
    """

    probes: Sequence[Probe]
    backend: BackendSpec
    answers: dict[str, Answer]
    given_up: dict[str, HostError]
    left_s: float
    spent_bytes: int = 0

    def alarm(self) -> None:
        """Have the kernel end this process when the parent cannot be waiting any more."""
        signal.alarm(int(self.left_s) + 5)


class _SentProbe(msgspec.Struct, frozen=True):
    """A probe as a fresh interpreter gets it."""

    name: str
    group: str
    deadline_s: float
    path: str
    asks: str
    unasked: str

    def read(self, host: Host) -> Any:
        return _named(self.path)(host)


class _SentJob(msgspec.Struct, frozen=True):
    """A job as a fresh interpreter gets it: an error is its reason and its detail."""

    probes: list[_SentProbe]
    backend: BackendSpec
    answers: dict[str, Any]
    errors: dict[str, tuple[Reason, str]]
    given_up: dict[str, tuple[Reason, str]]
    left_s: float
    spent_bytes: int


def _named(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def encode_job(job: Job) -> bytes:
    """Return a job as msgpack."""
    errors = {k: (a.reason, a.detail) for k, a in job.answers.items() if isinstance(a, HostError)}
    sent = _SentJob(
        probes=[_SentProbe(p.name, p.group, p.deadline_s, p.path, p.asks, p.unasked) for p in job.probes],
        backend=job.backend,
        answers={k: a for k, a in job.answers.items() if k not in errors},
        errors=errors,
        given_up={k: (e.reason, e.detail) for k, e in job.given_up.items()},
        left_s=job.left_s,
        spent_bytes=job.spent_bytes,
    )
    return msgspec.msgpack.encode(sent)


def decode_job(data: bytes) -> Job:
    """Return a job from msgpack.

    Raises:
        msgspec.DecodeError: it is none.
    """
    sent = msgspec.msgpack.decode(data, type=_SentJob)
    errors = {k: HostError(*e) for k, e in sent.errors.items()}
    given_up = {k: HostError(*e) for k, e in sent.given_up.items()}
    return Job(sent.probes, sent.backend, sent.answers | errors, given_up, sent.left_s, sent.spent_bytes)


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
        return (*(f"{kind}|{a}" for a in args[1 : 1 + devices] if is_digits(a)), kind)
    if kind == "run":
        return (f"run|{args[1] if len(args) > 1 else ''}",)
    if args[0].startswith("/"):
        return (args[0].rpartition("/")[0] or "/",)
    return (f"{kind}:{args[0]}",)


class Stream:
    """What a child sends. Ends the process when the parent is gone."""

    def __init__(self, pipe: int, spent: int) -> None:
        self._pipe = pipe
        self._spent = spent
        self._encode = msgspec.msgpack.Encoder().encode

    def send(self, *frame: Any) -> None:
        """Send one frame."""
        self._write(self._encode(frame))

    def answer(self, question: str, answer: Answer) -> Answer:
        """Send an answer and return it; where it is too large, nothing is sent, and the error returned says so."""
        data = self._encode(("answer", question, answer))
        if len(data) > ANSWER_LIMIT:
            return HostError(Reason.UNPARSABLE, f"an answer of {len(data) >> 20} MiB; limit {ANSWER_LIMIT >> 20} MiB")
        if self._spent + len(data) > ANSWERS_LIMIT:
            return HostError(Reason.UNPARSABLE, f"the answers of these probes exceed {ANSWERS_LIMIT >> 20} MiB")
        self._spent += len(data)
        self._write(data)
        return answer

    def _write(self, data: bytes) -> None:
        try:
            write_frame(self._pipe, data)
        except OSError:
            os._exit(1)


class Asker:
    """A backend that asks each question once, announces it, and streams the answer."""

    def __init__(self, inner: Backend, job: Job, stream: Stream) -> None:
        self._inner = inner
        self._answers = job.answers
        self._given_up = job.given_up
        self._stream = stream
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
            self._stream.send("ask", k)
            try:
                answer = plain(self._inner.ask(kind, *args))
            except HostError as e:
                answer = e
            except Exception as e:  # noqa: BLE001 - a fault in a binding must lose this answer only
                answer = HostError(Reason.UNSUPPORTED, f"{type(e).__name__}: {e}")
        if not isinstance(answer, HostError):
            answer = self._stream.answer(k, answer)
        if isinstance(answer, HostError):
            answer = HostError(answer.reason, plain_text(answer.detail))
            self._stream.send("error", k, answer.reason.value, answer.detail)
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
        if is_crash(e.missing()):
            return "failed", f"{k}: {e.detail}"
    if len(errors) < len(answers):
        return "ok", ""
    for k, e in errors.items():
        if e.reason not in (Reason.ABSENT, Reason.UNSUPPORTED, Reason.NOT_VISIBLE_HERE):
            return "failed", f"{k}: {e}"
    return "empty", next((str(e) for e in errors.values()), "")


def run_job(job: Job, pipe: int) -> None:
    """Run the probes, streaming into `pipe`. Ends the process when the parent is gone, or cannot be waiting."""
    job.alarm()
    backend = job.backend.make()
    end = time.monotonic() + 0.9 * job.left_s
    stream = Stream(pipe, job.spent_bytes)
    for probe in job.probes:
        stream.send("begin", probe.name)
        began = time.perf_counter()
        if hasattr(backend, "until"):
            # A command gives up a little before this process is, so that it is ended by the one who started it.
            backend.until = min(time.monotonic() + 0.8 * probe.deadline_s, end)
        asker = Asker(backend, job, stream)
        try:
            probe.read(Host(asker))
            state, detail = state_of(asker.seen)
            if state == "ok" and probe.asks and not any(q.startswith(f"{probe.asks}:") for q in asker.seen):
                state, detail = "empty", probe.unasked
        except HostError as e:
            state, detail = state_of(asker.seen)
            if state == "ok":
                state, detail = ("empty", str(e)) if e.reason is Reason.ABSENT else ("failed", str(e))
        except Exception as e:  # noqa: BLE001 - a fault in one probe must not lose the others
            state, detail = "failed", f"{type(e).__name__}: {e}"
        stream.send("end", probe.name, state, plain_text(detail), (time.perf_counter() - began) * 1000)
    stream.send("done")


def main() -> None:
    """`python -m topocheck.host.gather.worker FD`: the job on standard input, frames to the descriptor."""
    die_with_parent()
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    job = decode_job(sys.stdin.buffer.read())
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)  # what is asked of the machine may start programs: they get no input
    run_job(job, pipe)
    os._exit(0)


if __name__ == "__main__":
    main()
