"""From a live test to its report: assessments, fits, advice and the findings of the `bw.*` checks. Pure."""

from __future__ import annotations

import msgspec

from topocheck.bandwidth.advice import advise, gradient_example
from topocheck.bandwidth.assess import assess
from topocheck.bandwidth.baseline import count
from topocheck.bandwidth.cost_model import Point, fit_sweep, point_of
from topocheck.bandwidth.costs import busbw_factor
from topocheck.checks import live_checks, registry
from topocheck.checks.bw.nccl_bound import with_bounds
from topocheck.checks.bw.results import MeasuredContext
from topocheck.gpudirect.types import GpuDirect
from topocheck.model.measurement import BandwidthReport, Collective, Fit, Measurement, Run, near_and_pinned, unsteady
from topocheck.model.node import Node
from topocheck.nccl.predict.types import NcclView
from topocheck.policy.types import Policy
from topocheck.topology.types import Topology

BASELINE_CHECK = "bw.below-baseline"


def make_report(
    run: Run,
    topology: Topology,
    node: Node,
    *,
    policy: Policy | None = None,
    baseline: Run | None = None,
    tolerance: float = 0.1,
    training: tuple[float, float] | None = None,
) -> BandwidthReport:
    """Return what a run amounts to.

    Args:
        run: what was measured.
        topology: of the node it was measured on.
        node: its facts.
        policy: what is on and how strictly; the default policy where None.
        baseline: an earlier run of the same node.
        tolerance: part of the baseline that may be lost.
        training: gradient bytes and seconds of a backward pass, for advice on fusion buffers.
    """
    policy = policy or Policy()
    assessments = with_bounds(assess(run, topology), run, node, topology)
    context = MeasuredContext(
        node=node,
        topology=topology,
        gpudirect=GpuDirect(),
        nccl=NcclView(),
        policy=policy,
        run=run,
        assessments=assessments,
        baseline=baseline,
        tolerance=tolerance,
    )
    outcomes = list(registry.run(live_checks(), context))
    findings = sorted((f for _, found in outcomes for f in found), key=registry.finding_order)
    fits, advice = _fits_and_advice(run, training)
    return BandwidthReport(
        run=run,
        assessments=assessments,
        fits=fits,
        advice=advice,
        findings=tuple(findings),
        baseline=None if baseline is None else count(run, baseline, tolerance),
    )


def replay(
    kept: BandwidthReport,
    *,
    baseline: Run | None = None,
    tolerance: float = 0.1,
    training: tuple[float, float] | None = None,
) -> BandwidthReport:
    """Return a run from a file as it was judged when it was measured, compared with a baseline where one is given.

    What was found by its machine's links stays; only the comparison with a baseline is made anew, since it needs
    nothing but the two runs.
    """
    found = [f for f in kept.findings if f.id != BASELINE_CHECK]
    if baseline is not None:
        context = MeasuredContext(
            node=Node(source="file"),
            topology=Topology(),
            gpudirect=GpuDirect(),
            nccl=NcclView(),
            policy=Policy(),
            run=kept.run,
            assessments=kept.assessments,
            baseline=baseline,
            tolerance=tolerance,
        )
        checks = [c for c in live_checks() if c.id == BASELINE_CHECK]
        found += [f for _, fresh in registry.run(checks, context) for f in fresh]
    fits, advice = _fits_and_advice(kept.run, training)
    return BandwidthReport(
        run=kept.run,
        assessments=kept.assessments,
        fits=fits,
        advice=advice,
        findings=tuple(sorted(found, key=registry.finding_order)),
        baseline=None if baseline is None else count(kept.run, baseline, tolerance),
    )


def _fits_and_advice(run: Run, training: tuple[float, float] | None) -> tuple[tuple[Fit, ...], tuple[str, ...]]:
    sweeps = fits_of(run)
    curves = [(f, points) for collective, f, points in sweeps if collective == "all_reduce"]
    advice = [line for f, points in curves for line in advise(f, points)]
    if training is not None:
        examples = [line for f, _ in curves for line in gradient_example(f, *training)]
        advice += examples or [
            "no advice for --gradients: it needs a cost model of all_reduce, from four steady sizes or more"
        ]
    return tuple(f for _, f, _ in sweeps), tuple(advice)


def fits_of(run: Run) -> list[tuple[Collective | None, Fit, list[Point]]]:
    """Return the cost model of every sweep in a run: rows that differ in their size alone, three sizes or more.

    Only steady rows are fitted: one that was disturbed or spread too far says nothing about alpha and beta.

    With each the collective that was swept, None for copies, and the points of the sweep.
    """
    sweeps: dict[str, list[Measurement]] = {}
    for m in run.measurements:
        if m.kind == "collective" and m.mode in ("back_to_back", "graph"):
            placed = "in place" if m.in_place else "out of place"
            sweeps.setdefault(f"{m.collective} {m.backend} {m.ranks} ranks, {placed}, {m.mode}", []).append(m)
        elif m.kind in ("h2d", "d2h", "p2p") and near_and_pinned(m):
            how = "staged" if m.peer_access is False else (m.issuer or "")
            ends = f"{m.from_label or m.from_} to {m.to_label or m.to}"
            sweeps.setdefault(f"{m.kind} {ends} {how} {m.engine}", []).append(m)
    out = []
    for subject, rows in sweeps.items():
        if len({m.size_bytes for m in rows}) < 3:
            continue
        steady = [m for m in rows if not unsteady(m)]
        collective = rows[0].collective
        factor = busbw_factor(collective, rows[0].ranks or 1) if collective else 1.0
        rate = "busbw" if collective else "bandwidth"
        points = [point_of(m) for m in steady]
        fit = fit_sweep(subject, points, factor=factor, rate=rate)
        if fit.not_fitted and len(steady) < len(rows):
            left = f"{len(rows) - len(steady)} of {len(rows)} sizes are unsteady and left out"
            fit = msgspec.structs.replace(fit, not_fitted=f"{fit.not_fitted}; {left}")
        out.append((collective, fit, points))
    return out
