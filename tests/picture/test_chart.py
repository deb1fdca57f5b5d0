"""Charts of curves: values stand where the axes say."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.picture.chart import MOST_CURVES, Chart, Curve, Plotted, Point, Scale, plot


def curve(name: str, *values: tuple[float, float]) -> Curve:
    return Curve(name=name, points=tuple(Point(x=x, y=y, about=f"{x} {y}") for x, y in values))


def chart(*curves: Curve, y_scale: Scale = "linear", ideal: bool = False) -> Plotted:
    made = Chart(title="t", x_label="x", y_label="y", curves=curves, y_scale=y_scale, ideal=ideal)
    return plot(made, lambda x: f"{x:g}")


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors() -> None:
    points = chart(curve("c", (1, 1), (2, 2), (4, 4), (8, 8)), y_scale="log", ideal=True).curves[0][1]
    assert len({round(b[0] - a[0]) for a, b in pairwise(points)}) == 1
    assert len({round(b[1] - a[1]) for a, b in pairwise(points)}) == 1


def test_values_stand_at_their_ticks() -> None:
    plotted = chart(curve("c", (1, 0), (1024, 100)))
    low, high = plotted.curves[0][1]
    ticks = {t.text: t.at for t in plotted.y_ticks}
    assert (low[1], high[1]) == (ticks["0"], ticks["100"])
    assert low[1] == plotted.bottom
    assert high[0] == plotted.right


def test_the_ideal_is_a_line_of_slope_one() -> None:
    plotted = chart(curve("c", (1, 1), (4, 2)), y_scale="log", ideal=True)
    ticks = {t.text: t.at for t in plotted.y_ticks}
    assert [y for _, y in plotted.ideal] == [ticks["1"], ticks["4"]]


def test_of_too_many_curves_the_rest_is_said() -> None:
    plotted = chart(*(curve(str(i), (1, 1), (2, 2)) for i in range(MOST_CURVES + 3)))
    assert len(plotted.curves) == MOST_CURVES
    assert [n for _, n in plotted.notes] == ["and 3 more in the tables"]


@pytest.mark.parametrize("y_scale", ["linear", "log"])
def test_nothing_at_all_can_be_drawn(y_scale: Scale) -> None:
    assert chart(y_scale=y_scale).curves == ()
    assert len(chart(curve("c", (3, 5)), y_scale=y_scale).curves[0][1]) == 1


@given(
    st.lists(st.tuples(st.floats(1, 2**40), st.floats(1e-3, 1e6)), min_size=1, max_size=12, unique_by=lambda v: v[0]),
    st.sampled_from(("linear", "log")),
    st.booleans(),
)
def test_everything_is_inside(values: list[tuple[float, float]], y_scale: Scale, ideal: bool) -> None:
    plotted = chart(curve("c", *sorted(values)), y_scale=y_scale, ideal=ideal and y_scale == "log")
    for _, points in plotted.curves:
        for x, y, _ in points:
            assert plotted.left - 0.1 <= x <= plotted.right + 0.1
            assert plotted.top - 0.1 <= y <= plotted.bottom + 0.1
    assert len(plotted.y_ticks) <= 20
