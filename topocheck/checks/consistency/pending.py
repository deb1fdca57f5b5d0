"""Settings of a GPU that were changed and wait for a reset."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import listed, living, named, quote
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Finding, State, known


@check(
    "consistency.change-pending",
    title="A changed setting of a GPU waits for a reset",
    severity=State.NOTE,
    reads=("NVML DeviceGetMigMode", "NVML DeviceGetEccMode"),
    needs=Needs((*GPUS, "mig")),
)
def change_pending(c: Context) -> Iterator[Finding]:
    """A changed setting of a GPU waits for a reset.

    Looks at:
        MIG and ECC of each GPU: what is in force, and what will be after the next reset.

    Why it matters:
        The next reset or reboot changes the GPU: MIG takes NVLink and peer access away, ECC changes memory size.

    Fix:
        Reset the GPU when it is drained (`nvidia-smi -r`), or set the old value again.

    Does not apply:
        To GPUs that have neither setting.
    """
    gpus = [g for g in living(c) if g.nvml is not None]
    if not any(g.nvml is not None and (known(g.nvml.mig_current) or known(g.nvml.ecc_current)) for g in gpus):
        raise not_applicable("no GPU with MIG or ECC")
    for g in gpus:
        assert g.nvml is not None
        pairs = (
            ("MIG", g.nvml.mig_current, g.nvml.mig_pending, "DeviceGetMigMode"),
            ("ECC", g.nvml.ecc_current, g.nvml.ecc_pending, "DeviceGetEccMode"),
        )
        waits = [(n, new, call) for n, now, new, call in pairs if known(now) and known(new) and now != new]
        if waits:
            yield Finding(
                state=State.NOTE,
                subject=named(g),
                devices=(g.address,),
                title=listed(f"{n} will be {'on' if new else 'off'} after the next reset" for n, new, _ in waits),
                consequence="the next reset or reboot changes what jobs find",
                evidence=tuple(e for n, new, call in waits for e in quote(g.nvml, call, new)),
                rule="what is in force is what is set",
                fix="reset the GPU when it is drained (nvidia-smi -r), or set the old value again",
            )
