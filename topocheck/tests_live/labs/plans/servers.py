"""Lab `parameter-server`."""

from __future__ import annotations

from topocheck.bandwidth import server_model as model
from topocheck.bandwidth.lab_catalogue import BY_NAME
from topocheck.model.lab import LabLine, LabTable
from topocheck.model.measurement import Backend
from topocheck.tests_live.labs.plans.common import (
    MIB,
    Filled,
    LabOptions,
    Links,
    Results,
    Rows,
    crowded_note,
    lacks,
    link_rows,
    places,
)
from topocheck.tests_live.launch.lab_job import Device, LabRow, Work
from topocheck.tests_live.training.report_types import JobLayout

GRADIENTS: dict[Device, int] = {"host": 1 * MIB, "gpu": 64 * MIB}
COMPUTE_MS = 5.0
STEPS = 20
SERVERS = (1, 2)
BEYOND = (8, 16, 64, 256)
"""Workers for which only the model speaks."""
SCHEMES: dict[Work, str] = {
    "ring_workers": "ring",
    "sync_servers": "PS sync",
    "async_servers": "PS async",
}


def plan(job: JobLayout, options: LabOptions, without: dict[str, str]) -> Rows:
    """Return the rows: 1, 2 ... workers by a ring, and by each number of servers as far as the ranks go."""
    spots = places(job, options, without)
    rows = link_rows(job, options, spots)
    for backend, device, why in spots:
        if not why:
            rows += _rows(job, options, backend, device)
    return Rows(lab=tuple(rows))


def _rows(job: JobLayout, options: LabOptions, backend: Backend, device: Device) -> list[LabRow]:
    most = max(options.ranks or (job.ranks,))
    out = []
    for work in SCHEMES:
        for k in (0,) if work == "ring_workers" else options.servers or SERVERS:
            for workers in range(1, most - k + 1):
                if workers & (workers - 1) and workers != most - k:
                    continue
                if (work == "ring_workers" and workers == 1 and device == "gpu") or lacks(job, device, workers + k):
                    continue
                out.append(
                    LabRow(
                        id=f"lab:{work}:{backend}:{device}:{workers}:{k}",
                        work=work,
                        backend=backend,
                        device=device,
                        ranks=workers + k,
                        count=max(k, 1),
                        size_bytes=(options.sizes or (GRADIENTS[device],))[0],
                        steps=STEPS,
                        compute_s=(options.compute_ms or COMPUTE_MS) / 1e3,
                        samples=min(3, options.samples),
                    )
                )
    return out


def predicted(scheme: str, workers: int, servers: int, row: LabRow, cost: tuple[float, float]) -> float:
    """Return steps a second of all workers together."""
    size, compute = row.size_bytes, row.compute_s
    if scheme == "ring_workers":
        return workers / model.ring_step_s(workers, size, compute, *cost)
    if scheme == "sync_servers":
        return workers / model.synchronous_step_s(workers, servers, size, compute, *cost)
    return model.asynchronous_steps_per_s(workers, servers, size, compute, *cost)


def _servers(row: LabRow) -> int:
    """Return how many of the ranks are servers; a ring has none."""
    return 0 if row.work == "ring_workers" else row.count


def _too_many(
    job: JobLayout, options: LabOptions, work: Work, run: set[int], backend: Backend, device: Device
) -> list[LabLine]:
    """Return the rows of numbers of servers that leave no rank for a worker."""
    wanted = () if work == "ring_workers" else options.servers or SERVERS
    most = max(options.ranks or (job.ranks,))
    return [
        BY_NAME["parameter-server"].table("servers").row(
            f"needs {k + 1} ranks, for the servers and a worker; {min(most, job.ranks)} are used here",
            backend=backend, memory=device, scheme=SCHEMES[work], ps=k,
            size_b=(options.sizes or (GRADIENTS[device],))[0],
        )
        for k in wanted
        if k not in run
    ]  # fmt: skip


def fill(job: JobLayout, options: LabOptions, without: dict[str, str], rows: Rows, results: Results) -> Filled:
    """Return the tables."""
    spec, links = BY_NAME["parameter-server"].table("servers"), Links(rows.lab, results)
    out: list[LabLine] = []
    for backend, device, why in places(job, options, without):
        if why := why or lacks(job, device, 2):
            out.append(spec.row(why, backend=backend, memory=device))
            continue
        cost = links.worst(job, backend, device, job.ranks)
        for work, scheme in SCHEMES.items():
            mine = [r for r in rows.lab if (r.work, r.backend, r.device) == (work, backend, device)]
            out += _too_many(job, options, work, {_servers(r) for r in mine}, backend, device)
            for k in sorted({_servers(r) for r in mine}):
                same = [r for r in mine if _servers(r) == k]
                for row in same:
                    w = row.ranks - k
                    out.append(
                        spec.row(
                            results.why(row),
                            backend=backend,
                            memory=device,
                            scheme=scheme,
                            workers=w,
                            ps=k or None,
                            ranks=row.ranks,
                            size_b=row.size_bytes,
                            measured=results.median(row, "rate"),
                            predicted=predicted(work, w, k, row, cost) if cost else None,
                            staleness=results.median(row, "staleness"),
                            most_stale=results.median(row, "most_stale"),
                        )
                    )
                if cost is None or not same:
                    continue
                for w in (n for n in BEYOND if n > max(r.ranks - k for r in same)):
                    stale = model.mean_staleness(w) if work == "async_servers" else None
                    out.append(
                        spec.row(
                            backend=backend,
                            memory=device,
                            scheme=scheme,
                            workers=w,
                            ps=k or None,
                            ranks=w + k,
                            size_b=same[0].size_bytes,
                            predicted=predicted(work, w, k, same[0], cost),
                            staleness=stale,
                        )
                    )
    notes = (
        f"workers wait {options.compute_ms or COMPUTE_MS:g} ms where they would compute; rows without a measured "
        "number are the model's alone, each rank with a link of its own",
        *crowded_note(job, range(1, job.ranks + 1)),
    )
    return Filled(
        tables=(LabTable(spec=spec, rows=tuple(out), notes=notes), links.table()), fits=tuple(links.fits.values())
    )
