"""The way between two devices: its hops, the narrowest of them, and the rate that leaves.

Hops that no machine tells the rate of (a host bridge, the socket interconnect, a hypervisor) have none, and make
the rate of the rest an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topocheck.knowledge.products import Product, find_product
from topocheck.model.base import ABSENT, Missing, Reason, known
from topocheck.model.pci import PciDevice
from topocheck.topology import classes
from topocheck.topology.classes import Place, Surroundings
from topocheck.topology.links import pcie_hop
from topocheck.topology.nvlink import Bundle, link_rate
from topocheck.topology.tree import Chain, common_length, is_host_bridge
from topocheck.topology.types import Gpu, Hop, HopKind, Nic, Path, TreeNode


class Map(msgspec.Struct, frozen=True, kw_only=True):
    """What a path is found on."""

    devices: dict[str, PciDevice]
    places: dict[str, Chain]
    tree: dict[str, TreeNode]
    bundles: dict[tuple[str, str], Bundle]
    ancestors: dict[tuple[str, str], str | Missing]
    around: Surroundings
    flat: bool


def product_of(gpu: Gpu) -> Product | None:
    """Return what is known of a GPU's product."""
    ident = gpu.pci.device_id if gpu.pci is not None else ABSENT
    name = gpu.nvml.name if gpu.nvml is not None else gpu.name
    return find_product(None if isinstance(name, Missing) else name, None if isinstance(ident, Missing) else ident)


def joined_to_cpu(gpu: Gpu) -> bool:
    """Tell whether a chip-to-chip link joins a GPU to its CPU, so that its PCIe link is a placeholder."""
    links = gpu.nvml.c2c_links if gpu.nvml is not None else ABSENT
    if not isinstance(links, Missing):
        return links > 0
    product = product_of(gpu)
    return product is not None and product.c2c


def place_of(device: Gpu | Nic, places: Mapping[str, Chain]) -> Place:
    """Return where a device is."""
    return Place(device.label, places.get(device.address, ()), device.cpu_node)


def upward(device: Gpu | Nic, stop: int, m: Map) -> tuple[Hop, ...]:
    """Return the PCIe hops from a device up to (not into) the element of its chain at index `stop`."""
    chain = m.places.get(device.address, ())
    nvml = device.nvml if isinstance(device, Gpu) else None
    out = []
    for i in range(len(chain) - 1, stop - 1, -1):
        lower = m.devices.get(chain[i])
        is_end = i == len(chain) - 1
        if lower is None or not (is_end or m.tree[chain[i]].role in ("upstream_port", "bridge")):
            continue
        if is_end and not isinstance(lower.physfn, Missing):
            lower = m.devices.get(lower.physfn, lower)
        upper = m.devices.get(chain[i - 1]) if i else None
        out.append(
            pcie_hop(
                lower,
                upper,
                gpu=nvml if is_end else None,
                driverless_gpu=is_end and isinstance(device, Gpu) and nvml is None,
            )
        )
    if not chain and nvml is not None:
        out.append(pcie_hop(PciDevice(address=device.address), None, gpu=nvml))
    return tuple(out)


def c2c_hop(gpu: Gpu) -> Hop:
    """Return the hop from a GPU to its CPU by the chip-to-chip link (NVML: number of links, MB/s of each)."""
    count = gpu.nvml.c2c_links if gpu.nvml else ABSENT
    speed = gpu.nvml.c2c_link_mb_s if gpu.nvml else ABSENT
    product = product_of(gpu)
    rate: float | Missing = Missing(Reason.UNSUPPORTED, "neither NVML nor the product table tells the rate")
    if not isinstance(count, Missing) and not isinstance(speed, Missing) and count * speed > 0:
        rate = count * speed / 1000
    elif product is not None and product.c2c_gb_s is not None:
        rate = product.c2c_gb_s
    links = f"{count} x " if not isinstance(count, Missing) else ""
    return Hop(kind=HopKind.C2C, address=gpu.address, gb_s=rate, attainable_gb_s=rate, text=f"{links}C2C")


def cpu_hop(gpu: Gpu) -> Hop | None:
    """Return the hop from a GPU to its CPU that replaces its PCIe link: C2C, or NVLink on POWER9; else None."""
    if joined_to_cpu(gpu):
        return c2c_hop(gpu)
    links = tuple(x for x in gpu.nvml.nvlinks if x.active is True and x.remote_type == "ibmnpu") if gpu.nvml else ()
    if not links:
        return None
    rate = link_rate(links)
    version = f" {links[0].version}" if known(links[0].version) else ""
    return Hop(
        kind=HopKind.NVLINK,
        address=f"{gpu.address}-CPU",
        gb_s=rate,
        attainable_gb_s=rate,
        text=f"{len(links)} x NVLink{version} to the CPU",
    )


def _unread(kind: HopKind, address: str, text: str) -> Hop:
    gap = Missing(Reason.ABSENT, "no machine tells this rate")
    return Hop(kind=kind, address=address, gb_s=gap, attainable_gb_s=gap, text=text)


def _middle(a: Gpu | Nic, b: Gpu | Nic, chain_a: Chain, chain_b: Chain, m: Map) -> tuple[Hop, ...]:
    """Return the hops across the top of the tree, where the two devices share no bridge."""
    bridges = [next((e for e in c if is_host_bridge(e)), "?") for c in (chain_a, chain_b)]
    name = bridges[0] if bridges[0] == bridges[1] else "-".join(bridges)
    out = []
    if m.flat:
        out.append(_unread(HopKind.HYPERVISOR, name, "what the hypervisor hides"))
    out.append(_unread(HopKind.HOST_BRIDGE, name, "host bridge" if bridges[0] == bridges[1] else "host bridges"))
    if known(a.cpu_node) and known(b.cpu_node) and a.cpu_node != b.cpu_node:
        out.append(_unread(HopKind.INTER_SOCKET, f"node{a.cpu_node}-node{b.cpu_node}", "between NUMA nodes"))
    return tuple(out)


def pcie_hops(a: Gpu | Nic, b: Gpu | Nic, m: Map) -> tuple[Hop, ...]:
    """Return all hops between two devices by PCIe, in order from `a`.

    A GPU with a link of its own to its CPU leaves by that, unless the two share a PCIe switch.
    """
    chain_a, chain_b = m.places.get(a.address, ()), m.places.get(b.address, ())
    n = common_length(chain_a[:-1], chain_b[:-1])
    if classes.shares_function(chain_a, chain_b):
        middle: tuple[Hop, ...] = ()
        if m.around.guest:
            middle = (_unread(HopKind.HYPERVISOR, chain_a[n - 1], "what the hypervisor hides"),)
        return (*upward(a, n, m), *middle, *reversed(upward(b, n, m)))
    sides = []
    for device in (a, b):
        short = cpu_hop(device) if isinstance(device, Gpu) else None
        hops = (short,) if short is not None else upward(device, 1, m)
        sides.append(hops)
    return (*sides[0], *_middle(a, b, chain_a, chain_b, m), *reversed(sides[1]))


def _narrowest(hops: tuple[Hop, ...]) -> tuple[Hop | None, float | Missing]:
    """Return the hop with the smallest working rate, and that rate."""
    best: Hop | None = None
    rate: float | Missing = Missing(Reason.ABSENT, "no hop of this path tells its rate")
    for h in hops:
        r = h.working_gb_s
        if not isinstance(r, Missing) and (isinstance(rate, Missing) or r < rate):
            best, rate = h, r
    return best, rate


def _nvlink_path(a: Gpu, b: Gpu, bundle: Bundle) -> tuple[Hop, ...]:
    version = f" {bundle.version}" if known(bundle.version) else ""
    by = " through NVSwitch" if bundle.through_switch else ""
    return (
        Hop(
            kind=HopKind.NVLINK,
            address=f"{a.address}-{b.address}",
            gb_s=bundle.gb_s,
            attainable_gb_s=bundle.gb_s,
            text=f"{bundle.links} x NVLink{version}{by}",
        ),
    )


def find_path(a: Gpu, b: Gpu | Nic, m: Map) -> Path:
    """Return the path from `a` to `b`. One that ends at a lost GPU has no class and no rate, and says why."""
    lost = [d.label for d in (a, b) if isinstance(d, Gpu) and not d.on_bus]
    if lost:
        gap = Missing(Reason.ABSENT, f"{' and '.join(lost)} no longer answers on the bus")
        return Path(
            from_=a.address,
            to=b.address,
            from_label=a.label,
            to_label=b.label,
            class_=gap,
            pcie_class=gap,
            theoretical_gb_s=gap,
        )
    ancestor = m.ancestors.get((a.address, b.address), ABSENT)
    places = place_of(a, m.places), place_of(b, m.places)
    pcie = classes.pcie_class(*places, m.around, ancestor)
    bundle = m.bundles.get((a.address, b.address))
    if bundle is not None and isinstance(b, Gpu):
        hops = _nvlink_path(a, b, bundle)
        shown: str | Missing = f"NV{bundle.links}"
    else:
        hops, shown = pcie_hops(a, b, m), pcie
    narrowest, rate = _narrowest(hops)
    return Path(
        from_=a.address,
        to=b.address,
        from_label=a.label,
        to_label=b.label,
        class_=shown,
        pcie_class=pcie,
        nvlinks=bundle.links if bundle is not None else 0,
        theoretical_gb_s=rate,
        upper_bound=any(isinstance(h.working_gb_s, Missing) for h in hops),
        narrowest=narrowest,
        hops=hops,
        crosses_nodes=classes.crosses_nodes(*places, m.around, pcie),
        driver_class=ancestor,
    )
