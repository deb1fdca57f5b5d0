"""Hosts in network namespaces: each with its own address, joined by a bridge, every link shaped both ways by tbf.

The bridge has a namespace of its own, so nothing of the machine's own network is touched or left behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_program
from tests.support.waiting import PATIENCE_S, until

_PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
SUBNET = "10.77.0"


def _do(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env={"PATH": _PATH})
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")


class Hosts:
    """Hosts 1..n; `name(i)` is host i's name, as topocheck shows it."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.prefix = f"tck{os.getpid()}"
        self.switch = f"{self.prefix}sw"

    def space(self, i: int) -> str:
        return f"{self.prefix}h{i}"

    def name(self, i: int) -> str:
        return f"host{i}"

    def address(self, i: int) -> str:
        return f"{SUBNET}.{i}"

    def up(self, mbit_s: list[int], leaves: list[int] | None = None, spine_mbit_s: int = 0) -> None:
        """Bring hosts up; `leaves` gives each its bridge, 0 or 1, joined by a link of `spine_mbit_s`."""
        on = leaves or [0] * self.n
        _do("ip", "netns", "add", self.switch)
        for leaf in sorted(set(on)):
            _do("ip", "-n", self.switch, "link", "add", f"br{leaf}", "type", "bridge")
            _do("ip", "-n", self.switch, "link", "set", f"br{leaf}", "up")
        if len(set(on)) > 1:
            _do("ip", "-n", self.switch, "link", "add", "up0", "type", "veth", "peer", "name", "up1")
            for leaf in (0, 1):
                _do("ip", "-n", self.switch, "link", "set", f"up{leaf}", "master", f"br{leaf}", "up")
                self.limit(self.switch, f"up{leaf}", spine_mbit_s)
        for i, rate in enumerate(mbit_s, 1):
            space = self.space(i)
            _do("ip", "netns", "add", space)
            # Shown as /etc/hosts to what runs there (ip-netns(8)): without a name server, c10d's asking for names of
            # addresses would cost seconds.
            names = Path("/etc/netns", space)
            names.mkdir(parents=True, exist_ok=True)
            lines = [f"{self.address(k)} {self.name(k)}" for k in range(1, self.n + 1)]
            (names / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
            _do("ip", "-n", self.switch, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _do("ip", "-n", self.switch, "link", "set", f"p{i}", "master", f"br{on[i - 1]}", "up")
            _do("ip", "-n", space, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            _do("ip", "-n", space, "link", "set", "lo", "up")
            _do("ip", "-n", space, "link", "set", "eth0", "up")
            self.shape(i, rate)

    def shape(self, i: int, mbit_s: int) -> None:
        """Limit what host i sends and receives."""
        for space, device in ((self.space(i), "eth0"), (self.switch, f"p{i}")):
            self.limit(space, device, mbit_s)

    @staticmethod
    def limit(space: str, device: str, mbit_s: int) -> None:
        """Limit what a device of a namespace sends."""
        tbf = ["tbf", "rate", f"{mbit_s}mbit", "burst", "64kb", "latency", "50ms"]
        _do("tc", "-n", space, "qdisc", "replace", "dev", device, "root", *tbf)

    def cut(self, i: int) -> None:
        _do("ip", "-n", self.space(i), "link", "set", "eth0", "down")

    def down(self) -> None:
        for space in [*(self.space(i) for i in range(1, self.n + 1)), self.switch]:
            with contextlib.suppress(RuntimeError):
                _do("ip", "netns", "del", space)
            shutil.rmtree(Path("/etc/netns", space), ignore_errors=True)

    def start(self, i: int, argv: list[str], port: int, folder: Path) -> subprocess.Popen[bytes]:
        """Start a program on host i as one rank of n; its output goes to files in the folder."""
        env = {
            "PATH": _PATH,
            "HOME": str(folder),
            # There is no name server in the namespaces; torch asks for names all the same.
            "RES_OPTIONS": "attempts:1 timeout:1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "RANK": str(i - 1),
            "WORLD_SIZE": str(self.n),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": self.address(1),
            "MASTER_PORT": str(port),
            "TOPOCHECK_NODE": self.name(i),
        }
        ip = shutil.which("ip", path=_PATH) or "ip"
        with (folder / f"out{i}").open("wb") as out, (folder / f"err{i}").open("wb") as err:
            return subprocess.Popen(
                [ip, "netns", "exec", self.space(i), *argv], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env
            )


@contextlib.contextmanager
def hosts(mbit_s: list[int], leaves: list[int] | None = None, spine_mbit_s: int = 0) -> Iterator[Hosts]:
    """Bring hosts up with these rates, on one bridge or two; skips where namespaces or shaping are not to be had."""
    require_program("ip", "tc")
    if os.geteuid() != 0:
        pytest.skip("network namespaces are made as root")
    made = Hosts(len(mbit_s))
    try:
        try:
            made.up(mbit_s, leaves, spine_mbit_s)
        except RuntimeError as e:
            if os.environ.get("TOPOCHECK_REQUIRE_SERVICES") == "1":
                raise
            pytest.skip(f"this machine gives no shaped namespaces: {e}")
        yield made
    finally:
        made.down()


PAIRS = ("-c", "from topocheck.cli.main import main; main()", "network", "bw", "--format", "json", "--seconds")
"""Python's arguments for a tournament over TCP that rank 0 prints as JSON; the seconds follow."""


def tournament(
    made: Hosts, folder: Path, *, seconds: float = 0.5, cut: int = 0, fabric: Path | None = None, deadline_s: int = 0
) -> tuple[int, str, str]:
    """Run one tournament over all hosts; returns rank 0's exit status, output and messages.

    `cut` is a host whose link is taken down once the second round has begun; `fabric` a dump given to all ranks;
    `deadline_s` how long ranks wait for each other, where that is not the program's own.
    """
    argv = [sys.executable, *PAIRS, str(seconds), *(["--fabric", str(fabric)] if fabric else [])]
    argv += ["--deadline", str(deadline_s)] if deadline_s else []
    running = [made.start(i, argv, 23456, folder) for i in range(1, made.n + 1)]
    try:
        if cut:
            until(lambda: "round 1" in (folder / "err1").read_text() or running[0].poll() is not None, "round 1")
            made.cut(cut)
        status = running[0].wait(PATIENCE_S)
        if not cut:
            for p in running[1:]:
                p.wait(PATIENCE_S)
    finally:
        for p in running:
            p.kill()
            p.wait()
    return status, (folder / "out1").read_text(), (folder / "err1").read_text()
