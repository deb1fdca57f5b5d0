"""Reading PCI functions from a tree: what is asked of which function, and what breaks alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probes.spaces import acs, config_space, pcie
from tests.probes.trees import Link, host_of
from topocheck.host.base import Host, HostError, RecordedBackend
from topocheck.model.base import Missing, Reason
from topocheck.model.pci import PciDevice, PortType
from topocheck.probes.pci import config as pci_config
from topocheck.probes.pci import sysfs as pci

ROOT, UP, DOWN, GPU = "0000:17:00.0", "0000:18:00.0", "0000:19:08.0", "0000:1b:00.0"
PLACES = {
    ROOT: f"pci0000:17/{ROOT}",
    UP: f"pci0000:17/{ROOT}/{UP}",
    DOWN: f"pci0000:17/{ROOT}/{UP}/{DOWN}",
    GPU: f"pci0000:17/{ROOT}/{UP}/{DOWN}/{GPU}",
}
LINK_16 = {
    "max_link_speed": "16.0 GT/s PCIe",
    "current_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
    "current_link_width": "16",
}


def function(place: str, files: dict[str, str | bytes | Link]) -> dict[str, str | bytes | Link | None]:
    """Return the entries of one function at its place below /sys/devices."""
    address = place.rsplit("/", 1)[-1]
    entries: dict[str, str | bytes | Link | None] = {f"/sys/devices/{place}/{n}": v for n, v in files.items()}
    entries[f"/sys/bus/pci/devices/{address}"] = Link(f"../../../devices/{place}")
    return entries


def machine() -> dict[str, str | bytes | Link | None]:
    """Return a root port, a switch and a GPU below it."""
    lnk = {"lnkcap": 0x104, "lnksta": 0x1104}
    ports = {
        ROOT: (0x8086, 0x2030, (0x17, 0x18, 0x1F), 4),
        UP: (0x10B5, 0x8747, (0x18, 0x19, 0x1F), 5),
        DOWN: (0x10B5, 0x8747, (0x19, 0x1B, 0x1B), 6),
    }
    tree: dict[str, str | bytes | Link | None] = {"/sys/kernel/iommu_groups/33/type": "DMA-FQ"}
    for address, (vendor, device, buses, kind) in ports.items():
        space = config_space(
            vendor=vendor,
            device=device,
            class_code=0x060400,
            bridge=buses,
            capabilities=[pcie(port_type=kind, **lnk)],
            extended=[acs(0x1D)],
        )
        ids = f"pci:v0000{vendor:04X}d0000{device:04X}sv00000000sd00000000bc06sc04i00"
        tree |= function(PLACES[address], {"modalias": ids, "numa_node": "0", "config": space, **LINK_16})
    tree |= function(
        PLACES[GPU],
        {
            "modalias": "pci:v000010DEd000020B0sv000010DEsd0000134Fbc03sc02i00",
            "numa_node": "0",
            "config": config_space(device=0x20B0, capabilities=[pcie(**lnk)]),
            "driver": Link("../../../../../../bus/pci/drivers/nvidia"),
            "iommu_group": Link("../../../../../../kernel/iommu_groups/33"),
            "local_cpulist": "0-31,64-95",
            "power_state": "D0",
            "power/runtime_status": "active",
            "resource": "0x00000000c5000000 0x00000000c5ffffff 0x0000000000040200\n"
            "0x0000021000000000 0x0000021fffffffff 0x000000000014220c",
            "aer_dev_correctable": "RxErr 2\nBadTLP 0\nTOTAL_ERR_COR 2",
            "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
            "aer_dev_fatal": "TOTAL_ERR_FATAL 0",
            **LINK_16,
        },
    )
    return tree


def by_address(host: Host) -> dict[str, PciDevice]:
    devices = pci.read(host).devices
    assert isinstance(devices, tuple)
    return {d.address: d for d in devices}


def test_gpu_behind_a_switch(tmp_path: Path) -> None:
    names = {"10de:20b0": ["NVIDIA Corporation", "GA100 [A100 SXM4 40GB]"], "10b5:8747": ["PLX Technology, Inc.", None]}
    question = "pci_names:10b5:8747|10de:20b0|8086:2030"
    host, _ = host_of(tmp_path, machine(), {question: names})
    devices = by_address(host)
    gpu = devices[GPU]
    assert gpu.chain == ("pci0000:17", ROOT, UP, DOWN, GPU)
    assert (gpu.vendor_id, gpu.device_id, gpu.class_code) == (0x10DE, 0x20B0, 0x030200)
    assert (gpu.subsystem_vendor_id, gpu.subsystem_device_id) == (0x10DE, 0x134F)
    assert gpu.driver == "nvidia"
    assert gpu.iommu_group == "33"
    assert gpu.iommu_group_type == "DMA-FQ"
    assert gpu.numa_node == 0
    assert gpu.local_cpulist == "0-31,64-95"
    assert isinstance(gpu.bars, tuple)
    assert [b.size_bytes for b in gpu.bars] == [16 << 20, 64 << 30]
    assert (gpu.aer_correctable, gpu.aer_nonfatal, gpu.aer_fatal) == (2, 0, 0)
    assert gpu.aer_counters == {"correctable RxErr": 2}
    assert gpu.device_name == "GA100 [A100 SXM4 40GB]"
    assert [devices[a].port_type for a in (ROOT, UP, DOWN)] == [
        PortType.ROOT_PORT,
        PortType.UPSTREAM,
        PortType.DOWNSTREAM,
    ]
    assert devices[UP].vendor_name == "PLX Technology, Inc."
    assert devices[UP].device_name == Missing(Reason.ABSENT, "not in pci.ids")
    assert devices[DOWN].acs_control_word == 0x1D
    assert (devices[DOWN].secondary_bus, devices[DOWN].subordinate_bus) == (0x1B, 0x1B)


def test_evidence_quotes_files_and_registers(tmp_path: Path) -> None:
    host, _ = host_of(tmp_path, machine())
    devices = by_address(host)
    (speed,) = devices[GPU].evidence("max_link_speed")
    assert (speed.source, speed.raw) == (f"/sys/bus/pci/devices/{GPU}/max_link_speed", "16.0 GT/s PCIe")
    (control,) = devices[DOWN].evidence("config ACSCtl")
    assert control.raw == "0x001d at 0x106"  # the first extended capability begins at 0x100
    (kind,) = devices[GPU].evidence("iommu_group/type")
    assert kind.raw == "DMA-FQ"


def test_suspended_function_is_not_woken(tmp_path: Path) -> None:
    tree = machine()
    tree[f"/sys/devices/{PLACES[GPU]}/power/runtime_status"] = "suspended"
    host, backend = host_of(tmp_path, tree)
    gpu = by_address(host)[GPU]
    waking = ("config", "link_speed", "link_width", "secondary_bus", "subordinate_bus")
    assert not [q for q in backend.asked if GPU in q and any(w in q for w in waking)]
    for value in (gpu.current_speed_gt_s, gpu.max_width_lanes, gpu.port_type, gpu.config_all_ones):
        assert isinstance(value, Missing)
        assert "suspended" in value.detail
    assert gpu.driver == "nvidia"


def test_without_root_ports_are_unknown_but_buses_are_told(tmp_path: Path) -> None:
    tree = {p: v[:64] if isinstance(v, bytes) else v for p, v in machine().items()}
    host, _ = host_of(tmp_path, tree)
    down = by_address(host)[DOWN]
    assert down.config_bytes == 64
    assert down.secondary_bus == 0x1B
    assert isinstance(down.acs_control_word, Missing)
    assert down.acs_control_word.reason is Reason.DENIED


def test_one_broken_file_loses_only_itself(tmp_path: Path) -> None:
    answers = {
        f"read:/sys/bus/pci/devices/{GPU}/max_link_width": HostError(Reason.UNSUPPORTED, "EINVAL"),
        f"read:/sys/bus/pci/devices/{GPU}/numa_node": HostError(Reason.DENIED, "EACCES"),
        f"read:/sys/bus/pci/devices/{GPU}/config|1024": HostError(Reason.UNSUPPORTED, "EIO"),
        f"realpath:/sys/bus/pci/devices/{UP}": HostError(Reason.ABSENT, "ENOENT"),
    }
    host, _ = host_of(tmp_path, machine(), answers)
    devices = by_address(host)
    gpu = devices[GPU]
    assert gpu.max_width_lanes == Missing(Reason.UNSUPPORTED, "EINVAL")
    assert gpu.numa_node == Missing(Reason.DENIED, "EACCES")
    assert gpu.port_type == Missing(Reason.UNSUPPORTED, "EIO")
    assert gpu.current_speed_gt_s == 16.0
    assert devices[UP].chain == ()
    assert devices[UP].vendor_id == 0x10B5


def test_no_pci_at_all(tmp_path: Path) -> None:
    host, _ = host_of(tmp_path, {"/sys/kernel": None})
    devices = pci.read(host).devices
    assert isinstance(devices, Missing)
    assert devices.reason is Reason.ABSENT


def test_recording_that_never_asked(tmp_path: Path) -> None:
    devices = pci.read(Host(RecordedBackend({}))).devices
    assert isinstance(devices, Missing)
    assert devices.reason is Reason.NOT_RECORDED


def test_recording_of_plain_folders_keeps_the_buses(tmp_path: Path) -> None:
    here = "/sys/bus/pci/devices/0000:17:00.0"
    tree = {
        f"{here}/vendor": "0x8086",
        f"{here}/device": "0x2030",
        f"{here}/class": "0x060400",
        f"{here}/secondary_bus_number": "24",
        f"{here}/subordinate_bus_number": "31",
    }
    host, _ = host_of(tmp_path, tree)
    port = by_address(host)["0000:17:00.0"]
    assert port.chain == ()
    assert (port.vendor_id, port.class_code) == (0x8086, 0x060400)
    assert (port.secondary_bus, port.subordinate_bus) == (24, 31)


def test_far_acs_is_found_with_a_second_read(tmp_path: Path) -> None:
    tree = machine()
    tree[f"/sys/devices/{PLACES[DOWN]}/config"] = config_space(
        class_code=0x060400,
        bridge=(0x19, 0x1B, 0x1B),
        capabilities=[pcie(port_type=6)],
        extended=[(0x0B, bytes(0x500)), acs(0x11)],
    )
    host, backend = host_of(tmp_path, tree)
    assert by_address(host)[DOWN].acs_control_word == 0x11
    assert [q for q in backend.asked if f"{DOWN}/config" in q] == [
        f"read:/sys/bus/pci/devices/{DOWN}/config|1024",
        f"read:/sys/bus/pci/devices/{DOWN}/config|4096",
    ]
    assert [q for q in backend.asked if f"{UP}/config" in q] == [f"read:/sys/bus/pci/devices/{UP}/config|1024"]


def test_virtual_functions(tmp_path: Path) -> None:
    nic = "pci:v000015B3d00001021sv000015B3sd00000023bc02sc07i00"
    tree = function(
        "pci0000:40/0000:41:00.0", {"modalias": nic, "sriov_totalvfs": "16", "sriov_numvfs": "2", **LINK_16}
    )
    for n in (1, 2):
        place = f"pci0000:40/0000:41:00.{n}"
        tree |= function(place, {"modalias": nic, "physfn": Link("../0000:41:00.0"), "max_link_speed": "Unknown"})
    host, _ = host_of(tmp_path, tree)
    devices = by_address(host)
    assert devices["0000:41:00.0"].virtfns == ("0000:41:00.1", "0000:41:00.2")
    assert (devices["0000:41:00.0"].sriov_totalvfs, devices["0000:41:00.0"].sriov_numvfs) == (16, 2)
    assert devices["0000:41:00.1"].physfn == "0000:41:00.0"
    assert isinstance(devices["0000:41:00.1"].max_speed_gt_s, Missing)


def test_slots(tmp_path: Path) -> None:
    tree = machine() | {"/sys/bus/pci/slots/7/address": "0000:1b:00", "/sys/bus/pci/slots/8-1/address": "0000:ff:00"}
    host, _ = host_of(tmp_path, tree)
    devices = by_address(host)
    assert devices[GPU].slot == "7"
    assert isinstance(devices[DOWN].slot, Missing)


@pytest.mark.parametrize(
    ("vendor", "class_code", "end"),
    [
        (0x10DE, 0x030200, True),  # GPU
        (0x10DE, 0x030000, True),
        (0x1002, 0x038000, True),  # AMD Instinct
        (0x1002, 0x120000, True),  # accelerator
        (0x1DA3, 0x0B4000, True),  # co-processor
        (0x15B3, 0x020700, True),  # InfiniBand
        (0x14E4, 0x020000, True),  # Ethernet
        (0x15B3, 0x080100, True),  # data function of ConnectX-8
        (0x10DE, 0x068000, True),  # NVSwitch
        (0x8086, 0x068000, False),
        (0x15B3, 0x060400, False),  # a port of BlueField's switch
        (0x10DE, 0x040300, False),  # sound of a graphics card
        (0x144D, 0x010802, False),  # NVMe
        (0x8086, 0x088000, False),  # uncore
    ],
)
def test_ends_of_gpu_traffic(vendor: int, class_code: int, end: bool) -> None:
    assert pci.of_interest(class_code, vendor) is end


def test_uncore_functions_are_asked_little(tmp_path: Path) -> None:
    place = "pci0000:00/0000:00:04.0"
    tree = function(place, {"modalias": "pci:v00008086d00000B00sv00008086sd00000000bc08sc80i00", "config": bytes(256)})
    tree["/sys/kernel/iommu_groups"] = None
    host, backend = host_of(tmp_path, tree)
    device = by_address(host)["0000:00:04.0"]
    assert len([q for q in backend.asked if "0000:00:04.0" in q]) <= 6
    assert device.port_type == Missing(Reason.NOT_RECORDED, "not asked of this class of device")
    assert device.bars == device.port_type


def test_device_struct_has_every_config_field() -> None:
    assert set(pci_config.ConfigFacts.__struct_fields__) <= set(PciDevice.__struct_fields__)


def test_sorted_by_number_not_by_text(tmp_path: Path) -> None:
    ids = {"modalias": "pci:v00008086d00000B00sv00008086sd00000000bc08sc80i00"}
    tree: dict[str, str | bytes | Link | None] = {}
    for place in ("pci10000:00/10000:00:01.0", "pci0002:00/0002:00:01.0", "pci0000:ff/0000:ff:00.0"):
        tree |= function(place, dict(ids))
    host, _ = host_of(tmp_path, tree)
    assert list(by_address(host)) == ["0000:ff:00.0", "0002:00:01.0", "10000:00:01.0"]
