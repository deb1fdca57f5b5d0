"""How NCCL changes its paths after its tests: through a CPU, through another GPU, or off the graph.

The order of the steps is that of ncclTopoComputePaths (src/graph/paths.cc, 2.30.7).
"""

from __future__ import annotations

from topocheck.knowledge.nccl import rule
from topocheck.model.base import small_number
from topocheck.nccl import versions
from topocheck.nccl.paths import Path, local_cpu, locals_of
from topocheck.nccl.routing import HostView

_CHANNELS = 64


def _merge(view: HostView, a: str, b: str) -> str:
    """Return the type of two paths in a row: C2C then PHB is P2C where the version knows it."""
    if {a, b} == {"C2C", "PHB"} and versions.has("p2c", view.version):
        return "P2C"
    return versions.worst((a, b))


def _through(view: HostView, start: tuple[str, int], middle: tuple[str, int], end: tuple[str, int]) -> None:
    """Send a path through a node (addInterStep)."""
    first, second = view.path(*start, *middle), view.path(*middle, *end)
    kind = "PXN" if middle[0] == "GPU" else _merge(view, first.type, second.type)
    view.table[(*start, *end)] = Path(kind, min(first.gb_s, second.gb_s), (*first.links, *second.links))


def net_is_faster(view: HostView, i: int, j: int) -> bool:
    """Tell whether both GPUs reach some NIC within PXB with more bandwidth than each other (ncclTopoCheckNet)."""
    if not versions.has("net_beats_p2p", view.version) or view.settings.is_one("NCCL_NET_DISABLE_INTRA"):
        return False
    speed = view.path("GPU", i, "GPU", j).gb_s
    best = []
    for gpu in (i, j):
        near = (view.path("GPU", gpu, "NET", n.index) for n in view.graph.nodes["NET"])
        best.append(max((p.gb_s for p in near if versions.rank(p.type) <= versions.rank("PXB")), default=0.0))
    return min(best) > speed


def local_net(view: HostView, gpu: int, channel: int = 0) -> int | None:
    """Return the NIC a GPU uses on a channel (ncclTopoGetLocalNet); None without one.

    GPUs that share NICs start at different ones: by NVML index, its bits mirrored where the count is a power of 2.
    """
    nets = locals_of(view.graph, view.table, "GPU", gpu, "NET")
    if not nets:
        return None
    sharers = max(1, len(locals_of(view.graph, view.table, "NET", nets[0], "GPU")))
    policy = view.settings.values.get("NCCL_NETDEVS_POLICY", "AUTO").upper()
    per_gpu = -(-len(nets) // sharers)
    if policy == "ALL":
        per_gpu = len(nets)
    elif policy.startswith("MAX:") and (most := small_number(policy[4:])):
        per_gpu = min(most, len(nets))
    start = view.graph.gpus[gpu].dev % sharers
    if len(nets) & (len(nets) - 1) == 0:
        start = _mirror(start, len(nets))
    return nets[(start + channel % per_gpu) % len(nets)]


def _mirror(value: int, power: int) -> int:
    """Return the low bits of a value in reverse, for a power of two (mirrorBits, src/include/bitops.h)."""
    out, bit, mirror = 0, 1, power >> 1
    while bit < power:
        if value & bit:
            out |= mirror
        bit, mirror = bit << 1, mirror >> 1
    return out


def local_gpu(view: HostView, net: int) -> int | None:
    """Return the GPU that uses this NIC as its own (ncclTopoGetLocalGpu), or None."""
    gpus = locals_of(view.graph, view.table, "NET", net, "GPU")
    for channel in range(_CHANNELS):
        for gpu in gpus:
            if local_net(view, gpu, channel) == net:
                return gpu
        if channel > len(view.graph.nets):
            break
    return None


def reroute(view: HostView, containers: dict[int, str] | None = None) -> list[str]:
    """Apply all tests of this host to its table of paths; return why init would end, if it would.

    `containers` maps a GPU to the mark of its container: those with different marks share no /dev/shm.
    """
    marks = containers or {}
    fatal: list[str] = []
    gpus = range(len(view.graph.gpus))
    for g in gpus:
        for p in gpus:
            if p == g:
                continue
            apart = marks.get(p, "") != marks.get(g, "")
            check = view.p2p_checks[(p, g)] = view.check_p2p(p, g)
            if check.fatal and not apart and check.fatal not in fatal:
                fatal.append(check.fatal)
            if apart or not check.allowed:
                _through(view, ("GPU", p), ("CPU", local_cpu(view.graph, view.table, g)), ("GPU", g))
    shm_off = view.settings.is_one("NCCL_SHM_DISABLE")
    for g in gpus:
        for p in gpus:
            if p == g:
                continue
            apart = marks.get(p, "") != marks.get(g, "")
            path = view.path("GPU", p, "GPU", g)
            faster = net_is_faster(view, p, g)
            p2p = not apart and view.p2p_checks[(p, g)].allowed and not faster
            if not p2p and (shm_off or apart or faster):
                view.table[("GPU", p, "GPU", g)] = Path("NET", path.gb_s, path.links)
    if versions.has("p2c", view.version):
        _set_p2c(view)
    for net in range(len(view.graph.nets)):
        for gpu in gpus:
            _route_to_nic(view, gpu, net)
    return fatal


def _set_p2c(view: HostView) -> None:
    for gpu in range(len(view.graph.gpus)):
        cpu = local_cpu(view.graph, view.table, gpu)
        nearest = locals_of(view.graph, view.table, "GPU", gpu, "NET")
        every = range(len(view.graph.nets))
        for net in nearest if versions.has("p2c_local_only", view.version) else every:
            to_cpu, from_nic = view.path("GPU", gpu, "CPU", cpu), view.path("NET", net, "CPU", cpu)
            if _merge(view, to_cpu.type, from_nic.type) != "P2C":
                continue
            for key in (("GPU", gpu, "NET", net), ("NET", net, "GPU", gpu)):
                path = view.table[key]
                if versions.rank(path.type) > versions.rank("P2C"):
                    view.table[key] = Path("P2C", path.gb_s, path.links)


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
            limit = rule("pxn_avoids", view.version) or "PXB"
            wider = versions.has("pxn_higher_bw", view.version) and reach.gb_s > path.gb_s
            better = wider or versions.rank(path.type) > versions.rank(limit)
            gdr = not versions.has("pxn_needs_gdr", view.version) or view.check_gdr(peer, net, read=True).used
            if near and linked and better and gdr:
                _through(view, ("GPU", gpu), ("GPU", peer), ("NET", net))
    path = view.path("GPU", gpu, "NET", net)
    if versions.rank(path.type) < versions.rank("PHB") and not view.check_gdr(gpu, net, read=False).used:
        cpu = ("CPU", local_cpu(view.graph, view.table, gpu))
        _through(view, ("NET", net), cpu, ("GPU", gpu))
        _through(view, ("GPU", gpu), cpu, ("NET", net))
