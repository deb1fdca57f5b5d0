"""Growth of counters that wrap, fall, vanish and cannot be read: never negative, and exact where it can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.model.base import DENIED, Missing
from topocheck.overtime.counters import Width
from topocheck.overtime.growth import growth

WIDE, NARROW, PMA = Width(64), Width(32), Width(16, saturates=True)

steps = st.lists(st.integers(0, 1 << 20), max_size=30)
values = st.lists(st.one_of(st.integers(0, (1 << 64) - 1), st.just(DENIED)), max_size=30)


@given(values, st.sampled_from([WIDE, NARROW, PMA]))
def test_growth_is_never_negative(points: list[int | Missing], width: Width) -> None:
    g = growth(enumerate(points), width)
    assert g.increase >= 0
    assert g.seconds >= 0
    assert all(step > 0 for _, _, step in g.steps)
    assert sum(step for _, _, step in g.steps) == g.increase
    assert g.unreadable == points.count(DENIED)


@given(st.integers(0, 1 << 40), steps, st.data())
def test_a_counter_that_only_grows_grew_by_its_difference(start: int, grown: list[int], data: st.DataObject) -> None:
    points: list[int | Missing] = [start]
    for step in grown:
        points.append(start := start + step)
        if data.draw(st.booleans()):
            points.append(DENIED)  # a reading that failed loses nothing: the counter goes on
    g = growth(enumerate(points), WIDE)
    assert (g.increase, g.resets, g.wraps) == (sum(grown), 0, 0)


@given(st.integers((1 << 32) - (1 << 20), (1 << 32) - 1), steps)
def test_a_counter_that_wraps_grew_by_what_was_added(start: int, grown: list[int]) -> None:
    """The sum of at most 30 steps of 2^20 stays below a quarter of 2^32, so that it wraps at most once."""
    total, points = start, [start]
    for step in grown:
        total += step
        points.append(total % (1 << 32))
    g = growth(enumerate(points), NARROW)
    assert (g.increase, g.resets, g.wraps) == (sum(grown), 0, total >> 32)


@pytest.mark.parametrize(
    ("points", "width", "increase", "resets"),
    [
        ([500, 3, 5], NARROW, 2, 1),  # a driver that was loaded again: what it counted before 3 is not known
        ([500, 3, 5], WIDE, 2, 1),
        ([1 << 31, 3], NARROW, 0, 1),  # in the middle of its range: no wrap
        ([65535, 0], PMA, 0, 1),  # a counter of a port does not wrap; someone cleared it
        ([7, 0, 0, 2], WIDE, 2, 1),
    ],
)
def test_a_fall_that_is_no_wrap_is_a_reset(points: list[int], width: Width, increase: int, resets: int) -> None:
    g = growth(enumerate(points), width)
    assert (g.increase, g.resets, g.wraps) == (increase, resets, 0)


def test_the_time_across_a_reset_does_not_count() -> None:
    g = growth([(0.0, 10), (5.0, 20), (60.0, 0), (65.0, 30)], WIDE)
    assert (g.increase, g.seconds, g.per_s) == (10 + 30, 5.0 + 5.0, 4.0)


def test_a_counter_at_its_maximum_is_saturated() -> None:
    assert growth([(0.0, 65535), (1.0, 65535)], PMA).saturated
    assert not growth([(0.0, 65534), (1.0, 65534)], PMA).saturated
    assert not growth([(0.0, (1 << 32) - 1)], NARROW).saturated


def test_a_counter_that_vanishes_is_no_growth() -> None:
    g = growth([(0.0, 5), (1.0, 7), (2.0, DENIED)], WIDE)
    assert (g.increase, g.vanished, g.unreadable) == (2, True, 1)
    assert not growth([(0.0, 5), (1.0, DENIED), (2.0, 7)], WIDE).vanished


@pytest.mark.parametrize("points", [[], [(0.0, 5)], [(3.0, 5), (3.0, 9)], [(9.0, 5), (3.0, 9)]])
def test_there_is_no_rate_without_time(points: list[tuple[float, int]]) -> None:
    assert isinstance(growth(points, WIDE).per_s, Missing)
