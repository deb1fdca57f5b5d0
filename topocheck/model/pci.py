"""PCI functions as the kernel shows them."""

from __future__ import annotations

import enum

import msgspec

from topocheck.model.base import ABSENT, NOT_RECORDED, Fact, Missing


class PortType(enum.StrEnum):
    """PCIe device/port type (PCI Express Capabilities register bits 7:4; PCIe base specification 7.5.3.2)."""

    ENDPOINT = "endpoint"
    LEGACY_ENDPOINT = "legacy_endpoint"
    ROOT_PORT = "root_port"
    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"
    PCIE_TO_PCI = "pcie_to_pci"
    PCI_TO_PCIE = "pci_to_pcie"
    RC_ENDPOINT = "rc_endpoint"
    RC_EVENT_COLLECTOR = "rc_event_collector"


class Bar(msgspec.Struct, frozen=True):
    """One used line of `resource`: its line number, size and whether it is prefetchable memory.

    `assigned` is False where the firmware and the kernel found no room for the BAR, which then does not work.
    """

    line: int
    size_bytes: int
    prefetchable: bool
    is_64bit: bool
    assigned: bool = True


class Window(msgspec.Struct, frozen=True):
    """A range of addresses that a bridge forwards: its line in `resource`, size, and whether it is prefetchable."""

    line: int
    size_bytes: int
    prefetchable: bool
    is_64bit: bool


class AcsControl(msgspec.Struct, frozen=True):
    """ACS control word (extended capability 0x000D, offset +6; PCIe base specification 7.7.11.3)."""

    word: int

    @property
    def redirects(self) -> bool:
        """Whether peer requests (bit 2) or completions (bit 3) are sent up to the root complex."""
        return bool(self.word & 0b1100)

    @property
    def direct_translated(self) -> bool:
        """Whether translated requests may go directly to the peer (bit 6)."""
        return bool(self.word & 0b1000000)

    def names(self) -> tuple[str, ...]:
        """Return lspci's names of the bits that are set, lowest first."""
        bits = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
        return tuple(n for i, n in enumerate(bits) if self.word >> i & 1)


class PciDevice(Fact, frozen=True, kw_only=True):
    """One PCI function.

    Addresses are `dddd:bb:dd.f`, lower case, the domain at least four digits. Lane counts are lanes, speeds are
    GT/s per lane as the kernel or the config space states them; payload sizes are bytes.

    Attributes:
        chain: from the host bridge (`pci0000:3a`) down to this function, only elements that are a host bridge or
            a PCI address; empty where the place in the tree is not known (a recording without links).
        local_cpulist: the kernel's list form, such as `0-31,64-95`.
        physfn: address of the physical function when this is a virtual one.
        aer_*: total of that class of errors; `aer_counters` holds the named counters that are not zero.
        config_bytes: how many bytes of config space could be read: 64 without root, 0 where none was asked.
        config_all_ones: config space reads all ones: the device is gone from the bus.
        slot_implemented: the port leads to a slot, not to a chip on the board (PCI Express Capabilities bit 8).
        link_active: the data link layer is up (LnkSta bit 13), where the port reports that at all.
        acs_capability_word: which ACS controls the port has, in the bit order of the control word.
        windows: of a bridge, its memory windows; an empty one is left out.
        boot_vga: the firmware used this display adapter.
        target_speed_gt_s: the highest speed that the port may train to (Link Control 2 bits 3:0).
        autonomous_speed_disabled: the hardware may not change the speed by itself (Link Control 2 bit 5).
        dpc_triggered: downstream port containment has fired and keeps the link down (DPC status bit 0).
        manages_nvswitch: of an InfiniBand function on a board whose NVSwitches are hidden: its vital product data,
            which root alone may read, calls it one that manages them (`SMDL=SW_MNG`).
        p2p_clique: clique from NVIDIA's vendor capability with the signature "P2P".
    """

    address: str
    sysfs_path: str = ""
    chain: tuple[str, ...] = ()
    vendor_id: int | Missing = ABSENT
    device_id: int | Missing = ABSENT
    subsystem_vendor_id: int | Missing = ABSENT
    subsystem_device_id: int | Missing = ABSENT
    class_code: int | Missing = ABSENT
    revision: int | Missing = ABSENT
    vendor_name: str | Missing = ABSENT
    device_name: str | Missing = ABSENT
    driver: str | Missing = ABSENT
    numa_node: int | Missing = ABSENT
    local_cpulist: str | Missing = ABSENT
    current_speed_gt_s: float | Missing = ABSENT
    max_speed_gt_s: float | Missing = ABSENT
    current_width_lanes: int | Missing = ABSENT
    max_width_lanes: int | Missing = ABSENT
    secondary_bus: int | Missing = ABSENT
    subordinate_bus: int | Missing = ABSENT
    iommu_group: str | Missing = ABSENT
    iommu_group_type: str | Missing = ABSENT
    bars: tuple[Bar, ...] | Missing = ABSENT
    windows: tuple[Window, ...] | Missing = ABSENT
    boot_vga: bool | Missing = ABSENT
    power_state: str | Missing = ABSENT
    runtime_status: str | Missing = ABSENT
    physfn: str | Missing = ABSENT
    virtfns: tuple[str, ...] = ()
    sriov_totalvfs: int | Missing = ABSENT
    sriov_numvfs: int | Missing = ABSENT
    slot: str | Missing = ABSENT
    aer_correctable: int | Missing = ABSENT
    aer_nonfatal: int | Missing = ABSENT
    aer_fatal: int | Missing = ABSENT
    aer_counters: dict[str, int] = msgspec.field(default_factory=dict)
    config_bytes: int = 0
    config_all_ones: bool | Missing = ABSENT
    port_type: PortType | Missing = ABSENT
    slot_implemented: bool | Missing = ABSENT
    cap_speed_gt_s: float | Missing = ABSENT
    cap_width_lanes: int | Missing = ABSENT
    sta_speed_gt_s: float | Missing = ABSENT
    sta_width_lanes: int | Missing = ABSENT
    link_active: bool | Missing = ABSENT
    cap2_speeds_gt_s: tuple[float, ...] | Missing = ABSENT
    target_speed_gt_s: float | Missing = ABSENT
    autonomous_speed_disabled: bool | Missing = ABSENT
    max_payload_bytes: int | Missing = ABSENT
    max_payload_supported_bytes: int | Missing = ABSENT
    max_read_request_bytes: int | Missing = ABSENT
    relaxed_ordering: bool | Missing = ABSENT
    ats_supported: bool | Missing = ABSENT
    ats_enabled: bool | Missing = ABSENT
    acs_capable: bool | Missing = ABSENT
    acs_capability_word: int | Missing = ABSENT
    acs_control_word: int | Missing = ABSENT
    dpc_triggered: bool | Missing = ABSENT
    p2p_clique: int | Missing = ABSENT
    manages_nvswitch: bool | Missing = NOT_RECORDED

    @property
    def acs(self) -> AcsControl | Missing:
        """The ACS control word, decoded."""
        word = self.acs_control_word
        return word if isinstance(word, Missing) else AcsControl(word)

    @property
    def base_class(self) -> int | None:
        """The 16-bit class and subclass (0x0302), or None where the class is missing."""
        return None if isinstance(self.class_code, Missing) else self.class_code >> 8

    @property
    def is_bridge(self) -> bool:
        """Whether this is a PCI-to-PCI bridge (class 0x0604), a port of a root complex or switch."""
        return self.base_class == 0x0604
