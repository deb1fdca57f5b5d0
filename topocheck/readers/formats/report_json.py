"""Our own JSON report (`report --format json`), as the answers that its fields were made from.

A report holds less than a recording: no registers, no P2P status, nothing of how GPUs reach each other but the verdict.
"""

from __future__ import annotations

from typing import Any

import msgspec

from topocheck.host.base import HostError
from topocheck.model import document as doc
from topocheck.model import document_host as host_doc
from topocheck.model.base import InputError, Missing, Reason, is_lost
from topocheck.probes.nvml import enums, fields
from topocheck.readers import pci_answers as pci
from topocheck.readers import rdma_answers as rdma
from topocheck.readers.base import JSON_REPORT, Answers, Reader

_NODES = "/sys/devices/system/node"
_VERSIONS = {generation: number for number, generation in reversed(enums.NVLINK_GENERATIONS.items())}
MAX_DEPTH = 256
MAJORS = ("1", "2")
"""Major versions of the schema that are read."""
_MEMBERS = {"total": ("total", "used", "free", "reserved"), "bar1Total": ("bar1Total", "bar1Used", "bar1Free")}
"""Members of NVML's struct, by the one that a report holds; None: not told."""


def recognise(text: str) -> bool:
    """Tell whether the text is a JSON object with a report's names."""
    start = text.lstrip()
    return start[:1] == "{" and all(f'"{name}"' in text for name in ("schema_version", "topocheck_version", "pci"))


def read(text: str) -> Answers:
    """Return the answers that the report was made from, as far as it holds them.

    Raises:
        InputError: it is no such report.
    """
    try:
        report = msgspec.json.decode(text, type=doc.ReportDoc)
    except (msgspec.DecodeError, RecursionError, ValueError) as e:
        raise InputError(f"JSON report of topocheck: {str(e)[:160]}") from None
    if report.schema_version.partition(".")[0] not in MAJORS:
        raise InputError(
            f"JSON report of topocheck: schema version {report.schema_version[:20]!r}; this version reads "
            + " and ".join(f"{m}.x" for m in MAJORS)
        )
    found = Answers()
    _host(found, report.host)
    _pci(found, report.pci)
    _gpus(found, report)
    nics = [*report.nics, *report.unplaced_nics]
    for nic in nics:
        _nic(found, nic)
    if nics or "absent" in report.host.missing.get("rdma", ""):
        found.names(1, rdma.CLASS, [n.label for n in nics], whole=True)
    for node in report.numa_nodes:
        _node(found, node)
    if report.numa_nodes:
        found.file(1, f"{_NODES}/online", ",".join(str(n.node) for n in report.numa_nodes))
    if report.taken_at:
        found.put(1, report.taken_at, "now")
    return found


def _error(part: host_doc.Doc, name: str) -> HostError | None:
    """Return the answer that a field's reason stands for, where it is one: `absent: ENOENT`."""
    word, _, detail = part.missing.get(name, "").partition(": ")
    if word not in list(Reason):
        return None
    error = HostError(Reason(word), detail[:200])
    return None if is_lost(Missing(error.reason, error.detail)) else error


def _host(found: Answers, host: host_doc.HostDoc) -> None:
    texts = {
        "hostname": "/proc/sys/kernel/hostname", "kernel_release": "/proc/sys/kernel/osrelease",
        "machine": "/proc/sys/kernel/arch", "online_cpus": "/sys/devices/system/cpu/online",
        "dmi_vendor": "/sys/class/dmi/id/sys_vendor", "dmi_product": "/sys/class/dmi/id/product_name",
    }  # fmt: skip
    for name, path in texts.items():
        if (value := getattr(host, name)) is not None:
            found.file(1, path, value)
    if host.kernel_options is not None:
        found.put(1, host.kernel_options, "kernel_options")
    if host.iommu_devices is not None:
        found.put(1, sorted(host.iommu_devices), "list", "/sys/class/iommu")
    if host.driver_version is not None:
        found.put(1, host.driver_version, "nvml", "SystemGetDriverVersion")


def _pci(found: Answers, devices: list[host_doc.PciDoc]) -> None:
    parents = {d.address: d.parent for d in devices}
    for d in devices:
        for name, value in (("class", d.class_code), ("vendor", d.vendor_id), ("device", d.device_id)):
            if value is not None and 0 <= value < 1 << 24:
                pci.file(found, 1, d.address, name, f"0x{value:04x}" if name != "class" else f"0x{value:06x}")
        if d.driver is not None or _error(d, "driver") is not None:
            pci.driver(found, 1, d.address, d.driver)
        node = d.numa_node if d.numa_node is not None else -1 if _error(d, "numa_node") is not None else None
        if node is not None:
            pci.file(found, 1, d.address, "numa_node", str(node))
        if d.max_speed_gt_s is None and _error(d, "max_speed_gt_s") is not None:
            pci.no_link(found, 1, d.address)
        pci.link(found, 1, d.address, "max", d.max_speed_gt_s, d.max_width_lanes)
        pci.link(found, 1, d.address, "current", d.current_speed_gt_s, d.current_width_lanes)
        if (path := _path(d.address, parents)) is not None:
            pci.place(found, 1, d.address, path)
    if devices:
        found.names(1, pci.DEVICES, [d.address for d in devices], whole=True)


def _path(address: str, parents: dict[str, str | None]) -> str | None:
    chain: list[str] = [address]
    while (above := parents.get(chain[-1])) is not None:
        chain.append(above)
        if len(chain) > MAX_DEPTH:
            return None
    return "/sys/devices/" + "/".join(reversed(chain)) if chain[-1].startswith("pci") else None


def _gpus(found: Answers, report: doc.ReportDoc) -> None:
    told = [g for g in report.gpus if g.index is not None]
    if not told:
        return
    found.put(1, max(g.index or 0 for g in told) + 1, "nvml", "DeviceGetCount")
    calls: tuple[tuple[str, str, Any], ...] = (
        ("uuid", "DeviceGetUUID", None), ("name", "DeviceGetName", None), ("minor", "DeviceGetMinorNumber", None),
        ("vbios", "DeviceGetVbiosVersion", None), ("pcie_gen_current", "DeviceGetCurrPcieLinkGeneration", None),
        ("pcie_gen_max", "DeviceGetMaxPcieLinkGeneration", None),
        ("pcie_width_current", "DeviceGetCurrPcieLinkWidth", None),
        ("pcie_width_max", "DeviceGetMaxPcieLinkWidth", None),
        ("performance_state", "DeviceGetPerformanceState", None),
        ("compute_mode", "DeviceGetComputeMode", {v: k for k, v in enums.COMPUTE_MODES.items()}),
        ("persistence_mode", "DeviceGetPersistenceMode", {True: 1, False: 0}),
        ("memory_total_bytes", "DeviceGetMemoryInfo", "total"),
        ("bar1_total_bytes", "DeviceGetBAR1MemoryInfo", "bar1Total"),
    )  # fmt: skip
    for g in told:
        index = g.index or 0
        found.put(1, {"busId": g.address}, "nvml", "DeviceGetPciInfo", index)
        for name, call, form in calls:
            value = getattr(g, name)
            if value is not None:
                value = (
                    {**dict.fromkeys(_MEMBERS[form]), form: value}
                    if isinstance(form, str)
                    else form.get(value)
                    if form
                    else value
                )
            elif (value := _error(g, name)) is None:
                continue
            if value is not None:
                found.put(1, value, "nvml", call, index)
        _nvlinks(found, index, g.nvlinks)


def _nvlinks(found: Answers, index: int, links: list[host_doc.NvLinkDoc]) -> None:
    count = len(links)
    if {k.link for k in links} != set(range(count)):
        return
    found.put(1, fields.with_count(count), "nvml", "DeviceGetFieldValues", index, fields.device_fields())
    speeds = [[fields.NVLINK_SPEED, k.link, k.speed_mb_s, 0 if k.speed_mb_s is not None else 3] for k in links]
    if links:
        found.put(1, speeds, "nvml", "DeviceGetFieldValues", index, fields.link_speed_fields(count))
    types = {word: number for number, word in enums.NVLINK_REMOTE_TYPES.items()}
    for k in links:
        if k.active is not None:
            found.put(1, int(k.active), "nvml", "DeviceGetNvLinkState", index, k.link)
        if k.remote_type in types:
            found.put(1, types[k.remote_type], "nvml", "DeviceGetNvLinkRemoteDeviceType", index, k.link)
        if k.remote_address is not None:
            found.put(1, {"busId": k.remote_address}, "nvml", "DeviceGetNvLinkRemotePciInfo", index, k.link)
        if k.version in _VERSIONS:
            found.put(1, _VERSIONS[k.version], "nvml", "DeviceGetNvLinkVersion", index, k.link)


def _nic(found: Answers, nic: host_doc.NicDoc) -> None:
    if nic.address != nic.label:  # the name stands for an address that is not known
        rdma.address(found, 1, nic.label, nic.address)
    for name, file in (("hca_type", "hca_type"), ("firmware", "fw_ver"), ("board_id", "board_id"),
                       ("node_guid", "node_guid")):  # fmt: skip
        if (value := getattr(nic, name)) is not None:
            rdma.file(found, 1, nic.label, file, value)
    if nic.physfn is not None:
        found.put(1, f"../{nic.physfn}", "readlink", f"{rdma.CLASS}/{nic.label}/device/physfn")
    elif _error(nic, "physfn") is not None:
        found.absent(1, "readlink", f"{rdma.CLASS}/{nic.label}/device/physfn")
    found.put(1, [str(p.port) for p in nic.ports], "list", f"{rdma.CLASS}/{nic.label}/ports")
    found.put(1, sorted(nic.netdevs), "list", f"{rdma.CLASS}/{nic.label}/device/net")
    for p in nic.ports:
        rdma.state(found, 1, nic.label, p.port, p.state or "")
        rdma.physical(found, 1, nic.label, p.port, p.phys_state or "")
        for name, file in (("link_layer", "link_layer"), ("rate_text", "rate")):
            if (value := getattr(p, name)) is not None:
                rdma.port(found, 1, nic.label, p.port, file, value)
        for name, number in (("lid", p.lid), ("sm_lid", p.sm_lid)):
            if number is not None:
                rdma.port(found, 1, nic.label, p.port, name, f"0x{number:x}")


def _node(found: Answers, node: host_doc.NumaNodeDoc) -> None:
    if node.cpulist is not None:
        found.file(1, f"{_NODES}/node{node.node}/cpulist", node.cpulist)
    if node.distances is not None:
        found.file(1, f"{_NODES}/node{node.node}/distance", " ".join(map(str, node.distances)))
    if node.memory_total_bytes is not None:
        asked = [f"Node {node.node} MemTotal", f"Node {node.node} MemFree"]
        line = f"Node {node.node} MemTotal: {node.memory_total_bytes // 1024} kB"
        found.put(1, [line], "lines", f"{_NODES}/node{node.node}/meminfo", *asked)


READER = Reader(
    name=JSON_REPORT,
    tells="what the report holds: tree, links, GPUs, NICs",
    recognise=recognise,
    read=read,
)
