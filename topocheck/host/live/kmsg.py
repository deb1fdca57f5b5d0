"""The kernel's log as /dev/kmsg gives it: one record per read (Linux Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import functools
import os
import re

_RECORD = 1 << 13
"""CONSOLE_EXT_LOG_MAX: a read with less room for a record gives EINVAL."""
_MOST_RECORDS = 1 << 16
_MOST_LINES = 1 << 11

_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?"
_NUMBERS = r"[0-9a-fA-Fx,:. ()\[\]\-]{0,80}"
PATTERNS = (
    rf"NVRM: Xid \(PCI:{_ADDRESS}\): [0-9]{{1,3}}",
    rf"NVRM: GPU {_ADDRESS}: (?:RmInitAdapter failed!|GPU has fallen off the bus)(?: \({_NUMBERS}\))?",
    rf"NVRM: The NVIDIA GPU {_ADDRESS} \(PCI ID: [0-9a-f]{{4}}:[0-9a-f]{{4}}\)"
    r"(?: installed in this (?:vGPU host )?system (?:is not supported by open nvidia\.ko"
    r"|requires use of the NVIDIA open kernel modules|is not supported by the NVIDIA [0-9.]{3,20} driver release"
    r"|has fallen off the bus))?",
    rf"NVRM: GPU at (?:PCI:)?{_ADDRESS} has fallen off the bus",
    r"NVRM: The NVIDIA [\w ()\-]{1,60} GPU installed in this system is supported through the NVIDIA [0-9.x]{3,12}"
    r" Legacy",
    r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: BAR[0-9] is [0-9]{1,6}M @ 0x[0-9a-f]{1,16}"
    rf" \(PCI:{_ADDRESS}\)",
    r"Loading of (?:unsigned module|module with (?:unsupported crypto|unavailable key)) is rejected",
    r"Lockdown: [\w.\-]{1,16}: unsigned module loading is restricted",
    r"NVRM: API mismatch: the (?:NVIDIA kernel module|client) has (?:the )?version [0-9.]{1,20}",
    rf"(?:pcieport|pci|nvidia|mlx5_core) {_ADDRESS}: (?:BAR [0-9]{{1,2}}(?: \[[^\]]{{0,80}}\])?|bridge window"
    r"(?: \[[^\]]{0,80}\])?)(?::| )\s?(?:no space for|can't assign;?|failed to assign)(?: (?:no space|bridge window"
    r"|\[[^\]]{0,80}\]))?(?: \[[^\]]{0,80}\])?",
    rf"(?:pcieport|pci|nvidia|mlx5_core) {_ADDRESS}: AER: (?:Correct(?:ed|able)|Uncorrect(?:ed|able)|Multiple)[\w ()\-]"
    r"{0,60}",
    rf"[\w\-]{{1,20}} {_ADDRESS}: PCIe Bus Error: severity=[\w ()\-]{{1,40}}, type=[\w ]{{1,30}}",
    rf"(?:pci|pcieport) {_ADDRESS}: DPC: [\w ,:]{{1,60}}",
    rf"mlx5_core {_ADDRESS}: (?:[\w]{{1,40}}:[0-9]{{1,5}}:?\(pid [0-9]{{1,9}}\): )?(?:\w{{1,30}}: )?(?:Health issue"
    r"|assert|device's health compromised|Fatal error|synd 0x[0-9a-f]{1,4}|handling bad device"
    r"|Detected insufficient power|[Pp]ort module event\[error\]|[A-Z_]{3,40}\(0x[0-9a-f]{1,5}\) timeout\. Will cause)"
    r"[\w .,:()'\-]{0,60}",
    rf"bnxt_en {_ADDRESS} [\w.\-]{{1,15}}: (?:Firmware fatal reset event|Error \(timeout: [0-9]{{1,8}}\))",
)
_WORDS = (
    *("NVRM", "no space for", "can't assign", "failed to assign", "AER: Correct", "AER: Uncorrect", "AER: Multiple"),
    *("PCIe Bus Error", "DPC", "mlx5_core", "bnxt_en", "Loading of", "unsigned module"),
)
"""One of them is in every line of interest; a look for a word costs a tenth of a pattern."""
_IN_RECORD = tuple(word.encode() for word in _WORDS)


@functools.cache
def _pattern() -> re.Pattern[str]:
    """Compiled when a line has one of the words: many logs have none, and it takes longer than reading them."""
    return re.compile("|".join(f"(?:{p})" for p in PATTERNS), re.ASCII)


def _one_line(text: str) -> str:
    r"""Return a message of NVIDIA's driver with several lines as one; /dev/kmsg writes a line break as \x0a."""
    if "\\x0a" not in text and "\n" not in text:
        return text
    return re.sub(r"(?:\\x0a|\n)(?:NVRM:)?[ \t]*", " ", text)


def of_interest(text: str) -> str | None:
    """Return of a line of the kernel's log the part about a GPU, NIC or port; None for every other line.

    What follows an Xid's number (a process, its name) is never taken.
    """
    m = _pattern().search(_one_line(text)) if any(word in text for word in _WORDS) else None
    return m[0].strip() if m else None


def message(record: str) -> str:
    """Return the message of a record: `6,339,5140900,-;text`, lines after the first being its dictionary."""
    head, mark, text = record.partition(";")
    line = text if mark and re.match(r"[0-9]+,[0-9]+,[0-9]+,", head, re.ASCII) else record
    return line.split("\n", 1)[0]


def read_kmsg(path: str = "/dev/kmsg") -> list[str]:
    """Return the lines of interest, oldest first.

    Raises:
        OSError: the log cannot be read (EPERM: root alone may).
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    out: list[str] = []
    try:
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(fd, _RECORD)
            except BrokenPipeError:  # overwritten while it was read; the next read goes on with what is left
                continue
            except BlockingIOError:
                break
            if not record:
                break
            for word in _IN_RECORD:
                if word in record:  # of thousands of records few are decoded
                    line = of_interest(message(record.decode("utf-8", "replace")))
                    if line is not None:
                        out.append(line)
                    break
    finally:
        os.close(fd)
    return out[-_MOST_LINES:]
