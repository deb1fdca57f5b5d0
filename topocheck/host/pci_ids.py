"""Names from the system's list of PCI ids (`pci.ids`, 1.4 MB), asked for by id so that only those are recorded.

The form of the file is told at its own head: a vendor is a line `10de  NVIDIA Corporation`, its devices follow,
each on a line of one tab, `2330  GH100 [H100 SXM5 80GB]`; lines of two tabs are subsystems, `#` begins a comment,
and the classes at the end begin with `C `. https://github.com/pciutils/pciids
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from topocheck.host.base import HostError
from topocheck.model.base import Reason

PATHS = (
    "/usr/share/misc/pci.ids",
    "/usr/share/hwdata/pci.ids",
    "/usr/share/pci.ids",
    "/var/lib/pciutils/pci.ids",
)


def find_names(data: bytes, ids: Iterable[str]) -> dict[str, list[str | None]]:
    """Return id (`10de:2330`) -> [vendor name, device name], None for a name that the list does not hold.

    Looks for each vendor once with a byte search, so that a list of a megabyte takes a few milliseconds. An id
    that is not of the form `vvvv:dddd` gets two Nones. Never raises.
    """
    out: dict[str, list[str | None]] = {}
    blocks: dict[str, tuple[str | None, bytes]] = {}
    for key in ids:
        vendor, _, device = key.lower().partition(":")
        if vendor not in blocks:
            blocks[vendor] = _vendor(data, vendor)
        name, block = blocks[vendor]
        out[key] = [name, _entry(block, b"\n\t" + device.encode("ascii", "replace") + b"  ")]
    return out


def _vendor(data: bytes, vendor: str) -> tuple[str | None, bytes]:
    """Return the name of a vendor and the lines below it."""
    if len(vendor) != 4 or not vendor.isalnum() or not vendor.isascii():
        return None, b""
    head = b"\n" + vendor.encode() + b"  "
    start = 0 if data.startswith(head[1:]) else data.find(head) + 1
    if start == 0 and not data.startswith(head[1:]):
        return None, b""
    end = start
    while True:
        end = data.find(b"\n", end + 1)
        if end < 0 or data[end + 1 : end + 2] not in (b"\t", b"#", b""):
            break
    block = data[start : end if end >= 0 else len(data)]
    name = block.split(b"\n", 1)[0][6:].decode("utf-8", "replace").strip()
    return name or None, block


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
