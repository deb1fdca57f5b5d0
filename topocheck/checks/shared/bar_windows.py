"""The memory window (BAR1) of each GPU against what the bridges above it let through."""

from __future__ import annotations

import msgspec

from topocheck.checks.registry import Context, once
from topocheck.checks.shared.common import living, pci_devices
from topocheck.model.base import Evidence, Missing
from topocheck.model.kernel_log import no_space
from topocheck.model.pci import PciDevice, Window
from topocheck.topology.paths import product_of
from topocheck.topology.types import Gpu

DISPLAY_MODE = "on professional cards with display outputs switch these off (NVIDIA's displaymodeselector)"


_DISPLAY = 0x0300
"""VGA-compatible controller; cards without display outputs are 3D controllers (PCI Code and ID Assignment, 1.4)."""


def has_display_mode(gpu: Gpu) -> bool:
    """Tell whether a card may have a display mode, in which BAR1 is small: a professional card with display outputs."""
    product = product_of(gpu)
    shows = gpu.pci is not None and gpu.pci.base_class == _DISPLAY
    return shows and product is not None and product.p2p_pcie is not False and product.form_factor != "SXM"


class Narrow(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU whose BAR1 is smaller than it can be, since there is no room for more above it.

    Attributes:
        now_bytes: of BAR1; 0 where it was given no address at all.
        wanted_bytes: what a GPU of its model has here; None where none has more.
        bridge: the bridge whose window is too small; None where only the kernel's log tells.
        window_bytes: the largest memory window of that bridge.
        log: lines of the kernel's log about it.
    """

    gpu: Gpu
    now_bytes: int
    wanted_bytes: int | None
    bridge: PciDevice | None = None
    window_bytes: int = 0
    log: tuple[str, ...] = ()

    def evidence(self) -> tuple[Evidence, ...]:
        """Quote the GPU's BARs, the bridge's windows and the log."""
        pci = self.gpu.pci
        out = (
            ()
            if pci is None
            else _rows(pci, {b.line for b in pci.bars} if not isinstance(pci.bars, Missing) else set())
        )
        if self.bridge is not None and not isinstance(self.bridge.windows, Missing):
            out += _rows(self.bridge, {w.line for w in self.bridge.windows})
        return out + tuple(Evidence("kernel log", line) for line in self.log[:2])


def _rows(device: PciDevice, lines: set[int]) -> tuple[Evidence, ...]:
    rows = device.raw.get("resource", "").split("\n")
    return tuple(Evidence(f"{device.source}/resource row {n}", rows[n].strip()) for n in sorted(lines) if n < len(rows))


@once
def narrow_windows(c: Context) -> dict[str, Narrow]:
    """Return address -> GPU whose BAR1 has no room, by its siblings, the bridges above it and the kernel's log."""
    gpus = [g for g in living(c) if g.pci is not None]
    largest: dict[tuple[object, object], int] = {}
    for g in gpus:
        largest[_model(g)] = max(largest.get(_model(g), 0), _bar1(g))
    out = {}
    for g in gpus:
        now, wanted = _bar1(g), largest[_model(g)]
        log = _log(c, g)
        if now >= wanted and not (log and _smaller_than_memory(g)):
            continue
        found = _too_small(c, g, wanted if now < wanted else 2 * max(now, 1))
        if found is None and not log:
            continue
        bridge, window = found or (None, 0)
        out[g.address] = Narrow(
            gpu=g,
            now_bytes=now,
            wanted_bytes=wanted if now < wanted else None,
            bridge=bridge,
            window_bytes=window,
            log=log,
        )
    return out


def _model(g: Gpu) -> tuple[object, object]:
    return (g.pci.device_id, g.pci.subsystem_device_id) if g.pci is not None else (g.address, None)


def _bar1(g: Gpu) -> int:
    """Return the size of the largest prefetchable BAR; 0 where it has no address. NVML's word where sysfs has none."""
    bars = g.pci.bars if g.pci is not None else None
    if isinstance(bars, tuple) and bars:
        return max((b.size_bytes for b in bars if b.prefetchable and b.assigned), default=0)
    size = g.nvml.bar1_total_bytes if g.nvml is not None else None
    return size if isinstance(size, int) else 0


def _smaller_than_memory(g: Gpu) -> bool:
    memory = g.nvml.memory_total_bytes if g.nvml is not None else None
    return isinstance(memory, int) and 2 * _bar1(g) < memory


def _too_small(c: Context, g: Gpu, wanted: int) -> tuple[PciDevice, int] | None:
    """Return the bridge above a GPU with the smallest window, and its size, where that cannot hold a BAR."""
    devices = pci_devices(c)
    found: list[tuple[int, PciDevice]] = []
    for address in c.topology.chains.get(g.address, ())[:-1]:
        device = devices.get(address)
        if device is not None and isinstance(device.windows, tuple) and device.windows:
            found.append((_largest(device.windows), device))
    size, bridge = min(found, key=lambda x: x[0], default=(0, None))
    return (bridge, size) if bridge is not None and size < wanted else None


def _largest(windows: tuple[Window, ...]) -> int:
    """Return the bytes of the window that a large BAR lies in: above 4 GiB only a prefetchable one reaches."""
    return max(w.size_bytes for w in [w for w in windows if w.prefetchable] or windows)


def _log(c: Context, g: Gpu) -> tuple[str, ...]:
    lines = c.node.system.kernel_log
    if isinstance(lines, Missing):
        return ()
    chain = set(c.topology.chains.get(g.address, ())) | {g.address}
    return tuple(x for x in lines if no_space(x) in chain)
