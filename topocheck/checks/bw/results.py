"""Checks of what was measured (`topocheck bw`): against the path's rate, the siblings, the other way, a baseline.

Without a measurement they have nothing to judge. Each judges a run of `topocheck bw` that is handed to them in a
`MeasuredContext`; the run may be of today or from a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from topocheck.bandwidth.cases import HOST
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.model.base import Evidence, Finding, State
from topocheck.model.measurement import UNSTABLE, Assessment, Measurement, Run, unsteady
from topocheck.model.units import size_text

STEADY = f"undisturbed, and an interquartile range of at most {100 * UNSTABLE:.0f} % of the median"


class MeasuredContext(Context, frozen=True, kw_only=True):
    """A context with a live test in it. `tolerance` is the part of a baseline that may be lost."""

    run: Run
    assessments: tuple[Assessment, ...] = ()
    baseline: Run | None = None
    tolerance: float = 0.1


def measured(context: Context) -> MeasuredContext:
    """Return the context with its run; a check without one has nothing to judge."""
    if not isinstance(context, MeasuredContext):
        raise not_applicable("nothing was measured; `topocheck bw` measures")
    return context


def subject(m: Measurement) -> str:
    """Return what a finding about a measurement is about."""
    if m.kind == "collective":
        return f"{m.collective} {m.backend} {m.ranks} ranks"
    if not m.from_:
        return m.kind
    return f"{m.from_label or m.from_} to {m.to_label or m.to}"


def devices(m: Measurement) -> tuple[str, ...]:
    """Return the addresses of the GPUs that a measurement is about."""
    return tuple(e for e in dict.fromkeys((m.from_, m.to, *m.members)) if e not in ("", HOST))


def name(m: Measurement) -> str:
    """Return what was measured, for a title: `p2p push GPU0 to GPU1, 512 MiB`."""
    if m.kind == "collective":
        placed = "in place" if m.in_place else "out of place"
        return f"{subject(m)}, {placed}, {(m.mode or '').replace('_', ' ')}, {size_text(m.size_bytes)}"
    how = "staged" if m.peer_access is False else {"source": "push", "destination": "pull"}.get(m.issuer or "", "")
    extra = " pageable" if m.pageable else ""
    return f"{m.kind} {how}{extra} {subject(m)}, {size_text(m.size_bytes)}".replace("  ", " ")


def evidence(m: Measurement) -> tuple[Evidence, ...]:
    """Return the measurement as evidence."""
    values = ", ".join(f"{s:.4g}" for s in m.samples[:15])
    raw = (
        f"{m.size_bytes} bytes x {m.iterations}, {m.unit}: median {m.median:.4g} of {len(m.samples)} samples ({values})"
    )
    return (Evidence(f"topocheck bw {m.id}", raw),)


def judged(m: Measurement) -> bool:
    """Tell whether a measurement is right, undisturbed and steady enough to be judged."""
    return m.verified is not False and not unsteady(m)


@check("bw.wrong-data", title="Copied or reduced data arrives wrong", severity=State.FAIL, reads=("topocheck bw",))
def wrong_data(context: Context) -> Iterator[Finding]:
    """Data that was moved and compared, every byte, is not what was sent.

    Looks at: the comparison after each sample of `topocheck bw`.

    Why it matters: training goes on with wrong numbers, and no rate shows it. Peer access that is reported as working
    and delivers wrong bytes is a known fault of machines where an IOMMU or ACS redirects peer traffic.

    Fix: look at ACS and IOMMU first (the findings of area p2p); then try the pair with NCCL_P2P_DISABLE=1; then suspect
    the device's memory (ECC counters, Xid lines) and its links.

    Does not apply: to latencies of collectives, where nothing is compared.
    """
    for m in measured(context).run.measurements:
        if m.verified is False:
            yield Finding(
                state=State.FAIL,
                subject=subject(m),
                devices=devices(m),
                title=f"{name(m)}: wrong data: {m.wrong}",
                consequence="whatever is computed from this data is wrong",
                evidence=(Evidence(f"topocheck bw {m.id}", m.wrong),),
                rule="every byte that arrives must be the byte that was sent",
                fix="check IOMMU and ACS first (topocheck check), then rerun the pair without peer access (--staged)",
            )


@check(
    "bw.below-expected", title="Measured bandwidth is below expectation", severity=State.FAIL, reads=("topocheck bw",)
)
def below_expected(context: Context) -> Iterator[Finding]:
    """Measured bandwidth is below expectation: what its path usually reaches.

    Looks at: each copy of 64 MiB and more and each large collective, beside the negotiated rate of the narrowest hop
    on its path times an efficiency that healthy machines reach (knowledge/data/efficiencies.tsv, each with a source).

    Why it matters: every transfer on that path takes longer by as much.

    Fix: the text names the hop. A link that negotiated less than both its ends can do needs reseating or a firmware
    setting; a full-rate hop with a low measured rate points to the host (NUMA placement, power saving, another user).

    Does not apply: to a measurement that was disturbed or spread too far, to paths with a hop that cannot be read
    (the rate is then an upper bound), and to far NUMA nodes.
    """
    c = measured(context)
    by_id = {m.id: m for m in c.run.measurements}
    for a in c.assessments:
        m = by_id.get(a.measurement)
        if m is None or m.verified is False or a.state not in (State.FAIL, State.WARN, State.NOTE):
            continue
        yield Finding(
            state=a.state,
            subject=subject(m),
            devices=devices(m),
            title=f"{name(m)}: {a.text}",
            consequence=f"transfers on this path take {100 * (a.expected_gb_s or 1) / _value(m) - 100:.0f} % longer "
            "than they should",
            evidence=evidence(m),
            rule=f"at least {a.expected_gb_s:.1f} GB/s is usual here" if a.expected_gb_s else "",
            fix=_next_step(m, a),
        )


def _next_step(m: Measurement, a: Assessment) -> str:
    if m.kind != "collective":
        return "check the hop named; compare with the far NUMA node (--far-numa) and an idle machine"
    if a.nccl_bound_gb_s is not None and a.expected_gb_s is not None and a.nccl_bound_gb_s < a.expected_gb_s:
        return (
            f"NCCL itself gets no more than {a.nccl_bound_gb_s:.1f} GB/s here ({a.nccl_bound_by}); topocheck nccl "
            "predict --why shows which setting or path holds it back"
        )
    return "compare the GPU pairs (topocheck bw --all-pairs) and NCCL's log (topocheck nccl log --compare)"


def _value(m: Measurement) -> float:
    return (m.busbw_gb_s if m.kind == "collective" else m.bandwidth_gb_s) or 1.0


@check(
    "bw.not-judged", title="A measurement was disturbed or spread too far", severity=State.NOTE, reads=("topocheck bw",)
)
def notjudged(context: Context) -> Iterator[Finding]:
    """A row was measured while something else used the device, a clock was held back, or its samples spread too far.

    Looks at: NVML before, during and after each row, and the interquartile range of the samples (5 % of the median).
    The sizes of a collective whose samples spread that far are reported in one line.

    Why it matters: such a number says nothing about the machine, in either direction.

    Fix: repeat it when the device is idle.

    Does not apply: to rows that are judged.
    """
    for m in measured(context).run.measurements:
        # The sizes of a collective are reported together, below.
        spread_far = m.spread > UNSTABLE and m.unit == "GB/s"
        if m.verified is not False and (m.disturbed or spread_far):
            why = m.disturbed or f"samples spread over {100 * m.spread:.0f} % of the median"
            yield Finding(
                state=State.NOTE,
                subject=subject(m),
                devices=devices(m),
                title=f"{name(m)}: not judged: {why}",
                evidence=evidence(m),
                rule=STEADY,
                fix="repeat it on an idle machine",
            )
    sweeps: dict[str, list[Measurement]] = {}
    for m in measured(context).run.measurements:
        if m.kind == "collective" and m.verified is not False and not m.disturbed:
            sweeps.setdefault(f"{subject(m)}, {(m.mode or '').replace('_', ' ')}", []).append(m)
    for title, rows in sweeps.items():
        wide = [m for m in rows if unsteady(m)]
        if wide:
            worst = max(wide, key=lambda m: m.spread)
            yield Finding(
                state=State.NOTE,
                subject=subject(worst),
                devices=devices(worst),
                title=f"{title}: unsteady in {len(wide)} of {len(rows)}: samples spread over up to "
                f"{100 * worst.spread:,.0f} % of the median",
                evidence=evidence(worst),
                rule=STEADY,
                fix="repeat it on an idle machine",
            )


@check(
    "bw.not-measured",
    title="Something asked for could not be measured",
    severity=State.UNKNOWN,
    reads=("topocheck bw",),
)
def not_measured(context: Context) -> Iterable[Finding]:
    """A row hung, crashed or failed, so the question it was to answer stays open.

    Looks at: the rows of the plan that gave no measurement; those with one cause are one finding.

    Why it matters: unknown is not OK.

    Fix: the text names the call, the pair or rank and the next step.

    Does not apply: to rows that the machine cannot do, or that the time did not allow; these are listed as notes.
    """
    causes: dict[tuple[bool, str, str], list[str]] = {}
    for n in measured(context).run.not_measured:
        causes.setdefault((n.required, n.reason, n.next_step), []).append(n.id)
    for (required, reason, next_step), ids in causes.items():
        what = ids[0] if len(ids) == 1 else f"{len(ids)} rows"
        yield Finding(
            state=State.UNKNOWN if required else State.NOTE,
            subject=ids[0],
            title=f"{what} not measured: {reason}",
            evidence=(Evidence("topocheck bw", ", ".join(ids)),) if len(ids) > 1 else (),
            fix=next_step or None,
        )
