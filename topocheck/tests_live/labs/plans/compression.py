"""Lab `compression`."""

from __future__ import annotations

import msgspec

from topocheck.bandwidth import compression
from topocheck.bandwidth.lab_catalogue import BY_NAME
from topocheck.model.lab import LabLine, LabTable
from topocheck.model.measurement import HOOK_NAMES, Backend, Hook
from topocheck.tests_live.labs.plans.common import (
    MIB,
    Filled,
    LabOptions,
    Results,
    Rows,
    counts,
    crowded_note,
    each,
    lines,
    ratio,
    with_serial,
)
from topocheck.tests_live.launch.lab_job import Device, LabRow
from topocheck.tests_live.launch.training_job import HOOKS, TrainRow
from topocheck.tests_live.training.models import gradient_bytes
from topocheck.tests_live.training.report_types import JobLayout

HOST_BYTES, GPU_BYTES = 4 * MIB, 256 * MIB
HOST_BATCH, GPU_BATCH = 32, 512
DIGITS = "The digits are scikit-learn's, 1437 to train and 360 to test"
METHOD = (
    "the same global batch for any number of devices, so serial and "
    "parallel training compute the same up to rounding. fp16, bf16 and PowerSGD are torch's own hooks of DDP; the "
    "others, and all over MPI, are exchanges of ours by torch's operators (8 bits over all_gather)."
)


def _size(options: LabOptions, device: Device) -> int:
    return gradient_bytes("mlp", options.gradient_bytes or (GPU_BYTES if device == "gpu" else HOST_BYTES))


def _name(kind: str, backend: Backend, device: Device, ranks: int, hook: Hook) -> str:
    return f"lab:{kind}:{backend}:{device}:{ranks}:{hook}"


def _hooks(ranks: int) -> tuple[Hook, ...]:
    return ("none",) if ranks == 1 else HOOKS


def plan(job: JobLayout, options: LabOptions, without: dict[str, str]) -> Rows:
    """Return the rows: serial, and every method at each number of ranks."""
    train: list[TrainRow] = []
    parts: list[LabRow] = []
    for backend, device, n in each(job, with_serial(job, options), without, least=1):
        size = _size(options, device)
        for hook in _hooks(n):
            row = TrainRow(
                id=_name("step", backend, device, n, hook), backend=backend, device=device, ranks=n, hook=hook,
                gradient_bytes=size, epochs=options.epochs, batch=GPU_BATCH if device == "gpu" else HOST_BATCH,
                exact=n > 1, samples=min(3, options.samples), sample_s=options.sample_s, limit_s=options.limit_s,
                data=options.data,
            )  # fmt: skip
            digits = _name("digits", backend, device, n, hook)
            train += [row, msgspec.structs.replace(row, id=digits, kind="digits", exact=False)]
            if n > 1:
                parts.append(
                    LabRow(
                        id=_name("codec", backend, device, n, hook),
                        work="codec",
                        backend=backend,
                        device=device,
                        ranks=n,
                        hook=hook,
                        size_bytes=size,
                        samples=options.samples,
                        sample_s=options.sample_s,
                    )
                )
    return Rows(train=tuple(train), lab=tuple(parts))


def fill(job: JobLayout, options: LabOptions, without: dict[str, str], rows: Rows, results: Results) -> Filled:
    """Return both tables."""
    lab = BY_NAME["compression"]
    training, apart = lab.table("training"), lab.table("parts")
    trained: list[LabLine] = []
    parts: list[LabLine] = []
    by_id = {r.id: r for r in rows.train}
    for backend, device, n in each(job, with_serial(job, options), without, training, trained, least=1):
        plain = results.median(by_id[_name("step", backend, device, n, "none")], "train_step")
        for hook in _hooks(n):
            step = by_id[_name("step", backend, device, n, hook)]
            digits = by_id[_name("digits", backend, device, n, hook)]
            took, epoch = results.median(step, "train_step"), results.median(digits, "epoch")
            trained.append(
                training.row(
                    results.why(step) or results.why(digits),
                    backend=backend,
                    memory=device,
                    ranks=n,
                    gradients="serial" if n == 1 else HOOK_NAMES[hook],
                    epochs=options.epochs,
                    train_s=None if epoch is None else epoch * options.epochs / 1e6,
                    accuracy=results.median(digits, "accuracy"),
                    step_us=took,
                    of_full=ratio(took, plain) if n > 1 else None,
                    error=results.median(step, "gradient_error"),
                )
            )
    plain_sums: dict[tuple[str, str, int], float] = {}
    for row in rows.lab:
        phases = {p: results.median(row, p) for p in ("compress", "send", "decompress")}
        known = [v for v in phases.values() if v is not None]
        total = sum(known) if len(known) == len(phases) else None
        place = (row.backend, row.device, row.ranks)
        if row.hook == "none" and total:
            plain_sums[place] = total
        payload = results.median(row, "payload")
        parts.append(
            apart.row(
                results.why(row),
                backend=row.backend,
                memory=row.device,
                ranks=row.ranks,
                gradients=HOOK_NAMES[row.hook],
                payload_b=payload,
                sent_b=compression.sent_bytes(row.hook, row.size_bytes // 4, row.ranks)
                if payload is not None
                else None,
                compress_us=phases["compress"],
                send_us=phases["send"],
                decompress_us=phases["decompress"],
                sum_us=total,
                of_full=ratio(total, plain_sums.get(place)),
            )
        )
    notes = crowded_note(job, counts(job, options))
    return Filled(
        tables=(
            LabTable(spec=training, rows=lines(trained), notes=notes),
            LabTable(spec=apart, rows=lines(parts), notes=notes),
        ),
        notes=(f"{DIGITS if not options.data else f'The digits are those of {options.data}'}, {METHOD}",),
    )
