"""Config space: registers built by hand from the standard, and those of a recorded H100."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.spaces import acs, ats, config_space, pcie
from topocheck.model.base import Missing, Reason
from topocheck.model.pci import AcsControl, PortType
from topocheck.probes.pci import config as pci_config

# Registers of an H100 SXM passed to a guest, as recorded: capabilities 0x40 (power, VFIO leaves the body), 0x48 (MSI),
# 0x60 (PCIe), 0xb0 (MSI-X); extended ones from 0x100, the first two with the id 0, by which VFIO hides them.
H100 = {
    0x00: "de103023 06041000 a1000203 00000000 0c000002 20100000 0c000000 00100000",
    0x20: "0c000000 20100000 00000000 de10c116 00000000 40000000 00000000 ff010000",
    0x40: "01481300 08000000 05608803 00000000",
    0x60: "10b00200 21800010 3e510000 05794500 00000511 00000000",
    0x84: "13080700 46100000 3e008001 05005e00",
    0xB0: "11000880 0000b900 0000ba00",
    0x100: "0000c012 00000000",
    0x12C: "18004113 00000000 0000811b",
    0x1B8: "01008224 00000000",
    0x248: "00000125",
    0x250: "0000412a",
    0x2A4: "0b00812b 01004101",
    0x2B8: "0400012f 21810700",
    0x2F0: "00000000",
}


def h100() -> bytes:
    space = bytearray(4096)
    for at, text in H100.items():
        data = bytes.fromhex(text)
        space[at : at + len(data)] = data
    return bytes(space)


def test_recorded_h100() -> None:
    f = pci_config.parse_config(h100())
    # nvidia-smi -q of that guest: PCIe generation max 5, link width max 16x, both current too.
    assert (f.cap_speed_gt_s, f.cap_width_lanes) == (32.0, 16)
    assert (f.sta_speed_gt_s, f.sta_width_lanes) == (32.0, 16)
    assert f.cap2_speeds_gt_s == (2.5, 5.0, 8.0, 16.0, 32.0)
    assert f.port_type is PortType.ENDPOINT
    # DevCap 0x10008021: payload code 1; DevCtl 0x513e: payload 1, read request 5, relaxed ordering bit 4.
    assert f.max_payload_supported_bytes == 128 << 1
    assert f.max_payload_bytes == 128 << 1
    assert f.max_read_request_bytes == 128 << 5
    assert f.relaxed_ordering is True
    assert (f.ats_supported, f.acs_capable) == (False, False)
    assert isinstance(f.p2p_clique, Missing)
    assert f.revision == 0xA1


def test_an_entry_with_id_0_does_not_end_the_chain() -> None:
    kinds = [kind for kind, _ in pci_config.walk_extended(h100())]
    assert kinds == [0x0000, 0x0018, 0x0000, 0x0001, 0x0000, 0x0000, 0x000B, 0x0004]


def test_cut_at_64_bytes_is_denied_never_zero() -> None:
    f = pci_config.parse_config(h100()[:64])
    assert f.config_bytes == 64
    assert f.config_all_ones is False
    for name in ("port_type", "cap_speed_gt_s", "sta_width_lanes", "max_payload_bytes", "relaxed_ordering",
                 "ats_supported", "ats_enabled", "acs_capable", "acs_control_word", "p2p_clique"):  # fmt: skip
        value = getattr(f, name)
        assert isinstance(value, Missing), name
        assert value.reason is Reason.DENIED, name
        assert "64 bytes" in value.detail


def test_cut_bridge_still_tells_its_buses() -> None:
    data = config_space(class_code=0x060400, bridge=(0x17, 0x18, 0x1F), capabilities=[pcie(port_type=4)], size=64)
    f = pci_config.parse_config(data)
    assert (f.secondary_bus, f.subordinate_bus) == (0x18, 0x1F)


def test_cut_at_64_bytes_without_a_capability_list_is_absent() -> None:
    f = pci_config.parse_config(config_space(size=64))
    assert isinstance(f.port_type, Missing)
    assert f.port_type.reason is Reason.ABSENT


def test_256_bytes_tell_the_link_but_not_acs() -> None:
    f = pci_config.parse_config(config_space(capabilities=[pcie(lnkcap=0x104, lnksta=0x1103)], size=256))
    assert f.cap_speed_gt_s == 16.0
    assert isinstance(f.acs_control_word, Missing)
    assert f.acs_control_word.reason is Reason.UNSUPPORTED


def test_all_ones_is_a_device_that_is_gone() -> None:
    f = pci_config.parse_config(b"\xff" * 4096)
    assert f.config_all_ones is True
    assert all(isinstance(getattr(f, n), Missing) for n in pci_config.FIELDS if n != "config_all_ones")


@pytest.mark.parametrize("size", [0, 1, 63])
def test_too_short(size: int) -> None:
    f = pci_config.parse_config(bytes(size))
    assert isinstance(f.config_all_ones, Missing)
    assert f.config_all_ones.reason is Reason.UNPARSABLE


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (0, PortType.ENDPOINT),
        (1, PortType.LEGACY_ENDPOINT),
        (4, PortType.ROOT_PORT),
        (5, PortType.UPSTREAM),
        (6, PortType.DOWNSTREAM),
        (7, PortType.PCIE_TO_PCI),
        (8, PortType.PCI_TO_PCIE),
        (9, PortType.RC_ENDPOINT),
        (10, PortType.RC_EVENT_COLLECTOR),
    ],
)
def test_port_types(code: int, kind: PortType) -> None:
    assert pci_config.parse_config(config_space(capabilities=[pcie(port_type=code)])).port_type is kind


def test_reserved_port_type() -> None:
    assert isinstance(pci_config.parse_config(config_space(capabilities=[pcie(port_type=3)])).port_type, Missing)


@pytest.mark.parametrize(("code", "speed"), [(1, 2.5), (2, 5.0), (3, 8.0), (4, 16.0), (5, 32.0), (6, 64.0), (7, 128.0)])
def test_speed_codes(code: int, speed: float) -> None:
    f = pci_config.parse_config(config_space(capabilities=[pcie(lnkcap=code | 8 << 4, lnksta=code | 4 << 4)]))
    assert (f.cap_speed_gt_s, f.sta_speed_gt_s) == (speed, speed)
    assert (f.cap_width_lanes, f.sta_width_lanes) == (8, 4)


def test_link_that_is_down() -> None:
    f = pci_config.parse_config(config_space(capabilities=[pcie(port_type=6, lnkcap=1 << 20 | 0x104, lnksta=0x0004)]))
    assert f.link_active is False
    assert isinstance(f.sta_width_lanes, Missing)


def test_link_up_is_told_only_by_ports_that_report_it() -> None:
    up = pcie(port_type=6, lnkcap=1 << 20 | 0x104, lnksta=0x2104)
    assert pci_config.parse_config(config_space(capabilities=[up])).link_active is True
    silent = pcie(port_type=6, lnkcap=0x104, lnksta=0x0104)
    assert isinstance(pci_config.parse_config(config_space(capabilities=[silent])).link_active, Missing)


def test_root_complex_endpoint_has_no_link() -> None:
    f = pci_config.parse_config(config_space(capabilities=[pcie(port_type=9, lnkcap=0x101, lnksta=0x1011)]))
    assert isinstance(f.sta_speed_gt_s, Missing)
    assert f.sta_speed_gt_s.reason is Reason.UNSUPPORTED


def test_old_capability_has_no_lnkcap2() -> None:
    f = pci_config.parse_config(config_space(capabilities=[pcie(version=1, lnkcap=0x12, lnkcap2=0x0E)]))
    assert isinstance(f.cap2_speeds_gt_s, Missing)


@pytest.mark.parametrize(
    ("word", "redirects", "names"),
    [
        (0x001D, True, ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")),  # what Linux sets under an IOMMU
        (0x0011, False, ("SrcValid", "UpstreamFwd")),
        (0x0000, False, ()),
        (0x005F, True, ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "DirectTrans")),
    ],
)
def test_acs(word: int, redirects: bool, names: tuple[str, ...]) -> None:
    data = config_space(
        class_code=0x060400, bridge=(1, 2, 3), capabilities=[pcie(port_type=6)], extended=[(1, bytes(40)), acs(word)]
    )
    f = pci_config.parse_config(data)
    assert f.acs_capable is True
    assert f.acs_control_word == word
    assert AcsControl(word).redirects is redirects
    assert AcsControl(word).names() == names
    evidence = pci_config.register_evidence(data)
    assert evidence["config ACSCtl"] == f"0x{word:04x} at 0x132"  # 0x100 + 4 + 40 = 0x12c, control at +6


@pytest.mark.parametrize("enabled", [True, False])
def test_ats(enabled: bool) -> None:
    f = pci_config.parse_config(config_space(capabilities=[pcie()], extended=[ats(enabled)]))
    assert (f.ats_supported, f.ats_enabled) == (True, enabled)


def test_dpc_that_fired() -> None:
    body = bytes(4) + (1).to_bytes(2, "little")  # capability, control, then status with bit 0
    f = pci_config.parse_config(config_space(capabilities=[pcie(port_type=6)], extended=[(0x1D, body + bytes(6))]))
    assert f.dpc_triggered is True


@pytest.mark.parametrize("clique", [0, 1, 5, 15])
def test_p2p_clique(clique: int) -> None:
    # QEMU's bytes for x-nv-gpudirect-clique=N at 0xc8: 09 00 08 'P' '2' 'P' N<<3 00
    body = b"\x08P2P" + bytes((clique << 3, 0))
    assert pci_config.p2p_clique(config_space(capabilities=[pcie(), (0x09, body)])) == clique
    assert pci_config.parse_config(config_space(capabilities=[(0x09, body)])).p2p_clique == clique


def test_other_vendor_capabilities_are_not_a_clique() -> None:
    other = (0x09, b"\x14\x01" + bytes(16))
    assert isinstance(pci_config.parse_config(config_space(capabilities=[other])).p2p_clique, Missing)
    mellanox = config_space(vendor=0x15B3, capabilities=[(0x09, b"\x08P2P\x08\x00")])
    assert isinstance(pci_config.parse_config(mellanox).p2p_clique, Missing)


def test_looped_capability_list_ends() -> None:
    data = bytearray(config_space(capabilities=[(0x01, bytes(6)), pcie(lnkcap=0x105)]))
    data[0x49] = 0x40  # the second points back to the first
    f = pci_config.parse_config(bytes(data))
    assert f.cap_speed_gt_s == 32.0


@pytest.mark.parametrize("pointer", [0x00, 0x10, 0x3C, 0xFC, 0xFF])
def test_bad_pointers_end(pointer: int) -> None:
    data = bytearray(config_space(capabilities=[(0x01, bytes(6))]))
    data[0x34] = pointer
    assert isinstance(pci_config.parse_config(bytes(data)).port_type, Missing)


def test_looped_extended_list_ends() -> None:
    data = bytearray(config_space(capabilities=[pcie()], extended=[acs(1), ats(True)]))
    at = 0x108
    header = int.from_bytes(data[at : at + 4], "little") | 0x100 << 20
    data[at : at + 4] = header.to_bytes(4, "little")
    assert [k for k, _ in pci_config.walk_extended(bytes(data))] == [0x0D, 0x0F]


def test_a_chain_that_leaves_the_first_kilobyte_continues() -> None:
    far = config_space(capabilities=[pcie()], extended=[(0x0B, bytes(0x400)), acs(0x1D)])
    assert pci_config.extended_continues(far[:1024])
    near = config_space(capabilities=[pcie()], extended=[acs(0x1D), ats(True)])
    assert not pci_config.extended_continues(near[:1024])


@given(data=st.binary(max_size=4096))
def test_any_bytes_parse(data: bytes) -> None:
    f = pci_config.parse_config(data)
    assert f.config_bytes == len(data)
    pci_config.register_evidence(data)
    pci_config.extended_continues(data)


@given(data=st.binary(min_size=64, max_size=512), at=st.integers(0, 511), value=st.integers(0, 255))
def test_a_broken_byte_does_not_break_the_rest(data: bytes, at: int, value: int) -> None:
    space = bytearray(config_space(capabilities=[pcie(lnkcap=0x105)], extended=[acs(1)]))
    space[at] = value
    pci_config.parse_config(bytes(space))
    pci_config.parse_config(bytes(space[:64]) + data)
