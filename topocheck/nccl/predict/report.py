"""NCCL's view of one node for the report: what it would do with all GPUs of the node in one job."""

from __future__ import annotations

import msgspec

from topocheck.gpudirect.types import GpuDirect
from topocheck.knowledge.nccl import TABLE_VERSION, Version, parse_version, version_key
from topocheck.knowledge.nccl_rules import OLDEST_RATES
from topocheck.model.base import ABSENT, Missing, Reason, known
from topocheck.model.node import Node
from topocheck.nccl.predict.predict import PredictError, predict
from topocheck.nccl.predict.types import HostInput, NcclPair, NcclView, Prediction
from topocheck.nccl.rules.settings import Settings
from topocheck.nccl.topofile.file import TopoFile, file_in_force
from topocheck.nccl.topofile.nic_selection import hca_note, network_of, network_stops, plugin_note
from topocheck.nccl.topofile.write import usable_gpus, why_unusable, write_topology
from topocheck.topology.types import Topology


def installed_version(node: Node) -> str | Missing:
    """Return the version of NCCL that a job here would load: torch's own first, then the system's."""
    versions = node.software.versions
    return versions.get("nccl") or versions.get("nccl_system") or ABSENT


def version_for(node: Node, asked: str | None = None) -> Version:
    """Return the version to predict for: the one asked for, the installed one, or the newest known here."""
    text = asked if asked else installed_version(node)
    found = parse_version(text) if isinstance(text, str) else None
    return found or version_key(TABLE_VERSION)


def version_note(node: Node | None, asked: str | None = None) -> str:
    """Return what must be said of the version judged by; empty where it is asked for or installed, and known.

    Args:
        node: the facts; None where no machine was looked at.
        asked: the version asked for.
    """
    installed = ABSENT if node is None else installed_version(node)
    text = asked or installed
    version = parse_version(text) if isinstance(text, str) else None
    if version is None:
        where = "no NCCL was found here" if node is not None else "no machine was looked at"
        return f"{where}: {TABLE_VERSION}, the newest known, is assumed; --nccl-version names another"
    words = ".".join(map(str, version))
    if version < OLDEST_RATES:
        oldest = ".".join(map(str, OLDEST_RATES))
        return f"{words} is older than {oldest}, the oldest known in full; its bandwidths are taken"
    if version > version_key(TABLE_VERSION):
        return f"{words} is newer than {TABLE_VERSION}, the newest known, whose rules are taken"
    return ""


def settings_of(node: Node, what_if: dict[str, str] | None = None) -> dict[str, str]:
    """Return NCCL's settings in force on a node, by name; those of `what_if` on top, where an empty value unsets."""
    values = {s.name: s.value for s in node.settings.nccl if s.in_force}
    return {k: v for k, v in (values | (what_if or {})).items() if v != ""}


def host_input(
    node: Node,
    topology: Topology,
    version: Version,
    *,
    name: str | None = None,
    file: TopoFile | None = None,
    settings: dict[str, str] | None = None,
) -> HostInput:
    """Return what the prediction needs of a node.

    Args:
        node: the facts.
        topology: what was made of them.
        version: of NCCL.
        name: of the host; its hostname or recording where None.
        file: a topology file, laid over what the machine shows as NCCL lays it; where None, the one in force on the
            node (NCCL_TOPO_FILE, or NCCL's default file).
        settings: in force; the node's own where None. They also choose the network, so they count from here on.
    """
    values = settings_of(node) if settings is None else settings
    status = {
        pair: (s.read, s.write)
        for pair, s in node.nvml.statuses.items()
        if isinstance(s.read, str) and isinstance(s.write, str)
    }
    peers = {pair: can for pair, can in node.cuda.access.items() if isinstance(can, bool)}
    cuda = () if isinstance(node.cuda.devices, Missing) else node.cuda.devices
    multicast = [d.multicast for d in cuda if isinstance(d.multicast, bool)]
    # NVML and the CUDA driver give the same number, and CUDA is not always asked.
    versions = (node.cuda.driver_api_version, node.nvml.cuda_version)
    driver = next((v for text in versions if isinstance(text, str) and (v := parse_version(text))), None)
    fabric = {}
    for g in usable_gpus(topology):
        n = g.nvml
        if n is not None and isinstance(n.fabric_state, str) and isinstance(n.fabric_cluster_uuid, str):
            clique = n.fabric_clique if isinstance(n.fabric_clique, int) else 0
            fabric[g.address] = (n.fabric_state, n.fabric_cluster_uuid, clique)
    hostname = node.system.hostname
    name = name or (hostname if isinstance(hostname, str) else node.source)
    machine = write_topology(node, topology, version, values)
    chosen = Settings(values, version)
    notes = [plugin_note(chosen), hca_note(node, version, chosen)]
    if file is None and "NCCL_TOPO_FILE" in settings_of(node) and "NCCL_TOPO_FILE" not in values:
        notes.append("whether NCCL's default topology file is there is not known: NCCL_TOPO_FILE hid it")
    elif file is None:
        file = file_in_force(node, version)
    stops = [file.fatal if file is not None else "", network_stops(node, version, chosen)]
    merged = machine
    if file is not None and file.root is not None and not file.fatal:
        from topocheck.nccl.topofile.merge import merge, silence_note  # few machines have such a file

        merged = merge(file.root, machine)
        notes.append(silence_note(file.path, file.root, machine))
    return HostInput(
        name=name,
        topology=merged,
        settings=values,
        p2p_status=status,
        peer_access=peers,
        # cuMem needs a driver of CUDA 12.0 (src/misc/cudawrap.cc); every GPU of compute capability 7.0 offers it.
        cumem=driver >= (12, 0, 0) if driver else ABSENT,
        multicast=all(multicast) if multicast else ABSENT,
        fabric=fabric,
        imex=bool(node.system.imex_channels) if known(node.system.imex_channels) else ABSENT,
        fatal="; ".join(s for s in stops if s),
        left_out={g.address: f"{g.label}: {why}" for g in topology.gpus if (why := why_unusable(g))},
        notes=tuple(f"{name}: {n}" for n in notes if n),
    )


def _labels(topology: Topology) -> dict[str, str]:
    return {g.address: g.label for g in topology.gpus}


def pairs_of(prediction: Prediction, topology: Topology) -> tuple[NcclPair, ...]:
    """Return a prediction for one host as pairs of devices: GPU and GPU, then GPU and NIC."""
    labels = _labels(topology)
    gpu_of = {r.rank: r.gpu for r in prediction.ranks}
    out = []
    for p in prediction.pairs:
        a, b = gpu_of[p.from_rank], gpu_of[p.to_rank]
        out.append(
            NcclPair(
                from_=a,
                to=b,
                from_label=labels.get(a, a),
                to_label=labels.get(b, b),
                nccl_class=p.path,
                transport=p.transport,
                reasons=p.reasons,
            )
        )
    nics = {n.label: n.address for n in topology.nics}
    for n in prediction.nics:
        a = gpu_of[n.rank]
        out.append(
            NcclPair(
                from_=a,
                to=nics.get(n.nic, n.nic),
                from_label=labels.get(a, a),
                to_label=n.nic,
                nccl_class=n.path,
                transport=_nic_transport(n.gdr_send, n.gdr_receive),
                reasons=n.reasons,
            )
        )
    return tuple(out)


def _nic_transport(send: bool | Missing, receive: bool | Missing) -> str | Missing:
    if isinstance(send, Missing):
        return send
    if isinstance(receive, Missing):
        return receive
    if send and receive:
        return "NET/GDRDMA"
    if send or receive:
        return f"NET/GDRDMA ({'send' if send else 'receive'} only)"
    return "NET"


def _unusable_pairs(topology: Topology) -> tuple[NcclPair, ...]:
    """Return a pair without an answer for each pair of GPUs of which no job can use one."""
    why = {g.address: text for g in topology.gpus if (text := why_unusable(g))}
    out = []
    for a in topology.gpus:
        for b in topology.gpus:
            reason = why.get(a.address) or why.get(b.address)
            if a.address != b.address and reason:
                missing = Missing(Reason.UNSUPPORTED, reason)
                out.append(
                    NcclPair(
                        from_=a.address,
                        to=b.address,
                        from_label=a.label,
                        to_label=b.label,
                        nccl_class=missing,
                        transport=missing,
                    )
                )
    return tuple(out)


def view(node: Node, topology: Topology, gpudirect: GpuDirect) -> NcclView:
    """Return NCCL's view of a node. `gpudirect` says what is permitted; here is what NCCL will do."""
    version = version_for(node)
    text = ".".join(map(str, version))
    nccl = NcclView(
        version=installed_version(node),
        settings=node.settings.nccl,
        predicted_for=text,
        pairs=_unusable_pairs(topology),
        network=network_of(node, version, Settings(settings_of(node), version)),
    )
    if not usable_gpus(topology):
        return nccl
    try:
        p = predict((host_input(node, topology, version),), version)
    except PredictError as e:
        return msgspec.structs.replace(nccl, fatal=f"not predicted: {e}")
    return msgspec.structs.replace(
        nccl,
        pairs=pairs_of(p, topology) + nccl.pairs,
        fatal=p.fatal,
        nvls=p.nvls,
        nvls_reason=p.nvls_reason,
        bounds=p.bounds,
    )
