"""The texts of a PCI function's files in sysfs, parsed. Pure; nothing here raises.

What the kernel writes is made in Linux `drivers/pci/pci-sysfs.c` (`resource`, `current_link_speed`...),
`drivers/pci/probe.c` (names of speeds) and `drivers/pci/pcie/aer.c` (`aer_dev_*`).
"""

from __future__ import annotations

import re

from topocheck.model.address import normalize_address
from topocheck.model.base import Missing, Reason, is_digits, unparsable
from topocheck.model.pci import Bar, Window

_MAX_DEPTH = 1 << 9
"""Folders of a function's path: a domain has 256 buses, so that no more bridges can stand above one another."""
_SPEED = re.compile(r"([0-9]{1,3}(?:[.,][0-9]{1,3})?)\s*GT/s\b.*", re.ASCII)
_MODALIAS = (
    r"pci:v([0-9A-F]{8})d([0-9A-F]{8})sv([0-9A-F]{8})sd([0-9A-F]{8})bc([0-9A-F]{2})sc([0-9A-F]{2})i([0-9A-F]{2})"
)
_HOST_BRIDGE = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")
_RESOURCE = re.compile(r"0x([0-9a-fA-F]{1,16}) 0x([0-9a-fA-F]{1,16}) 0x([0-9a-fA-F]{1,16})")

_IORESOURCE_MEM, _IORESOURCE_PREFETCH, _IORESOURCE_MEM_64 = 0x200, 0x2000, 0x100000  # Linux include/linux/ioport.h
_IORESOURCE_TYPES, _IORESOURCE_UNSET = 0x1F00, 0x20000000


def parse_link_speed(text: str) -> float | Missing:
    """Return GT/s per lane of `2.5 GT/s`, `5 GT/s`, `5.0 GT/s PCIe` (kernel 5.7 on)... or Missing.

    `Unknown` and `Unknown speed` are the kernel's words for a function without a link: absent, as is an empty file.
    """
    text = text.strip()
    if not text or text.lower().startswith("unknown"):
        return Missing(Reason.ABSENT, text)
    m = _SPEED.fullmatch(text)
    speed = float(m[1].replace(",", ".")) if m else 0.0
    return speed if speed > 0 else unparsable(text)


def parse_link_width(text: str) -> int | Missing:
    """Return the lanes of a link, or Missing.

    0 is a function without a link, 255 the kernel's "unknown" (PCIE_LNK_WIDTH_UNKNOWN), 63 what a config space
    of all ones gives, that is a device that no longer answers. Widths the standard does not have are unparsable.
    """
    text = text.strip()
    if not text or text in ("0", "255"):
        return Missing(Reason.ABSENT, f"width {text}" if text else "")
    if text == "63":
        return Missing(Reason.UNPARSABLE, "width 63: the config space reads all ones")
    return int(text) if text in ("1", "2", "4", "8", "12", "16", "32") else unparsable(text)


def parse_hex(text: str) -> int | Missing:
    """Return a number with the prefix 0x, as `vendor`, `class` and `revision` give it."""
    m = re.fullmatch(r"0x([0-9a-fA-F]{1,8})", text.strip())
    return int(m[1], 16) if m else unparsable(text)


def parse_numa_node(text: str) -> int | Missing:
    """Return a NUMA node; -1, with which the kernel says that the firmware did not tell, is absent."""
    text = text.strip()
    if text == "-1":
        return Missing(Reason.ABSENT, "the firmware does not say (-1)")
    return int(text) if is_digits(text, 5) else unparsable(text)


def parse_modalias(text: str) -> tuple[int, int, int, int, int] | Missing:
    """Return (vendor, device, subsystem vendor, subsystem device, 24-bit class) of `pci:v000010DEd...`."""
    m = re.fullmatch(_MODALIAS, text.strip())
    if not m:
        return unparsable(text)
    return int(m[1], 16), int(m[2], 16), int(m[3], 16), int(m[4], 16), int(m[5] + m[6] + m[7], 16)


def parse_chain(path: str) -> tuple[str, ...]:
    """Return the place of a function in the tree from its resolved path: host bridge first, the function last.

    Other elements of the path (the parent of a host bridge on Arm, the root bus below a VMD function, `pci0001:00`
    of Hyper-V below its VMBUS device) are left out where they are neither a PCI address nor a host bridge; a host
    bridge in the middle, which a VMD domain has, stays, so that the chain runs through the VMD function. Empty
    where the path begins with no host bridge: a recording that lost its links.
    """
    out = []
    if path.count("/") > _MAX_DEPTH:
        return ()
    for part in path.split("/"):
        if _HOST_BRIDGE.fullmatch(part):
            out.append(part.lower())
        elif out and (address := normalize_address(part)):
            out.append(address)
    return tuple(out) if len(out) > 1 else ()


def parse_resource(text: str) -> tuple[Bar, ...] | Missing:
    """Return the BARs in use (lines 0 to 5 of `resource`: start, end and flags; PCI base specification 7.5.1.2.1).

    A 64-bit BAR takes two lines, the second empty. A line with flags of memory or I/O and without addresses is one
    that the kernel hides from this user; then nothing can be said of sizes: denied.
    """
    bars = []
    hidden = False
    for line, words in enumerate(text.splitlines()[:6]):
        m = _RESOURCE.fullmatch(words.strip())
        if not m:
            return unparsable(words)
        start, end, flags = (int(g, 16) for g in m.groups())
        if start == end == 0 or end < start:
            hidden |= bool(flags & _IORESOURCE_TYPES) and start == end == 0
            continue
        bars.append(
            Bar(
                line=line,
                size_bytes=end - start + 1,
                prefetchable=bool(flags & _IORESOURCE_PREFETCH and flags & _IORESOURCE_MEM),
                is_64bit=bool(flags & _IORESOURCE_MEM_64),
                assigned=not flags & _IORESOURCE_UNSET,
            )
        )
    if hidden and not bars:
        return Missing(Reason.DENIED, "addresses are hidden from this user, or the BARs were not assigned")
    return tuple(bars)


_BRIDGE_WINDOWS = 4
"""Lines at the end of a bridge's `resource` that are its windows (PCI_BRIDGE_RESOURCE_NUM, include/linux/pci.h)."""


def parse_windows(text: str) -> tuple[Window, ...] | Missing:
    """Return the memory windows of a bridge: the last four lines of its `resource`, I/O and empty ones left out.

    Which line is the first depends on the kernel: six BARs and the ROM come before, and six more of SR-IOV where the
    kernel was built with it (CONFIG_PCI_IOV); `resource_show` in drivers/pci/pci-sysfs.c prints up to the last.
    """
    rows = text.splitlines()
    if len(rows) < 7 + _BRIDGE_WINDOWS:
        return unparsable(f"resource of {len(rows)} lines")
    first = len(rows) - _BRIDGE_WINDOWS
    windows = []
    hidden = False
    for line, words in enumerate(rows[first:], first):
        m = _RESOURCE.fullmatch(words.strip())
        if not m:
            return unparsable(words)
        start, end, flags = (int(g, 16) for g in m.groups())
        if not flags & _IORESOURCE_MEM or end < start:
            continue
        if start == end == 0:
            hidden = True
            continue
        windows.append(
            Window(line, end - start + 1, bool(flags & _IORESOURCE_PREFETCH), bool(flags & _IORESOURCE_MEM_64))
        )
    if hidden and not windows:
        return Missing(Reason.DENIED, "addresses are hidden from this user, or no window was assigned")
    return tuple(windows)


def parse_aer(text: str) -> tuple[int, dict[str, int]] | Missing:
    """Return (total, named counters that are not zero) of an `aer_dev_*` file; lines of other forms are skipped.

    The total is the file's own `TOTAL_ERR_*` line, or the sum where it has none.
    """
    counters: dict[str, int] = {}
    total: int | None = None
    lines = 0
    for line in text.splitlines():
        name, _, number = line.strip().rpartition(" ")
        if not name or not is_digits(number) or len(number) > 20:
            continue
        lines += 1
        if name.startswith("TOTAL_ERR"):
            total = int(number)
        elif int(number):
            counters[name.strip()[:40]] = int(number)
    if not lines:
        return unparsable(text)
    return sum(counters.values()) if total is None else total, counters
