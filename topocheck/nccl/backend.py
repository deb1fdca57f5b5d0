"""Which communication library fits a machine: NCCL, Gloo, MPI with UCC, RCCL or oneCCL, and why."""

from __future__ import annotations

import msgspec

from topocheck.model.base import Missing
from topocheck.model.node import Node
from topocheck.nccl.predict.report import settings_of, version_for
from topocheck.nccl.predict.types import Backend
from topocheck.nccl.rules.settings import Settings
from topocheck.nccl.topofile.nic_selection import EXTERNAL, network_of, rdma_entries, rdma_unknown, socket_interfaces
from topocheck.nccl.topofile.write import usable_gpus, why_unusable
from topocheck.topology.types import Topology


def _active_rdma(node: Node) -> tuple[list[str], list[str]]:
    """Return names of the RDMA devices with an ACTIVE port: InfiniBand, then RoCE."""
    infiniband, roce = [], []
    for d in () if isinstance(node.net.rdma, Missing) else node.net.rdma:
        layers = {p.link_layer for p in d.ports if p.state == "ACTIVE"}
        if "InfiniBand" in layers:
            infiniband.append(d.name)
        elif layers:
            roce.append(d.name)
    return infiniband, roce


def _network_words(node: Node) -> str:
    infiniband, roce = _active_rdma(node)
    if infiniband:
        return f"InfiniBand ({len(infiniband)} active HCA{'s' * (len(infiniband) > 1)})"
    if roce:
        return f"RoCE ({len(roce)} active device{'s' * (len(roce) > 1)})"
    return "TCP"


def _nccl_network(node: Node) -> str:
    """Return by what NCCL goes between nodes, with the settings in force here."""
    version = version_for(node)
    settings = Settings(settings_of(node), version)
    net = settings.values.get("NCCL_NET", "")
    if net.lower() not in ("", "ib", "socket"):
        return f"the network of NCCL_NET={net} between nodes"
    if network_of(node, version, settings) == EXTERNAL:
        return "the network of a plugin that the loader finds between nodes"
    active = [name for names in _active_rdma(node) for name in names]
    taken = {e.name for e in rdma_entries(node, version, settings, frozenset())} if net.lower() != "socket" else set()
    if taken:
        words = _network_words(_with_devices(node, taken))
        left = [name for name in active if name not in taken]
        if left and "NCCL_IB_HCA" in settings.values:
            words = f"{words.removesuffix(')')}; NCCL_IB_HCA leaves out {len(left)})"
        return f"{words} between nodes"
    why = ""
    if net:
        why = f", for NCCL_NET={net}"
    elif settings.nonzero("NCCL_IB_DISABLE"):
        why = f", for NCCL_IB_DISABLE={settings.values['NCCL_IB_DISABLE']}"
    elif active and settings.values.get("NCCL_IB_HCA"):
        why = f", for NCCL_IB_HCA={settings.values['NCCL_IB_HCA']} leaves no active device"
    elif active:
        why = f", since NCCL's own InfiniBand transport cannot use {active[0]}" + (
            f" and {len(active) - 1} more" if len(active) > 1 else ""
        )
    if net.lower() == "ib":
        return f"nothing between nodes{why}"
    if rdma_unknown(node) and not why:
        return "what goes between nodes is not known (the RDMA devices cannot be determined)"
    if isinstance(node.net.interfaces, Missing):
        return f"TCP between nodes{why}, if an interface is up: they cannot be determined"
    if all(i.name == "lo" for i in socket_interfaces(node, settings)):
        return f"nothing between nodes{why}: no interface is up but lo"
    return f"TCP between nodes, through host memory{why}"


def _with_devices(node: Node, names: set[str]) -> Node:
    """Return a node with some of its RDMA devices only."""
    devices = () if isinstance(node.net.rdma, Missing) else tuple(d for d in node.net.rdma if d.name in names)
    return msgspec.structs.replace(node, net=msgspec.structs.replace(node.net, rdma=devices))


def _ipoib(node: Node) -> list[str]:
    interfaces = () if isinstance(node.net.interfaces, Missing) else node.net.interfaces
    return [i.name for i in interfaces if i.name.startswith("ib") and i.operstate == "up"]


def _nccl(node: Node, topology: Topology) -> Backend:
    usable = usable_gpus(topology)
    if not topology.gpus:
        return Backend(name="NCCL", fits="no", reason="no NVIDIA GPU here")
    if not usable:
        reason = why_unusable(topology.gpus[0]) or "no GPU can be used"
        return Backend(name="NCCL", fits="no", reason=reason)
    inside = "a single GPU" if len(usable) == 1 else f"{len(usable)} GPUs"
    if topology.nvlink_groups and len(usable) > 1:
        inside += " joined by NVLink"
    return Backend(name="NCCL", fits="best", reason=f"made for GPUs: {inside} here, {_nccl_network(node)}")


def _gloo(node: Node, topology: Topology) -> Backend:
    if topology.gpus or topology.accelerators:
        return Backend(
            name="Gloo",
            fits="yes",
            reason="for tensors in host memory and for control messages; GPU tensors are staged through the host",
        )
    ipoib = _ipoib(node)
    if ipoib:
        why = f"no GPU here: Gloo over {ipoib[0]} (IPoIB; set GLOO_SOCKET_IFNAME={ipoib[0]}), which it reaches by TCP"
        return Backend(name="Gloo", fits="yes" if _mpi_there(node) else "best", reason=why)
    return Backend(
        name="Gloo",
        fits="yes" if _mpi_there(node) and any(_active_rdma(node)) else "best",
        reason="no GPU here, and Gloo needs nothing but TCP",
    )


def _mpi_there(node: Node) -> bool:
    return isinstance(node.software.mpi_implementation, str) or "mpi" in node.software.versions


def _mpi(node: Node, topology: Topology) -> Backend:
    software = node.software
    if not _mpi_there(node):
        return Backend(name="MPI", fits="no", reason="no MPI was found here")
    name = software.mpi_implementation if isinstance(software.mpi_implementation, str) else "MPI"
    if topology.gpus:
        aware = software.mpi_cuda_aware
        if isinstance(aware, Missing):
            return Backend(name="MPI", fits="unknown", reason=f"{name} is here; whether it is CUDA-aware is not known")
        if aware:
            why = f"{name} is CUDA-aware, so a program may give it GPU buffers"
            return Backend(name="MPI", fits="yes", reason=why)
        return Backend(name="MPI", fits="yes", reason=f"{name} is not CUDA-aware: only for tensors in host memory")
    infiniband, roce = _active_rdma(node)
    if infiniband or roce:
        why = f"no GPU here, and {name} uses {_network_words(node)} without TCP"
        return Backend(name="MPI", fits="best", reason=why)
    why = f"{name} is here; without RDMA it needs TCP between nodes as Gloo does"
    return Backend(name="MPI", fits="yes", reason=f"{why} (topocheck bw --backend gloo --backend mpi measures both)")


def _ucc(node: Node, topology: Topology) -> Backend | None:
    versions = node.software.versions
    if "ucc" not in versions and "ucx" not in versions:
        return None
    if "ucc" in versions:
        return Backend(
            name="UCC", fits="yes", reason=f"UCC {versions['ucc']} offers collectives over UCX, NCCL and SHARP"
        )
    return Backend(name="UCC", fits="no", reason=f"UCX {versions['ucx']} is here, UCC was not found")


def _other_makers(topology: Topology) -> list[Backend]:
    vendors = {a.vendor for a in topology.accelerators}
    out = []
    if "AMD" in vendors:
        why = f"made for AMD's accelerators ({sum(a.vendor == 'AMD' for a in topology.accelerators)} here)"
        out.append(Backend(name="RCCL", fits="best", reason=why))
    if "Intel" in vendors:
        why = f"made for Intel's accelerators ({sum(a.vendor == 'Intel' for a in topology.accelerators)} here)"
        out.append(Backend(name="oneCCL", fits="best", reason=why))
    return out


def backends(node: Node, topology: Topology) -> tuple[Backend, ...]:
    """Return which communication libraries fit this machine, the best first. Pure."""
    found = [_nccl(node, topology), *_other_makers(topology), _mpi(node, topology), _gloo(node, topology)]
    if (ucc := _ucc(node, topology)) is not None:
        found.append(ucc)
    order = ("best", "yes", "unknown", "no")
    return tuple(sorted(found, key=lambda b: order.index(b.fits)))
