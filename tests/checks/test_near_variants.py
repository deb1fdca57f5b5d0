"""Near variants of the field's reports: another product, architecture, wording or place of the same kind of fault."""

from __future__ import annotations

import pytest

from tests.checks.support import Row, assert_row, findings, variant
from tests.machines.builder import cached, machine
from topocheck.model.base import State
from topocheck.pipeline import build_report

F, W, N = State.FAIL, State.WARN, State.NOTE
HGX, CARDS, PRO = "hgx_h100_cx7", "l40s_x8", "rtxpro6000_x8_asus"
LOG = "/dev/kmsg"
NONE = {"nvml": {"DeviceGetCount": 0}, "cuda": {"error": "CUDA_ERROR_NO_DEVICE"}}
SEVEN = {"nvml": {"DeviceGetCount": 7}}
LAST = "0000:bb:00.0"
"""The eighth card of l40s_x8, which NVML does not list where it counts seven."""


def not_loaded(line: str) -> dict[str, object]:
    """Return a machine whose driver is not loaded, with a line of the kernel's log."""
    return {
        "driver": {"state": "DriverNotLoaded"},
        "patch": {"all gpu": {"driver": "none"}},
        "files": {LOG: line},
    }


def refused_use(address: str, ids: str, words: str) -> dict[str, str]:
    """Return the log of NVIDIA's module about a GPU that it does not use; /dev/kmsg writes a line break as \\x0a."""
    return {LOG: f"NVRM: The NVIDIA GPU {address} (PCI ID: {ids})\\x0aNVRM: installed in this system {words}"}


NARROW = """
root 0000:15 node=0
  rp 01.0 5x16
    up pex890xx max=6x16
      down 6x16
        cx7 max=6x16 rdma=mlx5_0 rate=800_Gb/sec_(4X_XDR)
      down 6x16
        {}
"""
BRIDGED = "\n".join(f"root 0000:{bus} node=0\n  rp 01.0 5x16\n    h100_nvl" for bus in ("15", "37", "48", "59"))
THREE = {"0-1": 6, "0-2": 6, "1-2": 6}

CONTAINED = {"system": {"marks": ["/.dockerenv"]}}
DISPLAY_CARDS = """
root 0000:00 node=0
  rp 01.0 4x16
    rtxa6000 bars=16M,256M6p,32M6p
  rp 02.0 4x16
    rtxa6000
"""

ROWS = [
    # why the driver does not use a GPU: by its own words, else by product and kind of module
    Row(id="driver.gpu-not-listed", machine="dgx1v", change={**NONE, "driver": {"flavor": "open"}}, state=F,
        subject="0000:06:00.0 GPU0", says=("not supported by the open kernel module", "proprietary kernel module")),
    Row(id="driver.gpu-not-listed", machine="dgx1v",
        change={**NONE, "driver": {"flavor": "proprietary", "version": "590.44.01"}}, state=F, says=("branch 580",)),
    Row(id="driver.gpu-not-listed", machine=PRO, change={**NONE, "driver": {"flavor": "proprietary"}}, state=F,
        says=("open kernel module only", "--kernel-module-type=open")),
    Row(id="driver.gpu-not-listed", machine="gb10", change={**NONE, "driver": {"flavor": "proprietary"}}, state=F,
        says=("open kernel modules in place",)),
    Row(id="driver.gpu-not-listed", machine="gh200", change={**NONE, "driver": {"flavor": "proprietary"}}, state=F,
        says=("open kernel modules in place",)),
    Row(id="driver.gpu-not-listed", machine=CARDS, change={**SEVEN, "files": refused_use(LAST, "10de:26b9",
        "is not supported by the\\x0aNVRM: NVIDIA 470.256.02 driver release.")}, state=F,
        says=("release 470.256.02 of the driver does not support it", "supported products")),
    Row(id="driver.gpu-not-listed", machine=CARDS, change={**SEVEN, "files": {LOG: "NVRM: This PCI I/O region assigned "
        f"to your NVIDIA device is invalid:\\x0aNVRM: BAR1 is 0M @ 0x0 (PCI:{LAST})"}}, state=F,
        says=("windows are not assigned", "Above 4G decoding", "pci=realloc")),
    Row(id="driver.gpu-not-listed", machine=CARDS, change={**SEVEN, "system": {"hypervisor": "KVM"}, "files": {LOG:
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\\x0aNVRM: BAR1 is 0M @ 0x0 "
        f"(PCI:{LAST})"}}, state=F, says=("have the host give this guest a larger 64-bit window",)),
    Row(id="driver.gpu-not-listed", machine=CARDS, change={**SEVEN, "system": {"marks": ["/.dockerenv"]}, "files":
        refused_use(LAST, "10de:26b9", "requires use of the NVIDIA open kernel modules.")}, state=N),
    # the line is of another GPU, so nothing is said of this one but the usual
    Row(id="driver.gpu-not-listed", machine=CARDS, change={**SEVEN, "files": refused_use("0000:01:00.0", "10de:26b9",
        "requires use of the NVIDIA open kernel modules.")}, state=F, says=("look for RmInitAdapter",)),
    # a module that the kernel rejects
    Row(id="driver.not-loaded", machine=CARDS, change=not_loaded("Loading of module with unavailable key is rejected"),
        state=F, says=("rejects a module's signature", "mokutil --import", "Secure Boot")),
    Row(id="driver.not-loaded", machine=CARDS,
        change=not_loaded("Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7"),
        state=F, says=("mokutil --import",)),
    Row(id="driver.not-loaded", machine=PRO, change=not_loaded(refused_use("0000:06:00.0", "10de:2bb5",
        "requires use of the NVIDIA open kernel modules.")[LOG]), state=F,
        says=("supported by the open kernel module only", "--kernel-module-type=open")),
    Row(id="driver.not-loaded", machine="laptop", change={"driver": {"state": "DriverNotLoaded"},
        "patch": {"all gpu": {"driver": "nouveau"}}}, state=N, says=("blacklist nouveau",)),
    Row(id="driver.not-loaded", machine="rtx6000ada_x4", change={"driver": {"state": "DriverNotLoaded"},
        "patch": {"all gpu": {"driver": "nouveau"}}}, state=F, says=("blacklist nouveau",)),
    # the option of the architecture
    Row(id="pcie.kernel-option-ignored", machine="gh200", change={"system": {"cmdline": "ro iommu=pt"}}, state=N,
        says=("write iommu.passthrough=1",)),
    Row(id="pcie.kernel-option-ignored", machine="gh200", change={"system": {"cmdline": "ro iommu.passthrough=1"}}),
    # a link above a switch that joins NIC and GPU is not on the way between the two
    Row(id="pcie.nic-slot-too-slow", machine=HGX, change={"pci": {"tree": NARROW.format("b200 max=6x16")}}, state=N,
        subject="0000:18:00.0 mlx5_0", says=("504 Gb/s", "those with GPU0 do not pass it")),
    Row(id="pcie.nic-slot-too-slow", machine=HGX, change={"nvlink": {"switch": 0},
        "pci": {"tree": NARROW.format("rtx5090 max=6x16")}}, state=W, says=("reaches at most 63 %",)),
    Row(id="pcie.nic-slot-too-slow", machine=HGX, change={"pci": {"tree": NARROW.format("nvme")}}, state=W,
        says=("reaches at most 63 %",)),
    # all NICs near GPUs without a partner, while others are up
    Row(id="rdma.port-down", machine=HGX, change={"patch": {f"mlx5_{i}": {"state": "DOWN/Polling"} for i in range(8)}},
        state=W, subject="node", says=("none of 8 ports",)),
    # a GPU that NVML alone cannot reach
    Row(id="pcie.device-lost", machine=HGX, change={"gpu": {"2": {"error": "ResetRequired"}}}, state=F,
        subject="0000:4b:00.0 GPU2", says=("needs a reset", "nvidia-smi -r")),
    Row(id="pcie.device-lost", machine=HGX, change={"gpu": {"2": {"error": "ResetRequired"}},
        "system": {"hypervisor": "KVM"}}, state=F, says=("have its host reset the GPU",)),
    Row(id="pcie.device-lost", machine="rtx4090_x8", change={"gpu": {"1": {"error": "InsufficientPower"}}}, state=F,
        says=("external power", "power cables")),
    Row(id="pcie.device-lost", machine="l4_x2_across_sockets", change={"gpu": {"0": {"error": "IrqIssue"}}}, state=F,
        says=("no interrupts", "pci=nomsi")),
    # devices that are gone are not judged further
    Row(id="rdma.nearest-nic-far", machine=HGX, change={"patch": {"GPU4": {"lost": "1"}}}),
    Row(id="pcie.link-width", machine=HGX, change={"patch": {"mlx5_2": {"lost": "1"}}}),
    Row(id="pcie.device-lost", machine=HGX, change={"patch": {"mlx5_2": {"lost": "1"}}}, state=F,
        subject="0000:4c:00.0 mlx5_2", says=("its driver's messages", "power-cycle the node")),
    # corrected errors on one device alone
    Row(id="pcie.aer-errors", machine=HGX, change={"patch": {"GPU4": {"aer_cor": "BadTLP:120000,RxErr:4000"}}}, state=W,
        subject="0000:9a:00.0 GPU4", says=("124000 corrected", "7 of its kind have 0 at most")),
    Row(id="pcie.aer-errors", machine=HGX, change={"patch": {"all gpu": {"aer_cor": "BadTLP:120000"}}}, state=N),
    Row(id="pcie.aer-errors", machine=HGX, change={"patch": {"GPU4": {"aer_cor": "BadTLP:1200"}}}, state=N),
    # a bridge for four cards that joins three
    Row(id="nvlink.links-down", machine=HGX, change={"pci": {"tree": BRIDGED}, "nvlink": {"switch": 0, "pairs": THREE},
        "gpus": {"name": "NVIDIA H200 NVL", "fabric": False}}, state=W, subject="0000:5a:00.0 GPU3",
        says=("a bridge for four",)),
    # the subnet manager of the switches also where its functions are not recognised
    Row(id="nvlink.fabric-not-ready", machine="h50_hgx_b200", change={"modules": {"ib_umad": {"absent": True}},
        "gpus": {"fabric": {"state": 2}}}, state=F, says=("ib_umad not loaded", "modprobe ib_umad")),
    Row(id="nvlink.fabric-not-ready", machine="gb200_tray", change={"gpu": {"0": {"fabric": {"healthMask": 1,
        "clusterUuid": "6f0c1a52-9d3b-4e57-8a11-2b7f40c6d9e3", "cliqueId": 32766}}}}, state=W,
        says=("DEGRADED_BW", "traffic over NVLink is slower")),
    # what a setting names, and what it comes to
    Row(id="consistency.visible-devices", machine=HGX, change={"environment": {"CUDA_VISIBLE_DEVICES": "GPU-deadbeef"}},
        state=F, says=("visible: none", "CUDA finds no GPU")),
    Row(id="consistency.visible-devices", machine=HGX, change={"environment": {"CUDA_VISIBLE_DEVICES": "0,9,1"}},
        state=W),
    Row(id="nccl.hca-missing", machine=HGX, change={"environment": {"NCCL_IB_HCA": "^mlx5"}}, state=W,
        says=("excludes every active NIC", "uses TCP", "unset NCCL_IB_HCA")),
    Row(id="nccl.plugin-missing", machine="h62_tcpxo_profile", change={"environment": {"NCCL_NET": "gIB",
        "LD_LIBRARY_PATH": "/usr/lib"}}, state=F, says=("put the plugin's folder",)),
    Row(id="nccl.plugin-missing", machine="h62_tcpxo_profile", change={"environment": {"NCCL_NET": "FasTrak",
        "LD_LIBRARY_PATH": "/usr/lib"}}, state=F, says=("/var/lib/tcpxo/lib64",)),
    # refused by mode is not missing
    Row(id="rdma.verbs-device-missing", machine=HGX, change={"system": {"root": False}, "files": {
        f"/dev/infiniband/uverbs{i}": {"mode": 0o600, "kind": "char", "text": ""} for i in range(10)}}, state=W,
        says=("may not be opened", "check the mode")),
    Row(id="rdma.verbs-device-missing", machine=HGX, change={"files": {"/dev/infiniband": {"remove": True}}}, state=W,
        says=("are missing", "modprobe ib_uverbs")),
    # a container with an init of its own has no CDI; another launcher has no srun
    Row(id="driver.not-answering", machine="h40_device_cgroup", change={"files": {"/run/systemd/container": "lxc"},
        "system": {"marks": []}, "process": {"cgroup": "0::/"}}, state=F, says=("lxc.cgroup2.devices.allow",)),
    Row(id="p2p.hidden-from-task", machine="h46_task_of_one_gpu", change={"environment": {"SLURM_JOB_ID": "",
        "SLURM_NTASKS": "", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}}, state=W, says=("start the tasks in one container",)),
    # no GPU: where to look for it depends on what the machine is
    Row(id="driver.no-gpu", machine="no_pci", change={"dmi": {"sys_vendor": "QEMU"}}, state=N,
        says=("passed to this guest",)),
    Row(id="driver.no-gpu", machine="no_pci", state=N, says=("in lspci and in its slot",)),
    # a card in display mode asks for a small BAR1 itself
    Row(id="pcie.bridge-window-small", machine="rtx3090_x2_bridge", change={"pci": {"tree": DISPLAY_CARDS},
        "gpu": {"0": {"bar1_mib": 256}}}, state=W, subject="0000:01:00.0 GPU0", says=("displaymodeselector",)),
    # what the node alone can do, from a container and from a guest
    Row(id="p2p.acs-redirect", machine="h64_maxq_acs_and_iommu", change=CONTAINED, state=F,
        says=("on the node, outside this container: as root", "setpci")),
    Row(id="p2p.unverified-across-host-bridges", machine="h13_iommu_translates", change=CONTAINED, state=W,
        says=("on the node, outside this container: boot with iommu=pt",)),
    Row(id="nvlink.fabric-not-ready", machine="h51_b200_no_umad", change=CONTAINED, state=F,
        says=("on the node, outside this container: modprobe mlx5_ib ib_umad",)),
    Row(id="nvlink.fabric-not-ready", machine="h51_b200_no_umad", change={"system": {"hypervisor": "KVM"}}, state=F,
        says=("modprobe mlx5_ib ib_umad",)),
    Row(id="nvlink.links-down", machine="h52_b200_one_outside", change=CONTAINED, state=F,
        says=("on the node, outside this container: drain",)),
    Row(id="nvlink.links-down", machine="h52_b200_one_outside", change={"system": {"hypervisor": "KVM"}}, state=F,
        says=("restart the guest", "host's administrator")),
    Row(id="rdma.same-subnet", machine="h78_one_subnet", change=CONTAINED, state=W,
        says=("on the node, outside this container",)),
    # a refusal by the chipset, on the machine at hand
    Row(id="p2p.refused", machine=CARDS, change={"p2p": {"all": "CNS"}}, state=W, says=("update the firmware",)),
    Row(id="p2p.refused", machine=CARDS, change={"p2p": {"all": "CNS"}, "system": {"hypervisor": "KVM"}}, state=N,
        says=("ask the host's administrator",)),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_rows(row: Row) -> None:
    """Each variant is found with the fix that can work on it, and its look-alike is quiet."""
    assert_row(row)


IPV6 = {"text": "fd93:16d3:59b6:0001:0000:0000:0000:0002"}
PORT = "/sys/class/infiniband/mlx5_bond_0/ports/1"


@pytest.mark.parametrize(
    ("environment", "state"),
    [({}, State.FAIL), ({"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, None), ({"NCCL_IB_GID_INDEX": "3"}, None)],
)
def test_ipv6_alone(environment: dict[str, str], state: State | None) -> None:
    """NCCL looks for an IPv4 address and stays at index 0, which is link-local (uccl-project/uccl pull 803)."""
    files = {f"{PORT}/gids/2": IPV6, f"{PORT}/gids/3": IPV6}
    told = {"NCCL_IB_GID_INDEX": "-1", **environment}
    found = findings("rdma.gid-index", variant("h17_gid_link_local", files=files, environment=told))
    assert [f.state for f in found] == ([state] if state else [])
    assert all("AF_INET6" in (f.fix or "") and "NCCL_IB_GID_INDEX=3" in (f.fix or "") for f in found)


@pytest.mark.parametrize(("error", "state"), [("EIO", State.UNKNOWN), ("ENOENT", State.FAIL)])
def test_ipv6_and_an_entry_that_cannot_be_read(error: str, state: State) -> None:
    """The entry may be the IPv4 address that NCCL looks for; one that is not there is not."""
    v2 = {f"{PORT}/gids/1": IPV6, f"{PORT}/gid_attrs/types/1": {"text": "RoCE v2"}}
    files = {**v2, **{f"{PORT}/gids/{n}": {"error": error} for n in (2, 3)}}
    (f,) = findings(
        "rdma.gid-index", variant("h17_gid_link_local", files=files, environment={"NCCL_IB_GID_INDEX": "-1"})
    )
    assert f.state is state


def test_iommu_on_arm() -> None:
    """`iommu=pt` is parsed on x86 alone, so that neither a fix nor the mode rests on it elsewhere."""
    arm = {"cpu_vendor": "arm", "iommu": "DMA"}
    c = variant("l4_x2_across_sockets", system=arm, p2p={"all": "OK"})
    (found,) = findings("p2p.unverified-across-host-bridges", c)
    assert "boot with iommu.passthrough=1" in (found.fix or "")
    assert all("iommu=pt" not in (r.fix or "") for p in c.gpudirect.p2p for r in p.reasons)


def test_silence_of_a_dead_driver_is_one_finding() -> None:
    """CUDA's silence is not reported next to the driver that nobody may use."""
    found = build_report(cached("h40_device_cgroup").host()).findings
    assert [f.id for f in found if f.state in (State.FAIL, State.UNKNOWN)] == ["driver.not-answering"]


def test_no_gpu_under_wsl() -> None:
    """WSL shows GPUs through the driver of Windows, which is where to look for one that is missing."""
    files = {"/proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@x) (gcc) #1 SMP"}
    (found,) = findings("driver.no-gpu", variant("no_pci", files=files, system={"hypervisor": "Microsoft"}))
    assert "nvidia-smi.exe" in (found.fix or "")


def test_a_lost_gpu_next_to_one_that_did_not_start() -> None:
    """NVML lists seven of eight and calls the first of them lost: the bus tells which of the two silent ones it is."""
    m = machine("l40s_x8", patch={"GPU1": {"lost": "1"}})
    del m.backend.nvml.gpus[0]
    found = build_report(m.host()).findings
    assert {f.id: f.devices for f in found if f.state is State.FAIL} == {
        "pcie.device-lost": ("0000:19:00.0",),
        "driver.gpu-not-listed": ("0000:18:00.0",),
    }
