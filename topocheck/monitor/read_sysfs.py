"""One sample of PCI functions and RDMA ports by sysfs.

The link files of a suspended function are not read: that would wake it (Linux drivers/pci/pci-sysfs.c).
"""

from __future__ import annotations

from topocheck.host.base import Host, HostError
from topocheck.model.base import Missing, Reason
from topocheck.monitor.plan import Plan
from topocheck.overtime.of_node import LINK_ERRORS
from topocheck.overtime.types import FunctionReading, PortReading, Reading
from topocheck.probes.pci import text as pci_text
from topocheck.probes.rdma import CLASS, parse_counter, parse_rate, parse_state
from topocheck.probes.sysfs_reader import Folder, text_or_missing

_PCI = "/sys/bus/pci/devices"
TRAFFIC = ("port_xmit_data", "port_rcv_data")
"""Counters of 4 bytes each (InfiniBand Architecture Specification, volume 1, PortXmitData)."""
ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "port_rcv_packets",
    "port_xmit_packets",
    "port_xmit_wait",
)
CARRIER = "carrier_down_count"
"""How often an interface lost its carrier (Linux Documentation/ABI/testing/sysfs-class-net): a flap of a RoCE port."""
HW_ERRORS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err")


def is_suspended(host: Host, address: str) -> bool:
    """Tell whether a PCI function is powered down; reading this does not wake it."""
    return text_or_missing(host, f"{_PCI}/{address}/power/runtime_status") in ("suspended", "suspending")


def read_links_and_ports(host: Host, plan: Plan, *, full: bool) -> list[Reading]:
    """Return the readings of all functions and ports of a plan."""
    ends = frozenset(plan.ends)
    addresses = plan.functions if full else plan.ends
    out: list[Reading] = [_function(host, a, link=a in ends, full=full) for a in addresses]
    interfaces = dict(plan.interfaces) if full else {}
    out += [_port(host, device, port, interfaces.get(device), full=full) for device, port in plan.ports]
    return out


def _function(host: Host, address: str, *, link: bool, full: bool) -> FunctionReading:
    folder = Folder(host, f"{_PCI}/{address}")
    status = folder.text("power/runtime_status")
    if status in ("suspended", "suspending"):
        return FunctionReading(address=address, suspended=True)
    if isinstance(status, Missing) and status.reason is Reason.ABSENT and not _there(host, folder.path):
        return FunctionReading(address=address, gone=True)
    counters: dict[str, int] = {}
    missing: dict[str, Missing] = {}
    for kind in ("correctable", "nonfatal", "fatal") if full else ():
        answer = folder.value(f"aer_dev_{kind}", pci_text.parse_aer)
        if isinstance(answer, Missing):
            if answer.reason is Reason.ABSENT:  # the kernel does not own this function's error reporting
                break
            missing[f"aer_{kind}"] = answer
            continue
        counters[f"aer_{kind}"] = answer[0]
        if kind == "correctable":
            counters["aer_link_errors"] = sum(answer[1].get(n, 0) for n in LINK_ERRORS)
    if not link:
        return FunctionReading(address=address, counters=counters, missing=missing)
    return FunctionReading(
        address=address,
        speed_gt_s=folder.value("current_link_speed", pci_text.parse_link_speed),
        width_lanes=folder.value("current_link_width", pci_text.parse_link_width),
        counters=counters,
        missing=missing,
    )


def _there(host: Host, path: str) -> bool:
    """Tell whether a folder may be there: only that it is absent is an answer that it is not."""
    try:
        host.stat(path)
    except HostError as e:
        return e.reason is not Reason.ABSENT
    return True


def _port(host: Host, device: str, port: int, interface: str | None, *, full: bool) -> PortReading:
    folder = Folder(host, f"{CLASS}/{device}/ports/{port}")
    state = folder.value("state", parse_state)
    if isinstance(state, Missing) and state.reason is Reason.ABSENT and not _there(host, folder.path):
        return PortReading(device=device, port=port, gone=True)
    wanted = [f"counters/{n}" for n in TRAFFIC]
    if full:
        wanted += [*(f"counters/{n}" for n in ERRORS), *(f"hw_counters/{n}" for n in HW_ERRORS)]
    answers = {path.partition("/")[2]: folder.value(path, parse_counter) for path in wanted}
    if interface is not None:
        answers[CARRIER] = Folder(host, f"/sys/class/net/{interface}").value(CARRIER, parse_counter)
    counters: dict[str, int] = {}
    missing: dict[str, Missing] = {}
    for name, value in answers.items():
        if isinstance(value, int):
            counters[name] = value
        elif value.reason is not Reason.ABSENT:  # each driver has its own
            missing[name] = value
    return PortReading(
        device=device,
        port=port,
        state=state,
        phys_state=folder.value("phys_state", parse_state),
        rate_gbit_s=folder.value("rate", parse_rate),
        counters=counters,
        missing=missing,
    )
