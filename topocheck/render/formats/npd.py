"""One line for node-problem-detector's custom plugin monitor.

It cuts a message at `max_output_length`, 80 bytes unless told otherwise, anywhere in a character; this cuts
between characters. One rule has one reason, so a rule asks for one check: `--only pcie.link-width`.
(node-problem-detector docs/custom_plugin_monitor.md, pkg/custompluginmonitor/plugin)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.render.formats.lines import CANNOT_TELL, headline

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.pipeline import Report

MESSAGE_BYTES = 80


def render(outcome: Outcome, report: Report) -> str:
    """Return the message, at most 80 bytes without its newline."""
    first = headline(outcome)
    if first is None or (outcome.exit_code == 0 and not outcome.notices):
        return "healthy\n"
    single = {r.id for r in outcome.results} == {first.id}
    return first.fit("" if single or first.id == CANNOT_TELL else f"{first.id}: ", MESSAGE_BYTES) + "\n"
