"""What a machine should reach, before anything is measured: theory, and the usual share of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topocheck.bandwidth.assess import COLLECTIVES_FROM_BYTES, JUDGED_FROM_BYTES, Expected, expected_of
from topocheck.bandwidth.cases import HOST, Plan
from topocheck.model.measurement import Collective, Measurement
from topocheck.topology.types import HopKind, Topology

COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter")


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What equal transfers should reach.

    Attributes:
        kind: `host` (either direction), `p2p`, or the name of a collective.
        ends: (from, to) labels of each transfer that this is of; of a collective (rank's GPU, "").
        theoretical_gb_s: rate of the narrowest hop per direction; None where it is not known. Of a collective it is
            that of the narrowest path between two of its GPUs.
        healthy_gb_s: rate from which a measurement counts as healthy (knowledge/data/efficiencies.tsv); None where no
            public figures exist.
        limited_by: the narrowest hop, without its address.
        upper_bound: a hop on the path cannot be read, so the theory is an upper bound.
    """

    kind: str
    ends: tuple[tuple[str, str], ...]
    theoretical_gb_s: float | None = None
    healthy_gb_s: float | None = None
    limited_by: str = ""
    upper_bound: bool = False


def reaches(plan: Plan, topology: Topology) -> tuple[Reach, ...]:
    """Return what the GPUs of a plan should reach: all of them with the host, every pair, and their collectives."""
    wanted = gpus_of(plan)
    gpus = [g for g in topology.gpus if g.address in wanted]
    rows = [_copy("h2d", HOST, g.address) for g in gpus]
    rows += [_copy("p2p", a.address, b.address) for a in gpus for b in gpus if a is not b]
    members = tuple(g.address for g in gpus)
    if len(gpus) > 1:
        rows += [_collective(name, members) for name in COLLECTIVES]
    return tuple(_grouped(rows, topology))


def gpus_of(plan: Plan) -> frozenset[str]:
    """Return the addresses of the GPUs that a plan measures."""
    copies = {e for r in plan.copies for t in r.transfers for e in (t.source, t.destination)} - {HOST}
    return frozenset(copies | {a for c in plan.collectives for a in c.members})


def _copy(kind: str, a: str, b: str) -> Measurement:
    peer = True if kind == "p2p" else None
    return Measurement(id="", kind=kind, from_=a, to=b, size_bytes=JUDGED_FROM_BYTES, peer_access=peer)  # type: ignore[arg-type]


def _collective(name: Collective, members: tuple[str, ...]) -> Measurement:
    return Measurement(
        id="",
        kind="collective",
        collective=name,
        backend="nccl",
        ranks=len(members),
        members=members,
        mode="back_to_back",
        size_bytes=COLLECTIVES_FROM_BYTES,
    )


def _grouped(rows: Iterable[Measurement], topology: Topology) -> list[Reach]:
    found: dict[tuple[object, ...], tuple[Reach, list[tuple[str, str]]]] = {}
    for m in rows:
        kind = str(m.collective) if m.collective else "host" if HOST in (m.from_, m.to) else "p2p"
        one = _one(kind, expected_of(m, topology))
        ends = [(topology.label(a), "") for a in m.members] or [(_name(m.from_, topology), _name(m.to, topology))]
        key = (kind, one.theoretical_gb_s, one.healthy_gb_s, one.limited_by)
        found.setdefault(key, (one, []))[1].extend(ends)
    return [msgspec.structs.replace(one, ends=tuple(ends)) for one, ends in found.values()]


def _one(kind: str, expected: Expected | None) -> Reach:
    if expected is None:
        return Reach(kind=kind, ends=())
    hop, row = expected.hop, expected.row
    words = {HopKind.PCIE: f"PCIe {hop.text}"}.get(hop.kind, hop.text)
    return Reach(
        kind=kind,
        ends=(),
        theoretical_gb_s=round(expected.theory, 1),
        healthy_gb_s=None if row is None else round(row.pass_at_least * expected.theory, 1),
        limited_by=words,
        upper_bound=expected.bound,
    )


def _name(end: str, topology: Topology) -> str:
    return end if end == HOST else topology.label(end)
