"""CPUs, NUMA nodes, kernel, modules, limits and the files of this process on a described machine."""

from __future__ import annotations

import uuid
from typing import Any

from tests.machines.pci_files import cpumask
from tests.machines.tree import Dir, File, Tree
from topocheck.model.address import format_cpulist, parse_cpulist

_CPU = {
    "intel": "vendor_id\t: GenuineIntel\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: {name}",
    "amd": "vendor_id\t: AuthenticAMD\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: {name}",
    "arm": "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 0",
    "power": "cpu\t\t: {name}\nclock\t\t: 3783.000000MHz\nrevision\t: 2.3 (pvr 004e 1203)",
}
_GROUP = "0::/user.slice/user-1000.slice/session-1.scope"
_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max stack size            {stack:<20} unlimited            bytes     
Max processes             1031199              1031199              processes 
Max open files            {nofile:<20} 1048576              files     
Max locked memory         {memlock:<20} {memlock:<20} bytes     
Max address space         unlimited            unlimited            bytes     
"""  # noqa: W291


def numa_cpus(d: dict[str, Any]) -> dict[int, str]:
    """Return NUMA node -> kernel list of its CPUs, for nodes that have CPUs."""
    return {int(n["id"]): n["cpus"] for n in d.get("numa", []) if n.get("cpus")}


def write(tree: Tree, d: dict[str, Any], name: str) -> None:
    """Write all files of this room."""
    system = d.get("system", {})
    nodes = d.get("numa", [])
    _cpus(tree, nodes, system)
    _nodes(tree, nodes)
    _kernel(tree, system, name)
    _process(tree, d, nodes)
    _modules(tree, d.get("modules", {}))
    _memory(tree, nodes, system)
    if system.get("cpu_vendor") == "power":  # firmware without DMI: a device tree
        tree.put("/proc/device-tree/compatible", "ibm,powernv\0ibm,p9-openbmc\0")
        return
    for key, text in d.get("dmi", {"sys_vendor": "Example Computers", "product_name": "Server"}).items():
        tree.put(f"/sys/devices/virtual/dmi/id/{key}", text)
    tree.link("/sys/class/dmi/id", "/sys/devices/virtual/dmi/id")


def _cpus(tree: Tree, nodes: list[dict[str, Any]], system: dict[str, Any]) -> None:
    cpus = {c: n for n in nodes for c in parse_cpulist(n.get("cpus", ""))}
    total = max(cpus, default=0) + 1
    online = format_cpulist(cpus)
    threads = int(system.get("threads_per_core", 2))
    at = "/sys/devices/system/cpu"
    for file in ("online", "present"):
        tree.put(f"{at}/{file}", online)
    tree.put(f"{at}/possible", f"0-{total - 1}" if total > 1 else "0")
    info = []
    text = _CPU[system.get("cpu_vendor", "intel")].format(
        family=system.get("cpu_family", 6), model=system.get("cpu_model", 143), name=system.get("cpu_name", "CPU")
    )
    flags = "fpu vme msr pae" + (" hypervisor" if system.get("hypervisor") else "")
    by_package: dict[int, list[int]] = {}
    for c, n in cpus.items():
        by_package.setdefault(int(n.get("package", 0)), []).append(c)
    for package, members in by_package.items():
        members.sort()
        cores = max(1, len(members) // threads)
        package_list = format_cpulist(members)
        for i, c in enumerate(members):
            core = i % cores
            siblings = format_cpulist(members[core::cores])
            t = f"{at}/cpu{c}/topology"
            for file, value in {
                "physical_package_id": str(package),
                "core_id": str(core),
                "thread_siblings_list": siblings,
                "core_cpus_list": siblings,
                "core_siblings_list": package_list,
                "package_cpus_list": package_list,
                "thread_siblings": cpumask(siblings, total),
                "core_cpus": cpumask(siblings, total),
                "core_siblings": cpumask(package_list, total),
                "package_cpus": cpumask(package_list, total),
            }.items():
                tree.put(f"{t}/{file}", value)
            head = f"processor\t: {c}\n"
            tail = ""
            if system.get("cpu_vendor", "intel") in ("intel", "amd"):
                tail = f"\nphysical id\t: {package}\ncore id\t\t: {core}\ncpu cores\t: {cores}\nflags\t\t: {flags}"
            info.append((c, head + text + tail + "\n"))
    tree.put("/proc/cpuinfo", "\n".join(t for _, t in sorted(info)) or "\n")


def _nodes(tree: Tree, nodes: list[dict[str, Any]]) -> None:
    at = "/sys/devices/system/node"
    if not nodes:
        return
    total = 1 + max((max(parse_cpulist(n.get("cpus", "")), default=0) for n in nodes), default=0)
    ids = [int(n["id"]) for n in nodes]
    for file in ("online", "possible"):
        tree.put(f"{at}/{file}", format_cpulist(ids))
    tree.put(f"{at}/has_cpu", format_cpulist(int(n["id"]) for n in nodes if n.get("cpus")))
    with_memory = format_cpulist(int(n["id"]) for n in nodes if n.get("memory_gib", 0))
    tree.put(f"{at}/has_memory", with_memory)
    tree.put(f"{at}/has_normal_memory", with_memory)
    for n in nodes:
        here = f"{at}/node{n['id']}"
        cpus = n.get("cpus", "")
        tree.put(f"{here}/cpulist", File((cpus + "\n").encode()))
        tree.put(f"{here}/cpumap", cpumask(cpus, total))
        tree.put(f"{here}/distance", " ".join(str(x) for x in n.get("distances") or _distances(n, nodes)))
        kb = int(n.get("memory_gib", 0)) << 20
        tree.put(
            f"{here}/meminfo",
            f"Node {n['id']} MemTotal:       {kb} kB\nNode {n['id']} MemFree:        {kb * 9 // 10} kB",
        )
        for c in parse_cpulist(cpus):
            tree.link(f"{here}/cpu{c}", f"/sys/devices/system/cpu/cpu{c}")
            tree.link(f"/sys/devices/system/cpu/cpu{c}/node{n['id']}", here)


def _distances(n: dict[str, Any], nodes: list[dict[str, Any]]) -> list[int]:
    """Return 10 to itself, 12 within a package, 32 to another: a common two-socket table."""
    mine = int(n.get("package", 0))
    return [10 if m is n else 12 if int(m.get("package", 0)) == mine else 32 for m in nodes]


def _kernel(tree: Tree, system: dict[str, Any], name: str) -> None:
    release = system.get("kernel", "5.15.0-112-generic")
    tree.put("/proc/version", f"Linux version {release} (build@host) (gcc 11.4.0) #1 SMP")
    tree.put("/proc/sys/kernel/osrelease", release)
    tree.put("/proc/sys/kernel/hostname", system.get("hostname", name.replace("_", "-")))
    tree.put("/proc/sys/kernel/numa_balancing", "1" if system.get("numa_balancing") else "0")
    tree.put("/proc/sys/vm/nr_hugepages", str(system.get("hugepages", 0)))
    modes = ("always", "madvise", "never")
    chosen = system.get("transparent_hugepages", "madvise")
    tree.put("/sys/kernel/mm/transparent_hugepage/enabled", " ".join(f"[{m}]" if m == chosen else m for m in modes))
    default = "arch_sys_counter" if system.get("cpu_vendor") == "arm" else "tsc"
    tree.put(
        "/sys/devices/system/clocksource/clocksource0/current_clocksource", str(system.get("clocksource", default))
    )
    if not system.get("hypervisor"):  # guests have no frequencies to set
        frequency = "/sys/devices/system/cpu/cpu0/cpufreq"
        tree.put(f"{frequency}/scaling_governor", str(system.get("governor", "performance")))
        tree.put(f"{frequency}/scaling_max_freq", str(system.get("cpu_max_khz", 3_800_000)))
    tree.put("/sys/devices/system/cpu/smt/active", str(int(system.get("smt", True))))
    tree.put("/proc/sys/kernel/random/boot_id", str(uuid.uuid5(uuid.NAMESPACE_DNS, name)))
    tree.put("/proc/cmdline", f"BOOT_IMAGE=/vmlinuz-{release} root=/dev/sda1 {system.get('cmdline', 'ro quiet')}")
    tree.put("/proc/sys/kernel/arch", arch(system))
    os_name = system.get("os", "Ubuntu 22.04.4 LTS")
    words = os_name.split()
    tree.put(
        "/etc/os-release", f'PRETTY_NAME="{os_name}"\nNAME="{words[0]}"\nVERSION_ID="{words[1]}"\nID={words[0].lower()}'
    )
    tree.put("/proc/1/cgroup", "0::/init.scope")
    for path in system.get("marks", []):
        tree.put(path, "\n")


def arch(system: dict[str, Any]) -> str:
    """Return the word of `uname -m`."""
    return {"arm": "aarch64", "power": "ppc64le"}.get(system.get("cpu_vendor", "intel"), "x86_64")


def _process(tree: Tree, d: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    process, limits = d.get("process", {}), d.get("limits", {})
    every = format_cpulist(c for n in nodes for c in parse_cpulist(n.get("cpus", "")))
    uid = 0 if d.get("system", {}).get("root") else 1000
    caps = process.get("cap_eff", "000001ffffffffff" if uid == 0 else "0000000000000000")
    tree.put(
        "/proc/self/status",
        f"Name:\ttopocheck\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        f"CapInh:\t0000000000000000\nCapPrm:\t{caps}\nCapEff:\t{caps}\nCapBnd:\t000001ffffffffff\n"
        f"Seccomp:\t{process.get('seccomp', 0)}\n"
        f"Cpus_allowed_list:\t{process.get('cpus', every)}\n"
        f"Mems_allowed_list:\t{process.get('mems', format_cpulist(int(n['id']) for n in nodes))}",
    )
    tree.put(
        "/proc/self/limits",
        _LIMITS.format(
            stack=limits.get("stack", "8388608"),
            nofile=limits.get("nofile", "1048576"),
            memlock=limits.get("memlock", "unlimited"),
        ),
    )
    tree.put("/proc/self/cgroup", process.get("cgroup", _GROUP))
    tree.put("/sys/fs/cgroup/system.slice", Dir())
    tree.put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids")
    group = process.get("cgroup", _GROUP).rpartition("::")[2].rstrip("/")
    here = f"/sys/fs/cgroup{group}"
    tree.put(f"{here}/cpuset.cpus.effective", process.get("cgroup_cpus", process.get("cpus", every)))
    mems = process.get("mems", format_cpulist(int(n["id"]) for n in nodes))
    tree.put(f"{here}/cpuset.mems.effective", process.get("cgroup_mems", mems))
    tree.put(f"{here}/memory.max", str(limits.get("memory_max", "max")))
    tree.put("/dev/shm", Dir(0o1777))
    tree.put("/etc", Dir())
    total = sum(int(n.get("memory_gib", 0)) for n in nodes)
    shm = int(limits.get("shm_bytes", (total << 30) // 2))
    tree.file_systems["/dev/shm"] = (shm, int(limits.get("shm_free_bytes", shm)))


def _memory(tree: Tree, nodes: list[dict[str, Any]], system: dict[str, Any]) -> None:
    kb = int(system.get("memory_kb", sum(int(n.get("memory_gib", 0)) for n in nodes) << 20))
    free = int(system.get("memory_available_kb", kb * 9 // 10))
    tree.put("/proc/meminfo", f"MemTotal:       {kb} kB\nMemFree:        {free} kB\nMemAvailable:   {free} kB")


def _modules(tree: Tree, modules: dict[str, Any]) -> None:
    """Write /proc/modules and /sys/module. A value is the version, or {version, refs, builtin, params}."""
    lines = []
    tree.put("/sys/module", Dir())
    for name, told in modules.items():
        m: dict[str, Any] = {"version": told} if isinstance(told, str) else dict(told)
        if m.get("absent"):
            continue
        if not m.get("builtin"):
            lines.append(f"{name} 16384 {m.get('refs', 0)} - Live 0x0000000000000000")
            tree.put(f"/sys/module/{name}/initstate", "live")
            tree.put(f"/sys/module/{name}/refcnt", str(m.get("refs", 0)))
        else:
            tree.put(f"/sys/module/{name}/parameters", Dir())
        if m.get("version"):
            tree.put(f"/sys/module/{name}/version", m["version"])
        for key, value in m.get("params", {}).items():
            tree.put(f"/sys/module/{name}/parameters/{key}", str(value))
    tree.put("/proc/modules", File(("\n".join(lines) + "\n").encode() if lines else b""))
