"""Sweeps over sizes as tables with a small plot, and the cost models made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from topocheck.model.measurement import UNSTABLE, near_and_pinned, unsteady
from topocheck.model.units import size_text, time_text
from topocheck.render.page import Page, Style

if TYPE_CHECKING:
    from topocheck.model.measurement import Fit, Measurement

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR = 40

UNSTEADY_TEXT = f"* disturbed, or its samples spread over more than {100 * UNSTABLE:.0f} % of the median"
"""What the mark behind a value means."""


def copy_sweeps(rows: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    """Return the copies that were measured at three sizes or more: what they are -> rows in the order of sizes."""
    found: dict[str, dict[int, Measurement]] = {}
    for m in rows:
        if m.kind in ("h2d", "d2h", "p2p") and m.unit == "GB/s" and near_and_pinned(m):
            how = (
                "without peer access"
                if m.peer_access is False
                else {"source": "push", "destination": "pull"}.get(m.issuer or "", "")
            )
            name = f"{m.from_label or m.from_} to {m.to_label or m.to} {how}".strip()
            found.setdefault(f"{name}, {m.engine}", {})[m.size_bytes] = m
    return {k: [m for _, m in sorted(by_size.items())] for k, by_size in found.items() if len(by_size) > 2}


def sweeps(page: Page, rows: Iterable[Measurement]) -> None:
    """Plot the copies that were measured at three sizes or more."""
    for name, found in copy_sweeps(rows).items():
        page.heading(f"{name}, GB/s by size")
        top = max(m.median for m in found) or 1.0
        page.table(
            ("size", "time us", "GB/s", ""),
            [
                (
                    size_text(m.size_bytes),
                    f"{m.time_us or 0:.2f}",
                    f"{m.median:.4g}{'*' if unsteady(m) else ''}",
                    (bar(m.median / top, _bar_width(page.style)), "cyan"),
                )
                for m in found
            ],
            right=frozenset({1, 2}),
        )


def collective_sweeps(rows: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    """Return the sweeps of collectives: what they are -> rows in the order of sizes."""
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for m in rows:
        if m.kind == "collective":
            groups.setdefault((m.collective, m.backend, m.ranks, m.dtype, m.in_place, m.mode), []).append(m)
    out = {}
    for (name, backend, ranks, dtype, in_place, mode), found in groups.items():
        placed = "in place" if in_place else "out of place"
        title = f"{name} over {backend}, {ranks} ranks, {dtype}, {placed}, {str(mode).replace('_', ' ')}"
        out[title] = sorted(found, key=lambda m: m.size_bytes)
    return out


def collectives(page: Page, rows: Iterable[Measurement]) -> None:
    """Add one table with a plot per sweep of a collective."""
    for title, found in collective_sweeps(rows).items():
        page.heading(title)
        top = max((m.busbw_gb_s or 0.0) for m in found) or 1.0
        page.table(
            ("size", "time us", "algbw", "busbw GB/s", "", ""),
            [
                (
                    size_text(m.size_bytes),
                    f"{m.median:.1f}{'*' if unsteady(m) else ''}",
                    f"{m.algbw_gb_s or 0:.3g}",
                    f"{m.busbw_gb_s or 0:.4g}",
                    (bar((m.busbw_gb_s or 0.0) / top, _bar_width(page.style)), "cyan"),
                    ("wrong data", "bold red") if m.verified is False else ("", ""),
                )
                for m in found
            ],
            right=frozenset({1, 2, 3}),
        )


def _bar_width(style: Style) -> int:
    return max(8, min(_BAR, style.width - 52))


def bar(share: float, width: int = _BAR) -> str:
    """Return a bar of blocks whose length is `share` (0 to 1) of `width` columns, exact to an eighth of a column."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _from_to(low: float, high: float) -> str:
    """Return an interval; one that the samples do not bound (times that barely grow with the size) has no end."""
    return f"{low:.4g} to {high:.4g}" if high < 1e5 else f"{low:.4g} or more"


def fit_lines(page: Page, fit: Fit) -> None:
    """Add the cost model of one sweep."""
    page.heading(f"Cost model: {fit.subject}")
    if fit.not_fitted:
        page.text(f"no fit: {fit.not_fitted}")
        return
    for p in ([fit.overall] if fit.overall else []) + (list(fit.segments) if len(fit.segments) > 1 else []):
        page.text(
            f"{size_text(p.from_bytes)} to {size_text(p.to_bytes)}: alpha {time_text(p.alpha_us)} "
            f"({time_text(p.alpha_low_us)} to {time_text(p.alpha_high_us)}), beta {p.beta_gb_s:.4g} GB/s {fit.rate} "
            f"({_from_to(p.beta_low_gb_s, p.beta_high_gb_s)})",
            hang=2,
        )
    if fit.empirical_bytes:
        reached = ", ".join(f"{k} % from {size_text(v)}" for k, v in fit.empirical_bytes.items())
        page.text(f"of the peak {fit.peak_gb_s or 0:.4g} GB/s: {reached}", hang=2)
    for note in fit.notes:
        page.text(note, hang=2, style="dim")
