"""Kernel, CPU, platform, IOMMU and services of a machine."""

from __future__ import annotations

import re
from typing import Any

from topocheck.host.base import Host, HostError
from topocheck.knowledge import hypervisors
from topocheck.model.base import ABSENT, Missing, Reason, is_lost, small_number, unparsable, value_or
from topocheck.model.system import SystemFacts
from topocheck.probes import cgroup, cpuinfo, nvidia_procfs, platform
from topocheck.probes.device_files import read_device_files
from topocheck.probes.kernel_log import read_kernel_log
from topocheck.probes.modules import kernel_config, peer_memory_symbol, read_modules
from topocheck.probes.numa import parse_status
from topocheck.probes.nvml_library import read_libraries
from topocheck.probes.sysfs_reader import Folder, list_or_missing, parse_int, text_or_missing

SERVICES = ("nvidia-fabricmanager", "nvidia-imex", "nvidia-persistenced")
SHOWN_UNITS = ("systemctl", "show", "--property=Id,LoadState,ActiveState", *(f"{s}.service" for s in SERVICES))
SHOW_TIMEOUT_S = 3
_MAX_GROUP_TYPES = 64
_MAX_DROP_INS = 64
_MARKER_FILES = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
LOGIND = ("/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d")


def _exists(host: Host, path: str) -> bool | Missing:
    try:
        host.stat(path)
    except HostError as e:
        return False if e.reason is Reason.ABSENT else e.missing()
    return True


def read(host: Host) -> SystemFacts:
    """Return what the kernel and the firmware say of the machine as a whole."""
    raw: dict[str, str] = {}
    sysctl = Folder(host, "/proc/sys", raw)
    processor = text_or_missing(host, "/proc/cpuinfo", cpuinfo.CPUINFO_BYTES)
    info = cpuinfo.parse_cpuinfo(value_or(processor, ""))
    release = _release(host, sysctl)
    driver = nvidia_procfs.read_driver(host, raw)
    modules, loaded = read_modules(host, raw)
    imex = list_or_missing(host, "/dev/nvidia-caps-imex-channels")
    peers = list_or_missing(host, "/sys/kernel/mm/memory_peers")
    with_driver = "nvidia" in modules or isinstance(driver["nvidia_module_version"], str)
    return SystemFacts(
        source="",
        raw=raw,
        hostname=sysctl.text("kernel/hostname"),
        os_name=_os_name(host),
        kernel_release=release,
        machine=_machine(sysctl, info),
        kernel_options=_kernel_options(host),
        boot_id=sysctl.text("kernel/random/boot_id"),
        numa_balancing=sysctl.value("kernel/numa_balancing", _switch),
        modules=modules,
        loaded_modules=loaded,
        kernel_config=kernel_config(host, release),
        memory_peers=peers if isinstance(peers, Missing) else tuple(peers),
        peer_memory_symbol=peer_memory_symbol(host, release, raw) if with_driver and "ib_core" in modules else ABSENT,
        nvidia_files=read_device_files(host, raw),
        nvml_libraries=read_libraries(host, raw),
        kernel_log=read_kernel_log(host),
        kubelet=_exists(host, "/var/lib/kubelet"),
        imex_channels=imex if isinstance(imex, Missing) else tuple(n for n in imex if n.startswith("channel")),
        nvswitch_devices=nvidia_procfs.nvswitch_devices(host),
        fabric_manager=_service_by_cgroup(host, SERVICES[0], raw),
        remove_ipc=_remove_ipc(host, raw),
        **_cpu(info, processor if isinstance(processor, Missing) else ABSENT),
        **_memory(host),
        **_platform(host, info, raw),
        **_tuning(host, sysctl, raw),
        **_iommu(host, raw),
        **driver,
    )


def read_services(host: Host) -> dict[str, Any]:
    """Return fields of SystemFacts that only systemd can tell, for a machine with NVIDIA's driver; else nothing.

    Asks `systemctl show`, which needs no privileges and, unlike `is-active`, tells a unit that is not installed
    from one that does not run.
    """
    try:
        host.stat("/proc/driver/nvidia")
    except HostError as e:
        if not is_lost(e.missing()):
            return {}
    try:
        result = host.run(SHOWN_UNITS, timeout_s=SHOW_TIMEOUT_S)
    except HostError:
        return {}
    states = parse_services(result.stdout) if result.rc == 0 else {}
    if not states:
        return {}
    out: dict[str, Any] = {"services": states}
    state = states.get(SERVICES[0])
    if state:
        out["fabric_manager"] = (
            Missing(Reason.ABSENT, "no such unit; it may run in a container") if state == "not-found" else state
        )
    return out


def parse_services(text: str) -> dict[str, str]:
    """Return unit without `.service` -> state, from the blocks of NAME=VALUE that `systemctl show` prints."""
    out: dict[str, str] = {}
    for block in text.replace("\r", "").split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        unit = values.get("Id", "").removesuffix(".service")
        state = "not-found" if values.get("LoadState") == "not-found" else values.get("ActiveState", "")
        if unit and state:
            out[unit] = state
    return out


def _switch(text: str) -> bool | Missing:
    number = parse_int(text)
    return number if isinstance(number, Missing) else number != 0


def _os_name(host: Host) -> str | Missing:
    untold = ABSENT
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            lines = host.read_lines(path, "PRETTY_NAME=")
        except HostError as e:
            untold = e.missing() if is_lost(e.missing()) else untold
            continue
        if lines:
            return lines[-1].partition("=")[2].strip().strip("\"'")
    return untold


def _release(host: Host, sysctl: Folder) -> str | Missing:
    """Return what `uname -r` says; /proc/version, which sandboxes and captures more often have, says it third."""
    release = sysctl.text("kernel/osrelease")
    if isinstance(release, Missing):
        words = value_or(text_or_missing(host, "/proc/version"), "").split()
        return words[2] if words[:2] == ["Linux", "version"] and len(words) > 2 else release
    return release


def _machine(sysctl: Folder, info: dict[str, str]) -> str | Missing:
    """Return what `uname -m` says: from the kernel (6.1 on), else from what only one architecture's cpuinfo has."""
    told = sysctl.text("kernel/arch")
    if isinstance(told, str) and told:
        return told
    if "CPU implementer" in info:
        return "aarch64"
    if info.get("cpu", "").startswith("POWER"):
        return "ppc64le"
    return "x86_64" if "vendor_id" in info else told


def _kernel_options(host: Host) -> tuple[str, ...] | Missing:
    try:
        return tuple(host.kernel_options())
    except HostError as e:
        return e.missing()


def _cpu(info: dict[str, str], untold: Missing) -> dict[str, Any]:
    values = {
        "cpu_vendor": cpuinfo.cpu_vendor(info),
        "cpu_model_name": cpuinfo.cpu_name(info),
        "cpu_family": cpuinfo.cpu_family(info),
        "cpu_model": cpuinfo.cpu_model(info),
    }
    return {k: untold if v is None else v for k, v in values.items()}


def _memory(host: Host) -> dict[str, Any]:
    fields = {"MemTotal": "memory_total_bytes", "MemAvailable": "memory_available_bytes"}
    try:
        found = parse_status(host.read_lines("/proc/meminfo", *(f"{n}:" for n in fields)))
    except HostError as e:
        return dict.fromkeys(fields.values(), e.missing())
    out: dict[str, Any] = {}
    for name, field in fields.items():
        number = parse_int(found.get(name, "").removesuffix("kB").strip())
        out[field] = number * 1024 if isinstance(number, int) else number
    return out


def _tuning(host: Host, sysctl: Folder, raw: dict[str, str]) -> dict[str, Any]:
    """Return what sites tune, and nodes that were installed at different times differ in."""
    cpu, frequency = (Folder(host, f"/sys/devices/system/cpu/{f}", raw) for f in ("smt", "cpu0/cpufreq"))
    memory = Folder(host, "/sys/kernel/mm/transparent_hugepage", raw)
    clock = Folder(host, "/sys/devices/system/clocksource/clocksource0", raw)
    return {
        "clocksource": clock.text("current_clocksource"),
        "cpu_governor": frequency.text("scaling_governor"),
        "cpu_max_khz": frequency.value("scaling_max_freq", parse_int),
        "smt": cpu.value("active", _switch),
        "hugepages": sysctl.value("vm/nr_hugepages", parse_int),
        "transparent_hugepages": memory.value("enabled", chosen),
    }


def chosen(text: str) -> str | Missing:
    """Return the word that is in force of a kernel file such as `always [madvise] never`."""
    m = re.fullmatch(r"(?:[a-z_]{1,20} )*\[([a-z_]{1,20})\](?: [a-z_]{1,20})*", text)
    return m[1] if m else unparsable(text)


def _platform(host: Host, info: dict[str, str], raw: dict[str, str]) -> dict[str, Any]:
    dmi = Folder(host, "/sys/class/dmi/id", raw)
    vendor, product = dmi.text("sys_vendor"), dmi.text("product_name")
    flags = cpuinfo.flags(info)
    guest = platform.hypervisor(
        flags=flags,
        is_x86="flags" in info,
        dmi_vendor=vendor,
        dmi_product=product,
        hypervisor_type=_hypervisor_type(host),
        device_tree=_device_tree(host),
        version=value_or(text_or_missing(host, "/proc/version"), ""),
        table=hypervisors.table(),
    )
    if isinstance(guest, Missing) and "flags" not in info:
        # The flag of an x86 CPU settles it; without that, whatever else did not answer might have named one.
        others = (text_or_missing(host, "/proc/cpuinfo", cpuinfo.CPUINFO_BYTES), vendor, product, _device_tree(host))
        guest = next((x for x in others if isinstance(x, Missing) and is_lost(x)), guest)
    if "flags" in info:
        raw["/proc/cpuinfo flags"] = "hypervisor" if "hypervisor" in flags else "no hypervisor"
    groups = cgroup.read_groups(host)
    version = value_or(text_or_missing(host, "/proc/version"), "")
    return {
        "dmi_vendor": vendor,
        "dmi_product": product,
        "hypervisor": guest,
        "container": platform.container(
            files=[f for f in _MARKER_FILES if _is_there(host, f)],
            variables=_environ(host),
            cgroup_paths=list(groups.values()),
            manager=value_or(text_or_missing(host, "/run/systemd/container"), ""),
            version=version,
        ),
    }


def _device_tree(host: Host) -> str | Missing:
    """Return the words by which a device tree says what machine, and what hypervisor, it describes."""
    texts = [text_or_missing(host, f"/proc/device-tree/{p}compatible") for p in ("hypervisor/", "")]
    words = [t for t in texts if isinstance(t, str)]
    return " ".join(words) if words else texts[-1]


def _hypervisor_type(host: Host) -> str | Missing:
    """Return the word of /sys/hypervisor/type; Xen's own control domain drives the hardware, so it counts as bare."""
    told = text_or_missing(host, "/sys/hypervisor/type")
    if told == "xen" and "control_d" in value_or(text_or_missing(host, "/proc/xen/capabilities"), ""):
        return Missing(Reason.ABSENT, "the control domain of Xen")
    return told


def _is_there(host: Host, path: str) -> bool:
    try:
        host.stat(path)
    except HostError:
        return False
    return True


def _environ(host: Host) -> dict[str, str]:
    try:
        return host.environ()
    except HostError:
        return {}


def _iommu(host: Host, raw: dict[str, str]) -> dict[str, Any]:
    """Return IOMMUs and groups. A server has a hundred groups, nearly always of one type: some are looked at."""
    devices = list_or_missing(host, "/sys/class/iommu")
    groups = list_or_missing(host, "/sys/kernel/iommu_groups")
    types: dict[str, int] = {}
    if isinstance(devices, list):
        raw["/sys/class/iommu"] = ", ".join(devices) or "empty"
    if isinstance(groups, list):
        raw["/sys/kernel/iommu_groups"] = f"{len(groups)} groups"
        numbers = sorted((g for g in groups if small_number(g) is not None), key=int)
        step = -(-len(numbers) // _MAX_GROUP_TYPES) or 1
        for number in numbers[::step]:
            kind = text_or_missing(host, f"/sys/kernel/iommu_groups/{number}/type")
            if isinstance(kind, Missing):
                raw["/sys/kernel/iommu_groups/*/type"] = f"!{kind}"
                break  # root alone may read it on some kernels, and old ones have none: the rest says the same
            types[kind] = types.get(kind, 0) + 1
    return {
        "iommu_devices": tuple(devices) if isinstance(devices, list) else devices,
        "iommu_groups": len(groups) if isinstance(groups, list) else groups,
        "iommu_group_types": types,
    }


def _service_by_cgroup(host: Host, service: str, raw: dict[str, str]) -> str | Missing:
    """Return `active` where a unit's control group holds processes; nothing else can be determined without systemctl.

    Version 2 groups have `cgroup.events` with `populated 1`, version 1 lists pids; `systemd/` is systemd's own
    hierarchy of version 1.
    """
    unit = f"system.slice/{service}.service"
    path = f"{cgroup.MOUNT}/{unit}/cgroup.events"
    events = text_or_missing(host, path)
    if isinstance(events, str):
        raw[path] = " ".join(events.split())
        return "active" if "populated 1" in raw[path] else "inactive"
    for folder in ("systemd", "unified"):
        path = f"{cgroup.MOUNT}/{folder}/{unit}/cgroup.procs"
        pids = text_or_missing(host, path)
        if isinstance(pids, str):
            raw[path] = f"{len(pids.split())} processes"
            return "active" if pids.strip() else "inactive"
    listed = list_or_missing(host, f"{cgroup.MOUNT}/system.slice")
    if isinstance(listed, Missing):
        if listed.reason is Reason.NOT_RECORDED:
            return listed
        return Missing(Reason.NOT_VISIBLE_HERE, "control groups of services are not to be seen from here")
    return Missing(Reason.ABSENT, "does not run as a service of this system (it may run in a container)")


def _remove_ipc(host: Host, raw: dict[str, str]) -> str | Missing:
    """Return logind's RemoveIPC as set last (logind.conf(5): drop-ins after the file, by name, /etc over /run)."""
    drop_ins: dict[str, str] = {}
    for folder in LOGIND:
        names = list_or_missing(host, folder)
        if isinstance(names, list):
            listed = host.at_most(names, _MAX_DROP_INS, f"names in {folder}")
            drop_ins |= {n: f"{folder}/{n}" for n in listed if n.endswith(".conf")}
    value: str | Missing = Missing(Reason.ABSENT, "not set; most distributions build logind with yes")
    for path in ("/etc/systemd/logind.conf", *(drop_ins[n] for n in sorted(drop_ins))):
        try:
            lines = host.read_lines(path, "RemoveIPC")
        except HostError:
            continue
        for line in lines:
            name, sep, text = line.partition("=")
            if sep and name.strip() == "RemoveIPC" and text.strip():
                raw[path] = line.strip()
                value = text.strip().lower() if text.strip().isalnum() else unparsable(text)
    return value
