"""Labs `backends` and `models`."""

from __future__ import annotations

from topocheck.bandwidth.lab_catalogue import BY_NAME
from topocheck.model.lab import LabLine, LabTable
from topocheck.model.measurement import Backend
from topocheck.tests_live.labs.plans import gdr
from topocheck.tests_live.labs.plans.common import (
    MIB,
    Filled,
    LabOptions,
    Results,
    Rows,
    counts,
    crowded,
    crowded_note,
    each,
    lines,
    ratio,
    servers_of,
    with_serial,
)
from topocheck.tests_live.launch.lab_job import Device, LabRow
from topocheck.tests_live.launch.training_job import MODELS, Model, TrainRow
from topocheck.tests_live.training.models import gradient_bytes
from topocheck.tests_live.training.report_types import JobLayout

HOST_BYTES, GPU_BYTES = 4 * MIB, 256 * MIB
HOST_BATCH, GPU_BATCH = 32, 512


def _row(options: LabOptions, backend: Backend, device: Device, ranks: int, model: Model) -> TrainRow:
    asked = options.gradient_bytes or (GPU_BYTES if device == "gpu" else HOST_BYTES)
    return TrainRow(
        id=f"lab:train:{backend}:{device}:{ranks}:{model}", backend=backend, device=device, ranks=ranks, model=model,
        gradient_bytes=gradient_bytes(model, asked), batch=GPU_BATCH if device == "gpu" else HOST_BATCH,
        samples=options.samples, sample_s=options.sample_s, limit_s=options.limit_s,
    )  # fmt: skip


def plan_backends(job: JobLayout, options: LabOptions, without: dict[str, str]) -> Rows:
    """Return the rows of `backends`: the perceptron's step at 1, 2 ... ranks."""
    found = each(job, with_serial(job, options), without, least=1)
    return Rows(train=tuple(_row(options, b, d, n, "mlp") for b, d, n in found))


def fill_backends(
    job: JobLayout, options: LabOptions, without: dict[str, str], rows: Rows, results: Results, gdr_why: dict[str, str]
) -> Filled:
    """Return the table of `backends`; `gdr_why` says of each setting of GPUDirect RDMA why it was not run."""
    spec = BY_NAME["backends"].table("backends")
    out: list[LabLine] = []
    wanted = with_serial(job, options)
    serial: dict[tuple[str, str], float] = {}
    by_id = {r.id: r for r in rows.train}
    for backend, device, n in each(job, wanted, without, spec, out, least=1):
        row = by_id[f"lab:train:{backend}:{device}:{n}:mlp"]
        took = results.median(row, "train_step")
        rate = None if took is None else n * row.batch / took * 1e6
        if n == 1 and rate:
            serial[backend, device] = rate
        speed = ratio(rate, serial.get((backend, device)))
        over = crowded(job, device, n)
        servers = servers_of(job, n)
        out.append(
            spec.row(
                results.why(row),
                backend=backend,
                memory=device,
                servers=servers,
                per_server=n // servers if servers else None,
                ranks=n,
                time_us=took,
                rate=rate,
                speed_up=speed,
                efficiency=speed / n if speed and not over else None,
            )
        )
    for setting, why in gdr_why.items():
        some = gdr.rows_of(rows.train, setting) if not why else ()
        if not some:
            out.append(spec.row(why or "needs two ranks or more", backend="nccl", memory="gpu", gdr=setting))
        for row in some:
            took = results.median(row, "train_step")
            rate = None if took is None else row.ranks * row.batch / took * 1e6
            speed = ratio(rate, serial.get((row.backend, row.device)))
            servers = servers_of(job, row.ranks)
            out.append(
                spec.row(
                    results.why(row),
                    backend=row.backend,
                    memory=row.device,
                    gdr=setting,
                    servers=servers,
                    per_server=row.ranks // servers if servers else None,
                    ranks=row.ranks,
                    time_us=took,
                    rate=rate,
                    speed_up=speed,
                    efficiency=speed / row.ranks if speed else None,
                )
            )
    return Filled(tables=(LabTable(spec=spec, rows=lines(out), notes=crowded_note(job, counts(job, options))),))


def plan_models(job: JobLayout, options: LabOptions, without: dict[str, str]) -> Rows:
    """Return the rows of `models`: each model at one rank and at the others, and an all_reduce of its gradients."""
    train: list[TrainRow] = []
    lab: list[LabRow] = []
    for backend, device, n in each(job, with_serial(job, options), without, least=1):
        for model in MODELS:
            row = _row(options, backend, device, n, model)
            train.append(row)
            if n > 1:
                lab.append(
                    LabRow(
                        id=f"lab:sum:{backend}:{device}:{n}:{model}",
                        work="all_reduce",
                        backend=backend,
                        device=device,
                        ranks=n,
                        size_bytes=row.gradient_bytes,
                        samples=options.samples,
                        sample_s=options.sample_s,
                    )
                )
    return Rows(train=tuple(train), lab=tuple(lab))


def fill_models(job: JobLayout, options: LabOptions, without: dict[str, str], rows: Rows, results: Results) -> Filled:
    """Return the table of `models`."""
    from topocheck.tests_live.labs.plans.messages import net_time

    spec = BY_NAME["models"].table("models")
    out: list[LabLine] = []
    trained, summed = {r.id: r for r in rows.train}, {r.id: r for r in rows.lab}
    for backend, device, n in each(job, options, without, spec, out):
        for model in MODELS:
            one, many = (trained[f"lab:train:{backend}:{device}:{k}:{model}"] for k in (1, n))
            sum_row = summed[f"lab:sum:{backend}:{device}:{n}:{model}"]
            compute, took = results.median(one, "train_step"), results.median(many, "train_step")
            exchange = net_time(results, sum_row)
            serial = n * compute / (compute + exchange) if compute and exchange else None
            out.append(
                spec.row(
                    results.why(many) or results.why(one) or results.why(sum_row),
                    backend=backend,
                    memory=device,
                    ranks=n,
                    model=model,
                    size_b=many.gradient_bytes,
                    compute_us=compute,
                    communicate_us=exchange,
                    ratio=ratio(compute, exchange),
                    time_us=took,
                    speed_up=n * compute / took if compute and took else None,
                    no_overlap=serial,
                )
            )
    return Filled(tables=(LabTable(spec=spec, rows=lines(out), notes=crowded_note(job, counts(job, options))),))
