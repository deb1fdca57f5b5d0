"""RDMA devices and network interfaces of a described machine."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from typing import Any

from tests.machines.description import Function
from tests.machines.tree import Dir, Error, File, Tree

_STATES = {"ACTIVE": 4, "DOWN": 1, "INIT": 2, "ARMED": 3}
_PHYS = {"LinkUp": 5, "Polling": 2, "Disabled": 3, "Sleep": 1}
_COUNTERS = (
    "symbol_error link_error_recovery link_downed port_rcv_errors port_xmit_discards local_link_integrity_errors "
    "VL15_dropped port_xmit_data port_rcv_data port_xmit_packets port_rcv_packets port_xmit_wait"
).split()
_HW_COUNTERS = "out_of_sequence packet_seq_err local_ack_timeout_err rnr_nak_retry_err roce_slow_restart".split()
_GIDS = 8


def rdma_functions(fs: list[Function]) -> list[tuple[str, Function]]:
    """Return (name, function) of each RDMA device: `rdma=` of its line, else mlx5_N in order of address."""
    out, n = [], 0
    for f in fs:
        if f.kind != "nic" or f.options.get("rdma") == "none":
            continue
        told = f.options.get("rdma")
        if told is None:
            told, n = f"{f.product.get('rdma_stem', 'mlx5_')}{n}", n + 1
        out.append((told, f))
    return out


def digits(*words: str) -> str:
    """Return 16 hex digits that are always the same for the same words."""
    return hashlib.sha256("/".join(words).encode()).hexdigest()[:16]


def write(tree: Tree, fs: list[Function], d: dict[str, Any], name: str) -> None:
    """Write /sys/class/infiniband, /sys/class/net and /dev/infiniband."""
    tree.put("/sys/class/net", Dir())
    defaults = d.get("nics", {})
    devices = rdma_functions(fs)
    for i, (rdma, f) in enumerate(devices):
        told = {**f.product, **defaults, **f.options}
        _rdma(tree, rdma, f, told, name, i)
    for rdma in d.get("software_rdma", []):
        at = f"/sys/devices/virtual/infiniband/{rdma}"
        tree.put(f"{at}/node_type", "1: CA")
        tree.put(f"{at}/ports/1/state", "4: ACTIVE")
        tree.put(f"{at}/ports/1/link_layer", "Ethernet")
        tree.link(f"/sys/class/infiniband/{rdma}", at)
    loopback = "/sys/devices/virtual/net/lo"
    _interface(
        tree, "lo", loopback, {"speed": "EINVAL", "mtu": "65536", "operstate": "unknown", "flags": "0x9", "type": "772"}
    )
    for f in fs:
        if f.kind == "eth" and "net" in f.options:
            _netdev(tree, f, f.options["net"], {**f.product, **f.options})
    for net, told in d.get("interfaces", {}).items():
        files = {
            "speed": str(told.get("speed", 25000)),
            "mtu": str(told.get("mtu", 1500)),
            "operstate": "up",
            "flags": "0x1003",
        }
        _interface(tree, net, f"/sys/devices/virtual/net/{net}", files)
    if d.get("bonds"):
        tree.put("/sys/class/net/bonding_masters", " ".join(d["bonds"]))
    for bond, told in d.get("bonds", {}).items():
        at = f"/sys/devices/virtual/net/{bond}"
        _interface(
            tree,
            bond,
            at,
            {"speed": str(told.get("speed", 200000)), "mtu": "9000", "operstate": "up", "flags": "0x1443"},
        )
        tree.put(f"{at}/bonding/slaves", " ".join(told["slaves"]))
        tree.put(f"{at}/bonding/mode", str(told.get("mode", "802.3ad 4")))
        tree.put(f"{at}/bonding/xmit_hash_policy", str(told.get("hash", "layer2 0")))
        for slave in told["slaves"]:
            tree.link(f"{tree.resolve(f'/sys/class/net/{slave}')}/master", at)


_ROUTE_HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"


def _hex(address: str) -> str:
    return bytes(reversed(ipaddress.IPv4Address(address).packed)).hex().upper()


def own_addresses(d: dict[str, Any], name: str, i: int) -> list[str]:
    """Return the addresses of the i-th interface: `[addresses]`, else one in a subnet of its own."""
    return list(d.get("addresses", {}).get(name, ["127.0.0.1/8"] if name == "lo" else [f"10.{i >> 8}.{i & 255}.1/24"]))


def write_routes(tree: Tree, d: dict[str, Any]) -> None:
    """Write /proc/net/route (the network of each address, and `routes` of `[network]`), the tables, and conf/*."""
    own = d.get("network", {})
    rows = []
    for i, name in enumerate(tree.names("/sys/class/net")):
        for a in own_addresses(d, name, i) if name != "lo" else []:
            net = ipaddress.ip_interface(a).network
            if net.version == 4:
                rows.append((name, str(net), "0.0.0.0", 0))
    for told in own.get("routes", []):  # "10.0.0.0/8 via 10.1.0.254 dev eth5 metric 100"
        words = told.split()
        value = {words[k]: words[k + 1] for k in range(1, len(words) - 1, 2)}
        net = "0.0.0.0/0" if words[0] == "default" else words[0]
        rows.append((value["dev"], net, value.get("via", "0.0.0.0"), int(value.get("metric", 0))))
    lines = [_ROUTE_HEAD]
    for name, net, gateway, metric in rows:
        flags = "0003" if gateway != "0.0.0.0" else "0001"
        n = ipaddress.ip_network(net)
        numbers = f"{flags}\t0\t0\t{metric}\t{_hex(str(n.netmask))}\t0\t0\t0"
        lines.append(f"{name}\t{_hex(str(n.network_address))}\t{_hex(gateway)}\t{numbers}")
    tree.put("/proc/net/route", "\n".join(lines) + "\n")
    tables = ["Main:", "Local:", *(f"Id {n}:" for n in own.get("tables", []))]
    tree.put("/proc/net/fib_trie", "\n".join(tables) + "\n")
    conf = {"rp_filter": 2, "arp_ignore": 0, "arp_announce": 0, "arp_filter": 0}
    for name in ("all", *tree.names("/sys/class/net")):
        for key, usual in conf.items():
            told = own.get(name, {}).get(key, own.get(key, usual if name == "all" else 0))
            tree.put(f"/proc/sys/net/ipv4/conf/{name}/{key}", str(told))


def _rdma(tree: Tree, rdma: str, f: Function, told: dict[str, Any], name: str, i: int) -> None:
    at = f"{f.path}/infiniband/{rdma}"
    mark = digits(name, f.address)
    guid = ":".join(mark[k : k + 4] for k in range(0, 16, 4))
    image = digits(name, f.address[:-2])
    layer = told.get("layer", "InfiniBand")
    for file, text in {
        "fw_ver": str(told.get("firmware", "28.39.1002")),
        "hca_type": str(told.get("hca", "MT4129")),
        "hw_rev": "0",
        "board_id": str(told.get("board", "MT_0000000838")),
        "node_type": "1: CA",
        "node_guid": guid,
        "sys_image_guid": ":".join(image[k : k + 4] for k in range(0, 16, 4)),
        "node_desc": rdma,
    }.items():
        tree.put(f"{at}/{file}", text)
    tree.link(f"{at}/device", f.path)
    tree.link(f"/sys/class/infiniband/{rdma}", at)
    verbs = f"{f.path}/infiniband_verbs/uverbs{i}"
    tree.put(f"{verbs}/ibdev", rdma)
    tree.put(f"{verbs}/abi_version", "1")
    tree.link(f"{verbs}/device", f.path)
    tree.link(f"/sys/class/infiniband_verbs/uverbs{i}", verbs)
    tree.put(f"/dev/infiniband/uverbs{i}", File(b"", kind="char", mode=0o666, rdev=231 << 8 | (192 + i)))
    tree.put("/dev/infiniband/rdma_cm", File(b"", kind="char", mode=0o666, rdev=10 << 8 | 58))
    state, _, phys = str(told.get("state", "ACTIVE/LinkUp")).partition("/")
    phys = phys or ("LinkUp" if state == "ACTIVE" else "Polling")
    down = state == "DOWN"
    rate = str(told.get("rate", "400 Gb/sec (4X NDR)"))
    rate = "10 Gb/sec (4X SDR)" if down and "rate" not in f.options else rate.replace("_", " ")
    ethernet = layer == "Ethernet"
    port = f"{at}/ports/1"
    for file, text in {
        "state": f"{_STATES[state]}: {state}",
        "phys_state": f"{_PHYS[phys]}: {phys}",
        "rate": rate,
        "link_layer": layer,
        "lid": "0x0" if ethernet or down else hex(16 + i),
        "sm_lid": "0x0" if ethernet or down else "0x1",
        "cap_mask": "0xa651e848",
    }.items():
        tree.put(f"{port}/{file}", text)
    net = told.get("net") or (f"eth{i + 1}" if ethernet else f"ib{i}")
    _gids(tree, port, told, guid, net, i)
    for c in _COUNTERS:
        tree.put(f"{port}/counters/{c}", "0")
    for c in _HW_COUNTERS:
        tree.put(f"{port}/hw_counters/{c}", "0")
    if net != "none":
        _netdev(tree, f, str(net), told | {"state": state})


def _gids(tree: Tree, port: str, told: dict[str, Any], guid: str, net: str, i: int) -> None:
    ethernet = told.get("layer") == "Ethernet"
    link_local = f"fe80:0000:0000:0000:{guid}"
    table = [(link_local, "IB/RoCE v1")]
    if ethernet:
        ip = told.get("ip", f"10.{i}.0.1")
        a, b, c, e = (int(x) for x in str(ip).split("."))
        mapped = f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{e:02x}"
        table = [(link_local, "IB/RoCE v1"), (link_local, "RoCE v2"), (mapped, "IB/RoCE v1"), (mapped, "RoCE v2")]
    for n in range(_GIDS):
        if n < len(table):
            tree.put(f"{port}/gids/{n}", table[n][0])
            tree.put(f"{port}/gid_attrs/types/{n}", table[n][1])
            tree.put(f"{port}/gid_attrs/ndevs/{n}", net if ethernet else Error("EINVAL"))
        else:
            tree.put(f"{port}/gids/{n}", "0000:0000:0000:0000:0000:0000:0000:0000")
            tree.put(f"{port}/gid_attrs/types/{n}", Error("EINVAL"))
            tree.put(f"{port}/gid_attrs/ndevs/{n}", Error("EINVAL"))


def _netdev(tree: Tree, f: Function, net: str, told: dict[str, Any]) -> None:
    up = str(told.get("state", "ACTIVE")).startswith("ACTIVE")
    m = re.match(r"[\d.]+", str(told.get("rate", "")))
    mbit = int(float(m[0]) * 1000) if m else int(told.get("speed_mbit", 25000))
    ethernet = told.get("layer", "Ethernet") == "Ethernet"
    _interface(
        tree,
        net,
        f"{f.path}/net/{net}",
        {
            "speed": str(mbit) if up else ("-1" if ethernet else "EINVAL"),
            "mtu": str(told.get("mtu", 1500 if f.kind == "eth" else 9000 if ethernet else 2044)),
            "operstate": "up" if up else "down",
            "flags": "0x1003" if up else "0x1002",
            "type": "1" if ethernet else "32",
        },
    )
    tree.link(f"{f.path}/net/{net}/device", f.path)


def _interface(tree: Tree, net: str, at: str, files: dict[str, str]) -> None:
    mac = digits(net, at)[:10]
    base = {
        "type": "1",
        "dev_port": "0",
        "carrier": "1",
        "address": "02:" + ":".join(mac[k : k + 2] for k in range(0, 10, 2)),
    }
    for file, text in {**base, **files}.items():
        tree.put(f"{at}/{file}", Error(text) if text == "EINVAL" else text)
    tree.link(f"/sys/class/net/{net}", at)
