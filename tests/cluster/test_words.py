"""What a rank says that is garbage: told of that rank, in one line, and the others are not lost with it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tests_live.launch.callers import meeting, world
from topocheck.bandwidth.node_pairs import Half, NodeHello, Round, Task
from topocheck.placement.ranks import RankPlace, problems
from topocheck.tests_live.launch.exchange import RankWord, exchange, gather
from topocheck.tests_live.launch.rendezvous import Rendezvous
from topocheck.tests_live.launch.words import InvalidWordError, read
from topocheck.tests_live.launch.world import LaunchError, node_here
from topocheck.tests_live.nodes.coordinator import PairsOptions, _Coordinator
from topocheck.tests_live.training.job_layout import _Word, common_job

NAN, INF = float("nan"), float("inf")
KINDS = (RankWord, RankPlace, NodeHello, Half, Task, Round, _Word)
GARBAGE = [
    b"",
    b"\xc1",
    b"{}",
    b"\x91" * 5000,
    msgspec.msgpack.encode(None),
    msgspec.msgpack.encode([1, 2]),
    msgspec.msgpack.encode({"node": 1, "rank": -1, "cpus": "x", "gpus": 1 << 63}),
    msgspec.msgpack.encode({"node": "a\x1b[2Jb", "cpus": [], "gpus": 0}),
    msgspec.msgpack.encode({"node": "", "machine": b"", "own": b""}),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_garbage_is_named(kind: Any, garbage: bytes) -> None:
    with contextlib.suppress(InvalidWordError):
        read(garbage, kind, "rank 3")
        assert kind in (RankPlace, RankWord)  # all whose fields may all be absent, and the last of the garbage
    with pytest.raises(InvalidWordError, match=r"\Arank 3 sent something invalid: ") as e:
        read(GARBAGE[0], kind, "rank 3")
    assert "\n" not in str(e.value)
    assert str(e.value).isprintable()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        *((Half, {"task": "t", n: v}) for n in ("sent_gb_s", "latency_us", "spread") for v in (NAN, INF, -1.0, "1")),
        (Half, {"task": "t", "samples": [NAN]}),
        (Half, {"task": "t", "error": "x" * 5000}),
        (Task, {"id": "t", "a": "a", "b": "b", "rail": "-D"}),
        (Task, {"id": "t", "a": "a", "b": "b", "rail": "../x"}),
        (Task, {"id": "t", "a": "a", "b": "b", "seconds": 1e9}),
        (Round, {"number": 0, "limit_s": NAN}),
        (NodeHello, {"node": "a", "rank": 0, "host": "h", "address": "evil.example", "port": 1}),
        (NodeHello, {"node": "a", "rank": 0, "host": "h", "address": "-D", "port": 1}),
        (NodeHello, {"node": "a", "rank": 0, "host": "h", "address": "10.0.0.1", "port": 70000}),
        (NodeHello, {"node": "a", "rank": 0, "host": "h", "address": "10.0.0.1", "port": 1, "nics": ["--help"]}),
        (RankPlace, {"rank": 1 << 40}),
        (RankPlace, {"cpus": "0-1\n"}),
        (RankPlace, {"node": "n" * 1000}),
    ],
)  # fmt: skip
def test_numbers_names_and_addresses_that_cannot_be_are_refused(kind: Any, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidWordError):
        read(msgspec.msgpack.encode(fields), kind, "rank 3")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_word_or_named(text: bytes) -> None:
    for kind in KINDS:
        with contextlib.suppress(InvalidWordError):
            read(text, kind, "rank 3")


NUMBERS = st.none() | st.integers(0, 1 << 19)
CPUS = st.text("0123456789,-", max_size=20)


@given(
    st.lists(
        st.builds(
            RankPlace, launcher=st.text(max_size=5), rank=NUMBERS, world_size=NUMBERS, local_rank=NUMBERS,
            node=st.text(max_size=3), gpu=st.none() | st.text(max_size=3), gpu_label=st.text(max_size=5),
            gpu_node=st.none() | st.integers(-1, 9), cpus=CPUS, local_cpus=CPUS, node_cpus=CPUS,
            numa_nodes=st.lists(st.integers(-1, 9), max_size=3).map(tuple), gpus_on_node=st.integers(0, 9),
            nics=st.lists(st.text(max_size=5)).map(tuple), rails=st.lists(st.integers(-1, 9), max_size=3).map(tuple),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_any_places_of_ranks_can_be_judged(places: list[RankPlace]) -> None:
    sent = [read(msgspec.msgpack.encode(p), RankPlace, "rank 0") for p in places]
    assert sent == places
    problems(places)


def together(ranks: list[Rendezvous], work: Any) -> list[Any]:
    """Do something on all ranks at once; returns what came of it on each, errors as they are."""
    out: list[Any] = [None] * len(ranks)

    def run(i: int) -> None:
        try:
            out[i] = work(ranks[i])
        except LaunchError as e:
            out[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(ranks))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    return out


@pytest.mark.parametrize("garbage", GARBAGE[:6], ids=range(6))
def test_a_rank_whose_word_is_garbage_is_silent_and_the_rest_is_used(garbage: bytes) -> None:
    def word(m: Rendezvous) -> Any:
        if m.world.rank == 1:
            m.put("node-of/1", b"\xff\x1b[2J")
            m.put("word/1", garbage)
            return None
        return exchange(m, lambda node: b"machine", lambda: b"own", 30)

    with meeting(3) as ranks:
        heard = together(ranks, word)[0]
    assert sorted(heard.words) == [0, 2]
    (why,) = heard.unresponsive.values()
    assert list(heard.unresponsive) == ["rank 1"]
    assert why.startswith(f"rank 1 on node {node_here(world())} sent something invalid: ")
    assert why.isprintable()


def test_a_job_of_garbage_ends_all_ranks_with_one_line() -> None:
    def job(m: Rendezvous) -> Any:
        if m.world.rank == 1:
            m.put("job/word/1", msgspec.msgpack.encode({"node": "a", "cpus": [0], "gpus": -7}))
            return None
        return common_job(m, (), 30)

    with meeting(3) as ranks:
        out = together(ranks, job)
    assert str(out[0]) == str(out[2])
    assert str(out[0]).startswith(f"rank 1 on node {node_here(world())} sent something invalid: ")


def test_ranks_that_never_come_are_named_after_one_wait() -> None:
    with meeting(2) as ranks:
        ranks[1].put("word/1", b"one")
        zero = Rendezvous(
            msgspec.structs.replace(ranks[0].world, size=1000), ranks[0].ticket, ranks[0]._connection, ranks[0]._place
        )
        got = gather(zero, b"zero", 0.5)
    assert got is not None
    assert got.payloads == {0: b"zero", 1: b"one"}
    assert list(got.missing) == list(range(2, 1000))
    assert got.missing[999] == "rank 999 sent nothing within 0 s"


def hello(rank: int, node: str, **more: Any) -> bytes:
    told = {"node": node, "rank": rank, "host": "h", "address": "127.0.0.1", "port": 1} | more
    return msgspec.msgpack.encode(told)


def test_a_node_that_answers_with_garbage_is_silent_and_the_pairs_of_the_others_are_kept() -> None:
    said: list[str] = []
    with meeting(4) as ranks:
        ranks[0].put("hello/0", hello(0, "n0"))
        ranks[0].put("hello/1", hello(1, "n1"))
        ranks[0].put("hello/2", hello(1, "n1"))  # says that it is another
        ranks[0].put("hello/3", hello(3, "n3", nics=["-x"]))
        # The answers of one round, before it is asked for.
        half = {"task": "0:n0:n1:tcp", "received_gb_s": 1.0, "latency_us": 9.0}
        ranks[0].put("half/0/n0", msgspec.msgpack.encode([half]))
        ranks[0].put("half/0/n1", msgspec.msgpack.encode([half | {"received_gb_s": NAN}]))
        report = _Coordinator(
            ranks[0], PairsOptions(transports=("tcp",), join_s=5, all_at_once=False), said.append
        ).run()
    assert sorted(report.unresponsive) == ["n1", "rank 2", "rank 3"]
    assert "n1 sent something invalid" in report.unresponsive["n1"]
    assert "says it is rank 1" in report.unresponsive["rank 2"]
    (pair,) = report.pairs
    assert pair.error == "n1 did not answer"
    assert pair.b_to_a_gb_s == 1.0
