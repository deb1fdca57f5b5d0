"""The parent's side of the sampler: a child for each source, and their ticks put together."""

from __future__ import annotations

from time import monotonic, sleep

import msgspec

from topocheck.monitor.child import Job, Source, Tick
from topocheck.monitor.plan import Plan
from topocheck.overtime.types import Sample
from topocheck.process.child import Child
from topocheck.process.python import python_argv

PATIENCE_S = 10.0
"""A source that has said nothing for so long is waited for no more, until it says something again. Starting NVML
takes seconds on a machine without the persistence daemon."""


class Feed:
    """The child of one source, and what it sent."""

    def __init__(self, source: Source, job: Job) -> None:
        self.source: Source = source
        self.ended = ""
        self.silent_since = monotonic()
        self._next: Tick | None = None
        self._child: Child | None = None
        try:
            self._child = Child(python_argv("topocheck.monitor.child", source, "{fd}"))
            self._child.send_line(msgspec.json.encode(job))
        except OSError as e:
            self.ended = f"cannot start a process: {e.strerror or e}"

    def tick(self, number: int, deadline: float) -> Tick | None:
        """Return the tick of this number, or a later one that came in its place; None where none came in time.

        A later tick stays, to be given for its own number too.
        """
        while self._next is None or self._next.number < number:
            found = self.receive(deadline)
            if found is None:
                return None
            self._next = found
        return self._next if self._next.number == number else None

    def receive(self, deadline: float) -> Tick | None:
        """Return the next tick that comes; None where none came by the deadline, or none will."""
        if self._child is None:
            return None
        try:
            event = self._child.next_event(deadline)
        except TimeoutError:
            return None
        self.silent_since = monotonic()
        if event is None:
            self._end(f"its process ended (status {self._child.wait(0.5)})")
            return None
        try:
            return msgspec.convert(event, Tick)
        except msgspec.ValidationError:
            # A driver that writes over the child's memory: what it says counts no more.
            self._end(str(event.get("reason", "")) or "its process sent no sample")
            return None

    def _end(self, why: str) -> None:
        self.ended = why
        self.close(0)

    def close(self, grace_s: float = 0.2) -> None:
        """End the child."""
        if self._child is not None:
            self._child.end(grace_s)
            self._child = None


class Sampler:
    """Samples all sources of a plan."""

    def __init__(self, plan: Plan, interval_s: float) -> None:
        self.interval_s = interval_s
        self.start = monotonic()
        self._number = 0
        self._last = plan.last
        self._at = 0.0
        job = Job(plan=plan, start=self.start, interval_s=interval_s)
        sources: list[Source] = []
        if plan.gpus:
            sources.append("nvml")
        if plan.functions or plan.ports:
            sources.append("sysfs")
        self.feeds = [Feed(s, job) for s in sources]

    @property
    def done(self) -> bool:
        """Whether the last sample of the plan has been given."""
        return 0 <= self._last < self._number

    def next(self) -> Sample:
        """Wait for the next sample and return it; what a source did not answer in time is named in `silent`.

        Samples whose time passed while a source was busy with another are left out.
        """
        while True:
            number, self._number = self._number, self._number + 1
            due = self.start + number * self.interval_s
            found = {feed.source: self._tick(feed, number, due) for feed in self.feeds}
            ticks = [t for t in found.values() if isinstance(t, Tick)]
            silent: dict[str, str] = {source: why for source, why in found.items() if isinstance(why, str)}
            if ticks or silent or self.done:
                break
        if not ticks and all(f.ended for f in self.feeds):
            sleep(max(0.0, due + self.interval_s - monotonic()))
        self._at = round(max([self._at, due - self.start, *(t.at - self.start for t in ticks)]), 3)
        return Sample(
            at_s=self._at,
            gpus=tuple(r for t in ticks for r in t.sample.gpus),
            functions=tuple(r for t in ticks for r in t.sample.functions),
            nvlinks=tuple(r for t in ticks for r in t.sample.nvlinks),
            ports=tuple(r for t in ticks for r in t.sample.ports),
            silent=silent,
            events=tuple(e for t in ticks for e in t.sample.events),
        )

    def _tick(self, feed: Feed, number: int, due: float) -> Tick | str | None:
        """Return a feed's tick, why there is none, or None where it was late and left this one out."""
        quiet = monotonic() - feed.silent_since > PATIENCE_S
        tick = feed.tick(number, due + (self.interval_s / 2 if quiet else max(PATIENCE_S, self.interval_s)))
        if tick is not None:
            return tick
        if feed.ended:
            return feed.ended
        silent_s = monotonic() - feed.silent_since
        return f"no answer for {silent_s:.0f} s" if silent_s > PATIENCE_S else None

    def close(self) -> None:
        """End the children."""
        for feed in self.feeds:
            feed.close()
