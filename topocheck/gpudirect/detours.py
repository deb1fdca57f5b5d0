"""What takes traffic between two devices off the straight way on bare metal: the IOMMU, ACS; and a window too small."""

from __future__ import annotations

from collections.abc import Callable

from topocheck.gpudirect.inputs import Ground, acs_evidence, acs_fix
from topocheck.gpudirect.types import Acs, IommuMode, PciePath
from topocheck.model.base import Effect, Missing, ReasonStep
from topocheck.model.gpu import NvmlGpu


def guest_untold(g: Ground) -> list[ReasonStep]:
    """Say that it could not be read whether this is a guest, where it is so."""
    if g.guest_untold is None:
        return []
    return [ReasonStep(f"whether this is a guest could not be read ({g.guest_untold.reason.value})", "unknown")]


_NOT_TRANSLATED = {mode: f"no IOMMU translates DMA ({mode.value})" for mode in IommuMode}


def by_iommu(passed: PciePath, text: str, fix: str, unknown: Callable[[], Effect]) -> ReasonStep:
    """Return what the IOMMU does to traffic.

    Args:
        passed: what the traffic goes through.
        text: what is said where it translates.
        fix: what helps there.
        unknown: what it means where the mode is not known.
    """
    mode, evidence = passed.iommu.mode, passed.iommu.evidence
    if mode is IommuMode.TRANSLATED:
        return ReasonStep(text, "degraded", evidence, fix)
    if mode is IommuMode.UNKNOWN:
        return ReasonStep("whether an IOMMU translates DMA is not known", unknown())
    return ReasonStep(_NOT_TRANSLATED[mode], "info", evidence)


def by_acs(passed: PciePath, traffic: str, makes: str) -> list[ReasonStep]:
    """Return what ACS does to traffic.

    Args:
        passed: what the traffic goes through.
        traffic: what is sent (`peer traffic`).
        makes: who makes the detour (`peer copies make`).
    """
    acs = passed.acs
    if acs.redirecting:
        return [redirected(acs, f"ACS sends {traffic} up to the root complex and back")]
    if acs.unread and passed.iommu.mode is not IommuMode.OFF:
        names = ", ".join(p.address for p in acs.unread)
        return [ReasonStep(f"ACS of {names} needs root to read; if it redirects, {makes} a detour", "info")]
    return []


def redirected(acs: Acs, text: str) -> ReasonStep:
    """Return that ACS redirects, with the ports and how to clear it."""
    return ReasonStep(text, "degraded", acs_evidence(acs.redirecting), acs_fix(acs.redirecting))


def small_window_mib(nvml: NvmlGpu | None) -> int | None:
    """Return the size in MiB of a GPU's window to its memory (BAR1), where it is less than half of the memory."""
    if nvml is None or isinstance(nvml.bar1_total_bytes, Missing) or isinstance(nvml.memory_total_bytes, Missing):
        return None
    small = nvml.bar1_total_bytes < nvml.memory_total_bytes // 2
    return nvml.bar1_total_bytes >> 20 if small else None


LARGER_WINDOW = "turn on Above 4G decoding and Resizable BAR in the firmware setup"
"""How BAR1 becomes as large as the memory."""
