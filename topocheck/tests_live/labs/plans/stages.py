"""Labs `pipeline` and `halo`."""

from __future__ import annotations

from typing import cast

from topocheck.bandwidth import collective_model, pipeline
from topocheck.bandwidth.lab_catalogue import BY_NAME
from topocheck.model.lab import LabLine, LabTable
from topocheck.tests_live.labs.plans.common import (
    KIB,
    Filled,
    LabOptions,
    Links,
    Results,
    Rows,
    counts,
    crowded_note,
    data_text,
    each,
    lines,
    link_rows,
    places,
    ratio,
)
from topocheck.tests_live.launch.lab_job import LabRow, Work
from topocheck.tests_live.training.report_types import JobLayout

COMPUTE_MS = 10.0
ACTIVATION = 64 * KIB
MICRO = (1, 2, 4, 8)
BORDERS = (4 * KIB, 64 * KIB)
ROWS_EACH = 64
_WORKS: tuple[Work, Work] = ("pipeline", "torch_pipeline")
"""Sends and receives of ours, and torch.distributed.pipelining, which has torch's backends alone."""


def plan_pipeline(job: JobLayout, options: LabOptions, without: dict[str, str]) -> Rows:
    """Return the rows of `pipeline`; torch's last, so that one of them that hangs costs none of the others."""
    return Rows(
        lab=tuple(
            LabRow(
                id=f"lab:{work}:{backend}:{device}:{n}:{m}:{schedule}", work=work, backend=backend,
                device=device, ranks=n, pieces=m, name=schedule, size_bytes=(options.sizes or (ACTIVATION,))[0],
                compute_s=(options.compute_ms or COMPUTE_MS) / 1e3, samples=min(3, options.samples),
            )
            for work in _WORKS
            for backend, device, n in each(job, options, without)
            for m in options.pieces or MICRO
            for schedule in pipeline.SCHEDULES
            if work == _WORKS[0] or backend != "mpi"
        )
    )  # fmt: skip


def fill_pipeline(job: JobLayout, options: LabOptions, without: dict[str, str], rows: Rows, results: Results) -> Filled:
    """Return the table of `pipeline`."""
    spec = BY_NAME["pipeline"].table("pipeline")
    out: list[LabLine] = []
    for backend, device, n in each(job, options, without, spec, out):
        mine = [r for r in rows.lab if (r.backend, r.device, r.ranks) == (backend, device, n)]
        for row in sorted(mine, key=lambda r: (r.pieces, r.name != pipeline.SCHEDULES[0], r.work)):
            m, schedule = row.pieces, cast(pipeline.Schedule, row.name)
            took = results.median(row)
            busy = m * row.compute_s * (1 + pipeline.BACKWARD) * 1e6
            foreseen = pipeline.step_s(schedule, n, m, row.compute_s, row.compute_s * pipeline.BACKWARD) * 1e6
            out.append(
                spec.row(
                    results.why(row),
                    backend=backend,
                    memory=device,
                    ranks=n,
                    micro=m,
                    schedule=pipeline.NAMES[schedule] + (" (torch)" if row.work == _WORKS[1] else ""),
                    time_us=took,
                    predicted_us=foreseen,
                    bubble=None if took is None else 1 - busy / took,
                    formula=pipeline.bubble(n, m),
                    held=_whole(results.median(row, "held")),
                    data=data_text(results.get(row, "time")),
                )
            )
    ms = options.compute_ms or COMPUTE_MS
    notes = (
        f"a stage waits {ms:g} ms for a forward and {pipeline.BACKWARD * ms:g} ms for a backward pass; predicted "
        "without the time of messages; (torch): torch.distributed.pipelining, with autograd",
    )
    return Filled(tables=(LabTable(spec=spec, rows=lines(out), notes=notes),))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def plan_halo(job: JobLayout, options: LabOptions, without: dict[str, str]) -> Rows:
    """Return the rows of `halo`."""
    rows = link_rows(job, options, places(job, options, without))
    rows += [
        LabRow(
            id=f"lab:halo:{backend}:{device}:{n}:{size}:{height}", work="halo", backend=backend, device=device, ranks=n,
            size_bytes=size, count=height, samples=options.samples, sample_s=options.sample_s,
        )
        for backend, device, n in each(job, options, without)
        for size in options.sizes or BORDERS
        for height in (ROWS_EACH // 4, ROWS_EACH)
    ]  # fmt: skip
    return Rows(lab=tuple(rows))


def fill_halo(job: JobLayout, options: LabOptions, without: dict[str, str], rows: Rows, results: Results) -> Filled:
    """Return the tables of `halo`."""
    spec, links = BY_NAME["halo"].table("halo"), Links(rows.lab, results)
    out: list[LabLine] = []
    for backend, device, n in each(job, options, without, spec, out):
        for row in rows.lab:
            if row.work != "halo" or (row.backend, row.device, row.ranks) != (backend, device, n):
                continue
            size = row.size_bytes
            step, compute, exchange = (results.median(row, k) for k in ("time", "compute", "exchange"))
            neighbours = 1 if n == 2 else 2

            def seconds(alpha: float, beta: float, size: int = size, neighbours: int = neighbours) -> float:
                return collective_model.halo_s(neighbours, size, alpha, beta)

            out.append(
                spec.row(
                    results.why(row),
                    backend=backend,
                    memory=device,
                    ranks=n,
                    size_b=size,
                    rows=row.count,
                    time_us=step,
                    compute_us=compute,
                    exchange_us=exchange,
                    predicted_us=links.predict(job, row, seconds),
                    share=ratio(exchange, None if exchange is None or compute is None else exchange + compute),
                    data=data_text(results.get(row, "time")),
                )
            )
    notes = crowded_note(job, counts(job, options))
    return Filled(
        tables=(LabTable(spec=spec, rows=lines(out), notes=notes), links.table()), fits=tuple(links.fits.values())
    )
