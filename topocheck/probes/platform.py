"""What a machine runs on: hypervisor and container, from what both let a guest see. Pure functions.

The flag `hypervisor` of an x86 CPU (CPUID leaf 1, ECX bit 31) is set by every hypervisor and by no bare machine;
elsewhere there is no such flag and the firmware's names (DMI, device tree) have to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from topocheck.knowledge.hypervisors import Row
from topocheck.model.base import ABSENT, Missing, Reason

UNKNOWN_HYPERVISOR = "unknown"

_CONTAINER_PATHS = (
    (re.compile(r"/kubepods|/kubelet"), "kubernetes"),
    (re.compile(r"/docker/[0-9a-f]{12}|/docker-[0-9a-f]{12}|/actions_job/"), "docker"),
    (re.compile(r"/libpod-|/libpod_parent|/machine\.slice/libpod"), "podman"),
    (re.compile(r"/lxc/|/lxc\.payload"), "lxc"),
    (re.compile(r"/cri-containerd|/cri-o-|/crio-|/containerd-"), "containerd"),
)
_DEVICE_TREES = {
    "linux,kvm": "KVM",
    "linux,dummy-virt": "KVM",
    "qemu,pseries": "KVM",
    "xen,xen": "Xen",
    "vmware": "VMware",
    "ibm,pseries": "PowerVM",
}
"""Words of /proc/device-tree/hypervisor/compatible and /proc/device-tree/compatible that only guests have: QEMU
hw/ppc/spapr.c and hw/arm/virt.c, systemd src/basic/virt.c; bare metal of Power says ibm,powernv."""

_TYPES = {"xen": "Xen", "kvm": "KVM", "vmware": "VMware", "microsoft": "Microsoft"}
"""Words of /sys/hypervisor/type, and those in which given texts name a hypervisor in its place -> vendor word."""

_GVISOR_VERSION = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"
"""What gVisor's /proc/version says whatever the host (google/gvisor pkg/sentry/kernel, linux version constants)."""


def hypervisor(
    *,
    flags: frozenset[str],
    is_x86: bool,
    dmi_vendor: str | Missing,
    dmi_product: str | Missing,
    hypervisor_type: str | Missing,
    device_tree: str | Missing,
    version: str,
    table: Sequence[Row],
) -> str | Missing:
    """Return the vendor word of the hypervisor, `unknown` where it does not say its name, or Missing.

    Missing is absent where the machine is bare metal, and unsupported where nothing tells (no DMI, no device tree
    and no flag to go by).
    """
    names = {"sys_vendor": dmi_vendor, "product_name": dmi_product}
    told = {field: value for field, value in names.items() if isinstance(value, str)}
    rows = [r for r in table if told.get(r.field, "").startswith(r.text)]
    flagged = "hypervisor" in flags
    metal = ".metal" in told.get("product_name", "") or "Bare Metal" in told.get("product_name", "")
    if "microsoft" in version.lower() and "wsl" in version.lower():  # Windows Subsystem for Linux; no DMI there
        return "WSL"
    if isinstance(hypervisor_type, str) and hypervisor_type:
        return _TYPES.get(hypervisor_type.lower(), hypervisor_type[:40])
    if sure := next((r for r in rows if r.certain), None):
        return sure.hypervisor
    if is_x86:
        if not flagged:
            return Missing(Reason.ABSENT, "bare metal: the CPU has no hypervisor flag")
        return rows[0].hypervisor if rows else UNKNOWN_HYPERVISOR
    if rows and not metal:
        return rows[0].hypervisor
    if isinstance(device_tree, str):
        words = set(device_tree.replace("\0", " ").split())
        if guest := next((word for name, word in _DEVICE_TREES.items() if name in words), None):
            return guest
        if told or words:
            return Missing(Reason.ABSENT, "bare metal: neither firmware nor device tree names a hypervisor")
    if told:
        return Missing(Reason.ABSENT, "bare metal: the firmware names no hypervisor")
    return Missing(Reason.UNSUPPORTED, "neither DMI nor a device tree says")


def container(
    *, files: Sequence[str], variables: Mapping[str, str], cgroup_paths: Sequence[str], manager: str, version: str
) -> str | Missing:
    """Return the kind of container this process is in, or Missing(absent).

    Args:
        files: those of the marker files that are there.
        variables: the environment (`container` and `KUBERNETES_SERVICE_HOST` are looked at).
        cgroup_paths: paths of this process's control groups.
        manager: text of /run/systemd/container, empty where there is none.
        version: text of /proc/version.
    """
    if "gVisor" in version or version.startswith(_GVISOR_VERSION):
        return "gvisor"
    if variables.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    by_path = next((kind for path in cgroup_paths for pattern, kind in _CONTAINER_PATHS if pattern.search(path)), None)
    if by_path == "kubernetes":
        return by_path
    if "/.singularity.d" in files:
        return "singularity"
    if "/run/.containerenv" in files:
        return "podman"
    if "/.dockerenv" in files:
        return "docker"
    if by_path:
        return by_path
    named = variables.get("container") or manager
    return named[:40] if named else ABSENT
