"""What is sampled: the devices of a topology, as far as the sampler needs to know them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topocheck.model.address import normalize_address
from topocheck.model.base import Missing, known
from topocheck.model.node import Node
from topocheck.overtime.types import Device
from topocheck.topology.links import is_emulated, maximum
from topocheck.topology.paths import joined_to_cpu
from topocheck.topology.tree import is_host_bridge
from topocheck.topology.types import Gpu, Nic, Topology

MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of nvml.h (driver 580)."""


class PlannedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that NVML knows. `links` are its NVLinks that are there, up or not."""

    index: int
    address: str
    links: tuple[int, ...] = ()
    newer_links: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to sample.

    Attributes:
        gpus: GPUs to ask NVML about.
        ends: PCI functions of GPUs and NICs, whose links are read each time.
        functions: these and the ports above them, whose AER counters are read in full samples.
        ports: (RDMA device, port).
        interfaces: (RDMA device, network interface) of devices with one RoCE port and one interface of its own.
        counters: also GPUs' counters, throughput and NVLinks; without, states alone.
        full_every: each so-manieth sample is a full one, with all counters; the first is.
        last: number of the last sample, which is a full one too; -1 where it is not known.
        traffic: NVLink's counters in each sample, not only in full ones. Reading them takes 3 ms of a core for each GPU
            of 18 links, several times as much as all other questions of a sample (two H200, driver 580).
    """

    gpus: tuple[PlannedGpu, ...] = ()
    ends: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    interfaces: tuple[tuple[str, str], ...] = ()
    counters: bool = True
    full_every: int = 1
    last: int = -1
    traffic: bool = False


def plan_of(topology: Topology, node: Node, full_every: int = 1, last: int = -1, *, traffic: bool = False) -> Plan:
    """Return the plan for all GPUs and NICs of a machine."""
    gpus = [
        PlannedGpu(
            index=g.index,
            address=g.address,
            links=tuple(x.link for x in g.nvml.nvlinks if x.link < MAX_LINKS),
            newer_links=any(isinstance(x.version, int) and x.version >= 5 for x in g.nvml.nvlinks),
        )
        for g in topology.gpus
        if g.nvml is not None and isinstance(g.index, int) and normalize_address(g.address) == g.address
    ]
    ends = [d.address for d in _ends(topology) if d.address in topology.devices]
    chain = [e for a in ends for e in topology.chains.get(a, (a,)) if e in topology.devices]
    ports = [
        (rdma.name, p.port)
        for rdma in ([] if isinstance(node.net.rdma, Missing) else node.net.rdma)
        if known(rdma.address)
        for p in rdma.ports
    ]
    return Plan(
        gpus=tuple(gpus),
        ends=tuple(dict.fromkeys(ends)),
        functions=tuple(dict.fromkeys([*ends, *chain])),
        ports=tuple(ports),
        interfaces=tuple(_interfaces(node)),
        full_every=full_every,
        last=last,
        traffic=traffic,
    )


def _interfaces(node: Node) -> Iterator[tuple[str, str]]:
    """Yield each RDMA device with the one interface that is its port's.

    A function with several interfaces (two ports, or a switch's representors of virtual functions) is left out: which
    is the port's is not certain.
    """
    if isinstance(node.net.rdma, Missing) or isinstance(node.net.interfaces, Missing):
        return
    for rdma in node.net.rdma:
        own = [i.name for i in node.net.interfaces if known(rdma.address) and i.address == rdma.address]
        if len(own) == 1 and [p.link_layer for p in rdma.ports] == ["Ethernet"]:
            yield rdma.name, own[0]


def devices_of(topology: Topology) -> tuple[Device, ...]:
    """Return what does not change of the GPUs and NICs."""
    return tuple(_device(d, topology) for d in _ends(topology))


def _ends(topology: Topology) -> list[Gpu | Nic]:
    return [*topology.gpus, *topology.nics]


def _device(device: Gpu | Nic, topology: Topology) -> Device:
    gpu = device if isinstance(device, Gpu) else None
    out = Device(address=device.address, label=device.label, is_gpu=gpu is not None)
    if gpu is not None:
        out = msgspec.structs.replace(out, product=gpu.name, uuid=gpu.uuid)
    chain = topology.chains.get(device.address, ())
    port = topology.devices.get(chain[-2]) if len(chain) > 1 and not is_host_bridge(chain[-2]) else None
    if device.pci is None or port is None or is_emulated(port) or is_emulated(device.pci):
        return out
    if topology.flat_tree or (gpu is not None and joined_to_cpu(gpu)):
        return out
    lower, upper = maximum(device.pci), maximum(port)
    if known(lower.speed_gt_s) and known(upper.speed_gt_s):
        out = msgspec.structs.replace(out, max_speed_gt_s=min(lower.speed_gt_s, upper.speed_gt_s))
    if known(lower.width_lanes) and known(upper.width_lanes):
        out = msgspec.structs.replace(out, max_width_lanes=min(lower.width_lanes, upper.width_lanes))
    return out
