"""NCCL's settings of distance."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.p2p_pairs import pairs
from topocheck.checks.shared.settings import (
    active_nics,
    in_force,
    installed_version,
    judged_version,
    place,
    quoted,
    values,
    version_evidence,
    version_words,
)
from topocheck.model.base import Evidence, Finding, State, Verdict
from topocheck.topology.types import Path

_READS = ("environment NCCL_*", "NCCL_CONF_FILE or ~/.nccl.conf", "/etc/nccl.conf")


@check(
    "nccl.p2p-level-set",
    title="NCCL_P2P_LEVEL is set by hand",
    severity=State.NOTE,
    reads=_READS,
    scope=Scope.PROCESS,
)
def p2p_level_set(c: Context) -> Iterator[Finding]:
    """NCCL_P2P_LEVEL narrows or widens the distance over which GPUs talk directly.

    Looks at:
        The level against the default, and the ways between the GPUs here.

    Why it matters:
        A narrow level on an NVLink machine also bounds which PCIe pairs may help. A wide one sends traffic across
        host bridges, which some CPUs forward slower than shared memory does.

    Fix:
        Unset it, measure both, and keep it only if it wins.

    Does not apply:
        Where it is unset or switches P2P off altogether (`nccl.transport-disabled`).
    """
    s = in_force(c).get("NCCL_P2P_LEVEL")
    level = values(c).level("NCCL_P2P_LEVEL")
    if s is None or level is None or level == "LOC":
        raise not_applicable("NCCL_P2P_LEVEL is not set to a distance")
    far = [p for p in _gpu_paths(c) if p.pcie_class in ("PHB", "NODE", "SYS") and not p.nvlinks]
    narrow = level in ("NVL", "NVB", "C2C", "PIX") and bool(c.topology.nvlink_groups)
    wide = level in ("PHB", "SYS") and bool(far)
    if not narrow and not wide:
        return
    what = (
        f"{len(far)} GPU pairs then talk across host bridges, which may be slower than shared memory"
        if wide
        else "pairs that NVLink does not join lose PCIe"
    )
    yield Finding(
        state=State.NOTE,
        subject=place(s),
        title=f"NCCL_P2P_LEVEL={s.value}: {what}",
        consequence="slower than the default on some hosts",
        evidence=quoted(s),
        rule="the default, PXB on most hosts",
        fix="unset NCCL_P2P_LEVEL, measure both, keep the faster",
    )


def _gpu_paths(c: Context) -> list[Path]:
    gpus = {g.address for g in c.topology.gpus}
    return [p for p in c.topology.paths if p.from_ in gpus and p.to in gpus]


@check(
    "nccl.p2p-level-default",
    title="NCCL's default keeps PCIe P2P off on this AMD host",
    severity=State.NOTE,
    reads=("/proc/cpuinfo", "PCI tree", "installed NCCL", "NCCL_P2P_LEVEL"),
    scope=Scope.PROCESS,
)
def p2p_level_default(c: Context) -> Iterator[Finding]:
    """From NCCL 2.23.4 on, an AMD host with more than two GPUs on host bridges gets no PCIe P2P by default.

    Looks at:
        The CPU's maker, the number of GPUs, whether pairs that peer access joins stand on different root ports, and
        NCCL_P2P_LEVEL. Rule: knowledge of NCCL's default level by version (PXB since 2.23.4; SYS for two GPUs).

    Why it matters:
        After an upgrade the log shows SHM where it showed P2P, and collectives may be slower.

    Fix:
        Measure both. If P2P is faster, and a copy test with checked data passes, set `NCCL_P2P_LEVEL=SYS` for
        this type of host only.

    Does not apply:
        On other CPUs, for two GPUs or fewer, with NVLink, and with an older NCCL. Nor to pairs whose peer access is
        not to be trusted: ACS or the IOMMU stands in the way, or the product is sold without it.
    """
    if c.node.system.cpu_vendor not in ("AuthenticAMD", "AMD", "amd") or len(c.topology.gpus) <= 2:
        raise not_applicable("not an AMD host with more than two GPUs")
    if "NCCL_P2P_LEVEL" in in_force(c) or "NCCL_P2P_DISABLE" in in_force(c):
        raise not_applicable("the level is set by hand")
    if judged_version(c) < (2, 23, 4):
        raise not_applicable("NCCL before 2.23.4 allows it")
    # Not where another finding says that the pair is not to be trusted: ACS, the IOMMU, a product sold without P2P.
    able = {(v.from_, v.to) for v in c.gpudirect.p2p if v.link == "pcie" and v.verdict is Verdict.YES}
    held = [
        p.path
        for p in pairs(c)
        if (p.a.address, p.b.address) in able and p.path.pcie_class in ("PHB", "NODE", "SYS") and not p.sold_without
    ]
    if not held:
        return
    yield Finding(
        state=State.NOTE,
        subject="node",
        title=f"{len(held)} GPU pairs have peer access across host bridges, and NCCL does not use it by default",
        consequence="these pairs copy through shared memory; whether that is slower, only a measurement shows",
        evidence=(
            Evidence("CPU", str(c.node.system.cpu_vendor)),
            Evidence("PCI tree", f"{held[0].from_label} - {held[0].to_label}: {held[0].pcie_class}"),
            *version_evidence(c),
        ),
        rule=f"{version_words(c)}: PXB, or SYS on AMD with at most two GPUs",
        fix="measure with and without NCCL_P2P_LEVEL=SYS; set it for this host type only if it wins and data is right",
    )


@check(
    "nccl.gdr-level-set",
    title="NCCL_NET_GDR_LEVEL is raised where it cannot help",
    severity=State.NOTE,
    reads=_READS,
    scope=Scope.PROCESS,
)
def gdr_level_set(c: Context) -> Iterator[Finding]:
    """NCCL_NET_GDR_LEVEL is raised, and GPUDirect RDMA is not available, or takes a far path.

    Looks at: the level, and the verdicts of the GPU-NIC pairs.

    Why it matters: the level lifts only the rule of distance; module, DMA-BUF and GPU support are tested first. And
    across host bridges or sockets GPUDirect RDMA is often slower than staging.

    Fix: make GPUDirect RDMA available first (`rdma.no-gdr-path`), then drop the setting unless a measurement asks for
    it.

    Does not apply: where it is unset, or switches GPUDirect RDMA off.
    """
    s = in_force(c).get("NCCL_NET_GDR_LEVEL")
    level = values(c).level("NCCL_NET_GDR_LEVEL")
    if s is None or level not in ("PHB", "SYS"):
        raise not_applicable("NCCL_NET_GDR_LEVEL is not raised")
    active = {n.label for n in active_nics(c)}
    pairs = [v for v in c.gpudirect.rdma if v.to_label in active]
    none = bool(pairs) and all(v.verdict is Verdict.NO for v in pairs)
    version = installed_version(c)
    yield Finding(
        state=State.NOTE,
        subject=place(s),
        title=f"NCCL_NET_GDR_LEVEL={s.value}: "
        + ("no GPU-NIC pair here can do GPUDirect RDMA, so it does nothing" if none else "far NICs are used directly"),
        consequence="it lifts the rule of distance only" if none else "may be slower than staging in host memory",
        evidence=(*quoted(s), *(version_evidence(c) if version else ())),
        rule="the default, PXB or P2C",
        fix=f"{'fix rdma.no-gdr-path first, then ' if none else 'measure both, or '}unset NCCL_NET_GDR_LEVEL",
    )
