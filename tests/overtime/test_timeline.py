"""What is drawn of a recording: values of each device downsampled, and what happened to it."""

from __future__ import annotations

import pytest

from tests.overtime import planting as p
from topocheck.overtime.history import History
from topocheck.overtime.timeline import BUCKETS, Panel, panels
from topocheck.overtime.types import GpuEvent, GpuReading, PortReading, Reading, sample_of
from topocheck.picture.timeline import Line, Moment, span_text, timeline
from topocheck.render.html.watch import watch_html


def history(*samples: tuple[float, list[Reading]]) -> History:
    return History(header=p.base()[0], samples=tuple(sample_of(at, readings) for at, readings in samples))


def panel(found: tuple[Panel, ...], title: str) -> Panel:
    return next(x for x in found if x.title == title)


def test_rates_are_those_of_the_counters() -> None:
    def at(n: int, kib: int) -> tuple[float, list[Reading]]:
        return 2.0 * n, [GpuReading(address=p.GPU, index=0, counters={"nvlink_tx_kib": kib, "nvlink_rx_kib": 0})]

    found = panel(panels(history(at(0, 0), at(1, 1 << 20), at(2, 1 << 20), at(3, 5))), "NVLink traffic")
    # 2^20 KiB in 2 s are 0.537 GB/s; then nothing; a counter that fell has no rate.
    (track,) = found.tracks
    assert track.label == "GPU0"
    assert [round(high, 3) for _, _, high in track.points] == [0.537, 0.0, 0.0]


def test_a_long_track_keeps_the_lowest_and_the_highest_value_of_each_part() -> None:
    def at(n: int) -> tuple[float, list[Reading]]:
        return float(n), [GpuReading(address=p.GPU, index=0, clock_sm_mhz=300 if n == 5003 else 1980)]

    (track,) = panel(panels(history(*map(at, range(20_000)))), "SM clock").tracks
    assert len(track.points) == BUCKETS
    assert [(low, high) for _, low, high in track.points if low != high] == [(300.0, 1980.0)]


def test_what_happened_stands_at_its_time_and_device() -> None:
    both = [p.later(p.is_port, back=True, state="INIT"), p.grow(p.is_link, "replay", 3)]

    def plant(readings: p.Readings, n: int, of: int) -> None:
        for one in both:
            one(readings, n, of)

    found = panels(p.recording(1, samples=20, step_s=1.0, plant=plant))
    port = next(t for t in panel(found, "Traffic of RDMA ports").tracks if t.label == p.PORT)
    (down,) = [m for m in port.marks if not m.counted]
    assert (round(down.from_s), round(down.to_s), down.text) == (10, 13, "INIT")
    gpus = {t.label: [m.text for m in t.marks] for t in panel(found, "SM clock").tracks}
    assert "NVLink 3: replay +3" in gpus["GPU0"]
    assert not any("NVLink" in text for label, texts in gpus.items() if label != "GPU0" for text in texts)


def test_an_event_is_marked() -> None:
    reading = GpuReading(address=p.GPU, index=0, clock_sm_mhz=1980)
    samples = tuple(
        sample_of(float(n), [reading], None, (GpuEvent(address=p.GPU, type=8, data=79),) if n == 2 else ())
        for n in range(4)
    )
    (track,) = panel(panels(History(header=p.base()[0], samples=samples)), "SM clock").tracks
    assert [(m.from_s, m.text) for m in track.marks] == [(2.0, "Xid 79")]


def test_nothing_sampled_is_nothing_drawn() -> None:
    assert panels(history()) == ()
    assert panels(history((0.0, [PortReading(device="mlx5_0", port=1)]))) == ()


def test_places() -> None:
    line = Line(
        label="GPU0",
        points=((0.0, 0.0, 0.0), (50.0, 4.0, 8.0), (100.0, 2.0, 2.0)),
        moments=(Moment(from_s=50.0, to_s=75.0, about="x"), Moment(from_s=100.0, to_s=100.0, about="y")),
    )
    drawn = timeline("T", "MHz", [line], 100.0)
    (row,) = drawn.rows
    middle = (drawn.left + drawn.right) / 2
    # The scale ends at 8, four steps of 2; the highest value of the middle is at the top.
    assert drawn.most == "8"
    assert f"L{middle} {row.top}L" in row.path
    assert (row.boxes[0].x, row.boxes[0].width) == (middle, (drawn.right - drawn.left) / 4)
    assert row.boxes[1].width > 0
    assert [t.text for t in drawn.ticks] == ["0 s", "30 s", "1 min", "90 s"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (45, "45 s"), (120, "2 min"), (90, "90 s"), (7200, "2 h"), (172_800, "2 d")]
)
def test_times(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


def test_the_page_names_devices_and_hides_nothing_hostile() -> None:
    evil = [PortReading(device="<script>", port=1, state="ACTIVE", counters={"port_rcv_data": n}) for n in (0, 9)]
    recorded = history((0.0, [evil[0]]), (1.0, [evil[1]]))
    page = watch_html(recorded.header, panels(recorded), [], seconds=1.0, samples=2)
    assert "&lt;script&gt;/1" in page
    assert "<script>/1" not in page
    assert "nothing found" in page
