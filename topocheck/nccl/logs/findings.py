"""What is wrong in a job that may have gone on: a lost transport, a plugin that did not load, two networks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topocheck.knowledge.nccl import parse_version
from topocheck.model.address import format_cpulist
from topocheck.nccl.logs.rdma_findings import (
    OWN_NETWORKS,
    asks_for_sockets,
    gdr_off,
    no_matching_hca,
    several_nodes,
)
from topocheck.nccl.logs.transports import take_apart
from topocheck.nccl.logs.types import LogFinding, LogPair, NcclLog
from topocheck.nccl.predict.types import TransportKind

_PLUGIN_SIGNS = ("plugin_glibc", "plugin_symbol", "plugin_library", "plugin_elf", "plugin_version", "ofi_no_provider")
_NOT_FOUND = re.compile(r"Could not find:|No plugin found|cannot open shared object file")
_ASKS_FOR_RDMA = ("NCCL_NET_PLUGIN", "NCCL_IB_HCA", "NCCL_NET_GDR_LEVEL", "NCCL_IB_GID_INDEX", "NCCL_IB_TC")
_LINK = re.compile(
    r"^(?P<indent>[ +]*?)\+? ?(?:PCI)\[(?P<gb_s>[0-9]{1,6}(?:\.[0-9]{1,6})?)\] - (?P<what>[A-Z]{2,8}/\S{1,64})"
)
_NARROW_GB_S = 1.0
"""Below what a lane of PCIe 4.0 carries (NCCL's constants: 0.2 for one lane of 2.5 GT/s, 0.8 for one of 8 GT/s)."""


def findings_of(log: NcclLog) -> tuple[LogFinding, ...]:
    """Return what a log that was read to its end shows beside failures."""
    rules = (
        _networks_differ,
        _plugin_lost,
        _provider,
        no_matching_hca,
        _sockets,
        _ib_off,
        gdr_off,
        _p2p_off,
        _one_gpu_each,
        _network_inside,
        _narrow_links,
    )
    return tuple(f for rule in rules for f in rule(log))


def _explained(log: NcclLog) -> set[str]:
    return {c.id for f in log.failures for c in f.causes}


def _networks_differ(log: NcclLog) -> Iterator[LogFinding]:
    by_network: dict[tuple[str, ...], list[str]] = {}
    for host, networks in log.network_of.items():
        by_network.setdefault(tuple(sorted(networks)), []).append(host)
    sets = list(by_network)
    if not any(set(a).isdisjoint(b) for i, a in enumerate(sets) for b in sets[i + 1 :]):
        return
    parts = [f"{', '.join(n)} on {', '.join(h[:4])}{' ...' if len(h) > 4 else ''}" for n, h in by_network.items()]
    yield LogFinding(
        id="networks-differ",
        state="warn",
        title="the nodes of the job use different networks",
        evidence="; ".join(f"Using network {p}" for p in parts[:6]),
        consequence="their ranks cannot connect: init hangs or ends with an error",
        fix="make plugin, RDMA devices and NCCL_NET the same on every node; the node with Socket most often lacks a"
        " plugin or /dev/infiniband",
    )


def _plugin_lost(log: NcclLog) -> Iterator[LogFinding]:
    used = ", ".join(log.networks) or "its own network"
    if set(log.networks) - OWN_NETWORKS:
        return
    found = [log.signs[s] for s in _PLUGIN_SIGNS if s in log.signs and s not in _explained(log)]
    for sign in found[:1]:
        yield LogFinding(
            id="plugin-not-loaded",
            state="warn",
            title=f"the network plugin was not loaded; NCCL uses {used}",
            evidence=sign.text,
            consequence=sign.cause,
            fix=sign.next,
            line=sign.line,
        )
    asked = next((v for v in log.settings.get("NCCL_NET_PLUGIN", []) if v.lower() not in ("none", "")), None)
    lost = next((p for p in log.plugins if _NOT_FOUND.search(p)), None)
    if asked is not None and lost is not None and not found and "net_missing" not in _explained(log):
        yield LogFinding(
            id="plugin-not-loaded",
            state="warn",
            title=f"NCCL_NET_PLUGIN={asked} was not found; NCCL uses {used}",
            evidence=lost,
            consequence="the job runs without the network that it was set up for",
            fix="put the plugin's folder on the loader's path (LD_LIBRARY_PATH, ld.so.conf) in the job, or unset"
            " NCCL_NET_PLUGIN",
        )


def _provider(log: NcclLog) -> Iterator[LogFinding]:
    sign = log.signs.get("ofi_not_efa")
    if sign is not None and sign.id not in _explained(log):
        yield LogFinding(
            id="not-efa",
            state="warn",
            title="the OFI plugin uses a provider other than EFA",
            evidence=sign.text,
            consequence="traffic between nodes goes over TCP, without GPUDirect RDMA",
            fix=sign.next,
            line=sign.line,
        )


def _sockets(log: NcclLog) -> Iterator[LogFinding]:
    by_socket = log.networks == ["Socket"] or any(
        take_apart(t).network == "Socket" for p in log.pairs.values() for t in p.transports
    )
    if not by_socket or not several_nodes(log) or any(no_matching_hca(log)):
        return
    off = asks_for_sockets(log)
    wanted = [name for name in _ASKS_FOR_RDMA if name in log.settings]
    absent = log.signs.get("verbs_absent")
    fix = absent.next if absent else "see the lines NET/IB and NET/Plugin for why; unset what forces it"
    yield LogFinding(
        id="sockets",
        state="warn" if wanted and not off else "note",
        title="traffic between nodes goes over TCP sockets"
        + (f", by {off[0]}" if off else "")
        + (f", although {wanted[0]} is set" if wanted and not off else ""),
        evidence=absent.text if absent else "Using network Socket",
        consequence="RDMA and GPUDirect are not used",
        fix=f"unset {off[0].partition('=')[0]} if the nodes have RDMA NICs" if off else fix,
        line=absent.line if absent else 0,
    )


def _ib_off(log: NcclLog) -> Iterator[LogFinding]:
    if "1" in log.settings.get("NCCL_IB_DISABLE", []) and not any(_sockets(log)):
        yield LogFinding(
            id="ib-disabled",
            state="note",
            title="NCCL_IB_DISABLE=1: NCCL does not use the RDMA NICs",
            evidence="NCCL_IB_DISABLE=1",
            consequence="traffic between nodes goes over TCP sockets, without GPUDirect RDMA",
            fix="unset NCCL_IB_DISABLE if the nodes have RDMA NICs",
        )


def _p2p_off(log: NcclLog) -> Iterator[LogFinding]:
    sign = log.signs.get("p2p_disabled")
    if sign is not None and sign.id not in _explained(log):
        yield LogFinding(
            id="p2p-disabled",
            state="warn",
            title="P2P is disabled between GPUs that are connected",
            evidence=sign.text,
            consequence=sign.cause,
            fix=sign.next,
            line=sign.line,
        )


def _same_host(log: NcclLog, pair: LogPair) -> bool:
    a, b = log.ranks.get(pair.from_rank), log.ranks.get(pair.to_rank)
    return a is not None and b is not None and a.host != "" and a.host == b.host and a.pid != b.pid


def _inside(log: NcclLog, kind: TransportKind) -> list[LogPair]:
    """Return the pairs of ranks of one host, of different processes, that use a kind of transports."""
    return [
        p for p in log.pairs.values() if _same_host(log, p) and any(take_apart(t).kind == kind for t in p.transports)
    ]


def _pairs(pairs: list[LogPair]) -> str:
    more = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    shown = (f"rank {p.from_rank} -> {p.to_rank} via {p.main()}" for p in pairs[:3])
    return "; ".join(shown) + more


def _one_gpu_each(log: NcclLog) -> Iterator[LogFinding]:
    sign = log.signs.get("one_gpu_per_task")
    if sign is None or sign.id in _explained(log):
        return
    instead = _inside(log, "SHM") or _inside(log, "NET")
    yield LogFinding(
        id="one-gpu-per-task",
        state="warn",
        title="each task sees only its own GPU: P2P between the tasks is lost"
        + (f", {'SHM' if _inside(log, 'SHM') else 'NET'} is used instead" if instead else ""),
        evidence=sign.text + (f"; {_pairs(instead)}" if instead else ""),
        consequence=sign.cause,
        fix=sign.next,
        line=sign.line,
    )


def mixed_ranks(log: NcclLog) -> dict[int, set[tuple[str, int]]]:
    """Return the ranks whose number belongs to several processes: rank -> (host, process) of each."""
    places: dict[int, set[tuple[str, int]]] = {}
    for comm in log.comms.values():
        for rank, place in comm.places.items():
            places.setdefault(rank, set()).add(place)
    return {rank: seen for rank, seen in places.items() if len(seen) > 1}


def _network_inside(log: NcclLog) -> Iterator[LogFinding]:
    found = [] if mixed_ranks(log) else _inside(log, "NET")
    if not found:
        return
    gdr = all(take_apart(t).gdr for p in found for t in p.transports)
    version = parse_version(log.versions[0]) if log.versions else None
    meant = gdr and (version is None or version < (2, 22, 0) or log.settings.get("NCCL_NET_DISABLE_INTRA") == ["0"])
    off = [n for n in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_HOSTID", "NCCL_P2P_LEVEL") if n in log.settings]
    ranks = format_cpulist({r for p in found for r in (p.from_rank, p.to_rank)})
    host = log.ranks[found[0].from_rank].host
    why = f"; {', '.join(off)} set" if off else ""
    yield LogFinding(
        id="network-inside-node",
        state="note" if meant else "warn",
        title=f"rank {ranks} use the network between GPUs of one host ({host})",
        evidence=_pairs(found) + why,
        consequence="slower than P2P or shared memory, unless the NIC is faster than the path between the GPUs",
        fix=f"unset {', '.join(off)} and re-measure"
        if off
        else "give the containers of a host one /dev/shm and one IPC namespace (--ipc=host), and the same host name;"
        " see why P2P is off with topocheck nccl predict --why",
    )


def _narrow_links(log: NcclLog) -> Iterator[LogFinding]:
    links = [(len(line) - len(line.lstrip(" +")), line, m) for line in log.tree if (m := _LINK.match(line))]
    for i, (depth, line, link) in enumerate(links):
        below = []
        for other in links[i + 1 :]:
            if other[0] <= depth:
                break
            below.append(other[2])
        devices = [x["what"] for x in (link, *below) if x["what"].startswith(("GPU/", "NIC/"))]
        rate = float(link["gb_s"])
        if not devices or rate >= _NARROW_GB_S or (below and max(float(x["gb_s"]) for x in below) < 4 * rate):
            continue
        yield LogFinding(
            id="narrow-link",
            state="warn",
            title=f"NCCL plans {link['gb_s']} GB/s for {', '.join(devices[:4])}: that is what the link at"
            f" {link['what']} reports",
            evidence=line.strip(),
            consequence="NCCL chooses its paths, channels and NICs by this rate; in a guest it is that of the emulated"
            " switch, not of the hardware",
            fix="in a guest use the provider's topology file (NCCL_TOPO_FILE), or have the real switch passed through;"
            " on bare metal check the link (topocheck check)",
        )
        return
