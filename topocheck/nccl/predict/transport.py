"""Which transport NCCL picks between two ranks: P2P, then SHM, then NET (src/transport.cc and src/transport/)."""

from __future__ import annotations

from typing import Any

from topocheck.knowledge.nccl import default_in
from topocheck.model.base import Evidence, Missing, Reason, ReasonStep
from topocheck.nccl.predict.pair_tests import HostView
from topocheck.nccl.predict.path_fixups import local_gpu, local_net, net_is_faster, pxn_reach
from topocheck.nccl.predict.paths import NOWHERE
from topocheck.nccl.predict.types import RankPair, RankSpec, Transport, TransportKind
from topocheck.nccl.rules import versions
from topocheck.nccl.rules.values import read_integer

_NOT_KNOWN = Missing(Reason.NOT_RECORDED, "what NVML or CUDA says of this pair is not known")


def cumem(view: HostView) -> tuple[bool | Missing, ReasonStep]:
    """Return whether cuMem buffers are used, and the rule."""
    if view.cumem is None:
        view.cumem = _cumem(view)
    return view.cumem


def _cumem(view: HostView) -> tuple[bool | Missing, ReasonStep]:
    s = view.settings
    if not versions.has("cumem", view.version):
        return False, ReasonStep("this version knows no cuMem", "info")
    name = "NCCL_CUMEM_ENABLE"
    if name in s.values and s.integer(name, 0) >= 0:
        on = s.nonzero(name)
        return on, ReasonStep(f"{name}={s.values[name]}: cuMem is {'on' if on else 'off'}", "info", s.evidence(name))
    if read_integer(default_in(name, view.version) or "")[1] == "" and default_in(name, view.version) == "0":
        return False, ReasonStep("cuMem is off by default in this version", "info")
    if isinstance(view.host.cumem, Missing):
        if view.host.assume:
            return True, ReasonStep("cuMem is on where driver (12.0 and newer) and GPU offer it; taken as so", "info")
        return view.host.cumem, ReasonStep("whether driver and GPU offer cuMem is not known", "unknown")
    on = view.host.cumem
    return on, ReasonStep(f"driver and GPU {'offer' if on else 'do not offer'} cuMem (CUDA driver 12.0)", "info")


def no_gpu(view: HostView, address: str) -> str:
    """Return why nothing is known of a GPU that is not in a host's topology."""
    why = view.host.left_out.get(address)
    return f"{address} of {view.host.name}" + (f" ({why})" if why else " is not in the topology")


def local_pair(view: HostView, a: RankSpec, b: RankSpec, rank_of: dict[int, int]) -> RankPair:
    """Return what two ranks of one host do. `rank_of` maps the host's GPU indices to ranks."""
    i, j = view.gpu(a.gpu), view.gpu(b.gpu)
    if i is None or j is None:
        missing = Missing(Reason.ABSENT, no_gpu(view, a.gpu if i is None else b.gpu))
        return RankPair(from_rank=a.rank, to_rank=b.rank, path="DIS", routed="DIS", gb_s=0.0, transport=missing)
    routed = view.gpu_rows[i].get(j, NOWHERE)
    path = view.first_gpu_rows[i].get(j, routed).type
    why: list[ReasonStep] = [_SAME_HOST]
    apart = a.container != b.container
    check = view.p2p_checks.get((i, j)) or view.check_p2p(i, j)
    transport: Transport | Missing | None = None
    through = None
    if apart:
        why.append(ReasonStep("their containers do not share /dev/shm: neither P2P nor SHM", "no", (), _SHARE))
    else:
        why.extend(check.reasons)
        if check.allowed:
            transport, through = _p2p(view, a, b, i, j, check.through, why)
            if transport is not None and check.unknown:
                transport = _NOT_KNOWN
    if check.fatal and not apart:
        transport = Missing(Reason.UNSUPPORTED, check.fatal)
    if transport is None:
        transport = _shm(view, i, j, why, apart=apart)
    pair = RankPair(
        from_rank=a.rank,
        to_rank=b.rank,
        path=path,
        routed=routed.type,
        gb_s=routed.gb_s,
        transport=transport if isinstance(transport, Missing) else (transport or _NET).text,
        transport_kind=None if isinstance(transport, Missing) else (transport or _NET).kind,
        through=rank_of.get(through) if through is not None else None,
        reasons=tuple(why),
    )
    return pair if transport is not None else _over_net(pair, view, view, i, j, rank_of, why)


_SAME_HOST = ReasonStep("same host", "info")
_SHARED = ReasonStep("host memory that both processes share", "yes")
_NET = Transport("NET", "NET")
_SHARE = "share IPC and /dev/shm between the containers (--ipc=host), with the same NCCL_HOSTID"


def _p2p(
    view: HostView, a: RankSpec, b: RankSpec, i: int, j: int, through: int | None, why: list[ReasonStep]
) -> tuple[Transport | Missing | None, int | None]:
    """Return the P2P transport and the GPU between, or None where P2P is refused after all."""
    copies = view.copies
    ce = "/CE" if copies else ""
    if through is not None:
        if copies:
            why.append(ReasonStep("copy engines do not go through another GPU", "no"))
            return None, None
        dev = view.graph.gpus[through].dev
        why.append(ReasonStep(f"the NVLink path goes through the GPU with NVML index {dev}", "yes"))
        return Transport("P2P/indirect", "P2P/indirect"), through
    if net_is_faster(view, i, j):
        text = "both GPUs reach a NIC with more bandwidth than each other: NET is used inside the host"
        why.append(ReasonStep(text, "no", (), "NCCL_NET_DISABLE_INTRA=1"))
        return None, None
    visible = (a.visible is None or b.gpu in a.visible) and (b.visible is None or a.gpu in b.visible)
    if visible and view.host.peer_access.get((a.gpu, b.gpu)) is False:
        evidence = (Evidence(f"cuDeviceCanAccessPeer {a.gpu} {b.gpu}", "0"),)
        why.append(ReasonStep("CUDA cannot access one GPU from the other", "no", evidence))
        return None, None
    if not visible:
        why.append(ReasonStep("one GPU is hidden from the other's process: CUDA is not asked and P2P goes on", "info"))
    on, step = cumem(view)
    read = "/read" if _reads(view, i, j) else ""
    same_process = a.process != "" and a.process == b.process
    if not on and not isinstance(on, Missing) and not view.host.legacy_ipc:
        why.append(ReasonStep("CUDA's older memory handles do not work here", "no"))
        return None, None
    if same_process and not copies and not view.settings.nonzero("NCCL_P2P_DIRECT_DISABLE"):
        why.append(ReasonStep("both ranks are in one process", "yes"))
        return Transport("P2P/direct pointer", f"P2P/direct pointer{read}"), None
    why.append(step)
    if isinstance(on, Missing):
        return Missing(on.reason, "P2P/CUMEM or P2P/IPC: " + (on.detail or "cuMem is not known")), None
    kind: TransportKind = "P2P/CUMEM" if on else "P2P/IPC"
    return Transport(kind, f"{kind}{read}{ce}"), None


def _worded(transport: Transport | Missing) -> dict[str, Any]:
    """Return a transport as the fields of a RankPair."""
    if isinstance(transport, Missing):
        return {"transport": transport}
    return {"transport": transport.text, "transport_kind": transport.kind}


def _reads(view: HostView, i: int, j: int) -> bool:
    """Tell whether P2P reads instead of writing: by default only NVLink pairs of compute capability 8.0."""
    if view.read_setting >= 0:
        return view.read_setting != 0
    both_80 = view.graph.gpus[i].sm == view.graph.gpus[j].sm == 80
    return both_80 and view.path("GPU", i, "GPU", j).type == "NVL"


def _shm(view: HostView, i: int, j: int, why: list[ReasonStep], *, apart: bool) -> Transport | None:
    """Return the SHM transport, or None where it is refused."""
    if view.shm_off:
        evidence = view.settings.evidence("NCCL_SHM_DISABLE")
        why.append(ReasonStep("NCCL_SHM_DISABLE=1: no shared memory", "no", evidence, "unset NCCL_SHM_DISABLE"))
        return None
    if apart or net_is_faster(view, i, j):
        return None
    why.append(_SHARED)
    return view.shm


def _over_net(
    pair: RankPair, va: HostView, vb: HostView, i: int, j: int, rank_of: dict[int, int], why: list[ReasonStep]
) -> RankPair:
    """Return the pair with its NICs: the sender's choice, and the receiver's own NIC."""
    out, proxy = _sending_net(va, i, vb.graph.gpus[j].dev)
    back = local_net(vb, j)
    send = va.check_gdr(i, out, read=True, path_gpu=proxy) if out is not None else None
    receive = vb.check_gdr(j, back, read=False) if back is not None else None
    for side, gdr in (("sending", send), ("receiving", receive)):
        if gdr is not None:
            why.extend(ReasonStep(f"{side}: {w.text}", w.effect, w.evidence, w.fix) for w in gdr.reasons)
    if out is None or back is None:
        why.append(ReasonStep("no NIC in the topology: a TCP interface, if one is up", "info"))
    sends, receives = send is not None and send.used, receive is not None and receive.used
    transport: Transport | Missing = _NET
    if (send is not None and send.unknown) or (receive is not None and receive.unknown):
        transport = Missing(Reason.NOT_RECORDED, "NET; whether with GPUDirect RDMA is not known")
    elif sends and receives:
        transport = Transport("NET", "NET/GDRDMA")
    elif sends or receives:
        transport = Transport("NET", f"NET/GDRDMA ({'send' if sends else 'receive'} only)")
    rate = 0.0
    if out is not None and back is not None:
        rate = min(va.path("GPU", i, "NET", out).gb_s, vb.path("GPU", j, "NET", back).gb_s)
    if proxy is not None:
        why.append(ReasonStep("sent by the GPU next to that NIC (PXN)", "info"))
    return RankPair(
        from_rank=pair.from_rank,
        to_rank=pair.to_rank,
        path=pair.path,
        routed=pair.routed,
        gb_s=rate,
        **_worded(transport),
        nic_send=va.graph.nets[out].name if out is not None else "",
        nic_receive=vb.graph.nets[back].name if back is not None else "",
        gdr_send=sends,
        gdr_receive=receives,
        proxy_rank=rank_of.get(proxy) if proxy is not None else None,
        reasons=tuple(why),
    )


def _sending_net(view: HostView, gpu: int, peer_dev: int) -> tuple[int | None, int | None]:
    """Return the NIC a GPU sends by to a peer, and the GPU that sends for it (ncclTopoGetNetDev, send and receive).

    With PXN the sender takes the NIC of its own GPU with the peer's NVML index, so that traffic stays on a rail.
    """
    own = local_net(view, gpu)
    pxn = versions.has("pxn", view.version) and not view.settings.is_one("NCCL_PXN_DISABLE")
    level = view.settings.integer("NCCL_P2P_PXN_LEVEL", 2) if pxn else 0
    crossing = view.settings.integer("NCCL_CROSS_NIC", 2)
    if own is None or (level == 0 and crossing != 0):
        return own, None
    peer = view.gpu_by_dev.get(peer_dev)
    if peer is None:
        return own, None
    net = local_net(view, peer)
    if net is None:
        return own, None
    if crossing == 0:
        own = net
    if level == 1 and versions.rank(view.path("GPU", gpu, "NET", net).type) <= versions.rank("PXN"):
        return net, view.relay(gpu, net)
    if level == 2:
        relay = local_gpu(view, net)
        if relay is not None:
            near = versions.rank(view.path("GPU", relay, "NET", net).type) <= versions.rank(pxn_reach(view))
            linked = versions.rank(view.path("GPU", relay, "GPU", gpu).type) <= versions.rank("NVL")
            if near and linked and view.check_gdr(relay, net, read=False).used:
                return net, relay if relay != gpu else None
    return own, None


def remote_pair(va: HostView, vb: HostView, a: RankSpec, b: RankSpec, rank_of: dict[int, int]) -> RankPair:
    """Return what two ranks of different hosts do. `rank_of` maps GPU indices of the sender's host to ranks."""
    why: list[ReasonStep] = [ReasonStep("different hosts", "info")]
    pair = RankPair(from_rank=a.rank, to_rank=b.rank, path="NET", routed="NET", gb_s=0.0, **_worded(_NET))
    i, j = va.gpu(a.gpu), vb.gpu(b.gpu)
    if i is None or j is None:
        missing = Missing(Reason.ABSENT, no_gpu(va, a.gpu) if i is None else no_gpu(vb, b.gpu))
        return RankPair(from_rank=a.rank, to_rank=b.rank, path="DIS", routed="DIS", gb_s=0.0, transport=missing)
    if (linked := _mnnvl(va, vb, a, b, why)) is not None:
        gb_s = min(sum(x.gb_s for x in v.graph.nodes["GPU"][k].links if x.kind == "NVL") for v, k in ((va, i), (vb, j)))
        return RankPair(
            **_worded(linked), from_rank=a.rank, to_rank=b.rank, path="NVL", routed="NVL", gb_s=gb_s, reasons=tuple(why)
        )
    return _over_net(pair, va, vb, i, j, rank_of, why)


def _mnnvl(va: HostView, vb: HostView, a: RankSpec, b: RankSpec, why: list[ReasonStep]) -> Transport | None:
    """Return the transport over NVLink between hosts, or None where it is not used."""
    if not versions.has("mnnvl", va.version):
        return None
    s = va.settings
    enable = s.integer("NCCL_MNNVL_ENABLE", 2)
    fa, fb = va.host.fabric.get(a.gpu), vb.host.fabric.get(b.gpu)
    if fa is None or fb is None or not fa[1].strip("0-.x") or not fb[1].strip("0-.x"):
        return None
    evidence = tuple(
        Evidence(f"NVML fabric of {x.gpu}", f"state {f[0]}, cluster {f[1]}, clique {f[2]}")
        for x, f in ((a, fa), (b, fb))
    )
    if enable == 0 or (va.p2p_level()[0] == "LOC" and enable != 1):
        why.append(ReasonStep("NVLink between hosts is switched off", "no", evidence))
        return None
    if fa[0].lower() != "completed" or fb[0].lower() != "completed":
        why.append(ReasonStep("the NVLink fabric is not completed on both", "no", evidence))
        return None
    same_clique = fa[2] == fb[2] or s.is_one("NCCL_MNNVL_CROSS_CLIQUE")
    if fa[1] != fb[1] or not same_clique:
        why.append(ReasonStep("not in the same NVLink domain and clique", "no", evidence))
        return None
    if cumem(va)[0] is False:
        why.append(ReasonStep("NVLink between hosts needs cuMem", "no", evidence))
        return None
    why.append(ReasonStep("same NVLink domain and clique", "yes", evidence))
    return Transport("P2P/MNNVL", "P2P/MNNVL")
