"""Why NVIDIA's driver does not use a GPU that is on the bus: by its own words in the kernel's log, else by product."""

from __future__ import annotations

import msgspec

from topocheck.checks.registry import Context
from topocheck.checks.shared.fixes import Fix, first_fitting, in_guest, on_node
from topocheck.knowledge.kernel_modules import LAST_BEFORE_TURING, needs_open, needs_proprietary, past_last_branch
from topocheck.model.base import Evidence, Missing, is_digits
from topocheck.model.kernel_log import Unusable, module_rejected, refusal
from topocheck.topology.types import Gpu


class NotUsed(msgspec.Struct, frozen=True):
    """Why the driver does not use a GPU: the reason, words for a title, evidence, and what to do."""

    why: Unusable
    title: str
    evidence: tuple[Evidence, ...]
    fix: str | None


_BRANCH = "install a release of NVIDIA's driver that supports this GPU ({}), reload the modules or reboot"
_FIXES: dict[Unusable, tuple[Fix, ...]] = {
    Unusable.NEEDS_PROPRIETARY: (
        Fix(
            "install the proprietary kernel module in place of the open one (the package without -open, branch "
            f"{LAST_BEFORE_TURING} or older), then reload the modules or reboot: the open one needs Turing or newer"
        ),
    ),
    Unusable.NEEDS_OPEN: (
        Fix(
            "install the open kernel modules in place of the proprietary ones (the package with -open; with NVIDIA's "
            "installer --kernel-module-type=open), then reload the modules or reboot"
        ),
    ),
    Unusable.NO_BAR: (
        Fix(
            "have the host give this guest a larger 64-bit window (OVMF: X-PciMmio64Mb; libvirt: pcihole64), and "
            "restart it",
            (in_guest,),
        ),
        Fix(
            "turn on Above 4G decoding (or raise the MMIO size) in the firmware setup; if that is on, boot with "
            "pci=realloc (needs a reboot)"
        ),
    ),
}


def refused_use(c: Context, gpu: Gpu) -> NotUsed | None:
    """Return why the driver does not use a GPU, where its log or the product says so."""
    lines = c.node.system.kernel_log
    for line in reversed(() if isinstance(lines, Missing) else lines):
        told = refusal(line)
        if told is not None and (told.address is None or told.address == gpu.address):
            return not_used(c, told.why, told.branch, (Evidence("kernel log", line),))
    return _by_product(c, gpu)


def not_used(c: Context, why: Unusable, branch: str, evidence: tuple[Evidence, ...]) -> NotUsed:
    """Return a reason with its words and its fix."""
    if why is Unusable.LEGACY:
        return NotUsed(why, f"{why}, {branch}", evidence, on_node(c, _BRANCH.format(f"branch {branch}")))
    if why is Unusable.RELEASE:
        title = f"release {branch} of the driver does not support it"
        return NotUsed(why, title, evidence, on_node(c, _BRANCH.format("NVIDIA's list of supported products")))
    fix = first_fitting(c, *_FIXES[why])
    return NotUsed(why, str(why), evidence, on_node(c, fix) if fix is not None else None)


def _by_product(c: Context, gpu: Gpu) -> NotUsed | None:
    device = gpu.pci.device_id if gpu.pci is not None else None
    system = c.node.system
    if not isinstance(device, int):
        return None
    shown = gpu.pci.evidence("device") if gpu.pci is not None else ()
    loaded = (*shown, *system.evidence("/proc/driver/nvidia/version"))
    if system.nvidia_module_flavor == "open" and needs_proprietary(device):
        return not_used(c, Unusable.NEEDS_PROPRIETARY, "", loaded)
    if system.nvidia_module_flavor == "proprietary" and needs_open(device):
        return not_used(c, Unusable.NEEDS_OPEN, "", loaded)
    version = system.nvidia_module_version
    branch = version.partition(".")[0] if isinstance(version, str) else ""
    if is_digits(branch) and past_last_branch(device, int(branch)):
        return not_used(c, Unusable.LEGACY, str(LAST_BEFORE_TURING), loaded)
    return None


def rejected_module(c: Context) -> str | None:
    """Return the last line in which the kernel did not load a module because of its signature."""
    lines = c.node.system.kernel_log
    return next((x for x in reversed(() if isinstance(lines, Missing) else lines) if module_rejected(x)), None)
