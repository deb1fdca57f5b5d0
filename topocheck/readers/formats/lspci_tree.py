"""The tree of `lspci -t` and `-tv`, `-tnn`...: the place of every function, and ids where they are printed."""

from __future__ import annotations

import re

from topocheck.model.address import normalize_address
from topocheck.readers import pci_answers as pci
from topocheck.readers.base import Answers, Reader, numbered
from topocheck.readers.formats.lspci import VENDORS

_ROOT = re.compile(r"^[ |]*[-+\\]+-?\[[0-9a-f]{4,8}:[0-9a-f]{2}\]-", re.M)
_TOKEN = re.compile(
    r"\[([0-9a-f]{4,8}):([0-9a-f]{2})\]"
    r"|\[([0-9a-f]{2})(?:-[0-9a-f]{2})?\]"
    r"|([0-9a-f]{2}\.[0-7])(?=[\s-]|$)"
)
_DRAWN = re.compile(r"[-+|\\ ]*")
MAX_FUNCTIONS = 1 << 13


def recognise(text: str) -> bool:
    """Tell whether a root bus is drawn in the text."""
    return _ROOT.search(text) is not None


def read(text: str) -> Answers:
    """Return functions and their places. Each bus is drawn to the right of the one above it."""
    found = Answers()
    buses: list[tuple[int, str, str]] = []  # (column, domain:bus, path of what the bus hangs on)
    addresses: dict[str, int] = {}
    for number, line in numbered(text):
        if not buses and not _ROOT.match(line):
            continue
        at, last = 0, ""
        while len(addresses) < MAX_FUNCTIONS:
            drawn = _DRAWN.match(line, at)
            at = drawn.end() if drawn else at
            m = _TOKEN.match(line, at)
            if m is None:
                break
            if m[4] is None:
                _open_bus(buses, m, last)
            else:
                while buses and buses[-1][0] > m.start():
                    buses.pop()
                address = normalize_address(f"{buses[-1][1]}:{m[4]}") if buses else None
                if address is None:
                    break
                last = f"{buses[-1][2]}/{address}"
                addresses[address] = number
                if len(address) == len("0000:00:00.0"):  # a longer domain is a VMD's, drawn by itself
                    pci.place(found, number, address, last)
                if line[m.end() : m.end() + 2] == "  ":
                    _identity(found, number, address, line[m.end() :].strip())
                    break
            at = m.end()
    found.names(min(addresses.values(), default=1), pci.DEVICES, list(addresses), whole=False)
    return found if addresses else Answers()


def _open_bus(buses: list[tuple[int, str, str]], m: re.Match[str], bridge: str) -> None:
    if m[1] is not None:
        buses.clear()
        domain = f"{int(m[1], 16):04x}"
        buses.append((m.start(), f"{domain}:{m[2]}", f"/sys/devices/pci{domain}:{m[2]}"))
    elif bridge and buses:
        domain = buses[-1][1].partition(":")[0]
        buses.append((m.start(), f"{domain}:{m[3]}", bridge))


def _identity(found: Answers, number: int, address: str, words: str) -> None:
    # In brackets with -nn; `Device 10de:2335` where pci.ids is not installed.
    if m := re.search(r"(?:\[|^Device )([0-9a-f]{4}):([0-9a-f]{4})\]?$", words):
        pci.file(found, number, address, "vendor", f"0x{m[1]}")
        pci.file(found, number, address, "device", f"0x{m[2]}")
        return
    maker = max((v for v in VENDORS if words.startswith(f"{v} ")), key=len, default=None)
    if maker is not None:
        pci.file(found, number, address, "vendor", f"0x{VENDORS[maker]:04x}")
        if m := re.fullmatch(r"Device ([0-9a-f]{4})", words[len(maker) + 1 :]):
            pci.file(found, number, address, "device", f"0x{m[1]}")


READER = Reader(name="lspci -tv", tells="the PCI tree", recognise=recognise, read=read)
