"""Data that checks depend on and that could not be read."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.needs import lost_for, sources_lost
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.driver_state import silence, uvm_refused
from topocheck.checks.shared.fixes import Fix, first_fitting, in_container, is_root, never
from topocheck.model.base import Evidence, Finding, Reason, State
from topocheck.model.node import Lost, MadeFrom

_FIXES = {
    Reason.DENIED: (
        Fix("re-run as root, outside the container", (in_container, never(is_root))),
        Fix(
            "re-run on the node, outside the container: its root lacks capabilities",
            (in_container,),
        ),
        Fix("re-run as root", (never(is_root),)),
        Fix("look for what refuses root: a security module, lockdown of the kernel, or a capability that was dropped"),
    ),
    Reason.TIMED_OUT: (Fix("read the file or run the call by hand; if it hangs there too, jobs will hang as well"),),
    Reason.NOT_RECORDED: (Fix("save a new snapshot with this version (topocheck snapshot save)"),),
}
_OTHERWISE = (Fix("read the file or run the call by hand, and check the kernel log (dmesg)"),)


@check(
    "probe.answers-lost",
    title="Data that checks depend on could not be read",
    severity=State.UNKNOWN,
    last=True,
    reads=("all files and calls that the checks depend on",),
)
def answers_lost(c: Context) -> Iterator[Finding]:
    """Data that checks depend on could not be read.

    Looks at:
        Files, commands and driver calls that failed with permission denied, a timeout or an I/O error, or that are not
        in the snapshot, where a check cannot give a result without them. A file that does not exist and a call that
        the driver does not support are results, not failures.

    Why it matters:
        A component whose state could not be read is not known to be healthy. Checks that depend on the data are
        `unknown`, unless they found a problem anyway.

    Fix:
        Re-run as root where permission was denied; read the file or run the call by hand where it hangs or fails; save
        a new snapshot where an older one does not contain the data.

    Does not apply:
        Where all data that the checks depend on is available. A probe that failed as a whole is `probe.failed`.
    """
    lost = sources_lost(c.node)
    if not lost:
        raise not_applicable("all data that the checks depend on is available")
    failed = {p.name for p in c.node.probes if p.state in ("failed", "timed_out")}
    if (silent := silence(c)) is not None:
        # driver.not-answering says why, and what to do; a driver that nobody can use does not answer CUDA either.
        failed.update(("nvml", "cuda") if silent.dead else ("nvml",))
    elif uvm_refused(c) is not None:
        failed.add("cuda")  # driver.not-answering says so
    by_probe: dict[str, dict[str, Lost]] = {}
    first: dict[str, str] = {}  # question -> the probe it is reported under; several may have asked it
    for id_, state in c.judged.items():
        for x in lost_for(id_, state, lost):
            if x.probe not in failed and first.setdefault(x.question, x.probe) == x.probe:
                by_probe.setdefault(x.probe, {})[x.question] = x
    if not by_probe:
        raise not_applicable("no check here depends on the data that is missing, or its probe failed as a whole")
    if c.node.made_from is not None:
        found = {q: x for of_probe in by_probe.values() for q, x in of_probe.items()}
        if untold := {q: x for q, x in found.items() if x.why.reason is Reason.NOT_RECORDED}:
            yield _not_in_the_texts(c.node.made_from, sorted({x.shown for x in untold.values()}))
        kept = {p: {q: x for q, x in of.items() if q not in untold} for p, of in by_probe.items()}
        by_probe = {p: of for p, of in kept.items() if of}
    for probe, found in by_probe.items():
        several = list({found[q].shown: found[q] for q in sorted(found)}.values())
        n = len(several)
        yield Finding(
            state=State.UNKNOWN,
            subject=f"probe {probe}",
            title=f"{probe}: {n} {'items' if n > 1 else 'item'} could not be read: "
            + listed((f"{x.shown} ({x.why.reason.value.replace('_', ' ')})" for x in several), 2),
            consequence="checks that depend on this data are unknown",
            evidence=tuple(Evidence(x.shown, x.why_text) for x in several[:8]),
            rule="all data that a check depends on can be read",
            fix=first_fitting(c, *_FIXES.get(several[0].why.reason, _OTHERWISE)),
        )


def _not_in_the_texts(made_from: MadeFrom, sources: list[str]) -> Finding:
    """Return the one finding for all that the given files do not tell."""
    what = listed(made_from.unseen, 12) if made_from.unseen else f"{len(sources)} sources"
    return Finding(
        id="probe.answers-lost",
        state=State.UNKNOWN,
        subject="node",
        title=f"the given files do not hold all that checks need; nothing of: {what}",
        consequence="checks that depend on this data are unknown",
        evidence=tuple(Evidence(q, "not recorded") for q in sources[:8]),
        rule="all data that a check depends on can be read",
        fix="add the files that hold it (docs/readers.md), or a snapshot (topocheck snapshot save)",
    )
