"""The pattern and its comparison; statistics; sizes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.waiting import PATIENCE_S
from topocheck.bandwidth.cases import parse_size
from topocheck.bandwidth.stats import is_stable, median, quantile, sample_until_stable, spread
from topocheck.model.units import size_text
from topocheck.tests_live.copies.pattern import BLOCK, Pattern, wipe

SIZE = 3 * BLOCK + 12345
PATTERN = Pattern("seed")


def _buffer() -> tuple[ctypes.Array[ctypes.c_char], int]:
    b = ctypes.create_string_buffer(SIZE)
    p = ctypes.addressof(b)
    PATTERN.fill(p, SIZE)
    return b, p


@settings(max_examples=30)
@given(at=st.integers(0, SIZE - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found_at_its_place(at: int, bit: int) -> None:
    buffer, pointer = _buffer()
    assert PATTERN.first_difference(pointer, SIZE) is None
    was = buffer[at][0]
    buffer[at] = bytes([was ^ 1 << bit])
    assert PATTERN.first_difference(pointer, SIZE) == at
    text = PATTERN.describe_difference(pointer, SIZE)
    assert text.startswith(f"1 of {SIZE} bytes are wrong; the first at offset {at}:")
    assert f"expected 0x{was:02x}, got 0x{was ^ 1 << bit:02x}" in text


def test_sharing_among_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, pointer = _buffer()
    alone = buffer.raw
    threads: set[int] = set()
    both = threading.Barrier(2, timeout=PATIENCE_S)

    def moved(to: int, source: int, count: int, real: Callable[..., int] = ctypes.memmove) -> int:
        if threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            both.wait()  # without a second thread at work this gives up
        return real(to, source, count)

    monkeypatch.setattr("topocheck.tests_live.copies.pattern._SHARE", BLOCK)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(ctypes, "memmove", moved)
    wipe(pointer, 0x5A, SIZE)
    assert buffer.raw == b"\x5a" * SIZE + b"\0" * (len(buffer.raw) - SIZE)
    PATTERN.fill(pointer, SIZE)
    assert buffer.raw == alone
    assert len(threads) == 2
    # Four blocks, two threads: places in the second stretch, then in both.
    for at in (SIZE - 1, 2 * BLOCK, 2 * BLOCK - 1, 5):
        buffer[at] = bytes([buffer[at][0] ^ 1])
        assert PATTERN.first_difference(pointer, SIZE) == at


def test_a_block_in_anothers_place_and_an_old_run_are_seen() -> None:
    buffer, pointer = _buffer()
    ctypes.memmove(pointer + BLOCK, pointer, BLOCK)
    assert PATTERN.first_difference(pointer, SIZE) == BLOCK
    for other in (Pattern("another run"), Pattern("seed", "another source"), Pattern("seed", "a third")):
        other.fill(pointer, SIZE)
        at = PATTERN.first_difference(pointer, SIZE)
        assert at is not None
        assert at < 16
        # Of 256 values of a byte one is the same by chance.
        assert int(PATTERN.describe_difference(pointer, SIZE).split(" ")[0]) > 0.99 * SIZE
    assert buffer[0] is not None


def test_all_zero_and_cleared_buffers_are_wrong_nearly_everywhere() -> None:
    _, pointer = _buffer()
    for byte in (0, 0xA5):
        ctypes.memset(pointer, byte, SIZE)
        wrong = int(PATTERN.describe_difference(pointer, SIZE).split(" ")[0])
        assert wrong > 0.99 * SIZE


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40))
def test_median_and_quantiles_agree_with_the_standard_library(values: list[float]) -> None:
    import statistics

    assert median(values) == statistics.median(values)
    if len(values) > 1:
        q = statistics.quantiles(values, n=4, method="inclusive")
        assert quantile(values, 0.25) == pytest.approx(q[0])
        assert quantile(values, 0.75) == pytest.approx(q[2])
    assert spread([values[0]] * 3) == 0


def test_sampling_stops_for_each_reason() -> None:
    steady = sample_until_stable(lambda: 1.0, at_least=3, at_most=15, budget_s=9, clock=lambda: 0.0)
    assert steady == ((1.0,) * 5, "stable")
    values = iter(float(n) for n in range(1, 99))
    taken, why = sample_until_stable(lambda: next(values), at_least=3, at_most=7, budget_s=9, clock=lambda: 0.0)
    assert (len(taken), why) == (7, "samples")
    values = iter(float(n) for n in range(1, 99))
    times = iter(float(n) for n in range(99))
    taken, why = sample_until_stable(
        lambda: next(values), at_least=3, at_most=50, budget_s=2.5, clock=lambda: next(times)
    )
    assert why == "budget"
    assert len(taken) >= 3
    assert not is_stable([1.0, 1.0], 0.01)


@pytest.mark.parametrize(
    ("text", "size"),
    [("128MiB", 128 << 20), ("64K", 65536), ("1G", 1 << 30), ("4096", 4096), (" 1.5m ", 3 << 19), ("16B", 16)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_size_text_reads_back() -> None:
    for size in (16, 1024, 128 << 20, 3 << 30):
        assert parse_size(size_text(size).replace(" ", "")) == size


@given(st.text(max_size=30))
def test_parse_size_raises_nothing_else(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert 1 <= parse_size(text) <= 1 << 50
