"""Answers about RDMA devices and ports, in the form that sysfs has (Linux drivers/infiniband/core/sysfs.c)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence

from topocheck.readers.base import Answers

CLASS = "/sys/class/infiniband"
_STATES = {"down": "1: DOWN", "init": "2: INIT", "initializing": "2: INIT", "initialize": "2: INIT",
           "armed": "3: ARMED", "active": "4: ACTIVE", "active_defer": "5: ACTIVE_DEFER"}  # fmt: skip
_PHYSICAL = {"sleep": "1: Sleep", "polling": "2: Polling", "disabled": "3: Disabled",
             "portconfigurationtraining": "4: PortConfigurationTraining", "linkup": "5: LinkUp",
             "linkerrorrecovery": "6: LinkErrorRecovery", "phytest": "7: Phy Test"}  # fmt: skip
"""Words of ibstat, ibv_devinfo and rdma, without `PORT_`, blanks and `_` -> those of the kernel."""


def file(found: Answers, line: int, device: str, name: str, text: str) -> None:
    """Take down what a file of a device says."""
    found.file(line, f"{CLASS}/{device}/{name}", text)


def port(found: Answers, line: int, device: str, number: int, name: str, text: str) -> None:
    """Take down what a file of a port says."""
    file(found, line, device, f"ports/{number}/{name}", text)


def state(found: Answers, line: int, device: str, number: int, word: str) -> None:
    """Take down the state of a port, of any spelling; one that is not known is left out."""
    if kernel := _STATES.get(word.lower().removeprefix("port_")):
        port(found, line, device, number, "state", kernel)


def physical(found: Answers, line: int, device: str, number: int, word: str) -> None:
    """Take down the physical state of a port."""
    if kernel := _PHYSICAL.get(re.sub(r"[ _]", "", word.lower())):
        port(found, line, device, number, "phys_state", kernel)


def layer(found: Answers, line: int, device: str, number: int, word: str) -> None:
    """Take down the link layer of a port; a word that the kernel does not have is left out."""
    if word in ("InfiniBand", "Ethernet", "Unspecified", "Unknown"):
        port(found, line, device, number, "link_layer", word)


def rate(found: Answers, line: int, device: str, number: int, gbit_s: float) -> None:
    """Take down the rate of a port in Gb/s."""
    port(found, line, device, number, "rate", f"{gbit_s:g} Gb/sec")


MAX_GIDS = 256


def gid(found: Answers, line: int, device: str, number: int, index: int, text: str, kind: str) -> None:
    """Take down a GID of a port, and its type where the text has it."""
    port(found, line, device, number, f"gids/{index}", text)
    if kind:
        port(found, line, device, number, f"gid_attrs/types/{index}", {"RoCE v1": "IB/RoCE v1"}.get(kind, kind))


def gid_lists(found: Answers, line: int, gids: Mapping[tuple[str, int], Sequence[int]]) -> None:
    """Take down which GIDs each (device, port) has; programs leave out empty ones, and a text may be cut."""
    for (device, number), indices in gids.items():
        names = [str(i) for i in indices]
        found.names(line, f"{CLASS}/{device}/ports/{number}/gids", names, whole=False)


def gid_text(text: str) -> str | None:
    """Return a GID as the kernel writes it, from any way to write an IPv6 address (`::ffff:192.0.2.1`)."""
    try:
        return ipaddress.IPv6Address(text).exploded
    except ValueError:
        return None


def guid(text: str) -> str | None:
    """Return a GUID in groups of four, from `0x0200000000000001` or with colons."""
    digits = text.lower().removeprefix("0x").replace(":", "")
    if not re.fullmatch(r"[0-9a-f]{16}", digits):
        return None
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def address(found: Answers, line: int, device: str, pci: str) -> None:
    """Take down the PCI function of a device; where that is in the tree, its own answers say."""
    found.put(line, f"/sys/bus/pci/devices/{pci}", "realpath", f"{CLASS}/{device}/device")
