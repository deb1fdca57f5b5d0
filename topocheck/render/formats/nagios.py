"""One line for Nagios, Icinga and their kin, with performance data.

Monitoring Plugins development guidelines: one line on standard output (standard error is lost), `|`, then
`'label'=value[unit];warn;crit;min;max`. Ranges alert outside `start:end`, so where low is bad the range is `50:`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.model.base import State
from topocheck.render.formats.lines import cut, headline
from topocheck.render.formats.rates import link_rates
from topocheck.render.quoting import nagios_label, nagios_text

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.pipeline import Report

LINE_BYTES = 80
"""Wanted by the guidelines, for pagers; performance data is not counted."""


def render(outcome: Outcome, report: Report) -> str:
    """Return the status line with performance data."""
    from topocheck.render.formats import exit_code

    word = ("OK", "WARNING", "CRITICAL", "UNKNOWN")[exit_code("nagios", outcome, unknown_fails=False)]
    first = headline(outcome)
    judged = sum(r.state is not State.NOT_APPLICABLE for r in outcome.results)
    prefix = f"TOPOCHECK {word}: "
    if word == "OK" or first is None:
        doubts = sum(r.state is State.UNKNOWN for r in outcome.results)
        told = f"{judged} checks" + (f", {doubts} of them unknown" if doubts else "")
        line = cut(prefix + nagios_text(outcome.notices[0] if outcome.notices else told), LINE_BYTES)
    else:
        line = first.fit(prefix, LINE_BYTES, nagios_text)
    return f"{line} | {' '.join(performance(outcome, report))}\n"


def usage_line(message: str) -> str:
    """Return the line for wrong usage or input that cannot be read: UNKNOWN, since exit code 2 is CRITICAL."""
    return cut(f"TOPOCHECK UNKNOWN: {nagios_text(message)}", 4 * LINE_BYTES) + "\n"


def performance(outcome: Outcome, report: Report) -> list[str]:
    """Return performance data: counts of findings, and the rate of each GPU's and NIC's PCIe link in GB.

    The critical range of a link is what both its ends can do, and above: `63.015:` alerts below that.
    """
    count = {s: sum(f.state is s for f in outcome.findings) for s in (State.FAIL, State.WARN, State.UNKNOWN)}
    out = [
        f"'fail'={count[State.FAIL]};;0;0",
        f"'warn'={count[State.WARN]};0;;0",
        f"'unknown'={count[State.UNKNOWN]};;;0",
    ]
    for link in link_rates(report.topology):
        if link.role not in ("gpu", "nic"):
            continue
        limit = "" if link.max_gb_s is None else f"{link.max_gb_s:.3f}"
        out.append(f"'{nagios_label(link.label)}_pcie'={link.now_gb_s:.3f}GB;;{limit + ':' if limit else ''};0;{limit}")
    return out
