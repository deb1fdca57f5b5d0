"""RDMA devices and their ports from /sys/class/infiniband (Linux: Documentation/ABI/stable/sysfs-class-infiniband)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from topocheck.host.base import Host, HostError
from topocheck.model.address import normalize_address
from topocheck.model.base import ABSENT, Missing, Reason, is_digits, known, unparsable
from topocheck.model.names import natural_key
from topocheck.model.net import Gid, RdmaDevice, RdmaPort
from topocheck.probes.sysfs_reader import Folder, list_or_missing, parse_int, text_or_missing

CLASS = "/sys/class/infiniband"
VERBS_CLASS = "/sys/class/infiniband_verbs"

# Only what a check judges; a port has up to a hundred counters, and each costs a read.
COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "port_xmit_wait",
    "port_rcv_data",
    "port_xmit_data",
)
HW_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_slow_restart",
    "np_cnp_sent",
    "rp_cnp_handled",
    "rx_icrc_encapsulated",
    "implied_nak_seq_err",
)
MAX_DEVICES = 1 << 10
"""RDMA devices; eight cards with 127 virtual functions each have as many."""
MAX_PORTS = 32
# A GID table may have 256 entries, each its own file. Used entries lie at its start with small holes where an
# address was taken away, so a run of this many empty ones is taken for the rest of the table.
MAX_GIDS = 256
EMPTY_GID_RUN = 16

# The kernel prints every rate in Gb/sec (drivers/infiniband/core/sysfs.c, rate_show), such as `2.5 Gb/sec (1X SDR)`.
# No other unit is read: `GB/sec` would be eight times as much.
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec(?: \([^()]{0,40}\))?", re.ASCII)
_NUMBERED = re.compile(r"\d+:\s*(\S.{0,60})", re.ASCII)
_GUID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}")
_GID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}")
_ADDRESS_IN_PATH = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


def parse_rate(text: str) -> float | Missing:
    """Return a port's rate in 10^9 bits a second: `400 Gb/sec (4X NDR)` -> 400.0; unparsable in any other unit."""
    m = _RATE.fullmatch(text.strip())
    return float(m[1]) if m and float(m[1]) > 0 else unparsable(text)


def parse_state(text: str) -> str | Missing:
    """Return the word of a numbered state: `4: ACTIVE` -> `ACTIVE`."""
    m = _NUMBERED.fullmatch(text.strip())
    return m[1].strip() if m else unparsable(text)


def parse_lid(text: str) -> int | Missing:
    """Return a LID from its hexadecimal text (`0x1b`), 0 to 0xffff."""
    m = re.fullmatch(r"0x([0-9a-fA-F]{1,4})", text.strip())
    return int(m[1], 16) if m else unparsable(text)


def parse_guid(text: str) -> str | Missing:
    """Return a GUID of four groups of four hexadecimal digits, lower case."""
    guid = text.strip().lower()
    return guid if _GUID.fullmatch(guid) else unparsable(text)


def parse_gid(text: str) -> str | Missing:
    """Return a GID of eight groups of four hexadecimal digits, lower case; Missing(absent) for an empty entry."""
    gid = text.strip().lower()
    if not _GID.fullmatch(gid):
        return unparsable(text)
    # An unused entry is all zero; one with a zero interface id under the default prefix is unused too (ibv_devinfo).
    return ABSENT if gid.strip("0:") == "" or gid == "fe80:0000:0000:0000:0000:0000:0000:0000" else gid


def parse_counter(text: str) -> int | Missing:
    """Return a counter; unparsable for `N/A (no PMA)` and the like."""
    text = text.strip()
    return int(text) if is_digits(text, 20) else unparsable(text)


def address_in_path(path: str) -> str | None:
    """Return the PCI function nearest above a device's folder: the last path element that is a PCI address.

    A subfunction hangs on the auxiliary bus (`.../0000:3b:00.0/mlx5_core.sf.4`), a paravirtual device on virtio.
    """
    for element in reversed(path.split("/")):
        if _ADDRESS_IN_PATH.fullmatch(element):
            return normalize_address(element)
    return None


def _numbers(names: Iterable[str]) -> list[int]:
    """Return the names that are small numbers, as numbers, in order."""
    return sorted(int(n) for n in names if is_digits(n, 6))


def device_address(host: Host, folder: str) -> str | Missing:
    """Return the PCI function behind a folder of /sys/class; Missing(absent) where it is software only."""
    try:
        path = host.realpath(f"{folder}/device")
    except HostError as e:
        return e.missing()
    return address_in_path(path) or Missing(Reason.ABSENT, "no PCI function above the device")


def _gids(host: Host, port_path: str) -> tuple[Gid, ...] | Missing:
    names = list_or_missing(host, f"{port_path}/gids")
    if isinstance(names, Missing):
        return names
    out: list[Gid] = []
    empty = 0
    folder = Folder(host, port_path)
    for index in host.at_most(_numbers(names), MAX_GIDS, f"GIDs of {port_path}"):
        gid = folder.value(f"gids/{index}", parse_gid)
        if isinstance(gid, Missing):
            empty += 1
            if empty >= EMPTY_GID_RUN:
                break
            continue
        empty = 0
        kind, netdev = folder.text(f"gid_attrs/types/{index}"), folder.text(f"gid_attrs/ndevs/{index}")
        out.append(Gid(index=index, gid=gid, type=_or_absent(kind), netdev=_or_absent(netdev)))
    return tuple(out)


def _or_absent(text: str | Missing) -> str | Missing:
    return text if isinstance(text, Missing) or text else ABSENT


def _counters(folder: Folder, kind: str, wanted: tuple[str, ...], missing: dict[str, str]) -> dict[str, int]:
    """Return the wanted counters of a folder that are there; one that cannot be read loses only itself."""
    present = list_or_missing(folder.host, f"{folder.path}/{kind}")
    if isinstance(present, Missing):
        if present.reason is not Reason.ABSENT:  # not every driver has both kinds
            missing[kind] = str(present)
        return {}
    out: dict[str, int] = {}
    for name in wanted:
        if name not in present:
            continue
        value = folder.value(f"{kind}/{name}", parse_counter)
        if isinstance(value, Missing):
            missing[f"{kind}/{name}"] = str(value)
        else:
            out[name] = value
    return out


_BRIDGE_HCA = "MT4129"
"""ConnectX-7 (`hca_type`): the chip that leads to the NVSwitches of an HGX B200 or B300."""
_BRIDGE_LANES = 4
_NOT_FOR_JOBS = "not read: a narrow ConnectX-7 may manage NVSwitches, and such a function refuses with a kernel message"


def _may_manage_switches(host: Host, path: str, hca_type: str | Missing) -> bool:
    """Tell whether a device may be one of those that manage NVSwitches: a ConnectX-7 of no more than four lanes."""
    if hca_type != _BRIDGE_HCA:
        return False
    width = Folder(host, f"{path}/device").value("current_link_width", parse_int)
    return known(width) and 0 < width <= _BRIDGE_LANES


def _port(host: Host, path: str, number: int, silent: bool) -> RdmaPort:
    folder = Folder(host, path)
    missing: dict[str, str] = {}
    layer = _or_absent(folder.text("link_layer"))
    asked = not silent or layer == "Ethernet"
    if not asked:
        missing["counters"] = _NOT_FOR_JOBS
    return RdmaPort(
        source=path,
        raw=folder.raw,
        port=number,
        state=folder.value("state", parse_state),
        phys_state=folder.value("phys_state", parse_state),
        link_layer=layer,
        rate_gbit_s=folder.value("rate", parse_rate),
        rate_text=folder.text("rate"),
        lid=folder.value("lid", parse_lid),
        sm_lid=folder.value("sm_lid", parse_lid),
        gids=_gids(host, path),
        counters=_counters(folder, "counters", COUNTERS, missing) if asked else {},
        hw_counters=_counters(folder, "hw_counters", HW_COUNTERS, missing) if asked else {},
        counters_missing=missing,
    )


def _netdevs(host: Host, path: str, ports: tuple[RdmaPort, ...]) -> tuple[str, ...]:
    """Return the interfaces of a device: those its GIDs name, then those that hang on the same function.

    The second source knows interfaces without an address and, for InfiniBand, IPoIB; the first knows bonds.
    """
    by_gid = [g.netdev for p in ports if known(p.gids) for g in p.gids]
    by_device = list_or_missing(host, f"{path}/device/net")
    names = [n for n in by_gid if isinstance(n, str)] + (by_device if known(by_device) else [])
    return tuple(dict.fromkeys(names))


def _verbs(host: Host) -> dict[str, str] | Missing:
    """Return RDMA device -> its file under /dev/infiniband (drivers/infiniband/core/uverbs_main.c, `ibdev`)."""
    names = list_or_missing(host, VERBS_CLASS)
    if isinstance(names, Missing):
        return names
    out: dict[str, str] = {}
    for name in host.at_most([n for n in names if n.startswith("uverbs")], MAX_DEVICES, f"names in {VERBS_CLASS}"):
        device = text_or_missing(host, f"{VERBS_CLASS}/{name}/ibdev")
        if isinstance(device, str):
            out[device] = name
    return out


def _device(host: Host, name: str, verbs: dict[str, str] | Missing) -> RdmaDevice:
    path = f"{CLASS}/{name}"
    folder = Folder(host, path)
    address = device_address(host, path)
    numbers = list_or_missing(host, f"{path}/ports")
    numbered = host.at_most(_numbers(numbers if known(numbers) else []), MAX_PORTS, f"ports of {name}")
    hca_type = _or_absent(folder.text("hca_type"))
    silent = _may_manage_switches(host, path, hca_type)
    ports = tuple(_port(host, f"{path}/ports/{n}", n, silent) for n in numbered)
    physfn = folder.link("device/physfn") if known(address) else ABSENT
    return RdmaDevice(
        source=path,
        raw=folder.raw,
        name=name,
        address=address,
        netdevs=_netdevs(host, path, ports),
        firmware=_or_absent(folder.text("fw_ver")),
        board_id=_or_absent(folder.text("board_id")),
        hca_type=hca_type,
        hw_rev=_or_absent(folder.text("hw_rev")),
        node_type=folder.value("node_type", parse_state),
        verbs=verbs if isinstance(verbs, Missing) else verbs.get(name, ABSENT),
        node_guid=folder.value("node_guid", parse_guid),
        sys_image_guid=folder.value("sys_image_guid", parse_guid),
        physfn=(normalize_address(physfn) or unparsable(physfn)) if isinstance(physfn, str) else physfn,
        ports=ports,
    )


def read_rdma(host: Host) -> tuple[RdmaDevice, ...] | Missing:
    """Read all RDMA devices; Missing(absent) where the kernel has no RDMA class (no driver is loaded)."""
    names = list_or_missing(host, CLASS)
    if isinstance(names, Missing):
        return names
    listed = host.at_most(sorted(names, key=natural_key), MAX_DEVICES, "RDMA devices")
    verbs = _verbs(host) if listed else ABSENT
    return tuple(_device(host, n, verbs) for n in listed)
