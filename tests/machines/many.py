"""Machines with any number of devices, for what has to grow no faster than the machine: counts, limits, benchmarks."""

from __future__ import annotations

from typing import Any

from tests.machines.builder import Machine, build

_PER_DOMAIN = 8
"""Switches in one PCI domain, each below a host bridge of its own with 32 buses, of 256."""


def described(gpus: int, nics: int | None = None, *, nvlink: bool = True, others: int = 0) -> dict[str, Any]:
    """Return the description of a machine of two sockets whose GPUs and NICs stand in pairs below PCIe switches.

    Args:
        gpus: number of GPUs.
        nics: number of HCAs, as many as GPUs where None.
        nvlink: GPUs with NVLink through NVSwitches, else GPUs that only PCIe joins.
        others: number of NVMe drives beside them, which nobody routes GPU traffic through.
    """
    nics = gpus if nics is None else nics
    gpu, port = ("h100_sxm", "5x16") if nvlink else ("l40s", "4x16")
    lines = []
    for i in range(max(gpus, nics)):
        domain, slot = divmod(i, _PER_DOMAIN)
        lines.append(f"root {domain:04x}:{32 * slot:02x} node={2 * i // max(gpus, nics)}")
        lines += [f"  rp 01.0 {port}", "    up pex890xx"]
        lines += [f"      down {port}", f"        {gpu}"] if i < gpus else []
        lines += [f"      down {port}", "        cx7"] if i < nics else []
    for i in range(others):
        domain, slot = divmod(i, 30)
        if slot == 0:
            lines.append(f"root {0x1000 + domain:04x}:00 node=0")
        lines += [f"  rp {slot + 1:02x}.0 4x4", "    nvme"]
    return {
        "machine": {"title": f"{gpus} GPUs, {nics} HCAs", "invented": True},
        "system": {"root": True, "cpu_vendor": "amd", "cpu_name": "AMD EPYC 9654", "cpu_family": 25, "cpu_model": 17,
                   "kernel": "6.8.0-60-generic", "cmdline": "ro iommu=pt", "iommu": "identity"},
        "numa": [{"id": n, "package": n, "cpus": f"{96 * n}-{96 * n + 95}", "memory_gib": 768} for n in (0, 1)],
        "pci": {"tree": "\n".join(lines)},
        "driver": {"version": "570.124.06", "cuda": "12.8", "flavor": "open"},
        "nvlink": {"switch": 18} if nvlink else {},
        "p2p": {"all": "OK"},
        "modules": {"ib_core": "", "ib_uverbs": "", "mlx5_core": "", "mlx5_ib": "",
                    "nvidia_peermem": {"version": "570.124.06", "refs": 1}},
    }  # fmt: skip


def many(gpus: int, nics: int | None = None, *, nvlink: bool = True, others: int = 0) -> Machine:
    """Return that machine (arguments as for `described`)."""
    return build(described(gpus, nics, nvlink=nvlink, others=others), f"many-{gpus}")
