"""Small phrases that several renderings share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from topocheck.model.base import Evidence, Missing, State, Verdict

if TYPE_CHECKING:
    from topocheck.model.measurement import NotMeasured
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
        p.class_ if isinstance(p.class_, str) else "not known"
        for p in topology.paths
        if p.from_ in addresses and p.to in addresses and p.from_ < p.to
    )
    linked = {p.class_ for p in topology.paths if p.nvlinks}
    switched = any(g.kind == "switch" for g in topology.nvlink_groups)
    hidden = "; NVLink between them is not known" if _links_hidden(topology) else ""
    if len(pairs) == 1:
        only = next(iter(pairs))
        through = " (NVSwitch)" if switched and only in linked else ""
        which = "the two" if len(gpus) == 2 else f"all {len(gpus)}"
        return f"{only} between {which} GPUs{through}{_unused(topology)}{hidden}"
    shown = ", ".join(f"{c} for {plural(n, 'pair')}" for c, n in sorted(pairs.items()))
    return shown + _unused(topology) + hidden


def _links_hidden(topology: Topology) -> bool:
    """Tell whether a class is known of some pair and not whether NVLink joins it."""
    return any(p.nvlinks_untold is not None and not p.nvlinks and isinstance(p.class_, str) for p in topology.paths)


def _unused(topology: Topology) -> str:
    """Say which GPUs' NVLinks lie idle: MIG takes them away, though driver and matrix go on showing them."""
    split = [g for g in topology.gpus if g.nvml is not None and g.nvml.mig_current is True]
    if not split or not topology.nvlink_groups:
        return ""
    names = "all" if len(split) == len(topology.gpus) else ", ".join(g.label for g in split)
    return f"; {names} split by MIG, NVLink not in use"


def evidence_line(e: Evidence) -> str:
    """Return where something was read and what stood there; an answer that was none is put in brackets."""
    return f"{e.source}: ({e.raw[1:]})" if e.raw.startswith("!") else f"{e.source}: {e.raw}"


def plural(n: int, one: str, many: str | None = None) -> str:
    """Return `1 GPU`, `2 GPUs`."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def gib(size_bytes: int | Missing) -> str:
    """Return bytes in GiB or MiB, or `not known` with the reason."""
    if isinstance(size_bytes, Missing):
        return f"not known ({size_bytes.reason.value.replace('_', ' ')})"
    return f"{size_bytes / 2**30:.0f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"


def ranges(labels: Iterable[str]) -> str:
    """Return labels with runs of numbers joined: `GPU0-GPU4, GPU6, mlx5_0-mlx5_7`."""
    runs: list[tuple[str, str]] = []
    for label in labels:
        if runs and follows(runs[-1][1], label):
            runs[-1] = (runs[-1][0], label)
        else:
            runs.append((label, label))
    return ", ".join(a if a == b else f"{a}, {b}" if follows(a, b) else f"{a}-{b}" for a, b in runs)


def follows(one: str, other: str) -> bool:
    """Tell whether the last number of a label is one more than that of another label, and all else the same."""
    a, b = (re.fullmatch(r"(.*?)([0-9]{1,9})([^0-9]*)", x, re.DOTALL) for x in (one, other))
    return a is not None and b is not None and (a[1], a[3], int(a[2]) + 1) == (b[1], b[3], int(b[2]))


def not_measured_lines(rows: Iterable[NotMeasured]) -> list[str]:
    """Return a line for each reason, with the rows that have it."""
    ids_of: dict[str, list[str]] = {}
    for m in rows:
        ids_of.setdefault(m.reason + (f" ({m.next_step})" if m.next_step else ""), []).append(m.id)
    return [
        f"{ids[0]}: {why}" if len(ids) == 1 else f"{ids[0]} and {plural(len(ids) - 1, 'more row')}: {why}"
        for why, ids in ids_of.items()
    ]
