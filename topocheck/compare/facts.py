"""From a report to what is compared of it. PCI addresses become slots (`gpu3`, `nic0`, `pci12`).

So two nodes of equal wiring are equal even where firmware has numbered the buses differently, while a NIC below
another switch shows. The n-th device of a kind in the order of PCI addresses has slot n.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
from collections import Counter
from collections.abc import Iterator

import msgspec

from topocheck.compare.decode import LeanReport
from topocheck.compare.fields import KINDS
from topocheck.compare.job import job_facts
from topocheck.compare.types import ABSENT, UNKNOWN, UNLIMITED, NodeFacts, NodeFinding, RailPort, Value
from topocheck.model.address import address_key, normalize_address
from topocheck.model.document_host import Doc, GpuDoc, HostDoc, NicDoc, PciDoc

_NOT_THERE = ("absent", "unsupported")
"""Reasons that are an answer: the machine has no such thing. All others mean that nobody could tell."""

_NO_SETTINGS = frozenset(
    """
    RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT PMI_RANK PMI_SIZE PMIX_RANK
    MPI_LOCALRANKID MPI_LOCALNRANKS NCCL_HOSTID CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL
    ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_MPS_PIPE_DIRECTORY
    """.split()
)
"""Variables that say which rank this is, or what its job was given, and so differ by design."""

_OF_A_STEP = ("SLURM", "OMPI_COMM_WORLD_")

_PART = frozenset(name for name in Doc.__struct_fields__)

_KINDS_OF = {
    "gpus": ("gpu", "path"),
    "nics": ("nic", "port", "path"),
    "pci": ("pci", "inventory", "accelerator", "path"),
    "interfaces": ("interface",),
    "numa_nodes": ("numa",),
    "modules": ("module",),
    "software": ("software",),
    "nccl.settings": ("setting",),
}
"""List that may lack entries (`LeanReport.missing`) -> the kinds of slots that are made of it."""


def node_facts(report: LeanReport, *, name: str = "", file: str = "") -> NodeFacts:
    """Return what is compared of a report.

    Args:
        report: the decoded parts.
        name: of the node, where it is known better than the report does (SLURMD_NODENAME); its host name otherwise.
        file: where the report was read from.
    """
    slots = _slots(report)
    devices = dict(_devices(report, slots))
    return NodeFacts(
        name=name or report.host.hostname or file or "unnamed",
        file=file,
        taken_at=report.taken_at,
        hardware_type=_hardware_type(report),
        gpu_model=_gpu_model(report),
        devices=devices,
        untold=tuple(sorted({kind for name in report.missing for kind in _KINDS_OF.get(name, ())})),
        addresses={slot: address for address, slot in slots.items()}
        | {f"label {slots[n.address]}": n.label for n in report.nics},
        approximate=_approximate(report, slots),
        identifiers=_identifiers(report, slots),
        nvlink_domain=_nvlink_domain(report.gpus),
        rails=tuple(_rails(report.nics, slots)),
        bonds={i.name: (i.bond_mode or "", *i.bond_slaves) for i in report.interfaces if i.bond_slaves},
        job=job_facts(report, slots, _nvlink_domain(report.gpus)),
        findings=tuple(NodeFinding(f.id, f.state, f.subject, f.title, f.fix or "") for f in report.findings),
        fingerprint=hashlib.blake2b(msgspec.msgpack.encode(devices), digest_size=12).hexdigest(),
    )


@functools.lru_cache(4096)  # equal nodes have equal addresses
def _order(address: str) -> tuple[int, int, int, int, str]:
    known = normalize_address(address)
    return (*address_key(known or address), "" if known else address)


def _slots(report: LeanReport) -> dict[str, str]:
    """Return address -> slot: GPUs, other accelerators and NICs first, then the bridges."""
    slots: dict[str, str] = {}
    kinds = (
        ("gpu", [g.address for g in report.gpus]),
        ("accelerator", [g.address for g in report.accelerators]),
        ("nic", [n.address for n in report.nics]),
        ("pci", [d.address for d in report.pci if d.class_code is not None and d.class_code >> 8 == 0x0604]),
    )
    for kind, addresses in kinds:
        fresh = sorted({a for a in addresses if a not in slots}, key=_order)
        slots.update((a, f"{kind}{i}") for i, a in enumerate(fresh))
    return slots


def _devices(report: LeanReport, slots: dict[str, str]) -> Iterator[tuple[str, tuple[Value, ...]]]:
    yield "node", _node(report)
    for g in sorted(report.gpus, key=lambda g: _order(g.address)):
        yield slots[g.address], _gpu(g, slots, report.missing)
    for g in sorted(report.accelerators, key=lambda g: _order(g.address)):
        yield slots[g.address], _gpu(g, slots, {})
    for n in sorted(report.nics, key=lambda n: _order(n.address)):
        yield from _nic(n, slots)
    for i in report.interfaces:
        if i.address is not None or i.bond_mode is not None:
            yield f"interface {i.name}", _row("interface", i)
    for m in report.numa_nodes:
        yield f"numa {m.node}", (_value(m, "cpulist"), _joined(m.distances, m, "distances"))
    yield from _pci(report, slots)
    for p in report.paths:
        a, b = slots.get(p.from_), slots.get(p.to)
        if a is not None and b is not None and a < b:
            yield (
                f"path {a}-{b}",
                (p.class_ or UNKNOWN, p.pcie_class or UNKNOWN, UNKNOWN if p.nvlinks is None else p.nvlinks),
            )
    yield from _named(report)


def _value(part: Doc, name: str) -> Value:
    value = getattr(part, name)
    if value is not None and value != {}:
        return value  # type: ignore[no-any-return]  # every field of a Doc is a Value or a list
    reason = part.missing.get(name, ABSENT).split(":", 1)[0]
    return ABSENT if reason in _NOT_THERE else UNKNOWN + reason


def _values(part: Doc, *names: str) -> tuple[Value, ...]:
    return tuple([_value(part, n) for n in names])


def _parameters(host: Doc) -> Value:
    value = host.nvidia_params  # type: ignore[attr-defined]
    if value is None:
        return _value(host, "nvidia_params")
    return " ".join(f"{k}={v}" for k, v in sorted(value.items()))


def _count(part: Doc, name: str) -> Value:
    """Return how many there are of a list; what it is where there is none."""
    value = getattr(part, name)
    return len(value) if isinstance(value, list) else _value(part, name)


def _joined(items: list[str] | list[int] | None, part: Doc, name: str) -> Value:
    return _value(part, name) if items is None else " ".join(map(str, items))


def _row(kind: str, *parts: Doc, **given: Value) -> tuple[Value, ...]:
    """Return the values of a kind's fields, in their order: as given, else of the first part that has such a field."""
    out = []
    for f in KINDS[kind]:
        if f.name in given:
            out.append(given[f.name])
        else:
            out.append(_value(next(p for p in parts if hasattr(p, f.name)), f.name))
    return tuple(out)


def _node(report: LeanReport) -> tuple[Value, ...]:
    h, limits = report.host, report.limits
    untold = report.missing
    row = _row(
        "node",
        h,
        limits,
        gpus=_or_untold(len(report.gpus), "gpus", untold),
        nics=_or_untold(len(report.nics), "nics", untold),
        numa_nodes=_or_untold(len(report.numa_nodes), "numa_nodes", untold),
        nvswitch_devices=_count(h, "nvswitch_devices"),
        memory_peers=_joined(h.memory_peers, h, "memory_peers"),
        kernel_options=_joined(h.kernel_options, h, "kernel_options"),
        iommu_devices=_joined(h.iommu_devices, h, "iommu_devices"),
        # Only which types there are: their numbers follow from the devices.
        iommu_group_types=_or_untold(" ".join(sorted(h.iommu_group_types)), "host.iommu_group_types", untold),
        nvidia_params=_or_untold(_parameters(h), "host.nvidia_params", untold),
        device_files=_device_files(h),
        topo_file_path=_or_untold(
            # A path that could not be looked at is the default one, whether or not a file is there.
            ABSENT if "host.topo_file_path" in untold else _value(h, "topo_file_path"),
            "host.topo_file_path",
            untold,
        ),
        nvidia_gpus_excluded=_or_untold(len(h.nvidia_gpus_excluded), "host.nvidia_params", untold),
        imex_channels=_joined(h.imex_channels, h, "imex_channels"),
        network_plugins=_joined(h.network_plugins, h, "network_plugins"),
        nvidia_persistenced=_or_untold(_service(h, "nvidia-persistenced"), "host.services", untold),
        nvidia_imex=_or_untold(_service(h, "nvidia-imex"), "host.services", untold),
        **{n: UNLIMITED for n in ("memlock_bytes", "nofile", "nproc", "stack_bytes") if _unlimited(limits, n)},
    )
    if "host" not in untold:
        return row
    return tuple(_untold("host", untold) if value == ABSENT else value for value in row)


def _untold(name: str, untold: dict[str, str]) -> str:
    return UNKNOWN + untold[name].split(":", 1)[0]


def _or_untold(value: Value, name: str, untold: dict[str, str]) -> Value:
    """Return what is known of a list, or that it is not known where the list may lack all that is not in it."""
    return _untold(name, untold) if name in untold and (not value or value == ABSENT) else value


def _service(h: HostDoc, name: str) -> Value:
    return h.services.get(name) or _value(h, "services")


def _device_files(h: HostDoc) -> Value:
    """Return how many device files of the driver may be opened, and which may not."""
    if h.device_files is None:
        return _value(h, "device_files")
    refused = [f for f, opens in sorted(h.device_files.items()) if opens is False]
    opened = f"{len(h.device_files) - len(refused)} may be opened"
    return f"{opened}, {' '.join(refused)} not" if refused else opened


def _unlimited(limits: Doc, name: str) -> bool:
    return getattr(limits, name) is None and name not in limits.missing


def _gpu(g: GpuDoc, slots: dict[str, str], untold: dict[str, str]) -> tuple[Value, ...]:
    statuses: Value = ", ".join(f"{n} x {what}" for what, n in sorted(g.p2p_status.items()))
    statuses = _or_untold(statuses or _value(g, "p2p_status"), "gpus.p2p_status", untold)
    links: Value = _nvlinks(g, slots) if g.nvlinks else _or_untold("", "gpus.nvlinks", untold) or "none"
    return _row("gpu", g, nvlinks=links, p2p_status=statuses)


def _nvlinks(g: GpuDoc, slots: dict[str, str]) -> str:
    """Return the links of a GPU in words, such as `18 x up NVLink 4 26562 MB/s to switch`; a far GPU by its slot."""
    counts: Counter[str] = Counter()
    for k in g.nvlinks:
        if not k.active:
            counts["unknown" if k.active is None else "down"] += 1
            continue
        far = f"<{slots[k.remote_address]}>" if k.remote_address in slots else k.remote_type or "unknown"
        counts[f"up NVLink {k.version or '?'} {k.speed_mb_s or '?'} MB/s to {far}"] += 1
    return ", ".join(f"{n} x {what}" for what, n in sorted(counts.items())) or "none"


def _nic(n: NicDoc, slots: dict[str, str]) -> Iterator[tuple[str, tuple[Value, ...]]]:
    slot = slots[n.address]
    virtual = n.physfn is not None
    yield slot, _row("nic", n, physfn=virtual, netdevs=" ".join(n.netdevs))
    for p in n.ports:
        known = _values(p, "state", "phys_state", "link_layer", "rate_gbit_s")
        # A port that is not up shows a default as its rate (ib_port_attr of the drivers), not what it could do.
        rate = known[3] if known[0] == "ACTIVE" else ABSENT
        manager: Value = "told" if p.sm_lid else ABSENT
        kinds: Value = _value(p, "gids")
        if p.gids is not None:
            kinds = " ".join(
                sorted({f"{g.type or '?'}{'/IPv4' if _ipv4(g.gid) else ''}".replace(" ", "_") for g in p.gids})
            )
        yield f"port {slot}/{p.port}", (*known[:3], rate, manager, kinds)


def _pci(report: LeanReport, slots: dict[str, str]) -> Iterator[tuple[str, tuple[Value, ...]]]:
    gpus = {g.address for g in report.gpus} | {g.address for g in report.accelerators}
    above_gpus = {d.parent for d in report.pci if d.address in gpus}
    inventory: Counter[str] = Counter()
    for d in sorted(report.pci, key=lambda d: _order(d.address)):
        # Ports and host bridges follow from the wiring; other bridges (0680) are devices: an NVSwitch is one.
        bridge = d.class_code is not None and d.class_code >> 16 == 0x06 and d.class_code >> 8 != 0x0680
        if not bridge:
            inventory[_id(d)] += 1
        slot = slots.get(d.address)
        if slot is None:
            continue
        # A GPU at rest slows its own link, of which the port above it is the other end.
        rests = d.address in gpus or d.address in above_gpus
        row = _row(
            "pci",
            d,
            id=_id(d),
            subsystem=_pair(d.subsystem_vendor_id, d.subsystem_device_id),
            parent=f"<{slots[d.parent]}>" if d.parent in slots else "root",
            **({"current_speed_gt_s": ABSENT} if rests else {}),
        )
        yield f"pci {slot}", row
    for name, n in sorted(inventory.items()):
        yield f"inventory {name}", (n,)


def _id(d: PciDoc) -> str:
    return _pair(d.vendor_id, d.device_id)


def _pair(vendor: int | None, device: int | None) -> str:
    return UNKNOWN if vendor is None or device is None else f"{vendor:04x}:{device:04x}"


def _named(report: LeanReport) -> Iterator[tuple[str, tuple[Value, ...]]]:
    for name, version in sorted(report.host.modules.items()):
        yield f"module {name}", (version or "loaded",)
    software = dict(report.software)
    if report.nccl.version is not None:
        software.setdefault("nccl", report.nccl.version)
    told = {*report.host.modules, "driver"}  # these stand elsewhere
    for name, version in sorted(software.items()):
        if name in told:
            continue
        yield f"software {name}", (version,)
    for s in sorted(report.nccl.settings, key=lambda s: s.name):
        if s.in_force and s.name not in _NO_SETTINGS:
            yield f"setting {s.name}", (s.value,)
    for s in report.related_settings:
        if s.in_force and s.name not in _NO_SETTINGS and not s.name.startswith(_OF_A_STEP):
            yield f"setting {s.name}", (s.value,)
    for p in report.probes:
        yield f"probe {p.name}", ("answered" if p.state in ("ok", "empty") else UNKNOWN + p.state,)


def _approximate(report: LeanReport, slots: dict[str, str]) -> dict[str, float]:
    out: dict[str, float] = {}
    for name, size in (
        ("node memory_total_bytes", report.host.memory_total_bytes),
        ("node shm_total_bytes", report.limits.shm_total_bytes),
        *((f"numa {n.node} memory_total_bytes", n.memory_total_bytes) for n in report.numa_nodes),
        *((f"{slots[g.address]} memory_total_bytes", g.memory_total_bytes) for g in report.gpus),
    ):
        if size is not None:
            out[name] = float(size)
    return out


def _identifiers(report: LeanReport, slots: dict[str, str]) -> dict[str, str]:
    found = [(slots[g.address], g.uuid) for g in report.gpus] + [(slots[n.address], n.node_guid) for n in report.nics]
    return {slot: i for slot, i in found if i is not None}


def _nvlink_domain(gpus: list[GpuDoc]) -> str:
    """Return `UUID.clique` of the NVLink domain of most GPUs; a zero UUID is a domain that ends with the node."""
    found = Counter(
        f"{g.fabric_cluster_uuid}.{g.fabric_clique or 0}"
        for g in gpus
        if g.fabric_cluster_uuid and g.fabric_cluster_uuid.strip("0-") and g.fabric_status in (None, "Success")
    )
    return min(found, key=lambda d: (-found[d], d), default="")


def _rails(nics: list[NicDoc], slots: dict[str, str]) -> Iterator[RailPort]:
    for n in sorted(nics, key=lambda n: _order(n.address)):
        for p in n.ports:
            gids = [g.gid for g in p.gids or ()]
            ipv4 = next((a for a in map(_ipv4, gids) if a), 0)
            prefixes = [g.replace(":", "").lower() for g in gids]
            prefix = next((x[:16] for x in prefixes if len(x) >= 16 and not x.startswith("fe80")), "")
            infiniband = p.link_layer == "InfiniBand"
            guid = next((x[16:] for x in prefixes if len(x) == 32), "") if infiniband else ""
            yield RailPort(
                slots[n.address], n.label, p.port, ipv4, "" if ipv4 else prefix, p.lid or 0 if infiniband else 0,
                guid, (p.link_layer or "") if p.state == "ACTIVE" else "", tuple(n.netdevs),
            )  # fmt: skip


def _ipv4(gid: str) -> int:
    """Return the IPv4 address that a GID maps (RFC 4291, 2.5.5.2) as a number, 0 for none or a link-local one."""
    if ":ffff:" not in gid.lower():
        return 0
    try:
        mapped = ipaddress.IPv6Address(gid).ipv4_mapped
    except ValueError:
        return 0
    return 0 if mapped is None or mapped.is_link_local else int(mapped)


def _hardware_type(report: LeanReport) -> str:
    h = report.host
    product = " ".join(p for p in (h.dmi_vendor, h.dmi_product) if p)
    return ", ".join(p for p in (product, h.cpu_model_name or h.cpu_vendor, h.machine) if p) or "unknown"


def _gpu_model(report: LeanReport) -> str:
    gpus = {g.address for g in report.gpus}
    models = Counter(_id(d) for d in report.pci if d.address in gpus)
    return min(models, key=lambda m: (-models[m], m), default="")
