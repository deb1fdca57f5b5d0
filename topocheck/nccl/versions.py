"""NCCL's rules by version: everything here is looked up in `knowledge/data/nccl_*.tsv`; no branch names a machine."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec

from topocheck.knowledge.nccl import Version, at_version, path_order, rule, version_key
from topocheck.knowledge.tables import rows

PATH_TYPES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Path types, closest first, as in 2.30.7 (src/graph/topo.h). Older versions know fewer and order P2C and PXN
otherwise (`nccl_path_orders.tsv`); what they lack never comes up there, so one order serves the comparisons."""

_RANK = {name: i for i, name in enumerate(PATH_TYPES)}


def rank(path_type: str) -> int:
    """Return the place of a path type in PATH_TYPES; smaller is closer."""
    return _RANK[path_type]


def worst(types: Iterable[str]) -> str:
    """Return the farthest of some path types; LOC for none."""
    return max(types, key=rank, default="LOC")


def type_from_number(number: int, version: Version) -> str | None:
    """Return the path type that an old log means by a number, or None where that version has no such number."""
    order = path_order(version)
    return order[number] if 0 <= number < len(order) else None


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
    for r in rows("nccl_cpu_models"):
        if r["vendor"] != cpu.vendor_key or version_key(r["from_version"]) > version:
            continue
        family_fits = r["family"] == "*" or cpu.family == int(r["family"])
        if family_fits and (cpu.model or 0) >= int(r["model_from"]):
            return r["model_class"]
    return ""


class Rule(msgspec.Struct, frozen=True):
    """A value that a version's rules give, and where the rule stands."""

    value: str
    source: str


def p2p_level(version: Version, cpu: Cpu, cpus: int, gpus: int) -> Rule:
    """Return the farthest path type with which a version uses P2P by default.

    `cpus` and `gpus` are counted in the topology of the communicator, not in the machine.
    """
    asked = {"arch": cpu.arch, "vendor": cpu.vendor_key, "model_class": model_class(cpu, version), "cpus": str(cpus)}
    for r in at_version("nccl_p2p_levels", version):
        fits = all(r[k] in ("*", v) for k, v in asked.items())
        if fits and (r["max_gpus"] == "*" or gpus <= int(r["max_gpus"])):
            return Rule(r["level"], r["source"])
    return Rule("PXB", "no rule for this version")


def gdr_level(version: Version, *, c2c: bool) -> tuple[Rule, bool]:
    """Return the default distance of GPUDirect RDMA, and whether a C2C exception lets pairs in beyond it.

    `c2c` is NCCL_NET_GDR_C2C as in force.
    """
    found = at_version("nccl_gdr_levels", version)
    if not found:
        return Rule("PXB", "no rule for this version"), False
    r = found[0]
    return Rule(r["level"] if c2c else r["c2c_off"], r["source"]), r["c2c_exception"] == "yes" and c2c


def peermem_files(version: Version) -> tuple[str, ...]:
    """Return the files of which one must be readable for a version to see the peer-memory module."""
    found = at_version("nccl_peermem", version)
    return tuple(found[0]["files"].split()) if found else ()


@functools.cache
def has(name: str, version: Version) -> bool:
    """Tell whether a yes/no rule of `nccl_rules.tsv` holds in a version."""
    return rule(name, version) == "yes"


@functools.cache
def _constants(what: str, version: Version) -> dict[str, float]:
    """Return the constants of a kind as a version has them, by key; a version older than all takes the oldest."""
    out: dict[str, tuple[Version, float]] = {}
    for r in rows("nccl_bandwidths"):
        if r["what"] != what:
            continue
        since = version_key(r["from_version"])
        old = out.get(r["key"])
        if since <= version and (old is None or since > old[0]):
            out[r["key"]] = (since, float(r["gb_s"]))
    return {k: v for k, (_, v) in out.items()}


def local_gb_s(version: Version) -> float:
    """Return the bandwidth NCCL gives to staying in a device."""
    return _constants("loc", max(version, (2, 6, 0)))["*"]


def mlopart_gb_s(version: Version) -> float:
    """Return the bandwidth between two partitions of one GPU."""
    return _constants("mlopart", max(version, (2, 30, 7)))["*"]


def nvlink_gb_s(sm: int, version: Version) -> float:
    """Return the bandwidth a version gives to one NVLink of a GPU, by its compute capability (90 for 9.0)."""
    table = _constants("nvlink", max(version, (2, 6, 0)))
    if str(sm) in table:
        return table[str(sm)]
    # Only 8.6 has a row of its own; 8.7 and 8.9 count as 8.0 (ncclTopoNVLinkBw, src/graph/topo.h).
    steps = sorted((int(k) for k in table if k not in ("other", "86")), reverse=True)
    return next((table[str(k)] for k in steps if sm >= k), table["other"])


def pcie_gb_s(speed: str | None, width: int | None, version: Version) -> float:
    """Return the bandwidth of a PCIe link from the texts of the topology file; width 0 or none counts as 16.

    NCCL looks whether the text begins with one it knows (`kvConvertToInt`, src/graph/xml.h), so `32 GT/s PCIe/s`
    is 32 GT/s; a text it does not know counts as 8 GT/s.
    """
    table = _constants("pcie_lane", max(version, (2, 6, 0)))
    lane = next((v for k, v in table.items() if k != "other" and (speed or "").startswith(k)), table["other"])
    return lane * (width or 16)


def knows_speed(speed: str, version: Version) -> bool:
    """Tell whether a speed text is one that NCCL converts."""
    return any(speed.startswith(k) for k in _constants("pcie_lane", max(version, (2, 6, 0))) if k != "other")


def cpu_gb_s(cpu: Cpu, version: Version) -> float:
    """Return the bandwidth between two CPU nodes of this kind."""
    table = _constants("sys", max(version, (2, 6, 0)))
    if cpu.arch in ("arm64", "ppc64"):
        return table[f"{cpu.arch}/*/*"]
    key = f"{cpu.arch}/{cpu.vendor_key}/"
    return table.get(key + model_class(cpu, version), table.get(key + "*", table["other"]))


def nic_gb_s(speed_mbit_s: int) -> float:
    """Return the bandwidth of a NIC from its speed in Mb/s; 10 Gb/s where that is not above zero."""
    return speed_mbit_s / 8000 if speed_mbit_s > 0 else _constants("nic", (2, 6, 0))["unknown"]


def intel_overhead(version: Version) -> float:
    """Return by how much P2P through an Intel host bridge costs more than elsewhere."""
    return float(rule("intel_p2p_overhead", version) or "1.2")
