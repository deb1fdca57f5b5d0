"""The kernel's log: `dmesg` in any of its forms, or `journalctl -k`. What it said when the machine started.

A bridge is reported again whenever its buses are laid out anew; the last counts. A ring buffer may have lost its start,
so nothing is concluded from what is not there.
"""

from __future__ import annotations

import re

from topocheck.host.live.kmsg import of_interest
from topocheck.knowledge import hypervisors
from topocheck.model.address import normalize_address
from topocheck.readers import pci_answers as pci
from topocheck.readers import pci_tree
from topocheck.readers.base import Answers, Reader, numbered

MAX_FUNCTIONS = 1 << 13
MAX_MESSAGES = 1 << 11
_STAMP = re.compile(
    r"^(?:<[0-9]+>|[a-z0-9]+\s*:[a-z]+\s*: )?"  # dmesg -r, -x
    r"(?:\[[^\]]{1,40}\] ?(?:\[\s*[TC][0-9]+\] ?)?"  # [    2.29] and, with CONFIG_PRINTK_CALLER, [ T1]
    # syslog, in any language; journalctl -o short-iso and rsyslog's own
    r"|\S{2,12} {1,2}[0-9]{1,2}\.? [0-9][0-9]:[0-9][0-9]:[0-9][0-9](?:\.[0-9]+)? \S+ kernel: (?:\[[^\]]{1,40}\] ?)?"
    r"|[0-9]{4}-[0-9][0-9]-[0-9][0-9][T ]\S+ (?:\S+ kernel: )?(?:\[[^\]]{1,40}\] ?)?"
    r"|(?:<[0-9]+>)?kernel: (?:\[[^\]]{1,40}\] ?)?"
    r"|(?=NVRM: ))"  # pasted without its stamp
    r"(?:kernel: )?"
)
_ADDRESS = r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_FUNCTION = re.compile(
    rf"pci {_ADDRESS}: \[([0-9a-f]{{4}}):([0-9a-f]{{4}})\] type [0-9a-f]{{2}} class 0x([0-9a-f]{{6}})"
)
_BRIDGE = re.compile(rf"pci {_ADDRESS}: PCI bridge to \[bus ([0-9a-f]{{2}})(?:-([0-9a-f]{{2}}))?\]")
_ROOT = re.compile(r"PCI host bridge to bus ([0-9a-f]{4,8}):([0-9a-f]{2})")
_NODE = re.compile(r"pci_bus ([0-9a-f]{4,8}):([0-9a-f]{2}): on NUMA node ([0-9]{1,4})")
_GROUP = re.compile(rf"pci {_ADDRESS}: Adding to iommu group ([0-9]{{1,6}})")
_MAKER = re.compile(r"\S*(?:,? (?:Inc\.?|Corporation|Corp\.?|Ltd\.?|Co\.,?|Technolog(?:y|ies)|Computer)(?= |$))*")
_NVRM = re.compile(r"NVRM: loading (NVIDIA UNIX .*?)\s{2,}([0-9]{3}\.[0-9.]{2,10})(\s|$)")


_KINDS = re.compile(
    r"Linux version |DMI: |Hypervisor detected: "
    r"|(?:Kernel )?[Cc]ommand line: |pci(?:_bus)? [0-9a-f]{4,8}:|NVRM: |PCI host bridge"
    r"|(?:pcieport|mlx5_core|nvidia) [0-9a-f]{4,8}:"
    r"|Loading of (?:unsigned )?module .*is rejected|Lockdown: "
)


def recognise(text: str) -> bool:
    """Tell whether a line bears the kernel's stamp, or that of syslog, and is of a kind that is read."""
    if "X.Org X Server" in text[: 1 << 16]:
        return False  # X's log has the kernel's stamp, and quotes its command line
    return any((m := _STAMP.match(line)) is not None and _KINDS.match(line, m.end()) for _, line in numbered(text))


_GOES_ON = re.compile(r"NVRM: (?:The NVIDIA .{1,80}|This PCI I/O region assigned to your NVIDIA device is invalid:)$")
"""The first line of a message of NVIDIA's driver that has several."""
MAX_GOES_ON = 3
"""Lines after the first of a message of NVIDIA's driver that say what it is about."""


def _joined(line: str, after: list[str]) -> str:
    """Return a message of NVIDIA's driver as one line; dmesg indents its further lines, syslog gives each a stamp."""
    if not _GOES_ON.match(line.rstrip()):
        return line
    out = [line.rstrip()]
    for raw in after:
        stamp = _STAMP.match(raw)
        rest = raw[stamp.end() :] if stamp is not None else raw if raw[:1].isspace() else None
        if rest is None or _GOES_ON.match(rest.strip()):
            break
        out.append(rest.strip().removeprefix("NVRM:").strip())
    return " ".join(out)


_START = re.compile(r"^.{0,120}\bLinux version [0-9]+\.[0-9]+\S* \(", re.M)


def _last_boot(text: str) -> tuple[str, int]:
    """Return the text from the last start of the machine on, and how many lines stand before it."""
    starts = [m.start() for m in _START.finditer(text) if _STAMP.match(m[0])]
    return (text[starts[-1] :], text.count("\n", 0, starts[-1])) if len(starts) > 1 else (text, 0)


def read(text: str) -> Answers:
    """Return the PCI functions as they were found, the buses of bridges, nodes, groups; kernel and options."""
    found = Answers()
    functions: dict[str, int] = {}
    bridges: dict[str, tuple[int, int]] = {}
    roots: set[tuple[int, int]] = set()
    nodes: dict[tuple[int, int], tuple[str, int]] = {}
    groups: list[str] = []
    messages: list[tuple[int, str]] = []
    text, before = _last_boot(text)
    lines = list(numbered(text))
    for at, (number, raw) in enumerate((n + before, line) for n, line in lines):
        stamp = _STAMP.match(raw)
        if stamp is None:
            continue
        line = raw[stamp.end() :]
        whole = _joined(line, [x for _, x in lines[at + 1 : at + 1 + MAX_GOES_ON]]) if "NVRM:" in line else line
        if (part := of_interest(whole)) is not None and len(messages) < MAX_MESSAGES:
            messages.append((number, part))
        if m := _FUNCTION.match(line):
            address = normalize_address(m[1])
            if address and len(functions) < MAX_FUNCTIONS and address not in functions:
                functions[address] = number
                for name, value in (("vendor", m[2]), ("device", m[3]), ("class", m[4])):
                    pci.file(found, number, address, name, f"0x{value}")
        elif m := _BRIDGE.match(line):
            bridges[normalize_address(m[1]) or ""] = (int(m[2], 16), int(m[3] or m[2], 16))
        elif m := _ROOT.match(line):
            roots.add((int(m[1], 16), int(m[2], 16)))
        elif m := _NODE.match(line):
            nodes[int(m[1], 16), int(m[2], 16)] = (m[3], number)
        elif m := _GROUP.match(line):
            address = normalize_address(m[1])
            groups.append(m[2])
            found.put(
                number, f"../../../../kernel/iommu_groups/{m[2]}", "readlink", f"{pci.DEVICES}/{address}/iommu_group"
            )
        else:
            _system(found, number, line)
    if messages:
        found.put(messages[0][0], [text for _, text in messages], "kernel_log")
    if functions:
        found.names(min(functions.values()), pci.DEVICES, list(functions), whole=False)
    if groups:
        found.names(1, "/sys/kernel/iommu_groups", groups, whole=False)
    _places(found, functions, bridges, roots, nodes)
    return found


def _system(found: Answers, number: int, line: str) -> None:
    if m := re.match(r"Linux version (\S+)", line):
        found.file(number, "/proc/version", line[:400])
        found.soft.add("read:/proc/version")
        found.file(number, "/proc/sys/kernel/osrelease", m[1])
    elif m := re.match(r"(?:Kernel command line|Command line): (.*)", line):
        found.options(number, m[1])
    elif m := re.match(r"(?:\S+ )?DMI: (.*, BIOS .*)", line):
        _firmware(found, number, m[1])
    elif m := re.match(r"Hypervisor detected: (\w+)", line):
        found.hypervisor(number, m[1])
    elif m := _NVRM.match(line):
        found.file(number, "/proc/driver/nvidia/version", f"NVRM version: {m[1]}  {m[2]}  Release Build")
        found.soft.add("read:/proc/driver/nvidia/version")  # without the date that the file has


def _firmware(found: Answers, number: int, text: str) -> None:
    """Take down `VENDOR PRODUCT/BOARD, BIOS ...` (Linux drivers/firmware/dmi_scan.c, dmi_format_ids).

    Nothing stands between vendor and product: a name by which virtual machines go tells, else the first word.
    """
    names = text.rpartition(", BIOS ")[0].rpartition("/")[0] or text.rpartition(", BIOS ")[0]
    rows = hypervisors.table()
    products = (names.find(f" {r.text}") for r in rows if r.field == "product_name")
    at = min((n for n in products if n > 0), default=0)
    at = at or max((len(r.text) for r in rows if r.field == "sys_vendor" and names.startswith(r.text)), default=0)
    at = at or _MAKER.match(names).end()  # type: ignore[union-attr]
    for field, value in (("sys_vendor", names[:at]), ("product_name", names[at:])):
        if value.strip():
            found.file(number, f"/sys/class/dmi/id/{field}", value.strip()[:80])
            found.soft.add(f"read:/sys/class/dmi/id/{field}")


def _places(
    found: Answers,
    functions: dict[str, int],
    bridges: dict[str, tuple[int, int]],
    roots: set[tuple[int, int]],
    nodes: dict[tuple[int, int], tuple[str, int]],
) -> None:
    bridges.pop("", None)
    for address, path in pci_tree.paths(functions, bridges, roots).items():
        pci.place(found, functions[address], address, path)
        parts = path.split("/")
        domain, _, bus = parts[3].removeprefix("pci").partition(":")
        told = nodes.get((int(domain, 16), int(bus, 16)))
        if told is not None:  # a function has the node of its root bus (Linux drivers/pci/probe.c, pci_device_add)
            pci.file(found, told[1], address, "numa_node", told[0])


READER = Reader(
    name="dmesg or journalctl -k",
    tells="PCI functions and their tree, NUMA nodes, IOMMU groups, kernel and its options, NVIDIA's module, and "
    "messages about GPUs, NICs and ports",
    recognise=recognise,
    read=read,
)
