"""From a live test to its report: assessments, fits, advice and the findings of the `bw.*` checks. Pure."""

from __future__ import annotations

from topocheck.bandwidth.advice import advise, gradient_example
from topocheck.bandwidth.assess import assess
from topocheck.bandwidth.baseline import count
from topocheck.bandwidth.cost_model import Point, fit_sweep, point_of
from topocheck.bandwidth.costs import busbw_factor
from topocheck.checks import live_checks, registry
from topocheck.checks.bw.results import MeasuredContext
from topocheck.gpudirect.types import GpuDirect
from topocheck.model.measurement import BandwidthReport, Collective, Fit, Measurement, Run, near_and_pinned
from topocheck.model.node import Node
from topocheck.nccl.predict.types import NcclView
from topocheck.policy.types import Policy
from topocheck.topology.types import Topology


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
    assessments = assess(run, topology)
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
    sweeps = fits_of(run)
    curves = [(f, points) for collective, f, points in sweeps if collective == "all_reduce"]
    advice = [line for f, points in curves for line in advise(f, points)]
    if training is not None:
        examples = [line for f, _ in curves for line in gradient_example(f, *training)]
        advice += examples or [
            "no advice for --gradients: it takes a cost model of all_reduce, from four sizes or more"
        ]
    return BandwidthReport(
        run=run,
        assessments=assessments,
        fits=tuple(f for _, f, _ in sweeps),
        advice=tuple(advice),
        findings=tuple(findings),
        baseline=None if baseline is None else count(run, baseline, tolerance),
    )


def fits_of(run: Run) -> list[tuple[Collective | None, Fit, list[Point]]]:
    """Return the cost model of every sweep in a run: rows that differ in their size alone, three sizes or more.

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
        collective = rows[0].collective
        factor = busbw_factor(collective, rows[0].ranks or 1) if collective else 1.0
        rate = "busbw" if collective else "bandwidth"
        points = [point_of(m) for m in rows]
        out.append((collective, fit_sweep(subject, points, factor=factor, rate=rate), points))
    return out
