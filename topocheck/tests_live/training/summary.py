"""From what was measured to the tables of a scaling run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.tests_live.launch.training_job import TrainRow
from topocheck.tests_live.training.plan import most_ranks, places, train_rows
from topocheck.tests_live.training.predict import Fits, all_reduce_fits, bucket_steps, pattern_us
from topocheck.tests_live.training.report_types import (
    BucketPoint,
    BucketSweep,
    JobLayout,
    PatternRow,
    ScalePoint,
    ScaleReport,
    TrainingRow,
)


def summarize(report: ScaleReport, outcomes: Sequence[Measurement | NotMeasured]) -> ScaleReport:
    """Return the report with its tables."""
    measured = tuple(o for o in outcomes if isinstance(o, Measurement))
    missing = tuple(o for o in outcomes if isinstance(o, NotMeasured))
    by_id = {m.id: m for m in measured}
    fits = all_reduce_fits(measured)
    points = tuple(_collective_points(report.job, measured)) + tuple(_step_points(report, by_id))
    buckets, sweeps = _buckets(report, by_id, fits)
    return msgspec.structs.replace(
        report,
        points=points,
        training=tuple(_training(report, by_id, missing)),
        buckets=buckets,
        sweeps=sweeps,
        patterns=tuple(_patterns(by_id, fits)),
        fits=tuple(fits.values()),
        not_applicable=report.not_applicable + tuple(m.reason for m in _distinct(missing) if not m.required),
        not_measured=tuple(m for m in missing if m.required),
        measurements=measured,
    )


def _distinct(missing: Sequence[NotMeasured]) -> list[NotMeasured]:
    return list({m.reason: m for m in missing}.values())


def oversubscribed(job: JobLayout, device: str, ranks: int) -> bool:
    """Tell whether a node has more ranks of host memory than cores for them."""
    return device == "host" and min(ranks, job.ranks_per_node or ranks) > job.cores


def _nodes(job: JobLayout, ranks: int) -> int | None:
    if job.nodes == 1:
        return 1
    per = job.ranks_per_node
    return ranks // per if per and ranks % per == 0 else None


def _collective_points(job: JobLayout, measured: Sequence[Measurement]) -> list[ScalePoint]:
    largest: dict[tuple[str, int], Measurement] = {}
    sizes = {m.size_bytes for m in measured if m.kind == "collective"}
    for m in measured:
        if m.kind != "collective" or m.mode != "back_to_back" or not m.backend or not m.ranks:
            continue
        kept = largest.get((m.backend, m.ranks))
        if kept is None or m.size_bytes > kept.size_bytes:
            largest[m.backend, m.ranks] = m
    out = []
    first: dict[str, float] = {}
    for (backend, ranks), m in sorted(largest.items()):
        if m.size_bytes < max(sizes) / 2 or not m.busbw_gb_s or m.time_us is None:
            continue
        device = "gpu" if backend == "nccl" else "host"
        over = oversubscribed(job, device, ranks)
        base = first.setdefault(backend, m.busbw_gb_s)
        out.append(
            ScalePoint(
                curve=str(m.collective),
                backend=backend,
                device=device,
                ranks=ranks,
                size_bytes=m.size_bytes,
                nodes=_nodes(job, ranks),
                time_us=m.time_us,
                spread=m.spread,
                rate=m.busbw_gb_s,
                unit="GB/s busbw",
                efficiency=None if over else m.busbw_gb_s / base,
                oversubscribed=over,
            )
        )
    return out


def _step_points(report: ScaleReport, by_id: dict[str, Measurement]) -> list[ScalePoint]:
    out = []
    serial: dict[tuple[str, str], float] = {}
    for row in train_rows(report.job, report.options):
        m = by_id.get(f"{row.id}:train_step")
        if m is None or row.kind != "step" or row.hook != "none" or row.bucket_mib:
            continue
        rate = row.ranks * row.batch / m.median * 1e6
        if row.ranks == 1:
            serial[row.backend, row.device] = rate
        base = serial.get((row.backend, row.device))
        over = oversubscribed(report.job, row.device, row.ranks)
        claim = base is not None and not over
        out.append(
            ScalePoint(
                curve="training step",
                backend=row.backend,
                device=row.device,
                ranks=row.ranks,
                size_bytes=row.gradient_bytes,
                batch=row.batch,
                nodes=_nodes(report.job, row.ranks),
                time_us=m.median,
                spread=m.spread,
                rate=rate,
                unit="samples/s",
                speed_up=rate / base if base else None,
                efficiency=rate / base / row.ranks if claim and base else None,
                oversubscribed=over,
            )
        )
    return out


def _training(report: ScaleReport, by_id: dict[str, Measurement], missing: Sequence[NotMeasured]) -> list[TrainingRow]:
    """Return serial, parallel and compressed training side by side."""
    rows = {r.id: r for r in train_rows(report.job, report.options)}
    why = {m.id: m.reason for m in missing}
    out = []
    for backend, device in places(report.job, report.options)[0]:
        most = most_ranks(report.job, device)
        stem = f"scale:train:{backend}:{device}"
        plain = by_id.get(f"{stem}:{most}:step:train_step")
        for ranks, hook in [(1, "none"), *((most, h) for h in report.options.hooks if most > 1)]:
            step = f"{stem}:{ranks}:" + ("step" if hook == "none" else f"hook {hook}")
            digits = f"{stem}:{ranks}:" + ("digits" if hook == "none" else f"digits {hook}")
            if step not in rows:
                continue
            took, error = by_id.get(f"{step}:train_step"), by_id.get(f"{step}:gradient_error")
            accuracy, epoch = by_id.get(f"{digits}:accuracy"), by_id.get(f"{digits}:epoch")
            out.append(
                TrainingRow(
                    backend=backend,
                    device=device,
                    ranks=ranks,
                    gradient_bytes=rows[step].gradient_bytes,
                    batch=rows[step].batch,
                    hook=hook,
                    step_us=took.median if took else None,
                    step_ratio=took.median / plain.median if took and plain and ranks > 1 else None,
                    gradient_error=error.median if error else None,
                    accuracy=accuracy.median if accuracy else None,
                    epoch_us=epoch.median if epoch else None,
                    reason=why.get(step, why.get(digits, "")),
                )
            )
    return out


def _buckets(
    report: ScaleReport, by_id: dict[str, Measurement], fits: Fits
) -> tuple[tuple[BucketPoint, ...], tuple[BucketSweep, ...]]:
    points: list[BucketPoint] = []
    sweeps: list[BucketSweep] = []
    swept: dict[tuple[str, str, int], list[TrainRow]] = {}
    for row in train_rows(report.job, report.options):
        if row.bucket_mib and f"{row.id}:train_step" in by_id:
            swept.setdefault((row.backend, row.device, row.ranks), []).append(row)
    for (backend, device, ranks), rows in swept.items():
        stem = f"scale:train:{backend}:{device}:1:step"
        predicted, why = bucket_steps(rows, fits, by_id.get(f"{stem}:train_step"), by_id.get(f"{stem}:backward"))
        mine = []
        for row in rows:
            m = by_id[f"{row.id}:train_step"]
            mine.append(
                BucketPoint(
                    backend=backend,
                    device=device,
                    ranks=ranks,
                    gradient_bytes=row.gradient_bytes,
                    batch=row.batch,
                    bucket_mib=row.bucket_mib,
                    step_us=m.median,
                    spread=m.spread,
                    predicted_us=predicted.get(row.bucket_mib),
                )
            )
        points += mine
        sweeps.append(_sweep(mine, why))
    return tuple(points), tuple(sweeps)


def _sweep(points: Sequence[BucketPoint], why: str) -> BucketSweep:
    """Return what the points of one sweep amount to; `why` there is no prediction."""
    best = min(points, key=lambda p: p.step_us)
    foreseen = min(((p.predicted_us, p.bucket_mib) for p in points if p.predicted_us is not None), default=None)
    near = [p.bucket_mib for p in points if p.step_us <= 1.02 * best.step_us]
    text = f"fastest {best.bucket_mib:g} MiB ({best.step_us / 1000:.2f} ms a step)"
    if len(near) > 1:
        text += f"; {min(near):g} to {max(near):g} MiB are within 2 % of it"
    if foreseen:
        text += f"; the cost model predicted {foreseen[1]:g} MiB ({foreseen[0] / 1000:.2f} ms)"
    elif why:
        text += f"; no prediction: {why}"
    return BucketSweep(
        backend=best.backend,
        device=best.device,
        ranks=best.ranks,
        gradient_bytes=best.gradient_bytes,
        batch=best.batch,
        best_mib=best.bucket_mib,
        predicted_mib=foreseen[1] if foreseen else None,
        reason=why,
        text=text,
    )


def _patterns(by_id: dict[str, Measurement], fits: Fits) -> list[PatternRow]:
    out = []
    for m in by_id.values():
        if m.kind != "pattern" or not m.backend or not m.ranks:
            continue
        # The backend's own all_reduce is what the model was fitted to: there is nothing to foretell.
        predicted, why = (None, "") if m.mode == "backend" else pattern_us(m, fits)
        out.append(
            PatternRow(
                backend=m.backend,
                device=m.placement,
                ranks=m.ranks,
                size_bytes=m.size_bytes,
                pattern=str(m.mode),
                time_us=m.median,
                predicted_us=predicted,
                reason=why,
                verified=m.verified is not False,
            )
        )
    return out
