"""Asking a live machine without ever being held by it.

The probes of each group run in a child process that streams questions and answers (`host/gather/worker.py`); the groups
run at the same time. When a probe passes its deadline or its child dies, the question it was asking is answered by
that fact, and a new child, told all earlier answers, goes on with everything else. A child that cannot be killed
is left behind. What comes back is a recording, from which `replay` builds the facts as it would from a file.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from topocheck.host.base import Answer, Host, HostError, RecordedBackend, key
from topocheck.host.gather.child import start_child
from topocheck.host.gather.hung import look_at
from topocheck.host.gather.worker import ANSWER_LIMIT, ANSWERS_LIMIT, LIVE, BackendSpec, Job, Probe, subjects
from topocheck.host.live import backend as live  # noqa: F401 - loaded once here, and not in each child that is forked
from topocheck.model.base import CRASHED, Hung, ProbeStatus, Reason
from topocheck.process.fork import Worker, reap
from topocheck.process.frames import FrameError, FrameReader

MAX_RESTARTS = 10
"""New children per group. Each costs at most one deadline, so that one sick driver cannot use up every budget."""
_STARTUP_S = 5.0
"""Grace for a new child on a busy machine; ends with its first word."""
_FRAME_LIMIT = ANSWER_LIMIT + (1 << 16)
_TOTAL_LIMIT = 2 * ANSWERS_LIMIT
"""Bytes of one frame and of all frames of a group; a child keeps within half of this, unless it is out of its mind."""
_STRIKES = 2
"""Hangs or crashes about one subject after which nothing about it is asked any more."""


class Gathering:
    """Probes that run in their children, from the moment this is made until `finish` or `stop`.

    Args:
        early: group -> a child that already does the group's job, started before this was even loaded.
    """

    def __init__(
        self,
        probes: Iterable[Probe],
        budget_s: float,
        backend: BackendSpec = LIVE,
        early: Mapping[str, Worker] | None = None,
    ) -> None:
        self.answers: dict[str, Answer] = {key("now", ()): time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        self.began = time.monotonic()
        by_name: dict[str, list[Probe]] = {}
        for probe in probes:
            by_name.setdefault(probe.group, []).append(probe)
        # The slowest first, so that its child works while the others are started.
        slowest_first = sorted(by_name.values(), key=lambda members: -max(p.deadline_s for p in members))
        end = self.began + budget_s
        self.groups = [_Group(members, self.answers, end, budget_s, backend) for members in slowest_first]
        self.selector = selectors.DefaultSelector()
        try:
            for group in self.groups:
                group.start(self.selector, (early or {}).get(group.todo[0].group))
        except BaseException:
            self.stop()
            raise

    def finish(self, budget_s: float, longer_s: Mapping[str, float] | None = None) -> dict[str, Answer]:
        """Wait for the answers and return them, at most until `budget_s` seconds after the start.

        `longer_s`: group -> seconds that its probes get beyond their deadlines.
        """
        end = self.began + budget_s
        for group in self.groups:
            group.end = min(group.end, end)
            group.budget_s = min(group.budget_s, budget_s)
            group.longer_s = (longer_s or {}).get(group.name, 0.0)
            group.deadline = min(group.deadline + group.longer_s, group.end)
        try:
            while self.selector.get_map():
                wait = min([end] + [g.deadline for g in self.groups if g.child]) - time.monotonic()
                for ready, _ in self.selector.select(max(0.0, wait)):
                    ready.data.pump()
                for group in self.groups:
                    group.check(time.monotonic())
        finally:
            self.stop()
        return self.answers

    def stop(self) -> None:
        """End every child that still runs; one that cannot be killed is left behind."""
        for group in self.groups:
            group.stop()
        self.selector.close()
        reap()


def gather(probes: Iterable[Probe], budget_s: float, backend: BackendSpec = LIVE) -> dict[str, Answer]:
    """Run the probes and return every question with its answer (a value or a HostError).

    Beside the probes' own questions there are `now:`, and for each probe `probe:NAME` (its status: state, ms,
    detail) and `duration:NAME`. Returns within `budget_s` seconds and little more, whatever the machine does.
    """
    return Gathering(probes, budget_s, backend).finish(budget_s)


def status(name: str, answers: Mapping[str, Answer]) -> ProbeStatus:
    """Return how a probe went; `failed` with `not recorded` where the recording has no such probe."""
    try:
        return msgspec.convert({"name": name, **answers[f"probe:{name}"]}, ProbeStatus)
    except (KeyError, TypeError, msgspec.ValidationError):
        return ProbeStatus(name=name, state="failed", ms=0.0, detail="not recorded")


def replay(probe: Probe, answers: Mapping[str, Answer], source: str = "live") -> Any:
    """Return the facts of one probe from recorded answers.

    A question that a timed-out probe never came to is answered `timed_out`; of any other probe, `not_recorded`.

    Raises:
        HostError: the probe itself raised it.
    """
    said = status(probe.name, answers)
    unasked = HostError(Reason.TIMED_OUT, said.detail) if said.state == "timed_out" else None
    return probe.read(Host(RecordedBackend(answers, unasked), source))


class _Group:
    """The parent's side of one group: its child, what the child is doing, and what is still to do."""

    def __init__(
        self,
        probes: list[Probe],
        answers: dict[str, Answer],
        end: float,
        budget_s: float,
        backend: BackendSpec,
    ) -> None:
        self.name = probes[0].group
        self.longer_s = 0.0
        self.todo = list(probes)
        self.answers = answers
        self.own: dict[str, Answer] = {}
        self.given_up: dict[str, HostError] = {}
        self.strikes: dict[str, int] = {}
        self.end = end
        self.budget_s = budget_s
        self.backend = backend
        self.restarts = 0
        self.hung = ""
        self.stuck: Hung | None = None
        self.child: Worker | None = None
        # An early child that was lost before its first question told nothing: all is asked again in a new one.
        self.early = False
        self.deadline = end
        self.asking = ""
        self.asked = self.began = 0.0
        self.reader = FrameReader(_FRAME_LIMIT, _TOTAL_LIMIT)
        self.decode = msgspec.msgpack.Decoder(list[Any]).decode
        self.selector: selectors.BaseSelector | None = None
        self.spent_ms = 0.0

    def start(self, selector: selectors.BaseSelector, early: Worker | None = None) -> None:
        """Start a child for what is still to do, or take over the `early` one that does it."""
        self.selector = selector
        if not self.todo:
            return
        self.early = early is not None
        try:
            self.child = early or start_child(self._job())
        except Exception as e:  # noqa: BLE001 - no process to be had, or memory for its job: say so, go on
            self._finish_rest("failed", f"cannot start a process: {e}")
            return
        self.reader.restart()
        self.asking = ""
        self.began = time.monotonic()
        patience = _STARTUP_S if self.early else _STARTUP_S + self.todo[0].deadline_s + self.longer_s
        self.deadline = min(self.end, self.began + patience)
        selector.register(self.child.pipe, selectors.EVENT_READ, self)

    def _job(self) -> Job:
        left_s = max(0.0, self.end - time.monotonic())
        return Job(self.todo, self.backend, self.own, self.given_up, left_s, self.reader.total)

    def pump(self) -> None:
        """Take in what the child has sent so far."""
        while self.child is not None:
            try:
                data = os.read(self.child.pipe, 1 << 18)
            except BlockingIOError:
                return
            if not data:
                self._died()
                return
            try:
                for frame in self.reader.feed(data):
                    self._frame(self.decode(frame))
            except (FrameError, msgspec.DecodeError, LookupError, TypeError, ValueError, RecursionError) as e:
                # A library that writes over the child's memory, or into its pipe.
                self._lost(HostError(Reason.UNPARSABLE, f"the process that asked it sent no valid answer: {e}"))

    def _frame(self, frame: list[Any]) -> None:
        word, *rest = frame
        if word == "ask":
            self.early = False
            self.asking = rest[0]
            self.asked = time.monotonic()
        elif word == "answer":
            self._answer(rest[0], rest[1])
        elif word == "error":
            self._answer(rest[0], HostError(Reason(rest[1]), rest[2]))
        elif word == "begin":
            self.began = time.monotonic()
            self.deadline = min(self.end, self.began + self.todo[0].deadline_s + self.longer_s)
        elif word == "end":
            self.spent_ms += rest[3]
            self._finish(self.todo.pop(0), rest[1], rest[2])
        elif word == "done":
            self._leave()

    def _answer(self, question: str, answer: Answer) -> None:
        self.asking = ""
        self.own[question] = answer
        self.answers.setdefault(question, answer)

    def _finish(self, probe: Probe, state: str, detail: str) -> None:
        ms, self.spent_ms = round(self.spent_ms, 1), 0.0
        said: dict[str, Answer] = {"state": state, "ms": ms, "detail": detail}
        if self.stuck is not None:
            said["hung"], self.stuck = msgspec.to_builtins(self.stuck), None
        self.answers[f"probe:{probe.name}"] = said
        self.answers[key("duration", (probe.name,))] = ms

    def _finish_rest(self, state: str, detail: str) -> None:
        while self.todo:
            self._finish(self.todo.pop(0), state, detail)

    def check(self, now: float) -> None:
        """Act on a deadline that has passed."""
        if self.child is None or now < self.deadline:
            return
        self.pump()  # the answer may have come while this process was not running
        if self.child is None or time.monotonic() < self.deadline:
            return
        if self.asking:
            error = HostError(Reason.TIMED_OUT, f"no answer in {now - self.asked:.2g} s")
        else:
            error = HostError(Reason.TIMED_OUT, f"not done within {self.deadline - self.began:.3g} s")
        self._lost(error)

    def _died(self) -> None:
        how = reap(self.child.pid) if self.child else "unknown"
        self._lost(HostError(Reason.UNSUPPORTED, f"{CRASHED} ({how})"))

    def _lost(self, error: HostError) -> None:
        """The child hung or died: record what it was asking, and go on without it."""
        question = self.asking
        if question and self.child is not None and error.reason is Reason.TIMED_OUT:
            waited_s = time.monotonic() - self.asked
            self.stuck = look_at(self.child.pid, question, waited_s, cut_short=time.monotonic() >= self.end)
        self.spent_ms += (time.monotonic() - self.began) * 1000
        self._leave()
        if question:
            self.hung = f"{question}: {error.detail}"
            self._answer(question, error)
            self._strike(question, error)
        elif self.todo and not self.early:
            # Between two questions it is the probe's own work that hung or crashed: nothing else to leave out.
            self._finish(self.todo.pop(0), "timed_out" if error.reason is Reason.TIMED_OUT else "failed", error.detail)
        self.restarts += 1
        if time.monotonic() >= self.end or self.restarts > MAX_RESTARTS:
            why = "too many questions hung or crashed" if self.restarts > MAX_RESTARTS else self._budget()
            self._finish_rest("timed_out", f"{why}; last: {self.hung}" if self.hung else why)
        elif self.selector is not None:
            self.start(self.selector)

    def _budget(self) -> str:
        return f"the {self.budget_s:g} s of this run were over"

    def _strike(self, question: str, error: HostError) -> None:
        subject = subjects(question)[0]
        self.strikes[subject] = self.strikes.get(subject, 0) + 1
        if self.strikes[subject] >= _STRIKES:
            self.given_up[subject] = HostError(error.reason, f"{error.detail}; not asked after {question} did the same")

    def _leave(self) -> None:
        if self.child is not None:
            # An interrupt may come between the start of a child and its registration.
            if self.selector is not None and self.child.pipe in self.selector.get_map():
                self.selector.unregister(self.child.pipe)
            self.child.abandon()
            self.child = None
        self.asking = ""

    def stop(self) -> None:
        """Leave the child, whatever it does; what is unfinished is timed out."""
        if self.child is not None:
            self.spent_ms += (time.monotonic() - self.began) * 1000
        self._leave()
        self._finish_rest("timed_out", self._budget())
