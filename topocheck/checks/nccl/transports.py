"""NCCL's settings against what this machine has: transports switched off, forced, or limited."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.settings import (
    active_nics,
    in_force,
    judged_version,
    place,
    quoted,
    values,
)
from topocheck.checks.sources import GPUDIRECT, PEERS, Needs
from topocheck.gpudirect.types import P2pVerdict
from topocheck.model.base import Finding, State, Verdict, small_number
from topocheck.model.system import Setting
from topocheck.nccl.rules.values import judge_setting
from topocheck.topology.paths import product_of

_READS = ("environment NCCL_*", "NCCL_CONF_FILE or ~/.nccl.conf", "/etc/nccl.conf")


class Loss(msgspec.Struct, frozen=True):
    """What a machine loses by a setting: the state, and why; `cost` where the table's words do not fit here."""

    state: State
    why: str
    cost: str = ""


def _of_pairs(c: Context, some: list[P2pVerdict]) -> str:
    """Return `27 of 28 GPU pairs here`; the two ways of a pair count once."""
    n, of = (len({frozenset((v.from_, v.to)) for v in verdicts}) for verdicts in (some, c.gpudirect.p2p))
    return f"{n} of {of} GPU pairs here"


def _peers(c: Context) -> Loss | None:
    yes = [v for v in c.gpudirect.p2p if v.verdict is Verdict.YES]
    some = [v for v in c.gpudirect.p2p if v.verdict is Verdict.DEGRADED]
    open_ = [v for v in c.gpudirect.p2p if v.verdict is Verdict.UNKNOWN]
    if yes:
        links = " and ".join(sorted({{"nvlink": "NVLink", "pcie": "PCIe"}.get(v.link, v.link) for v in yes}))
        return Loss(State.WARN, f"{_of_pairs(c, yes)} have peer access over {links}")
    if some:
        return Loss(State.NOTE, f"{_of_pairs(c, some)} have peer access with doubts; the setting may be meant")
    return Loss(State.NOTE, "whether GPUs here have peer access is not known") if open_ else None


def _shared_memory(c: Context) -> Loss | None:
    if len(c.topology.gpus) < 2:
        return None
    without = [v for v in c.gpudirect.p2p if v.verdict is not Verdict.YES]
    if without:
        return Loss(State.WARN, f"{_of_pairs(c, without)} have no sure peer access and need shared memory")
    return Loss(State.NOTE, "every GPU pair here has peer access, so little is lost")


def _verbs(c: Context) -> Loss | None:
    nics = active_nics(c)
    return Loss(State.WARN, f"{listed(n.label for n in nics)} would be used") if nics and c.topology.gpus else None


def _gdr(c: Context) -> Loss | None:
    able = [v for v in c.gpudirect.rdma if v.verdict is Verdict.YES]
    if able:
        return Loss(State.WARN, f"{len(able)} GPU-NIC pairs here can do GPUDirect RDMA")
    half = any(v.verdict is not Verdict.NO for v in c.gpudirect.rdma)
    return Loss(State.NOTE, "GPUDirect RDMA here is degraded or not sure, so little may be lost") if half else None


def _dma_buf(c: Context) -> Loss | None:
    able = [v for v in c.gpudirect.rdma if v.dma_buf is Verdict.YES]
    if not able:
        return None
    if any(v.peermem is not Verdict.YES for v in able):
        return Loss(State.WARN, "DMA-BUF is the only way to GPUDirect RDMA here")
    return Loss(State.NOTE, "nvidia_peermem is there and does the job")


NVLS_GAINS_FROM = 5
"""GPUs in one NVSwitch domain from which reducing in the switch beats a ring. With 2 to 4 H100 both reach 365 to
370 GB/s of bus bandwidth, and only from 5 up is NVLS the faster (measurements in NVIDIA/nccl issue 1455)."""


def _switches(c: Context) -> Loss | None:
    multicast = {g.address for g in c.topology.gpus if g.cuda is not None and g.cuda.multicast is True}
    domains = [multicast.intersection(g.gpus) for g in c.topology.nvlink_groups if g.kind == "switch"]
    able = max(domains, key=len, default=set())
    if not able:
        return None
    if len(able) < NVLS_GAINS_FROM and _nodes_fabric(c) is None:
        why = f"with {len(able)} GPUs on the NVSwitch a ring is as fast as reducing in it"
        return Loss(State.NOTE, why, "nothing with these GPUs alone; with more of them it would cost bandwidth")
    return Loss(State.WARN, f"{len(able)} GPUs here can reduce in the NVSwitch")


def _nodes_fabric(c: Context) -> Loss | None:
    products = [product_of(g) for g in c.topology.gpus]
    if any(p is not None and p.multi_node_fabric for p in products):
        return Loss(State.WARN, "these GPUs are joined to other hosts by NVLink")
    return None


def _several_nics(c: Context) -> Loss | None:
    if len(active_nics(c)) > 1 and c.topology.nvlink_groups:
        return Loss(State.NOTE, "there are several NICs, and NVLink to reach the GPU next to each")
    return None


def _indirect(c: Context) -> Loss | None:
    partial = any(g.kind == "partial" for g in c.topology.nvlink_groups)
    return Loss(State.NOTE, "some GPU pairs here reach each other by NVLink through a third") if partial else None


def _gpus(c: Context) -> Loss | None:
    return Loss(State.NOTE, "GPUs are here") if c.topology.gpus else None


SWITCHES: dict[str, tuple[str, Callable[[Context], Loss | None]]] = {
    "NCCL_P2P_DISABLE": ("1", _peers),
    "NCCL_P2P_LEVEL": ("LOC", _peers),
    "NCCL_SHM_DISABLE": ("1", _shared_memory),
    "NCCL_IB_DISABLE": ("nonzero", _verbs),
    "NCCL_NET": ("Socket", _verbs),
    "NCCL_NET_GDR_LEVEL": ("LOC", _gdr),
    "NCCL_NET_GDR_READ": ("0", _gdr),
    "NCCL_DMABUF_ENABLE": ("0", _dma_buf),
    "NCCL_NVLS_ENABLE": ("0", _switches),
    "NCCL_CUMEM_ENABLE": ("0", _gpus),
    "NCCL_MNNVL_ENABLE": ("0", _nodes_fabric),
    "NCCL_PXN_DISABLE": ("1", _several_nics),
    "NCCL_NVB_DISABLE": ("nonzero", _indirect),
}
"""Setting -> (value that switches something off, what this machine loses by it)."""

OWN_CHECKS = frozenset({*SWITCHES, "NCCL_PROTO", "NCCL_IGNORE_DISABLED_P2P"})
"""Settings of the table of harmful values that a check of its own judges."""


def _is_off(c: Context, s: Setting, value: str) -> bool:
    read = values(c)
    if value == "LOC":
        return read.level(s.name) == "LOC"
    if value == "nonzero":
        return read.nonzero(s.name)
    number = small_number(value)
    if number is None:
        return s.value.lower() == value.lower()
    return s.name in read.values and read.integer(s.name, -1) == number


@check(
    "nccl.transport-disabled",
    title="A setting switches off a transport that this machine has",
    severity=State.WARN,
    reads=_READS,
    needs=Needs(("settings",), (*PEERS, *GPUDIRECT, "nccl")),
    scope=Scope.PROCESS,
)
def transport_disabled(c: Context) -> Iterator[Finding]:
    """A setting switches off peer access, shared memory, InfiniBand, GPUDirect RDMA or the like.

    Looks at:
        The switches NCCL has for each, and whether this machine has what is switched off.

    Why it matters:
        Often left over from a search or copied from another cluster's recipe; traffic then goes by host memory or
        TCP, many times slower, and no error is seen.

    Fix:
        Unset it and measure again. Where it works around a fault (P2P that hangs), fix the cause first.

    Does not apply:
        Where the machine has nothing to lose by it. A note where the machine's own path is in doubt, and for
        NCCL_NVLS_ENABLE=0 with fewer than 5 GPUs on one NVSwitch, where a ring is as fast (NVIDIA/nccl issue 1455).
    """
    settings = in_force(c)
    if not settings:
        raise not_applicable("no NCCL setting is in force")
    for name, (value, loses) in SWITCHES.items():
        s = settings.get(name)
        if s is None or not _is_off(c, s, value):
            continue
        loss = loses(c)
        if loss is None:
            continue
        harm = next((p.text for p in judge_setting(name, s.value, judged_version(c)) if p.kind == "risky"), "")
        yield Finding(
            state=loss.state,
            subject=place(s),
            title=f"{name}={s.value} is set; {loss.why}",
            consequence=loss.cost or harm.partition(": ")[2] or "an available transport is not used",
            evidence=quoted(s),
            rule="what the machine has is not switched off",
            fix=f"unset {name} and measure again; if it works around a hang, fix the cause first",
        )
