"""What programs print of a machine, written from its facts: nvidia-smi, numactl, ibstat, ibv_devinfo, dmesg."""

from __future__ import annotations

from typing import Any

from topocheck.model.address import parse_cpulist
from topocheck.model.base import Missing, known
from topocheck.model.gpu import NvmlFacts, NvmlGpu
from topocheck.model.net import NetFacts
from topocheck.model.pci import PciDevice
from topocheck.model.system import NumaFacts

MIB = 1 << 20


def _na(value: Any, form: str = "{}") -> str:
    return "N/A" if isinstance(value, Missing) else form.format(value)


def _enabled(value: Any) -> str:
    return "N/A" if isinstance(value, Missing) else "Enabled" if value else "Disabled"


def smi_query(nvml: NvmlFacts) -> str:
    """Return `nvidia-smi -q`, as far as it is read."""
    gpus = nvml.gpus if known(nvml.gpus) else ()
    out = ["", "==============NVSMI LOG==============", "", _row(0, "Timestamp", "Sat Nov 28 12:00:00 2026")]
    out += [_row(0, "Driver Version", _na(nvml.driver_version)), _row(0, "CUDA Version", _na(nvml.cuda_version)), ""]
    out += [_row(0, "Attached GPUs", len(gpus))]
    for g in gpus:
        domain, rest = str(g.address).split(":", 1)
        out.append(f"GPU {int(domain, 16):08X}:{rest.upper()}")
        for depth, name, value in _values(g):
            out.append(" " * 4 * depth + name if value is None else _row(depth, name, value))
        out.append("")
    return "\n".join(out)


def _row(depth: int, name: str, value: object) -> str:
    return f"{' ' * 4 * depth}{name}".ljust(42) + f": {value}"


def _values(g: NvmlGpu) -> list[tuple[int, str, object]]:
    memory = (
        _na(g.memory_total_bytes) if isinstance(g.memory_total_bytes, Missing) else f"{g.memory_total_bytes // MIB} MiB"
    )
    bar1 = "N/A" if isinstance(g.bar1_total_bytes, Missing) else f"{g.bar1_total_bytes // MIB} MiB"
    return [
        (1, "Product Name", _na(g.name)), (1, "Persistence Mode", _enabled(g.persistence_mode)),
        (1, "MIG Mode", None), (2, "Current", _enabled(g.mig_current)), (2, "Pending", _enabled(g.mig_pending)),
        (1, "Serial Number", _na(g.serial)), (1, "GPU UUID", _na(g.uuid)), (1, "Minor Number", _na(g.minor)),
        (1, "VBIOS Version", _na(g.vbios)), (1, "Board ID", _na(g.board_id, "0x{:x}")),
        (1, "GPU Virtualization Mode", None),
        (2, "Virtualization Mode", _na(g.virtualization_mode).replace("PassThrough", "Pass-Through")),
        (1, "PCI", None), (2, "GPU Link Info", None), (3, "PCIe Generation", None),
        (4, "Max", _na(g.pcie_gen_max)), (4, "Current", _na(g.pcie_gen_current)),
        (4, "Device Max", _na(g.pcie_gen_device_max)), (3, "Link Width", None),
        (4, "Max", _na(g.pcie_width_max, "{}x")), (4, "Current", _na(g.pcie_width_current, "{}x")),
        (2, "Replays Since Reset", _na(g.pcie_replays)), (1, "Performance State", _na(g.performance_state, "P{}")),
        (1, "FB Memory Usage", None), (2, "Total", memory), (1, "BAR1 Memory Usage", None), (2, "Total", bar1),
        (1, "Compute Mode", _na(g.compute_mode)), (1, "ECC Mode", None), (2, "Current", _enabled(g.ecc_current)),
        (2, "Pending", _enabled(g.ecc_pending)),
        (1, "Clocks", None), (2, "SM", _na(g.clock_sm_mhz, "{} MHz")),
        (1, "Temperature", None), (2, "GPU Current Temp", _na(g.temperature_c, "{} C")),
    ]  # fmt: skip


def smi_xml(nvml: NvmlFacts) -> str:
    """Return `nvidia-smi -q -x`, as far as it is read."""
    gpus = nvml.gpus if known(nvml.gpus) else ()
    out = ['<?xml version="1.0" ?>', '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">', "<nvidia_smi_log>"]
    out += [f"<driver_version>{_na(nvml.driver_version)}</driver_version>"]
    out += [f"<cuda_version>{_na(nvml.cuda_version)}</cuda_version>", f"<attached_gpus>{len(gpus)}</attached_gpus>"]
    for g in gpus:
        width = (_na(g.pcie_width_max, "{}x"), _na(g.pcie_width_current, "{}x"))
        out += [
            f'<gpu id="{g.address}">', f"<product_name>{_na(g.name)}</product_name>", f"<uuid>{_na(g.uuid)}</uuid>",
            f"<minor_number>{_na(g.minor)}</minor_number>", f"<vbios_version>{_na(g.vbios)}</vbios_version>",
            f"<mig_mode><current_mig>{_enabled(g.mig_current)}</current_mig>",
            f"<pending_mig>{_enabled(g.mig_pending)}</pending_mig></mig_mode>",
            f"<pci><pci_bus_id>{g.address}</pci_bus_id><pci_gpu_link_info><pcie_gen>",
            f"<max_link_gen>{_na(g.pcie_gen_max)}</max_link_gen>",
            f"<current_link_gen>{_na(g.pcie_gen_current)}</current_link_gen></pcie_gen>",
            f"<link_widths><max_link_width>{width[0]}</max_link_width>",
            f"<current_link_width>{width[1]}</current_link_width></link_widths></pci_gpu_link_info></pci>",
            f"<ecc_mode><current_ecc>{_enabled(g.ecc_current)}</current_ecc>",
            f"<pending_ecc>{_enabled(g.ecc_pending)}</pending_ecc></ecc_mode>",
            f"<compute_mode>{_na(g.compute_mode)}</compute_mode>", "</gpu>",
        ]  # fmt: skip
    return "\n".join([*out, "</nvidia_smi_log>"])


def smi_nvlink(nvml: NvmlFacts) -> str:
    """Return `nvidia-smi nvlink -s`: nothing of a GPU without links."""
    out = []
    for g in nvml.gpus if known(nvml.gpus) else ():
        out += [f"GPU {g.index}: {g.name} (UUID: {g.uuid})"] if g.nvlinks else []
        for link in g.nvlinks:
            speed = f"{link.speed_mb_s / 1000:g} GB/s" if isinstance(link.speed_mb_s, int) else "<inactive>"
            out.append(f"\t Link {link.link}: {speed if link.active is True else '<inactive>'}")
    return "\n".join(out)


def numactl(numa: NumaFacts) -> str:
    """Return `numactl -H`."""
    nodes = numa.nodes if known(numa.nodes) else ()
    out = [f"available: {len(nodes)} nodes ({numa.online_nodes})"]
    for n in nodes:
        cpus = sorted(parse_cpulist(str(n.cpulist)))
        out.append(" ".join([f"node {n.node} cpus:", *map(str, cpus)]))
        out.append(
            f"node {n.node} size: {0 if isinstance(n.memory_total_bytes, Missing) else n.memory_total_bytes >> 20} MB"
        )
    out += ["node distances:", "node " + "".join(f"{n.node:4}" for n in nodes)]
    out += [f"{n.node:3}: " + "".join(f"{d:4}" for d in n.distances) for n in nodes if known(n.distances)]
    return "\n".join(out)


def ibstat(net: NetFacts) -> str:
    """Return `ibstat`."""
    states = {"DOWN": "Down", "INIT": "Initializing", "ARMED": "Armed", "ACTIVE": "Active"}
    out = []
    for d in net.rdma if known(net.rdma) else ():
        out += [f"CA '{d.name}'", f"\tCA type: {d.hca_type}", f"\tNumber of ports: {len(d.ports)}"]
        out += [f"\tFirmware version: {d.firmware}", f"\tHardware version: {d.hw_rev}"]
        out += [f"\tNode GUID: 0x{str(d.node_guid).replace(':', '')}"]
        for p in d.ports:
            rate = int(p.rate_gbit_s) if isinstance(p.rate_gbit_s, float) else 0
            out += [f"\tPort {p.port}:", f"\t\tState: {states[str(p.state)]}", f"\t\tPhysical state: {p.phys_state}"]
            out += [f"\t\tRate: {rate}", f"\t\tBase lid: {p.lid}", f"\t\tSM lid: {p.sm_lid}"]
            out += [f"\t\tLink layer: {p.link_layer}"]
    return "\n".join(out)


def dmesg(devices: tuple[PciDevice, ...]) -> str:
    """Return the kernel's log of finding PCI functions."""
    out = ["Linux version 6.8.0-31-generic (x@y)", "Command line: BOOT_IMAGE=/vmlinuz ro iommu=pt"]
    out += [
        f"PCI host bridge to bus {r.removeprefix('pci')}" for r in dict.fromkeys(d.chain[0] for d in devices if d.chain)
    ]
    for d in devices:
        out.append(f"pci {d.address}: [{d.vendor_id:04x}:{d.device_id:04x}] type 00 class 0x{d.class_code:06x} PCIe")
        if isinstance(d.secondary_bus, int) and isinstance(d.subordinate_bus, int) and d.secondary_bus:
            out.append(f"pci {d.address}: PCI bridge to [bus {d.secondary_bus:02x}-{d.subordinate_bus:02x}]")
    return "\n".join(f"[{n / 1000:12.6f}] {line}" for n, line in enumerate(out))
