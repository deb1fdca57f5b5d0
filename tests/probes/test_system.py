"""Kernel, platform, modules, IOMMU, driver and services."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.trees import host_of
from topocheck.host.base import HostError
from topocheck.knowledge import hypervisors
from topocheck.model.base import ABSENT, Missing, Reason
from topocheck.probes import cpuinfo, modules, nvidia_procfs, platform, system

X86 = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9654 96-Core Processor
cpu cores\t: 96
flags\t\t: fpu vme de {extra}

processor\t: 1
model\t\t: 99
"""
GRACE = """\
processor\t: 0
BogoMIPS\t: 2000.00
Features\t: fp asimd evtstrm aes sve2
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 0
"""
POWER9 = """\
processor\t: 0
cpu\t\t: POWER9, altivec supported
clock\t\t: 3783.000000MHz
revision\t: 2.2 (pvr 004e 1202)
"""


def test_cpu_of_three_architectures() -> None:
    amd = cpuinfo.parse_cpuinfo(X86.format(extra=""))
    assert cpuinfo.cpu_vendor(amd) == "AuthenticAMD"
    assert (cpuinfo.cpu_family(amd), cpuinfo.cpu_model(amd)) == (25, 17)  # the first processor's, not 99
    grace = cpuinfo.parse_cpuinfo(GRACE)
    assert cpuinfo.cpu_vendor(grace) == "ARM"
    assert (cpuinfo.cpu_family(grace), cpuinfo.cpu_model(grace)) == (8, 0xD4F)
    power = cpuinfo.parse_cpuinfo(POWER9)
    assert cpuinfo.cpu_vendor(power) == "IBM"
    assert cpuinfo.cpu_name(power) == "POWER9, altivec supported"


def test_cpuinfo_cut_in_the_middle_of_a_line() -> None:
    cut = cpuinfo.parse_cpuinfo(X86.format(extra="hypervisor lahf_lm")[:150])
    assert cpuinfo.cpu_vendor(cut) == "AuthenticAMD"


def judge(flags: str = "", vendor: str = "", product: str = "", x86: bool = True, **more: str) -> str | Missing:
    return platform.hypervisor(
        flags=frozenset(flags.split()),
        is_x86=x86,
        dmi_vendor=vendor or ABSENT,
        dmi_product=product or ABSENT,
        hypervisor_type=more.get("kind", ABSENT),
        device_tree=more.get("device_tree", ABSENT),
        version=more.get("version", "Linux version 6.1.0"),
        table=hypervisors.table(),
    )


@pytest.mark.parametrize(
    ("flags", "vendor", "product", "word"),
    [
        ("hypervisor", "QEMU", "Standard PC (Q35 + ICH9, 2009)", "KVM"),
        ("hypervisor", "Apache Software Foundation", "CloudStack KVM Hypervisor", "KVM"),
        ("hypervisor", "Amazon EC2", "p5.48xlarge", "KVM"),
        ("hypervisor", "Google", "Google Compute Engine", "KVM"),
        ("hypervisor", "Microsoft Corporation", "Virtual Machine", "Microsoft"),
        ("hypervisor", "VMware, Inc.", "VMware Virtual Platform", "VMware"),
        ("hypervisor", "Xen", "HVM domU", "Xen"),
        ("hypervisor", "", "", "unknown"),  # a guest whose firmware has no names
        ("hypervisor", "Supermicro", "SYS-821GE-TNHR", "unknown"),
    ],
)
def test_guests(flags: str, vendor: str, product: str, word: str) -> None:
    assert judge(flags, vendor, product) == word


@pytest.mark.parametrize(
    ("vendor", "product"),
    [
        ("Amazon EC2", "g4dn.metal"),
        ("Dell Inc.", "PowerEdge XE9680"),
        ("Microsoft Corporation", "Surface Laptop"),
        ("Google", "Google Compute Engine"),  # its bare-metal types
        ("NVIDIA", "DGXH100"),
        ("", ""),
    ],
)
def test_bare_metal_x86_has_no_flag(vendor: str, product: str) -> None:
    answer = judge("fpu vme", vendor, product)
    assert isinstance(answer, Missing)
    assert answer.reason is Reason.ABSENT


def test_without_a_flag_the_names_have_to_do() -> None:
    assert judge(x86=False, vendor="Amazon EC2", product="g5g.16xlarge") == "KVM"
    assert isinstance(judge(x86=False, vendor="Amazon EC2", product="g5g.metal"), Missing)
    bare = judge(x86=False, vendor="NVIDIA", product="Grace Hopper")
    assert isinstance(bare, Missing)
    assert bare.reason is Reason.ABSENT
    nothing = judge(x86=False)
    assert isinstance(nothing, Missing)
    assert nothing.reason is Reason.UNSUPPORTED
    assert judge(x86=False, device_tree="linux,kvm qemu,pseries\0ibm,pseries") == "KVM"
    assert judge(x86=False, device_tree="IBM,9009-22A\0ibm,pseries") == "PowerVM"
    assert judge(x86=False, device_tree="linux,dummy-virt") == "KVM"
    power = judge(x86=False, device_tree="ibm,powernv\0ibm,p9-openbmc")
    assert isinstance(power, Missing)
    assert power.reason is Reason.ABSENT
    assert judge("hypervisor", kind="xen") == "Xen"
    assert judge("hypervisor", version="Linux version 5.15.90.1-microsoft-standard-WSL2") == "WSL"


def test_every_hypervisor_row_has_a_source() -> None:
    for row in hypervisors.table():
        assert row.field in ("sys_vendor", "product_name")
        assert row.text
        assert row.source


def contained(**more: object) -> str | Missing:
    arguments = {"files": [], "variables": {}, "cgroup_paths": ["/"], "manager": "", "version": "Linux version 6.1"}
    return platform.container(**(arguments | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"files": ["/.dockerenv"]}, "docker"),
        ({"files": ["/run/.containerenv"]}, "podman"),
        ({"files": ["/.singularity.d"]}, "singularity"),
        ({"variables": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "files": ["/.dockerenv"]}, "kubernetes"),
        ({"cgroup_paths": ["/kubepods.slice/kubepods-pod1.slice/cri-containerd-0.scope"]}, "kubernetes"),
        ({"cgroup_paths": ["/docker/0123456789abcdef"]}, "docker"),
        ({"cgroup_paths": ["/system.slice/docker-0123456789abcdef.scope"]}, "docker"),
        ({"cgroup_paths": ["/lxc/box"]}, "lxc"),
        ({"variables": {"container": "lxc"}}, "lxc"),
        ({"manager": "systemd-nspawn"}, "systemd-nspawn"),
        ({"version": "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"}, "gvisor"),
    ],
)
def test_containers(told: dict[str, object], kind: str) -> None:
    assert contained(**told) == kind


@pytest.mark.parametrize(
    "path",
    ["/", "/init.scope", "/user.slice/user-1000.slice/session-3.scope", "/system.slice/docker.service",
     "/system.slice/containerd.service", "/system.slice/slurmstepd.scope/job_1/step_0"],
)  # fmt: skip
def test_no_container(path: str) -> None:
    assert contained(cgroup_paths=[path]) == ABSENT


@pytest.mark.parametrize(
    ("text", "flavor", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version:",
            "open",
            "580.159.04",
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024",
            "proprietary",
            "535.183.01",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.172.08  Release Build",
            "open",
            "570.172.08",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157  Wed Oct 12", "proprietary", "390.157"),
    ],
)
def test_driver_version(text: str, flavor: str, version: str) -> None:
    assert nvidia_procfs.parse_version(text) == (flavor, version)


def test_driver_version_of_another_form() -> None:
    flavor, version = nvidia_procfs.parse_version("something else 1.2")
    assert isinstance(flavor, Missing)
    assert isinstance(version, Missing)


INFORMATION = """\
Model: \t\t NVIDIA H100 80GB HBM3
GPU UUID: \t GPU-00000000-0000-4000-8000-000000000002
Bus Location: \t {address}
Device Minor: \t {minor}
GPU Excluded:\t {excluded}"""


def guest() -> dict[str, str | None]:
    """Return the two-H100 guest as recorded, with what a host would have added."""
    gpus = "/proc/driver/nvidia/gpus"
    return {
        "/proc/version": "Linux version 6.18.44-gpu (build) #1 SMP",
        "/proc/cpuinfo": X86.format(extra="hypervisor lahf_lm"),
        "/proc/modules": "nvidia_uvm 1830912 - - Live 0x0 (O)\nnvidia 14299136 2 nvidia_uvm, Live 0x0 (O)\n"
        "nvidia_cs 1 0 - Live 0x0\nsecret_module 1 0 - Live 0x0",
        "/sys/module/nvidia/version": "580.159.04",
        "/sys/module/nvidia_uvm/version": "580.159.04",
        "/sys/module/mlx5_core/parameters": None,
        "/sys/module/ib_core/parameters": None,
        "/sys/module/usbcore/parameters": None,
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release",
        "/proc/driver/nvidia/params": 'EnableResizableBar: 0\nRegistryDwords: "RMForceP2P=1"\nModifyDeviceFiles: 1',
        f"{gpus}/0000:00:06.0/information": INFORMATION.format(address="0000:00:06.0", minor=0, excluded="No"),
        f"{gpus}/0000:00:07.0/information": INFORMATION.format(address="0000:00:07.0", minor=1, excluded="Yes"),
        "/proc/sys/kernel/numa_balancing": "0",
        "/proc/meminfo": "MemTotal:       263998500 kB\nMemFree: 1 kB\nMemAvailable:   263384000 kB",
        "/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"',
    }


def test_recorded_guest(tmp_path: Path) -> None:
    host, backend = host_of(tmp_path, guest())
    facts = system.read(host)
    assert facts.kernel_release == "6.18.44-gpu"
    assert facts.machine == "x86_64"
    assert facts.os_name == "Debian GNU/Linux 12 (bookworm)"
    # Built into the kernel: in /sys/module and not in /proc/modules.
    assert facts.modules == {"nvidia": "580.159.04", "nvidia_uvm": "580.159.04", "ib_core": "", "mlx5_core": ""}
    assert set(facts.loaded_modules) == {"nvidia", "nvidia_uvm"}
    assert facts.loaded_modules["nvidia"] == 2
    assert isinstance(facts.loaded_modules["nvidia_uvm"], Missing)  # `-`: this kernel does not count
    assert (facts.nvidia_module_flavor, facts.nvidia_module_version) == ("open", "580.159.04")
    assert facts.nvidia_params == {"EnableResizableBar": "0", "RegistryDwords": "RMForceP2P=1"}
    assert facts.nvidia_gpu_minors == {"0000:00:06.0": 0, "0000:00:07.0": 1}
    assert facts.nvidia_gpus_excluded == ("0000:00:07.0",)
    assert facts.hypervisor == "unknown"
    assert facts.numa_balancing is False
    assert facts.memory_total_bytes == 263998500 * 1024
    # Only the lines that matter are asked for: no UUID, no other module.
    assert not [q for q in backend.asked if q.startswith("read:") and q.endswith(("information", "params", "modules"))]


def test_machine_without_anything(tmp_path: Path) -> None:
    host, _ = host_of(tmp_path, {"/sys": None})
    facts = system.read(host)
    for value in (facts.kernel_release, facts.cpu_vendor, facts.iommu_devices, facts.nvidia_module_flavor):
        assert isinstance(value, Missing)
    assert facts.modules == {}
    assert facts.container == ABSENT


def test_iommu_types_of_many_groups_are_sampled(tmp_path: Path) -> None:
    tree: dict[str, str | None] = {"/sys/class/iommu/dmar0": None, "/sys/class/iommu/dmar1": None}
    tree |= {f"/sys/kernel/iommu_groups/{n}/type": "identity" if n % 2 else "DMA-FQ" for n in range(640)}
    host, backend = host_of(tmp_path, tree)
    facts = system.read(host)
    assert facts.iommu_devices == ("dmar0", "dmar1")
    assert facts.iommu_groups == 640
    assert sum(facts.iommu_group_types.values()) == 64
    assert len([q for q in backend.asked if q.endswith("/type") and "iommu" in q]) == 64


def test_iommu_of_an_old_kernel_tells_no_types(tmp_path: Path) -> None:
    tree: dict[str, str | None] = {f"/sys/kernel/iommu_groups/{n}/devices": None for n in range(100)}
    host, backend = host_of(tmp_path, tree)
    facts = system.read(host)
    assert facts.iommu_groups == 100
    assert facts.iommu_group_types == {}
    assert len([q for q in backend.asked if q.endswith("/type") and "iommu" in q]) == 1


def test_no_iommu_in_use(tmp_path: Path) -> None:
    host, _ = host_of(tmp_path, {"/sys/class/iommu": None, "/sys/kernel/iommu_groups": None})
    facts = system.read(host)
    assert facts.iommu_devices == ()
    assert facts.iommu_groups == 0


FABRIC = "system.slice/nvidia-fabricmanager.service"


@pytest.mark.parametrize(
    ("tree", "state"),
    [
        ({f"/sys/fs/cgroup/{FABRIC}/cgroup.events": "populated 1\nfrozen 0"}, "active"),
        ({f"/sys/fs/cgroup/{FABRIC}/cgroup.events": "populated 0\nfrozen 0"}, "inactive"),
        ({f"/sys/fs/cgroup/systemd/{FABRIC}/cgroup.procs": "2211"}, "active"),
        ({"/sys/fs/cgroup/system.slice/sshd.service/cgroup.events": "populated 1"}, Reason.ABSENT),
        ({"/sys/fs/cgroup/memory.max": "max"}, Reason.NOT_VISIBLE_HERE),
    ],
)
def test_fabric_manager_by_its_control_group(tmp_path: Path, tree: dict[str, str], state: str | Reason) -> None:
    host, _ = host_of(tmp_path, tree)
    answer = system.read(host).fabric_manager
    assert (answer.reason if isinstance(answer, Missing) else answer) == state


SHOW = (
    "Id=nvidia-fabricmanager.service\nLoadState=loaded\nActiveState=failed\n\n"
    "Id=nvidia-imex.service\nLoadState=not-found\nActiveState=inactive\n\n"
    "Id=nvidia-persistenced.service\nLoadState=loaded\nActiveState=active\n"
)
QUESTION = (
    "run:3|systemctl|show|--property=Id,LoadState,ActiveState|"
    "nvidia-fabricmanager.service|nvidia-imex.service|nvidia-persistenced.service"
)


def test_services(tmp_path: Path) -> None:
    answer = {"rc": 0, "stdout": SHOW, "stderr": ""}
    host, _ = host_of(tmp_path, {"/proc/driver/nvidia/version": "x"}, {QUESTION: answer})
    assert system.read_services(host) == {
        "services": {
            "nvidia-fabricmanager": "failed",
            "nvidia-imex": "not-found",
            "nvidia-persistenced": "active",
        },
        "fabric_manager": "failed",
    }


@pytest.mark.parametrize(
    "answer",
    [
        {"rc": 1, "stdout": "", "stderr": "System has not been booted with systemd as init system"},
        HostError(Reason.ABSENT, "systemctl"),
        HostError(Reason.TIMED_OUT, "systemctl"),
    ],
)
def test_services_that_cannot_be_told(tmp_path: Path, answer: object) -> None:
    host, _ = host_of(tmp_path, {"/proc/driver/nvidia/version": "x"}, {QUESTION: answer})
    assert system.read_services(host) == {}


def test_services_are_not_asked_without_the_driver(tmp_path: Path) -> None:
    host, backend = host_of(tmp_path, {"/proc": None})
    assert system.read_services(host) == {}
    assert not [q for q in backend.asked if q.startswith("run:")]


def test_remove_ipc_last_file_by_name_wins(tmp_path: Path) -> None:
    tree = {
        "/etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\nRemoveIPC=yes",
        "/usr/lib/systemd/logind.conf.d/10-a.conf": "[Login]\nRemoveIPC=yes",
        "/usr/lib/systemd/logind.conf.d/20-b.conf": "[Login]\nRemoveIPC=yes",
        "/etc/systemd/logind.conf.d/20-b.conf": "[Login]\nRemoveIPC=no",  # takes the place of its namesake
    }
    host, _ = host_of(tmp_path, tree)
    assert system.read(host).remove_ipc == "no"
    other, _ = host_of(tmp_path / "other", {"/etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no"})
    assert isinstance(system.read(other).remove_ipc, Missing)


def test_peers_switches_and_channels(tmp_path: Path) -> None:
    tree: dict[str, str | None] = {
        "/sys/kernel/mm/memory_peers/nv_mem/version": "1.3",
        "/dev/nvidia-nvswitch0": "",
        "/dev/nvidia-nvswitch1": "",
        "/dev/nvidia-caps-imex-channels/channel0": "",
        "/boot/config-6.8.0": "CONFIG_PCI_P2PDMA=y\n# CONFIG_DMABUF_MOVE_NOTIFY is not set\nCONFIG_SECRET=1",
        "/proc/sys/kernel/osrelease": "6.8.0",
    }
    host, _ = host_of(tmp_path, tree)
    facts = system.read(host)
    assert facts.memory_peers == ("nv_mem",)
    assert facts.nvswitch_devices == ("/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitch1")
    assert facts.imex_channels == ("channel0",)
    assert facts.kernel_config == {"CONFIG_PCI_P2PDMA": "y"}


@given(text=st.text(max_size=300))
def test_parsers_never_raise(text: str) -> None:
    info = cpuinfo.parse_cpuinfo(text)
    cpuinfo.cpu_vendor(info), cpuinfo.cpu_family(info), cpuinfo.cpu_model(info), cpuinfo.flags(info)
    modules.parse_modules(text.split("\n"))
    modules.parse_config(text.split("\n"))
    nvidia_procfs.parse_version(text)
    nvidia_procfs.parse_colon_lines(text.split("\n"))
    system.parse_services(text)
    judge(text, text, text, x86=False, kind=text, device_tree=text)
    contained(cgroup_paths=[text], manager=text, version=text)
