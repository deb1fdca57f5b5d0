"""A real munge between ranks: its daemon hands the key of a job to this user's processes and to nobody else's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_program
from tests.support.shared_folder import shared_folder
from tests.support.slurm import munge_daemon
from tests.tests_live.launch.callers import Caller, meeting
from topocheck.tests_live.launch import frames, munge
from topocheck.tests_live.launch.frames import digest

pytestmark = pytest.mark.service
NOBODY = "65534"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Path]:
    require_program("munged", "munge", "unmunge", "setpriv")
    if os.geteuid() != 0:
        pytest.skip("munged is started as root")
    with shared_folder() as folder:
        folder.chmod(0o755)
        with munge_daemon(folder):
            conf = folder / "slurm.conf"
            conf.write_text(f"AuthInfo=socket={folder}/munge.sock\n")
            conf.chmod(0o644)
            yield conf


@pytest.fixture(autouse=True)
def in_a_job(daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(daemon))
    monkeypatch.setenv("SLURM_JOB_ID", "7")


def as_nobody(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", *argv],
        input=text, capture_output=True, text=True, timeout=60, check=False, cwd="/",
    )  # fmt: skip


def credential(daemon: Path, payload: bytes, *options: str) -> str:
    """A credential that the user nobody made."""
    argv = [
        sys.executable,
        "-c",
        "import subprocess, sys; subprocess.run(sys.argv[2:], input=bytes.fromhex(sys.argv[1]))",
    ]
    done = as_nobody(*argv, payload.hex(), "munge", "-S", str(daemon.parent / "munge.sock"), *options)
    assert done.stdout.startswith("MUNGE:"), done.stderr
    return done.stdout.strip()


def test_the_ranks_get_one_key_that_nothing_in_their_environment_tells() -> None:
    with meeting(3, secret=None) as ranks:
        assert {r.ticket.secret.method for r in ranks} == {"munge"}
        assert all(r.authenticated for r in ranks)
        assert len({r.ticket.secret.key for r in ranks}) == 1
        ranks[2].put("k", b"v")
        assert ranks[0].get("k", 30) == b"v"
        first = ranks[0].ticket.secret.key
    with meeting(2, secret=None) as ranks:
        assert ranks[0].ticket.secret.key != first


def test_a_credential_is_of_this_user_and_is_taken_once() -> None:
    made = munge.encode(b"payload")
    assert munge.decode(made) == b"payload"
    with pytest.raises(munge.MungeError, match="Replayed"):
        munge.decode(made)
    for wrong in ("", "MUNGE:", "MUNGE:AAAA:", made[:-10] + ":"):
        with pytest.raises(munge.MungeError):
            munge.decode(wrong)


def ask(caller: Caller, credential: str) -> frames.FromPlace:
    caller.say(frames.KeyRequest(credential=credential))
    return frames.from_place(caller.hear())


def test_another_user_gets_no_key(daemon: Path) -> None:
    with meeting(2, secret=None) as ranks:
        for options, why in ((("-u", "0"), "is of uid 65534"), (("-u", NOBODY), "Unauthorized")):
            caller = Caller(ranks[0].where)
            assert caller.greet().method == "munge"
            said = ask(caller, credential(daemon, digest(b"munge caller", caller.hello, caller.challenge), *options))
            caller.close()
            assert isinstance(said, frames.Refused)
            assert (said.reason, why in said.value) == ("munge", True), said
        ranks[1].put("k", b"v")
        assert ranks[0].get("k", 30) == b"v"


def test_what_another_rank_asked_with_is_no_good_elsewhere() -> None:
    with meeting(2, secret=None) as ranks:
        first, second = Caller(ranks[0].where), Caller(ranks[0].where)
        first.greet()
        second.greet()
        asked = munge.encode(digest(b"munge caller", first.hello, first.challenge))
        # Heard on its way and sent first: it is bound to the other connection.
        said = ask(second, asked)
        assert isinstance(said, frames.Refused)
        assert "not of this connection" in said.value
        # Sent a second time: munge takes none twice.
        said = ask(first, asked)
        assert isinstance(said, frames.Refused)
        assert "Replayed" in said.value
        for c in (first, second):
            c.close()


def test_nobody_else_reads_the_key_on_its_way(daemon: Path) -> None:
    with meeting(1, secret=None) as ranks:
        caller = Caller(ranks[0].where)
        caller.greet()
        said = ask(caller, munge.encode(digest(b"munge caller", caller.hello, caller.challenge)))
        caller.close()
        assert isinstance(said, frames.KeyGrant)
        heard = as_nobody("unmunge", "-S", str(daemon.parent / "munge.sock"), text=said.credential)
        assert "Unauthorized" in heard.stdout + heard.stderr
        got = munge.decode(said.credential)
        assert got[32:] == ranks[0].ticket.secret.key
        assert ranks[0].ticket.secret.key.hex() not in json.dumps(heard.stdout)


def test_a_second_request_on_one_connection_is_not_answered() -> None:
    with meeting(1, secret=None) as ranks:
        caller = Caller(ranks[0].where)
        caller.greet()
        proper = digest(b"munge caller", caller.hello, caller.challenge)
        assert isinstance(ask(caller, munge.encode(proper)), frames.KeyGrant)
        caller.say(frames.KeyRequest(credential=munge.encode(proper)))
        assert caller.closed()
        caller.close()


def test_without_its_daemon_there_is_no_munge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"AuthInfo=socket={tmp_path}/nothing.sock\n")
    conf.chmod(0o600)
    monkeypatch.setenv("SLURM_CONF", str(conf))
    assert not munge.available()
    with meeting(2, secret=None) as ranks:
        assert not ranks[0].authenticated
