"""Probes that failed, and what a probe that calls itself well did not bring."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check
from topocheck.checks.shared.driver_state import did_hang, silence
from topocheck.checks.shared.driver_state import probe as probe_of
from topocheck.checks.visibility import nvml_silent, pci_hidden
from topocheck.model.base import Evidence, Finding, Missing, State, known


@check(
    "probe.failed",
    title="A part of the machine could not be looked at",
    severity=State.UNKNOWN,
    reads=("the state of every probe",),
)
def probe_failed(context: Context) -> Iterator[Finding]:
    """A part of the machine could not be looked at.

    Looks at:
        How each probe went: those that failed, crashed or did not answer in time, with the call that hung. What
        must be there and was not shown: the PCI functions of GPUs that NVML or the driver lists, NVML where the
        driver is loaded. And what is more than any machine has, of which only the first part was looked at.

    Why it matters:
        What was not looked at is not known to be healthy. A driver that hangs here will hang jobs too.

    Fix:
        Look at the named file or call by hand. A call of NVML that hangs or crashes is usually a GPU in trouble:
        see dmesg, then reset or reboot. A container that hides /sys: mount it read-only.

    Does not apply:
        Where every probe answered.
    """
    yield from _hidden(context)
    yield from _left_out(context)
    for probe in () if context.node.made_from is not None else context.node.probes:
        if probe.state in ("failed", "timed_out") and not _said_elsewhere(context, probe.name):
            yield Finding(
                state=State.UNKNOWN,
                subject=f"probe {probe.name}",
                title=f"{probe.name}: {'no answer in time' if probe.state == 'timed_out' else 'failed'}"
                + (f" ({probe.detail})" if probe.detail else ""),
                consequence="what it reads is not known, so the node is not called healthy",
                evidence=(Evidence(f"probe {probe.name}", f"{probe.state} {probe.detail}".strip()),),
                rule="every probe must answer",
                fix="check the named file or call by hand; for NVML and CUDA see dmesg, then reset or reboot",
            )


def _left_out(context: Context) -> Iterator[Finding]:
    """Name what was more than is looked at, or judged."""
    cuts = [(f"probe {p.name}", "; ".join(p.left_out[:4])) for p in context.node.probes if p.left_out]
    if context.topology.left_out:
        cuts.append(("node", f"devices: without {context.topology.left_out}"))
    for subject, words in cuts:
        yield Finding(
            state=State.UNKNOWN,
            subject=subject,
            title=f"more than is looked at ({words})",
            consequence="what was left out is not judged",
            evidence=(Evidence(subject, words),),
            rule="within the limits of docs/architecture.md, which no known machine reaches",
            fix="check what lists so many; a driver in trouble may, and a snapshot from elsewhere may be made up",
        )


def _hidden(context: Context) -> Iterator[Finding]:
    """Name what a probe that calls itself well did not bring, where no other check names it."""
    node = context.node
    named_already = {p.name for p in node.probes if p.state in ("failed", "timed_out")}
    pci, nvml = pci_hidden(node), nvml_silent(node)
    in_texts = node.made_from is not None and isinstance(node.pci.devices, Missing)
    if pci is not None and "pci" not in named_already and not in_texts:  # probe.answers-lost says what texts lack
        yield Finding(
            state=State.UNKNOWN,
            subject="probe pci",
            title=f"the PCI tree is hidden from here ({pci})",
            consequence="the PCI tree is hidden, nothing of its links was judged",
            evidence=(Evidence("/sys/bus/pci/devices", str(node.pci.devices) if not known(node.pci.devices) else pci),),
            rule="every GPU that the driver lists is a function below /sys/bus/pci/devices",
            fix="mount /sys read-only into the container, or run topocheck on the node itself",
        )
    if nvml is not None and "nvml" not in named_already and silence(context) is None:
        yield Finding(
            state=State.UNKNOWN,
            subject="probe nvml",
            title=f"the NVIDIA driver is loaded, and NVML reports nothing about its GPUs ({nvml})",
            consequence="NVLink, peer access and health of the GPUs are not known",
            evidence=(Evidence("NVML", nvml),),
            rule="NVML must answer where the driver is loaded",
            fix="run nvidia-smi -q, and check dmesg for NVRM and Xid lines",
        )


def _said_elsewhere(context: Context, name: str) -> bool:
    """Tell whether `driver.not-answering` says why a probe of the driver got nothing."""
    found = silence(context) if name == "nvml" else None
    return found is not None or (name in ("nvml", "cuda") and did_hang(probe_of(context, name)) is not None)
