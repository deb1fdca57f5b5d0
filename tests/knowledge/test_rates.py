"""Expected values: the standards' arithmetic, shown in each case, and rates that data sheets print."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.knowledge import rates


@pytest.mark.parametrize(
    ("generation", "width", "gb_s"),
    [
        (1, 16, 4.000),  # 2.5 x 8/10 x 16 / 8
        (2, 8, 4.000),  # 5 x 8/10 x 8 / 8
        (3, 1, 0.985),  # 8 x 128/130 / 8 = 0.984615
        (3, 16, 15.754),
        (4, 16, 31.508),
        (5, 16, 63.015),
        (6, 16, 121.000),  # 64 x 242/256 x 16 / 8
        (7, 16, 242.000),
    ],
)
def test_pcie_rates_are_those_of_the_standard(generation: int, width: int, gb_s: float) -> None:
    assert round(rates.pcie_gen_gb_s(generation, width), 3) == gb_s
    speed = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}[generation]
    assert rates.pcie_gb_s(speed, width) == rates.pcie_gen_gb_s(generation, width)
    assert rates.pcie_gen(speed) == generation


@pytest.mark.parametrize(
    ("call", "args"),
    [
        (rates.pcie_gen_gb_s, (0, 16)),
        (rates.pcie_gen_gb_s, (8, 16)),
        (rates.pcie_gen_gb_s, (4, 0)),
        (rates.pcie_gen_gb_s, (4, 63)),
        (rates.pcie_gen_gb_s, (4, 255)),
        (rates.pcie_gb_s, (10.0, 16)),
        (rates.payload_share, (4, 100)),
        (rates.infiniband_gbit_s, ("ZDR", 4)),
        (rates.infiniband_gbit_s, ("HDR", 3)),
        (rates.nvlink_gb_s, (None, None)),
        (rates.nvlink_gb_s, (9, 1000)),
    ],
)
def test_what_does_not_exist_is_refused(call, args) -> None:
    with pytest.raises(ValueError, match=r"known|PCIe|payload|InfiniBand|Ethernet"):
        call(*args)


@pytest.mark.parametrize(
    ("generation", "payload", "share"),
    [
        (3, 128, 0.842),  # 128 / (128 + 24)
        (4, 256, 0.914),
        (5, 512, 0.955),
        (6, 256, 0.941),  # 256 / (256 + 16): CRC and framing belong to the flit
    ],
)
def test_what_the_maximum_payload_leaves(generation: int, payload: int, share: float) -> None:
    assert round(rates.payload_share(generation, payload), 3) == share


def test_throughput_says_how_it_was_reckoned() -> None:
    t = rates.pcie_throughput(4, 16, 256)
    assert round(t.payload_gb_s, 3) == 28.807  # 31.50769 x 256/280
    assert t.arithmetic[0] == "16 GT/s x 128/130 (128b/130b) x 16 lanes / 8 = 31.508 GB/s"
    assert "256/(256+24)" in t.arithmetic[-1]


def test_flits_carry_less_than_their_link() -> None:
    t = rates.pcie_throughput(6, 16, 512)
    assert (round(t.gb_s, 3), round(t.tlp_gb_s, 3)) == (121.0, 118.0)  # 236 of 256 bytes are TLPs
    assert t.payload_gb_s < t.tlp_gb_s


@pytest.mark.parametrize(
    ("version", "speed", "gb_s"),
    [
        (2, 25781, 25.0),  # V100: nvidia-smi shows 25.781; x 64/66
        (3, 25000, 25.0),  # A100
        (3, 14062, 14.0625),  # RTX 3090: 56.25 GB/s for four
        (4, 26562, 25.0),  # H100: 26.5625 x 16/17
        (5, 53125, 50.0),  # B200
        (None, 26562, 25.0),
        (4, None, 25.0),
        (1, None, 20.0),
    ],
)
def test_nvlink_payload(version: int | None, speed: int | None, gb_s: float) -> None:
    assert rates.nvlink_gb_s(version, speed) == pytest.approx(gb_s, abs=1e-9)


def test_an_unusual_nvlink_speed_keeps_its_generations_share() -> None:
    assert rates.nvlink_gb_s(4, 20000) == pytest.approx(20.0 * 16 / 17)


@pytest.mark.parametrize(
    ("text", "layer", "gbit_s"),
    [
        ("10 Gb/sec (4X SDR)", "InfiniBand", 8.0),
        ("20 Gb/sec (4X DDR)", "InfiniBand", 16.0),
        ("40 Gb/sec (4X QDR)", "InfiniBand", 32.0),
        ("56 Gb/sec (4X FDR)", "InfiniBand", 54.545),  # 4 x 14.0625 x 64/66
        ("100 Gb/sec (4X EDR)", "InfiniBand", 100.0),
        ("200 Gb/sec (4X HDR)", "InfiniBand", 200.0),
        ("100 Gb/sec (2X HDR)", "InfiniBand", 100.0),
        ("400 Gb/sec (4X NDR)", "InfiniBand", 400.0),
        ("800 Gb/sec (4X XDR)", "InfiniBand", 800.0),
        ("40 Gb/sec (4X QDR)", "Ethernet", 40.0),  # the MAC's rate; the word is only the nearest name
        ("25 Gb/sec (1X EDR)", "Ethernet", 25.0),
    ],
)
def test_port_rates(text: str, layer: str, gbit_s: float) -> None:
    assert round(rates.port_data_gbit_s(text, layer), 3) == gbit_s


@pytest.mark.parametrize("text", ["", "Unknown", "400 GB/sec (4X NDR)", "400 Gb/sec (X NDR)"])
def test_a_rate_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="rate"):
        rates.port_data_gbit_s(text, "InfiniBand")


@given(st.text(), st.sampled_from(["InfiniBand", "Ethernet", ""]))
def test_any_text_gives_a_rate_or_a_value_error(text: str, layer: str) -> None:
    with contextlib.suppress(ValueError):
        assert rates.port_data_gbit_s(text, layer) >= 0


@given(st.integers(), st.integers())
def test_any_link_gives_a_rate_or_a_value_error(generation: int, width: int) -> None:
    try:
        assert rates.pcie_gen_gb_s(generation, width) > 0
    except ValueError:
        assert generation not in range(1, 8) or width not in rates.WIDTHS
