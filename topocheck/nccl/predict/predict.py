"""What NCCL will do in a job: transports, NICs, NVLS and bounds, worked out by its own rules for a version."""

from __future__ import annotations

from collections.abc import Sequence

from topocheck.knowledge.nccl import Version, lookup
from topocheck.model.base import Missing, Reason
from topocheck.nccl.predict import algorithms
from topocheck.nccl.predict.bounds import bounds
from topocheck.nccl.predict.graph import build_graph
from topocheck.nccl.predict.pair_tests import Gdr, HostView
from topocheck.nccl.predict.path_fixups import local_net, reroute, without_nics
from topocheck.nccl.predict.transport import local_pair, no_gpu, remote_pair
from topocheck.nccl.predict.types import Bound, HostInput, NicPair, Prediction, RankPair, RankSpec
from topocheck.nccl.rules import versions
from topocheck.nccl.rules.settings import Settings
from topocheck.nccl.topofile.graph_types import GraphError


class PredictError(ValueError):
    """The ranks and hosts do not make a job; the text says what to change."""


def all_ranks(host: HostInput, version: Version) -> tuple[RankSpec, ...]:
    """Return one rank for each GPU of a host, each in a process of its own, in the order of their NVML index."""
    gpus = sorted(build_graph(host.topology, version).gpus, key=lambda g: g.dev)
    return tuple(RankSpec(rank=n, host=host.name, gpu=a) for n, a in enumerate(dict.fromkeys(g.address for g in gpus)))


def predict(
    hosts: tuple[HostInput, ...],
    version: Version,
    ranks: tuple[RankSpec, ...] | None = None,
) -> Prediction:
    """Return what a version of NCCL will do.

    Args:
        hosts: what is known of each host, with the settings in force there.
        version: of NCCL.
        ranks: the job; None for all GPUs of all hosts, one process each.

    Raises:
        PredictError: a rank names a host that is not given, a rank number comes twice, or a topology is too large.
    """
    try:
        return _predict(hosts, version, ranks)
    except GraphError as e:
        raise PredictError(str(e)) from None


def _predict(hosts: tuple[HostInput, ...], version: Version, ranks: tuple[RankSpec, ...] | None) -> Prediction:
    every = ranks is None
    if ranks is None:
        ranks = _number(hosts, version)
    by_name = {h.name: h for h in hosts}
    _check(ranks, by_name)
    views: dict[str, HostView] = {}
    fatal: list[str] = []
    for name in dict.fromkeys(r.host for r in ranks):
        here = [r for r in ranks if r.host == name]
        view = HostView(by_name[name], version, tuple(r.gpu for r in here))
        marks = {i: r.container for r in here if (i := view.gpu(r.gpu)) is not None}
        rerouted = reroute(view, marks)
        if len({r.host for r in ranks}) == 1:
            view = without_nics(view, marks)
        stops = [by_name[name].fatal, *rerouted, algorithms.list_stops(view.settings), _one_sided(view)]
        fatal += [f"{name}: {stop}" if len(by_name) > 1 else stop for stop in stops if stop]
        views[name] = view
    rank_of = {
        name: {i: r.rank for r in ranks if r.host == name and (i := view.gpu(r.gpu)) is not None}
        for name, view in views.items()
    }
    fatal += _shared_gpus(ranks, views, version)
    settings = [v.settings for v in views.values()]
    pairs = _pairs(ranks, views, rank_of)
    unplaced = tuple(r for r in ranks if views[r.host].gpu(r.gpu) is None)
    limits: tuple[Bound, ...] = ()
    far: set[bool] = set()
    if unplaced:
        nvls_reason = f"rank {unplaced[0].rank} is on {no_gpu(views[unplaced[0].host], unplaced[0].gpu)}"
        nvls: bool | Missing = Missing(Reason.ABSENT, nvls_reason)
    else:
        hosts_of = {r.rank: r.host for r in ranks}
        nvls, nvls_reason = algorithms.nvls(list(views.values()), hosts_of, pairs)
        may = frozenset.intersection(*map(algorithms.allowed, settings)) if settings else frozenset()
        far = {p.transport_kind == "P2P/MNNVL" for p in pairs if hosts_of[p.from_rank] != hosts_of[p.to_rank]}
        if far != {True, False}:
            limits = bounds(list(views.values()), len(ranks), nvls=nvls is True, one_domain=far == {True})
        limits = tuple(b for b in limits if b.algorithm.lower() in may)
    notes = [n for v in views.values() for n in _notes(v)]
    notes += ["no bound is worked out where NVLink joins some hosts and not others"] if far == {True, False} else []
    notes += [f"rank {r.rank} is on {no_gpu(views[r.host], r.gpu)}: nothing is known of it" for r in unplaced]
    notes += [text for s in settings if len(ranks) > 1 and (text := algorithms.lacks_algorithm(s, nvls))]
    return Prediction(
        version=".".join(map(str, version)),
        ranks=ranks,
        pairs=tuple(pairs),
        nics=tuple(p for name, view in views.items() for p in _nics(view, rank_of[name])),
        nvls=nvls,
        nvls_reason=nvls_reason,
        bounds=limits,
        fatal="; ".join(fatal),
        notes=tuple(dict.fromkeys((*(_left_out(hosts) if every else ()), *notes))),
        unplaced=tuple(r.rank for r in unplaced),
        settings=_in_force(settings),
    )


def _in_force(hosts: Sequence[Settings]) -> dict[str, str]:
    """Return the settings of the hosts by name, without those that only fill the log."""
    found: dict[str, dict[str, None]] = {}
    for s in hosts:
        for name, value in s.values.items():
            if lookup(name) is not None and not name.startswith("NCCL_DEBUG"):
                found.setdefault(name, {})[value] = None
    return {name: " or ".join(values) for name, values in sorted(found.items())}


def _number(hosts: tuple[HostInput, ...], version: Version) -> tuple[RankSpec, ...]:
    out: list[RankSpec] = []
    for host in hosts:
        out += [RankSpec(rank=len(out) + r.rank, host=r.host, gpu=r.gpu) for r in all_ranks(host, version)]
    return tuple(out)


def _check(ranks: tuple[RankSpec, ...], hosts: dict[str, HostInput]) -> None:
    seen: set[int] = set()
    for r in ranks:
        if r.host not in hosts:
            raise PredictError(
                f"rank {r.rank} is on {r.host}, which is not among the hosts: {', '.join(hosts) or 'none'}"
            )
        if r.rank in seen:
            raise PredictError(f"rank {r.rank} comes twice")
        seen.add(r.rank)


def _one_sided(view: HostView) -> str:
    """Return why NCCL's search for paths ends (src/graph/paths.cc): an NVLink that one of two GPUs has alone."""
    for node in view.graph.nodes["GPU"]:
        for link in node.links:
            other = link.to
            if link.kind != "NVL" or other.kind != "GPU" or any(x.to is node and x.kind == "NVL" for x in other.links):
                continue
            unless = ", unless NVML reports the other direction" if view.host.assume else ""
            return (
                f"{node.address} has an NVLink to {other.address}, and {other.address} none back: NCCL ends with"
                f" 'Failed to find reverse path', an internal error{unless}"
            )
    return ""


def _not_listed(view: HostView) -> list[str]:
    """Return what a topology file alone cannot say: NCCL asks NVML where a `<gpu>` holds no `<nvlink>`."""
    if not view.host.assume:
        return []
    silent = [e for e in view.host.topology.walk() if e.name == "gpu" and not any(e.having("nvlink"))]
    gpus = [g for g in view.graph.gpus if not g.assumed]
    if not silent or len(gpus) < 2:
        return []
    return [
        f"{view.host.name}: the file lists no NVLink for {len(silent)} of {len(gpus)} GPUs: NCCL asks NVML for them,"
        " which a file alone cannot answer; they are predicted without NVLink"
    ]


def _shared_gpus(ranks: tuple[RankSpec, ...], views: dict[str, HostView], version: Version) -> list[str]:
    """Return why init refuses ranks that share a GPU (src/init.cc, "Duplicate GPU detected", ncclInvalidUsage)."""
    first: dict[tuple[str, str], int] = {}
    out = []
    for r in ranks:
        settings = views[r.host].settings
        if versions.has("ranks_share_gpu", version) and settings.is_one("NCCL_MULTI_RANK_GPU_ENABLE"):
            continue
        other = first.setdefault((r.host, r.gpu), r.rank)
        if other != r.rank:
            out.append(f"ranks {other} and {r.rank} are both on {r.gpu} of {r.host}: Duplicate GPU detected")
    return out


def _pairs(
    ranks: tuple[RankSpec, ...], views: dict[str, HostView], rank_of: dict[str, dict[int, int]]
) -> list[RankPair]:
    out = []
    for a in ranks:
        for b in ranks:
            if a.rank == b.rank:
                continue
            if a.host == b.host:
                out.append(local_pair(views[a.host], a, b, rank_of[a.host]))
            else:
                out.append(remote_pair(views[a.host], views[b.host], a, b, rank_of[a.host]))
    return out


def _nics(view: HostView, rank_of: dict[int, int]) -> list[NicPair]:
    out = []
    for gpu, rank in sorted(rank_of.items(), key=lambda x: x[1]):
        own = {local_net(view, gpu, channel) for channel in range(len(view.graph.nets))}
        for net, info in enumerate(view.graph.nets):
            path = view.path("GPU", gpu, "NET", net)
            relay = view.relay(gpu, net)
            send = view.check_gdr(gpu, net, read=True)
            receive = view.check_gdr(gpu, net, read=False)
            out.append(
                NicPair(
                    rank=rank,
                    nic=info.name,
                    path=path.type,
                    gb_s=path.gb_s,
                    gdr_send=_known(send),
                    gdr_receive=_known(receive),
                    proxy_rank=rank_of.get(relay) if relay is not None else None,
                    local=net in own,
                    reasons=send.reasons,
                )
            )
    return out


def _known(gdr: Gdr) -> bool | Missing:
    return Missing(Reason.NOT_RECORDED, "whether GPU and NIC can do it is not known") if gdr.unknown else gdr.used


def _left_out(hosts: tuple[HostInput, ...]) -> list[str]:
    """Return which GPUs no job can use, of hosts all of whose GPUs were to have a rank."""
    return [f"{h.name}: {a} ({why}) is left out" for h in hosts for a, why in h.left_out.items()]


def _joined_ports(view: HostView) -> list[str]:
    """Return the names of the NICs that NCCL would make of several ports of one card, as it writes them (`a+b`)."""
    s = view.settings
    if not versions.has("joins_ports", view.version) or s.integer("NCCL_IB_MERGE_NICS", 1) == 0:
        return []
    if s.values.get("NCCL_NET_MERGE_LEVEL") == "LOC":
        return []
    cards: dict[str, list[str]] = {}
    for net in view.graph.nets:
        # Only RDMA devices have a port number, and only they are joined.
        if net.address and net.port > 0:
            cards.setdefault(net.address, []).append(net.name)
    return ["+".join(names) for names in cards.values() if len(names) > 1]


def _notes(view: HostView) -> list[str]:
    out = [*view.host.notes, *view.graph.notes, *_not_listed(view)]
    if joined := _joined_ports(view):
        out.append(
            f"{view.host.name}: NCCL joins ports of one card to one NIC ({', '.join(joined)}); here each is apart"
        )
    assumed = [g.address for g in view.graph.gpus if g.assumed]
    if assumed:
        out.append(
            f"{view.host.name}: the file names no GPU at {', '.join(assumed)}, only a PCI element of a GPU's class;"
            " NVLink and compute capability are not known"
        )
    if len(view.graph.numa) == 1 and view.graph.numa[0] == "-1":
        out.append(f"{view.host.name}: no NUMA node is known (-1), so all devices hang under one CPU")
    elif "-1" in view.graph.numa:
        out.append(f"{view.host.name}: some devices have no NUMA node (-1): NCCL puts SYS between them and the others")
    return out
