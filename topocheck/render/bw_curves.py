"""Sweeps over sizes as tables with a small plot, and the cost models made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from topocheck.model.measurement import UNSTABLE, unsteady
from topocheck.model.units import size_text, time_text
from topocheck.render.page import Page, Style, clean

if TYPE_CHECKING:
    from topocheck.model.measurement import Fit, Measurement

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR = 40

UNSTEADY_TEXT = f"* disturbed, or its samples spread over more than {100 * UNSTABLE:.0f} % of the median"
"""What the mark behind a value means."""


def sweeps(page: Page, rows: Iterable[Measurement]) -> None:
    """Plot the copies that were measured at three sizes or more."""
    found: dict[str, dict[int, Measurement]] = {}
    for m in rows:
        plain = ":node" not in m.id and "pageable" not in m.id
        if m.kind in ("h2d", "d2h", "p2p") and m.unit == "GB/s" and plain:
            how = (
                "without peer access"
                if m.peer_access is False
                else {"source": "push", "destination": "pull"}.get(m.issuer or "", "")
            )
            name = f"{m.from_label or m.from_} to {m.to_label or m.to} {how}".strip()
            found.setdefault(f"{name}, {m.engine}", {})[m.size_bytes] = m
    for name, by_size in found.items():
        if len(by_size) < 3:
            continue
        page.heading(f"{name}, GB/s by size")
        top = max(m.median for m in by_size.values()) or 1.0
        page.table(
            ("size", "time us", "GB/s", ""),
            [
                (
                    size_text(size),
                    f"{m.time_us or 0:.2f}",
                    f"{m.median:.4g}{'*' if unsteady(m) else ''}",
                    (bar(m.median / top, _bar_width(page.style)), "cyan"),
                )
                for size, m in sorted(by_size.items())
            ],
            right=frozenset({1, 2}),
        )


def collectives(page: Page, rows: Iterable[Measurement]) -> None:
    """Add one table with a plot per sweep of a collective."""
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for m in rows:
        if m.kind == "collective":
            groups.setdefault((m.collective, m.backend, m.ranks, m.dtype, m.in_place, m.mode), []).append(m)
    for (name, backend, ranks, dtype, in_place, mode), found in groups.items():
        placed = "in place" if in_place else "out of place"
        page.heading(f"{name} over {backend}, {ranks} ranks, {dtype}, {placed}, {str(mode).replace('_', ' ')}")
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
                for m in sorted(found, key=lambda m: m.size_bytes)
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
    """Return an interval; one that the samples do not bound (times that hardly grow with the size) has no end."""
    return f"{low:.4g} to {high:.4g}" if high < 1e5 else f"{low:.4g} or more"


def fit_lines(page: Page, fit: Fit) -> None:
    """Add the cost model of one sweep."""
    page.heading(f"Cost model: {fit.subject}")
    if fit.refused:
        page.text(f"no fit: {fit.refused}")
        return
    for p in ([fit.whole] if fit.whole else []) + (list(fit.pieces) if len(fit.pieces) > 1 else []):
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
        page.text(clean(note), hang=2, style="dim")
