"""Checks of what was measured (`topocheck bw`): beside the road's rate, the siblings, the other way, a baseline.

Without a measurement they have nothing to judge. Each judges a run of `topocheck bw` that is handed to them in a
`MeasuredContext`; the run may be of today or from a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.model.base import Evidence, Finding, State
from topocheck.model.measurement import Assessment, Measurement, Run
from topocheck.tests_live.assess import COPIES, JUDGED_FROM_BYTES, UNSTABLE
from topocheck.tests_live.baseline import compare
from topocheck.tests_live.rows import HOST
from topocheck.tests_live.stats import median


class MeasuredContext(Context, frozen=True, kw_only=True):
    """A context with a live test in it. `tolerance` is the part of a baseline that may be lost."""

    run: Run
    assessments: tuple[Assessment, ...] = ()
    baseline: Run | None = None
    tolerance: float = 0.1


def _measured(context: Context) -> MeasuredContext:
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


def evidence(m: Measurement) -> tuple[Evidence, ...]:
    """Return the measurement as evidence."""
    values = ", ".join(f"{s:.4g}" for s in m.samples[:15])
    raw = (
        f"{m.size_bytes} bytes x {m.iterations}, {m.unit}: median {m.median:.4g} of {len(m.samples)} samples ({values})"
    )
    return (Evidence(f"topocheck bw {m.id}", raw),)


def _judged(m: Measurement) -> bool:
    return m.verified is not False and not m.disturbed and m.spread <= UNSTABLE


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
    for m in _measured(context).run.measurements:
        if m.verified is False:
            yield Finding(
                id="bw.wrong-data",
                state=State.FAIL,
                subject=subject(m),
                title=f"{m.kind} {subject(m)}: wrong data: {m.wrong}",
                consequence="whatever is computed from this data is wrong",
                evidence=(Evidence(f"topocheck bw {m.id}", m.wrong),),
                rule="every byte that arrives must be the byte that was sent",
                fix="look at IOMMU and ACS first (topocheck check), then rerun the pair with peer access off (--staged)",
            )


@check("bw.below-expected", title="A road is slower than it should be", severity=State.FAIL, reads=("topocheck bw",))
def below_expected(context: Context) -> Iterator[Finding]:
    """A measured rate is below what its road usually reaches.

    Looks at: each copy of 64 MiB and more and each large collective, beside the negotiated rate of the narrowest hop
    on its road times an efficiency that healthy machines reach (knowledge/data/efficiencies.tsv, each with a source).

    Why it matters: every transfer on that road takes longer by as much.

    Fix: the text names the hop. A link that negotiated less than both its ends can do needs reseating or a firmware
    setting; a full-rate hop with a low measured rate points to the host (NUMA placement, power saving, another user).

    Does not apply: to a measurement that was disturbed or spread too far, to roads with a hop that cannot be read
    (the rate is then an upper bound), and to far NUMA nodes.
    """
    c = _measured(context)
    by_id = {m.id: m for m in c.run.measurements}
    for a in c.assessments:
        m = by_id.get(a.measurement)
        if m is None or m.verified is False or a.state not in (State.FAIL, State.WARN, State.NOTE):
            continue
        yield Finding(
            id="bw.below-expected",
            state=a.state,
            subject=subject(m),
            title=f"{m.kind} {subject(m)}: {a.text}",
            consequence=f"transfers on this road take {100 * (a.expected_gb_s or 1) / _value(m) - 100:.0f} % longer "
            "than they should",
            evidence=evidence(m),
            rule=f"at least {a.expected_gb_s:.1f} GB/s is usual here" if a.expected_gb_s else "",
            fix="look at the hop named; compare with the far NUMA node (--worst-node) and an idle machine",
        )


def _value(m: Measurement) -> float:
    return (m.busbw_gb_s if m.kind == "collective" else m.bandwidth_gb_s) or 1.0


@check(
    "bw.slower-than-siblings",
    title="A device is slower than its siblings",
    severity=State.FAIL,
    reads=("topocheck bw",),
)
def slower_than_siblings(context: Context) -> Iterator[Finding]:
    """Of measurements of the same kind on equal devices and roads, one is slower.

    Looks at: three or more measurements of one kind, size, engine and path class on one GPU model, each beside the
    median of all: 10 % below is a warning, 25 % a failure.

    Why it matters: a collective runs at the pace of its slowest member, and a sick link shows against its siblings
    long before it falls below what its kind should reach.

    Fix: compare link state and counters of the slow device with its siblings' (topocheck report), then its placement.

    Does not apply: to fewer than three siblings, and where the samples were disturbed.
    """
    c = _measured(context)
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for m in c.run.measurements:
        if m.kind in COPIES and m.size_bytes >= JUDGED_FROM_BYTES and _judged(m) and ":node" not in m.id:
            groups.setdefault(_class_of(m, c), []).append(m)
    for members in groups.values():
        if len(members) < 3:
            continue
        middle = median([m.median for m in members])
        for m in members:
            loss = 1 - m.median / middle
            if loss > 0.10:
                yield Finding(
                    id="bw.slower-than-siblings",
                    state=State.FAIL if loss > 0.25 else State.WARN,
                    subject=subject(m),
                    title=f"{m.kind} {subject(m)}: {m.median:.1f} GB/s, {100 * loss:.0f} % below the median "
                    f"{middle:.1f} of its {len(members)} siblings",
                    consequence="collectives run at the pace of the slowest",
                    evidence=evidence(m),
                    rule="within 10 % of the median of equal devices on equal roads (25 % for a failure)",
                    fix="compare its links, counters and placement with its siblings'",
                )


def _class_of(m: Measurement, c: MeasuredContext) -> tuple[object, ...]:
    names = {g.address: str(g.name) for g in c.topology.gpus}
    path = next((p for p in c.topology.paths if p.from_ == m.from_ and p.to == m.to), None)
    road = str(path.class_) if path else HOST
    ends = (names.get(m.from_, m.from_), names.get(m.to, m.to))
    pageable = "pageable" in m.id
    return (m.kind, m.size_bytes, m.engine, m.issuer, m.peer_access, m.direction, pageable, road, *ends)


@check("bw.asymmetric", title="One direction is slower than the other", severity=State.WARN, reads=("topocheck bw",))
def asymmetric(context: Context) -> Iterator[Finding]:
    """The two directions of one road differ by more than 10 %.

    Looks at: host to GPU beside GPU to host, and each GPU pair's two directions, copied by the same engine.

    Why it matters: a link carries the same both ways; a difference points to a device, a host bridge or memory.

    Fix: repeat it on an idle machine; then compare NUMA placement (--worst-node), payload size and relaxed ordering.

    Does not apply: to superchips joined by C2C, whose directions differ by nature, and to disturbed rows.
    """
    c = _measured(context)
    coherent = {g.address for g in c.topology.gpus if g.nvml and isinstance(g.nvml.c2c_links, int) and g.nvml.c2c_links}
    rows = {
        (m.from_, m.to, m.size_bytes, m.engine, m.issuer, m.peer_access, "pageable" in m.id): m
        for m in c.run.measurements
        if m.kind in ("h2d", "d2h", "p2p") and m.size_bytes >= JUDGED_FROM_BYTES and _judged(m) and ":node" not in m.id
    }
    for (a, b, *rest), m in rows.items():
        other = rows.get((b, a, *rest))  # type: ignore[arg-type]
        if other is None or not a < b or {a, b} & coherent:
            continue
        fast, slow = (m, other) if m.median >= other.median else (other, m)
        gap = 1 - slow.median / fast.median
        if gap > 0.10:
            yield Finding(
                id="bw.asymmetric",
                state=State.WARN,
                subject=subject(slow),
                title=f"{subject(slow)} runs at {slow.median:.1f} GB/s, the other way at {fast.median:.1f}: "
                f"{100 * gap:.0f} % less",
                evidence=evidence(slow) + evidence(fast),
                rule="both directions of a road within 10 %",
                fix="repeat on an idle machine; compare the NUMA placement of the host's memory",
            )


@check(
    "bw.peer-slower-than-staged", title="Peer access makes copies slower", severity=State.WARN, reads=("topocheck bw",)
)
def peer_slower(context: Context) -> Iterator[Finding]:
    """A GPU pair copies faster through the host's memory than by peer access.

    Looks at: one pair's copy with peer access beside its copy without.

    Why it matters: NCCL and the frameworks take peer access wherever it is offered.

    Fix: NCCL_P2P_LEVEL below this pair's path class (or NCCL_P2P_DISABLE=1) makes NCCL stage such pairs.

    Does not apply: to pairs of which only one of the two was measured.
    """
    c = _measured(context)
    staged = {
        (m.from_, m.to): m for m in c.run.measurements if m.kind == "p2p" and m.peer_access is False and _judged(m)
    }
    for m in c.run.measurements:
        other = staged.get((m.from_, m.to))
        if m.kind != "p2p" or not m.peer_access or other is None or not _judged(m) or m.size_bytes != other.size_bytes:
            continue
        if m.issuer == "source" and m.median < other.median:
            yield Finding(
                id="bw.peer-slower-than-staged",
                state=State.WARN,
                subject=subject(m),
                title=f"{subject(m)}: {m.median:.1f} GB/s with peer access, {other.median:.1f} staged through the host",
                evidence=evidence(m) + evidence(other),
                rule="peer access should be faster than a copy through the host",
                fix="let NCCL stage such pairs: set NCCL_P2P_LEVEL below the pair's path class",
            )


@check(
    "bw.far-memory", title="Memory of the far NUMA node is much slower", severity=State.NOTE, reads=("topocheck bw",)
)
def far_memory(context: Context) -> Iterator[Finding]:
    """Host memory on another NUMA node than the GPU's gives less than 90 % of the near rate.

    Looks at: copies from the near node beside copies from the far one (--worst-node).

    Why it matters: a data loader that is not bound to the GPU's node copies at the far rate.

    Fix: bind each rank to the CPUs of its GPU (numactl --cpunodebind --membind, or the launcher's binding).

    Does not apply: where only one node was measured, or the nodes are not shown (a guest).
    """
    c = _measured(context)
    near = {
        (m.kind, m.from_, m.to, m.size_bytes): m
        for m in c.run.measurements
        if m.kind in ("h2d", "d2h") and ":node" not in m.id and "pageable" not in m.id and m.engine == "driver"
    }
    for m in c.run.measurements:
        other = near.get((m.kind, m.from_, m.to, m.size_bytes))
        if ":node" in m.id and other is not None and _judged(m) and _judged(other) and m.median < 0.9 * other.median:
            yield Finding(
                id="bw.far-memory",
                state=State.NOTE,
                subject=subject(m),
                title=f"{m.kind} {subject(m)}: {m.median:.1f} GB/s from the far NUMA node, {other.median:.1f} from the "
                f"near one ({100 * m.median / other.median:.0f} %)",
                evidence=evidence(m) + evidence(other),
                rule="90 % of the near rate",
                fix="bind each rank and its memory to the node of its GPU",
            )


@check("bw.below-baseline", title="Slower than the baseline", severity=State.FAIL, reads=("topocheck bw --baseline",))
def below_baseline(context: Context) -> Iterator[Finding]:
    """A measurement is slower than the same one in the baseline by more than the tolerance.

    Looks at: measurements with the same id in this run and in the file given with --baseline.

    Why it matters: what was reached once on this machine can be reached again; something changed.

    Fix: compare the two runs' software, clocks and links (topocheck diff of two snapshots).

    Does not apply: without --baseline, and to disturbed or unstable rows.
    """
    c = _measured(context)
    if c.baseline is None:
        raise not_applicable("no baseline was given (--baseline FILE)")
    mine = {m.id: m for m in c.run.measurements}
    changes = compare(c.run, c.baseline)
    if not changes:
        raise not_applicable("the baseline holds none of the measurements of this run")
    for change in changes:
        m = mine[change.measurement]
        if change.change < -c.tolerance and _judged(m):
            yield Finding(
                id="bw.below-baseline",
                state=State.FAIL,
                subject=subject(m),
                title=f"{m.kind} {subject(m)}: {change.now:.4g} {change.unit}, in the baseline {change.was:.4g}: "
                f"{-100 * change.change:.0f} % slower",
                evidence=evidence(m),
                rule=f"no more than {100 * c.tolerance:.0f} % below the baseline of {c.baseline.taken_at}",
                fix="compare software, link states and clocks of the two runs",
            )


@check("bw.engines-disagree", title="Two engines measure different rates", severity=State.NOTE, reads=("topocheck bw",))
def engines_disagree(context: Context) -> Iterator[Finding]:
    """The driver's engine and torch's differ by more than 3 % on the same copy.

    Looks at: rows of both engines (--engine both) with the same ends and size.

    Why it matters: a difference is one of method, not of the machine, and shows what a program that uses torch loses.

    Fix: none needed; torch adds two event calls to each copy and holds its streams with a kernel.

    Does not apply: to a run with one engine.
    """
    c = _measured(context)
    rows = {(m.kind, m.from_, m.to, m.size_bytes, m.issuer): m for m in c.run.measurements if m.engine == "driver"}
    for m in c.run.measurements:
        other = rows.get((m.kind, m.from_, m.to, m.size_bytes, m.issuer))
        if m.engine == "torch" and other is not None and m.kind in COPIES and "pageable" not in m.id:
            gap = m.median / other.median - 1
            if abs(gap) > 0.03:
                yield Finding(
                    id="bw.engines-disagree",
                    state=State.NOTE,
                    subject=subject(m),
                    title=f"{m.kind} {subject(m)}: torch {m.median:.1f} GB/s, driver {other.median:.1f} "
                    f"({100 * gap:+.0f} %): torch adds event calls to each copy",
                    evidence=evidence(m) + evidence(other),
                    rule="engines within 3 %",
                )


@check(
    "bw.not-judged", title="A measurement was disturbed or spread too far", severity=State.NOTE, reads=("topocheck bw",)
)
def not_judged(context: Context) -> Iterator[Finding]:
    """A row was measured while something else used the device, a clock was held back, or its samples spread too far.

    Looks at: NVML before, during and after each row, and the interquartile range of the samples (5 % of the median).

    Why it matters: such a number says nothing about the machine, in either direction.

    Fix: repeat it when the device is idle.

    Does not apply: to rows that are judged.
    """
    for m in _measured(context).run.measurements:
        wide = m.spread > UNSTABLE and m.unit == "GB/s"
        if m.verified is not False and (m.disturbed or wide):
            why = m.disturbed or f"samples spread over {100 * m.spread:.0f} % of the median"
            yield Finding(
                id="bw.not-judged",
                state=State.NOTE,
                subject=subject(m),
                title=f"{m.kind} {subject(m)}: not judged: {why}",
                evidence=evidence(m),
                rule=f"undisturbed, and an interquartile range of at most {100 * UNSTABLE:.0f} % of the median",
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

    Looks at: the rows of the plan that gave no measurement.

    Why it matters: unknown is not OK.

    Fix: the text names the call, the pair or rank and the next step.

    Does not apply: to rows that the machine cannot do, or that the time did not allow; these are listed as notes.
    """
    for n in _measured(context).run.not_measured:
        yield Finding(
            id="bw.not-measured",
            state=State.UNKNOWN if n.required else State.NOTE,
            subject=n.id,
            title=f"{n.id}: not measured: {n.reason}",
            fix=n.next_step or None,
        )
