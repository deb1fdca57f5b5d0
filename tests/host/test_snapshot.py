"""Snapshots: what is saved comes back, and what is not a snapshot gets one clear line."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topocheck.host.base import HostError
from topocheck.host.gather.jsonable import plain
from topocheck.host.recording import snapshot
from topocheck.host.recording.snapshot import Header, SnapshotError, load, read, save, write
from topocheck.model.base import Reason

HEADER = {
    "format": "topocheck-snapshot",
    "format_version": 1,
    "probe_set": 1,
    "topocheck_version": "0.1.0",
    "identifiers": "kept",
    "taken_at": "2026-01-02T03:04:05Z",
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
ERRORS = st.builds(HostError, st.sampled_from(Reason), TEXT)
ANSWERS = st.dictionaries(TEXT.map("read:".__add__), VALUES | st.binary() | ERRORS, max_size=8)


def comparable(answers: dict[str, Any]) -> dict[str, Any]:
    return {k: ("error", a.reason, a.detail) if isinstance(a, HostError) else (type(a), a) for k, a in answers.items()}


def packed(*lines: object) -> bytes:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return gzip.compress(text.encode())


def refused(data: bytes) -> str:
    with pytest.raises(SnapshotError) as caught:
        read(io.BytesIO(data), "machine.snap")
    text = str(caught.value)
    assert text.startswith("machine.snap: ")
    assert text.isprintable(), "one line, nothing that moves a cursor"
    return text


@given(ANSWERS)
def test_round_trip(answers: dict[str, Any]) -> None:
    file = io.BytesIO()
    write(file, answers, probe_set=3, identifiers="replaced")
    file.seek(0)
    header, back = read(file, "x")
    assert comparable(back) == comparable(answers)
    assert (header.probe_set, header.identifiers, header.format_version) == (3, "replaced", 1)


@given(st.binary())
def test_any_bytes(data: bytes) -> None:
    refused(data)


@given(st.lists(st.text(), max_size=4))
def test_any_lines(lines: list[str]) -> None:
    refused(packed("".join(lines)))
    try:
        read(io.BytesIO(packed(HEADER, *lines)), "x")
    except SnapshotError:
        return
    assert not lines


@given(VALUES)
def test_any_json_as_header_or_line(value: object) -> None:
    refused(packed(value))
    refused(packed(HEADER, value))


@settings(max_examples=50)
@given(ANSWERS, st.data())
def test_damaged_snapshot(answers: dict[str, Any], data: st.DataObject) -> None:
    """One changed byte gives an error or other answers, never another exception."""
    file = io.BytesIO()
    write(file, answers, probe_set=1)
    raw = bytearray(file.getvalue())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(io.BytesIO(bytes(raw)), "x")
    except SnapshotError:
        return


def test_every_cut_is_noticed() -> None:
    file = io.BytesIO()
    write(file, {"read:/a": b"text", "nvml:x": 4}, probe_set=1)
    raw = file.getvalue()
    for length in range(len(raw)):
        refused(raw[:length])


def test_same_answers_same_bytes(tmp_path: Path) -> None:
    one = {"read:/b": b"2", "read:/a": b"1", "psutil:x": {"b": 1, "a": 2}}
    other = {"psutil:x": {"a": 2, "b": 1}, "read:/a": b"1", "read:/b": b"2"}
    save(str(tmp_path / "one"), one, probe_set=1)
    save(str(tmp_path / "other"), other, probe_set=1)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_file_is_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "machine.snap"
    save(str(path), {"now:": "2026-01-02T03:04:05Z", "read:/a": b"\xff\x00"}, probe_set=1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["machine.snap"]
    header, answers = load(str(path))
    assert header.taken_at == "2026-01-02T03:04:05Z"
    assert answers["read:/a"] == b"\xff\x00"


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "machine.snap"
    save(str(path), {"read:/a": b"old"}, probe_set=1)
    with pytest.raises(TypeError):
        save(str(path), {"read:/a": object()}, probe_set=1)
    assert os.listdir(tmp_path) == ["machine.snap"]
    assert load(str(path))[1] == {"read:/a": b"old"}


@pytest.mark.parametrize("where", ["no/such/folder/x", "folder", "fifo", "nul\0"])
def test_cannot_save(tmp_path: Path, where: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SnapshotError):
        save(f"{tmp_path}/{where}", {}, probe_set=1)


@pytest.mark.parametrize("where", ["absent", "folder", "fifo", "nul\0", "/dev/zero", "/dev/null", "empty", "loop"])
def test_cannot_load(tmp_path: Path, where: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    path = where if where.startswith("/") else f"{tmp_path}/{where}"
    with pytest.raises(SnapshotError) as caught:
        load(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("lines", "number", "word"),
    [
        (["{}"], 1, "header"),
        ([{**HEADER, "format": "other"}], 1, "header"),
        ([{**HEADER, "format_version": 2}], 1, "newer topocheck"),
        ([{**HEADER, "format_version": "1"}], 1, "format_version"),
        ([{**HEADER, "format_version": 0}], 1, "format_version"),
        ([{**HEADER, "probe_set": "x"}], 1, "probe_set"),
        ([HEADER, "", {"q": "a:", "a": 1}], 2, "question"),
        ([HEADER, {"q": "a:", "a": 1}, "not json"], 3, "question"),
        ([HEADER, {"q": "a:", "a": 1}, {"q": "a:", "a": 1}], 3, "only once"),
        ([HEADER, {"q": "a:"}], 2, "exactly one"),
        ([HEADER, {"q": "a:", "a": 1, "t": ""}], 2, "exactly one"),
        ([HEADER, {"q": "no colon", "a": 1}], 2, "kind:arguments"),
        ([HEADER, {"q": "a:", "b": "%%"}], 2, "base64"),
        ([HEADER, {"q": "a:", "b": "é"}], 2, "base64"),
        ([HEADER, {"q": "a:", "e": ["no such reason", ""]}], 2, "question"),
        ([HEADER, {"q": "a:", "e": ["absent"]}], 2, "question"),
        ([HEADER, {"q": 1, "a": 1}], 2, "question"),
        ([HEADER, {"q": "a:", "a": 1, "extra": 1}], 2, "question"),
        ([HEADER, '{"q":"a:","a":NaN}'], 2, "question"),
        ([HEADER, '{"q":"a:","a":' + "[" * 100_000 + "]" * 100_000 + "}"], 2, "question"),
        (["[" * 100_000], 1, "header"),
        ([HEADER, '{"q":"a:","a":"\x1b[2J"}'], 2, "question"),
    ],
)
def test_wrong_content(lines: list[object], number: int, word: str) -> None:
    text = refused(packed(*lines))
    assert f"line {number}:" in text
    assert word in text


def test_newer_writer_of_this_format_may_add_to_the_header() -> None:
    header, _ = read(io.BytesIO(packed({**HEADER, "host_note": "x"})), "x")
    assert header == Header(**HEADER)  # type: ignore[arg-type]


def test_bomb() -> None:
    """A gigabyte of blanks in a few kilobytes: refused by the length of the line, without unpacking it."""
    block = zip_block = gzip.compress(b" " * (1 << 20))
    assert "at most 16 MiB" in refused(gzip.compress(json.dumps(HEADER).encode() + b"\n") + block * 64 + zip_block)


@pytest.mark.parametrize(
    ("name", "limit", "word"),
    [
        ("MAX_BYTES", 400, "uncompressed"),
        ("MAX_ANSWERS", 2, "answers"),
        ("MAX_VALUES", 10, "values"),
        ("MAX_LINE_BYTES", 200, "line of"),
    ],
)
def test_caps(monkeypatch: pytest.MonkeyPatch, name: str, limit: int, word: str) -> None:
    lines = [HEADER, *({"q": f"a:{n}", "a": [1, 2, 3]} for n in range(20)), {"q": "long:", "a": "x" * 300}]
    read(io.BytesIO(packed(*lines)), "x")
    monkeypatch.setattr(snapshot, name, limit)
    assert word in refused(packed(*lines))


def test_file_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"x" * 100)
    monkeypatch.setattr(snapshot, "MAX_FILE_BYTES", 99)
    with pytest.raises(SnapshotError, match="larger than"):
        load(str(path))


@given(
    st.recursive(
        VALUES | st.binary() | st.text() | st.floats() | st.integers() | st.tuples(st.binary()),
        lambda i: st.lists(i, max_size=3) | st.dictionaries(st.text(), i, max_size=3),
        max_leaves=6,
    )
)
def test_whatever_is_made_plain_can_be_saved(value: object) -> None:
    file = io.BytesIO()
    answers = {"x:": plain(value)}
    write(file, answers, probe_set=1)
    file.seek(0)
    assert comparable(read(file, "x")[1]) == comparable(answers)
