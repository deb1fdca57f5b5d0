"""GPUDirect RDMA of a GPU and a NIC.

The least evidence that makes each path `yes`:

* both: the GPU is supported (CUDA's GPUDirect RDMA attribute, or the product where CUDA was not asked), a port of
  the NIC is ACTIVE, the two share a PCIe switch (or the GPU is joined to its CPU by C2C), no IOMMU translates DMA
  and no port between them redirects by ACS;
* peer memory: nvidia_peermem (or the older nv_peer_mem) is loaded *and* registered under memory_peers;
* DMA-BUF: CUDA's DMA-BUF attribute, or the open kernel module on kernel 5.12 or newer; and a NIC driver known to
  register such memory.

One of the two is enough. A way across host bridges or sockets, a translating IOMMU, ACS redirection or a window smaller
than the memory makes it `degraded`. No active port makes it `no`: it could be set up, but nothing would flow. In a
guest with a flat tree closeness is not known, so the verdict stays `unknown`; in one whose hypervisor shows
switches, a NIC without ATS turned on goes by the root complex (`degraded`).
"""

from __future__ import annotations

import msgspec

from topocheck.gpudirect import detours, registration
from topocheck.gpudirect.inputs import (
    UNFINISHED,
    Ground,
    acs_between,
    best_of,
    cuda_lost,
    fabric_trouble,
    no_translation,
    once,
    pcie_path,
    said,
    undriven,
    verdict_of,
    worst_of,
)
from topocheck.gpudirect.types import IommuMode, PciePath, RdmaVerdict
from topocheck.model.base import Effect, Evidence, Missing, ReasonStep, Verdict, is_lost
from topocheck.topology.inventory import by_mellanox
from topocheck.topology.paths import joined_to_cpu, product_of
from topocheck.topology.types import Gpu, Nic, Path


def judge_pair(g: Ground, gpu: Gpu, nic: Nic, path: Path) -> RdmaVerdict:
    """Return the verdict of a GPU and a NIC."""
    blocked = undriven(g, gpu)
    if blocked is not None:
        v = Verdict(blocked.effect)
        return RdmaVerdict(
            from_=gpu.address,
            to=nic.address,
            from_label=gpu.label,
            to_label=nic.label,
            verdict=v,
            peermem=v,
            dma_buf=v,
            common=(blocked,),
        )
    own = _gpu(g, gpu)
    passed = None if g.guest or joined_to_cpu(gpu) else pcie_path(g, gpu.address, nic.address)
    common = (
        own,
        *_partition(g, gpu),
        *_fabric(g, gpu),
        _port(g, nic),
        *_opened(g, nic),
        *_distance(g, gpu, nic, path, passed),
    )
    module, buf = registration.peermem(g), registration.dma_buf(g, gpu, nic)
    peer = module.step
    by_peer, by_buf = Verdict(peer.effect), Verdict(buf.effect)
    verdict = worst_of(verdict_of(common), best_of(by_peer, by_buf))
    # One of the two is enough, so the other's "no" does not weigh in the chain, and needs a fix only if neither works.
    best = best_of(by_peer, by_buf)
    steps = [s if Verdict(s.effect) is best else _unweighed(s, fixed=best is Verdict.YES) for s in (peer, buf)]
    if own.effect == "no":
        # This GPU lets no device into its memory, so neither is worth a fix.
        steps = [msgspec.structs.replace(s, fix=None) for s in steps]
    return RdmaVerdict(
        from_=gpu.address,
        to=nic.address,
        from_label=gpu.label,
        to_label=nic.label,
        verdict=verdict,
        peermem=by_peer,
        dma_buf=by_buf,
        common=common,
        registration=tuple(steps),
        pcie=passed,
        peer_memory=module,
    )


def _unweighed(step: ReasonStep, *, fixed: bool) -> ReasonStep:
    """Return a step that does not weigh in a chain; `fixed`: the other way works, so it needs no fix."""
    return msgspec.structs.replace(step, effect="info", fix=None if fixed else step.fix)


@once
def _gpu(g: Ground, gpu: Gpu) -> ReasonStep:
    """Whether the GPU lets other devices into its memory."""
    attribute = gpu.cuda.gpudirect_rdma if gpu.cuda is not None else None
    if gpu.cuda is not None and isinstance(attribute, bool):
        quoted = said(gpu.cuda, "GPU_DIRECT_RDMA_SUPPORTED", attribute)
        if attribute:
            return ReasonStep(f"{gpu.label} supports GPUDirect RDMA", "yes", quoted)
        return ReasonStep(f"{gpu.label} does not support GPUDirect RDMA", "no", quoted)
    product = product_of(gpu)
    name = str(gpu.name)
    if product is None:
        return ReasonStep(
            f"whether {gpu.label} supports GPUDirect RDMA is not known: CUDA was not asked, and {name} is not in the "
            "product table",
            "unknown",
        )
    quoted = (Evidence("product", name),)
    if product.gpudirect_rdma and cuda_lost(g, gpu, attribute):
        text = f"{gpu.label}'s product line supports GPUDirect RDMA; what CUDA says of it could not be read"
        return ReasonStep(text, "unknown", quoted)
    if product.gpudirect_rdma:
        return ReasonStep(f"{gpu.label}'s product line supports GPUDirect RDMA", "yes", quoted)
    return ReasonStep(f"{gpu.label}'s product line is sold without GPUDirect RDMA", "no", quoted)


@once
def _partition(g: Ground, gpu: Gpu) -> list[ReasonStep]:
    """MIG leaves GPUDirect RDMA in place (NVIDIA Multi-Instance GPU User Guide)."""
    if gpu.nvml is None or gpu.nvml.mig_current is not True:
        return []
    quoted = said(gpu.nvml, "DeviceGetMigMode", "enabled")
    return [ReasonStep(f"{gpu.label} is split by MIG: each instance registers its own memory", "info", quoted)]


@once
def _fabric(g: Ground, gpu: Gpu) -> list[ReasonStep]:
    """A GPU that waits for its fabric cannot be used by CUDA at all (CUDA_ERROR_SYSTEM_NOT_READY, 802)."""
    step = fabric_trouble(g, gpu)
    if step is None or gpu.nvml is None:
        return []
    if step.effect != "unknown" and gpu.nvml.fabric_state not in UNFINISHED:
        return []
    return [step]


@once
def _port(g: Ground, nic: Nic) -> ReasonStep:
    """Whether a port is up."""
    ports = nic.rdma.ports if nic.rdma is not None else ()
    states = {p.port: p.state for p in ports}
    quoted = tuple(e for p in ports for e in said(p, "state", p.state))
    if "ACTIVE" in states.values():
        return ReasonStep(f"{nic.label} has an active port", "yes", quoted)
    unread = [s for s in states.values() if isinstance(s, Missing)]
    if unread or not states:
        return ReasonStep(f"the state of {nic.label}'s ports is not known", "unknown", quoted)
    words = ", ".join(f"port {n} {s}" for n, s in states.items())
    return ReasonStep(
        f"{nic.label} has no active port ({words})",
        "no",
        quoted,
        "cable it and bring the port up, if it is meant to work",
    )


@once
def _opened(g: Ground, nic: Nic) -> list[ReasonStep]:
    """Whether this process may use the NIC. The verdict is of the node: another process may be given the device."""
    why = g.node.net.closed(nic.rdma) if nic.rdma is not None else ""
    if not why or nic.rdma is None:
        return []
    files = g.node.net.verbs_devices
    quoted = (Evidence("/dev/infiniband", "(absent)" if isinstance(files, Missing) else " ".join(files)),)
    fix = "give it the device (rdma.verbs-device-missing)"
    return [ReasonStep(f"not for this process: {why}, so it cannot use {nic.label}", "info", quoted, fix)]


def _distance(g: Ground, gpu: Gpu, nic: Nic, path: Path, passed: PciePath | None) -> list[ReasonStep]:
    """What lies between the two."""
    word = path.pcie_class
    if g.topology.flat_tree:
        return [
            ReasonStep(
                "a guest of a hypervisor that shows a flat bus: how close the two are cannot be seen from here",
                "unknown",
                said(g.node.system, "hypervisor", g.node.system.hypervisor),
                "ask the host's administrator for a topology file (NCCL_TOPO_FILE); ACS and ATS are the host's matter",
            )
        ]
    if isinstance(word, Missing):
        return [ReasonStep(f"how close the two are is not known ({word.detail or word.reason})", "unknown")]
    quoted = (Evidence("PCI tree", f"{gpu.address} - {nic.address}: {word}"),)
    coherent = joined_to_cpu(gpu)
    crosses = path.crosses_nodes
    steps = []
    if word in ("PIX", "PXB"):
        steps.append(ReasonStep(f"the two share a PCIe switch ({word})", "yes", quoted))
    elif coherent and isinstance(crosses, Missing):
        steps.append(
            ReasonStep(
                f"the NIC reaches the GPU's memory by C2C if it is on the GPU's CPU, and through the other CPU if not: "
                f"{crosses.detail or crosses.reason} ({word})",
                "unknown",
                quoted,
                f"update the firmware; until then root can write the node to /sys/bus/pci/devices/{nic.address}"
                "/numa_node (gone after a boot)",
            )
        )
    elif coherent and crosses:
        steps.append(ReasonStep(f"traffic crosses from one CPU to the other ({word})", "degraded", quoted))
    elif coherent:
        steps.append(ReasonStep(f"the NIC reaches the GPU's memory through its CPU by C2C ({word})", "yes", quoted))
    else:
        text = f"traffic crosses {_bridges(word, crosses)} ({word}), at less than the link's rate"
        steps.append(ReasonStep(text, "degraded", quoted))
    if not coherent:
        steps += _in_the_way(g, gpu, nic, passed)
    elif not g.guest and (product := product_of(gpu)) is not None and product.multi_node_fabric:
        steps += _ports_beside_c2c(g, gpu, nic)
    return steps + _window(g, gpu)


def _bridges(word: str, crosses: bool | Missing) -> str:
    """Return what a way without a common switch crosses, in words."""
    if word == "PHB":
        return "a host bridge"
    if isinstance(crosses, Missing):
        return f"host bridges, and NUMA nodes or not: {crosses.detail or crosses.reason}"
    return "NUMA nodes" if crosses else "two host bridges of one NUMA node"


def _in_the_way(g: Ground, gpu: Gpu, nic: Nic, passed: PciePath | None) -> list[ReasonStep]:
    """IOMMU and ACS on bare metal; ATS in a guest, where the host keeps both."""
    if passed is None:
        return [_ats(g, nic)]

    def not_known() -> Effect:
        groups = [g.devices[a].iommu_group for a in (gpu.address, nic.address) if a in g.devices]
        unread = any(isinstance(x, Missing) and is_lost(x) for x in groups)
        return "unknown" if unread or g.is_lost("read:/sys/kernel/iommu_groups/") else "info"

    iommu = []
    if passed.iommu.mode not in (IommuMode.OFF, IommuMode.IDENTITY):
        translated = "the IOMMU translates DMA, so traffic goes up to it"
        fix = f"{no_translation(g.node)} (or the IOMMU off)"
        iommu = [detours.by_iommu(passed, translated, fix, not_known)]
    return [*detours.guest_untold(g), *iommu, *detours.by_acs(passed, "traffic", "traffic makes")]


def _ports_beside_c2c(g: Ground, gpu: Gpu, nic: Nic) -> list[ReasonStep]:
    """ACS on the root ports of a Grace Blackwell (NVIDIA/nodewright-packages pull 111: 360 -> 426 GB/s without)."""
    acs = acs_between(g, gpu.address, nic.address)
    if not acs.redirecting:
        return []
    return [detours.redirected(acs, "ACS redirects at the root ports, so the NIC cannot reach the GPU directly")]


@once
def _ats(g: Ground, nic: Nic) -> ReasonStep:
    enabled = nic.pci.ats_enabled if nic.pci is not None else None
    if nic.pci is not None and not by_mellanox(nic):
        return ReasonStep(f"a guest: its host decides how traffic between {nic.label} and GPUs is routed", "info")
    if nic.pci is not None and nic.pci.ats_supported is False:
        return ReasonStep(
            f"{nic.label} shows no ATS capability in this guest, so traffic goes by the host's root complex",
            "degraded",
            said(nic.pci, "config", "no ATS capability"),
            "the host's administrator turns ATS on (mlxconfig ATS_ENABLED=1) and hands the capability to the guest",
        )
    if nic.pci is None or enabled is None or isinstance(enabled, Missing):
        return ReasonStep(
            f"a guest: without ATS on {nic.label} traffic goes by the host's root complex; whether ATS is on needs "
            "root to read",
            "unknown",
        )
    quoted = said(nic.pci, "config ATSCtl", enabled)
    if enabled:
        return ReasonStep(f"ATS is on for {nic.label}, so translated requests go straight", "info", quoted)
    return ReasonStep(
        f"ATS is off for {nic.label}, so traffic goes by the host's root complex",
        "degraded",
        quoted,
        "the host's administrator turns ATS on (mlxconfig ATS_ENABLED=1)",
    )


@once
def _window(g: Ground, gpu: Gpu) -> list[ReasonStep]:
    """GPUDirect RDMA maps GPU memory through BAR1, so a smaller window bounds what can be registered at a time."""
    nvml = gpu.nvml
    if nvml is not None and any(
        isinstance(x, Missing) and is_lost(x) for x in (nvml.bar1_total_bytes, nvml.memory_total_bytes)
    ):
        return [ReasonStep(f"how large the window to {gpu.label}'s memory (BAR1) is could not be read", "unknown")]
    mib = detours.small_window_mib(nvml)
    if nvml is None or mib is None:
        return []
    text = f"the window to {gpu.label}'s memory (BAR1) is {mib} MiB, and no more can be registered at a time"
    quoted = said(nvml, "DeviceGetBAR1MemoryInfo", nvml.bar1_total_bytes)
    return [ReasonStep(text, "degraded", quoted, detours.LARGER_WINDOW)]
