"""GPUs that NVLink joins: pairs that the driver refuses all the same, and islands."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import listed, living
from topocheck.checks.shared.fixes import on_node
from topocheck.checks.shared.p2p_pairs import GpuPair, devices_of, pairs, status_evidence, subject_of
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Evidence, Finding, Missing, State
from topocheck.topology.types import Gpu


@check(
    "nvlink.p2p-disabled",
    title="NVLink joins two GPUs, yet the driver refuses peer access",
    severity=State.FAIL,
    reads=("NVML DeviceGetNvLinkState", "NVML DeviceGetP2PStatus"),
    needs=Needs((*GPUS, "nvlinks", "mig"), ("peer access",)),
)
def p2p_disabled(context: Context) -> Iterator[Finding]:
    """NVLink joins two GPUs, yet the driver refuses peer access.

    Looks at:
        NVML's P2P status for reads and writes of every pair that active NVLinks join.

    Why it matters:
        NCCL stops with "P2P is disabled between NVLINK connected GPUs". It is the sign of a hardware fault or of a
        fabric that never came up. NCCL_IGNORE_DISABLED_P2P=1 only hides it.

    Fix:
        Start the fabric manager in the driver's version, reset the GPUs together, then power-cycle; then service.

    Does not apply:
        Where MIG splits one of the two, and with confidential computing, which forbids peer access: a note.
    """
    groups: dict[str, list[GpuPair]] = {}
    joined = False
    for p in pairs(context):
        if not p.path.nvlinks or p.split:
            continue
        joined = True
        code = p.code
        if isinstance(code, str) and code != "OK":
            groups.setdefault(code, []).append(p)
    if not joined:
        raise not_applicable("no NVLink joins two GPUs")
    for code, found in groups.items():
        state = unless_lost(context, State.UNKNOWN if code == "U" else State.FAIL, "mig", "confidential")
        if context.node.nvml.conf_computing is True:
            state = State.NOTE
        yield Finding(
            state=state,
            subject=subject_of(found),
            devices=devices_of(found),
            title=f"NVLink is up between {listed(p.labels for p in found)}, and NVML says {code} for peer access",
            consequence="NCCL refuses to start on these GPUs; other programs copy through host memory",
            evidence=status_evidence(context, found[:2]),
            rule="GPUs that NVLink joins must have peer access",
            fix=on_node(
                context,
                "start nvidia-fabricmanager in the driver's version, reset all GPUs together (ends all that runs on "
                "them), then power-cycle; do not hide it with NCCL_IGNORE_DISABLED_P2P",
            ),
        )


@check(
    "nvlink.partial-islands",
    title="NVLink joins some pairs of GPUs and not others",
    severity=State.NOTE,
    reads=("NVML DeviceGetNvLinkRemotePciInfo", "NVML DeviceGetP2PStatus (NVLink)"),
)
def partial_islands(context: Context) -> Iterator[Finding]:
    """NVLink joins some pairs of GPUs and not others.

    Looks at:
        Which GPUs reach each other by NVLink: all of them, or islands, or a mesh with gaps.

    Why it matters:
        Active links on every GPU do not mean that every pair is joined. A job over several islands runs at PCIe
        rate between them, and software that assumes a full mesh may hang.

    Fix:
        None: the machine is built so. Give jobs GPUs of one island.

    Does not apply:
        Where NVLink joins all GPUs or none.
    """
    groups = context.topology.nvlink_groups
    if not groups:
        raise not_applicable("no NVLink joins two GPUs")
    labels = {g.address: g.label for g in context.topology.gpus}
    alive = {g.address for g in living(context) if g.nvml is not None and g.nvml.mig_current is not True}
    whole = any(alive <= set(g.gpus) and g.kind != "partial" for g in groups)
    if whole:
        return
    outside = [g for g in living(context) if g.address not in groups[0].gpus]
    if len(groups) == 1 and groups[0].kind == "switch" and all(map(_none_up, outside)):
        return  # a GPU that fell out of the fabric: nvlink.links-down or nvlink.fabric-not-ready, and no island
    islands = "; ".join("{" + ", ".join(labels.get(a, a) for a in g.gpus) + "}" for g in groups)
    gaps = any(g.kind == "partial" for g in groups)
    yield Finding(
        state=State.NOTE,
        subject="node",
        title=f"NVLink joins {islands}{', not each with each' if gaps else ''}; the other pairs go over PCIe",
        consequence="a job whose GPUs are not joined runs at PCIe rate between them",
        evidence=tuple(
            Evidence("NVML DeviceGetNvLinkRemotePciInfo", f"{p.from_label}-{p.to_label}: {p.class_}")
            for p in context.topology.paths
            if p.nvlinks and p.from_ in alive
        )[:6],
        rule="a full mesh only if every pair is joined",
        fix="choose GPUs of one island for a job (CUDA_VISIBLE_DEVICES)",
    )


def _none_up(gpu: Gpu) -> bool:
    """Tell whether a GPU has NVLinks and none of them is active."""
    links = gpu.nvml.nvlinks if gpu.nvml is not None else ()
    return not isinstance(links, Missing) and bool(links) and not any(x.active is True for x in links)
