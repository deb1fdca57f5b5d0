"""What NVIDIA's kernel module says under /proc/driver/nvidia, and its device files."""

from __future__ import annotations

import re
from typing import Any

from topocheck.host.base import Host, HostError
from topocheck.model.address import normalize_address
from topocheck.model.base import Missing, unparsable
from topocheck.probes.sysfs_reader import list_or_missing, parse_int, text_or_missing

PROC = "/proc/driver/nvidia"
_MAX_GPUS = 256
_MAX_NVSWITCHES = 64
_VERSION = re.compile(r"\b(\d{3}\.\d{2,3}(?:\.\d{1,3})?)\b", re.ASCII)

PARAMETERS = tuple(
    """
    EnableResizableBar RegistryDwords RegistryDwordsPerDevice DmaRemapPeerMmio GrdmaPciTopoCheckOverride NvLinkDisable
    EnablePCIERelaxedOrderingMode EnablePCIeGen3 EnableStreamMemOPs EnableGpuFirmware OpenRmEnableUnsupportedGpus
    EnableUserNUMAManagement CoherentGPUMemoryMode ImexChannelCount CreateImexChannel0 ExcludedGpus GpuBlacklist
    DynamicPowerManagement RmNvlinkBandwidth RmNvlinkBandwidthLinkCount
    """.split()
)


def parse_version(text: str) -> tuple[str | Missing, str | Missing]:
    """Return (flavor, version) of /proc/driver/nvidia/version.

    Its first line says `NVIDIA UNIX Open Kernel Module for x86_64  580.159.04` or `NVIDIA UNIX x86_64 Kernel
    Module  535.183.01`; flavor is open or proprietary.
    """
    line = next((line for line in text.splitlines() if line.startswith("NVRM version:")), "")
    if "Kernel Module" not in line:
        return unparsable(text), unparsable(text)
    m = _VERSION.search(line)
    return "open" if "Open Kernel Module" in line else "proprietary", m[1] if m else unparsable(line)


def parse_colon_lines(lines: list[str]) -> dict[str, str]:
    """Return name -> value of `Name: value` lines, quotes around a value taken off."""
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip().strip('"') for name, sep, value in pairs if sep}


def read_driver(host: Host, raw: dict[str, str]) -> dict[str, Any]:
    """Return the fields of SystemFacts that the module tells; each is missing alone."""
    flavor: str | Missing
    version: str | Missing
    text = text_or_missing(host, f"{PROC}/version")
    if isinstance(text, Missing):
        flavor = version = text
        raw[f"{PROC}/version"] = f"!{text}"
    else:
        flavor, version = parse_version(text)
        raw[f"{PROC}/version"] = text.splitlines()[0].strip() if text else ""
    out: dict[str, Any] = {"nvidia_module_flavor": flavor, "nvidia_module_version": version}
    if not isinstance(text, Missing):
        out["nvidia_params"] = _parameters(host, raw)
        out["nvidia_gpu_minors"], out["nvidia_gpus_excluded"] = _gpus(host)
    return out


def _parameters(host: Host, raw: dict[str, str]) -> dict[str, str]:
    try:
        found = parse_colon_lines(host.read_lines(f"{PROC}/params", *(f"{p}:" for p in PARAMETERS)))
    except HostError:
        return {}
    raw |= {f"{PROC}/params {name}": value for name, value in found.items()}
    return found


def _gpus(host: Host) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return (address -> minor, excluded addresses); only those lines are asked for, as others identify the GPU."""
    minors: dict[str, int] = {}
    excluded = []
    names = list_or_missing(host, f"{PROC}/gpus")
    for name in host.at_most([] if isinstance(names, Missing) else names, _MAX_GPUS, f"names in {PROC}/gpus"):
        address = normalize_address(name)
        try:
            lines = host.read_lines(f"{PROC}/gpus/{name}/information", "Device Minor:", "GPU Excluded:")
        except HostError:
            continue
        told = parse_colon_lines(lines)
        minor = parse_int(told.get("Device Minor", ""))
        if address and isinstance(minor, int):
            minors[address] = minor
        if address and told.get("GPU Excluded", "").lower() == "yes":
            excluded.append(address)
    return minors, tuple(excluded)


def nvswitch_devices(host: Host) -> tuple[str, ...] | Missing:
    """Return the NVSwitch device files, `/dev/nvidia-nvswitch0` on; absent where there is none."""
    out: list[str] = []
    for number in range(_MAX_NVSWITCHES):
        path = f"/dev/nvidia-nvswitch{number}"
        try:
            host.stat(path)
        except HostError as e:
            return tuple(out) or e.missing()
        out.append(path)
    return tuple(out)
