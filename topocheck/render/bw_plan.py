"""What `topocheck bw` would measure, how long it takes, and what the machine should reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from topocheck.model.names import natural_key
from topocheck.model.version import SCHEMA_VERSION, __version__
from topocheck.render.page import Page, Style
from topocheck.render.quoting import json_text, one_line
from topocheck.render.words import plural, ranges

if TYPE_CHECKING:
    from topocheck.bandwidth.cases import Plan
    from topocheck.bandwidth.reach import Reach
    from topocheck.model.measurement import Collective
    from topocheck.nccl.predict.types import Bound

_KINDS = {"host": "GPU and host", "p2p": "GPU to GPU"}
_NAMED = 4


def plan_text(plan: Plan) -> str:
    """Return what will be done and how long it takes, for a person."""
    lines = [f"  {line}" for line in plan.lines()]
    if plan.copies or plan.collectives:
        lines.append(f"topocheck bw, {plan.budget} run: about {plan.estimate_s:.0f} s in all")
    lines += [f"  not measured: {n.id}: {n.reason}" for n in plan.left_out]
    return "".join(f"{one_line(line)}\n" for line in lines)


def plan_page(plan: Plan, expected: Sequence[Reach], bounds: Mapping[Collective, Bound], style: Style) -> str:
    """Return what the machine should reach, then what would be measured.

    Args:
        plan: the rows.
        expected: what equal transfers should reach.
        bounds: collective -> NCCL's bound of its busbw.
        style: the layout.
    """
    page = Page(style)
    by_name: dict[str, Bound] = dict(bounds.items())
    if expected:
        page.heading("What this machine should reach: GB/s per direction, busbw of collectives")
        page.table(
            ("", "", "theory", "healthy from", "limited by"),
            _merged([_row(r, expected, by_name.get(r.kind)) for r in expected]),
            right=frozenset({2, 3}),
        )
        page.heading("What would be measured")
    return page.render() + plan_text(plan)


def _row(r: Reach, every: Sequence[Reach], bound: Bound | None) -> tuple[str, ...]:
    """Return a line of the table; of a collective with NCCL's bound where that is below the rate of the links."""
    what = _KINDS.get(r.kind, r.kind)
    if bound is not None and (r.theoretical_gb_s is None or bound.busbw_gb_s < r.theoretical_gb_s):
        healthy = r.healthy_gb_s if r.healthy_gb_s is not None and r.healthy_gb_s < bound.busbw_gb_s else None
        by = f"NCCL ({bound.algorithm}): {bound.limited_by}"
        return (what, _ends(r, every), f"{bound.busbw_gb_s:.1f}", "" if healthy is None else f"{healthy:.1f}", by)
    theory = "not known" if r.theoretical_gb_s is None else f"{'<= ' * r.upper_bound}{r.theoretical_gb_s:.1f}"
    return (what, _ends(r, every), theory, "" if r.healthy_gb_s is None else f"{r.healthy_gb_s:.1f}", r.limited_by)


def _merged(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the rows, those that differ in their first cell alone as one."""
    names: dict[tuple[str, ...], list[str]] = {}
    for first, *rest in rows:
        names.setdefault(tuple(rest), []).append(first)
    return [(", ".join(found), *rest) for rest, found in names.items()]


def _ends(r: Reach, every: Sequence[Reach]) -> str:
    """Return whose transfers these are: all, those of one GPU, or the first few."""
    number = sum(len(x.ends) for x in every if x.kind == r.kind)
    if r.kind not in _KINDS:
        return plural(len(r.ends), "rank")
    if r.kind == "host":
        names = [b for _, b in r.ends]
        return f"all {number} GPUs" if len(names) == number > 1 else ranges(names)
    if len(r.ends) == number:
        return f"all {number} pairs" if number > 2 else "both directions"
    shared = set.intersection(*(set(e) for e in r.ends))
    if len(shared) == 1 and len(r.ends) > 2:
        return f"{shared.pop()} and {len(r.ends) // 2} others"
    pairs = list(dict.fromkeys("-".join(sorted(e, key=natural_key)) for e in r.ends))
    return ", ".join(pairs[:_NAMED]) + (f" and {len(pairs) - _NAMED} more" if len(pairs) > _NAMED else "")


def plan_json(
    plan: Plan, expected: Sequence[Reach], bounds: Mapping[Collective, Bound], machine: Mapping[str, str]
) -> str:
    """Return the plan as JSON: every row with its estimate in seconds, what is left out, what should be reached.

    `machine` is that of a run's document (tests_live/run.py, machine_facts).
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "topocheck_version": __version__,
        "machine": machine,
        "budget": plan.budget,
        "estimate_s": round(plan.estimate_s, 1),
        "copies": plan.copies,
        "collectives": plan.collectives,
        "not_measured": plan.left_out,
        "expected": expected,
        "nccl_bounds": bounds,
    }
    return json_text(document)
