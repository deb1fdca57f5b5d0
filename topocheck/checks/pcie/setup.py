"""How the firmware set devices up: the window to a GPU's memory, and payload sizes."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.bar_windows import DISPLAY_MODE, has_display_mode, narrow_windows
from topocheck.checks.shared.common import is_guest, listed, living, named, quote
from topocheck.checks.shared.pcie_links import links
from topocheck.checks.shared.rdma_ports import is_near
from topocheck.checks.sources import NICS, Needs
from topocheck.model.base import NEEDS_ROOT, Evidence, Finding, Missing, Reason, State, known
from topocheck.model.pci import PciDevice
from topocheck.topology.inventory import rests_suspended
from topocheck.topology.paths import joined_to_cpu, product_of
from topocheck.topology.types import Gpu, Nic

USUAL_READ_REQUEST = 512
"""Bytes a device may ask for at once unless told otherwise (PCI Express Base Specification 5.0, 7.5.3.4: default of
Max_Read_Request_Size)."""

FAST_PORT_GBIT_S = 100.0
"""Rate from which on smaller requests cost bandwidth: a NIC has a limited number of them under way."""


@check(
    "pcie.bar1-small",
    title="The window to a GPU's memory is smaller than the memory",
    severity=State.WARN,
    reads=("NVML DeviceGetBAR1MemoryInfo", "NVML DeviceGetMemoryInfo"),
    needs=Needs(NICS, ("gpu name", "gpu", "hypervisor")),
)
def bar1_small(context: Context) -> Iterator[Finding]:
    """The window to a GPU's memory is smaller than the memory.

    Looks at:
        BAR1, through which other devices reach a GPU's memory, against the memory's size.

    Why it matters:
        GPUDirect RDMA and peer access over PCIe go through this window. With 256 MiB of it large transfers fail or
        crawl, while everything that stays on one GPU works.

    Fix:
        Turn on "Above 4G decoding" and "Resizable BAR" in the firmware setup (a reboot); some professional cards
        need their display outputs switched off (NVIDIA's display mode selector).

    Does not apply:
        To a single GPU without an RDMA NIC, where nobody else looks into its memory, and to GPUs that a chip-to-chip
        link joins to their CPU. Small windows are usual for GeForce and several PCIe cards, so there it is a note;
        on module boards (SXM) it is a fault of the setup. Nor to GPUs of which siblings have the large window:
        `consistency.siblings-differ`.
    """
    gpus = living(context)
    if len(gpus) < 2 and not context.topology.nics:
        raise not_applicable("no second GPU and no RDMA NIC that could access a GPU's memory")
    usual = []
    wide = {g.name for g in gpus if isinstance(g.name, str) and not _small_window(g) and _window_of(g)}
    for gpu in gpus:
        if not _small_window(gpu) or gpu.address in narrow_windows(context):
            continue
        if gpu.name in wide:  # consistency.siblings-differ says that this GPU has not what they have
            continue
        product = product_of(gpu)
        if product is not None and product.form_factor == "SXM" and not is_guest(context):
            yield _window(State.WARN, [gpu])
        else:
            usual.append(gpu)
    if usual:
        yield _window(State.NOTE, usual)


def _window_of(gpu: Gpu) -> int:
    """Return the bytes of BAR1; 0 where they are not known."""
    window = gpu.nvml.bar1_total_bytes if gpu.nvml is not None else None
    return window if isinstance(window, int) else 0


def _small_window(gpu: Gpu) -> bool:
    if gpu.nvml is None or joined_to_cpu(gpu):
        return False
    window, memory = gpu.nvml.bar1_total_bytes, gpu.nvml.memory_total_bytes
    return isinstance(window, int) and isinstance(memory, int) and window * 2 < memory


def _window(state: State, gpus: list[Gpu]) -> Finding:
    sizes = []
    evidence: tuple[Evidence, ...] = ()
    for gpu in gpus:
        nvml = gpu.nvml
        if nvml is not None and isinstance(nvml.bar1_total_bytes, int) and isinstance(nvml.memory_total_bytes, int):
            sizes.append(f"{nvml.bar1_total_bytes >> 20} MiB for {nvml.memory_total_bytes >> 20} MiB of memory")
            if len(sizes) <= 2:
                evidence += quote(nvml, "DeviceGetBAR1MemoryInfo", nvml.bar1_total_bytes)
                evidence += quote(nvml, "DeviceGetMemoryInfo", nvml.memory_total_bytes)
    return Finding(
        state=state,
        subject=named(gpus[0]) if len(gpus) == 1 else "node",
        devices=(gpus[0].address,) if len(gpus) == 1 else (),
        title=f"BAR1 of {listed(g.label for g in gpus)} is {'; '.join(dict.fromkeys(sizes))}",
        consequence="peers and NICs reach a small window of its memory at a time: PCIe P2P and GPUDirect RDMA, where "
        "the product has them, are slow or refused",
        evidence=evidence,
        rule="BAR1 < half of the memory",
        fix="turn on Above 4G decoding and Resizable BAR in the firmware setup (needs a reboot)"
        + ("; " + DISPLAY_MODE if any(has_display_mode(g) for g in gpus) else ""),
    )


@check(
    "pcie.max-payload-mismatch",
    title="The two ends of a PCIe link use different payload sizes",
    severity=State.WARN,
    reads=("/sys/bus/pci/devices/*/config (Device Control, root only)",),
    needs=Needs((*NICS, "hypervisor", "config")),
)
def max_payload_mismatch(context: Context) -> Iterator[Finding]:
    """The two ends of a PCIe link use different payload sizes.

    Looks at:
        The maximum payload size set at both ends of every link from each GPU and NIC up to its root port.

    Why it matters:
        A device that gets a packet larger than it was set for drops it as malformed, which is a fatal error (PCI
        Express Base Specification 5.0, 2.2.2). Usually seen after a hot-plug or with mixed firmware settings.

    Fix:
        Boot with `pci=pcie_bus_safe` (every device gets what all on its path can take), or set one value in the
        firmware setup. A smaller payload costs a few percent of bandwidth.

    Does not apply:
        In a guest. Without root the registers cannot be read, and the answer is unknown.
    """
    if is_guest(context):
        raise not_applicable("the ports of a guest are the hypervisor's")
    denied = compared = 0
    for link in links(context):
        if link.upper is None or link.formal or link.suspended:
            continue
        low, up = link.lower.max_payload_bytes, link.upper.max_payload_bytes
        if isinstance(low, Missing) or isinstance(up, Missing):
            denied += any(isinstance(x, Missing) and x.reason is Reason.DENIED for x in (low, up))
            continue
        compared += 1
        if low != up:
            yield Finding(
                state=State.WARN,
                subject=link.where,
                devices=(link.lower.address,),
                title=f"the link between {link.between} has a payload of {low} bytes below and {up} above",
                consequence="packets larger than one end accepts are dropped as malformed: fatal errors under load",
                evidence=link.lower.evidence("config DevCtl") + link.upper.evidence("config DevCtl"),
                rule="both ends of a link must use one maximum payload size",
                fix="boot with pci=pcie_bus_safe, or set one value in the firmware setup (costs a few percent at most)",
            )
    if denied and not compared:
        yield Finding(
            state=State.UNKNOWN,
            subject="node",
            title=f"the payload size of {denied} links is readable by root only",
            rule="Device Control of both ends",
            fix=NEEDS_ROOT,
        )
    elif not compared:
        raise not_applicable("no link shows its payload size")


@check(
    "pcie.read-request-small",
    title="A NIC may read only little at once",
    severity=State.WARN,
    reads=("/sys/bus/pci/devices/*/config (Device Control, root only)", "/sys/class/infiniband/*/ports/*/rate"),
    needs=Needs((*NICS, "hypervisor", "config"), ("rate", "model")),
)
def read_request_small(context: Context) -> Iterator[Finding]:
    """A NIC may read only little at once.

    Looks at:
        The maximum read request size of each NIC: against the other NICs of its model and role, and, where a port
        runs at 100 Gb/s or more, against the 512 bytes that are the default of the standard.

    Why it matters:
        A NIC reads what it sends from memory, with a limited number of requests under way. Small requests bound the
        rate at which it can send; receiving is not slowed, so that tests in one direction look well.

    Fix:
        Set the size in the firmware setup, or look at what lowers it (`pci=pcie_bus_perf` makes it equal to the
        payload; a tuning script). `setpci -s ADDRESS CAP_EXP+8.w` shows it.

    Does not apply:
        In a guest and to virtual functions, which have no such register. Without root it cannot be read, and nothing
        is said.
    """
    if is_guest(context):
        raise not_applicable("a virtual function has no read request size of its own")
    sizes = {n.address: (n, size) for n in context.topology.nics if (size := _read_request(n)) is not None}
    if not sizes:
        raise not_applicable("no NIC shows its read request size (root only)")
    models: dict[tuple[object, ...], _Sizes] = {}
    for nic, size in sizes.values():
        models.setdefault(_model(context, nic), _Sizes()).add(nic, size)
    for nic, size in sizes.values():
        others = models[_model(context, nic)]
        larger = others.above(size)
        rate = _rate(nic)
        below = larger * 2 > others.number
        slow = size < USUAL_READ_REQUEST and rate >= FAST_PORT_GBIT_S
        if nic.pci is None or not (below or slow):
            continue
        beside = f"; {larger} of its model may read up to {others.largest}" if below else ""
        first = others.first_above(size) if below else None
        yield Finding(
            state=State.WARN,
            subject=named(nic),
            devices=(nic.address,),
            title=f"it may read {size} bytes at once{beside}",
            consequence="it may send slower than its port" + (f" ({rate:g} Gb/s)" if rate else "") + " can; a "
            "collective waits for the slowest NIC",
            evidence=nic.pci.evidence("config DevCtl") + (first.evidence("config DevCtl") if first else ()),
            rule="not below most NICs of its model and role"
            if below
            else f"{USUAL_READ_REQUEST} bytes or more at {FAST_PORT_GBIT_S:g} Gb/s and above",
            fix="set the read request size in the firmware setup; look for pci=pcie_bus_perf and tuning scripts",
        )


class _Sizes:
    """The read request sizes of NICs of one model, each with its number and the first NIC that has it."""

    def __init__(self) -> None:
        self.number = 0
        self._first: dict[int, tuple[int, Nic]] = {}
        self._counts: dict[int, int] = {}

    def add(self, nic: Nic, size: int) -> None:
        """Take one more NIC."""
        self._first.setdefault(size, (self.number, nic))
        self._counts[size] = self._counts.get(size, 0) + 1
        self.number += 1

    def above(self, size: int) -> int:
        """Return how many are larger; there are six sizes (PCI Express Base Specification 5.0, 7.5.3.4)."""
        return sum(n for s, n in self._counts.items() if s > size)

    @property
    def largest(self) -> int:
        """The largest size."""
        return max(self._counts)

    def first_above(self, size: int) -> PciDevice | None:
        """Return the function of the first NIC with a larger size."""
        return min((x for s, x in self._first.items() if s > size), key=lambda x: x[0])[1].pci


def _read_request(nic: Nic) -> int | None:
    """Return a NIC's maximum read request in bytes; None where it has none of its own or cannot be read."""
    device = nic.pci
    if device is None or known(device.physfn) or device.config_all_ones is True or rests_suspended(device):
        return None
    size = device.max_read_request_bytes
    return None if isinstance(size, Missing) else size


def _model(context: Context, nic: Nic) -> tuple[object, ...]:
    """Return what makes two NICs comparable: chip, board and role."""
    if nic.pci is None:
        return (nic.address,)
    ids = (nic.pci.vendor_id, nic.pci.device_id, nic.pci.subsystem_device_id)
    return (*(x if known(x) else None for x in ids), is_near(context, nic))


def _rate(nic: Nic) -> float:
    """Return the rate of a NIC's fastest active port in Gb/s; 0 where none is active or tells."""
    found = [p.rate_gbit_s for p in nic.rdma.ports if p.state == "ACTIVE"] if nic.rdma is not None else []
    return max((r for r in found if not isinstance(r, Missing)), default=0.0)
