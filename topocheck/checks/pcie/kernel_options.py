"""Options of the kernel's command line that do not do what they seem to."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import is_guest
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.model.kernel_options import Doubt, Trouble, doubts, pass_through


@check(
    "pcie.kernel-option-ignored",
    title="The kernel ignores an option of its command line that is about PCI or the IOMMU",
    severity=State.NOTE,
    reads=("/proc/cmdline",),
)
def kernel_option_ignored(c: Context) -> Iterator[Finding]:
    """The kernel ignores an option of its command line that is about PCI or the IOMMU.

    Looks at:
        The words of `pci=`, `iommu=`, `intel_iommu=`, `amd_iommu=` and `iommu.passthrough=`: those that the kernel does
        not know, lists that a later one replaces (`pci=disable_acs_redir=` given twice), and settings that a later one
        takes back.

    Why it matters:
        Whoever wrote the word believes that it holds: a word for ACS that the kernel lacks leaves ACS as it is, and of
        two lists of ports only the second counts. What the hardware really does is judged by its registers.

    Fix:
        Remove the word, or write one option with all that it shall say.

    Does not apply:
        To options that are not about PCI or the IOMMU. A note only: what is wrong with the hardware, if anything, is
        said by the checks of ACS and the IOMMU.
    """
    options = c.node.system.kernel_options
    if isinstance(options, Missing):
        raise not_applicable(f"the kernel's command line is not known ({options})")
    if not c.topology.gpus:
        raise not_applicable("no NVIDIA GPU")
    machine = c.node.system.machine
    for d in doubts(options, machine if known(machine) else None):
        yield Finding(
            state=State.NOTE,
            subject="node",
            title=_title(d),
            consequence="the machine does not behave as the option suggests",
            evidence=tuple(Evidence("/proc/cmdline", o) for o in dict.fromkeys((d.option, d.later)) if o),
            rule="every option is one that the kernel's parser knows, and the last value wins",
            fix=_fix(c, d),
        )


def _title(d: Doubt) -> str:
    if d.trouble is Trouble.UNKNOWN:
        return f"the kernel does not know {d.word!r} in {d.option!r} and ignores it"
    if d.trouble is Trouble.REPLACED:
        return f"{d.word!r} has no effect: {d.later!r} replaces it"
    return f"{d.option!r} has no effect: {d.later!r} comes after it"


def _fix(c: Context, d: Doubt) -> str:
    if d.trouble is Trouble.REPLACED:
        return "write one list with all ports, with ; between them"
    if d.trouble is Trouble.TAKEN_BACK:
        return "keep the one that is meant"
    if d.trouble is Trouble.UNKNOWN and d.word == "pt" and known(c.node.system.machine):
        return f"write {pass_through(c.node.system.machine)}: the kernel parses {d.option} on x86 alone"
    if "acs" in d.word and not is_guest(c):
        return "remove it; ACS redirection is switched off per port, with pci=disable_acs_redir=PORT;PORT"
    return "remove it"
