"""Names from the system's list of PCI ids (`pci.ids`, 1.4 MB), asked for by id so that only those are recorded.

The form of the file is described at its own head: a vendor is a line `10de  NVIDIA Corporation`, its devices follow,
each on a line of one tab, `2330  GH100 [H100 SXM5 80GB]`; lines of two tabs are subsystems, `#` begins a comment,
and the classes at the end begin with `C `. https://github.com/pciutils/pciids
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from topocheck.host.base import HostError
from topocheck.model.base import Reason

PATHS = (
    "/usr/share/misc/pci.ids",
    "/usr/share/hwdata/pci.ids",
    "/usr/share/pci.ids",
    "/var/lib/pciutils/pci.ids",
)

_NEXT_VENDOR = re.compile(rb"\n[^\t#\n]")


def find_names(data: bytes, ids: Iterable[str]) -> dict[str, list[str | None]]:
    """Return id (`10de:2330`) -> [vendor name, device name], None for a name that the list does not hold.

    Looks for each vendor once with a byte search, so that a list of a megabyte takes a few milliseconds. An id
    that is not of the form `vvvv:dddd` gets two Nones. Never raises.
    """
    out: dict[str, list[str | None]] = {}
    vendor, name, block, at = "", None, b"", 0
    for key in sorted(ids):  # the list is sorted too, so that one pass over it finds every vendor
        now, _, device = key.lower().partition(":")
        if now != vendor or not out:
            vendor = now
            name, block, at = _vendor(data, vendor, at)
        out[key] = [name, _entry(block, b"\n\t" + device.encode("ascii", "replace") + b"  ")]
    return out


def _vendor(data: bytes, vendor: str, at: int) -> tuple[str | None, bytes, int]:
    """Return the name of a vendor, its lines, and where they begin; looks from `at` on, then from the beginning."""
    if len(vendor) != 4 or not vendor.isalnum() or not vendor.isascii():
        return None, b"", at
    head = vendor.encode() + b"  "
    if data.startswith(head):
        start = 0
    else:
        start = data.find(b"\n" + head, at) + 1 or data.find(b"\n" + head, 0, at + len(head)) + 1
        if start == 0:
            return None, b"", at
    following = _NEXT_VENDOR.search(data, start)
    block = data[start : following.start() if following else len(data)]
    name = block.split(b"\n", 1)[0][6:].decode("utf-8", "replace").strip()
    return name or None, block, max(0, start - 1)


def _entry(block: bytes, head: bytes) -> str | None:
    if len(head) != 8:  # newline, tab, four digits, two blanks
        return None
    at = block.find(head)
    if at < 0:
        return None
    end = block.find(b"\n", at + 1)
    return block[at + len(head) : end if end >= 0 else None].decode("utf-8", "replace").strip() or None


def lookup(read_bytes: Callable[[str], bytes], ids: Iterable[str]) -> dict[str, list[str | None]]:
    """Return the names of `ids` from the first list that this machine has; `read_bytes` reads a whole file.

    Raises:
        HostError: absent, where there is no list.
    """
    for path in PATHS:
        try:
            data = read_bytes(path)
        except (OSError, HostError):
            continue
        return find_names(data, ids)
    raise HostError(Reason.ABSENT, "no pci.ids on this machine")
