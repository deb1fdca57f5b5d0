"""What a page needs to show the path of two devices that its reader chooses, in as few bytes as can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from topocheck.model.base import Missing, ReasonStep, known
from topocheck.picture.routes import Routes
from topocheck.picture.types import Scene
from topocheck.render.quoting import one_line
from topocheck.render.words import plural

if TYPE_CHECKING:
    from topocheck.gpudirect.types import P2pVerdict, RdmaVerdict
    from topocheck.pipeline import Report
    from topocheck.topology.types import Path, Topology

MAX_PAIRS = 1200
"""Pairs a page holds: all of 16 GPUs and 32 NICs. The JSON of the report has every pair of any node."""


def chosen_devices(topology: Topology) -> list[tuple[str, str]]:
    """Return the devices that pairs are made of: address and label. RDMA devices of one function are one."""
    ends = [(g.address, g.label) for g in (*topology.gpus, *topology.accelerators)]
    seen = dict(ends)
    for n in topology.nics:
        if n.address not in seen:
            seen[n.address] = n.label
            ends.append((n.address, n.label))
    return ends


def pair_data(report: Report, scene: Scene) -> dict[str, Any] | None:
    """Return the data of all pairs for the page's script, or None where there are none, or too many.

    Returns:
        `devices`: labels; `judged`: how many of them, the first, pairs begin at; `texts`: sentences that pairs share;
        `pairs`: `from-to` (numbers of devices) -> class, rate, narrowest hop, verdict, [effect, text, fix] of its
        reasons as numbers of texts, boxes, links, narrowest link.
    """
    topology = report.topology
    paths = topology.paths
    if not paths or len(paths) > MAX_PAIRS:
        return None
    devices = chosen_devices(topology)
    number = {a: i for i, (a, _) in enumerate(devices)}
    texts: dict[str, int] = {}
    routes = Routes(scene)
    p2p = report.gpudirect.of_gpus
    rdma = {(v.from_, v.to): v for v in report.gpudirect.rdma}

    def text(words: str) -> int:
        return texts.setdefault(one_line(words), len(texts))

    pairs = {}
    for p in paths:
        verdict = p2p.get((p.from_, p.to)) or rdma.get((p.from_, p.to))
        pairs[f"{number[p.from_]}-{number[p.to]}"] = _pair(p, verdict, routes, text)
    judged = len(topology.gpus) + len(topology.accelerators)
    labels = [one_line(label) for _, label in devices]
    return {"devices": labels, "judged": judged, "texts": list(texts), "pairs": pairs}


def _pair(
    path: Path, verdict: P2pVerdict | RdmaVerdict | None, routes: Routes, text: Callable[[str], int]
) -> list[Any]:
    route = routes.route(path)
    said = "GPUDirect not judged"
    if verdict is not None:
        said = f"GPUDirect {'RDMA' if hasattr(verdict, 'peermem') else 'P2P'}: {verdict.verdict.value}"
    return [
        text(class_words(path)),
        text(rate_words(path)),
        text(narrowest_words(path)),
        text(said),
        "" if verdict is None else verdict.verdict.value,
        _steps(verdict.reasons if verdict is not None else (), text),
        " ".join(route.boxes),
        " ".join(route.links),
        route.narrowest,
    ]


def _steps(steps: Sequence[ReasonStep], text: Callable[[str], int]) -> list[list[int | str]]:
    return [[s.effect, text(s.text), *([text(s.fix)] if s.fix else [])] for s in steps]


_CLASSES = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "one host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "across NUMA nodes",
}
"""What the classes of `nvidia-smi topo` mean, in a few words."""


def class_words(path: Path) -> str:
    """Return `PIX (one PCIe switch)`."""
    if isinstance(path.class_, Missing):
        return f"class not known ({path.class_})"
    if path.nvlinks:
        return f"{path.class_} ({plural(path.nvlinks, 'NVLink')})"
    meaning = _CLASSES.get(path.class_)
    return f"{path.class_} ({meaning})" if meaning else path.class_


def rate_words(path: Path) -> str:
    """Return `63.0 GB/s per direction`."""
    if isinstance(path.theoretical_gb_s, Missing):
        return "rate not known"
    bound = "at most " if path.upper_bound else ""
    return f"{bound}{path.theoretical_gb_s:.1f} GB/s per direction"


def narrowest_words(path: Path) -> str:
    """Return the narrowest hop in words; that a hop has no readable rate is said."""
    hop = path.narrowest
    if hop is None:
        return "narrowest hop not known"
    rate = f", {hop.working_gb_s:.1f} GB/s" if known(hop.working_gb_s) else ""
    where = f" at {hop.address}" if hop.kind.value == "pcie" else ""
    unread = [h.text for h in path.hops if isinstance(h.working_gb_s, Missing)]
    more = f"; no readable rate: {', '.join(dict.fromkeys(unread))}" if unread else ""
    return f"narrowest hop: {'PCIe ' if where else ''}{hop.text}{rate}{where}{more}"
