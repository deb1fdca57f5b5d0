"""One line for `die` of LBNL Node Health Check; nothing on a healthy node.

NHC's own `check_cmd_status` throws a program's output away, so integrations/nhc/topocheck.nhc calls this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.render.formats.lines import reason

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.pipeline import Report


def render(outcome: Outcome, report: Report) -> str:
    """Return the line for `die`, or the empty text."""
    return reason(outcome)
