"""One line that becomes the reason of a drained node; nothing on a healthy one.

Slurm shows no output of a prolog, so integrations/slurm/prolog.sh takes this line and sets the reason with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.render.formats.lines import reason

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.pipeline import Report


def render(outcome: Outcome, report: Report) -> str:
    """Return the reason, or the empty text."""
    return reason(outcome)
