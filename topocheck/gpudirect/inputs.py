"""What both judges stand on: IOMMU, ACS, the rule that joins reasons, and quoting of evidence."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from topocheck.gpudirect.types import Acs, Iommu, IommuMode, PciePath
from topocheck.model.base import ABSENT, Evidence, Fact, Missing, Reason, ReasonStep, Verdict, is_lost, known
from topocheck.model.gpu import P2pStatus
from topocheck.model.kernel_options import iommu_mode, pass_through
from topocheck.model.node import Node
from topocheck.model.pci import PciDevice
from topocheck.topology.paths import product_of
from topocheck.topology.tree import Chain, common_length
from topocheck.topology.types import Gpu, Nic, Topology

T = TypeVar("T")
D = TypeVar("D", bound=Gpu | Nic)

UNFINISHED = ("Not Started", "In Progress")
"""Fabric states of a GPU that waits for the fabric manager (nvml.h, nvmlGpuFabricState_t)."""

_WORST = ("no", "unknown", "degraded", "yes")
_VERDICTS = tuple((word, Verdict(word)) for word in _WORST)


def verdict_of(steps: Iterable[ReasonStep]) -> Verdict:
    """Join the effects of a chain: a refusal beats an open question, which beats a degradation.

    A chain in which nothing says yes is an open question: there must be positive evidence.
    """
    effects = {s.effect for s in steps}
    for word, verdict in _VERDICTS:
        if word in effects:
            return verdict
    return Verdict.UNKNOWN


def best_of(*ways: Verdict) -> Verdict:
    """Return the verdict of several ways of which one is enough."""
    order = (Verdict.YES, Verdict.DEGRADED, Verdict.UNKNOWN, Verdict.NO)
    return min(ways, key=order.index)


def worst_of(*parts: Verdict) -> Verdict:
    """Return the verdict of parts that must all hold."""
    return min(parts, key=lambda v: _WORST.index(v.value))


def said(fact: Fact, name: str, value: object) -> tuple[Evidence, ...]:
    """Quote a raw answer under its name; where the raw answer was not kept, the value read from it."""
    raw, source = fact.raw.get(name), fact.source
    if raw is None and name.startswith("/"):
        return (Evidence(name, str(value)),)
    if source:
        name = f"{source}/{name}" if source[0] == "/" else f"{source} {name}"
    return (Evidence(name, str(value) if raw is None else raw),)


class Ground(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What of the machine does not change from pair to pair, and what was worked out of its devices."""

    node: Node
    topology: Topology
    guest: bool
    guest_untold: Missing | None = None
    """Why it is not known whether this is a guest, where answers were lost."""

    @property
    def devices(self) -> dict[str, PciDevice]:
        """The PCI functions by address."""
        return self.topology.devices

    @functools.cached_property
    def statuses(self) -> dict[tuple[str, str], P2pStatus]:
        """NVML's P2P status of each ordered pair of addresses."""
        return self.node.nvml.statuses

    @functools.cached_property
    def peers(self) -> dict[tuple[str, str], bool | Missing]:
        """Whether CUDA can access the second of two addresses from the first."""
        return self.node.cuda.access

    def is_lost(self, question: str) -> bool:
        """Tell whether the answer to a question that begins so was lost."""
        key = ("is_lost", question)
        if key not in self.kept:
            self.kept[key] = self.node.is_lost(question)
        return bool(self.kept[key])

    @functools.cached_property
    def kept(self) -> dict[Any, Any]:
        """What was worked out, by function and device."""
        return {}


def once(function: Callable[[Ground, D], T]) -> Callable[[Ground, D], T]:
    """Work something out once for each device, however many pairs it is part of."""

    @functools.wraps(function)
    def keep(g: Ground, device: D) -> T:
        key = function, id(device)  # the topology, and with it the device, lives as long as what is kept
        found: T | None = g.kept.get(key)
        if found is None and key not in g.kept:
            found = g.kept[key] = function(g, device)
        return found  # type: ignore[return-value]

    return keep


def survey(node: Node, topology: Topology) -> Ground:
    """Gather it once."""
    hypervisor = node.system.hypervisor
    return Ground(
        node=node,
        topology=topology,
        guest=known(hypervisor),
        guest_untold=hypervisor if isinstance(hypervisor, Missing) and is_lost(hypervisor) else None,
    )


def cuda_lost(g: Ground, gpu: Gpu, attribute: bool | Missing | None) -> bool:
    """Tell whether CUDA's word on a GPU was lost, so that what others say is no more than likely."""
    if gpu.cuda is None:
        return g.is_lost("cuda:")
    return isinstance(attribute, Missing) and is_lost(attribute)


class _Side(msgspec.Struct, frozen=True):
    """What a device brings into every pair it is part of.

    Attributes:
        above: the chain of elements above it, from the host bridge down.
        iommu: how its IOMMU group is treated; None where it is not known.
        iommu_lost: because the answer was lost.
        acs: what the ports below the first n elements of the chain do, by n; filled as pairs ask.
    """

    above: tuple[str, ...]
    iommu: Iommu | None
    iommu_lost: bool
    acs: dict[int, Acs]


def _side(g: Ground, address: str) -> _Side:
    key = ("side", address)
    found: _Side | None = g.kept.get(key)
    if found is None:
        device = g.devices.get(address)
        kind = ABSENT if device is None else device.iommu_group_type
        found = g.kept[key] = _Side(
            above=g.topology.chains.get(address, ())[:-1],
            iommu=_of_group(device),
            iommu_lost=isinstance(kind, Missing) and is_lost(kind),
            acs={},
        )
    return found


def iommu_of(g: Ground, a: str, b: str) -> Iommu:
    """Return how the IOMMU treats two devices: the type of their groups, else the machine's settings.

    Kernel: Documentation/ABI/testing/sysfs-kernel-iommu_groups (types identity, DMA, DMA-FQ, blocked).
    """
    return _iommu(g, _side(g, a), _side(g, b))


def _iommu(g: Ground, a: _Side, b: _Side) -> Iommu:
    one, other = a.iommu, b.iommu
    lost = a.iommu_lost or b.iommu_lost
    translated = (one is not None and one.mode is IommuMode.TRANSLATED) or (
        other is not None and other.mode is IommuMode.TRANSLATED
    )
    if (one is None and other is None) or (lost and not translated):
        if "iommu" not in g.kept:
            g.kept["iommu"] = _machine_iommu(g)
        machine: Iommu = g.kept["iommu"]
        # What other groups, or the kernel's default, make of their devices says nothing of this one.
        return Iommu(IommuMode.UNKNOWN, ()) if lost and machine.mode is not IommuMode.OFF else machine
    quoted = () if one is None else one.evidence
    if other is not None and other.evidence != quoted:
        quoted += other.evidence
    return Iommu(IommuMode.TRANSLATED if translated else IommuMode.IDENTITY, quoted)


def no_translation(node: Node) -> str:
    """Return how to boot so that the IOMMU translates nothing, on this architecture."""
    machine = node.system.machine if known(node.system.machine) else None
    return f"boot with {pass_through(machine)}"


def _of_group(device: PciDevice | None) -> Iommu | None:
    """Return how the group of one device is treated; None where it is not known."""
    kind = ABSENT if device is None else device.iommu_group_type
    if device is None or isinstance(kind, Missing):
        return None
    name = device.iommu_group if not isinstance(device.iommu_group, Missing) else "?"
    return Iommu(_mode(kind), (Evidence(f"/sys/kernel/iommu_groups/{name}/type", kind),))


def _mode(group_type: str) -> IommuMode:
    return IommuMode.IDENTITY if group_type == "identity" else IommuMode.TRANSLATED


def _machine_iommu(g: Ground) -> Iommu:
    """Return how the IOMMU treats devices whose group does not tell, by the machine's settings."""
    system = g.node.system
    options = () if isinstance(system.kernel_options, Missing) else system.kernel_options
    quoted = (Evidence("/proc/cmdline", " ".join(options)),)
    setting = iommu_mode(options, system.machine if known(system.machine) else None)
    if setting is not None and setting[0] == "off":
        return Iommu(IommuMode.OFF, quoted)
    types = {_mode(t) for t in system.iommu_group_types}
    if len(types) == 1:
        shown = ", ".join(f"{t}: {n}" for t, n in system.iommu_group_types.items())
        return Iommu(types.pop(), (Evidence("/sys/kernel/iommu_groups/*/type", shown),))
    if not g.devices:
        return Iommu(IommuMode.UNKNOWN, ())  # /sys is hidden: that nothing is seen there says nothing
    if system.iommu_devices == () or (isinstance(system.iommu_devices, Missing) and _absent(system.iommu_devices)):
        return Iommu(IommuMode.OFF, (Evidence("/sys/class/iommu", "(none)"),))
    if system.iommu_groups == 0:
        return Iommu(IommuMode.OFF, (Evidence("/sys/kernel/iommu_groups", "(none)"),))
    if setting is not None:
        return Iommu(IommuMode(setting[0]), quoted)
    return Iommu(IommuMode.UNKNOWN, ())


def _absent(value: Missing) -> bool:
    return value.reason is Reason.ABSENT


def pcie_path(g: Ground, a: str, b: str) -> PciePath:
    """Return what peer traffic between two devices passes."""
    one, other = _side(g, a), _side(g, b)
    return PciePath(_acs(g, one, other), _iommu(g, one, other))


def acs_between(g: Ground, a: str, b: str) -> Acs:
    """Return what ACS does on the way of a pair (PCI Express Base Specification 5.0, 6.12 and 7.7.11.3)."""
    return _acs(g, _side(g, a), _side(g, b))


_NO_ACS = Acs((), ())


def _acs(g: Ground, a: _Side, b: _Side) -> Acs:
    n = common_length(a.above, b.above)
    up, down = a.acs.get(n) or _acs_below(g, a, n), b.acs.get(n) or _acs_below(g, b, n)
    if up is _NO_ACS:
        return down
    return Acs((*up.redirecting[::-1], *down.redirecting), (*up.unread[::-1], *down.unread))


def _acs_below(g: Ground, side: _Side, n: int) -> Acs:
    """Return what the root and downstream ports of a chain below its first `n` elements do, from the top down.

    ACS on the upstream port that two devices share, or above it, does nothing to traffic between them.
    """
    redirecting, unread = [], []
    for element in ports_that_redirect(g.topology, side.above, n):
        port = g.devices.get(element)
        if port is None:
            continue
        word = port.acs
        if not isinstance(word, Missing):
            if word.redirects:
                redirecting.append(port)
        elif port.acs_capable is not False:
            unread.append(port)
    found = Acs(tuple(redirecting), tuple(unread)) if redirecting or unread else _NO_ACS
    side.acs[n] = found
    return found


def ports_that_redirect(topology: Topology, above: Chain, n: int) -> tuple[str, ...]:
    """Return the ports above a device, below the first `n` elements that another shares, at which ACS has a say.

    A redirect changes the way of a packet that would turn around at the port. Where two devices share no switch, what
    one sends leaves its own switch upwards in any case, so only root ports have a say.
    """
    shares_port = n > 0 and above[n - 1] in topology.tree and topology.tree[above[n - 1]].role != "host_bridge"
    roles = ("root_port", "downstream_port") if shares_port else ("root_port",)
    return tuple(x for x in above[n:] if x in topology.tree and topology.tree[x].role in roles)


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
    m = re.match(r"([0-9]{1,4})\.([0-9]{1,6})", release) if not isinstance(release, Missing) else None
    return (int(m[1]), int(m[2])) if m else None


@once
def undriven(g: Ground, gpu: Gpu) -> ReasonStep | None:
    """Return the step for a GPU that is lost, given to a guest, or not known to the driver; None for a usable one."""
    if not gpu.on_bus:
        quoted = (Evidence("NVML", gpu.nvml.error),) if gpu.nvml is not None and gpu.nvml.error else ()
        return ReasonStep(
            f"{gpu.label} no longer answers on the bus, so nothing is known of it",
            "unknown",
            quoted,
            "drain the node, then reset the GPU or power-cycle; check power, riser and slot",
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


@once
def fabric_trouble(g: Ground, gpu: Gpu) -> ReasonStep | None:
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
            "start nvidia-fabricmanager in the version of the driver, and check its log",
        )
    if state == "Completed" and not isinstance(status, Missing) and status != "Success":
        return ReasonStep(
            f"{gpu.label} joined the NVLink fabric with an error ({status})",
            "no",
            quoted,
            "check the logs of nvidia-fabricmanager (and nvidia-imex), then reset the GPU",
        )
    product = product_of(gpu)
    for value in (state, status) if state != "Not Supported" else ():
        if isinstance(value, Missing) and is_lost(value):
            text = f"whether {gpu.label} is registered with an NVLink fabric could not be read"
            return ReasonStep(text, "unknown", quoted)
    none = state == "Not Supported" or (isinstance(state, Missing) and state.reason is Reason.UNSUPPORTED)
    if none and product is not None and product.multi_node_fabric:
        return ReasonStep(
            f"{gpu.label} is of a product that lives in an NVLink fabric and reports none",
            "no",
            quoted,
            "check that the driver's fabric mode is on and that nvidia-imex and the fabric's manager run",
        )
    return None
