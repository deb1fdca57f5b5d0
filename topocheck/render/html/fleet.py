"""The fleet as one HTML page that stands alone: no script, nothing fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.render.differences import field_name, field_value, related, together
from topocheck.render.fabric import summary
from topocheck.render.fabric_svg import fabric_svg
from topocheck.render.fleet import LEFT_OUT, verdicts
from topocheck.render.html.cards import fleet_cards, job_cards
from topocheck.render.html.environment import fill
from topocheck.render.words import STATE_MARKS, plural

if TYPE_CHECKING:
    from topocheck.checks.fabric.run import JudgedFabric
    from topocheck.compare.types import Fleet

_WORST_FIRST = ("fail", "warn", "unknown", "ok", "dim")

MAX_NODES = 200
"""Names in one cell."""
MAX_ROWS = 500
"""Rows of one table; JSON and CSV have all."""


def fleet_html(fleet: Fleet, fabric: JudgedFabric | None = None) -> str:
    """Return the fleet as HTML, with a picture of the fabric where a dump of it was given.

    Everything read from elsewhere is escaped.
    """
    marks = {state.value: mark.upper() for state, mark in STATE_MARKS.items()}
    values: dict[str, object] = {
        "title": plural(fleet.nodes, "node"),
        "chips": sorted(verdicts(fleet), key=lambda c: _WORST_FIRST.index(c[0])),
        "names": _names,
        "left_out": LEFT_OUT,
        "marks": marks,
        "limit": MAX_ROWS,
    }
    values |= {
        "found": fleet_cards([f for f in fleet.findings if f.state != "note"]),
        "noted": fleet_cards([f for f in fleet.findings if f.state == "note"]),
        "together": together,
        "field_name": field_name,
        "field_value": field_value,
        "related": related,
    }
    return fill("fleet.html", fleet=fleet, job=job_cards(fleet.job), fabric=fabric, **_drawn(fabric), **values)


def _drawn(fabric: JudgedFabric | None) -> dict[str, object]:
    if fabric is None:
        return {}
    from markupsafe import Markup

    # fabric_svg escapes each text itself.
    return {
        "fabric_summary": summary(fabric.tiers),
        "fabric_picture": Markup(fabric_svg(fabric.tiers, fabric.result)),
    }


def _names(nodes: tuple[str, ...]) -> str:
    more = len(nodes) - MAX_NODES
    return " ".join(nodes[:MAX_NODES]) + (f" and {more} more" if more > 0 else "")
