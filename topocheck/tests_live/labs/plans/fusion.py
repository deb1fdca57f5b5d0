"""Lab `fusion`."""

from __future__ import annotations

from collections.abc import Sequence

from topocheck.bandwidth.cost_model import fit_sweep, point_of
from topocheck.bandwidth.fusion import buffer_for, by_index, by_size, exchange_s
from topocheck.bandwidth.lab_catalogue import BY_NAME
from topocheck.model.lab import LabLine, LabTable
from topocheck.model.measurement import Fit, Measurement
from topocheck.model.units import size_text
from topocheck.tests_live.labs.plans.common import (
    KIB,
    MIB,
    Filled,
    LabOptions,
    Results,
    Rows,
    counts,
    crowded_note,
    each,
    fit_values,
    lines,
    ratio,
)
from topocheck.tests_live.labs.plans.messages import net_time
from topocheck.tests_live.launch.lab_job import Exchange, LabRow
from topocheck.tests_live.training.report_types import JobLayout

COLLECTIVES: tuple[Exchange, ...] = ("all_reduce", "all_gather", "reduce_scatter")
SIZES = (4 * KIB, 32 * KIB, 256 * KIB, 1 * MIB, 4 * MIB, 16 * MIB)
GPU_SIZES = (64 * KIB, 1 * MIB, 8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB)
LAYERS = 24
INDEX = (1, 2, 4, 8, 24)
CAPS = (1 * MIB, 4 * MIB)


def layers_of(options: LabOptions) -> tuple[int, ...]:
    """Return the gradient bytes of layers of three sizes in turn, 8 MiB together or as asked."""
    whole = options.gradient_bytes or 8 * MIB
    unit = whole // (LAYERS // 3 * 7) // 4 * 4
    return tuple(unit * (1, 2, 4)[i % 3] for i in range(LAYERS))


def plan(job: JobLayout, options: LabOptions, without: dict[str, str]) -> Rows:
    """Return the sweeps, and all gradients in buffers of k layers and of so many bytes."""
    rows: list[LabRow] = []
    layers = layers_of(options)
    for backend, device, n in each(job, options, without):
        for name in COLLECTIVES:
            sizes = options.sizes or (GPU_SIZES if device == "gpu" else SIZES)
            rows += [
                LabRow(
                    id=f"lab:sweep:{name}:{backend}:{device}:{n}:{size}", work=name, backend=backend, device=device,
                    # all_gather's row has the size of a part; the fit that of all parts, as nccl-tests counts it.
                    ranks=n, size_bytes=size // n if name == "all_gather" else size, samples=options.samples,
                    sample_s=options.sample_s,
                )
                for size in sizes
            ]  # fmt: skip
            for count, cap in [(k, 0) for k in INDEX] + [(1, c) for c in CAPS]:
                rows.append(
                    LabRow(
                        id=f"lab:fused:{name}:{backend}:{device}:{n}:{count}:{cap}",
                        work="fused",
                        name=name,
                        backend=backend,
                        device=device,
                        ranks=n,
                        layers=layers,
                        count=count,
                        cap_bytes=cap,
                        size_bytes=sum(layers),
                        samples=min(3, options.samples),
                        sample_s=options.sample_s,
                    )
                )
    return Rows(lab=tuple(rows))


def fill(job: JobLayout, options: LabOptions, without: dict[str, str], rows: Rows, results: Results) -> Filled:
    """Return both tables."""
    lab = BY_NAME["fusion"]
    fit_spec, buffer_spec = lab.table("fit"), lab.table("buffers")
    fitted: list[LabLine] = []
    fused: list[LabLine] = []
    fits: list[Fit] = []
    for backend, device, n in each(job, options, without, fit_spec, fitted):
        for name in COLLECTIVES:
            here = [r for r in rows.lab if (r.backend, r.device, r.ranks) == (backend, device, n)]
            mine = [r for r in here if r.work == name]
            points = [p for r in mine if (p := _point(results, r)) is not None]
            fit = fit_sweep(f"{name} {backend} {device} {n} ranks", [point_of(p) for p in points], rate="algbw")
            fits.append(fit)
            advice = buffer_for(fit, [point_of(p) for p in points])
            why = next((w for r in mine if (w := results.why(r))), "")
            fitted.append(
                fit_spec.row(
                    why or advice.reason,
                    backend=backend,
                    memory=device,
                    ranks=n,
                    collective=name,
                    **fit_values(fit),
                    buffer_b=advice.size_bytes,
                    buffer_low_b=advice.low,
                    buffer_high_b=advice.high,
                )
            )
            fused += [_buffers(results, r, fit) for r in here if r.work == "fused" and r.name == name]
    notes = crowded_note(job, counts(job, options))
    return Filled(
        tables=(
            LabTable(spec=fit_spec, rows=lines(fitted), notes=notes),
            LabTable(spec=buffer_spec, rows=tuple(fused), notes=_layers_note(layers_of(options))),
        ),
        fits=tuple(fits),
    )


def _layers_note(layers: Sequence[int]) -> tuple[str, ...]:
    kinds = ", ".join(size_text(s) for s in sorted(set(layers)))
    return (f"{len(layers)} layers of {kinds} in turn, {size_text(sum(layers))} together; no concurrent backward pass",)


def _point(results: Results, row: LabRow) -> Measurement | None:
    """Return a point of the sweep without the refilling of the buffer, in the size of all parts."""
    import msgspec

    m, took = results.get(row, "time"), net_time(results, row)
    if m is None or not took:
        return None
    whole = row.size_bytes * (row.ranks if row.work == "all_gather" else 1)
    less = m.median - took
    return msgspec.structs.replace(
        m, size_bytes=whole, median=took, time_us=took, samples=tuple(max(s - less, took / 10) for s in m.samples)
    )


def _buffers(results: Results, row: LabRow, fit: Fit) -> LabLine:
    buffers = by_size(row.layers, row.cap_bytes) if row.cap_bytes else by_index(row.layers, row.count)
    foreseen = None
    if fit.alpha_us is not None and fit.beta_gb_s is not None:
        foreseen = exchange_s(buffers, fit.alpha_us / 1e6, fit.beta_gb_s * 1e9) * 1e6
    took = results.median(row)
    if row.cap_bytes:
        how = size_text(row.cap_bytes)
    else:
        how = "all" if row.count >= len(row.layers) else f"{row.count} layer" + "s" * (row.count > 1)
    return BY_NAME["fusion"].table("buffers").row(
        results.why(row), backend=row.backend, memory=row.device, ranks=row.ranks, collective=row.name, fused=how,
        buffers=len(buffers), largest_b=max(buffers), time_us=took, predicted_us=foreseen, of_predicted=ratio(took,
        foreseen), )  # fmt: skip
