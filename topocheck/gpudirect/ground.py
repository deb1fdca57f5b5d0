"""What both judges stand on: IOMMU, ACS, the rule that joins reasons, and quoting of evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from topocheck.model.base import Evidence, Fact, Missing, Reason, ReasonStep, Verdict, known
from topocheck.model.node import Node
from topocheck.model.pci import PciDevice
from topocheck.topology.paths import product_of
from topocheck.topology.tree import chains, common_length
from topocheck.topology.types import Gpu, Topology

UNFINISHED = ("Not Started", "In Progress")
"""Fabric states of a GPU that waits for the fabric manager (nvml.h, nvmlGpuFabricState_t)."""

_WORST = ("no", "unknown", "degraded", "yes")


def verdict_of(steps: Iterable[ReasonStep]) -> Verdict:
    """Join the effects of a chain: a refusal beats an open question, which beats a degradation.

    A chain in which nothing says yes is an open question: there must be positive evidence.
    """
    effects = {s.effect for s in steps}
    return Verdict(next((w for w in _WORST if w in effects), "unknown"))


def best_of(*roads: Verdict) -> Verdict:
    """Return the verdict of several roads of which one is enough."""
    order = (Verdict.YES, Verdict.DEGRADED, Verdict.UNKNOWN, Verdict.NO)
    return min(roads, key=order.index)


def worst_of(*parts: Verdict) -> Verdict:
    """Return the verdict of parts that must all hold."""
    return min(parts, key=lambda v: _WORST.index(v.value))


def said(fact: Fact, name: str, value: object) -> tuple[Evidence, ...]:
    """Quote a raw answer under its name; where the raw answer was not kept, the value read from it."""
    quoted = fact.evidence(name)
    if quoted:
        return quoted
    join = "/" if fact.source.startswith("/") else " "
    source = f"{fact.source}{join}{name}" if fact.source and not name.startswith("/") else name
    return (Evidence(source, str(value)),)


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What of the machine does not change from pair to pair."""

    node: Node
    topology: Topology
    devices: dict[str, PciDevice]
    places: dict[str, tuple[str, ...]]
    guest: bool


def survey(node: Node, topology: Topology) -> Ground:
    """Gather it once."""
    listed = () if isinstance(node.pci.devices, Missing) else node.pci.devices
    return Ground(
        node=node,
        topology=topology,
        devices={d.address: d for d in listed},
        places=chains(listed),
        guest=known(node.system.hypervisor),
    )


class Iommu(msgspec.Struct, frozen=True):
    """`off`, `identity`, `translated` or `unknown`, and the evidence."""

    mode: str
    evidence: tuple[Evidence, ...]


def iommu_of(g: Ground, *addresses: str) -> Iommu:
    """Return how the IOMMU treats some devices: the type of their groups, else the machine's settings.

    Kernel: Documentation/ABI/testing/sysfs-kernel-iommu_groups (types identity, DMA, DMA-FQ, blocked).
    """
    system = g.node.system
    modes, evidence = [], []
    for address in addresses:
        device = g.devices.get(address)
        if device is None:
            continue
        kind = device.iommu_group_type
        if not isinstance(kind, Missing):
            modes.append("identity" if kind == "identity" else "translated")
            group = device.iommu_group
            name = group if not isinstance(group, Missing) else "?"
            evidence.append(Evidence(f"/sys/kernel/iommu_groups/{name}/type", kind))
    if modes:
        return Iommu("translated" if "translated" in modes else "identity", tuple(dict.fromkeys(evidence)))
    options = () if isinstance(system.kernel_options, Missing) else system.kernel_options
    quoted = (Evidence("/proc/cmdline", " ".join(options)),)
    if any(o in ("intel_iommu=off", "amd_iommu=off", "iommu=off") for o in options):
        return Iommu("off", quoted)
    types = {"identity" if t == "identity" else "translated" for t in system.iommu_group_types}
    if len(types) == 1:
        shown = ", ".join(f"{t}: {n}" for t, n in system.iommu_group_types.items())
        return Iommu(types.pop(), (Evidence("/sys/kernel/iommu_groups/*/type", shown),))
    if not g.devices:
        return Iommu("unknown", ())  # /sys is hidden: that nothing is seen there says nothing
    if system.iommu_devices == () or (isinstance(system.iommu_devices, Missing) and _absent(system.iommu_devices)):
        return Iommu("off", (Evidence("/sys/class/iommu", "(none)"),))
    if system.iommu_groups == 0:
        return Iommu("off", (Evidence("/sys/kernel/iommu_groups", "(none)"),))
    if any(o in ("iommu=pt", "iommu.passthrough=1") for o in options):
        return Iommu("identity", quoted)
    return Iommu("unknown", ())


def _absent(value: Missing) -> bool:
    return value.reason is Reason.ABSENT


class Acs(msgspec.Struct, frozen=True):
    """Ports on the way of a pair: those that redirect, and those whose ACS word could not be read."""

    redirecting: tuple[PciDevice, ...]
    unread: tuple[PciDevice, ...]


def ports_between(g: Ground, a: str, b: str) -> tuple[PciDevice, ...]:
    """Return the root and downstream ports a packet passes between two devices, below what they share.

    ACS on the shared upstream port, or above it, has no say in peer traffic.
    """
    chain_a, chain_b = g.places.get(a, ()), g.places.get(b, ())
    n = common_length(chain_a[:-1], chain_b[:-1])
    out = []
    for element in (*reversed(chain_a[n:-1]), *chain_b[n:-1]):
        node = g.topology.tree.get(element)
        if node is not None and node.role in ("root_port", "downstream_port") and element in g.devices:
            out.append(g.devices[element])
    return tuple(out)


def acs_between(g: Ground, a: str, b: str) -> Acs:
    """Return what ACS does on the way of a pair (PCI Express Base Specification 5.0, 6.12 and 7.7.11.3)."""
    redirecting, unread = [], []
    for port in ports_between(g, a, b):
        word = port.acs
        if not isinstance(word, Missing):
            if word.redirects:
                redirecting.append(port)
        elif port.acs_capable is not False:
            unread.append(port)
    return Acs(tuple(redirecting), tuple(unread))


def acs_evidence(ports: Iterable[PciDevice]) -> tuple[Evidence, ...]:
    """Quote the ACS control words of some ports, with the names of the bits."""
    out = []
    for p in ports:
        word = p.acs
        if not isinstance(word, Missing):
            out.append(Evidence(f"{p.address} ACSCtl", f"{word.word:#06x} ({' '.join(word.names())})"))
    return tuple(out)


def acs_fix(ports: Iterable[PciDevice]) -> str:
    """Return what to do about ports that redirect."""
    names = " ".join(p.address for p in ports)
    return (
        f"on {names}: clear ReqRedir and CmpltRedir, now with setpci as root (gone after a boot), for good in the "
        "firmware setup or with the kernel option pci=disable_acs_redir=...; this weakens isolation between devices"
    )


def kernel_version(release: str | Missing) -> tuple[int, int] | None:
    """Return (major, minor) of a kernel release, or None."""
    m = re.match(r"(\d+)\.(\d+)", release) if not isinstance(release, Missing) else None
    return (int(m[1]), int(m[2])) if m else None


def undriven(gpu: Gpu, g: Ground) -> ReasonStep | None:
    """Return the step for a GPU that is lost, given to a guest, or not known to the driver; None for a usable one."""
    if not gpu.on_bus:
        quoted = (Evidence("NVML", gpu.nvml.error),) if gpu.nvml is not None and gpu.nvml.error else ()
        return ReasonStep(
            f"{gpu.label} no longer answers on the bus, so nothing can be told of it",
            "unknown",
            quoted,
            "drain the node, then reset the GPU or power-cycle; look at power, riser and slot",
        )
    driver = gpu.pci.driver if gpu.pci is not None else None
    if driver == "vfio-pci":
        return ReasonStep(
            f"{gpu.label} is given away to a virtual machine",
            "no",
            (Evidence(f"{gpu.address} driver", "vfio-pci"),),
            "bind it to the nvidia driver to use it here",
        )
    if gpu.nvml is None:
        quoted = (Evidence("NVML", g.node.nvml.error or str(g.node.nvml.driver_version)),)
        loaded = "nvidia" in g.node.system.modules or "nvidia" in g.node.system.loaded_modules
        if not loaded:
            return ReasonStep(
                "the NVIDIA driver is not loaded, and it alone can say", "unknown", quoted, "modprobe nvidia"
            )
        return ReasonStep(
            f"NVML does not show {gpu.label}: hidden from this container or not driven", "unknown", quoted
        )
    return None


def fabric_trouble(gpu: Gpu) -> ReasonStep | None:
    """Return the step for a GPU that its NVLink fabric has not taken in; None where all is well or there is none.

    The status counts only once the state is Completed. A product built for multi-node NVLink always lives in a
    fabric, so one that reports none is in trouble.
    """
    if gpu.nvml is None:
        return None
    state, status = gpu.nvml.fabric_state, gpu.nvml.fabric_status
    quoted = said(gpu.nvml, "DeviceGetGpuFabricInfoV", f"{state}, {status}")
    if state in UNFINISHED:
        return ReasonStep(
            f"{gpu.label} is not registered with the NVLink fabric ({state})",
            "no",
            quoted,
            "start nvidia-fabricmanager in the version of the driver, and look at its log",
        )
    if state == "Completed" and not isinstance(status, Missing) and status != "Success":
        return ReasonStep(
            f"{gpu.label} joined the NVLink fabric with an error ({status})",
            "no",
            quoted,
            "look at the logs of nvidia-fabricmanager (and nvidia-imex), then reset the GPU",
        )
    product = product_of(gpu)
    none = state == "Not Supported" or (isinstance(state, Missing) and state.reason is Reason.UNSUPPORTED)
    if none and product is not None and product.multi_node_fabric:
        return ReasonStep(
            f"{gpu.label} is of a product that lives in an NVLink fabric and reports none",
            "no",
            quoted,
            "check that the driver's fabric mode is on and that nvidia-imex and the fabric's manager run",
        )
    return None
