"""Which network devices NCCL takes on a node, and what its topology says of each (src/transport/net_ib, net_socket)."""

from __future__ import annotations

import functools

import msgspec

from topocheck.knowledge.nccl import Version
from topocheck.model.address import address_key
from topocheck.model.base import Missing, is_lost, known, small_number
from topocheck.model.net import NetInterface, RdmaDevice, RdmaPort
from topocheck.model.node import Node
from topocheck.nccl.rules import versions
from topocheck.nccl.rules.settings import Settings

MAX_DEVICES = 32
"""Most RDMA devices, and MAX_SOCKETS most interfaces, that NCCL takes (MAX_IB_DEVS, MAX_IFS)."""
MAX_SOCKETS = 16
_UP_AND_RUNNING = 0x1 | 0x40
CHOOSE_NETWORK = (
    "NCCL_NET",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_IB_MERGE_VFS",
    "NCCL_IB_DEVICE_PCI_ORDER",
    "NCCL_DMABUF_ENABLE",
    "NCCL_SOCKET_IFNAME",
)
"""The settings read here: they act on what NCCL finds on a machine."""


class NetEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One `net` element to be. `address` is None for a device that is no PCI device: it goes to the first CPU."""

    name: str
    address: str | None
    speed_mbit_s: int
    port: int
    guid: str
    gdr: bool | None


def peermem_seen(node: Node, version: Version) -> bool | None:
    """Tell whether a version finds the peer-memory module by the file it looks for; None where that is not known."""
    unknown = False
    for path in versions.peermem_files(version):
        if path.startswith("/sys/module/"):
            # The file `version` is there only where the module states one.
            if node.system.modules.get(path.split("/")[3]):
                return True
            continue
        peers = node.system.memory_peers
        if isinstance(peers, Missing):
            unknown = unknown or peers.reason.value not in ("absent", "not_visible_here")
        elif path.split("/")[5] in peers:
            return True
    return None if unknown else False


def dmabuf_offered(node: Node, version: Version, settings: Settings) -> bool | None:
    """Tell whether version, setting, driver and GPUs offer DMA-BUF; None where the GPUs did not say.

    Whether the NIC takes it NCCL finds out with a registration that must fail in the right way; that is not
    repeated here.
    """
    if not versions.has("dmabuf", version) or settings.integer("NCCL_DMABUF_ENABLE", 1) == 0:
        return False
    devices = node.cuda.devices
    if isinstance(devices, Missing) or not devices:
        return None
    told = [d.dma_buf for d in devices if not isinstance(d.dma_buf, Missing)]
    if len(told) < len(devices):
        return None
    return all(told)


def gdr_of_nics(node: Node, version: Version, settings: Settings) -> bool | None:
    """Tell whether NCCL will find an RDMA NIC able to reach GPU memory; None where that is not known."""
    peermem, dmabuf = peermem_seen(node, version), dmabuf_offered(node, version, settings)
    if peermem or dmabuf:
        return True
    return None if peermem is None or dmabuf is None else False


class _Names(msgspec.Struct, frozen=True):
    """A list of devices: whether it excludes, whether names are exact, and (name, port or None) of each."""

    excluded: bool
    exact: bool
    names: tuple[tuple[str, int | None], ...]


@functools.lru_cache(maxsize=64)
def _names(setting: str, most: int) -> _Names:
    """Return a list as NCCL reads it: no more than `most` names (parseStringList, src/misc/utils.cc)."""
    excluded = setting.startswith("^")
    rest = setting[1:] if excluded else setting
    words = [w.strip() for w in rest.lstrip("=").split(",") if w.strip()][:most]
    parts = [w.partition(":") for w in words]
    ports = [small_number(number.split(":")[0]) for _, _, number in parts]
    return _Names(
        excluded, rest.startswith("="), tuple((name, port) for (name, _, _), port in zip(parts, ports, strict=True))
    )


def chosen(setting: str | None, name: str, port: int | None = None, most: int = MAX_DEVICES) -> bool:
    """Tell whether a list such as `^=mlx5_1:1,mlx5_2` takes a device: `^` excludes, `=` makes names exact.

    `most` is how many names NCCL reads of such a list.
    """
    if not setting:
        return True
    told = _names(setting, most)
    hit = any(
        (name == device if told.exact else name.startswith(device)) and (said is None or port is None or said == port)
        for device, said in told.names
    )
    return hit != told.excluded


def _guid(device: RdmaDevice) -> str:
    """Return the system image GUID as NCCL prints it: the bytes in the order of memory."""
    text = device.sys_image_guid
    digits = "" if isinstance(text, Missing) else text.replace(":", "").replace("0x", "")
    if len(digits) != 16 or any(c not in "0123456789abcdefABCDEF" for c in digits):
        return "0x0"
    return f"0x{int.from_bytes(bytes.fromhex(digits), 'little'):x}"


def _usable(port: RdmaPort) -> bool:
    layer = port.link_layer
    return port.state == "ACTIVE" and (isinstance(layer, Missing) or layer in ("InfiniBand", "Ethernet"))


def rdma_entries(node: Node, version: Version, settings: Settings, known_functions: frozenset[str]) -> list[NetEntry]:
    """Return the ports of RDMA devices that NCCL takes, in its order.

    Only ACTIVE ports count, of devices whose file is here and may be opened (src/transport/net_ib.cc takes no others).
    The function digit of the address is dropped so that the ports of a card share one PCI element, and the device
    digits too (NCCL_IB_MERGE_VFS) where such a function exists.
    """
    devices = node.net.rdma
    if isinstance(devices, Missing) or settings.nonzero("NCCL_IB_DISABLE"):
        return []
    order = list(devices)
    if settings.integer("NCCL_IB_DEVICE_PCI_ORDER", 1) and version >= (2, 29, 7):
        order.sort(
            key=lambda d: (0, *address_key(d.address)) if not isinstance(d.address, Missing) else (1, 0, 0, 0, 0)
        )
    gdr = gdr_of_nics(node, version, settings)
    out = []
    for d in order:
        if node.net.closed(d):
            continue
        for p in d.ports:
            if not _usable(p) or not chosen(settings.values.get("NCCL_IB_HCA"), d.name, p.port):
                continue
            address = None if isinstance(d.address, Missing) else _merged(d.address, settings, known_functions)
            rate = 0 if isinstance(p.rate_gbit_s, Missing) else round(p.rate_gbit_s * 1000)
            out.append(NetEntry(name=d.name, address=address, speed_mbit_s=rate, port=p.port, guid=_guid(d), gdr=gdr))
    return out[:MAX_DEVICES]


def _merged(address: str, settings: Settings, known_functions: frozenset[str]) -> str:
    bus = address.rsplit(":", 1)[0]
    whole = f"{bus}:00.0"
    if settings.integer("NCCL_IB_MERGE_VFS", 1) and whole in known_functions:
        return whole
    first = address[:-1] + "0"
    return first if first in known_functions else address


def _up(i: NetInterface) -> bool:
    flags = i.flags
    if isinstance(flags, Missing):
        return i.operstate == "up"
    running = bool(flags & 0x40) or i.operstate == "up"
    addressed = isinstance(i.ip_addresses, Missing) or bool(i.ip_addresses)
    return bool(flags & 0x1) and running and addressed


def _asked_interfaces(settings: Settings) -> str:
    """Return NCCL_SOCKET_IFNAME where NCCL heeds it: it passes over a text of one character."""
    asked = settings.values.get("NCCL_SOCKET_IFNAME", "")
    return asked if len(asked) > 1 else ""


def socket_interfaces(node: Node, settings: Settings) -> list[NetInterface]:
    """Return the interfaces NCCL takes for TCP, by its own choice or by NCCL_SOCKET_IFNAME (src/misc/socket.cc).

    Without a setting: names that begin with `ib`, else all but docker, lo and virbr, else these three in turn.
    """
    interfaces = [] if isinstance(node.net.interfaces, Missing) else [i for i in node.net.interfaces if _up(i)]
    asked = _asked_interfaces(settings)
    if asked:
        return [i for i in interfaces if chosen(asked, i.name, most=MAX_SOCKETS)][:MAX_SOCKETS]
    for wanted in ("ib", "^docker,lo,virbr", "docker", "lo", "virbr"):
        found = [i for i in interfaces if chosen(wanted, i.name)]
        if found:
            return found[:MAX_SOCKETS]
    return []


def socket_entries(node: Node, settings: Settings) -> list[NetEntry]:
    """Return the interfaces NCCL takes for TCP as network devices; a speed that is not known counts as 10 Gb/s."""
    out = []
    for i in socket_interfaces(node, settings):
        speed = i.speed_mbit_s if not isinstance(i.speed_mbit_s, Missing) and i.speed_mbit_s > 0 else 10000
        # A virtio or paravirtual device is no PCI device to NCCL, whatever stands above it.
        pci = None if isinstance(i.address, Missing) or str(i.driver).startswith("virtio") else i.address
        out.append(NetEntry(name=i.name, address=pci, speed_mbit_s=speed, port=0, guid="0x0", gdr=False))
    return out


def _asked_network(settings: Settings) -> str:
    return settings.values.get("NCCL_NET", "").lower()


def net_entries(node: Node, version: Version, settings: Settings, known_functions: frozenset[str]) -> list[NetEntry]:
    """Return the network devices of the network that NCCL chooses: InfiniBand and RoCE, else TCP."""
    if _asked_network(settings) != "socket":
        found = rdma_entries(node, version, settings, known_functions)
        if found or _asked_network(settings) == "ib":
            return found
    return socket_entries(node, settings)


EXTERNAL = "an external plugin"


def network_of(node: Node, version: Version, settings: Settings) -> str | Missing:
    """Return the network that NCCL uses between nodes: the word of NCCL_NET, a plugin, `IB` or `Socket`.

    NCCL takes a plugin that its loader finds before its own networks (src/plugin/net.cc); InfiniBand and RoCE are both
    its `IB`.
    """
    asked = _asked_network(settings)
    if asked not in ("", "ib", "socket"):
        return settings.values["NCCL_NET"]
    plugins = node.software.network_plugins
    if not asked and settings.values.get("NCCL_NET_PLUGIN", "").lower() != "none":
        if isinstance(plugins, Missing) and is_lost(plugins):
            return plugins
        if known(plugins) and plugins:
            return EXTERNAL
    return _own_network(node, version, settings)


def tcp_between_nodes(node: Node, version: Version, settings: Settings) -> bool | Missing:
    """Tell whether NCCL uses TCP between nodes; what could not be read, where that decides it."""
    network = network_of(node, version, settings)
    if isinstance(network, Missing):
        # The network is a plugin's or NCCL's own: where its own is not TCP, neither is.
        return network if _own_network(node, version, settings) != "IB" else False
    return network == "Socket"


def tcp_asked(settings: Settings) -> bool:
    """Tell whether the settings leave NCCL nothing of its own but TCP."""
    return _asked_network(settings) == "socket" or settings.nonzero("NCCL_IB_DISABLE")


def _own_network(node: Node, version: Version, settings: Settings) -> str | Missing:
    """Return which of its own networks NCCL uses: `IB` or `Socket`."""
    if tcp_asked(settings):
        return "Socket"
    if rdma_unknown(node) and isinstance(node.net.rdma, Missing):
        return node.net.rdma
    return "IB" if rdma_entries(node, version, settings, frozenset()) else "Socket"


def network_stops(node: Node, version: Version, settings: Settings) -> str:
    """Return why init ends for lack of a network that the settings ask for; empty where it does not.

    Every job needs a TCP interface to meet by (src/bootstrap.cc), and the network of NCCL_NET (src/plugin/net.cc), also
    on one node. What could not be read stops nothing.
    """
    asked = _asked_interfaces(settings)
    if asked and not isinstance(node.net.interfaces, Missing) and not socket_interfaces(node, settings):
        return f"NCCL_SOCKET_IFNAME={asked}: no interface that is up fits: Bootstrap : no socket interface found"
    if _asked_network(settings) != "ib" or rdma_unknown(node) or rdma_entries(node, version, settings, frozenset()):
        return ""
    return "NCCL_NET=IB: no RDMA device that NCCL would use, so no network is left"


def plugin_note(settings: Settings) -> str:
    """Return what must be said where NCCL_NET names a network that is not NCCL's own; empty otherwise."""
    if _asked_network(settings) in ("", "ib", "socket"):
        return ""
    name = settings.values["NCCL_NET"]
    return f"NCCL_NET={name} names a plugin's network, not known here: the NICs are those without it"


def hca_note(node: Node, version: Version, settings: Settings) -> str:
    """Return what must be said where NCCL_IB_HCA alone leaves NCCL no RDMA device; empty otherwise."""
    asked = settings.values.get("NCCL_IB_HCA")
    if not asked or _asked_network(settings) not in ("", "ib") or rdma_unknown(node):
        return ""
    if network_of(node, version, settings) == EXTERNAL or rdma_entries(node, version, settings, frozenset()):
        return ""
    others = {name: value for name, value in settings.values.items() if name != "NCCL_IB_HCA"}
    there = rdma_entries(node, version, Settings(others, version), frozenset())
    if not there:
        return ""
    names = ", ".join(dict.fromkeys(e.name for e in there))
    text = f"no HCA matches NCCL_IB_HCA={asked} (with an active port here: {names})"
    return text if _asked_network(settings) == "ib" else f"{text}: NCCL falls back to Socket"


def rdma_unknown(node: Node) -> bool:
    """Tell whether the RDMA devices could not be read."""
    return not known(node.net.rdma) and str(getattr(node.net.rdma, "reason", "")) != "absent"
