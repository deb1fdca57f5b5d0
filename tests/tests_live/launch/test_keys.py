"""The keys that ranks set for each other: what is answered, when, and what is not kept."""

from __future__ import annotations

import time
from typing import Any

import pytest

from topocheck.tests_live.launch import keys
from topocheck.tests_live.launch.frames import (
    Absent,
    Add,
    Delete,
    Exchange,
    Failed,
    Get,
    Missing,
    Put,
    Size,
    Sum,
    Value,
)
from topocheck.tests_live.launch.keys import Keys


def test_a_key_is_set_read_counted_and_removed() -> None:
    k = Keys()
    assert k.take("a", 0, Put(id=1, key="x/1", value=b"v")) == [("a", Sum(id=1, number=0))]
    assert k.take("b", 1, Get(id=2, key="x/1", wait_s=9)) == [("b", Value(id=2, value=b"v"))]
    assert k.take("b", 1, Get(id=3, key="y", wait_s=0)) == [("b", Value(id=3, value=None))]
    k.take("a", 0, Put(id=4, key="y", value=b"w"))
    assert k.take("b", 1, Size(id=5, prefix="x/")) == [("b", Sum(id=5, number=1))]
    assert k.take("b", 1, Delete(id=6, key="x/1")) == [("b", Sum(id=6, number=1))]
    assert k.take("b", 1, Delete(id=7, key="x/1")) == [("b", Sum(id=7, number=0))]


def test_numbers_add_up_and_other_values_do_not() -> None:
    k = Keys()
    assert [k.take("a", 0, Add(id=i, key="n", amount=5))[0][1] for i in range(2)] == [
        Sum(id=0, number=5),
        Sum(id=1, number=10),
    ]
    # torch reads its counters with get, as text.
    assert k.take("a", 0, Get(id=2, key="n", wait_s=0)) == [("a", Value(id=2, value=b"10"))]
    k.take("a", 0, Put(id=3, key="t", value=b"text"))
    (answer,) = k.take("a", 0, Add(id=4, key="t", amount=1))
    assert isinstance(answer[1], Failed)
    for _ in range(3):
        (answer,) = k.take("a", 0, Add(id=5, key="big", amount=(1 << 62) - 1))
    assert isinstance(answer[1], Failed)


@pytest.mark.parametrize(
    ("before", "expected", "gives", "after"),
    [
        # As torch.distributed.Store.compare_set says.
        (None, b"", b"new", b"new"),
        (None, b"old", b"old", None),
        (b"old", b"old", b"new", b"new"),
        (b"other", b"old", b"other", b"other"),
    ],
)
def test_compare_and_set(before: bytes | None, expected: bytes, gives: bytes, after: bytes | None) -> None:
    k = Keys()
    if before is not None:
        k.take("a", 0, Put(id=1, key="x", value=before))
    asked = Exchange(id=2, key="x", expected=expected, desired=b"new")
    assert k.take("a", 0, asked) == [("a", Value(id=2, value=gives))]
    assert k.take("a", 0, Get(id=3, key="x", wait_s=0)) == [("a", Value(id=3, value=after))]


def test_who_waits_is_answered_when_the_last_key_is_set() -> None:
    k = Keys()
    assert k.take("w", 1, Missing(id=1, keys=("a", "b"), wait_s=60)) == []
    assert k.take("g", 2, Get(id=1, key="b", wait_s=60)) == []
    assert k.take("p", 0, Put(id=1, key="a", value=b"")) == [("p", Sum(id=1, number=0))]
    answers = dict(k.take("p", 0, Put(id=2, key="b", value=b"v")))
    assert answers == {"p": Sum(id=2, number=0), "w": Absent(id=1, keys=()), "g": Value(id=1, value=b"v")}
    assert k.deadline() is None


def test_the_time_ends_a_wait_and_says_what_is_missing() -> None:
    k = Keys()
    k.take("p", 0, Put(id=1, key="a", value=b""))
    assert k.take("w", 1, Missing(id=1, keys=("a", "b", "c"), wait_s=0.001)) == []
    end = k.deadline()
    assert end is not None
    while time.monotonic() <= end:
        pass
    assert k.over() == [("w", Absent(id=1, keys=("b", "c")))]
    assert k.over() == []
    # Nobody is answered a second time.
    assert k.take("p", 0, Put(id=2, key="b", value=b"")) == [("p", Sum(id=2, number=0))]


def test_who_is_gone_is_not_answered() -> None:
    k = Keys()
    k.take("w", 1, Get(id=1, key="a", wait_s=60))
    k.forget("w")
    assert k.take("p", 0, Put(id=1, key="a", value=b"")) == [("p", Sum(id=1, number=0))]
    assert k.deadline() is None


def test_a_rank_cannot_store_or_wait_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "RANK_BYTES", 1000)
    monkeypatch.setattr(keys, "RANK_KEYS", 10)
    monkeypatch.setattr(keys, "RANK_WAITS", 5)
    k = Keys()

    def put(key: str, size: int, rank: int = 0) -> Any:
        return k.take("a", rank, Put(id=1, key=key, value=bytes(size)))[0][1]

    assert isinstance(put("a", 600), Sum)
    assert isinstance(put("b", 600), Failed)
    # Another rank has room of its own; and what is removed or replaced is room again.
    assert isinstance(put("b", 600, rank=1), Sum)
    k.take("a", 0, Delete(id=2, key="a"))
    assert isinstance(put("c", 600), Sum)
    assert [type(put(f"n{i}", 0)) for i in range(10)] == [Sum] * 9 + [Failed]
    waits = [k.take("a", 0, Get(id=10 + i, key="never", wait_s=60)) for i in range(6)]
    assert waits[:5] == [[]] * 5
    assert isinstance(waits[5][0][1], Failed)
    # A number that is used already is refused too.
    assert isinstance(k.take("b", 0, Get(id=1, key="never", wait_s=60)), list)
    assert isinstance(k.take("b", 0, Get(id=1, key="never", wait_s=60))[0][1], Failed)


def test_a_thousand_that_are_missing_cost_what_one_costs() -> None:
    """One wait has one end, whatever it waits for: the clock is looked at once, not once for each key."""
    k = Keys()
    names = tuple(f"here/{r}" for r in range(1000))
    assert k.take("w", 0, Missing(id=1, keys=names, wait_s=0.001)) == []
    while not (got := k.over()):
        pass
    assert got == [("w", Absent(id=1, keys=names))]


def test_ended_waits_are_not_kept() -> None:
    k = Keys()
    for i in range(2000):
        k.take("w", 1, Get(id=i, key="x", wait_s=1000))
        k.take("p", 0, Put(id=i, key="x", value=b""))
        k.take("p", 0, Delete(id=i, key="x"))
    assert len(k._heap) < 200
