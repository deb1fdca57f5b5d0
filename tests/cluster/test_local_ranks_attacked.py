"""An ordinary user, on the same host and on another one, while ranks are started and meet here."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.launching import BW, SCALE, environment, topocheck
from tests.conftest import require_readable_by_others
from tests.support.netns import Hosts, hosts
from tests.support.shared_folder import shared_folder

pytestmark = [pytest.mark.service, pytest.mark.torch]

NOBODY = "65534"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, ::ffff:127.0.0.1 and ::1 as /proc/net/tcp and tcp6 write them."""


def inside(made: Hosts, i: int, *argv: str) -> list[str]:
    ip = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") or "ip"
    return [ip, "netns", "exec", made.space(i), *argv]


def start_attackers(made: Hosts, folder: Path) -> list[subprocess.Popen[bytes]]:
    script = Path(__file__).with_name("attacker.py")
    copy = folder / "attacker.py"
    copy.write_text(script.read_text())
    as_nobody = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", sys.executable, str(copy)]
    started = []
    for i, more in ((1, []), (2, [made.address(1)])):
        argv = inside(made, i, *as_nobody, str(folder), *more)
        with (folder / f"err{i}").open("wb") as err:
            started.append(subprocess.Popen(argv, cwd="/", stdin=subprocess.DEVNULL, stderr=err))
    end = time.monotonic() + 120
    while not ((folder / "ready").exists() and (folder / f"ready{made.address(1)}").exists()):
        assert time.monotonic() < end, [p.read_text() for p in folder.glob("err*")]
        time.sleep(0.05)
    return started


def test_nobody_reaches_the_ranks_of_this_node_nor_runs_code():
    require_readable_by_others()
    with hosts([1000, 1000]) as made, shared_folder() as folder:
        started = start_attackers(made, folder)
        try:
            done = [
                subprocess.run(
                    inside(made, 1, *topocheck(*command)),
                    env=environment(), cwd="/", capture_output=True, text=True, timeout=200, check=False,
                )
                for command in (BW, (*SCALE, "none"))
            ]  # fmt: skip
        finally:
            (folder / "over").touch()
            for p in started:
                p.wait(60)
        assert not (folder / "ran").exists(), (folder / "ran").read_text()
        seen = {tuple(line.split()[:2]) for line in (folder / "log").read_text().splitlines()}
        # Gloo's own sockets for data, on the loopback interface.
        assert seen, done
        assert {address for address, _ in seen} <= LOOPBACK
        assert "stored" not in (folder / "log").read_text()
        # From the other host every one of these ports is closed.
        elsewhere = (folder / f"log{made.address(1)}").read_text().splitlines()
        assert elsewhere
        assert {line.split()[2] for line in elsewhere} == {"ConnectionRefusedError"}
        assert [d.returncode for d in done] == [0, 0], [d.stderr for d in done]
