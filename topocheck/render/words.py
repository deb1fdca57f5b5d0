"""Small phrases that several renderings share."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from topocheck.model.base import Evidence, Missing, State, Verdict

if TYPE_CHECKING:
    from topocheck.topology.types import Topology

STATE_MARKS = {
    State.OK: "ok",
    State.NOTE: "note",
    State.WARN: "WARN",
    State.FAIL: "FAIL",
    State.UNKNOWN: "UNKNOWN",
    State.NOT_APPLICABLE: "n/a",
}
STATE_STYLES = {
    State.OK: "green",
    State.NOTE: "cyan",
    State.WARN: "yellow",
    State.FAIL: "bold red",
    State.UNKNOWN: "magenta",
    State.NOT_APPLICABLE: "dim",
}
VERDICT_STYLES = {
    Verdict.YES: "green",
    Verdict.DEGRADED: "yellow",
    Verdict.NO: "red",
    Verdict.UNKNOWN: "magenta",
}


def gpu_connection(topology: Topology) -> str:
    """Say how the GPUs of a node are connected, such as `NV18 between all 8 GPUs (NVSwitch)`."""
    gpus = topology.gpus
    if not gpus:
        return "no GPUs"
    if len(gpus) == 1:
        return "one GPU"
    addresses = {g.address for g in gpus}
    pairs = Counter(
        p.class_ if isinstance(p.class_, str) else "unknown"
        for p in topology.paths
        if p.from_ in addresses and p.to in addresses and p.from_ < p.to
    )
    switched = any(g.kind == "switch" for g in topology.nvlink_groups)
    if len(pairs) == 1:
        only = next(iter(pairs))
        through = " (NVSwitch)" if switched and only.startswith("NV") else ""
        which = "the two" if len(gpus) == 2 else f"all {len(gpus)}"
        return f"{only} between {which} GPUs{through}{_unused(topology)}"
    told = ", ".join(f"{c} for {n} pairs" if n != 1 else f"{c} for 1 pair" for c, n in sorted(pairs.items()))
    return told + _unused(topology)


def _unused(topology: Topology) -> str:
    """Say which GPUs' NVLinks lie idle: MIG takes them away, though driver and matrix go on showing them."""
    split = [g for g in topology.gpus if g.nvml is not None and g.nvml.mig_current is True]
    if not split or not topology.nvlink_groups:
        return ""
    names = "all" if len(split) == len(topology.gpus) else ", ".join(g.label for g in split)
    return f"; {names} split by MIG, without use of NVLink"


def evidence_line(e: Evidence) -> str:
    """Return where something was read and what stood there; an answer that was none is put in brackets."""
    return f"{e.source}: ({e.raw[1:]})" if e.raw.startswith("!") else f"{e.source}: {e.raw}"


def plural(n: int, one: str, many: str | None = None) -> str:
    """Return `1 GPU`, `2 GPUs`."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def gib(size_bytes: int | Missing) -> str:
    """Return bytes in GiB or MiB, or `?` with the reason."""
    if isinstance(size_bytes, Missing):
        return f"? ({size_bytes.reason.value})"
    return f"{size_bytes / 2**30:.0f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
