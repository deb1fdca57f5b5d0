"""Text of `lspci` (pciutils), with any of -v, -vv, -vvv, -n, -nn, -k, -D, -x to -xxxx; as root or not.

Without -n or -nn there are no numbers: the class is then told by its name in pci.ids, the vendor by its name where
only one vendor bears it, the device by `Device 2bb5`, or not at all. Where pci.ids is not installed, as in many
containers, lspci writes `Class 0302: Device 10de:2335`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from topocheck.host.base import HostError
from topocheck.model.address import normalize_address
from topocheck.model.base import Missing, Reason
from topocheck.probes.pci.lspci import HEADER, Block, parse_block
from topocheck.readers import pci_answers as pci
from topocheck.readers import pci_tree
from topocheck.readers.base import Answers, Reader, numbered
from topocheck.readers.headings import is_selection

MAX_FUNCTIONS = 1 << 13
MAX_BLOCK_CHARS = 1 << 16
MAX_BLOCK_LINES = 1 << 11

CLASSES = {
    "Non-VGA unclassified device": 0x0000, "SCSI storage controller": 0x0100, "IDE interface": 0x0101,
    "RAID bus controller": 0x0104, "SATA controller": 0x0106, "Serial Attached SCSI controller": 0x0107,
    "Non-Volatile memory controller": 0x0108, "Mass storage controller": 0x0180, "Ethernet controller": 0x0200,
    "Infiniband controller": 0x0207, "InfiniBand controller": 0x0207, "Fabric controller": 0x0208,
    "Network controller": 0x0280, "VGA compatible controller": 0x0300, "3D controller": 0x0302,
    "Display controller": 0x0380, "Audio device": 0x0403, "Memory controller": 0x0580, "Host bridge": 0x0600,
    "ISA bridge": 0x0601, "PCI bridge": 0x0604, "Bridge": 0x0680, "Serial controller": 0x0700,
    "Communication controller": 0x0780, "PIC": 0x0800, "System peripheral": 0x0880, "IOMMU": 0x0806,
    "Co-processor": 0x0B40, "USB controller": 0x0C03, "InfiniBand": 0x0C06, "SMBus": 0x0C05,
    "Encryption controller": 0x1080, "Signal processing controller": 0x1180, "Performance counters": 0x1101,
    "Processing accelerators": 0x1200, "Non-Essential Instrumentation": 0x1300, "Unassigned class": 0xFF00,
}  # fmt: skip
"""Name of a class in pci.ids (https://pci-ids.ucw.cz) -> class and subclass, of those that servers have."""
VENDORS = {
    "Broadcom / LSI": 0x1000, "LSI Logic / Symbios Logic": 0x1000, "Advanced Micro Devices, Inc. [AMD/ATI]": 0x1002,
    "Advanced Micro Devices, Inc. [AMD]": 0x1022, "Texas Instruments": 0x104C, "PLX Technology, Inc.": 0x10B5,
    "NVIDIA Corporation": 0x10DE, "Xilinx Corporation": 0x10EE, "Microchip / PMC-Sierra": 0x11F8, "PMC-Sierra": 0x11F8,
    "PMC-Sierra Inc.": 0x11F8, "Microsoft Corporation": 0x1414, "Samsung Electronics Co Ltd": 0x144D,
    "Broadcom Inc. and subsidiaries": 0x14E4, "Broadcom Limited": 0x14E4, "Mellanox Technologies": 0x15B3,
    "QLogic Corp.": 0x1077, "Huawei Technologies Co., Ltd.": 0x19E5, "ASPEED Technology, Inc.": 0x1A03,
    "Amazon.com, Inc.": 0x1D0F, "Habana Labs Ltd.": 0x1DA3, "Intel Corporation": 0x8086,
}  # fmt: skip
"""Name of a vendor in pci.ids -> its id; not those names that several ids bear."""

_NUMBERS = re.compile(r"(?:.* )?\[?([0-9a-f]{4})\]?: (?:.*\[|Device )?([0-9a-f]{4}):([0-9a-f]{4})\]?(?= \(|$)")
_DUMP = re.compile(r"([0-9a-f]{2,3}):((?: [0-9a-f]{2}){16})\s*$", re.ASCII)
_REGION = re.compile(r"\s+Region ([0-5]): (Memory|I/O ports) at (\S+)(.*?)\[size=([0-9]{1,6})([KMGT]?)\]\s*$")
_SIZES = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


class _Function(msgspec.Struct):
    """One block: where it starts and what its lines are."""

    address: str
    line: int
    lines: list[str]


def recognise(text: str) -> bool:
    """Tell whether a line is of the form of lspci's, or its command names one function whose links are shown."""
    if _of_one_function(text) is not None and _SHOWN_LINK.search(text):
        return True
    return any(_is_header(m[2]) for m in re.finditer(rf"^{HEADER.pattern}", text, re.M))


_SHOWN_LINK = re.compile(
    r"^[ \t]*(LnkCap|LnkSta):[ \t]+(?:Port #[0-9]{1,3}, )?Speed ([0-9.]{1,4})GT/s(?: \([a-z]+\))?, "
    r"Width x([0-9]{1,2})\b",
    re.M,
)
_ONE = re.compile(r"\blspci\b[^|\n]{0,80}? -s ?((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\b")


def _of_one_function(text: str) -> str | None:
    """Return the function that a command above the text selects (`lspci -vvv -s 01:00.0 | grep Lnk`)."""
    m = _ONE.search(text[:400].partition("\n")[0])
    return None if m is None else normalize_address(m[1] if m[1].count(":") == 2 else f"0000:{m[1]}")


def _picked(found: Answers, address: str, lines: list[str], line: int) -> None:
    """Take down the links of a function of which somebody picked some lines by grep."""
    for n, words in enumerate(lines):
        if m := _SHOWN_LINK.match(words):
            which = "max" if m[1] == "LnkCap" else "current"
            pci.link(found, line + n, address, which, float(m[2]), int(m[3]))


def read(text: str) -> Answers:
    """Return what the functions that are listed say."""
    found = Answers()
    functions = _functions(text)
    if not functions and (one := _of_one_function(text)) is not None:
        _picked(found, one, text.split("\n")[:MAX_BLOCK_LINES], 1)
        found.names(1, pci.DEVICES, [one], whole=False)
        return found
    parsed = {a: parse_block("\n".join(f.lines)) for a, f in functions.items()}
    traits = _Listing(functions, selected=is_selection(text[:4096].partition("\n")[0]))
    for address, f in functions.items():
        _identity(found, f)
        _kernel(found, f, traits)
        _registers(found, f, parsed[address])
    first = min((f.line for f in functions.values()), default=1)
    found.names(first, pci.DEVICES, list(functions), whole=traits.whole)
    _groups(found, first, functions)
    bridges = {
        a: (b.facts.secondary_bus, b.facts.subordinate_bus)
        for a, b in parsed.items()
        if isinstance(b.facts.secondary_bus, int) and isinstance(b.facts.subordinate_bus, int)
    }
    ports = [a for a, f in functions.items() if _class_of(f.lines[0]) == 0x0604]
    whole = traits.whole and all(a in bridges for a in ports)
    for address, path in pci_tree.paths(functions, bridges, whole=whole).items():
        pci.place(found, functions[address].line, address, path)
    return found


def _functions(text: str) -> dict[str, _Function]:
    """Return the blocks by address; the longest where a function is listed several times."""
    out: dict[str, _Function] = {}
    current: _Function | None = None
    for number, raw in numbered(text + "\n"):
        line = raw.rstrip()
        m = HEADER.match(line)
        if current is not None and (line[:1].isspace() or _DUMP.match(line)):
            if len(current.lines) < MAX_BLOCK_LINES:
                current.lines.append(line[:2048])
            continue
        if current is not None:
            held = out.get(current.address)
            if held is None or len(held.lines) < len(current.lines):
                out[current.address] = current
            current = None
        if m and _is_header(m[2]) and len(out) < MAX_FUNCTIONS:
            address = normalize_address(m[1] if m[1].count(":") == 2 else f"0000:{m[1]}")
            current = _Function(address, number, [line[:2048]]) if address else None
    return out


def _is_header(words: str) -> bool:
    kind = words.partition(": ")[0]
    return ": " in words and (
        kind.partition(" [")[0] in CLASSES or re.fullmatch(r"(?:\S.{0,60} \[|Class )?[0-9a-f]{4}\]?", kind) is not None
    )


class _Listing:
    """What can be said of the listing as a whole, and so of what a block does not show."""

    def __init__(self, functions: dict[str, _Function], *, selected: bool) -> None:
        blocks = ["\n".join(f.lines) for f in functions.values()]
        self.shows_drivers = any("Kernel driver in use:" in b for b in blocks)
        self.shows_nodes = any(re.search(r"^\s+NUMA node: ", b, re.M) for b in blocks)
        self.shows_groups = any(re.search(r"^\s+IOMMU group: ", b, re.M) for b in blocks)
        # `lspci` without -s or -d lists what stands on the first root bus too.
        domains = {a.partition(":")[0] for a in functions}
        firsts = {d for d in domains if any(a.startswith(f"{d}:00:") for a in functions)}
        self.whole = "0000" in firsts and len(functions) > 1 and firsts == domains and not selected


def _class_of(header: str) -> int | None:
    words = header.partition(" ")[2]
    if m := _NUMBERS.match(words):
        return int(m[1], 16)
    kind, _, _ = words.partition(": ")
    if m := re.search(r"\[([0-9a-f]{4})\]$", kind):
        return int(m[1], 16)
    return CLASSES.get(kind)


def _identity(found: Answers, f: _Function) -> None:
    words = f.lines[0].partition(" ")[2]
    name = words.partition(": ")[2]
    code = _class_of(f.lines[0])
    vendor = device = None
    if m := _NUMBERS.match(words):
        vendor, device = int(m[2], 16), int(m[3], 16)
    else:
        maker = max((v for v in VENDORS if name.startswith(f"{v} ")), key=len, default=None)
        vendor = None if maker is None else VENDORS[maker]
        if maker is not None and (m := re.match(r"Device ([0-9a-f]{4})(?= \(|$)", name[len(maker) + 1 :])):
            device = int(m[1], 16)
    interface = re.search(r"\(prog-if ([0-9a-f]{2})\b", words)
    if code is not None:
        # Without a prog-if lspci says nothing of it where it is 0.
        pci.file(found, f.line, f.address, "class", f"0x{code:04x}{interface[1] if interface else '00'}")
    if vendor is not None:
        pci.file(found, f.line, f.address, "vendor", f"0x{vendor:04x}")
    if device is not None:
        pci.file(found, f.line, f.address, "device", f"0x{device:04x}")
    for n, line in enumerate(f.lines[1:], 1):
        if m := re.match(r"\s+Subsystem: (?:.*\[|Device )?([0-9a-f]{4}):([0-9a-f]{4})\]?$", line):
            pci.file(found, f.line + n, f.address, "subsystem_vendor", f"0x{m[1]}")
            pci.file(found, f.line + n, f.address, "subsystem_device", f"0x{m[2]}")
            break
    found.put(f.line, "\n".join(f.lines)[:MAX_BLOCK_CHARS], "lspci", f.address)


def _kernel(found: Answers, f: _Function, listing: _Listing) -> None:
    """What the kernel says of a function: driver, node, group, BARs. Nothing is concluded from a block of one line."""
    told: dict[str, int] = {}
    rows: dict[int, str] = {}
    for n, line in enumerate(f.lines[1:], 1):
        if m := re.match(r"\s+(Kernel driver in use|NUMA node|IOMMU group|Physical Slot): (\S+)", line):
            told[m[1]] = n
            if m[1] == "Kernel driver in use":
                pci.driver(found, f.line + n, f.address, m[2])
            elif m[1] == "Physical Slot":
                found.file(f.line + n, f"/sys/bus/pci/slots/{m[2]}/address", f.address[:-2])
            elif m[1] == "NUMA node":
                pci.file(found, f.line + n, f.address, "numa_node", m[2])
            else:
                path = f"../../../../kernel/iommu_groups/{m[2]}"
                found.put(f.line + n, path, "readlink", f"{pci.DEVICES}/{f.address}/iommu_group")
        elif m := _REGION.match(line):
            rows[int(m[1])] = _resource(m)
        elif m := re.match(r"\s+Initial VFs: [0-9]{1,5}, Total VFs: ([0-9]{1,5}), Number of VFs: ([0-9]{1,5})", line):
            pci.file(found, f.line + n, f.address, "sriov_totalvfs", m[1])
            pci.file(found, f.line + n, f.address, "sriov_numvfs", m[2])
    verbose = any(re.match(r"\s+(Control|Flags): ", line) for line in f.lines[1:])
    if verbose and listing.shows_drivers and "Kernel driver in use" not in told:
        pci.driver(found, f.line, f.address, None)
    if verbose and listing.shows_nodes and "NUMA node" not in told:
        pci.file(found, f.line, f.address, "numa_node", "-1")
    if verbose and listing.shows_groups and "IOMMU group" not in told:
        found.absent(f.line, "readlink", f"{pci.DEVICES}/{f.address}/iommu_group")
    regions = [line for line in f.lines if re.match(r"\s+Region [0-9]", line)]
    ends_there = bool(regions) and f.lines[-1] == regions[-1]  # a text that is cut: more lines follow the last region
    whole = len(regions) == len(rows) and "" not in rows.values() and not ends_there
    if any(re.match(r"\s+Control: ", x) for x in f.lines) and whole:
        none = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
        text = "\n".join(rows.get(i, none) for i in range(6))
        pci.file(found, f.line, f.address, "resource", text)


def _resource(m: re.Match[str]) -> str:
    """Return a region as a line of `resource`; empty where its place or size is not reported."""
    size = int(m[5]) << _SIZES[m[6]]
    flags = 0x200 if m[2] == "Memory" else 0x100
    flags |= 0x2000 if " prefetchable" in m[4] or ", prefetchable" in m[4] else 0
    flags |= 0x100000 if "64-bit" in m[4] else 0
    if m[3] == "<unassigned>":
        start, flags = 0, flags | 0x20000000
    elif re.fullmatch(r"[0-9a-f]{1,16}", m[3]):
        start = int(m[3], 16)
    else:
        return ""
    return f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}"


def _groups(found: Answers, line: int, functions: dict[str, _Function]) -> None:
    slots = [m[1] for f in functions.values() for x in f.lines if (m := re.match(r"\s+Physical Slot: (\S{1,64})", x))]
    if slots:
        found.names(line, "/sys/bus/pci/slots", [s for s in slots if "/" not in s], whole=False)
    text = [m[1] for f in functions.values() for x in f.lines if (m := re.match(r"\s+IOMMU group: ([0-9]{1,6})", x))]
    if text:
        found.names(line, "/sys/kernel/iommu_groups", text, whole=False)


def _registers(found: Answers, f: _Function, block: Block) -> None:
    """The link as sysfs has it, and the config space: its bytes where they were dumped, else the text."""
    facts = block.facts
    path = f"{pci.DEVICES}/{f.address}/config"
    dump = _dump(f.lines)
    if len(dump) >= 64:
        found.put(f.line, dump[:1024], "read", path, 1024)
        if len(dump) > 1024:
            found.put(f.line, dump, "read", path, 4096)
    elif _told(facts):
        found.put(f.line, HostError(Reason.ABSENT, "reported by lspci as text"), "read", path, 1024)
    if not any(_CAPABILITIES.match(x) for x in f.lines):
        _picked(found, f.address, f.lines, f.line)
        return
    lines = {n: i for i, x in enumerate(f.lines) for n in ("LnkCap", "LnkSta") if x.strip().startswith(f"{n}:")}
    speeds = facts.cap2_speeds_gt_s if isinstance(facts.cap2_speeds_gt_s, tuple) else ()
    # As pcie_get_speed_cap in Linux drivers/pci/pci.c: the highest of LnkCap2, else LnkCap.
    best = max(speeds) if speeds else _value(facts.cap_speed_gt_s)
    pci.link(found, f.line + lines.get("LnkCap", 0), f.address, "max", best, _value(facts.cap_width_lanes))
    now = (_value(facts.sta_speed_gt_s), _value(facts.sta_width_lanes))
    pci.link(found, f.line + lines.get("LnkSta", 0), f.address, "current", *now)
    if block.express is False or (isinstance(facts.cap_speed_gt_s, Missing) and "LnkCap" not in lines and _rc(block)):
        pci.no_link(found, f.line, f.address)


_CAPABILITIES = re.compile(r"\s+(?:Capabilities: |Status: )")
"""Lines without which a block is one that grep cut."""


def _rc(block: Block) -> bool:
    return isinstance(block.facts.port_type, str) and block.facts.port_type.startswith("rc_")


def _told(facts: Any) -> bool:
    """Tell whether the text says more of the registers than the first line of a block does."""
    told = (getattr(facts, f) for f in ("port_type", "acs_capable", "config_all_ones", "secondary_bus"))
    port, acs, gone, bus = told
    told_by_text = [x for x in (port, acs) if not (isinstance(x, Missing) and x.reason is Reason.NOT_RECORDED)]
    return bool(told_by_text) or gone is True or isinstance(bus, int)


def _value(x: Any) -> Any:
    return None if isinstance(x, Missing) else x


def _dump(lines: list[str]) -> bytes:
    """Return the bytes of -x to -xxxx, as far as they follow one another from 0."""
    out = bytearray()
    for line in lines[1:]:
        m = _DUMP.match(line)
        if m and int(m[1], 16) == len(out) and len(out) < 4096:
            out += bytes.fromhex(m[2].replace(" ", ""))
    return bytes(out)


READER = Reader(
    name="lspci (-vvv as root shows most)",
    tells="PCI tree, links, ACS, BARs, NUMA nodes, drivers",
    recognise=recognise,
    read=read,
)
