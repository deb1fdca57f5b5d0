"""Kernel modules that matter to GPU traffic, loaded or built in, and the kernel's build options beside them."""

from __future__ import annotations

from topocheck.host.base import Host, HostError
from topocheck.model.base import Missing, Reason, is_digits
from topocheck.probes.sysfs_reader import list_or_missing, parse_int, text_or_missing

MODULES = tuple(
    """
    nvidia nvidia_uvm nvidia_modeset nvidia_drm nvidia_peermem nv_peer_mem nvidia_fs nvidia_vgpu_vfio gdrdrv nouveau
    nova_core amdgpu i915 xe ib_core ib_uverbs rdma_cm mlx4_core mlx4_ib mlx5_core mlx5_ib bnxt_en bnxt_re irdma hfi1
    efa mana_ib erdma ionic_rdma qedr cxgb4 rdma_rxe siw vfio vfio_pci vfio_iommu_type1 pci_switch_link xpmem knem
    """.split()
)

LISTED_ONLY = ("ib_umad",)
"""Modules that are looked for in /sys/module alone: what is asked of /proc/modules is as older recordings have it."""

CONFIG = ("CONFIG_PCI_P2PDMA=", "CONFIG_DMABUF_MOVE_NOTIFY=", "CONFIG_INFINIBAND_USER_ACCESS=",
           "CONFIG_IOMMU_DEFAULT_")  # fmt: skip


def parse_modules(lines: list[str]) -> dict[str, int | Missing]:
    """Return name -> users of lines of /proc/modules: `name size users dependents state address`.

    A kernel that cannot unload modules gives no number of users but `-`.
    """
    out: dict[str, int | Missing] = {}
    for line in lines:
        words = line.split()
        if len(words) < 3 or not is_digits(words[1]):
            continue
        out[words[0]] = Missing(Reason.UNSUPPORTED, "not counted") if words[2] == "-" else parse_int(words[2])
    return out


def read_modules(host: Host, raw: dict[str, str]) -> tuple[dict[str, str], dict[str, int | Missing]]:
    """Return (module -> version, loaded module -> users).

    A module built into the kernel is a folder of /sys/module without being in /proc/modules.
    """
    loaded: dict[str, int | Missing] = {}
    try:
        lines = host.read_lines("/proc/modules", *(f"{m} " for m in MODULES))
    except HostError as e:
        raw["/proc/modules"] = f"!{e.missing()}"
    else:
        loaded = parse_modules(lines)
        raw |= {f"/proc/modules {line.split()[0]}": " ".join(line.split()[:3]) for line in lines if line.strip()}
    names = list_or_missing(host, "/sys/module")
    there = set(loaded) | (set() if isinstance(names, Missing) else set(names) & {*MODULES, *LISTED_ONLY})
    versions: dict[str, str] = {}
    for name in sorted(there):
        version = text_or_missing(host, f"/sys/module/{name}/version")
        versions[name] = "" if isinstance(version, Missing) else version
        built_in = "" if name in loaded or name in LISTED_ONLY else " (not in /proc/modules)"
        raw[f"/sys/module/{name}/version"] = f"!{version}{built_in}" if isinstance(version, Missing) else version
    return versions, loaded


def parse_config(lines: list[str]) -> dict[str, str]:
    """Return option -> value of lines of a kernel's build configuration."""
    return {name: value.strip() for name, sep, value in (line.partition("=") for line in lines) if sep}


def kernel_config(host: Host, release: str | Missing) -> dict[str, str]:
    """Return the build options that DMA-BUF and peer-to-peer DMA need, where the configuration can be read."""
    if isinstance(release, Missing) or "/" in release:
        return {}
    for path in (f"/boot/config-{release}", f"/lib/modules/{release}/config"):
        try:
            return parse_config(host.read_lines(path, *CONFIG))
        except HostError:
            continue
    return {}


PEER_MEMORY = "alias symbol:ib_register_peer_memory_client"
"""Of modules.symbols, which depmod writes: the function by which nvidia_peermem registers with the RDMA core."""


def peer_memory_symbol(host: Host, release: str | Missing, raw: dict[str, str]) -> bool | Missing:
    """Return whether a module for the running kernel has the peer-memory interface.

    The kernel's own RDMA core never had it; MLNX_OFED and DOCA-OFED bring one that has, and so did some
    distributions' kernels (Ubuntu until 6.5). Missing where the list of symbols cannot be read, as in a container.
    """
    if isinstance(release, Missing) or "/" in release:
        return release if isinstance(release, Missing) else Missing(Reason.UNPARSABLE, release)
    path = f"/lib/modules/{release}/modules.symbols"
    try:
        lines = host.read_lines(path, PEER_MEMORY)
    except HostError as e:
        return e.missing()
    raw[path] = lines[0] if lines else "no ib_register_peer_memory_client"
    return bool(lines)
