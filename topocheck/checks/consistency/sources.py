"""What should agree and does not: siblings with each other, NVML with sysfs, nvidia-smi with topocheck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.bar_windows import narrow_windows
from topocheck.checks.shared.common import listed, living, named, quote
from topocheck.checks.shared.fixes import Fix, first_fitting, in_guest
from topocheck.checks.shared.pcie_links import Link, links
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import ABSENT, Finding, Missing, State, known
from topocheck.model.gpu import NvmlGpu
from topocheck.topology.paths import joined_to_cpu
from topocheck.topology.types import Gpu


class _Trait(msgspec.Struct, frozen=True):
    """Something that equal GPUs of one node should share; `call` is where NVML says it."""

    name: str
    of: Callable[[NvmlGpu], object]
    call: str
    state: State
    consequence: str


def _link_speed(gpu: NvmlGpu) -> object:
    found = {x.speed_mb_s for x in gpu.nvlinks if x.active is True and isinstance(x.speed_mb_s, int)}
    return min(found) if found else ABSENT


_TRAITS = (
    _Trait("BAR1 size in bytes", lambda g: g.bar1_total_bytes, "DeviceGetBAR1MemoryInfo", State.WARN,
           "peers and NICs reach one GPU's memory in another way than its siblings'"),
    _Trait("memory in bytes", lambda g: g.memory_total_bytes, "DeviceGetMemoryInfo", State.WARN,
           "a job sized for one GPU does not fit the other"),
    _Trait("number of NVLinks", lambda g: g.nvlink_count, "FieldValue(91)", State.WARN,
           "the GPU may be another board under the same name, or have lost links"),
    _Trait("NVLink speed in MB/s", _link_speed, "NVLink 0 speed", State.WARN,
           "collectives run at the pace of the slower GPU"),
    _Trait("ECC mode", lambda g: g.ecc_current, "DeviceGetEccMode", State.WARN,
           "memory size and bandwidth differ, and errors pass unseen on one of them"),
    _Trait("largest PCIe generation", lambda g: g.pcie_gen_max, "DeviceGetMaxPcieLinkGeneration", State.NOTE,
           "one GPU copies slower than its siblings by design of the slot"),
    _Trait("MIG mode", lambda g: g.mig_current, "DeviceGetMigMode", State.NOTE,
           "jobs over several GPUs have no peer access to the split one"),
    _Trait("VBIOS", lambda g: g.vbios, "DeviceGetVbiosVersion", State.NOTE,
           "power limits and clocks may differ"),
    _Trait("compute mode", lambda g: g.compute_mode, "DeviceGetComputeMode", State.NOTE,
           "a second process is refused on one GPU and not on the other"),
    _Trait("persistence mode", lambda g: g.persistence_mode, "DeviceGetPersistenceMode", State.NOTE,
           "the first job on one GPU waits for the driver to set it up"),
)  # fmt: skip


def _families(context: Context) -> list[list[Gpu]]:
    """Return GPUs of one name, where there are several."""
    by_name: dict[str, list[Gpu]] = {}
    for gpu in living(context):
        if gpu.nvml is not None and isinstance(gpu.name, str):
            by_name.setdefault(gpu.name, []).append(gpu)
    return [g for g in by_name.values() if len(g) > 1]


@check(
    "consistency.siblings-differ",
    title="GPUs of one model on this node differ",
    severity=State.WARN,
    reads=("NVML: BAR1, memory, NVLinks, ECC, MIG, VBIOS, modes", "PCIe width of each GPU"),
    needs=Needs((*GPUS, "gpu name"), ("gpu", "nvlink counters", "link", "config")),
)
def siblings_differ(context: Context) -> Iterator[Finding]:
    """GPUs of one model on this node differ.

    Looks at:
        What equal GPUs should share: BAR1, memory, number and speed of NVLinks, ECC, the slot's generation, the
        width of the link, MIG, VBIOS, compute and persistence mode. The odd ones out are named.

    Why it matters:
        Collectives run at the pace of the odd one, and a job that works on one GPU fails on another.

    Fix:
        By the trait: nvidia-smi -e (ECC, needs a reset), -c (compute mode), -pm (persistence mode), -mig; a VBIOS or
        memory that differs is a matter of the supplier; a width that differs is the slot or a fault.

    Does not apply:
        With one GPU of a model. GPUs of different models are not compared. Widths that both ends explain are
        `pcie.slot-below-card`, those below both ends `pcie.link-width`.
    """
    families = _families(context)
    if not families:
        raise not_applicable("no two GPUs of one model")
    every = {link.lower.address: link for link in links(context) if link.own and not link.formal}
    for gpus in families:
        for trait in _TRAITS:
            # A BAR1 that has no room is `pcie.bridge-window-small`, which says why.
            bar1 = trait.call == "DeviceGetBAR1MemoryInfo"
            without = narrow_windows(context) if bar1 else {}
            values = {g.address: trait.of(g.nvml) for g in gpus if g.nvml is not None and g.address not in without}
            yield from _odd(gpus, trait, values, unless_lost(context, trait.state, "pci") if bar1 else trait.state)
        yield from _widths(context, gpus, every)
        yield from _silent(gpus)


def _silent(gpus: list[Gpu]) -> Iterator[Finding]:
    """Name a GPU that does not tell what all its siblings tell: its driver is in trouble with it."""
    for gpu in gpus:
        others = [g.nvml for g in gpus if g is not gpu and g.nvml is not None]
        nvml = gpu.nvml
        if nvml is None or nvml.mig_current is True:
            continue
        lost = [
            t
            for t in _TRAITS
            if t.of is not _link_speed and isinstance(t.of(nvml), Missing) and all(known(t.of(o)) for o in others)
        ]
        if lost:
            yield Finding(
                state=State.UNKNOWN,
                subject=named(gpu),
                devices=(gpu.address,),
                title=f"does not report {listed(t.name for t in lost)}, its siblings do",
                consequence="what is not reported cannot be judged; a failing GPU often answers like this",
                evidence=tuple(e for t in lost[:4] for e in quote(nvml, t.call, t.of(nvml))),
                rule="GPUs of one model answer the same questions",
                fix="look for Xid errors in dmesg; reset the GPU (ends all that runs on it)",
            )


def _odd(gpus: list[Gpu], trait: _Trait, values: dict[str, object], state: State) -> Iterator[Finding]:
    told = {a: v for a, v in values.items() if not isinstance(v, Missing)}
    counts = Counter(told.values())
    if len(counts) < 2:
        return
    usual, n = counts.most_common(1)[0]
    majority = n * 2 > len(told)
    odd = [g for g in gpus if g.address in told and told[g.address] != usual]
    shown = "; ".join(f"{g.label} {_show(told[g.address])}" for g in odd[:4])
    yield Finding(
        state=state,
        subject=named(odd[0]) if majority and len(odd) == 1 else "node",
        devices=(odd[0].address,) if majority and len(odd) == 1 else (),
        title=f"{trait.name}: {shown}; {n} of this model {_show(usual)}",
        consequence=trait.consequence,
        evidence=tuple(
            e for g in (odd[0], *_first(gpus, told, usual)) for e in quote(g.nvml, trait.call, told[g.address])
        ),
        rule="GPUs of one model on a node should share this",
        fix=_fix(trait.name, gpus, told),
    )


def _first(gpus: list[Gpu], told: dict[str, object], value: object) -> list[Gpu]:
    return [g for g in gpus if g.address in told and told[g.address] == value][:1]


def _show(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


_FIXES = {
    "ECC mode": "nvidia-smi -i {gpus} -e 1, then reset the GPU (ends all that runs on it)",
    "compute mode": "nvidia-smi -i {gpus} -c 0",
    "persistence mode": "systemctl enable --now nvidia-persistenced",
    "MIG mode": "nvidia-smi -i {gpus} -mig 0, if jobs over several GPUs are to run here (ends all that runs on it)",
    "BAR1 size in bytes": "its siblings have the large window, so Resizable BAR is on: give PCIe more address space in "
    "the firmware setup (needs a reboot), or try another slot; on professional cards with display outputs switch these "
    "off (NVIDIA's displaymodeselector)",
}


_TO_CHANGE: dict[str, Callable[[object], bool]] = {
    "ECC mode": lambda value: value is False,
    "compute mode": lambda value: value not in (0, "Default"),
    "MIG mode": lambda value: value is True,
}
"""Trait -> the values that its fix changes."""


def _fix(name: str, gpus: list[Gpu], told: dict[str, object]) -> str | None:
    """Return what to do about a trait, with the numbers of the GPUs that it is to be done to."""
    wrong = _TO_CHANGE.get(name)
    asked = [g for g in gpus if wrong is not None and g.address in told and wrong(told[g.address])]
    numbers = [str(g.index) for g in asked if isinstance(g.index, int)]
    text = _FIXES.get(name)
    return text.replace("{gpus}", ",".join(numbers) or "N") if text else None


_NARROWER = (
    Fix("ask the host's administrator: a narrower slot, or a link that lost lanes", (in_guest,)),
    Fix("compare LnkCap of the ports above both in `lspci -vvv` (as root): a narrower slot, or a link that lost lanes"),
)


def _widths(context: Context, gpus: list[Gpu], every: dict[str, Link]) -> Iterator[Finding]:
    """Name GPUs with fewer lanes than their siblings, where the far end cannot be seen, so that no other check can."""
    found: dict[str, tuple[Link, int]] = {}
    for g in gpus:
        link = every.get(g.address)
        if link is not None and isinstance(link.now.width_lanes, int) and not link.suspended:
            found[g.address] = (link, link.now.width_lanes)
    most = max((w for _, w in found.values()), default=0)
    for gpu in gpus:
        if gpu.address in found and found[gpu.address][1] < most and not found[gpu.address][0].both_ends:
            link, width = found[gpu.address]
            yield Finding(
                state=unless_lost(context, State.WARN, "hypervisor", "pci"),
                subject=named(gpu),
                devices=(gpu.address,),
                title=f"its link has x{width}, a sibling's x{most}",
                consequence=f"it copies at {100 * width // most} % of its sibling's rate",
                evidence=link.evidence("width"),
                rule="GPUs of one model on a node should have links of one width",
                fix=first_fitting(context, *_NARROWER),
            )


@check(
    "consistency.nvml-vs-sysfs",
    title="NVML and the kernel disagree about a GPU",
    severity=State.WARN,
    reads=("NVML DeviceGetPciInfo, DeviceGetCurrPcieLinkWidth", "/sys/bus/pci/devices/*/current_link_width"),
    needs=Needs(GPUS, ("gpu", "link")),
)
def nvml_vs_sysfs(context: Context) -> Iterator[Finding]:
    """NVML and the kernel disagree about a GPU.

    Looks at:
        The width of each GPU's link, and whether the GPUs that NVML lists are on the PCI bus.

    Why it matters:
        One of the two is wrong, and NCCL mixes both: it takes a GPU's link from NVML and the switches from sysfs.

    Fix:
        Look again; if it stays, update the driver. A GPU outside /sys means that the container hides it: mount /sys.

    Does not apply:
        Speeds are not compared: both are read at different moments, and a GPU changes its speed with its work. Nor
        are GPUs joined to their CPU by a chip-to-chip link, or suspended ones.
    """
    gpus = [g for g in living(context) if g.nvml is not None]
    if not gpus:
        raise not_applicable("NVML lists no GPU")
    if isinstance(context.node.pci.devices, Missing):
        raise not_applicable("the PCI bus is not visible here")
    by_link = {link.lower.address: link for link in links(context) if link.own}
    for gpu in gpus:
        if gpu.pci is None:
            yield Finding(
                state=State.WARN,
                subject=named(gpu),
                devices=(gpu.address,),
                title="NVML lists it, and /sys has no such PCI device",
                consequence='its place in the tree cannot be known; NCCL fails with "could not find real path"',
                evidence=quote(gpu.nvml, "DeviceGetPciInfo", gpu.address),
                rule="every GPU of NVML is a function below /sys/bus/pci/devices",
                fix="mount /sys read-only into the container",
            )
            continue
        link, nvml = by_link.get(gpu.address), gpu.nvml
        if nvml is None or link is None or link.formal or link.suspended or joined_to_cpu(gpu):
            continue
        here, there = nvml.pcie_width_current, gpu.pci.current_width_lanes
        if isinstance(here, int) and isinstance(there, int) and known(link.now.width_lanes) and here != there:
            yield Finding(
                state=State.WARN,
                subject=named(gpu),
                devices=(gpu.address,),
                title=f"NVML says x{here}, the kernel x{there} for its link",
                consequence="NCCL plans with NVML's value, other tools with the kernel's",
                evidence=quote(nvml, "DeviceGetCurrPcieLinkWidth", here) + quote(gpu.pci, "current_link_width", there),
                rule="both read the same register",
                fix="re-run; if it persists, update the driver",
            )


@check(
    "consistency.smi-matrix-differs",
    title="nvidia-smi's matrix differs from topocheck's, or there is none",
    severity=State.WARN,
    reads=("nvidia-smi topo -m", "nvidia-smi topo -mp"),
    needs=Needs(("matrix",), (*GPUS, "nvlinks")),
)
def smi_vs_ours(context: Context) -> Iterator[Finding]:
    """nvidia-smi's matrix differs from topocheck's, or there is none.

    Looks at:
        Each cell of `nvidia-smi topo -m` against the class that topocheck derives from sysfs and NVML. Only in runs
        with the cross-check, since nvidia-smi is slow.

    Why it matters:
        Scripts that read the matrix decide on it; where the two differ, one of them is wrong, and the tree tells.

    Fix:
        Look at the PCI tree of the pair (`topocheck report`). Where nvidia-smi prints no matrix, update the driver;
        tools that need it lose their topology, topocheck does not.

    Does not apply:
        Without the cross-check. Cells that either side does not tell are left out.
    """
    smi = context.node.smi_topo
    if smi.matrix is None:
        if not smi.error:
            raise not_applicable("the run was not asked for a cross-check")
        if not context.topology.gpus:
            raise not_applicable("no NVIDIA GPU, so nvidia-smi has no matrix")
        yield Finding(
            state=unless_lost(context, State.WARN, "matrix"),
            subject="node",
            title=f"`nvidia-smi topo -m` gives no matrix: {smi.error}",
            consequence="tools that read it see no topology; topocheck's comes from sysfs and NVML",
            evidence=smi.evidence("topo -m"),
            rule="nvidia-smi topo -m should end with 0 and a matrix",
            fix="update the driver; compare `topocheck report --section matrix`",
        )
        return
    matrix = smi.matrix
    paths = context.topology.paths
    ours = {(p.from_label, p.to_label): p.pcie_class if matrix.kind == "mp" else p.class_ for p in paths}
    off = []
    for row, cells in matrix.cells.items():
        for column, word in cells.items():
            mine = ours.get((matrix.device_name(row), matrix.device_name(column)))
            if isinstance(mine, str) and mine != word:
                off.append((row, matrix.device_name(column), word, str(mine)))
    if off:
        yield Finding(
            state=State.WARN,
            subject="node",
            title="nvidia-smi and the PCI tree differ: "
            + listed((f"{a}-{b} {word} against {mine}" for a, b, word, mine in off), 4),
            consequence="scripts that read nvidia-smi's matrix place ranks by it",
            evidence=smi.evidence("topo -m"),
            rule="both must give the same class",
            fix="check the pair in `topocheck report`; report the difference if the tree is right",
        )
