"""A prediction of NCCL's as text: the answer, groups of equal pairs, and every pair where asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topocheck.model.base import Missing
from topocheck.render.nccl import why_lines
from topocheck.render.page import Page, Style
from topocheck.render.words import plural, ranges

if TYPE_CHECKING:
    from topocheck.nccl.predict.types import Bound, NicPair, Prediction, RankPair

MAX_SHOWN = 4
"""Pairs named of a group."""


def prediction_text(
    p: Prediction, labels: dict[int, str], style: Style, *, why: bool = False, every: bool = False
) -> str:
    """Return a prediction: the answer first; with `every` or `why` each pair with its rules."""
    page = Page(style)
    paint_prediction(p, labels, page, why=why, every=every or why)
    return page.render()


def paint_prediction(
    p: Prediction, labels: dict[int, str], page: Page, *, why: bool = False, every: bool = True
) -> None:
    """Add a prediction to a page."""
    hosts = len({r.host for r in p.ranks})
    where = f" on {plural(hosts, 'host')}" if hosts > 1 else ""
    page.line((f"NCCL {p.version}, {plural(len(p.ranks), 'rank')}{where}", "bold"))
    if p.version_note:
        page.text(p.version_note, style="dim")
    if p.fatal:
        page.text(f"ncclCommInitRank would fail: {p.fatal}", style="red")
    _answer(p, page)
    if every:
        _ranks(p, labels, page)
        _every_pair(p, page, why=why)
        _nics(p.nics, page)
    else:
        _groups(p.pairs, page)
        _nics([n for n in p.nics if n.local], page, proxies=False)
    for b in p.bounds if every else ():
        page.text(f"{b.algorithm}: {b.busbw_gb_s:.1f} GB/s, limited by {b.limited_by}  ({b.formula})")
    for note in p.notes:
        page.text(f"note: {note}")
    if not every and p.pairs:
        page.text("--all shows every pair and NIC, --why the rules that lead there", style="dim")


def _answer(p: Prediction, page: Page) -> None:
    """Add what a user wants to know: transports, NICs, expected bandwidth with its limit, algorithm."""
    if p.settings:
        page.pair("settings", ", ".join(f"{name}={value}" for name, value in p.settings.items()))
    if p.pairs:
        page.pair("between GPUs", _shares([_bare(x) for x in p.pairs], "pair"))
    own = [n for n in p.nics if n.local]
    if own:
        names = ranges(dict.fromkeys(n.nic for n in own))
        # A rank without a NIC of its own has several by PXN; it is counted once.
        by_rank = {n.rank: _gdr(n) for n in own}
        page.pair("NICs", f"{names}; GPUDirect RDMA: {_shares(list(by_rank.values()), 'GPU')}")
    best = max(p.bounds, key=lambda b: b.busbw_gb_s, default=None)
    if best is not None:
        switch = "; the switch does the sums, so bus bandwidth exceeds the links'" if "NVLS" in best.algorithm else ""
        page.pair("AllReduce", f"at most {best.busbw_gb_s:.1f} GB/s busbw, limited by {best.limited_by}{switch}")
        page.pair("algorithm", _algorithms(p.bounds, best))
    used = "not known" if isinstance(p.nvls, Missing) else "used" if p.nvls else "not used"
    page.pair("NVLS", f"{used}: {p.nvls_reason}" if p.nvls_reason else used)


def _algorithms(bounds: Sequence[Bound], best: Bound) -> str:
    others = ", ".join(f"{b.algorithm} {b.busbw_gb_s:.1f}" for b in bounds if b is not best)
    rest = f" (of the others: {others} GB/s)" if others else " (no bound is known of others)"
    return f"likely {best.algorithm} for large messages{rest}"


def _shares(words: Sequence[str], one: str) -> str:
    """Return `P2P/CUMEM for all 56 pairs`, or each word with how many, most first."""
    counts = Counter(words)
    if len(counts) == 1:
        word = next(iter(counts))
        return f"{word} for all {len(words)} {one}s" if len(words) > 1 else f"{word} for the {one}"
    return ", ".join(f"{w} for {n}" for w, n in counts.most_common()) + f" of {len(words)} {one}s"


def _bare(x: RankPair) -> str:
    return f"not known ({x.transport.detail})" if isinstance(x.transport, Missing) else x.transport


def _gdr(n: NicPair) -> str:
    words = {_yes(n.gdr_send), _yes(n.gdr_receive)}
    return words.pop() if len(words) == 1 else f"send {_yes(n.gdr_send)}, receive {_yes(n.gdr_receive)}"


def _route(x: RankPair) -> str:
    return x.path if x.path == x.routed else f"{x.path}, routed {x.routed}"


def _groups(pairs: Sequence[RankPair], page: Page) -> None:
    """Add the pairs, equal ones in one row; what is equal both ways is named once."""
    groups: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for x in pairs:
        indirect = " through a GPU between" if x.through is not None else " by PXN" if x.proxy_rank is not None else ""
        key = (_route(x), _bare(x) + indirect, f"{x.gb_s:.1f}" if x.gb_s else "-")
        groups.setdefault(key, []).append((x.from_rank, x.to_rank))
    if not groups:
        return
    page.heading("Pairs of ranks (GB/s: the constants NCCL plans with, below what the links carry)")
    rows = []
    for (route, transport, rate), members in groups.items():
        there = set(members)
        once = [(a, b) for a, b in members if a < b or (b, a) not in there]
        both = all((b, a) in there for a, b in members)
        names = ", ".join(f"{a}-{b}" if both else f"{a}->{b}" for a, b in once[:MAX_SHOWN])
        names += ", ..." if len(once) > MAX_SHOWN else ""
        rows.append((str(len(members)), route, transport, rate, names))
    page.table(("pairs", "NCCL path type", "transport", "GB/s", "ranks"), rows, right=frozenset({0, 3}))


def _ranks(p: Prediction, labels: dict[int, str], page: Page) -> None:
    if p.ranks:
        page.heading("Ranks")
        rows = [(str(r.rank), r.host, r.gpu, labels.get(r.rank, "")) for r in p.ranks]
        page.table(("rank", "host", "GPU", ""), rows)


def _every_pair(p: Prediction, page: Page, *, why: bool) -> None:
    if p.pairs:
        page.heading("Between ranks (GB/s: the constants NCCL plans with, below what the links carry)")
    for x in p.pairs:
        rate = f"{x.gb_s:.1f} GB/s" if x.gb_s else ""
        page.text(f"{x.from_rank} -> {x.to_rank}  {_route(x)}  {rate}  {_transport(x)}".replace("    ", "  "))
        if why:
            why_lines(page, x.reasons)


def _transport(p: RankPair) -> str:
    text = _bare(p)
    if p.through is not None:
        text += f" through rank {p.through}"
    if p.nic_send or p.nic_receive:
        text += f"  {p.nic_send or '?'} -> {p.nic_receive or '?'}"
    if p.proxy_rank is not None:
        text += f"  (PXN: rank {p.proxy_rank} sends)"
    return text


def _nics(nics: Sequence[NicPair], page: Page, *, proxies: bool = True) -> None:
    """Add GPUs and NICs, neighbours that are equal but for rank and NIC in one row."""
    if not nics:
        return
    page.heading("GPUs and NICs")
    groups: dict[tuple[str, ...], list[NicPair]] = {}
    for n in nics:
        path = n.path + (f" by rank {n.proxy_rank}" if n.proxy_rank is not None and proxies else "")
        key = ("" if n.local else f"{n.rank} {n.nic}", path, f"{n.gb_s:.1f}", _yes(n.gdr_send), _yes(n.gdr_receive))
        groups.setdefault(key, []).append(n)
    rows = [
        (
            f"rank {ranges(dict.fromkeys(str(n.rank) for n in members))}",
            ranges(dict.fromkeys(n.nic for n in members)) + (" (own)" if members[0].local else ""),
            *key[1:],
        )
        for key, members in groups.items()
    ]
    page.table(("", "NIC", "path", "GB/s", "GDR send", "GDR receive"), rows, right=frozenset({3}))


def _yes(value: bool | Missing) -> str:
    return "not known" if isinstance(value, Missing) else "yes" if value else "no"
