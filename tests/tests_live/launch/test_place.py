"""Callers that do not belong to the job: refused, dropped and bounded, while its ranks go on."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.slurm import free_ports
from tests.support.waiting import PATIENCE_S, until
from tests.tests_live.launch.callers import SECRET, Caller, environment, hello, meeting, world
from topocheck.tests_live.launch import frames, place
from topocheck.tests_live.launch.exchange import gather
from topocheck.tests_live.launch.frames import derived
from topocheck.tests_live.launch.rank_status import RollCall
from topocheck.tests_live.launch.refusals import refusal_text
from topocheck.tests_live.launch.rendezvous import Rendezvous, join, rejoin, warn
from topocheck.tests_live.launch.secret import find_secret
from topocheck.tests_live.launch.world import LaunchError, RankLostError

ROOT = Path(__file__).parents[3]


def works(ranks: list[Rendezvous]) -> bool:
    """The ranks still hear each other."""
    key = os.urandom(8).hex()
    ranks[-1].put(key, b"still here")
    return ranks[0].get(key, PATIENCE_S) == b"still here"


def key() -> bytes:
    with environment(SECRET):
        return find_secret(world()).key


def test_the_ranks_of_a_job_meet_and_know_it() -> None:
    with meeting(3) as ranks:
        assert all(r.authenticated for r in ranks)
        assert len({r.key_of("pairs") for r in ranks}) == 1
        assert ranks[0].key_of("pairs") != ranks[0].key_of("other")
        assert [r.claim("first") for r in ranks].count(True) == 1
        ranks[2].put("big", b"x" * 3_000_000)
        assert ranks[1].get("big", PATIENCE_S) == b"x" * 3_000_000
        assert ranks[1].missing(["big", "absent"]) == ["absent"]
        assert SECRET not in repr(ranks[0].ticket)
        assert repr(ranks[0].ticket.secret.key) not in repr(ranks[0].ticket)


def test_another_process_of_a_rank_joins_by_its_ticket() -> None:
    with meeting(2) as ranks:
        ticket = msgspec.json.decode(msgspec.json.encode(ranks[1].ticket), type=type(ranks[1].ticket))
        with environment(None):  # the secret is in the ticket
            child = rejoin(ranks[1].world, ticket, PATIENCE_S)
        child.put("child", b"1")
        child.close()
        assert ranks[0].get("child", PATIENCE_S) == b"1"


def test_who_does_not_know_the_secret_is_refused() -> None:
    with meeting(2) as ranks:
        caller = Caller(ranks[0].where)
        assert caller.greet().method == "secret"
        _, said = caller.prove(derived(b"guess", b"job", b""))
        assert frames.from_place(said) == frames.Refused(reason="secret", node=ranks[0].node)
        caller.socket.shutdown(socket.SHUT_WR)
        assert caller.closed()
        caller.close()
        assert works(ranks)
        assert "does not know the secret" in ranks[0].refused(1)


def test_a_stranger_whose_text_is_not_utf_8_ends_nothing() -> None:
    with meeting(2) as ranks:
        caller = Caller(ranks[0].where)
        caller.socket.sendall(frames.frame(caller.hello.replace(b"elsewhere", b"\xff" * 9)))
        assert caller.closed()
        caller.close()
        assert works(ranks)


def test_a_proof_heard_elsewhere_is_no_proof() -> None:
    """What a rank said on its own connection is said again on another: the challenge is new each time."""
    with meeting(2) as ranks:
        first, second = Caller(ranks[0].where), Caller(ranks[0].where)
        first.join(key())
        second.hello = first.hello
        second.greet()
        second.say(frames.Proof(tag=frames.Handshake(key(), first.hello, first.challenge).proof))
        said = frames.from_place(second.hear())
        assert isinstance(said, frames.Refused)
        assert said.reason == "secret"
        for c in (first, second):
            c.close()
        assert works(ranks)


def test_a_frame_that_is_sent_again_ends_that_connection_only() -> None:
    with meeting(2) as ranks:
        caller = Caller(ranks[0].where, rank=1, instance=ranks[1].ticket.hello.instance)
        seal = caller.join(key())
        put = seal.close(frames.encode(frames.Put(id=1, key="k", value=b"first")))
        caller.socket.sendall(put)
        assert frames.reply(seal.open(caller.hear())) == frames.Sum(id=1, number=0)
        caller.socket.sendall(put)
        assert caller.closed()
        caller.close()
        assert ranks[0].get("k") == b"first"
        assert "rank 1 sent something invalid" in ranks[0].refused(1)
        assert works(ranks)


def test_a_rank_of_another_job_is_passed_on() -> None:
    with meeting(2, job="slurm/7.0") as ranks:
        caller = Caller(ranks[0].where, job="slurm/8.0")
        caller.socket.sendall(frames.frame(caller.hello))
        said = frames.from_place(caller.hear())
        assert isinstance(said, frames.Refused)
        assert said.reason == "job"
        caller.close()
        assert works(ranks)


def test_two_jobs_with_the_same_ports_meet_apart() -> None:
    """Both try the same ports in the same order; each rank finds its own rank 0."""
    ports, found = tuple(free_ports(2)), {}

    def be(job: str, rank: int) -> None:
        with join(world(rank, ports=ports, job=job), "test", PATIENCE_S) as m:
            m.put(str(rank), job.encode())
            found[job, rank] = m.get(str(1 - rank), 60)

    with environment(SECRET):
        threads = [threading.Thread(target=be, args=(j, r)) for r in (1, 0) for j in ("a", "b")]
        for t in threads:
            t.start()
        for t in threads:
            t.join(90)
    assert found == {(j, r): j.encode() for r in (0, 1) for j in ("a", "b")}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"version": "9.9.9"}, "runs topocheck 9.9.9, rank 0 on node {} {}: install one version on all nodes"),
        ({"protocol": 77}, "runs topocheck {1} (protocol 77), rank 0 on node {0} {1}: install one version"),
        ({"command": "scale"}, "runs `topocheck scale`, rank 0 on node {} `topocheck test`: start one command"),
        ({"size": 5}, "is one of 5 ranks, rank 0 on node {} one of 2: these are two jobs that share a port"),
    ],
)
def test_a_rank_that_does_not_fit_is_told_why_and_so_is_rank_0(fields: dict[str, object], told: str) -> None:
    with meeting(2) as ranks:
        node, version = ranks[0].node, ranks[0].ticket.hello.version
        other = {"rank": 1, "instance": os.urandom(32), "node": "n7"} | fields
        told_by = msgspec.structs.replace(ranks[1].ticket.hello, **other)
        with pytest.raises(LaunchError) as e:
            rejoin(world(1), msgspec.structs.replace(ranks[1].ticket, hello=told_by), PATIENCE_S)
        assert str(e.value).startswith("rank 1 on node n7 ")
        assert told.format(node, version) in str(e.value)
        assert ranks[0].refused(1) == str(e.value)
        assert works(ranks)


def test_a_rank_that_is_there_already_is_refused() -> None:
    with meeting(2) as ranks:
        twice = msgspec.structs.replace(ranks[1].ticket.hello, instance=os.urandom(32), node="n7")
        with pytest.raises(
            LaunchError, match=f"rank 1 on node n7: a process on node {ranks[1].node} is rank 1 of this"
        ):
            rejoin(world(1), msgspec.structs.replace(ranks[1].ticket, hello=twice), PATIENCE_S)
        assert works(ranks)


GARBAGE = [
    b"",
    b"\0" * 64,
    b"GET / HTTP/1.0\r\n\r\n",
    bytes.fromhex("16030100c8010000c40303") + bytes(200),  # a client of TLS
    b"\x3c\x85\xf7\xce" + bytes(60),  # a client of torch's TCPStore: its magic number
    (1 << 30).to_bytes(4, "big"),
    b"\xff" * 5000,
    frames.frame(b"\xc1"),  # a byte that MessagePack never uses
    frames.frame(msgspec.msgpack.encode({"type": "Hello"})),
    frames.frame(msgspec.msgpack.encode({"type": "Put", "id": 1, "key": "k", "value": b"v"})),
    frames.frame(msgspec.msgpack.encode({"type": "Proof", "tag": bytes(32)})),
    frames.frame(b"\x91" * 4000),  # lists in lists
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_ends_that_connection_only(garbage: bytes) -> None:
    with meeting(2) as ranks:
        caller = Caller(ranks[0].where)
        with contextlib.suppress(OSError):
            caller.socket.sendall(garbage)
            caller.socket.shutdown(socket.SHUT_WR)
        assert caller.closed()
        caller.close()
        assert works(ranks)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=200), max_size=4), st.booleans())
def test_any_bytes_from_strangers_and_from_ranks_leave_the_others_alone(
    shared: list[Rendezvous], pieces: list[bytes], belongs: bool
) -> None:
    caller = Caller(shared[0].where, rank=1, instance=shared[1].ticket.hello.instance)
    with contextlib.suppress(OSError):
        seal = caller.join(key()) if belongs else None
        for piece in pieces:
            caller.socket.sendall(seal.close(piece) if seal is not None else frames.frame(piece))
        caller.socket.shutdown(socket.SHUT_WR)
        while caller.hear():
            pass
    caller.close()
    assert works(shared)


@pytest.fixture(scope="module")
def shared() -> Any:
    with meeting(2) as ranks:
        yield ranks


def test_strangers_that_say_nothing_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "STRANGER_S", 0.5)
    with meeting(2) as ranks:
        mute, slow = Caller(ranks[0].where), Caller(ranks[0].where)
        slow.socket.sendall(frames.frame(slow.hello)[:7])
        for caller in (mute, slow):
            assert caller.closed()  # within 30 s, the time-out of its socket
            caller.close()
        assert works(ranks)
        # A rank may be silent as long as it likes.
        until(lambda: not ranks[0]._place._strangers)  # type: ignore[union-attr]
        assert works(ranks)


def test_a_thousand_strangers_keep_no_rank_out() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"no more than {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096) if soft != resource.RLIM_INFINITY else soft, hard))
    strangers: list[socket.socket] = []
    port = free_ports(1)[0]
    try:
        with environment(SECRET), join(world(0, ports=(port,)), "test", PATIENCE_S) as zero:
            for i in range(1000):
                s = socket.create_connection(("127.0.0.1", port), timeout=60)
                strangers.append(s)
                if i % 3 == 0:
                    with contextlib.suppress(OSError):
                        s.sendall(b"\0\0\4")
            held = zero._place
            assert held is not None
            with join(world(1, ports=(port,)), "test", PATIENCE_S) as one:
                assert works([zero, one])
                until(lambda: len(held._strangers) <= place.STRANGERS + 4)
                assert len(held._callers) <= place.STRANGERS + 8
            for s in strangers:
                s.close()
    finally:
        for s in strangers:
            s.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def serve_as_a_stranger(port: int, answers: Any) -> threading.Thread:
    """Listen where rank 0 would, and answer each caller by `answers(its Hello)`, a list of frames."""
    listening = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        with listening:
            connection, _ = listening.accept()
        with connection:
            splitter, bodies = frames.Splitter(), []
            for said in answers:
                while not bodies:
                    data = connection.recv(1 << 16)
                    if not data:
                        return
                    bodies += splitter.feed(data)
                bodies.pop(0)
                connection.sendall(frames.frame(frames.encode(said)))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def challenge(method: str) -> frames.Challenge:
    return frames.Challenge(method=method, protocol=1, version="1", node="evil", nonce=bytes(32))


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([challenge("none"), frames.Welcome(tag=bytes(32))], "knows its ranks by nothing (no secret), this rank by a"),
        ([challenge("munge")], "knows its ranks by munge, this rank by a secret"),
        ([challenge("secret"), frames.Welcome(tag=bytes(32))], "does not know the secret of the job"),
        ([challenge("secret"), frames.Refused(reason="secret")], "has another secret"),
        ([frames.Refused(reason="job")], "rank 0 of another job"),
        ([frames.Refused(reason="version", value="x" * 200, node="evil")], ""),
        ([frames.Welcome(tag=bytes(32))], "no topocheck"),
        ([frames.KeyGrant(credential="MUNGE:x")], "no topocheck"),
    ],
)
def test_who_listens_there_and_does_not_know_the_secret_gets_no_rank(answers: list[Any], why: str) -> None:
    """Nothing that a stranger says makes a rank talk to it, or give up before its time."""
    port = free_ports(1)[0]
    thread = serve_as_a_stranger(port, answers)
    with environment(SECRET), pytest.raises(LaunchError, match="rank 1: rank 0 did not answer") as e:
        join(world(1, ports=(port,)), "test", 1.0)
    assert why in str(e.value) or "refused" in str(e.value), e.value
    thread.join(PATIENCE_S)


def test_ranks_without_a_secret_meet_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    with meeting(2, secret=None) as ranks:
        assert not ranks[0].authenticated
        assert works(ranks)
        for r in ranks:
            warn(r)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("topocheck: the ranks of this job are not authenticated: ")
    assert "TOPOCHECK_SECRET" in line


def test_a_rank_with_a_secret_does_not_join_one_without() -> None:
    port = free_ports(1)[0]
    with environment(None):
        zero = join(world(0, ports=(port,)), "test", PATIENCE_S)
    with environment(SECRET), pytest.raises(LaunchError, match="knows its ranks by nothing"):
        join(world(1, ports=(port,)), "test", 1)
    zero.close(0)


def test_when_rank_0_is_gone_the_others_are_told_at_once() -> None:
    with meeting(2) as ranks:
        waited: list[str] = []

        def wait() -> None:
            try:
                ranks[1].get("never", 600)
            except LaunchError as e:
                waited.append(str(e))

        thread = threading.Thread(target=wait)
        thread.start()
        ranks[0].close(0)
        thread.join(60)
        assert not thread.is_alive()
        assert waited[0].startswith(f"rank 1: lost rank 0 at {ranks[1].where} (")
        with pytest.raises(LaunchError, match="lost rank 0"):
            ranks[1].put("k", b"")


def test_nothing_of_torch_is_needed_to_meet() -> None:
    code = (
        "import sys\n"
        "from topocheck.tests_live.launch import exchange, rendezvous, world\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'numpy', 'mpi4py', 'pickle', 'asyncio'}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == ""


@pytest.mark.parametrize("reason", ["version", "command", "size", "rank", "job", "secret", "munge", "something else"])
def test_every_refusal_has_its_words(reason: str) -> None:
    text = refusal_text(frames.Refused(reason=reason, value="v", node="n"), hello())
    assert text
    assert "\n" not in text


def test_of_two_processes_that_say_they_are_one_rank_neither_is_taken() -> None:
    """Two jobs without a secret on one address and port: whose rank it is, nobody can tell."""
    with meeting(2) as ranks:
        ranks[1].put("word/1", b"who knows of which job")
        with environment(SECRET), pytest.raises(LaunchError, match="is rank 1 of this job already"):
            join(world(1, 2, ports=ranks[0].ticket.ports), "test", PATIENCE_S)
        got = gather(ranks[0], b"mine", PATIENCE_S)
        assert got is not None
        node = ranks[1].node
        said = f"two processes on node {node} say that they are rank 1 of this job"
        assert list(got.payloads) == [0]
        assert got.missing[1].startswith(said)
        assert got.refused == got.missing
        with pytest.raises(RankLostError, match=said):
            RollCall(ranks[0]).wait_for_all(0.0)
