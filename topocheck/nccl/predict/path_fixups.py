"""How NCCL changes its paths after its tests: through a CPU, through another GPU, or off the graph.

The order of the steps is that of ncclTopoComputePaths (src/graph/paths.cc, 2.30.7).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topocheck.knowledge.nccl_rules import word
from topocheck.model.base import small_number
from topocheck.nccl.predict.pair_tests import HostView
from topocheck.nccl.predict.paths import NOWHERE, Path, find
from topocheck.nccl.rules import versions

_CHANNELS = 64


def _merge(view: HostView, a: str, b: str) -> str:
    """Return the type of two paths in a row: C2C then PHB is P2C where the version knows it."""
    if (a, b) in _MAKE_P2C and versions.has("p2c", view.version):
        return "P2C"
    return a if versions.RANK[a] > versions.RANK[b] else b


_MAKE_P2C = (("C2C", "PHB"), ("PHB", "C2C"))


def _through(view: HostView, start: tuple[str, int], middle: tuple[str, int], end: tuple[str, int]) -> None:
    """Send a path through a node (addInterStep)."""
    first, second = find(view.table, *start, *middle), find(view.table, *middle, *end)
    kind = "PXN" if middle[0] == "GPU" else _merge(view, first.type, second.type)
    view.put(*start, *end, Path.joined(kind, first, second))


def net_is_faster(view: HostView, i: int, j: int) -> bool:
    """Tell whether both GPUs reach some NIC within PXB with more bandwidth than each other (ncclTopoCheckNet)."""
    if not view.nets_compete:
        return False
    if not (one := view.near_nic_gb_s(i)) or not (other := view.near_nic_gb_s(j)):
        return False
    return min(one, other) > view.gpu_rows[i].get(j, NOWHERE).gb_s


class _Choice(msgspec.Struct, frozen=True):
    """The NICs of a GPU, and where its channels begin among them; `made_at` is the state of the view it is of."""

    nets: list[int]
    start: int
    per_gpu: int
    made_at: int


def _choice(view: HostView, gpu: int) -> _Choice | None:
    """Return what a GPU chooses its NICs from; None without one."""
    kept = view.choices.get(gpu)
    if isinstance(kept, _Choice) and kept.made_at == view.changes:
        return kept
    nets = view.locals_of("GPU", gpu, "NET")
    if not nets:
        return None
    sharers = max(1, len(view.locals_of("NET", nets[0], "GPU")))
    policy = view.settings.values.get("NCCL_NETDEVS_POLICY", "AUTO").upper()
    per_gpu = -(-len(nets) // sharers)
    if policy == "ALL":
        per_gpu = len(nets)
    elif policy.startswith("MAX:") and (most := small_number(policy[4:])):
        per_gpu = min(most, len(nets))
    start = view.graph.gpus[gpu].dev
    if versions.has("first_nic_by_sharers", view.version):
        start %= sharers
    if len(nets) & (len(nets) - 1) == 0:
        start = _mirror(start, len(nets))
    made = view.choices[gpu] = _Choice(list(nets), start % len(nets), per_gpu, view.changes)
    return made


def local_net(view: HostView, gpu: int, channel: int = 0) -> int | None:
    """Return the NIC a GPU uses on a channel (ncclTopoGetLocalNet); None without one.

    GPUs that share NICs start at different ones: by NVML index, its bits mirrored where the count is a power of 2.
    """
    c = _choice(view, gpu)
    return None if c is None else c.nets[(c.start + channel % c.per_gpu) % len(c.nets)]


def _mirror(value: int, power: int) -> int:
    """Return the low bits of a value in reverse, for a power of two (mirrorBits, src/include/bitops.h)."""
    out, bit, mirror = 0, 1, power >> 1
    while bit < power:
        if value & bit:
            out |= mirror
        bit, mirror = bit << 1, mirror >> 1
    return out


def local_gpu(view: HostView, net: int) -> int | None:
    """Return the GPU that uses this NIC as its own (ncclTopoGetLocalGpu), or None.

    It is the first to come to the NIC when all GPUs nearest to it (all of the job before 2.19.1) go through their
    channels side by side.
    """
    kept = view.users.get(net)
    if kept is not None and kept[1] == view.changes:
        return kept[0]
    best: tuple[int, int] | None = None
    last = min(_CHANNELS - 1, len(view.graph.nets) + 1)
    every: Iterable[int] = range(len(view.graph.gpus))
    for gpu in view.locals_of("NET", net, "GPU") if versions.has("nic_user_is_nearest", view.version) else every:
        c = _choice(view, gpu)
        if c is None or net not in c.nets:
            continue
        channel = (c.nets.index(net) - c.start) % len(c.nets)
        if channel < c.per_gpu and channel <= last and (best is None or channel < best[0]):
            best = channel, gpu
    found = None if best is None else best[1]
    view.users[net] = found, view.changes
    return found


def reroute(view: HostView, containers: dict[int, str] | None = None) -> list[str]:
    """Apply all tests of this host to its table of paths; return why init would end, if it would.

    `containers` maps a GPU to the mark of its container: those with different marks share no /dev/shm.
    """
    marks = {gpu: mark for gpu, mark in (containers or {}).items() if mark}
    fatal: dict[str, None] = {}
    gpus = range(len(view.graph.gpus))
    for g in gpus:
        for p in gpus:
            if p == g:
                continue
            check = view.p2p_checks[(p, g)] = view.check_p2p(p, g)
            apart = bool(marks) and marks.get(p, "") != marks.get(g, "")
            if check.fatal and not apart:
                fatal[check.fatal] = None
            if apart or not check.allowed:
                _through(view, ("GPU", p), ("CPU", view.cpus[g]), ("GPU", g))
    shm_off = view.shm_off
    for g in gpus if shm_off or marks or view.nets_compete else ():  # else no pair goes by NET
        for p in gpus:
            if p == g:
                continue
            apart = bool(marks) and marks.get(p, "") != marks.get(g, "")
            faster = net_is_faster(view, p, g)
            p2p = not apart and view.p2p_checks[(p, g)].allowed and not faster
            if not p2p and (shm_off or apart or faster):
                path = view.path("GPU", p, "GPU", g)
                view.put("GPU", p, "GPU", g, Path("NET", path.gb_s, path.links))
    if versions.has("p2c", view.version):
        _set_p2c(view)
    for net in range(len(view.graph.nets)):
        for gpu in gpus:
            _route_to_nic(view, gpu, net)
    return list(fatal)


def without_nics(view: HostView, containers: dict[int, str] | None = None) -> HostView:
    """Return the view, after `reroute`, of a job that is on this host alone: up to 2.28.3 NCCL drops the NICs there.

    It does so where every GPU reaches the first without the network (ncclTopoTrimSystem), and then works the paths out
    once more. The paths to the NICs are kept: they are what a job over several hosts gets.
    """
    domains: list[int] = []
    for g in range(len(view.graph.gpus)):
        joined = (p for p in range(g) if versions.rank(view.path("GPU", g, "GPU", p).type) < versions.rank("NET"))
        domains.append(min((domains[p] for p in joined), default=g))
    if any(domains) or not view.nets_compete or not versions.has("one_host_drops_nics", view.version):
        return view
    alone = HostView(view.host, view.version, view.wanted)
    alone.nets_compete = False
    reroute(alone, containers)
    return alone


def _set_p2c(view: HostView) -> None:
    for gpu in range(len(view.graph.gpus)):
        cpu = view.cpus[gpu]
        nearest = list(view.locals_of("GPU", gpu, "NET"))
        every = range(len(view.graph.nets))
        for net in nearest if versions.has("p2c_local_only", view.version) else every:
            to_cpu, from_nic = view.path("GPU", gpu, "CPU", cpu), view.path("NET", net, "CPU", cpu)
            if _merge(view, to_cpu.type, from_nic.type) != "P2C":
                continue
            for key in (("GPU", gpu, "NET", net), ("NET", net, "GPU", gpu)):
                path = view.path(*key)
                if versions.rank(path.type) > versions.rank("P2C"):
                    view.put(*key, Path("P2C", path.gb_s, path.links))


def pxn_reach(view: HostView) -> str:
    """Return how far the NIC may be from the GPU that sends for others."""
    c2c = versions.has("p2c", view.version) and view.settings.versioned("NCCL_PXN_C2C", 1) != 0
    return "P2C" if c2c else "PXB"


def _route_to_nic(view: HostView, gpu: int, net: int) -> None:
    path = view.path("GPU", gpu, "NET", net)
    if versions.has("pxn", view.version) and not view.settings.is_one("NCCL_PXN_DISABLE"):
        peer = local_gpu(view, net)
        if peer is not None and peer != gpu:
            reach = view.path("GPU", peer, "NET", net)
            near = versions.rank(reach.type) <= versions.rank(pxn_reach(view))
            linked = versions.rank(view.path("GPU", peer, "GPU", gpu).type) <= versions.rank("NVL")
            limit = word("pxn_avoids", view.version, "PXB")
            wider = versions.has("pxn_higher_bw", view.version) and reach.gb_s > path.gb_s
            better = wider or versions.rank(path.type) > versions.rank(limit)
            gdr = not versions.has("pxn_needs_gdr", view.version) or view.check_gdr(peer, net, read=True).used
            if near and linked and better and gdr:
                _through(view, ("GPU", gpu), ("GPU", peer), ("NET", net))
    path = view.path("GPU", gpu, "NET", net)
    if versions.rank(path.type) < versions.rank("PHB") and not view.check_gdr(gpu, net, read=False).used:
        cpu = ("CPU", view.cpus[gpu])
        _through(view, ("NET", net), cpu, ("GPU", gpu))
        _through(view, ("GPU", gpu), cpu, ("NET", net))
