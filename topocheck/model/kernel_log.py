"""Lines of the kernel's log, as numbers and addresses."""

from __future__ import annotations

import re

_ADDRESS = r"(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
_XID = rf"(?a)NVRM: Xid \(PCI:{_ADDRESS}\): (?P<number>[0-9]{{1,3}})\b"
_NO_SPACE = rf"(?a){_ADDRESS}: (?:BAR [0-9]{{1,2}}|bridge window|\w+)\b.*(?:no space|can't assign)"


def xid(line: str) -> tuple[str, int] | None:
    """Return (address without its function, number) of a line of NVIDIA's driver about an Xid; None for others."""
    m = re.search(_XID, line)
    return (m["address"].split(".")[0], int(m["number"])) if m else None


def no_space(line: str) -> str | None:
    """Return the address of the function of which the kernel could not place a BAR or window; None for others."""
    m = re.search(_NO_SPACE, line)
    return m["address"] if m else None


_AER = (
    rf"(?a){_ADDRESS}: (?:AER: (?:Multiple )?Uncorrect(?:ed|able) \((?P<aer>Fatal|Non-Fatal)\)"
    r"|PCIe Bus Error: severity=Uncorrect(?:ed|able) \((?P<bus>Fatal|Non-Fatal)\)"
    r"|(?P<dpc>DPC: (?:containment event|unmasked uncorrectable error)))"
)


def pcie_error(line: str) -> tuple[str, str] | None:
    """Return (address of the function that reports it, what it reports) of an uncorrectable PCIe error.

    The words are those of Linux drivers/pci/pcie/aer.c and dpc.c; None for corrected errors and for other lines.
    """
    m = re.search(_AER, line)
    if m is None:
        return None
    kind = m["aer"] or m["bus"]
    return m["address"], f"uncorrectable PCIe error ({kind.lower()})" if kind else "containment of an error (DPC)"


_NOT_STARTED = rf"(?a)NVRM: GPU {_ADDRESS}: RmInitAdapter failed!"


def not_started(line: str) -> str | None:
    """Return the address of the GPU that NVIDIA's driver could not start; None for other lines."""
    m = re.search(_NOT_STARTED, line)
    return m["address"] if m else None


NIC_TROUBLES = (
    ("power", r"insufficient power"),
    ("module", r"[Mm]odule event.*(?:error|Error|exceeded|temperature|stuck)"),
    ("command", r"timeout\. Will cause|Error \(timeout"),
    ("health", r"Health issue|health compromised|Fatal error|assert|synd 0x|bad device|[Ff]atal reset"),
)
"""What drivers of NICs report -> their words (Linux drivers/net/ethernet/mellanox/mlx5/core/{health,cmd,events}.c and
broadcom/bnxt/bnxt.c)."""
_NIC = rf"(?a)(?:mlx5_core|bnxt_en) {_ADDRESS}.*?(?:" + "|".join(f"(?P<{k}>{p})" for k, p in NIC_TROUBLES) + ")"


def nic_trouble(line: str) -> tuple[str, str] | None:
    """Return (address of the NIC, what its driver reports of it: a name of NIC_TROUBLES); None for other lines."""
    m = re.search(_NIC, line)
    if m is None:
        return None
    return m["address"], next(kind for kind, _ in NIC_TROUBLES if m[kind])
