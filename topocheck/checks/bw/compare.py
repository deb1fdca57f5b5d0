"""Checks of what was measured, measurement beside measurement: siblings, directions, peer access, nodes, a baseline."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.bandwidth.assess import COPIES, JUDGED_FROM_BYTES
from topocheck.bandwidth.baseline import NOISE, compare
from topocheck.bandwidth.cases import HOST
from topocheck.bandwidth.stats import median
from topocheck.checks.bw.results import MeasuredContext, devices, evidence, judged, measured, name, subject
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.model.base import Finding, State
from topocheck.model.measurement import Measurement, near_and_pinned
from topocheck.model.units import value_text


@check(
    "bw.slower-than-siblings",
    title="A device is slower than its siblings",
    severity=State.FAIL,
    reads=("topocheck bw",),
)
def slower_than_siblings(context: Context) -> Iterator[Finding]:
    """Of measurements of the same kind on equal devices and paths, one is slower.

    Looks at: three or more measurements of one kind, size, engine and path class on one GPU model, each beside the
    median of all: 10 % below is a warning, 25 % a failure.

    Why it matters: a collective runs at the pace of its slowest member, and a sick link shows against its siblings
    long before it falls below what its kind should reach.

    Fix: compare link state and counters of the slow device with its siblings' (topocheck report), then its placement.

    Does not apply: to fewer than three siblings, and where the samples were disturbed.
    """
    c = measured(context)
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for m in c.run.measurements:
        if m.kind in COPIES and m.size_bytes >= JUDGED_FROM_BYTES and judged(m) and m.far_node is None:
            groups.setdefault(_class_of(m, c), []).append(m)
    for members in groups.values():
        if len(members) < 3:
            continue
        middle = median([m.median for m in members])
        for m in members:
            loss = 1 - m.median / middle
            if loss > 0.10:
                yield Finding(
                    state=State.FAIL if loss > 0.25 else State.WARN,
                    subject=subject(m),
                    devices=devices(m),
                    title=f"{name(m)}: {m.median:.1f} GB/s, {100 * loss:.0f} % below the median "
                    f"{middle:.1f} of its {len(members)} siblings",
                    consequence="collectives run at the pace of the slowest",
                    evidence=evidence(m),
                    rule="within 10 % of the median of equal devices on equal paths (25 % for a failure)",
                    fix="compare its links, counters and placement with its siblings'",
                )


def _class_of(m: Measurement, c: MeasuredContext) -> tuple[object, ...]:
    names = {g.address: str(g.name) for g in c.topology.gpus}
    path = next((p for p in c.topology.paths if p.from_ == m.from_ and p.to == m.to), None)
    class_ = str(path.class_) if path else HOST
    ends = (names.get(m.from_, m.from_), names.get(m.to, m.to))
    return (m.kind, m.size_bytes, m.engine, m.issuer, m.peer_access, m.direction, m.pageable, class_, *ends)


@check("bw.asymmetric", title="One direction is slower than the other", severity=State.WARN, reads=("topocheck bw",))
def asymmetric(context: Context) -> Iterator[Finding]:
    """The two directions of one path differ by more than 10 %.

    Looks at: host to GPU beside GPU to host, and each GPU pair's two directions, copied by the same engine.

    Why it matters: a link carries the same both ways; a difference points to a device, a host bridge or memory.

    Fix: repeat it on an idle machine; then compare NUMA placement (--far-numa), payload size and relaxed ordering.

    Does not apply: to superchips joined by C2C, whose directions differ by nature, and to disturbed rows.
    """
    c = measured(context)
    coherent = {g.address for g in c.topology.gpus if g.nvml and isinstance(g.nvml.c2c_links, int) and g.nvml.c2c_links}
    rows = {
        (m.from_, m.to, m.size_bytes, m.engine, m.issuer, m.peer_access, m.pageable): m
        for m in c.run.measurements
        if m.kind in ("h2d", "d2h", "p2p") and m.size_bytes >= JUDGED_FROM_BYTES and judged(m) and m.far_node is None
    }
    for (a, b, *rest), m in rows.items():
        other = rows.get((b, a, *rest))  # type: ignore[arg-type]
        if other is None or not a < b or {a, b} & coherent:
            continue
        fast, slow = (m, other) if m.median >= other.median else (other, m)
        gap = 1 - slow.median / fast.median
        if gap > 0.10:
            yield Finding(
                state=State.WARN,
                subject=subject(slow),
                devices=devices(slow),
                title=f"{subject(slow)} runs at {slow.median:.1f} GB/s, the other way at {fast.median:.1f}: "
                f"{100 * gap:.0f} % less",
                evidence=evidence(slow) + evidence(fast),
                rule="both directions of a path within 10 %",
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
    c = measured(context)
    staged = {
        (m.from_, m.to): m for m in c.run.measurements if m.kind == "p2p" and m.peer_access is False and judged(m)
    }
    for m in c.run.measurements:
        other = staged.get((m.from_, m.to))
        if m.kind != "p2p" or not m.peer_access or other is None or not judged(m) or m.size_bytes != other.size_bytes:
            continue
        if m.issuer == "source" and m.median < other.median:
            yield Finding(
                state=State.WARN,
                subject=subject(m),
                devices=devices(m),
                title=f"{subject(m)}: {m.median:.1f} GB/s with peer access, {other.median:.1f} staged through the host",
                evidence=evidence(m) + evidence(other),
                rule="peer access should be faster than a copy through the host",
                fix="let NCCL stage such pairs: set NCCL_P2P_LEVEL below the pair's path class",
            )


@check("bw.far-numa", title="Memory of the far NUMA node is much slower", severity=State.NOTE, reads=("topocheck bw",))
def far_memory(context: Context) -> Iterator[Finding]:
    """Host memory on another NUMA node than the GPU's gives less than 90 % of the near rate.

    Looks at: copies from the near node beside copies from the far one (--far-numa).

    Why it matters: a data loader that is not bound to the GPU's node copies at the far rate.

    Fix: bind each rank to the CPUs of its GPU (numactl --cpunodebind --membind, or the launcher's binding).

    Does not apply: where only one node was measured, or the nodes are not shown (a guest).
    """
    c = measured(context)
    near = {
        (m.kind, m.from_, m.to, m.size_bytes): m
        for m in c.run.measurements
        if m.kind in ("h2d", "d2h") and near_and_pinned(m) and m.engine == "driver"
    }
    for m in c.run.measurements:
        other = near.get((m.kind, m.from_, m.to, m.size_bytes)) if m.kind in ("h2d", "d2h") else None
        if (
            m.far_node is not None
            and other is not None
            and judged(m)
            and judged(other)
            and m.median < 0.9 * other.median
        ):
            yield Finding(
                state=State.NOTE,
                subject=subject(m),
                devices=devices(m),
                title=f"{name(m)}: {m.median:.1f} GB/s from the far NUMA node, {other.median:.1f} from the "
                f"near one ({100 * m.median / other.median:.0f} %)",
                evidence=evidence(m) + evidence(other),
                rule="90 % of the near rate",
                fix="bind each rank and its memory to the node of its GPU",
            )


@check("bw.below-baseline", title="Slower than the baseline", severity=State.FAIL, reads=("topocheck bw --baseline",))
def below_baseline(context: Context) -> Iterator[Finding]:
    """A measurement is slower than the same one in the baseline by more than the tolerance.

    Looks at: measurements with the same id in this run and in the file given with --baseline. One whose samples spread
    far (more than 5 %) is judged where even its faster quarter lost more than the tolerance. Where the middle halves of
    the two runs' samples overlap, the change is within their own noise: a note. A collective over the CPU's sockets
    (gloo, mpi) below 64 MiB is a matter of the scheduler more than of a wire: a note. One that seems slower and was
    disturbed, or is too unsteady to say, is unknown, and so is a baseline that holds none of the measurements.

    Why it matters: what was reached once on this machine can be reached again; something changed.

    Fix: compare the two runs' software, clocks and links (topocheck diff of two snapshots).

    Does not apply: without --baseline.
    """
    c = measured(context)
    if c.baseline is None:
        raise not_applicable("no baseline was given (--baseline FILE)")
    changes = compare(c.run, c.baseline, c.tolerance)
    when = c.baseline.taken_at
    if not changes and c.run.measurements:
        yield Finding(
            state=State.UNKNOWN,
            subject="baseline",
            title=f"the baseline of {when} holds none of the measurements of this run",
            fix="compare with a run of the same options: sizes, ranks, backend, engine, data type",
        )
    mine = {m.id: m for m in c.run.measurements}
    for change in changes:
        if change.verdict == "within_tolerance":
            continue
        m = mine[change.measurement]
        by_cpu = m.kind == "collective" and m.backend != "nccl" and m.size_bytes < JUDGED_FROM_BYTES
        known = change.verdict == "slower"
        now, was = value_text(change.now, change.unit), value_text(change.was, change.unit)
        title = f"{name(m)}: {now}, in the baseline {was}: {change.words()}"
        yield Finding(
            state=State.NOTE if by_cpu or change.reason == NOISE else State.FAIL if known else State.UNKNOWN,
            subject=subject(m),
            devices=devices(m),
            title=title if known else f"{title}; not judged: {change.reason}",
            evidence=evidence(m),
            rule=f"no more than {100 * c.tolerance:.3g} % below the rate in the baseline of {when}",
            fix="compare software, link states and clocks of the two runs" if known else "repeat it on an idle machine",
        )


@check("bw.engines-disagree", title="Two engines measure different rates", severity=State.NOTE, reads=("topocheck bw",))
def engines_disagree(context: Context) -> Iterator[Finding]:
    """The driver's engine and torch's differ by more than 3 % on the same copy.

    Looks at: rows of both engines (--engine both) with the same ends and size.

    Why it matters: a difference is one of method, not of the machine, and shows what a program that uses torch loses.

    Fix: none needed; torch adds two event calls to each copy and holds its streams with a kernel.

    Does not apply: to a run with one engine.
    """
    c = measured(context)
    rows = {(m.kind, m.from_, m.to, m.size_bytes, m.issuer): m for m in c.run.measurements if m.engine == "driver"}
    for m in c.run.measurements:
        other = rows.get((m.kind, m.from_, m.to, m.size_bytes, m.issuer))
        if m.engine == "torch" and other is not None and m.kind in COPIES and not m.pageable:
            gap = m.median / other.median - 1
            if abs(gap) > 0.03:
                yield Finding(
                    state=State.NOTE,
                    subject=subject(m),
                    devices=devices(m),
                    title=f"{name(m)}: torch {m.median:.1f} GB/s, driver {other.median:.1f} "
                    f"({100 * gap:+.0f} %): torch adds event calls to each copy",
                    evidence=evidence(m) + evidence(other),
                    rule="engines within 3 %",
                )


@check("bw.below-policy", title="Below what the policy asks", severity=State.FAIL, reads=("topocheck bw", "policy"))
def below_policy(context: Context) -> Iterator[Finding]:
    """A measured rate is below the least that the policy says this node must have.

    Looks at: `min_h2d_gb_s` beside copies between host and GPU, either way; `min_p2p_gb_s` beside copies by peer
    access; `min_busbw_gb_s` beside the largest all_reduce over NCCL.

    Why it matters: the site knows what its machines reach, and asks for it.

    Fix: the same as for bw.below-expected; or a policy that fits this kind of node.

    Does not apply: where the policy asks for none of these, to small, pageable, far, staged and disturbed copies.
    """
    c = measured(context)
    expect = c.policy.expect
    if expect.min_h2d_gb_s is None and expect.min_p2p_gb_s is None and expect.min_busbw_gb_s is None:
        raise not_applicable("the policy asks for no rate ([expect] min_h2d_gb_s, min_p2p_gb_s, min_busbw_gb_s)")
    sweeps = [m for m in c.run.measurements if m.collective == "all_reduce" and m.backend == "nccl" and judged(m)]
    largest = max((m.size_bytes for m in sweeps), default=0)
    for m in c.run.measurements:
        plain = near_and_pinned(m) and judged(m)
        least: float | None = None
        if m.kind in ("h2d", "d2h") and m.size_bytes >= JUDGED_FROM_BYTES and plain:
            least = expect.min_h2d_gb_s
        elif m.kind == "p2p" and m.peer_access and m.size_bytes >= JUDGED_FROM_BYTES and plain:
            least = expect.min_p2p_gb_s
        elif m in sweeps and m.size_bytes == largest and m.mode == "back_to_back":
            least = expect.min_busbw_gb_s
        value = m.busbw_gb_s if m.kind == "collective" else m.bandwidth_gb_s
        if least is not None and value is not None and value < least:
            yield Finding(
                state=State.FAIL,
                subject=subject(m),
                devices=devices(m),
                title=f"{name(m)}: {value:.1f} GB/s, and the policy asks for {least:.1f}",
                evidence=evidence(m),
                rule=f"[expect] of the policy {c.policy.source}: at least {least:g} GB/s",
                fix="check what bw.below-expected names, or write a policy that fits this kind of node",
            )
