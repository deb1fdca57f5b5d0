"""Which algorithms an AllReduce may use: NCCL_ALGO as a version reads it, and NVLink SHARP (NVLS)."""

from __future__ import annotations

from collections import Counter

from topocheck.knowledge.nccl import lookup
from topocheck.knowledge.nccl_rules import number
from topocheck.model.base import Missing
from topocheck.nccl.predict.pair_tests import HostView
from topocheck.nccl.predict.types import RankPair
from topocheck.nccl.rules import versions
from topocheck.nccl.rules.settings import Settings

FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")


def _words(name: str) -> frozenset[str]:
    found = lookup(name)
    return frozenset(w.lower() for w in found.words) if found is not None else frozenset()


def _listed(text: str, every: frozenset[str]) -> frozenset[str]:
    """Return what a list such as `ring,tree` or `^tree` leaves of all words; those it does not know say nothing."""
    named = frozenset(w for w in text.removeprefix("^").lower().split(",") if w)
    return every - named if text.startswith("^") else every & named


def _entries(text: str) -> list[tuple[str, str]]:
    """Return (function, list) of each entry of `list;function:list;...`; the function is empty where none is named."""
    out = []
    for entry in (e for e in text.split(";") if e):
        parts = [p for p in entry.split(":") if p]
        function, words = (parts[0], parts[1]) if len(parts) > 1 else ("", "".join(parts))
        out.append((function.lower(), words))
    return out


def list_stops(settings: Settings) -> str:
    """Return why NCCL_ALGO or NCCL_PROTO ends init (parseList in src/graph/tuning.cc); empty where it does not."""
    if not versions.has("strict_lists", settings.version):
        return ""
    for name in ("NCCL_ALGO", "NCCL_PROTO"):
        value = settings.values.get(name, "")
        for place, (function, text) in enumerate(_entries(value)):
            if not function and place:
                return f"{name}={value}: all entries but the first must name a function"
            if function and function not in FUNCTIONS:
                return f"{name}={value}: no function is named {function}"
            unknown = [w for w in text.removeprefix("^").split(",") if w and w.lower() not in _words(name)]
            if unknown:
                return f"{name}={value}: {', '.join(unknown)} is not known, and unknown values make init fail"
    return ""


def allowed(settings: Settings) -> frozenset[str]:
    """Return the algorithms, in lower case, that NCCL_ALGO leaves to AllReduce."""
    every = _words("NCCL_ALGO")
    value = settings.values.get("NCCL_ALGO")
    if value is None:
        return every
    if versions.has("strict_lists", settings.version):
        out = every
        for function, text in _entries(value):
            if function in ("", "allreduce"):
                out = _listed(text, every)
        return out
    out = _listed(value, every)
    # A list with nothing that always works, such as CollNet alone, is passed over.
    return out if out & {"ring", "tree", "nvls", "nvlstree"} else out | {"ring", "tree"}


def lacks_algorithm(settings: Settings, nvls: bool | Missing) -> str:
    """Return what must be said where NCCL_ALGO leaves AllReduce nothing that can run; empty otherwise."""
    if not versions.has("strict_lists", settings.version) or nvls is not False or list_stops(settings):
        return ""
    if allowed(settings) & {"ring", "tree", "collnetdirect", "collnetchain"}:
        return ""
    return f"NCCL_ALGO={settings.values['NCCL_ALGO']} leaves AllReduce no algorithm that works here: the call fails"


def _domains(names: list[str], host_of: dict[int, str], pairs: list[RankPair]) -> list[set[str]]:
    """Return the hosts in the NVLink domain of each: itself, and those that NVLink between hosts joins to it."""
    out = {name: {name} for name in names}
    for p in pairs:
        if p.transport_kind == "P2P/MNNVL":
            out[host_of[p.from_rank]].add(host_of[p.to_rank])
    return [out[name] for name in names]


def gpus_of_nodes(view: HostView) -> list[int]:
    """Return how many GPUs each node of NCCL's has on a host: GPUs that only NET joins count as apart (paths.cc)."""
    domain: list[int] = []
    for g in range(len(view.graph.gpus)):
        near = (p for p in range(g) if versions.rank(view.path("GPU", g, "GPU", p).type) < versions.rank("NET"))
        domain.append(min((domain[p] for p in near), default=g))
    return list(Counter(domain).values())


def nvls(views: list[HostView], host_of: dict[int, str], pairs: list[RankPair]) -> tuple[bool | Missing, str]:
    """Return whether AllReduce can use NVLink SHARP, and the rule (src/transport/nvls.cc, src/graph/search.cc).

    Args:
        views: the hosts of the job.
        host_of: rank -> its host's name.
        pairs: what the ranks do.
    """
    if not views:
        return False, "no rank"
    view = views[0]
    version, settings = view.version, view.settings
    if not versions.has("nvls", version):
        return False, "this version knows no NVLS"
    value = settings.versioned("NCCL_NVLS_ENABLE", 2)
    if value == 0:
        return False, "NCCL_NVLS_ENABLE=0"
    domains = _domains([v.host.name for v in views], host_of, pairs)
    over_nvlink = any(len(d) > 1 for d in domains)
    if over_nvlink:
        gpus = [sum(len(v.graph.gpus) for v in views if v.host.name in d) for d in domains]
        several = any(len(d) < len(views) for d in domains)
    else:
        gpus = [n for v in views for n in gpus_of_nodes(v)] or [0]
        several = len(gpus) > 1
    if over_nvlink and not versions.has("nvls_mnnvl", version):
        return False, "this version uses no NVLS where NVLink joins the hosts"
    if several and not versions.has("nvls_across", version):
        return False, "this version uses NVLS in one host only"
    name = "NVLSTree" if several else "NVLS"
    if name.lower() not in allowed(settings):
        return False, f"NCCL_ALGO={settings.values['NCCL_ALGO']} leaves {name} out of AllReduce"
    least = int(number("nvls_min_gpus", version, 2))
    if min(gpus) < least:
        where = "an NVLink domain" if over_nvlink else "a host"
        if not over_nvlink and len(gpus) > len(views):
            where += " that reach each other by P2P or SHM"
        return False, f"needs at least {least} GPUs of {where}"
    if any(not v.graph.nodes["NVS"] for v in views):
        return False, "no NVSwitch"
    if min(g.sm for v in views for g in v.graph.gpus) < 90:
        return False, "needs compute capability 9.0 or newer on every GPU"
    offers = [v.host.multicast for v in views]
    if value == 2 and False in offers:
        return False, "the driver offers no multicast"
    unknown = next((m for m in offers if isinstance(m, Missing)), None)
    if value == 2 and unknown is not None:
        if view.host.assume:
            return True, "NVSwitch, and GPUs of 9.0 or newer; that the driver offers multicast is taken as so"
        return unknown, "whether the driver offers multicast is not known"
    inside = f" in each of {len(gpus)} nodes ({name})" if several else ""
    return True, f"NVSwitch, multicast, and {min(gpus)} GPUs of compute capability 9.0 or newer{inside}"
