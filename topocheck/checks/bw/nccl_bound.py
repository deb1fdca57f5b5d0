"""Collectives over NCCL against the bound of NCCL's own graph on this node."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topocheck.checks.bw.results import devices, evidence, judged, measured, name, subject
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.model.base import Finding, State
from topocheck.model.measurement import Assessment, Collective, Measurement, Run
from topocheck.model.node import Node
from topocheck.nccl.predict.predict import PredictError, predict
from topocheck.nccl.predict.report import host_input, version_for
from topocheck.nccl.predict.types import Bound, RankSpec
from topocheck.topology.types import HopKind, Topology

RING_ONLY: tuple[Collective, ...] = ("all_gather", "reduce_scatter")
"""Collectives whose busbw has the ring's bound: each rank sends and receives (n-1)/n of the data, as nccl-tests counts
it (its doc/PERFORMANCE.md)."""
JUDGED_FROM_BYTES = 256 << 20
"""Smallest size that is judged; a quick run measures it, and two H100 reach 0.62 to 0.80 of the bound with it."""
LEAST_SHARE = 0.5
"""Share of the bound below which a collective is called slow. Healthy machines with NVLink reach 0.74 to 0.99:
two H100 0.74 to 0.89 (274 to 328 of 370.8 GB/s, docs/measurements), eight H100 0.95 to 0.99 by rings (0.78 to 0.82 of
450, NVIDIA/nccl issue 1455) and 0.83 by NVLS (1.06 of 450 against 577, Azure/AI-benchmarking-guide)."""


def nccl_bounds(node: Node, topology: Topology, members: tuple[str, ...], nccl: str | None) -> dict[Collective, Bound]:
    """Return the bound of each collective's busbw over GPUs of this node, as far as NCCL's choice is known.

    Args:
        node: its facts.
        topology: made of them.
        members: addresses of the GPUs, a rank each.
        nccl: the version that measured, or is to measure; the installed one where None.
    """
    version = version_for(node, nccl)
    try:
        host = host_input(node, topology, version)
        ranks = tuple(RankSpec(rank=i, host=host.name, gpu=a) for i, a in enumerate(members))
        made = predict((host,), version, ranks)
    except PredictError:
        return {}
    out: dict[Collective, Bound] = {}
    if made.bounds and not made.fatal:
        if isinstance(made.nvls, bool):
            out["all_reduce"] = max(made.bounds, key=lambda b: b.busbw_gb_s)
        ring = next((b for b in made.bounds if b.algorithm == "Ring"), None)
        if ring is not None:
            out |= dict.fromkeys(RING_ONLY, ring)
    return out


def with_bounds(
    assessments: tuple[Assessment, ...], run: Run, node: Node, topology: Topology
) -> tuple[Assessment, ...]:
    """Return the assessments, those of collectives over NCCL with the bound of NCCL's graph."""
    rows = {m.id: m for m in run.measurements if m.backend == "nccl" and 1 < len(m.members) == m.ranks}
    groups = {m.members for m in rows.values()}
    known = {g: nccl_bounds(node, topology, g, run.software.get("nccl")) for g in groups}
    out = []
    for a in assessments:
        m = rows.get(a.measurement)
        bound = None if m is None or m.collective is None else known[m.members].get(m.collective)
        if bound is not None:
            a = msgspec.structs.replace(
                a, nccl_bound_gb_s=round(bound.busbw_gb_s, 1), nccl_bound_by=f"{bound.algorithm}: {bound.limited_by}"
            )
        out.append(a)
    return tuple(out)


@check(
    "bw.below-nccl-bound",
    title="A collective is far below NCCL's own bound",
    severity=State.WARN,
    reads=("topocheck bw", "topocheck nccl predict"),
)
def below_nccl_bound(context: Context) -> Iterator[Finding]:
    """A collective over NCCL reaches less than half of what NCCL's graph of this node allows.

    Looks at: the peak busbw of all_reduce, all_gather and reduce_scatter over GPUs of this node at 256 MiB and more,
    against the bound that `topocheck nccl predict` works out for the same GPUs and the version that measured.

    Why it matters: NCCL has found faster links than it uses: a slow GPU or link, a setting that limits channels, or
    copies through host memory hold the job back.

    Fix: compare NCCL's log with the prediction (NCCL_DEBUG=INFO, topocheck nccl log --compare), and the pairs' copies
    with each other (topocheck bw --all-pairs).

    Does not apply: to rows that the rate of the link already judges (bw.below-expected), that were disturbed or spread
    too far, to ranks on several nodes, to GPUs that NVLink does not join (no healthy share of
    the bound is known over PCIe), and where NCCL's choice is not known.
    """
    c = measured(context)
    by_id = {a.measurement: a for a in c.assessments}
    peaks: dict[tuple[object, ...], Measurement] = {}
    for m in c.run.measurements:
        a = by_id.get(m.id)
        if a is None or a.nccl_bound_gb_s is None or m.size_bytes < JUDGED_FROM_BYTES or not judged(m):
            continue
        if m.mode == "one_at_a_time" or not _over_nvlink(c.topology, m.members):
            continue
        key = (m.collective, m.members, m.in_place)
        peaks[key] = max(peaks.get(key, m), m, key=lambda x: x.busbw_gb_s or 0.0)
    if not peaks:
        raise not_applicable("no steady collective of 256 MiB or more over NVLink whose NCCL bound is known")
    for m in peaks.values():
        a, rate = by_id[m.id], m.busbw_gb_s or 0.0
        bound = a.nccl_bound_gb_s or 0.0
        if rate >= LEAST_SHARE * bound or a.state in (State.FAIL, State.WARN):
            continue
        yield Finding(
            state=State.WARN,
            subject=subject(m),
            devices=devices(m),
            title=f"{name(m)}: {rate:.1f} GB/s busbw, {100 * rate / bound:.0f} % of NCCL's bound of {bound:.1f}",
            consequence="collectives of a job on these GPUs take at least twice as long as they could",
            evidence=evidence(m),
            rule=f"at least {100 * LEAST_SHARE:.0f} % of {bound:.1f} GB/s ({a.nccl_bound_by})",
            fix="run a job with NCCL_DEBUG=INFO and compare: topocheck nccl log FILE --compare; then the pairs: "
            "topocheck bw --all-pairs",
        )


def _over_nvlink(topology: Topology, members: tuple[str, ...]) -> bool:
    paths = [topology.find_path(a, b) for a in members for b in members if a != b]
    return all(p is not None and p.narrowest is not None and p.narrowest.kind is HopKind.NVLINK for p in paths)
