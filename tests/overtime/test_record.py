"""Recordings as JSON lines: read back as written, and refused with the line where they are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.overtime import planting
from topocheck.model.base import InputError
from topocheck.overtime.record import line, parse


def test_a_recording_is_read_back_as_it_was_written() -> None:
    history = planting.recording(1)
    data = line(history.header) + b"".join(line(s) for s in history.samples)
    assert parse(data, "f") == history
    cut = parse(data[:-20], "f")  # a machine that died while it wrote
    assert cut.samples == history.samples[:-1]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "f: line 1: "),
        ("{}\n", "f: line 1: "),
        ("not JSON\n", "f: line 1: "),
        ("HEADER{}\n", "f: line 2: "),
        ('HEADER{"at_s": 2}\n{"at_s": 1}\n', "f: line 3: at_s 1 is before"),
        ('HEADER{"at_s": 1e300}\n', "f: line 2: "),
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(text: str, where: str) -> None:
    header = line(planting.recording(1).header).decode()
    with pytest.raises(InputError) as e:
        parse(text.replace("HEADER", header).encode(), "f")
    assert str(e.value).startswith(where)


def test_another_format_or_version_is_named() -> None:
    header = line(planting.recording(1).header)
    with pytest.raises(InputError, match="reads version 1"):
        parse(header.replace(b'"version":1', b'"version":9'), "f")
    with pytest.raises(InputError, match="format 'other'"):
        parse(header.replace(b'"format":"topocheck watch"', b'"format":"other"'), "f")


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for text in (data, line(planting.base()[0]) + data):
        try:
            parse(text, "f")
        except InputError:
            continue
