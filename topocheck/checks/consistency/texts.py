"""Files of one machine that say different things of it."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.model.base import Evidence, Finding, State

MAX_TOLD = 32


@check(
    "consistency.sources-differ",
    title="Two of the given files say different things of the machine",
    severity=State.WARN,
    reads=("the files given with --from",),
)
def sources_differ(context: Context) -> Iterator[Finding]:
    """Two of the given files say different things of the machine.

    Looks at:
        What several files of one machine (`--from`, repeated; the parts of a bug report) say of the same thing: names,
        addresses, links, versions. Values that change from one moment to the next (clocks, idle links, counters) may
        differ.

    Why it matters:
        The files may be of two machines, or of one before and after a change. What is judged is then of neither.

    Fix:
        Collect the files again at one time, on one machine.

    Does not apply:
        Where the facts come from one file or from the machine itself.
    """
    made = context.node.made_from
    if made is None:
        raise not_applicable("the facts are of one snapshot, or of the machine itself")
    for d in made.differ[:MAX_TOLD]:
        yield Finding(
            id="consistency.sources-differ",
            state=State.WARN,
            subject=d.question.partition(":")[2] or d.question,
            title=f"{d.first_at} says {d.first!r}, {d.other_at} says {d.other!r}",
            consequence="what is judged may be of two machines or of two moments; the first value was used",
            evidence=(Evidence(d.first_at, d.first), Evidence(d.other_at, d.other)),
            rule="files of one machine agree",
            fix="collect the files again at one time, on one machine; topocheck diff compares two moments",
        )
    if len(made.differ) > MAX_TOLD:
        yield Finding(
            id="consistency.sources-differ",
            state=State.WARN,
            subject="node",
            title=f"and {len(made.differ) - MAX_TOLD} more things that two files say differently",
            evidence=(Evidence(made.differ[MAX_TOLD].other_at, made.differ[MAX_TOLD].other),),
            rule="files of one machine agree",
        )
