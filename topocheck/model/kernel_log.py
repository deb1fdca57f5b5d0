"""Lines of the kernel's log, as numbers and addresses."""

from __future__ import annotations

import enum
import re

import msgspec

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


OFF_THE_BUS = 79
"""The Xid of a GPU that has fallen off the bus (NVIDIA, Xid Errors)."""
_LOST = rf"(?a)NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?{_ADDRESS}(?!\S*\w).*has fallen off the bus"


def lost(line: str) -> str | None:
    """Return the address, without its function, of a GPU that is no longer on the bus, by an Xid or in words.

    None for other lines. The words are those of open-gpu-kernel-modules (kernel-open/nvidia/nv-pci.c and
    src/nvidia/src/kernel/gpu/gpu_access.c).
    """
    if (found := xid(line)) is not None:
        return found[0] if found[1] == OFF_THE_BUS else None
    m = re.search(_LOST, line)
    return m["address"].split(".")[0] if m else None


class Unusable(enum.StrEnum):
    """Why NVIDIA's driver does not use a GPU, in its own words."""

    NEEDS_PROPRIETARY = "not supported by the open kernel module"
    NEEDS_OPEN = "supported by the open kernel module only"
    RELEASE = "not supported by this release of the driver"
    LEGACY = "supported by an older branch of the driver only"
    NO_BAR = "its memory windows are not assigned"


class Refusal(msgspec.Struct, frozen=True):
    """What the driver says of a GPU that it does not use: why, the GPU's address where it is named, the branch."""

    why: Unusable
    address: str | None = None
    branch: str = ""


_REFUSED = (
    (
        rf"(?a)NVRM: The NVIDIA GPU {_ADDRESS} .*is not supported by open nvidia\.ko",
        Unusable.NEEDS_PROPRIETARY,
    ),
    (rf"(?a)NVRM: The NVIDIA GPU {_ADDRESS} .*requires use of the NVIDIA open kernel", Unusable.NEEDS_OPEN),
    (
        rf"(?a)NVRM: The NVIDIA GPU {_ADDRESS} .*is not supported by the NVIDIA (?P<branch>[0-9.]+) driver",
        Unusable.RELEASE,
    ),
    (r"(?a)NVRM: The NVIDIA .* is supported through the NVIDIA (?P<branch>[0-9.x]+) Legacy", Unusable.LEGACY),
    (rf"(?a)NVRM: This PCI I/O region .* is invalid: BAR[0-9] is 0M @ 0x0+ \(PCI:{_ADDRESS}\)", Unusable.NO_BAR),
)
"""Messages of NVIDIA's kernel module (open-gpu-kernel-modules, kernel-open/nvidia/nv-pci.c and nv.c)."""


def refusal(line: str) -> Refusal | None:
    """Return why NVIDIA's driver does not use a GPU; None for other lines."""
    for pattern, why in _REFUSED:
        if m := re.search(pattern, line):
            told = m.groupdict()
            return Refusal(why, told.get("address"), told.get("branch") or "")
    return None


def module_rejected(line: str) -> bool:
    """Tell whether the kernel did not load a module because of its signature (Linux kernel/module/signing.c)."""
    return (
        re.search(r"Loading of (?:unsigned module|module with .*) is rejected|unsigned module loading", line)
        is not None
    )


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
