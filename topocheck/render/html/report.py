"""The report of a node as one HTML page that stands alone: findings, the drawing, matrices, then all sections."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from topocheck.model.base import State
from topocheck.picture.narrow import narrow
from topocheck.picture.scene import can_be_drawn, scene
from topocheck.picture.types import LinkState, Scene
from topocheck.picture.wide import wide
from topocheck.render import text
from topocheck.render.html.blocks import BlockPage, Section, sections
from topocheck.render.html.cards import cards
from topocheck.render.html.environment import fill
from topocheck.render.html.matrices import matrices, too_many
from topocheck.render.html.pairs import chosen_devices, pair_data
from topocheck.render.words import STATE_MARKS, plural

if TYPE_CHECKING:
    from topocheck.pipeline import Report

DRAWN = ("summary", "findings", "tree", "matrix")
"""Sections of the text that the page shows in another form."""


def report_html(report: Report) -> str:
    """Return the report as HTML: nothing is fetched, and all of it can be read without its script."""
    drawn = scene(report.node, report.topology, report.findings)
    facts = BlockPage()
    text.facts(report, facts)
    findings = [f for f in report.findings if f.state is not State.NOTE]
    return fill(
        "report.html",
        host=text.node_name(report),
        snapshot=text.snapshot_name(report),
        taken_at=report.node.taken_at,
        scene=drawn,
        can_be_drawn=can_be_drawn(report.topology),
        chips=chips(report),
        findings=cards(findings),
        notes=cards([f for f in report.findings if f.state is State.NOTE]),
        no_findings=_none(report),
        probes=[
            f"probe {p.name} {p.state.replace('_', ' ')}: {p.detail}"
            for p in report.node.probes
            if p.state in ("failed", "timed_out")
        ],
        wide=wide(drawn),
        narrow=narrow(drawn),
        index={a: i for i, (a, _) in enumerate(chosen_devices(report.topology))},
        pairs=pair_data(report, drawn),
        legend=legend(drawn),
        facts=facts.blocks,
        matrices=matrices(report),
        many_pairs=too_many(report),
        sections=_sections(report),
    )


def chips(report: Report) -> list[tuple[str, str]]:
    """Return what the checks came to: state and words, worst first."""
    counts = Counter(f.state for f in report.findings)
    order = (State.FAIL, State.UNKNOWN, State.WARN, State.NOTE)
    out = [(s.value, f"{counts[s]} {STATE_MARKS[s].lower()}") for s in order if counts[s]]
    judged = sum(r.state is not State.NOT_APPLICABLE for r in report.results)
    if not report.results:
        return [("dim", "not checked")]
    if not any(counts[s] for s in order[:3]):
        # Without a GPU nothing that matters here was judged, so nothing is green.
        out.insert(0, ("ok", "no faults found") if report.topology.gpus else ("note", "no GPU checked"))
    return [*out, ("dim", plural(judged, "check"))]


def _none(report: Report) -> str:
    if not report.results:
        return "No check was run."
    if not report.topology.gpus:
        return (
            "No NVIDIA GPU was found, so GPU checks did not run. If one is expected: lspci -d 10de:, then nvidia-smi."
        )
    return "The checks found nothing that needs attention."


_STATES: dict[LinkState, str] = {
    LinkState.REDUCED: "▼ below what both ends support",
    LinkState.DOWN: "✕ down",
    LinkState.UNUSED: "– not in use",
    LinkState.IDLE: "◌ slowed while idle",
    LinkState.UNKNOWN: "? not known",
    LinkState.FORMAL: "~ emulated, no real rate",
}
_KINDS = {"pcie": "PCIe", "nvlink": "NVLink", "c2c": "chip to chip (C2C)", "network": "network port"}


def legend(drawn: Scene) -> list[tuple[str, str, str]]:
    """Return kind, state and words of the links that are drawn."""
    links = list(drawn.links())
    kinds = {k.kind for k in links if k.state is LinkState.OK}
    states = {k.state for k in links}
    out: list[tuple[str, str, str]] = [(k, "ok", words) for k, words in _KINDS.items() if k in kinds]
    return out + [("pcie", s.value, words) for s, words in _STATES.items() if s in states]


def _sections(report: Report) -> list[Section]:
    """Return the sections of the text that the page does not show in another form."""
    out: list[Section] = []
    for name in text.SECTIONS:
        page = BlockPage()
        if name not in DRAWN:
            text.SECTIONS[name](report, page)
        out += sections(page.blocks, name)
    return out
