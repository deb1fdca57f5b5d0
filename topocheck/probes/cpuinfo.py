"""The first processor of /proc/cpuinfo, in the spellings of x86, Arm and Power."""

from __future__ import annotations

import re

from topocheck.model.base import small_number

CPUINFO_BYTES = 4096
"""Enough for one block, flags included; the whole file of a large server is a megabyte and wakes every CPU."""

ARM_IMPLEMENTERS = {0x41: "ARM", 0x42: "Broadcom", 0x43: "Cavium", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA",
                    0x50: "APM", 0x51: "Qualcomm", 0x53: "Samsung", 0x61: "Apple", 0xC0: "Ampere"}  # fmt: skip
"""MIDR_EL1 bits 31:24 (Linux arch/arm64/include/asm/cputype.h), as `CPU implementer` gives them."""


def parse_cpuinfo(text: str) -> dict[str, str]:
    """Return name -> text of the first block; the names are the kernel's own. Never raises."""
    out: dict[str, str] = {}
    for line in text.splitlines():
        name, sep, value = line.partition(":")
        name = name.strip()
        if name == "processor" and "processor" in out:
            break
        if sep and name and name not in out:
            out[name] = value.strip()
    return out


def cpu_vendor(info: dict[str, str]) -> str | None:
    """Return `GenuineIntel`, `AuthenticAMD`... (x86), the implementer's name (Arm), `IBM` (Power), or None."""
    if vendor := info.get("vendor_id"):
        return vendor
    if m := re.fullmatch(r"0x([0-9a-fA-F]{1,4})", info.get("CPU implementer", "")):
        code = int(m[1], 16)
        return ARM_IMPLEMENTERS.get(code, f"Arm implementer 0x{code:x}")
    return "IBM" if info.get("cpu", "").startswith("POWER") else None


def cpu_name(info: dict[str, str]) -> str | None:
    """Return the model name: `model name` (x86, some Arm), `cpu` (Power), or None."""
    return info.get("model name") or info.get("cpu") or None


def _number(text: str) -> int | None:
    text = text.strip()
    if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text):
        return int(text, 16)
    return small_number(text)


def cpu_family(info: dict[str, str]) -> int | None:
    """Return the family: `cpu family` (x86), `CPU architecture` (Arm), or None."""
    return _number(info.get("cpu family", info.get("CPU architecture", "")))


def cpu_model(info: dict[str, str]) -> int | None:
    """Return the model: `model` (x86), the part number `CPU part` (Arm, 0xd4f is Neoverse V2), or None."""
    if "CPU part" in info:
        return _number(info["CPU part"])
    return _number(info.get("model", ""))


def flags(info: dict[str, str]) -> frozenset[str]:
    """Return the CPU's flags (`flags` on x86, `Features` on Arm)."""
    return frozenset(info.get("flags", info.get("Features", "")).split())
