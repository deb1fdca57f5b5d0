"""Whatever form an answer has, a question gives the right type or the word `unparsable`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.host.base import Answer, CommandResult, FileStat, Host, HostError, RecordedBackend
from topocheck.model.base import ProbeStatus, Reason

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("kind", "rc", "stdout", "stderr", "state", "ms", "uid", "a")), inner)
    ),
    max_leaves=6,
)
STAT = {"kind": "file", "size_bytes": 1, "uid": 0, "gid": 0, "mode": 0o644, "mtime": 1, "device": 2, "rdev": 0}


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) for k in value)


def _status(value: Any) -> bool:
    states = {"ok", "empty", "failed", "timed_out"}
    return isinstance(value, ProbeStatus) and value.state in states and math.isfinite(value.ms)


QUESTIONS: dict[str, tuple[Callable[[Host], Any], Callable[[Any], bool], Answer]] = {
    "read:/a": (lambda h: h.read_bytes("/a"), lambda v: isinstance(v, bytes), b"x"),
    "lines:/a|b": (lambda h: h.read_lines("/a", "b"), _texts, ["b 1"]),
    "list:/a": (lambda h: h.listdir("/a"), _texts, []),
    "readlink:/a": (lambda h: h.readlink("/a"), lambda v: isinstance(v, str), "../b"),
    "realpath:/a": (lambda h: h.realpath("/a"), lambda v: isinstance(v, str), "/b"),
    "stat:/a": (lambda h: h.stat("/a"), lambda v: isinstance(v, FileStat), STAT),
    "statvfs:/a": (lambda h: h.statvfs("/a"), lambda v: tuple(map(type, v)) == (int, int), [2, 1]),
    "access:/a|r": (lambda h: h.access("/a", "r"), lambda v: isinstance(v, bool), False),
    "run:10|true": (
        lambda h: h.run(["true"]),
        lambda v: isinstance(v, CommandResult),
        {"rc": 0, "stdout": "", "stderr": ""},
    ),
    "environ:": (lambda h: h.environ(), lambda v: _mapping(v) and _texts(list(v.values())), {"A": "b"}),
    "kernel_options:": (lambda h: h.kernel_options(), _texts, ["iommu=pt"]),
    "conf:/a": (lambda h: h.conf_lines("/a"), _texts, ["1\tNCCL_DEBUG=INFO"]),
    "pci_names:10de:2330": (
        lambda h: h.pci_names(["10de:2330"]),
        lambda v: _mapping(v) and all(len(n) == 2 for n in v.values()),
        {"10de:2330": ["NVIDIA Corporation", None]},
    ),
    "process:": (lambda h: h.process(), _mapping, {"uid": 0, "sys_path": ["/a"]}),
    "now:": (lambda h: h.now(), lambda v: isinstance(v, str), "2026-02-03T04:05:06Z"),
    "duration:pci": (lambda h: h.duration_ms("pci"), lambda v: isinstance(v, float) and math.isfinite(v), 3),
    "probe:pci": (lambda h: h.probe_status("pci"), _status, {"state": "ok", "ms": 1.5}),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_right_forms_are_taken(question: str) -> None:
    ask, right, answer = QUESTIONS[question]
    assert right(ask(Host(RecordedBackend({question: answer}))))


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
@given(answer=JSON)
def test_any_other_form_is_told(question: str, answer: Answer) -> None:
    ask, right, _ = QUESTIONS[question]
    refusal: HostError | None = None
    value = None
    try:
        value = ask(Host(RecordedBackend({question: answer})))
    except HostError as e:
        refusal = e
    if refusal is None:
        assert right(value)
    else:
        assert (refusal.reason, refusal.detail) == (Reason.UNPARSABLE, question)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("list:/a", "abc"),
        ("list:/a", [1]),
        ("lines:/a|b", 5),
        ("statvfs:/a", [1]),
        ("statvfs:/a", [1, 2, 3]),
        ("access:/a|r", "no"),
        ("environ:", {"A": 1}),
        ("environ:", [["A", "b"]]),
        ("pci_names:10de:2330", {"10de:2330": ["one"]}),
        ("process:", {"sys_path": 5}),
        ("process:", {"uid": "root"}),
        ("now:", "yesterday"),
        ("now:", "2026-13-01T00:00:00Z"),
        ("now:", "2026-01-01"),
        ("now:", 0),
        ("duration:pci", -1),
        ("duration:pci", math.nan),
        ("probe:pci", 7),
        ("probe:pci", {"state": "fine", "ms": 1}),
        ("probe:pci", {"state": "ok", "ms": "1"}),
        ("stat:/a", STAT | {"mode": "rw"}),
        ("run:10|true", {"rc": 0, "stdout": None, "stderr": ""}),
    ],
)
def test_wrong_forms_are_refused(question: str, answer: Answer) -> None:
    with pytest.raises(HostError) as caught:
        QUESTIONS[question][0](Host(RecordedBackend({question: answer})))
    assert (caught.value.reason, caught.value.detail) == (Reason.UNPARSABLE, question)
