"""Labs `p2p`, `collectives` and `broadcast`."""

from __future__ import annotations

from topocheck.bandwidth import collective_model as model
from topocheck.bandwidth.lab_catalogue import BY_NAME
from topocheck.model.lab import LabLine, LabTable
from topocheck.model.units import size_text
from topocheck.tests_live.labs.plans.common import (
    KIB,
    MIB,
    PAIRS,
    Filled,
    LabOptions,
    Links,
    Results,
    Rows,
    counts,
    crowded_note,
    data_text,
    each,
    lacks,
    lines,
    link_pairs,
    link_rows,
    places,
    ratio,
    servers_of,
)
from topocheck.tests_live.launch.lab_job import Device, LabRow, Work
from topocheck.tests_live.training.report_types import JobLayout

MESSAGES: dict[Device, tuple[int, ...]] = {
    "host": tuple(4 << 2 * n for n in range(11)),
    "gpu": tuple(4 << 2 * n for n in range(13)),
}
"""4 bytes to 4 MiB, between GPUs to 64 MiB."""
MESSAGE_TESTS: tuple[Work, ...] = ("ping_pong", "one_way", "both_ways")
OF_COLLECTIVES: dict[Device, tuple[int, ...]] = {
    "host": (4 * KIB, 256 * KIB, 4 * MIB),
    "gpu": (4 * KIB, 4 * MIB, 64 * MIB, 256 * MIB),
}
BROADCAST_BYTES: dict[Device, int] = {"host": 4 * MIB, "gpu": 256 * MIB}
PIECES = (1, 2, 4, 8, 16, 64)
WAYS: tuple[tuple[Work, str, str], ...] = (
    ("gather", "gather", "backend"),
    ("scatter", "scatter", "backend"),
    ("all_gather", "all_gather", "backend"),
    ("reduce_scatter", "reduce_scatter", "backend"),
    ("all_reduce", "all_reduce", "backend"),
    ("ring_all_reduce", "all_reduce", "flat ring"),
    ("hierarchical_all_reduce", "all_reduce", "hierarchical"),
)
"""(work, collective, by what)."""


def plan_p2p(job: JobLayout, options: LabOptions, without: dict[str, str]) -> Rows:
    """Return the rows of `p2p`."""
    spots = places(job, options, without)
    rows = link_rows(job, options, spots)
    for backend, device, why in spots:
        if why or lacks(job, device, 2):
            continue
        for pair, members in link_pairs(job).items():
            for size in options.sizes or MESSAGES[device]:
                for work in MESSAGE_TESTS:
                    rows.append(
                        LabRow(
                            id=f"lab:{work}:{backend}:{device}:{pair}:{size}",
                            work=work,
                            backend=backend,
                            device=device,
                            members=members,
                            pair=pair,
                            size_bytes=size,
                            samples=options.samples,
                            sample_s=options.sample_s / 2,
                        )
                    )
    return Rows(lab=tuple(rows))


def fill_p2p(job: JobLayout, options: LabOptions, without: dict[str, str], rows: Rows, results: Results) -> Filled:
    """Return the tables of `p2p`."""
    lab = BY_NAME["p2p"]
    spec = lab.table("messages")
    links = Links(rows.lab, results)
    by_key = {(r.work, r.backend, r.device, r.pair, r.size_bytes): r for r in rows.lab if not r.calibrates}
    out: list[LabLine] = []
    for backend, device, why in places(job, options, without):
        why = why or lacks(job, device, 2)
        if why:
            out.append(spec.row(why, backend=backend, memory=device))
            continue
        for (work, b, d, pair, size), row in by_key.items():
            if (work, b, d) != ("ping_pong", backend, device):
                continue
            others = [by_key[w, b, d, pair, size] for w in ("one_way", "both_ways")]
            took = [results.median(x) for x in others]
            right = [results.get(x, "time") for x in (row, *others)]
            out.append(
                spec.row(
                    results.why(row) or results.why(others[0]) or results.why(others[1]),
                    backend=b,
                    memory=d,
                    pair=PAIRS[pair],
                    size_b=size,
                    latency_us=results.median(row),
                    bandwidth_mb_s=_mb_s(size, took[0], 1),
                    bibandwidth_mb_s=_mb_s(size, took[1], 2),
                    data="WRONG" if any(m is not None and m.verified is False for m in right) else data_text(right[0]),
                )
            )
    tables = (LabTable(spec=spec, rows=lines(out), notes=crowded_note(job, (2,))), links.table())
    return Filled(tables=tables, fits=tuple(links.fits.values()))


def _mb_s(size: int, us: float | None, ways: int) -> float | None:
    """Return 10^6 bytes a second, as OSU's tests print; both directions are added up."""
    return None if us is None else ways * size / us


def plan_collectives(job: JobLayout, options: LabOptions, without: dict[str, str]) -> Rows:
    """Return the rows of `collectives`."""
    spots = places(job, options, without)
    rows = link_rows(job, options, spots)
    for backend, device, n in each(job, options, without):
        inside = inside_of(job, options, n)
        for work, _, _ in WAYS:
            if work == "hierarchical_all_reduce" and inside in (1, n):
                continue
            rows += [
                LabRow(
                    id=f"lab:{work}:{backend}:{device}:{n}:{size}", work=work, backend=backend, device=device,
                    ranks=n, inside=inside, size_bytes=size, samples=options.samples, sample_s=options.sample_s,
                )
                for size in options.sizes or OF_COLLECTIVES[device]
            ]  # fmt: skip
    return Rows(lab=tuple(rows))


def inside_of(job: JobLayout, options: LabOptions, ranks: int) -> int:
    """Return how many ranks count as one node: those of a node, or on one node two, or as asked; 1 where none fits."""
    wanted = options.inside or (job.ranks_per_node if job.nodes > 1 else 2)
    return wanted if wanted and ranks % wanted == 0 else 1


def fill_collectives(
    job: JobLayout, options: LabOptions, without: dict[str, str], rows: Rows, results: Results
) -> Filled:
    """Return the tables of `collectives`."""
    lab = BY_NAME["collectives"]
    spec, links = lab.table("collectives"), Links(rows.lab, results)
    by_id = {r.id: r for r in rows.lab}
    out: list[LabLine] = []
    for backend, device, n in each(job, options, without, spec, out):
        for work, collective, by in WAYS:
            for size in options.sizes or OF_COLLECTIVES[device]:
                row = by_id.get(f"lab:{work}:{backend}:{device}:{n}:{size}")
                if row is None:
                    continue
                took, foreseen = net_time(results, row), _predicted(job, row, links)
                shown = f"nodes {n // row.inside} x {row.inside}" if by == "hierarchical" else by
                out.append(
                    spec.row(
                        results.why(row),
                        backend=backend,
                        memory=device,
                        ranks=n,
                        servers=servers_of(job, n),
                        collective=collective,
                        algorithm=shown,
                        size_b=size,
                        time_us=took,
                        predicted_us=foreseen,
                        of_predicted=ratio(took, foreseen),
                        data=data_text(results.get(row, "time")),
                    )
                )
    notes = [*crowded_note(job, counts(job, options))]
    notes.append("size: of one rank's buffer; of gather, all_gather and scatter of one rank's part, as MPI counts it")
    if job.nodes == 1 and any(r.work == "hierarchical_all_reduce" for r in rows.lab):
        notes.append("hierarchical: groups of ranks stand for nodes, since all ranks are on one")
    return Filled(
        tables=(LabTable(spec=spec, rows=lines(out), notes=tuple(notes)), links.table()),
        fits=tuple(links.fits.values()),
    )


def net_time(results: Results, row: LabRow) -> float | None:
    """Return the time of an exchange without the refilling of its buffer, where that was part of it."""
    took, refill = results.median(row), results.median(row, "refill")
    return took if took is None or refill is None else max(took - refill, 0.0)


def _predicted(job: JobLayout, row: LabRow, links: Links) -> float | None:
    n, size = row.ranks, row.size_bytes
    if row.work == "hierarchical_all_reduce":
        near = links.cost(row.backend, row.device)
        far = links.cost(row.backend, row.device, "between")
        if near is None or far is None:
            return None
        return model.hierarchical_all_reduce_s(row.inside, n // row.inside, size, near, far) * 1e6

    def seconds(alpha: float, beta: float) -> float:
        if row.work in ("gather", "scatter"):
            return model.rooted_s(n, size, alpha, beta)
        if row.work == "all_gather":
            return model.ring_part_s(n, n * size, alpha, beta)
        if row.work == "reduce_scatter":
            return model.ring_part_s(n, size, alpha, beta)
        return model.ring_all_reduce_s(n, size, alpha, beta)

    return links.predict(job, row, seconds)


def plan_broadcast(job: JobLayout, options: LabOptions, without: dict[str, str]) -> Rows:
    """Return the rows of `broadcast`."""
    spots = places(job, options, without)
    rows = link_rows(job, options, spots)
    for backend, device, n in each(job, options, without):
        for size in options.sizes or (BROADCAST_BYTES[device],):
            rows += [
                LabRow(
                    id=f"lab:bcast:{backend}:{device}:{n}:{size}:{pieces}",
                    work="ring_broadcast" if pieces else "broadcast", backend=backend, device=device, ranks=n,
                    size_bytes=size, pieces=pieces or 1, samples=options.samples, sample_s=options.sample_s,
                )
                for pieces in (0, *(options.pieces or PIECES))
            ]  # fmt: skip
    return Rows(lab=tuple(rows))


def fill_broadcast(
    job: JobLayout, options: LabOptions, without: dict[str, str], rows: Rows, results: Results
) -> Filled:
    """Return the tables of `broadcast`."""
    spec, links = BY_NAME["broadcast"].table("pieces"), Links(rows.lab, results)
    out: list[LabLine] = []
    notes = list(crowded_note(job, counts(job, options)))
    mine = [r for r in rows.lab if r.work in ("broadcast", "ring_broadcast")]
    for backend, device, n in each(job, options, without, spec, out):
        some = [r for r in mine if (r.backend, r.device, r.ranks) == (backend, device, n)]
        ringed = [(net_time(results, r), r) for r in some if r.work == "ring_broadcast"]
        best = min(((t, r.pieces) for t, r in ringed if t is not None), default=(0.0, 0))[1]
        out += [_piece(job, row, results, links, fastest=row.pieces == best) for row in some]
        cost = links.worst(job, backend, device, n)
        if cost:
            sizes = sorted({r.size_bytes for r in some})
            told = ", ".join(f"{model.best_pieces(n, z, *cost)} for {size_text(z)}" for z in sizes)
            notes.append(
                f"{backend}, {device}, {n} ranks: sqrt(N (K-2) / (alpha B)) is {told}; fastest measured: {best}"
            )
    return Filled(
        tables=(LabTable(spec=spec, rows=lines(out), notes=tuple(notes)), links.table()),
        fits=tuple(links.fits.values()),
    )


def _piece(job: JobLayout, row: LabRow, results: Results, links: Links, *, fastest: bool) -> LabLine:
    n, size, s, by_ring = row.ranks, row.size_bytes, row.pieces, row.work == "ring_broadcast"

    def whole(alpha: float, beta: float) -> float:
        return (
            model.ring_broadcast_s(n, size, s, beta, alpha) if by_ring else model.tree_broadcast_s(n, size, alpha, beta)
        )

    formula = links.predict(job, row, lambda alpha, beta: model.ring_broadcast_s(n, size, s, beta)) if by_ring else None
    return BY_NAME["broadcast"].table("pieces").row(
        results.why(row), backend=row.backend, memory=row.device, ranks=n, size_b=size, pieces=s if by_ring else None,
        time_us=net_time(results, row), formula_us=formula, predicted_us=links.predict(job, row, whole),
        data=data_text(results.get(row, "time")),
        remark=("fastest ring" if fastest else "") if by_ring else "the backend's own; predicted: a binomial tree",
    )  # fmt: skip
