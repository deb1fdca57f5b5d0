"""The drawing of a node alone, as SVG: for a ticket or a slide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.picture.scene import scene
from topocheck.picture.wide import wide
from topocheck.render.html.environment import fill

if TYPE_CHECKING:
    from topocheck.pipeline import Report


def report_svg(report: Report) -> str:
    """Return the drawing of a node as one SVG that stands alone: no script, nothing fetched."""
    return fill("node.svg", picture=wide(scene(report.node, report.topology, report.findings)))
