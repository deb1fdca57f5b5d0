"""What programs print of the driver's peer access, the processor, modules and settings, written from facts."""

from __future__ import annotations

from collections.abc import Mapping

from topocheck.model.base import Missing, known
from topocheck.model.gpu import NvmlFacts
from topocheck.model.node import Node


def smi_topo(classes: Mapping[tuple[str, str], str]) -> str:
    """Return `nvidia-smi topo -m` of the classes of pairs, both ways."""
    gpus = sorted({x for pair in classes for x in pair if x.startswith("GPU")}, key=lambda g: int(g[3:]))
    nics = list(dict.fromkeys(x for pair in classes for x in pair if not x.startswith("GPU")))
    names = [*gpus, *(f"NIC{n}" for n in range(len(nics)))]
    every = [*gpus, *nics]
    out = ["$ nvidia-smi topo -m", "\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"])]
    for name, a in zip(names, every, strict=True):
        cells = [" X " if a == b else classes.get((a, b)) or classes.get((b, a)) or "SYS" for b in every]
        out.append("\t".join([name, *cells, "0-31", "0"]))
    out += ["", "Legend:", "", "  NV#  = Connection traversing a bonded set of # NVLinks", "", "NIC Legend:", ""]
    return "\n".join([*out, *(f"  NIC{n}: {name}" for n, name in enumerate(nics))])


def smi_p2p(nvml: NvmlFacts, kind: str) -> str:
    """Return `nvidia-smi topo -p2p KIND`, KIND being `r`, `w` or `n`."""
    gpus = nvml.gpus if known(nvml.gpus) else ()
    field = {"r": "read", "w": "write", "n": "nvlink"}[kind]
    codes = {(s.from_address, s.to_address): getattr(s, field) for s in nvml.p2p}
    out = [f"$ nvidia-smi topo -p2p {kind}", " \t" + "\t".join(f"GPU{g.index}" for g in gpus)]
    for a in gpus:
        cells = ["X" if a is b else str(codes[str(a.address), str(b.address)]) for b in gpus]
        out.append("\t".join([f" GPU{a.index}", *cells, ""]))
    return "\n".join(out)


def smi_remote(nvml: NvmlFacts) -> str:
    """Return `nvidia-smi nvlink -R`."""
    out = []
    for g in nvml.gpus if known(nvml.gpus) else ():
        out.append(f"GPU {g.index}: {g.name} (UUID: {g.uuid})")
        for link in g.nvlinks:
            if known(link.remote_address):
                domain, rest = link.remote_address.split(":", 1)
                out.append(f"\t Link {link.link}: Remote Device {int(domain, 16):08X}:{rest.upper()}: Link {link.link}")
    return "\n".join(out)


def smi_table(nvml: NvmlFacts) -> str:
    """Return the table of `nvidia-smi`."""
    driver, cuda = nvml.driver_version, nvml.cuda_version
    out = [f"| NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {cuda} |"]
    modes = {"Exclusive_Process": "E. Process"}
    for g in nvml.gpus if known(nvml.gpus) else ():
        domain, rest = str(g.address).split(":", 1)
        name = str(g.name) if len(str(g.name)) < 28 else f"{str(g.name)[:24]}..."
        on = "On" if g.persistence_mode is True else "Off"
        size = "N/A" if isinstance(g.memory_total_bytes, Missing) else g.memory_total_bytes >> 20
        mode = modes.get(str(g.compute_mode), str(g.compute_mode))
        mig = "N/A" if isinstance(g.mig_current, Missing) else "Enabled" if g.mig_current else "Disabled"
        star = "*" if known(g.mig_pending) and g.mig_pending != g.mig_current else ""
        out += [
            "|=========================================+========================+======================|",
            f"|   {g.index}  {name:<26} {on:>9} |   {int(domain, 16):08X}:{rest.upper()} Off |                    0 |",
            f"| N/A   31C    P{g.performance_state}   72W /  700W |  4MiB /  {size}MiB |      0%      {mode} |",
            f"|                                         |                        |             {mig}{star} |",
            "+-----------------------------------------+------------------------+----------------------+",
        ]
    return "\n".join(out)


def smi_list(nvml: NvmlFacts) -> str:
    """Return `nvidia-smi -L`."""
    return "\n".join(f"GPU {g.index}: {g.name} (UUID: {g.uuid})" for g in (nvml.gpus if known(nvml.gpus) else ()))


def lscpu(node: Node) -> str:
    """Return `lscpu`, as far as it is read."""
    s = node.system
    out = [f"Architecture:            {s.machine}", "  CPU op-mode(s):        32-bit, 64-bit"]
    out += ["Byte Order:              Little Endian", f"  On-line CPU(s) list:   {node.numa.online_cpus}"]
    out += [f"Vendor ID:               {s.cpu_vendor}", f"  Model name:            {s.cpu_model_name}"]
    out += [f"    CPU family:          {s.cpu_family}", f"    Model:               {s.cpu_model}"]
    nodes = node.numa.nodes if known(node.numa.nodes) else ()
    out.append(f"  NUMA node(s):          {len(nodes)}")
    return "\n".join([*out, *(f"  NUMA node{n.node} CPU(s):     {n.cpulist}" for n in nodes)])


def lsmod(node: Node) -> str:
    """Return `lsmod`."""
    out = ["Module                  Size  Used by", "ext4                  1007616  1"]
    users = {name: 0 if isinstance(n, Missing) else n for name, n in node.system.loaded_modules.items()}
    return "\n".join([*out, *(f"{name:<23} 16384  {n}" for name, n in users.items())])


def uname(node: Node) -> str:
    """Return `uname -a`."""
    s = node.system
    built = "#31-Ubuntu SMP PREEMPT_DYNAMIC Sat Apr 20 00:40:06 UTC 2024"
    return f"Linux {s.hostname} {s.kernel_release} {built} {s.machine} GNU/Linux"


def cmdline(node: Node) -> str:
    """Return /proc/cmdline."""
    options = node.system.kernel_options
    return " ".join(["BOOT_IMAGE=/vmlinuz", "ro", *(options if known(options) else ())])


def gdscheck(nvml: NvmlFacts) -> str:
    """Return `gdscheck -p`, as far as it is read."""
    out = [" GDS release version: 1.14.0.30", " GPU INFO:"]
    out += [
        f" GPU index {g.index} {g.name} bar:1 bar size (MiB):{g.bar1_total_bytes >> 20} supports GDS"
        for g in (nvml.gpus if known(nvml.gpus) else ())
        if not isinstance(g.bar1_total_bytes, Missing)
    ]
    return "\n".join(out)


def nccl_xml(node: Node) -> str:
    """Return NCCL's dump of the topology, flat: each function below the CPU of its node."""
    out = ['<system version="1">']
    devices = node.pci.devices if known(node.pci.devices) else ()
    for number in sorted({d.numa_node for d in devices if isinstance(d.numa_node, int)}):
        out.append(f'  <cpu host_hash="0x1" numaid="{number}" affinity="00000000,ffffffff" arch="x86_64">')
        out += [
            f'    <pci busid="{d.address}" class="0x{d.class_code:06x}" vendor="0x{d.vendor_id:04x}" '
            f'device="0x{d.device_id:04x}" link_speed="32.0 GT/s PCIe" link_width="16"/>'
            for d in devices
            if d.numa_node == number and all(known(x) for x in (d.vendor_id, d.device_id, d.class_code))
        ]
        out.append("  </cpu>")
    return "\n".join([*out, "</system>"])


def ulimit(node: Node) -> str:
    """Return `ulimit -a` of bash and `df` of /dev/shm."""
    of = node.limits

    def shown(value: object, unit: int = 1) -> str:
        return str(value // unit) if isinstance(value, int) else "unlimited"

    return "\n".join([
        "$ ulimit -a",
        "core file size          (blocks, -c) 0",
        f"max locked memory       (kbytes, -l) {shown(of.memlock_bytes, 1024)}",
        f"open files                      (-n) {shown(of.nofile)}",
        f"stack size              (kbytes, -s) {shown(of.stack_bytes, 1024)}",
        f"max user processes              (-u) {shown(of.nproc)}",
        "$ df /dev/shm",
        "Filesystem     1K-blocks  Used Available Use% Mounted on",
        f"tmpfs {shown(of.shm_total_bytes, 1024)} 0 {shown(of.shm_free_bytes, 1024)} 0% /dev/shm",
    ])  # fmt: skip


def systemctl_status(node: Node) -> str:
    """Return `systemctl status` of the services that are known."""
    out = ["$ systemctl status nvidia-fabricmanager nvidia-imex nvidia-persistenced"]
    for name, state in node.system.services.items():
        if state == "not-found":
            out.append(f"Unit {name}.service could not be found.")
        else:
            out += [f"\u25cf {name}.service - NVIDIA", "     Loaded: loaded (/lib/systemd/system/x.service; enabled)",
                    f"     Active: {state} (x) since Wed 2026-01-28 10:12:13 UTC; 2 weeks ago", ""]  # fmt: skip
    return "\n".join(out)
