"""Who runs where, what is wrong in it, and what to type instead, as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from topocheck.model.address import format_cpulist
from topocheck.model.version import SCHEMA_VERSION
from topocheck.render.page import Page, Style
from topocheck.render.quoting import json_text

if TYPE_CHECKING:
    from topocheck.placement.plan import Plan
    from topocheck.placement.ranks import Problem, RankPlace


class PlacementDoc(msgspec.Struct, kw_only=True):
    """The document of `topocheck placement --format json`."""

    schema_version: str
    ranks: object
    problems: object
    plan: object
    options: dict[str, list[str]]


def placement_json(
    ranks: Sequence[RankPlace], problems: Sequence[Problem], plan: Plan, options: dict[str, list[str]]
) -> str:
    """Return placement and plan as JSON."""
    d = PlacementDoc(schema_version=SCHEMA_VERSION, ranks=ranks, problems=problems, plan=plan, options=options)
    return json_text(d)


def placement_text(
    ranks: Sequence[RankPlace],
    problems: Sequence[Problem],
    plan: Plan,
    options: dict[str, list[str]],
    style: Style,
) -> str:
    """Return placement and plan for a person."""
    page = Page(style)
    if any(r.rank is not None for r in ranks):
        page.heading("Where the ranks run")
        page.table(
            ("rank", "local rank", "node", "GPU", "its node", "CPUs allowed", "NUMA", "NIC"),
            [
                (
                    _of(r.rank, r.world_size), _of(r.local_rank, r.local_world_size), r.node, r.gpu_label or "?",
                    _n(r.gpu_node), r.cpus or "?", ",".join(map(str, r.numa_nodes)) or "?", ",".join(r.nics) or "-",
                )
                for r in ranks
            ],
        )  # fmt: skip
        page.blank()
        for p in problems:
            who = format_cpulist(p.ranks).replace(",", ", ")
            named = f"rank{'s' if len(p.ranks) > 1 else ''} {who}: " if p.ranks else ""
            style_of = "yellow" if p.state == "warn" else "cyan"
            page.text(f"{p.state.upper() if p.state == 'warn' else p.state}  {named}{p.text}", style=style_of, hang=6)
            if p.fix:
                page.text(f"fix: {p.fix}", indent=8, style="green", hang=2)
        if not problems:
            page.text("Nothing wrong found in it.", style="green")
    elif ranks:
        page.line("Not running under torchrun, srun or mpirun: the recommended layout of this node")
    page.heading(f"Suggested for each node like {plan.hostname}")
    page.table(
        ("local rank", "GPU", "address", "CPUs", "NUMA node", "NIC"),
        [
            (
                str(b.local_rank), b.gpu_label, b.gpu, (b.cpus or "not bound") + (" (shared)" if b.shared else ""),
                _n(b.memory_node), ",".join(b.nics) or "-",
            )
            for b in plan.bindings
        ],
    )  # fmt: skip
    for note in plan.notes:
        page.text(note, style="dim", hang=2)
    for launcher, lines in options.items():
        if not lines:
            continue
        page.heading(launcher)
        for line in lines:
            # A command is never wrapped: it is there to be copied.
            page.line(f"  {line}")
    return page.render()


def _of(number: int | None, size: int | None) -> str:
    """Return `3 of 8`: a rank and the world size, a local rank and the local world size."""
    return _n(number) if size is None else f"{_n(number)} of {size}"


def _n(value: int | None) -> str:
    return "?" if value is None else str(value)
