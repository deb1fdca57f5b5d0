"""GPUDirect RDMA: whether it is available between GPUs and NICs, and how far these are from each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, check, not_applicable, once
from topocheck.checks.shared.common import is_guest, listed, living, named
from topocheck.checks.shared.fixes import Fix, first_fitting, in_container
from topocheck.checks.shared.settings import (
    active_nics,
    dotted,
    installed_version,
    no_active_nic,
    version_evidence,
)
from topocheck.checks.sources import GPUDIRECT, NICS, Needs
from topocheck.gpudirect.registration import effort
from topocheck.gpudirect.types import PeerMemoryState, RdmaVerdict
from topocheck.model.base import Evidence, Finding, Missing, ReasonStep, State, Verdict, known
from topocheck.topology.paths import joined_to_cpu
from topocheck.topology.types import Gpu, NearestNics, Path

_NEAR = ("PIX", "PXB")
_SEES_MODULE = (2, 23, 4)
"""First NCCL that looks at /sys/module/nvidia_peermem (knowledge/data/nccl_peermem.tsv)."""


@once
def _able(c: Context) -> list[RdmaVerdict]:
    """Return the verdicts of the pairs that could: the GPU supports it and the NIC has an active port."""
    active = {n.label for n in active_nics(c)}
    if not active:
        raise not_applicable(no_active_nic(c))
    out = [
        v
        for v in c.gpudirect.rdma
        if v.to_label in active and v.registration and not any(r.effect == "no" for r in v.common)
    ]
    if not out:
        raise not_applicable("no GPU here that supports GPUDirect RDMA")
    return out


@check(
    "rdma.no-gdr-path",
    title="GPUDirect RDMA is not available: neither a peer-memory module nor DMA-BUF",
    severity=State.FAIL,
    reads=(
        "/sys/module/nvidia_peermem",
        "/sys/kernel/mm/memory_peers",
        "/proc/driver/nvidia/version",
        "CUDA DMA_BUF_SUPPORTED",
    ),
    needs=Needs(GPUDIRECT),
)
def no_road(c: Context) -> Iterator[Finding]:
    """GPUDirect RDMA is not available: neither a peer-memory module nor DMA-BUF.

    Looks at:
        Each pair of a GPU that supports it and a NIC with an active port. It needs a peer-memory module
        (nvidia_peermem) that is loaded and registered with the RDMA stack; or DMA-BUF: the open NVIDIA
        kernel module, kernel 5.12 or newer and a NIC driver that registers such memory. One of the two is enough.

    Why it matters:
        Without either every byte between hosts is staged in host memory: half the bandwidth or less, and CPU time.
        NCCL says so in a line that a default log does not show.

    Fix:
        `modprobe nvidia-peermem`, and at boot; or the open kernel modules of the NVIDIA driver. A module that is
        loaded and not registered was built against another RDMA stack: install the driver again after OFED.

    Does not apply:
        Where no port is active, and for GPUs sold without GPUDirect RDMA. It fails where the module is loaded and
        does not work; where nothing is loaded it warns if a NIC stands near a GPU, and is a note if none does.
    """
    able = _able(c)
    without = [v for v in able if v.peermem is Verdict.NO and v.dma_buf is Verdict.NO]
    closed_ways = (Verdict.NO, Verdict.UNKNOWN)
    unsure = [
        v
        for v in able
        if v.peermem in closed_ways and v.dma_buf in closed_ways and Verdict.UNKNOWN in (v.peermem, v.dma_buf)
    ]
    if without:
        steps = without[0].registration
        broken = _not_registered(without[0]) is not None
        near = any(_is_near(c, v) for v in without)
        closed = c.node.system.nvidia_module_flavor == "proprietary"
        gpus, nics = dict.fromkeys(v.from_label for v in without), dict.fromkeys(v.to_label for v in without)
        yield Finding(
            state=State.FAIL if broken else State.WARN if near else State.NOTE,
            subject="node",
            title=f"GPUDirect RDMA is not available between {listed(gpus)} and {listed(nics)}: "
            + "; ".join(r.text for r in steps)
            + (" (the NVIDIA kernel module is the proprietary one)" if closed else ""),
            consequence="every byte to another host is staged in host memory, at half the bandwidth or less",
            evidence=tuple(dict.fromkeys((*(e for r in steps for e in r.evidence), *_flavor(c)))),
            rule="a peer-memory module that is registered, or DMA-BUF on both sides",
            fix=_fix(c, steps),
        )
    if unsure:
        steps = unsure[0].registration
        gpus, nics = dict.fromkeys(v.from_label for v in unsure), dict.fromkeys(v.to_label for v in unsure)
        yield Finding(
            state=State.UNKNOWN,
            subject="node",
            title=f"whether GPUDirect RDMA is available between {listed(gpus)} and {listed(nics)} is not known: "
            + "; ".join(r.text for r in steps),
            consequence="if it is not, traffic to other hosts is staged in host memory",
            evidence=tuple(e for r in steps for e in r.evidence),
            rule="a peer-memory module that is registered, or DMA-BUF on both sides",
            fix=_fix(c, steps, or_else="run a job with NCCL_DEBUG=INFO: GDRDMA behind NET/IB says that it is used"),
        )


def _fix(c: Context, steps: Iterable[ReasonStep], or_else: str | None = None) -> str | None:
    """Return the fixes of some steps, the least effort first; modules are the node's: no container can load them."""
    found = "; or ".join(dict.fromkeys(r.fix for r in sorted(steps, key=effort) if r.fix))
    if not found:
        return or_else
    return first_fitting(c, Fix(f"on the node, outside this container: {found}", (in_container,)), Fix(found))


def _not_registered(v: RdmaVerdict) -> ReasonStep | None:
    """Return what says that the peer-memory module is loaded and not registered; None where it is not so."""
    module = v.peer_memory
    return module.step if module is not None and module.state is PeerMemoryState.NOT_REGISTERED else None


def _flavor(c: Context) -> tuple[Evidence, ...]:
    return c.node.system.evidence("/proc/driver/nvidia/version")


def _is_near(c: Context, v: RdmaVerdict) -> bool:
    return joined_to_cpu(c.topology.gpu(v.from_)) or c.topology.path(v.from_, v.to).pcie_class in _NEAR


@check(
    "rdma.peermem-not-registered",
    title="The peer-memory module is loaded and the RDMA stack does not know it",
    severity=State.WARN,
    reads=("/sys/module/nvidia_peermem/version", "/sys/kernel/mm/memory_peers", "/proc/modules"),
    needs=Needs(GPUDIRECT, ("nccl",)),
)
def peermem_not_registered(c: Context) -> Iterator[Finding]:
    """nvidia_peermem is loaded, and nothing of NVIDIA's stands under memory_peers.

    Looks at:
        The module, what is registered under /sys/kernel/mm/memory_peers, the module's users, and NCCL's version.

    Why it matters:
        The module was built against another RDMA stack (an inbox one has no such interface) and does nothing. NCCL
        up to 2.22 looks only under memory_peers and says "Disabled"; from 2.23.4 on it takes the module's presence
        for a yes, and the job fails when it registers GPU memory.

    Fix:
        Use DMA-BUF (open kernel modules), or install the NVIDIA driver again after the vendor's RDMA stack.

    Does not apply:
        Where DMA-BUF works for every pair: NCCL from 2.13.4 on prefers it.
    """
    able = _able(c)
    step = _not_registered(able[0])
    if step is None:
        return
    version = installed_version(c)
    if all(v.dma_buf is Verdict.YES for v in able) and (version is None or version >= (2, 13, 4)):
        return
    if version is None:
        effect = "NCCL before 2.23.4 says GPUDirect RDMA is disabled; a newer one believes in it and fails when it "
        effect += "registers GPU memory"
    elif version < _SEES_MODULE:
        effect = f"NCCL {dotted(version)} does not see the module and says that GPUDirect RDMA is disabled"
    else:
        effect = f"NCCL {dotted(version)} assumes that the module works, and fails when it registers GPU memory"
    # That DMA-BUF does not work is known of some pair, or else only that nobody could tell.
    closed = any(v.dma_buf in (Verdict.NO, Verdict.DEGRADED) for v in able)
    yield Finding(
        state=State.WARN if closed else unless_lost(c, State.WARN, "pci", "driver", "cuda", "modules", "params"),
        subject="node",
        title=step.text.removeprefix("peer memory: "),
        consequence=effect,
        evidence=(*step.evidence, *version_evidence(c)),
        rule="a loaded module appears under /sys/kernel/mm/memory_peers",
        fix=_fix(c, able[0].registration),
    )


@check(
    "rdma.nearest-nic-far",
    title="The nearest NIC of a GPU is across a host bridge or socket",
    severity=State.WARN,
    reads=("PCI tree", "/sys/bus/pci/devices/*/numa_node"),
    needs=Needs((*NICS, "hypervisor"), ("node", "numa")),
)
def nearest_nic_far(c: Context) -> Iterator[Finding]:
    """The nearest NIC with an active port shares no PCIe switch with a GPU.

    Looks at:
        The class of the way from each GPU to its nearest active NIC, and that of its siblings on this machine.

    Why it matters:
        By default NCCL uses GPUDirect RDMA only where GPU and NIC share a PCIe switch (PIX, PXB). Across the host
        bridge data is staged in host memory; across sockets it also passes the link between the CPUs.

    Fix:
        Where the machine has slots for it, move the card. Otherwise accept it; `NCCL_NET_GDR_LEVEL=PHB` lifts the
        rule and is worth having only where a measurement says so.

    Does not apply:
        In guests (the hypervisor draws the tree), for GPUs joined to their CPU by C2C, and as more than a note
        where half of the GPUs or more have no near NIC: then it is the machine's design, unless all NICs are on the
        other socket. A near NIC that is down is `rdma.port-down`.
    """
    if is_guest(c):
        raise not_applicable("a guest: the hypervisor draws the PCI tree")
    nics = active_nics(c)
    if not nics:
        raise not_applicable(no_active_nic(c))
    gpus = [g for g in living(c) if not joined_to_cpu(g)]
    if not gpus:
        raise not_applicable("no GPU that answers and reaches NICs by PCIe")
    best = {g.address: _best(c, g) for g in gpus}
    placed = {v.gpu: v.class_ for v in c.topology.nearest_nics}
    classes = [v.class_ for v in best.values() if known(v.class_)]
    near = sum(k in _NEAR for k in classes)
    all_across = bool(classes) and all(k == "SYS" for k in classes) and all(known(g.cpu_node) for g in gpus)
    far: list[tuple[Gpu, NearestNics]] = []
    for g in gpus:
        word = best[g.address].class_
        if isinstance(word, Missing):
            title = f"how far {g.label} is from its nearest NIC is not known: {word}"
            yield Finding(state=State.UNKNOWN, subject=named(g), devices=(g.address,), title=title)
        elif word not in _NEAR and placed.get(g.address) not in _NEAR:
            far.append((g, best[g.address]))
    if near:
        # With as many far as near GPUs there are fewer NICs than switches, which is a way to build a machine.
        several = near <= len(far)
        state = State.NOTE if several else unless_lost(c, State.WARN, "rdma", "pci", "node", "numa")
        rule = f"{near} siblings on this machine have a NIC behind their own switch"
        if not several:
            for g, v in far:
                yield _far([g], state, v, rule, alone=True)
        elif far:
            yield _far([g for g, _ in far], state, far[0][1], rule)
    elif far:
        state, rule = (State.WARN, "some GPU is on the NIC's socket") if all_across else (State.NOTE, "PIX or PXB")
        state = unless_lost(c, state, "rdma", "pci", "node", "numa")
        yield _far([g for g, _ in far], state, far[0][1], rule)


@once
def _to_active(c: Context) -> dict[str, list[Path]]:
    """Return the paths to the NICs that are up, by GPU."""
    up = {n.label for n in active_nics(c)}
    out: dict[str, list[Path]] = {}
    for p in c.topology.paths:
        if p.to_label in up:
            out.setdefault(p.from_, []).append(p)
    return out


def _best(c: Context, g: Gpu) -> NearestNics:
    """Return the nearest NICs of a GPU among those that are up."""
    order = ("PIX", "PXB", "PHB", "NODE", "SYS")
    found = [(p.pcie_class, p.to) for p in _to_active(c).get(g.address, ())]
    told = [(k, to) for k, to in found if isinstance(k, str) and k in order]
    if not told:
        why = next((k for k, _ in found if isinstance(k, Missing)), None)
        return NearestNics(gpu=g.address, nics=(), **({"class_": why} if why is not None else {}))
    word = min((k for k, _ in told), key=order.index)
    return NearestNics(gpu=g.address, nics=tuple(dict.fromkeys(to for k, to in told if k == word)), class_=word)


def _far(gpus: list[Gpu], state: State, v: NearestNics, rule: str, *, alone: bool = False) -> Finding:
    word = v.class_
    way = {"PHB": "across the host bridge", "NODE": "across host bridges"}.get(str(word), "across NUMA nodes")
    names = listed(g.label for g in gpus)
    return Finding(
        state=state,
        subject=named(gpus[0]) if alone else "node",
        devices=(gpus[0].address,) if alone else (),
        title=f"the nearest active NIC of {names} is {way} ({word})",
        consequence="NCCL stages traffic to other hosts in host memory by default, at a lower rate",
        evidence=tuple(Evidence("PCI tree", f"{v.gpu} - {n}: {word}") for n in v.nics[:2]),
        rule=rule,
        fix="move the NIC to a slot behind the GPU's switch where there is one; else accept it, and set "
        "NCCL_NET_GDR_LEVEL=PHB only after measuring both",
    )
