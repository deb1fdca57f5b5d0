"""Texts of a PCI function's files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.model.base import Missing, Reason
from topocheck.model.pci import Bar
from topocheck.probes.pci import text as pci_text


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("2.5 GT/s", 2.5),  # Linux 4.13 to 5.6
        ("5 GT/s", 5.0),
        ("8 GT/s", 8.0),
        ("16 GT/s", 16.0),
        ("32 GT/s", 32.0),
        ("2.5 GT/s PCIe", 2.5),  # Linux 5.7 on
        ("5.0 GT/s PCIe", 5.0),
        ("8.0 GT/s PCIe\n", 8.0),
        ("16.0 GT/s PCIe", 16.0),
        ("32.0 GT/s PCIe", 32.0),
        ("64.0 GT/s PCIe", 64.0),
        ("128.0 GT/s PCIe", 128.0),
        ("32 GT/s PCIe/s", 32.0),  # hand-made topology files of clouds
        ("2,5 GT/s", 2.5),
        ("8GT/s", 8.0),
    ],
)
def test_link_speed(text: str, speed: float) -> None:
    assert pci_text.parse_link_speed(text) == speed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Unknown", Reason.ABSENT),
        ("Unknown speed", Reason.ABSENT),
        ("", Reason.ABSENT),
        ("0 GT/s", Reason.UNPARSABLE),
        ("fast", Reason.UNPARSABLE),
        ("16 Gb/s", Reason.UNPARSABLE),
        ("-8 GT/s", Reason.UNPARSABLE),
        ("٨ GT/s", Reason.UNPARSABLE),
    ],
)
def test_link_speed_that_is_none(text: str, reason: Reason) -> None:
    answer = pci_text.parse_link_speed(text)
    assert isinstance(answer, Missing)
    assert answer.reason is reason


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 12, 16, 32])
def test_link_width(lanes: int) -> None:
    assert pci_text.parse_link_width(f"{lanes}\n") == lanes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0", Reason.ABSENT),
        ("255", Reason.ABSENT),
        ("", Reason.ABSENT),
        ("63", Reason.UNPARSABLE),
        ("3", Reason.UNPARSABLE),
        ("x16", Reason.UNPARSABLE),
        ("-1", Reason.UNPARSABLE),
    ],
)
def test_link_width_that_is_none(text: str, reason: Reason) -> None:
    answer = pci_text.parse_link_width(text)
    assert isinstance(answer, Missing)
    assert answer.reason is reason


def test_numa_node_minus_one_is_absent_not_a_node() -> None:
    assert pci_text.parse_numa_node("1") == 1
    assert pci_text.parse_numa_node("-1") == Missing(Reason.ABSENT, "the firmware does not say (-1)")
    assert isinstance(pci_text.parse_numa_node("-2"), Missing)


def test_modalias_of_an_h100() -> None:
    # lspci -nn of that machine: 3D controller [0302]: NVIDIA [10de:2330], subsystem [10de:16c1]
    text = "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"
    assert pci_text.parse_modalias(text) == (0x10DE, 0x2330, 0x10DE, 0x16C1, 0x030200)
    assert isinstance(pci_text.parse_modalias("pci:v10DEd2330"), Missing)


@pytest.mark.parametrize(
    ("path", "chain"),
    [
        ("/sys/devices/pci0000:00/0000:00:06.0", ("pci0000:00", "0000:00:06.0")),
        (
            "/sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:08.0/0000:1b:00.0",
            ("pci0000:17", "0000:17:00.0", "0000:18:00.0", "0000:19:08.0", "0000:1b:00.0"),
        ),
        (  # Intel VMD: the domain 10000 hangs below the VMD function
            "/sys/devices/pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/10000:01:00.0",
            ("pci0000:5d", "0000:5d:05.5", "pci10000:00", "10000:00:02.0", "10000:01:00.0"),
        ),
        (  # Hyper-V
            "/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0",
            ("pci0001:00", "0001:00:00.0"),
        ),
        (  # Arm: the host bridge is a platform device
            "/sys/devices/platform/40000000.pcie/pci0008:00/0008:00:00.0/0008:01:00.0",
            ("pci0008:00", "0008:00:00.0", "0008:01:00.0"),
        ),
        ("/sys/bus/pci/devices/0000:3b:00.0", ()),  # a recording of plain folders
        ("/sys/devices/pci0000:00", ()),
        ("", ()),
    ],
)
def test_chain(path: str, chain: tuple[str, ...]) -> None:
    assert pci_text.parse_chain(path) == chain


H100_RESOURCE = """\
0x0000102002000000 0x0000102002ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000100000000000 0x0000101fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000102000000000 0x0000102001ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000200000000000 0x0000200fffffffff 0x000000000014220c
"""


def test_bars_of_an_h100_lie_on_lines_0_2_and_4() -> None:
    # 16 MiB of registers, the 128 GiB window that nvidia-smi calls BAR1, 32 MiB; line 7 is an SR-IOV BAR.
    assert pci_text.parse_resource(H100_RESOURCE) == (
        Bar(0, 16 << 20, True, True),
        Bar(2, 128 << 30, True, True),
        Bar(4, 32 << 20, True, True),
    )


def test_bars_without_addresses_are_denied_and_unused_ones_are_not() -> None:
    zero = "0x0000000000000000 0x0000000000000000 "
    hidden = "\n".join([zero + "0x000000000014220c", *[zero + "0x0000000000000000"] * 5])
    answer = pci_text.parse_resource(hidden)
    assert isinstance(answer, Missing)
    assert answer.reason is Reason.DENIED
    assert pci_text.parse_resource("\n".join([zero + "0x0000000000000000"] * 7)) == ()


def test_a_bar_without_room_keeps_its_size() -> None:
    # IORESOURCE_UNSET (0x20000000): the kernel keeps the size, from 0, and found no place for it.
    line = "0x0000000000000000 0x0000001fffffffff 0x000000002014220c"
    assert pci_text.parse_resource(line) == (Bar(0, 128 << 30, True, True, assigned=False),)


def test_io_bar_is_not_prefetchable_memory() -> None:
    assert pci_text.parse_resource("0x000000000000e000 0x000000000000e07f 0x0000000000040101") == (
        Bar(0, 128, False, False),
    )


AER = "RxErr 3\nBadTLP 0\nBadDLLP 12\nRollover 0\nTimeout 0\nNonFatalErr 0\nTOTAL_ERR_COR 15\n"


def test_aer() -> None:
    assert pci_text.parse_aer(AER) == (15, {"RxErr": 3, "BadDLLP": 12})
    assert pci_text.parse_aer("RxErr 3\nBadDLLP 12\n") == (3 + 12, {"RxErr": 3, "BadDLLP": 12})
    assert pci_text.parse_aer("TOTAL_ERR_FATAL 0") == (0, {})
    assert isinstance(pci_text.parse_aer(""), Missing)
    assert isinstance(pci_text.parse_aer("nothing here"), Missing)


PARSERS = [
    pci_text.parse_link_speed,
    pci_text.parse_link_width,
    pci_text.parse_hex,
    pci_text.parse_numa_node,
    pci_text.parse_modalias,
    pci_text.parse_chain,
    pci_text.parse_resource,
    pci_text.parse_aer,
]


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.one_of(st.text(), st.text(alphabet="0123456789abcdefx:./ \nGTsUnkowpcivd,-", max_size=80)))
def test_parsers_never_raise(parse, text: str) -> None:
    parse(text)


@given(start=st.integers(0, (1 << 62) - 1), size=st.integers(1, 1 << 40), flags=st.integers(0, (1 << 32) - 1))
def test_size_is_end_minus_start_plus_one(start: int, size: int, flags: int) -> None:
    line = f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}"
    answer = pci_text.parse_resource(line)
    if start == 0 and size == 1:
        return  # all zero: unused or hidden
    assert isinstance(answer, tuple)
    assert answer[0].size_bytes == size


NONE = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
WINDOW = "0x0000006000000000 0x00000062ffffffff 0x0000000000102201"
LOW = "0x00000000d0000000 0x00000000d17fffff 0x0000000000000200"
PORTS = "0x0000000000003000 0x0000000000003fff 0x0000000000000101"


@pytest.mark.parametrize("before", [7, 13])
def test_the_windows_of_a_bridge_are_its_last_four_rows(before: int) -> None:
    """Six BARs and the ROM come first, and six more of SR-IOV where the kernel has it: 11 rows, or 17."""
    text = "\n".join([NONE] * before + [PORTS, LOW, WINDOW, NONE])
    low, high = pci_text.parse_windows(text)  # type: ignore[misc]
    assert (low.line, low.size_bytes, low.prefetchable) == (before + 1, 24 << 20, False)
    assert (high.line, high.size_bytes, high.prefetchable, high.is_64bit) == (before + 2, 12 << 30, True, True)


def test_windows_that_are_hidden_are_not_absent() -> None:
    hidden = "0x0000000000000000 0x0000000000000000 0x0000000000102201"
    found = pci_text.parse_windows("\n".join([NONE] * 15 + [hidden, NONE]))
    assert isinstance(found, Missing)
    assert found.reason is Reason.DENIED


@given(st.text(max_size=400))
def test_any_resource_of_a_bridge_is_read(text: str) -> None:
    found = pci_text.parse_windows(text)
    assert isinstance(found, Missing) or all(w.size_bytes > 0 for w in found)
