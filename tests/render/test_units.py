"""Sizes, times and values as a person reads them."""

from __future__ import annotations

import pytest

from topocheck.model.units import size_text, time_text, value_text


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0.0, "0 us"), (2.25, "2.25 us"), (999.4, "999 us"), (999.5, "1 ms"), (40740.0, "40.7 ms"),
        (999_499.0, "999 ms"), (1.5e6, "1.5 s"), (5.0e9, "5000 s"),
    ],
)  # fmt: skip
def test_times_have_the_unit_that_fits(time_us: float, text: str) -> None:
    assert time_text(time_us) == text


def test_sizes_and_values() -> None:
    assert [size_text(n) for n in (16, 1536, 128 << 20, 3 << 40)] == ["16 B", "1.5 KiB", "128 MiB", "3 TiB"]
    assert value_text(40740.0, "us") == "40.7 ms"
    assert value_text(54.44, "GB/s") == "54.44 GB/s"
