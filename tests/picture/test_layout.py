"""Where things are drawn: nothing overlaps, everything is inside, every device is there once."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.picture.drawn import drawn
from topocheck.picture.metrics import BOLD, fit, lines, width
from topocheck.picture.narrow import narrow
from topocheck.picture.types import Box, Drawing, Scene, Text
from topocheck.picture.wide import wide

MACHINES = (
    "hgx_h100_cx7",
    "dgx2",
    "gb200_tray",
    "laptop",
    "no_pci",
    "dgx1v",
    "a100_x4",
    "azure_ndv4_vm",
    "gpu_lost",
    "64 GPUs, 128 HCAs",
)
LAYOUTS: tuple[Callable[[Scene], Drawing], ...] = (wide, narrow)
Rectangle = tuple[float, float, float, float]


def of_box(b: Box) -> Rectangle:
    return b.x, b.y, b.x + b.w, b.y + b.h


def of_text(t: Text) -> Rectangle:
    w = width(t.text, t.size, t.role in ("name", "head"))
    start = {"start": 0.0, "middle": -w / 2, "end": -w}[t.anchor]
    if t.turned:  # the text runs up from its point
        return t.x - t.size, t.y - start - w, t.x + 3, t.y - start
    return t.x + start, t.y - t.size, t.x + start + w, t.y + 3


def inside(inner: Rectangle, outer: Rectangle) -> bool:
    return (
        inner[0] >= outer[0] - 0.5
        and inner[1] >= outer[1] - 0.5
        and inner[2] <= outer[2] + 0.5
        and inner[3] <= outer[3] + 0.5
    )


def overlap(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] - 0.1 and b[0] < a[2] - 0.1 and a[1] < b[3] - 0.1 and b[1] < a[3] - 0.1


def every(drawing: Drawing) -> list[Text]:
    out = [*drawing.texts]
    for x in (*drawing.boxes, *drawing.lines):
        out += x.texts
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MACHINES)
def test_places(name: str, layout: Callable[[Scene], Drawing]) -> None:
    _, topology, scene = drawn(name)
    drawing = layout(scene)
    paper = (0.0, 0.0, drawing.width, drawing.height)
    boxes = [b for b in drawing.boxes if b.kind != "domain"]
    domains = [b for b in drawing.boxes if b.kind == "domain"]

    everything = [of_box(b) for b in drawing.boxes] + [of_text(t) for t in every(drawing)]
    everything += [(x, y, x, y) for line in drawing.lines for x, y in line.points]
    assert [r for r in everything if not inside(r, paper)] == []

    for a, b in itertools.combinations(boxes, 2):
        assert not overlap(of_box(a), of_box(b)), (a.about, b.about)
    for a, b in itertools.combinations(domains, 2):
        assert not overlap(of_box(a), of_box(b)), (a.about, b.about)
    for b in boxes:
        if b.kind != "fabric":
            assert sum(inside(of_box(b), of_box(d)) for d in domains) == 1, b.about
    for b in drawing.boxes:
        assert [t.text for t in b.texts if not inside(of_text(t), of_box(b))] == []

    devices = [a for b in boxes for a in b.devices]
    assert sorted(devices) == sorted({x.address for x in (*topology.gpus, *topology.accelerators, *topology.nics)})
    links = [line.link.id for line in drawing.lines]
    assert len(links) == len(set(links))


@pytest.mark.parametrize("name", [n for n in MACHINES if n != "dgx1v"])
def test_no_line_runs_through_a_box_or_another_label(name: str) -> None:
    drawing = wide(drawn(name)[2])
    solid = [b for b in drawing.boxes if b.kind != "domain"]
    for line in drawing.lines:
        for (x1, y1), (x2, y2) in itertools.pairwise(line.points):
            run = (min(x1, x2), min(y1, y2) - 0.2, max(x1, x2), max(y1, y2) + 0.2)
            assert [b.about for b in solid if overlap(run, of_box(b))] == [], line.link
    labels = [t for line in drawing.lines for t in line.texts]
    for a, b in itertools.combinations(labels, 2):
        assert not overlap(of_text(a), of_text(b)), (a.text, b.text)


def test_every_link_names_its_rate() -> None:
    drawing = wide(drawn("hgx_h100_cx7")[2])
    for line in drawing.lines:
        if line.link.kind != "inside":
            assert line.link.rate in {t.text for t in line.texts}, line.link


def test_the_paper_of_the_narrow_drawing_is_a_telephones() -> None:
    assert {narrow(drawn(n)[2]).width for n in MACHINES} == {360.0}


@given(st.text(max_size=60), st.floats(10, 300), st.sampled_from((10.0, 12.5)), st.booleans())
def test_a_text_fits_where_it_was_made_to_fit(text: str, room: float, size: float, bold: bool) -> None:
    shown = fit(text, room, size, bold)
    assert width(shown, size, bold) <= max(room, size * BOLD)
    assert shown == text or shown.endswith("…")


@given(st.text(alphabet="ab ", max_size=80), st.floats(30, 200), st.integers(1, 4))
def test_lines_are_as_many_as_allowed(text: str, room: float, most: int) -> None:
    rows = lines(text, room, 11, most)
    assert len(rows) <= most
    assert all(width(r, 11) <= room for r in rows)
