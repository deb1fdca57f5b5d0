"""Small facts to build nodes from: a tree in few words, GPUs and NICs on it."""

from __future__ import annotations

from typing import Any

from topocheck.model.base import Missing, Reason
from topocheck.model.gpu import NvLink, NvmlFacts, NvmlGpu, P2pStatus
from topocheck.model.net import NetFacts, RdmaDevice, RdmaPort
from topocheck.model.node import Node, PciFacts
from topocheck.model.pci import PciDevice, PortType
from topocheck.model.system import NumaFacts, NumaNode, SystemFacts

H100, CX7, ROOT_PORT, SWITCH, QEMU_PORT = 0x2330, 0x1021, 0x1111, 0x2222, 0x000C
MASKED = Missing(Reason.NOT_VISIBLE_HERE, "FFFFFFFF:FF:FF.0")
LINK = {"current": (32.0, 16), "max": (32.0, 16)}


def function(chain: str, vendor: int, device: int, class_code: int, link: Any = LINK, **more: Any) -> PciDevice:
    """A function at the end of `chain` (`pci0000:00 00:01.0 01:00.0`, domain 0000 where none is given)."""
    elements = tuple(e if e.count(":") != 1 or e.startswith("pci") else f"0000:{e}" for e in chain.split())
    now, most = link["current"], link["max"]
    fields: dict[str, Any] = {
        "address": elements[-1],
        "chain": elements,
        "vendor_id": vendor,
        "device_id": device,
        "class_code": class_code,
        "current_speed_gt_s": now[0],
        "current_width_lanes": now[1],
        "max_speed_gt_s": most[0],
        "max_width_lanes": most[1],
    }
    return PciDevice(**(fields | more))


def port(chain: str, kind: PortType, **more: Any) -> PciDevice:
    return function(chain, more.pop("vendor", 0x8086), more.pop("device", ROOT_PORT), 0x060400, port_type=kind, **more)


def root_port(chain: str, **more: Any) -> PciDevice:
    return port(chain, PortType.ROOT_PORT, **more)


def up(chain: str, **more: Any) -> PciDevice:
    return port(chain, PortType.UPSTREAM, vendor=0x1000, device=SWITCH, **more)


def down(chain: str, **more: Any) -> PciDevice:
    return port(chain, PortType.DOWNSTREAM, vendor=0x1000, device=SWITCH, **more)


def gpu(chain: str, device: int = H100, **more: Any) -> PciDevice:
    return function(chain, 0x10DE, device, 0x030200, **({"driver": "nvidia"} | more))


def nic(chain: str, **more: Any) -> PciDevice:
    return function(chain, 0x15B3, CX7, 0x020700, **({"driver": "mlx5_core"} | more))


def nvml(index: int, address: str, name: str = "NVIDIA H100 80GB HBM3", **more: Any) -> NvmlGpu:
    return NvmlGpu(index=index, address=address, name=name, source="NVML", **({"performance_state": 0} | more))


def links(count: int, to: Any, kind: str = "gpu", version: int = 4, speed: int = 26562) -> tuple[NvLink, ...]:
    return tuple(
        NvLink(link=i, active=True, version=version, speed_mb_s=speed, remote_type=kind, remote_address=to)
        for i in range(count)
    )


def rdma(name: str, address: str, state: str = "ACTIVE", **more: Any) -> RdmaDevice:
    return RdmaDevice(name=name, address=address, ports=(RdmaPort(port=1, state=state),), **more)


def allowed(*addresses: str, **more: Any) -> tuple[P2pStatus, ...]:
    """NVML's OK for every ordered pair."""
    said = {"read": "OK", "write": "OK"} | more
    return tuple(P2pStatus(from_address=a, to_address=b, **said) for a in addresses for b in addresses if a != b)


def node(
    *devices: PciDevice,
    gpus: tuple[NvmlGpu, ...] = (),
    p2p: tuple[P2pStatus, ...] = (),
    nics: tuple[RdmaDevice, ...] = (),
    numa: int = 2,
    system: SystemFacts | None = None,
    **more: Any,
) -> Node:
    return Node(
        source="test",
        pci=PciFacts(devices=devices),
        nvml=NvmlFacts(gpus=gpus or Missing(Reason.ABSENT), p2p=p2p),
        net=NetFacts(rdma=nics),
        numa=NumaFacts(nodes=tuple(NumaNode(node=i, cpulist=f"{8 * i}-{8 * i + 7}") for i in range(numa))),
        system=system or SystemFacts(iommu_devices=()),
        **more,
    )


def two_gpus_below_a_switch(**port_more: Any) -> tuple[PciDevice, ...]:
    """`01:00.0` upstream, GPUs 03:00.0 and 04:00.0, NIC 05:00.0; `port_more` goes to the three downstream ports."""
    top = "pci0000:00 00:01.0"
    sw = f"{top} 01:00.0"
    return (
        root_port(top, numa_node=0),
        up(sw, numa_node=0),
        *(down(f"{sw} 02:0{i}.0", numa_node=0, **port_more) for i in range(3)),
        gpu(f"{sw} 02:00.0 03:00.0", numa_node=0),
        gpu(f"{sw} 02:01.0 04:00.0", numa_node=0),
        nic(f"{sw} 02:02.0 05:00.0", numa_node=0),
    )
