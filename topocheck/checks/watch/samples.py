"""What could not be sampled, and counters that began again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.watch.run import READS, WatchContext, history_in
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, is_lost
from topocheck.overtime.history import History
from topocheck.overtime.types import Kind


@check("watch.not-sampled", severity=State.UNKNOWN, reads=READS)
def not_sampled(context: Context) -> Iterator[Finding]:
    """A source did not answer, so that what it counts was not judged.

    Looks at:
        How many samples there are, and which sources did not answer in them.

    Why it matters:
        A driver that hangs is a fault; errors that nobody counted are unknown, not absent.

    Fix:
        Read what is said of the source; see `topocheck report` for the call that does not answer.

    Does not apply:
        Where nothing was to be sampled.
    """
    if not isinstance(context, WatchContext):
        raise not_applicable("nothing was sampled; `topocheck watch` does")
    history = context.history
    n = len(history.samples)
    if not n and not history.header.devices:
        raise not_applicable("no GPU, NIC or RDMA port to sample")
    if n < 2:
        yield Finding(
            state=State.UNKNOWN,
            subject="node",
            title="the machine was started again since, so there is nothing to compare with"
            if history.rebooted
            else f"{n} sample{'' if n == 1 else 's'}: nothing to compare",
            consequence="growth is not judged",
            rule="two samples of one boot",
            fix="sample longer",
        )
    silent = Counter(source for s in history.samples for source in s.silent)
    for source, times in sorted(silent.items()):
        why = next(s.silent[source] for s in reversed(history.samples) if source in s.silent)
        yield Finding(
            state=State.UNKNOWN,
            subject=source,
            title=f"no answer in {times} of {n} samples: {why}",
            consequence="what it counts was not judged for that time",
            evidence=(Evidence(source, why),),
            rule="every source answers in every sample",
            fix="see `topocheck report` for the call that does not answer",
        )


@check("watch.counters-restarted", severity=State.NOTE, reads=READS)
def counters_restarted(context: Context) -> Iterator[Finding]:
    """Counters began again, vanished or stand at their maximum: their growth is a lower bound.

    Looks at:
        Counters that fell, that could be read at first and not at the end, that could never be read, and those of
        ports that stand at their maximum.

    Why it matters:
        By itself it is no fault: a driver that is loaded again, or `perfquery -R`, clears counters. But errors in
        between were not seen.

    Fix:
        Counters of ports at their maximum are cleared with `perfquery -R`.

    Does not apply:
        Where all counters only grew.
    """
    history = history_in(context)
    for kind, subjects in history.growth.items():
        for subject, counters in subjects.items():
            words = {
                "began again": [n for n, g in counters.items() if g.resets],
                "could no longer be read": [n for n, g in counters.items() if g.vanished],
                "at their maximum": [n for n, g in counters.items() if g.saturated],
                "could not be read": sorted(_unread(history, kind, subject).keys() - counters.keys()),
            }
            found = {what: names for what, names in words.items() if names}
            if found:
                title = "; ".join(f"{', '.join(names)} {what}" for what, names in found.items())
                yield Finding(
                    state=State.NOTE,
                    subject=subject,
                    title=title,
                    consequence="errors of that time may not be counted",
                    evidence=tuple(
                        Evidence(f"{kind.value} {subject} {n}", f"{g.first} -> {g.last}")
                        for n, g in counters.items()
                        if g.resets or g.vanished or g.saturated
                    )[:8]
                    + tuple(
                        Evidence(f"{kind.value} {subject} {n}", str(why))
                        for n, why in _unread(history, kind, subject).items()
                        if n in words["could not be read"]
                    )[:8],
                    rule="counters only grow",
                )


def _unread(history: History, kind: Kind, subject: str) -> dict[str, Missing]:
    """Return counter -> why it was not read, the last time; without those that the driver does not offer."""
    return {
        name: why
        for _, r in history.readings[kind][subject]
        for name, why in r.missing.items()
        if why.reason is not Reason.UNSUPPORTED or is_lost(why)
    }
