"""NCCL's rules by version: everything here is looked up in `knowledge/data/nccl_*.tsv`; no branch names a machine."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from topocheck.knowledge import nccl_rules as rules
from topocheck.knowledge.nccl import Version
from topocheck.knowledge.nccl_rules import at_version, has

__all__ = ["has"]

PATH_TYPES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Path types, closest first, as in 2.30.7 (src/graph/topo.h). Older versions know fewer and order P2C and PXN
otherwise (`nccl_path_orders.tsv`); what they lack never comes up there, so one order serves the comparisons."""

RANK = {name: i for i, name in enumerate(PATH_TYPES)}
"""Path type -> its place in PATH_TYPES; smaller is closer."""


def rank(path_type: str) -> int:
    """Return the place of a path type in PATH_TYPES; smaller is closer."""
    return RANK[path_type]


def worst(types: Iterable[str]) -> str:
    """Return the farthest of some path types; LOC for none."""
    return max(types, key=rank, default="LOC")


K = TypeVar("K")


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """What NCCL looks at of a CPU: arch as in its XML (x86_64, arm64, ppc64), CPUID vendor, family, model."""

    arch: str = ""
    vendor: str = ""
    family: int | None = None
    model: int | None = None

    @property
    def vendor_key(self) -> str:
        """The vendor under the name of the data files: both Zhaoxin ids are one."""
        return "Zhaoxin" if self.vendor in ("CentaurHauls", "  Shanghai  ") else self.vendor


def model_class(cpu: Cpu, version: Version) -> str:
    """Return the class in which a version puts a CPU model (BDW, SKL, SRP, ERP, ...); empty where it has none."""
    for r in rules.CPU_MODELS.rows():
        if r.vendor != cpu.vendor_key or r.from_version > version:
            continue
        if r.family in ("*", cpu.family) and (cpu.model or 0) >= r.model_from:
            return r.model_class
    return ""


class Rule(msgspec.Struct, frozen=True):
    """A value that a version's rules give, and where the rule stands."""

    value: str
    source: str


@functools.cache
def p2p_level(version: Version, cpu: Cpu, cpus: int, gpus: int) -> Rule:
    """Return the farthest path type with which a version uses P2P by default.

    `cpus` and `gpus` are counted in the topology of the communicator, not in the machine.
    """
    asked = (cpu.arch, cpu.vendor_key, model_class(cpu, version), cpus)
    for r in at_version(rules.P2P_LEVELS.rows(), version):
        fits = all(cell in ("*", v) for cell, v in zip((r.arch, r.vendor, r.model_class, r.cpus), asked, strict=True))
        if fits and (r.max_gpus == "*" or gpus <= r.max_gpus):
            return Rule(r.level, r.source)
    return Rule("PXB", "no rule for this version")


@functools.cache
def gdr_level(version: Version, *, c2c: bool) -> tuple[Rule, bool]:
    """Return the default distance of GPUDirect RDMA, and whether a C2C exception lets pairs in beyond it.

    `c2c` is NCCL_NET_GDR_C2C as in force.
    """
    found = at_version(rules.GDR_LEVELS.rows(), version)
    if not found:
        return Rule("PXB", "no rule for this version"), False
    r = found[0]
    return Rule(r.level if c2c else r.c2c_off, r.source), r.c2c_exception and c2c


@functools.cache
def peermem_files(version: Version) -> tuple[str, ...]:
    """Return the files of which one must be readable for a version to see the peer-memory module."""
    found = at_version(rules.PEERMEM_FILES.rows(), version)
    return found[0].files if found else ()


def _newest(rows: Iterable[tuple[K, Version, float]], version: Version) -> dict[K, float]:
    """Return key -> value, each as of its newest version not above `version`; one older than all takes the oldest."""
    at_least = max(version, rules.OLDEST_RATES)
    return {key: value for key, since, value in sorted(rows, key=lambda r: r[1]) if since <= at_least}


@functools.cache
def _other_rates(version: Version) -> dict[str, float]:
    return _newest(((r.what, r.from_version, r.gb_s) for r in rules.OTHER_RATES.rows()), version)


@functools.cache
def _nvlink_rates(version: Version) -> dict[int | None, float]:
    return _newest(((r.compute_capability, r.from_version, r.gb_s) for r in rules.NVLINK_RATES.rows()), version)


@functools.cache
def _pcie_rates(version: Version) -> dict[str | None, float]:
    """Return GB/s a lane by the beginning of the speed's text, in the order of the file; None for any other text."""
    found = _newest(((r.speed, r.from_version, r.gb_s) for r in rules.PCIE_RATES.rows()), version)
    return {r.speed: found[r.speed] for r in rules.PCIE_RATES.rows() if r.speed in found}


@functools.cache
def _cpu_rates(version: Version) -> dict[tuple[str, str, str], float]:
    rows = (((r.arch, r.vendor, r.model_class), r.from_version, r.gb_s) for r in rules.CPU_RATES.rows())
    return _newest(rows, version)


def local_gb_s(version: Version) -> float:
    """Return the bandwidth NCCL gives to staying in a device."""
    return _other_rates(version)["local"]


def mlopart_gb_s(version: Version) -> float:
    """Return the bandwidth between two partitions of one GPU, which the versions from 2.30.7 on know."""
    return _other_rates(max(version, (2, 30, 7)))["partition"]


@functools.cache
def nvlink_gb_s(sm: int, version: Version) -> float:
    """Return the bandwidth a version gives to one NVLink of a GPU, by its compute capability (90 for 9.0)."""
    table = _nvlink_rates(version)
    if sm in table:
        return table[sm]
    # Only 8.6 has a row of its own; 8.7 and 8.9 count as 8.0 (ncclTopoNVLinkBw, src/graph/topo.h).
    steps = sorted((k for k in table if k not in (None, 86)), reverse=True)
    return next((table[k] for k in steps if sm >= k), table[None])


@functools.cache
def pcie_gb_s(speed: str | None, width: int | None, version: Version) -> float:
    """Return the bandwidth of a PCIe link from the texts of the topology file; width 0 or none counts as 16.

    NCCL looks whether the text begins with one it knows (`kvConvertToInt`, src/graph/xml.h), so `32 GT/s PCIe/s`
    is 32 GT/s; a text it does not know counts as 8 GT/s.
    """
    table = _pcie_rates(version)
    lane = next((v for k, v in table.items() if k is not None and (speed or "").startswith(k)), table[None])
    return lane * (width or 16)


def knows_speed(speed: str, version: Version) -> bool:
    """Tell whether a speed text is one that NCCL converts."""
    return any(speed.startswith(k) for k in _pcie_rates(version) if k is not None)


@functools.cache
def cpu_gb_s(cpu: Cpu, version: Version) -> float:
    """Return the bandwidth between two CPU nodes of this kind: of the row that names most of them."""
    table = _cpu_rates(version)
    vendor, model = cpu.vendor_key, model_class(cpu, version)
    for key in ((cpu.arch, vendor, model), (cpu.arch, vendor, "*"), (cpu.arch, "*", "*")):
        if key in table:
            return table[key]
    return table["*", "*", "*"]


def nic_gb_s(speed_mbit_s: int) -> float:
    """Return the bandwidth of a NIC from its speed in Mb/s; 10 Gb/s where that is not above zero."""
    return speed_mbit_s / 8000 if speed_mbit_s > 0 else _other_rates(rules.OLDEST_RATES)["nic"]


def intel_overhead(version: Version) -> float:
    """Return by how much P2P through an Intel host bridge costs more than elsewhere."""
    return rules.number("intel_p2p_overhead", version, 1.2)
