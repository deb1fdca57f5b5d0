"""Ranks of three hosts meet while a user of a fourth, who has no secret, does to rank 0 what he can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import topocheck
from tests.cluster.launching import CLUSTER, ROOT
from tests.cluster.launching import topocheck as command
from tests.cluster.test_local_ranks_attacked import NOBODY, inside
from tests.conftest import require_readable_by_others
from tests.support.netns import Hosts, hosts
from tests.support.shared_folder import shared_folder
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.service
PORT = 23456
SECRET = "TOPOCHECK_SECRET=correct horse battery staple"


def listens(made: Hosts, i: int) -> set[tuple[str, int]]:
    """What listens on a host: (address as /proc/net/tcp has it, port)."""
    code = "from tests.cluster.attacker import listening; print(sorted(listening()))"
    argv = inside(made, i, sys.executable, "-c", code)
    out = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
    return {tuple(x) for x in json.loads(out.stdout.replace("(", "[").replace(")", "]").replace("'", '"'))}


def flood(made: Hosts, i: int, folder: Path) -> subprocess.Popen[bytes]:
    script = folder / "flood.py"
    script.write_text(Path(__file__).with_name("flood.py").read_text())
    more = [made.address(1), str(PORT), str(folder), str(ROOT), topocheck.__version__]
    nobody = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", sys.executable, str(script)]
    return subprocess.Popen(inside(made, i, *nobody, *more), cwd="/", stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("secret", [SECRET, "X=1"], ids=["secret", "none"])
def test_the_ranks_meet_whatever_a_stranger_does(secret, tmp_path):
    """Without a secret the stranger may pass for rank 1, which is then not counted; rank 0 goes on either way."""
    require_readable_by_others()
    argv = ["env", secret, *command(*CLUSTER[:-1], "80")]
    with hosts([1000, 1000, 1000]) as made, shared_folder() as folder:
        size, made.n = made.n, 2
        running = [made.start(1, argv, PORT, tmp_path)]
        attack = None
        try:
            until(lambda: any(port == PORT for _, port in listens(made, 1)), "rank 0 does not listen")
            # 10.77.0.1 and nothing else: /proc/net/tcp has the bytes in the order of this machine.
            assert listens(made, 1) == {("01004D0A", PORT)}
            attack = flood(made, 3, folder)
            until(lambda: (folder / "calls").exists() and int((folder / "calls").read_text()) > 1000)
            running.append(made.start(2, argv, PORT, tmp_path))
            status = [p.wait(100) for p in running]
        finally:
            made.n = size
            (folder / "over").touch()
            for p in (*running, *([attack] if attack else [])):
                if p is not attack:
                    p.kill()
                p.wait(PATIENCE_S)
    err = (tmp_path / "err1").read_text() + (tmp_path / "err2").read_text()
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert status[0] == 0, err
    report = json.loads((tmp_path / "out1").read_text())
    if secret == SECRET:
        assert status[1] == 0, err
        assert report["unresponsive"] == {}
        assert [(p["rank"], p["node"]) for p in report["places"]] == [(0, "host1"), (1, "host2")]
        assert "not authenticated" not in err
    else:
        assert err.count("not authenticated") == 1
        assert report["places"][0]["node"] == "host1"


def test_a_rank_with_another_secret_is_named(tmp_path):
    with hosts([1000, 1000]) as made:
        argv = command(*CLUSTER[:-1], "40")
        running = [
            made.start(i, ["env", f"TOPOCHECK_SECRET={secret}", *argv], PORT, tmp_path)
            for i, secret in ((1, "correct horse battery staple"), (2, "wrong horse battery staple"))
        ]
        status = [p.wait(PATIENCE_S) for p in running]
    assert status == [0, 2]
    report = json.loads((tmp_path / "out1").read_text())
    (why,) = report["unresponsive"].values()
    assert "somebody at 10.77.0.2 called itself rank 1: it does not know the secret of the job" in why
    (line,) = (tmp_path / "err2").read_text().splitlines()
    assert line.startswith("topocheck: rank 1: rank 0 did not answer at 10.77.0.1:23456")
    assert "who listens there has another secret" in line
