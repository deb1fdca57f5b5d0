"""Errors of PCIe links that grow."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check
from topocheck.checks.watch.run import PCIE_PER_MINUTE, READS, evidence, grew, growths, history_in, worst_minute
from topocheck.model.base import Finding, State
from topocheck.overtime.types import Kind


@check("watch.pcie-replays", severity=State.WARN, reads=READS, thresholds=("per_minute",))
def pcie_replays(context: Context) -> Iterator[Finding]:
    """A GPU repeats packets on its PCIe link.

    Looks at:
        The growth of each GPU's replay counter, against NVIDIA's limit of 8 a minute.

    Why it matters:
        A replay is a packet that arrived damaged and was sent again: the link loses bandwidth, and may retrain.

    Fix:
        Reseat the card, riser or cable; try another slot. Compare AER counters at both ends of the link.

    Does not apply:
        Where NVML does not give the counter.
    """
    history = history_in(context)
    limit = context.threshold("watch.pcie-replays", "per_minute", PCIE_PER_MINUTE)
    for address, name, g in growths(history, Kind.GPU, "pcie_replays"):
        if (rate := worst_minute(g)) > limit:
            yield Finding(
                state=State.WARN,
                subject=history.label(address),
                title=f"{rate:.0f} PCIe replays in a minute",
                consequence="copies over this link are slowed, and the link may retrain or fail",
                evidence=evidence(f"NVML {name} {address}", g),
                rule=f"at most {limit:g} a minute (DCGM's limit)",
                fix="reseat the card, riser or cable; try another slot",
            )


@check("watch.aer-errors", severity=State.FAIL, reads=READS, thresholds=("per_minute",))
def aer_errors(context: Context) -> Iterator[Finding]:
    """The kernel counts PCIe errors while the machine runs.

    Looks at:
        The growth of the AER counters of GPUs, NICs and the ports above them: link errors (receiver errors, bad
        packets, replays that ran out or timed out) against 8 a minute; any fatal or non-fatal error.

    Why it matters:
        Errors that were corrected cost bandwidth; a fatal one ends with a lost device.

    Fix:
        Reseat or replace card, riser, cable or slot; `dmesg | grep -i aer` names the errors.

    Does not apply:
        Where the kernel does not own error reporting (firmware first, most virtual machines).
    """
    history = history_in(context)
    limit = context.threshold("watch.aer-errors", "per_minute", PCIE_PER_MINUTE)
    states = {"aer_fatal": State.FAIL, "aer_nonfatal": State.WARN, "aer_link_errors": State.WARN}
    for address, name, g in growths(history, Kind.FUNCTION, *states):
        if not g.increase or (name == "aer_link_errors" and worst_minute(g) <= limit):
            continue
        words = {"aer_fatal": "fatal", "aer_nonfatal": "non-fatal", "aer_link_errors": "correctable link"}[name]
        file = "correctable" if name == "aer_link_errors" else name.removeprefix("aer_")
        yield Finding(
            state=states[name],
            subject=history.label(address),
            title=f"{g.increase} {words} PCIe errors in {g.seconds:.0f} s",
            consequence="the link loses bandwidth, and the device may be lost",
            evidence=evidence(f"/sys/bus/pci/devices/{address}/aer_dev_{file}", g),
            rule=f"at most {limit:g} a minute" if name == "aer_link_errors" else "none",
            fix="reseat card, riser or cable; dmesg names the errors",
        )


NVLINK_NONE = (
    "replay",
    "recovery",
    "link_recoveries_failed",
    "receive_errors",
    "buffer_overruns",
    "effective_errors",
    "malformed_packets",
    "local_link_integrity_errors",
)
NVLINK_CRC_PER_S = 100.0
"""DCGM_LIMIT_MAX_NVLINK_CRC_ERROR; of replays and recoveries its limit is DCGM_LIMIT_MAX_NVLINK_ERROR, 1."""


@check("watch.nvlink-errors", severity=State.WARN, reads=READS, thresholds=("crc_per_second",))
def nvlink_errors(context: Context) -> Iterator[Finding]:
    """The error counters of an NVLink grow.

    Looks at:
        Replays, recoveries and the like of each NVLink, of which there should be none, and CRC errors against
        NVIDIA's limit of 100 a second.

    Why it matters:
        All collectives wait for the slowest link; failed recoveries end jobs with Xid 74 or 149.

    Fix:
        Reset the GPUs; where it returns, have the baseboard, NVLink bridge or cable replaced.

    Does not apply:
        Without NVLink, or where the driver does not give the counters.
    """
    history = history_in(context)
    limit = context.threshold("watch.nvlink-errors", "crc_per_second", NVLINK_CRC_PER_S)
    for subject, name, g in growths(history, Kind.NVLINK, *NVLINK_NONE, "crc"):
        per_s = g.per_s
        if g.increase and (name != "crc" or (isinstance(per_s, float) and per_s >= limit)):
            yield Finding(
                state=State.WARN,
                subject=subject,
                title=f"NVLink {name.replace('_', ' ')} counter grew: {grew(g)}",
                consequence="collectives run at the speed of the slowest link",
                evidence=evidence(f"NVML {name} {subject}", g),
                rule=f"below {limit:g} a second" if name == "crc" else "none",
                fix="reset the GPUs; where it returns, replace baseboard, bridge or cable",
            )
