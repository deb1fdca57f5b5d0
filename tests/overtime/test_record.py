"""Recordings: read back as written, thinned where they are long, and refused with the line where they are none."""

from __future__ import annotations

import json
import zlib
from itertools import pairwise
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.overtime import planting
from topocheck.model.base import DENIED, InputError, Missing
from topocheck.overtime.history import History, last_known
from topocheck.overtime.record import GZIP, Deltas, Writer, is_recording, parse, written
from topocheck.overtime.thinning import Kept
from topocheck.overtime.types import GpuEvent, GpuReading, PortReading, Sample

MIB = 1 << 20
R = TypeVar("R", GpuReading, PortReading)
HEADER = written(msgspec.structs.replace(planting.recording(1), samples=())).decode()


def rounded(history: History) -> History:
    """Return a recording with traffic rounded down to 16 MiB."""
    units = {
        "nvlink_tx_kib": 16 * MIB // 1024,
        "nvlink_rx_kib": 16 * MIB // 1024,
        "port_xmit_data": 16 * MIB // 4,
        "port_rcv_data": 16 * MIB // 4,
    }

    def down(r: R) -> R:
        counters = {n: v // units.get(n, 1) * units.get(n, 1) for n, v in r.counters.items()}
        return msgspec.structs.replace(r, counters=counters)

    samples = [
        msgspec.structs.replace(s, gpus=tuple(map(down, s.gpus)), ports=tuple(map(down, s.ports)))
        for s in history.samples
    ]
    return msgspec.structs.replace(history, samples=tuple(samples))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_a_recording_is_read_back_as_it_was_written(size: int, compressed: bool) -> None:
    history = planting.recording(1)
    data = written(history, compressed=compressed)
    assert is_recording(data[:1000])
    assert data.startswith(GZIP) == compressed
    assert parse([data[i : i + size] for i in range(0, len(data), size)], "f") == rounded(history)


def test_a_machine_that_died_leaves_what_it_wrote() -> None:
    history = planting.recording(1, samples=40, step_s=1.0)
    assert parse([written(history)[:-20]], "f") == rounded(
        msgspec.structs.replace(history, samples=history.samples[:-1])
    )
    writer = Writer(compressed=True)
    parts = [writer.header(history.header), *(writer.sample(s) for s in history.samples)]
    # The compressed file is behind by at most ten seconds.
    assert len(parse([b"".join(parts)], "f").samples) > 28


READINGS = st.one_of(
    st.builds(
        GpuReading,
        address=st.sampled_from(["0000:01:00.0", "0000:02:00.0"]),
        index=st.just(0),
        lost=st.booleans(),
        counters=st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 1 << 64)),
        missing=st.dictionaries(st.sampled_from(["c", "d"]), st.just(DENIED)),
        clock_sm_mhz=st.one_of(st.integers(0, 3000), st.just(DENIED)),
        pids=st.one_of(st.tuples(st.integers(1, 99)), st.just(())),
    ),
    st.builds(
        PortReading,
        device=st.sampled_from(["mlx5_0", "mlx5_1"]),
        port=st.just(1),
        state=st.one_of(st.sampled_from(["ACTIVE", "DOWN"]), st.just(DENIED)),
        rate_gbit_s=st.one_of(st.floats(0, 1e6, allow_nan=False), st.just(Missing(DENIED.reason, "x"))),
    ),
)


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.lists(READINGS, unique_by=lambda r: r.subject, max_size=4), st.booleans()),
        max_size=12,
    )
)
def test_any_samples_are_read_back_as_they_were(parts: list[tuple[int, list[planting.Reading], bool]]) -> None:
    at, samples = 0, []
    for ms, readings, loud in parts:
        at += ms
        events = (GpuEvent(address="0000:01:00.0", type=8, data=79),) if loud else ()
        silent = {"nvml": "no answer"} if loud else {}
        samples.append(planting.sample_of(at / 1000, readings, silent, events))
    history = History(header=planting.base()[0], samples=tuple(samples))
    assert parse([written(history)], "f") == history


def test_a_long_recording_keeps_its_ends_and_what_happened() -> None:
    """Of 20,000 samples the port is down in two; when it went and came back, the first and the newest are kept."""

    def sample(n: int) -> Sample:
        port = PortReading(
            device="mlx5_0",
            port=1,
            state="DOWN" if n in (7001, 7002) else "ACTIVE",
            counters={"port_rcv_packets": 1000 * n, "symbol_error": n // 9000},
        )
        return planting.sample_of(float(n), [port])

    writer = Writer(compressed=False)
    data = [writer.header(planting.base()[0]), *(writer.sample(sample(n)) for n in range(20_000))]
    history = parse(data, "f")
    kept = [s.at_s for s in history.samples]
    assert kept == sorted(kept)
    assert {0.0, 7001.0, 7003.0, 9000.0, 18000.0, *map(float, range(19_900, 20_000))} <= set(kept)
    assert len(kept) < 2300
    assert all(b - a <= 16 for a, b in pairwise(kept))  # 20,000 / 16 is below 2,048
    assert last_known(history.samples).ports[0].counters == {"port_rcv_packets": 19_999_000, "symbol_error": 2}


def test_where_everything_changes_each_second_change_goes() -> None:
    kept: Kept[int] = Kept(limit=100, newest=10)
    for n in range(100_000):
        kept.add(n, changed=True)
    items = kept.items()
    assert items[0] == 0
    assert items[-10:] == list(range(99_990, 100_000))
    assert len(items) <= 110
    assert max(b - a for a, b in pairwise(items)) <= 4096


def test_what_rests_costs_next_to_nothing() -> None:
    deltas = Deltas()
    first = planting.recording(1).samples[0]
    deltas.line(first)
    again, changed = deltas.line(msgspec.structs.replace(first, at_s=first.at_s + 1))
    assert json.loads(msgspec.json.encode(again)) == {"ms": 1000}
    assert not changed


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "f: line 1: "),
        ("{}\n", "f: line 1: "),
        ("not JSON\n", "f: line 1: "),
        ("HEADER[]\n", "f: line 2: "),
        ('HEADER{"ms": -1}\n', "f: line 2: -1 ms since the line above"),
        ('HEADER{"d": [1, 1]}\n', "f: line 2: the number of a series that is not there"),
        ('HEADER{"d": [0, 1]}\n', "f: line 2: the numbers of series do not rise"),
        ('HEADER{"d": [1]}\n', "f: line 2: "),
        ('HEADER{"has": [3]}\n', "f: line 2: `has`"),
        ('HEADER{}\n{"set": 4}\n', "f: line 3: `set` 4 of 1"),
        ('HEADER{"series": [{"of": "port", "id": {"device": "a"}, "field": "state"}], "has": [0]}\n', "f: "),
        ('HEADER{"series": [{"of": "moon", "id": {}}], "has": [0]}\n', "f: line 2: "),
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(text: str, where: str) -> None:
    with pytest.raises(InputError) as e:
        parse([text.replace("HEADER", HEADER).encode()], "f")
    assert str(e.value).startswith(where)


def test_another_format_or_version_is_named() -> None:
    header = HEADER.encode()
    with pytest.raises(InputError, match="reads version 2"):
        parse([header.replace(b'"version":2', b'"version":9')], "f")
    with pytest.raises(InputError, match="format 'other'"):
        parse([header.replace(b'"format":"topocheck watch"', b'"format":"other"')], "f")


def test_what_unpacks_without_end_is_refused() -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = bomb.compress(HEADER.encode() + b" " * (8 << 20)) + bomb.flush()
    with pytest.raises(InputError, match="more than 4 MiB"):
        parse([data], "f")


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for text in (data, HEADER.encode() + data, GZIP + data):
        try:
            parse([text], "f")
        except InputError:
            continue
