"""The few questions that psutil answers, as plain values."""

from __future__ import annotations

import socket
from collections.abc import Callable

from topocheck.host.base import Answer, HostError
from topocheck.model.base import Reason

_FAMILIES = {int(socket.AF_INET): "inet", int(socket.AF_INET6): "inet6", int(socket.AF_PACKET): "link"}


def ask(call: str) -> Answer:
    """Return what psutil said.

    `cpu_count_physical`, `cpu_count_logical`: a number. `virtual_memory`: {total, available} in bytes.
    `net_addresses`: interface -> [[family, address], ...] with family inet, inet6 or link (a MAC);
    `net_netmasks`: interface -> [[family, address, netmask], ...]; `net_stats`: interface -> {up, speed_mbit_s, mtu}.

    Raises:
        HostError: psutil is not there, does not know, or has no such call here.
    """
    answer = _CALLS.get(call)
    if answer is None:
        raise HostError(Reason.UNSUPPORTED, f"psutil: no such question: {call}")
    try:
        value = answer()
    except ImportError:
        raise HostError(Reason.ABSENT, "psutil is not installed") from None
    except NotImplementedError as e:
        raise HostError(Reason.UNSUPPORTED, f"psutil: {e}") from None
    if value is None:
        raise HostError(Reason.ABSENT, f"psutil: {call}")
    return value


def _cpu_count_physical() -> Answer:
    import psutil

    return psutil.cpu_count(logical=False)


def _cpu_count_logical() -> Answer:
    import psutil

    return psutil.cpu_count(logical=True)


def _virtual_memory() -> Answer:
    import psutil

    memory = psutil.virtual_memory()
    return {"total": memory.total, "available": memory.available}


def _net_netmasks() -> Answer:
    import psutil

    return {
        name: [[_FAMILIES[int(a.family)], a.address, a.netmask or ""] for a in entries if int(a.family) in _FAMILIES]
        for name, entries in sorted(psutil.net_if_addrs().items())
    }


def _net_addresses() -> Answer:
    return {name: [entry[:2] for entry in entries] for name, entries in _net_netmasks().items()}


def _net_stats() -> Answer:
    import psutil

    return {
        name: {"up": s.isup, "speed_mbit_s": s.speed, "mtu": s.mtu} for name, s in sorted(psutil.net_if_stats().items())
    }


_CALLS: dict[str, Callable[[], Answer]] = {
    "cpu_count_physical": _cpu_count_physical,
    "cpu_count_logical": _cpu_count_logical,
    "virtual_memory": _virtual_memory,
    "net_addresses": _net_addresses,
    "net_netmasks": _net_netmasks,
    "net_stats": _net_stats,
}
