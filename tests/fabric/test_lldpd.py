"""A real lldpd on a leaf and on a node, joined by a cable between network namespaces: each of its forms is read."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_program
from tests.support.waiting import PATIENCE_S, until
from topocheck.fabric.merge import merge
from topocheck.fabric.read import parse
from topocheck.model.fabric import DeviceKind

pytestmark = pytest.mark.service
PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
FORMS = ("plain", "json", "json0", "keyvalue")


def do(*argv: str) -> str:
    return subprocess.run(
        argv, capture_output=True, text=True, check=True, timeout=PATIENCE_S, env={"PATH": PATH}
    ).stdout


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Two hosts with their own names, `gpu01` (enp1s0) and `leaf-1` (swp7), each with an lldpd; its socket."""
    require_program("lldpd", "lldpcli", "ip", "unshare")
    if os.geteuid() != 0:
        pytest.skip("network namespaces are made as root")
    prefix = f"tckl{os.getpid()}"
    spaces = {"gpu01": f"{prefix}a", "leaf-1": f"{prefix}b"}
    ports = {"gpu01": "enp1s0", "leaf-1": "swp7"}
    running: list[subprocess.Popen[bytes]] = []
    # Its configuration is read by a child without privileges, which pytest's own folders let nobody through to.
    folder = Path(tempfile.mkdtemp(prefix="tckl"))
    folder.chmod(0o755)
    # lldpd's unprivileged half has this for its root (lldpd(8), --with-privsep-chroot).
    Path("/run/lldpd").mkdir(exist_ok=True)
    try:
        try:
            for space in spaces.values():
                do("ip", "netns", "add", space)
            do("ip", "-n", spaces["gpu01"], "link", "add", "enp1s0", "type", "veth", "peer", "name", "swp7",
               "netns", spaces["leaf-1"])  # fmt: skip
            for host, port in ports.items():
                do("ip", "-n", spaces[host], "link", "set", port, "up")
        except subprocess.CalledProcessError as e:
            pytest.skip(f"this machine gives no network namespaces: {e.stderr}")
        out = {}
        for host, port in ports.items():
            out[host] = folder / f"{host}.sock"
            program = f"hostname {host}; exec lldpd -d -u {out[host]} -I {port}"
            with (tmp_path / f"{host}.log").open("wb") as log:
                argv = ["ip", "netns", "exec", spaces[host], "unshare", "-u", "sh", "-c", program]
                running.append(
                    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": PATH})
                )
        yield out
    finally:
        for child in running:
            child.terminate()
            child.wait(timeout=PATIENCE_S)
        shutil.rmtree(folder, ignore_errors=True)
        for space in spaces.values():
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True, env={"PATH": PATH})


def test_what_lldpd_prints_is_read(sockets: dict[str, Path], tmp_path: Path) -> None:
    def shown(host: str, form: str) -> str:
        done = subprocess.run(
            ["lldpctl", "-u", str(sockets[host]), "-f", form],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S, env={"PATH": PATH},
        )  # fmt: skip
        return done.stdout

    for host, other in (("gpu01", "leaf-1"), ("leaf-1", "gpu01")):
        until(
            lambda host=host, other=other: f".chassis.name={other}" in shown(host, "keyvalue"),  # type: ignore[misc]
            f"{host} hears {other}",
            else_=lambda: "\n".join(p.read_text() for p in tmp_path.glob("*.log")),
        )
    for form in FORMS:
        fabric = merge([parse(shown(host, form).encode(), f"{host}.txt") for host in sockets])
        (link,) = fabric.links
        kinds = {d.name: d.kind for d in fabric.devices.values()}
        assert kinds == {"gpu01 enp1s0": DeviceKind.ADAPTER, "leaf-1": DeviceKind.SWITCH}, form
        assert {link.a.port, link.b.port} == {"1", "swp7"}, form
        # veth says 10000 Mb/s (drivers/net/veth.c), and lldpd the MAU type of it.
        assert link.rate_gbit_s == 10.0, form
        assert fabric.conflicts == fabric.problems == ()
