"""The way between two devices: its hops, the narrowest of them, and the rate that leaves.

Hops that no machine tells the rate of (a host bridge, the socket interconnect, a hypervisor) have none, and make
the rate of the rest an upper bound.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from topocheck.knowledge.products import Product, find_product
from topocheck.model.base import ABSENT, Missing, Reason, known, value_or
from topocheck.model.gpu import P2pStatus
from topocheck.model.pci import PciDevice
from topocheck.topology import classes
from topocheck.topology.classes import Place, Surroundings
from topocheck.topology.links import pcie_hop
from topocheck.topology.nvlink import Bundle, link_rate
from topocheck.topology.tree import Chain, common_length, is_host_bridge
from topocheck.topology.types import Gpu, Hop, HopKind, HostPath, Nic, Path, PathClass, TreeNode


class Side(msgspec.Struct, frozen=True):
    """How one device reaches the top of its tree: the hops upwards, and what the rest of a path needs of them.

    Attributes:
        hops: from the device up; a GPU with a link of its own to its CPU leaves by that.
        bridge: the host bridge above, `?` where none is known.
        first, last: the narrowest hop with its rate, the first and the last of equals; None where no rate is known.
        open: a hop has no rate.
    """

    hops: tuple[Hop, ...]
    reverse: tuple[Hop, ...]
    bridge: str
    first: tuple[float, Hop] | None
    last: tuple[float, Hop] | None
    open: bool


class End(msgspec.Struct):
    """A device as an end of paths: where it is, and how it reaches the top of its tree once that was worked out."""

    place: Place
    side: Side | None = None


class Map(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What a path is found on."""

    devices: dict[str, PciDevice]
    places: dict[str, Chain]
    tree: dict[str, TreeNode]
    bundles: dict[tuple[str, str], Bundle]
    untold: dict[str, Missing] = {}
    """GPU -> why it may have more NVLinks than are known."""
    statuses: Mapping[tuple[str, str], P2pStatus]
    around: Surroundings
    flat: bool

    @functools.cached_property
    def ends(self) -> dict[int, End]:
        """The devices that paths were asked of, by `id`."""
        return {}

    def end(self, device: Gpu | Nic) -> End:
        """Return a device as an end of paths."""
        key = id(device)  # the devices live as long as this; there are as many questions as pairs
        found = self.ends.get(key)
        if found is None:
            place = Place(device.label, self.places.get(device.address, ()), device.cpu_node)
            found = self.ends[key] = End(place)
        return found

    @functools.cached_property
    def classes(self) -> dict[tuple[str, str, str | Missing], tuple[PathClass | Missing, bool | Missing]]:
        """The PCIe classes that were worked out, by two GPUs and NVML's word for them."""
        return {}

    @functools.cached_property
    def middles(self) -> dict[tuple[str, str, int | Missing, int | Missing], tuple[Hop, ...]]:
        """The hops across the top of the tree that were worked out, by both host bridges and both NUMA nodes."""
        return {}

    @functools.cached_property
    def links(self) -> dict[str, Hop]:
        """The hops between ports that were worked out, by the lower port."""
        return {}

    @functools.cached_property
    def parts(self) -> dict[tuple[str, bool, int], tuple[Hop, ...]]:
        """The hops below a shared bridge that were worked out, by address, kind and the bridge's place in the chain."""
        return {}


def product_of(gpu: Gpu) -> Product | None:
    """Return what is known of a GPU's product."""
    ident = gpu.pci.device_id if gpu.pci is not None else ABSENT
    name = gpu.nvml.name if gpu.nvml is not None else gpu.name
    return find_product(None if isinstance(name, Missing) else name, None if isinstance(ident, Missing) else ident)


def joined_to_cpu(gpu: Gpu) -> bool:
    """Tell whether a chip-to-chip link joins a GPU to its CPU, so that its PCIe link is a placeholder."""
    links = gpu.nvml.c2c_links if gpu.nvml is not None else ABSENT
    if not isinstance(links, Missing) and links > 0:
        return True
    if gpu.cuda is not None and gpu.cuda.integrated is True:
        return True  # a system on a chip, whether a table names it or not
    if not isinstance(links, Missing):
        return False
    product = product_of(gpu)
    return product is not None and product.c2c


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
        upstream = m.devices.get(chain[i - 1]) if i else None
        if is_end:
            driverless = isinstance(device, Gpu) and nvml is None
            out.append(pcie_hop(lower, upstream, gpu=nvml, driverless_gpu=driverless))
            continue
        hop = m.links.get(chain[i])
        if hop is None:
            hop = m.links[chain[i]] = pcie_hop(lower, upstream)
        out.append(hop)
    if not chain and nvml is not None:
        out.append(pcie_hop(PciDevice(address=device.address), None, gpu=nvml))
    return tuple(out)


def c2c_hop(gpu: Gpu) -> Hop:
    """Return the hop from a GPU to its CPU by the chip-to-chip link (NVML: number of links, MB/s of each)."""
    count = gpu.nvml.c2c_links if gpu.nvml else ABSENT
    speed = gpu.nvml.c2c_link_mb_s if gpu.nvml else ABSENT
    product = product_of(gpu)
    rate: float | Missing = Missing(Reason.UNSUPPORTED, "neither NVML nor the product table has the rate")
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
        generation=value_or(links[0].version, None),
    )


_UNREADABLE = Missing(Reason.ABSENT, "this rate cannot be read from any machine")


def _unread(kind: HopKind, address: str, text: str) -> Hop:
    return Hop(kind=kind, address=address, gb_s=_UNREADABLE, attainable_gb_s=_UNREADABLE, text=text)


def _side(device: Gpu | Nic, end: End, m: Map) -> Side:
    """Return how a device reaches the top of its tree; each device is worked out once."""
    found = end.side
    if found is None:
        short = cpu_hop(device) if isinstance(device, Gpu) else None
        hops = (short,) if short is not None else upward(device, 1, m)
        rated = [(r, h) for h in hops if not isinstance(r := h.working_gb_s, Missing)]
        bridge = next((e for e in m.places.get(device.address, ()) if is_host_bridge(e)), "?")
        first = min(rated, key=lambda x: x[0], default=None)
        last = min(reversed(rated), key=lambda x: x[0], default=None)
        found = end.side = Side(hops, hops[::-1], bridge, first, last, len(rated) < len(hops))
    return found


def host_path(gpu: Gpu, m: Map) -> HostPath:
    """Return the path from a GPU to its host's memory."""
    side = _side(gpu, m.end(gpu), m)
    rate, narrowest = (_NO_RATE, None) if side.first is None else side.first
    return HostPath(hops=side.hops, theoretical_gb_s=rate, narrowest=narrowest)


def _middle(a: Gpu | Nic, b: Gpu | Nic, bridge_a: str, bridge_b: str, m: Map) -> tuple[Hop, ...]:
    """Return the hops across the top of the tree, where the two devices share no bridge."""
    key = (bridge_a, bridge_b, a.cpu_node, b.cpu_node)
    found = m.middles.get(key)
    if found is not None:
        return found
    same = bridge_a == bridge_b
    name = bridge_a if same else f"{bridge_a}-{bridge_b}"
    out = []
    if m.flat:
        out.append(_unread(HopKind.HYPERVISOR, name, "what the hypervisor hides"))
    out.append(_unread(HopKind.HOST_BRIDGE, name, "host bridge" if same else "host bridges"))
    node_a, node_b = a.cpu_node, b.cpu_node
    if node_a != node_b and not isinstance(node_a, Missing) and not isinstance(node_b, Missing):
        out.append(_unread(HopKind.INTER_SOCKET, f"node{node_a}-node{node_b}", "between NUMA nodes"))
    found = m.middles[key] = tuple(out)
    return found


def _part(device: Gpu | Nic, stop: int, m: Map) -> tuple[Hop, ...]:
    key = (device.address, isinstance(device, Gpu), stop)
    if key not in m.parts:
        m.parts[key] = upward(device, stop, m)
    return m.parts[key]


class _Way(msgspec.Struct, frozen=True, gc=False):
    """The hops of a path, the narrowest of them with its rate, and whether one has no rate."""

    hops: tuple[Hop, ...]
    narrowest: Hop | None
    gb_s: float | Missing
    open: bool


def _by_pcie(a: Gpu | Nic, b: Gpu | Nic, end_a: End, end_b: End, m: Map) -> _Way:
    """Return the way between two devices by PCIe, in order from `a`.

    A GPU with a link of its own to its CPU leaves by that, unless the two share a PCIe switch.
    """
    above_a, above_b = end_a.place.above, end_b.place.above
    n = common_length(above_a, above_b)
    if n > 0 and not is_host_bridge(above_a[n - 1]):
        middle: tuple[Hop, ...] = ()
        if m.around.guest:
            middle = (_unread(HopKind.HYPERVISOR, above_a[n - 1], "what the hypervisor hides"),)
        return _way((*_part(a, n, m), *middle, *reversed(_part(b, n, m))))
    up, down = end_a.side or _side(a, end_a, m), end_b.side or _side(b, end_b, m)
    hops = (*up.hops, *_middle(a, b, up.bridge, down.bridge, m), *down.reverse)
    best = up.first
    if best is None or (down.last is not None and down.last[0] < best[0]):
        best = down.last
    # Nothing across the top of a tree tells its rate, so the way is open.
    return _Way(hops, None if best is None else best[1], _NO_RATE if best is None else best[0], True)


_NO_RATE = Missing(Reason.ABSENT, "no hop of this path reports its rate")


def _way(hops: tuple[Hop, ...]) -> _Way:
    narrowest, rate = _narrowest(hops)
    return _Way(hops, narrowest, rate, any(isinstance(h.working_gb_s, Missing) for h in hops))


def _narrowest(hops: tuple[Hop, ...]) -> tuple[Hop | None, float | Missing]:
    """Return the hop with the smallest working rate, and that rate."""
    best: Hop | None = None
    rate: float | Missing = _NO_RATE
    for h in hops:
        r = h.working_gb_s
        if not isinstance(r, Missing) and (isinstance(rate, Missing) or r < rate):
            best, rate = h, r
    return best, rate


def _by_nvlink(a: Gpu, b: Gpu, bundle: Bundle) -> _Way:
    rate = bundle.gb_s
    hop = Hop(
        kind=HopKind.NVLINK,
        address=f"{a.address}-{b.address}",
        gb_s=rate,
        attainable_gb_s=rate,
        text=bundle.text,
        generation=None if isinstance(bundle.version, Missing) else bundle.version,
    )
    return _Way((hop,), None, _NO_RATE, True) if isinstance(rate, Missing) else _Way((hop,), hop, rate, False)


def _nvlinks_untold(a: Gpu, b: Gpu, m: Map) -> Missing | None:
    """Return why it is not known by how many NVLinks two GPUs are joined; None where it is, or none can join them."""
    for one, other in ((a, b), (b, a)):
        why = m.untold.get(one.address)
        if why is not None and (other.nvml is None or any(x.active is not False for x in other.nvml.nvlinks)):
            return Missing(why.reason, f"NVLinks of {one.label}: {why.detail or why.reason.value}")
    return None


def _pcie_class(
    a: Gpu, b: Gpu | Nic, one: Place, other: Place, m: Map, ancestor: str | Missing
) -> tuple[PathClass | Missing, bool | Missing]:
    """Return the PCIe class of two devices and whether their way crosses NUMA nodes: the same there and back.

    Not so where one is not known: the reason names the devices in their order.
    """
    found = m.classes.get((b.address, a.address, ancestor))
    if found is None:
        pcie = classes.pcie_class(one, other, m.around, ancestor)
        found = pcie, classes.crosses_nodes(one, other, m.around, pcie)
        if not isinstance(pcie, Missing) and not isinstance(found[1], Missing) and isinstance(b, Gpu):
            m.classes[a.address, b.address, ancestor] = found
    return found


def find_path(a: Gpu, b: Gpu | Nic, m: Map) -> Path:
    """Return the path from `a` to `b`. One that ends at a lost GPU has no class and no rate, and says why."""
    if not (a.on_bus and (isinstance(b, Nic) or b.on_bus)):
        lost = [d.label for d in (a, b) if isinstance(d, Gpu) and not d.on_bus]
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
    pair = a.address, b.address
    status = m.statuses.get(pair)
    ancestor = ABSENT if status is None else status.ancestor
    end_a, end_b = m.end(a), m.end(b)
    pcie, crosses = _pcie_class(a, b, end_a.place, end_b.place, m, ancestor)
    bundle = m.bundles.get(pair)
    untold = _nvlinks_untold(a, b, m) if m.untold and isinstance(b, Gpu) else None
    if bundle is not None and isinstance(b, Gpu):
        way = _by_nvlink(a, b, bundle)
        shown: str | Missing = bundle.class_
    else:
        way, shown = _by_pcie(a, b, end_a, end_b, m), pcie
    rate = way.gb_s
    if untold is not None:
        shown = rate = untold
    return Path(
        from_=a.address,
        to=b.address,
        from_label=a.label,
        to_label=b.label,
        class_=shown,
        pcie_class=pcie,
        nvlinks=bundle.links if bundle is not None else 0,
        nvlinks_untold=untold,
        theoretical_gb_s=rate,
        upper_bound=way.open,
        narrowest=way.narrowest,
        hops=way.hops,
        crosses_nodes=crosses,
        driver_class=ancestor,
    )
