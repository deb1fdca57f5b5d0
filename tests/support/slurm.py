"""A real Slurm of a few nodes on this machine: munged, slurmctld and one slurmd per node, in a folder of the test.

Debian's build lets several slurmd run on one host (`slurmd -N name`). No systemd and no other service is needed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import require_program
from tests.support.waiting import PATIENCE_S, until

PROGRAMS = ("slurmctld", "slurmd", "munged", "munge", "scontrol", "srun")
_SBIN = {**os.environ, "PATH": os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"}


class Slurm:
    """A running cluster. `folder` holds its configuration, logs and state."""

    def __init__(self, folder: Path, nodes: tuple[str, ...]) -> None:
        self.folder = folder
        self.nodes = nodes
        self.conf = folder / "slurm.conf"
        self.environment = {**_SBIN, "SLURM_CONF": str(self.conf)}

    def run(self, *command: str, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands against this cluster."""
        return subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    @contextlib.contextmanager
    def allocation(self, *options: str) -> Iterator[str]:
        """Hold nodes and return the number of the job."""
        done = self.run("salloc", "--no-shell", *options)
        job = next((w for w in done.stderr.split() if w.isdigit()), "")
        assert job, done.stderr
        try:
            yield job
        finally:
            self.run("scancel", job)

    def node(self, name: str) -> dict[str, str]:
        """Return `State` and `Reason` of a node; the reason is empty where there is none."""
        line = self.run("scontrol", "show", "node", "-o", name).stdout.strip()
        _, _, reason = line.partition(" Reason=")
        state = next((w[6:] for w in line.split() if w.startswith("State=")), "")
        return {"State": state, "Reason": reason}

    def wait(self, name: str, what: str, *, drained: bool) -> dict[str, str]:
        """Wait until a node is drained, or idle and not drained; return it. Fails with the logs."""

        def reached() -> dict[str, str]:
            seen = self.node(name)
            done = "DRAIN" in seen["State"] if drained else seen["State"] == "IDLE"
            return seen if done else {}

        return until(reached, f"{name} {what}", else_=lambda: f"{self.node(name)}\n{self.logs()}", pause_s=0.2)

    def logs(self) -> str:
        """Return the ends of all logs."""
        ends = [f"== {p.name}\n" + p.read_text(errors="replace")[-3000:] for p in sorted(self.folder.glob("*.log"))]
        return "\n".join(ends)


@contextlib.contextmanager
def slurm_cluster(folder: Path, settings: Mapping[str, str], nodes: tuple[str, ...] = ("n1", "n2")) -> Iterator[Slurm]:
    """Start a cluster with `settings` added to its slurm.conf; skips where a program or root is absent."""
    require_program(*PROGRAMS)
    if os.geteuid() != 0:
        pytest.skip("slurmctld and slurmd are started as root")
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Slurm(folder, nodes)
    cluster.conf.write_text(_conf(folder, settings, nodes))
    started: list[Path] = []
    with munge_daemon(folder):
        try:
            started.append(folder / "slurmctld.pid")
            _start(cluster, "slurmctld", "-c")
            for name in nodes:
                started.append(folder / f"{name}.pid")
                _start(cluster, "slurmd", "-N", name)
            for name in nodes:
                until(functools.partial(_registered, cluster, name), f"{name} up", else_=cluster.logs, pause_s=0.2)
            yield cluster
        finally:
            cluster.run("scancel", "--state=RUNNING,PENDING", "--user=root")
            for pid_file in reversed(started):
                _stop(pid_file)
            for log in folder.glob("*.log"):
                log.chmod(0o644)


def _registered(cluster: Slurm, node: str) -> bool:
    state = cluster.node(node)["State"]
    return state not in ("", "UNKNOWN") and "*" not in state


def _start(cluster: Slurm, program: str, *args: str) -> None:
    path = shutil.which(program, path=_SBIN["PATH"])
    assert path
    done = subprocess.run(
        [path, *args],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_CONF": str(cluster.conf)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, cluster.logs()


def _stop(pid_file: Path) -> None:
    try:
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if _ended(pid):
            return
        time.sleep(0.1)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _ended(pid: int) -> bool:
    """Tell whether a process has ended, also where nobody has taken note of it (a zombie)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextlib.contextmanager
def munge_daemon(folder: Path) -> Iterator[None]:
    """Run a munged of the cluster's own: its key, socket and pid file are in `folder`, and no other one is touched."""
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    socket_path = folder / "munge.sock"
    files = {
        "key-file": key,
        "socket": socket_path,
        "pid-file": folder / "munge.pid",
        "log-file": folder / "munged.log",
        "seed-file": folder / "munge.seed",
    }
    options = [f"--{name}={path}" for name, path in files.items()]
    subprocess.run(["munged", "--force", *options], check=True, timeout=PATIENCE_S, env=_SBIN, capture_output=True)
    try:
        ask = ["munge", "-n", "-S", str(socket_path)]
        until(lambda: subprocess.run(ask, capture_output=True, check=False).returncode == 0, "an answer of munged")
        yield
    finally:
        _stop(folder / "munge.pid")


def free_ports(n: int) -> list[int]:
    """Return ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _conf(folder: Path, settings: Mapping[str, str], nodes: tuple[str, ...]) -> str:
    ports = free_ports(len(nodes) + 1)
    lines = {
        "ClusterName": "topocheck",
        "SlurmctldHost": "localhost",
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.sock",
        "SlurmctldPort": str(ports[0]),
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/%n.pid",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "ReturnToService": "2",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        **settings,
    }
    for path in ("state", "spool"):
        (folder / path).mkdir(exist_ok=True)
    text = "".join(f"{k}={v}\n" for k, v in lines.items())
    for name, port in zip(nodes, ports[1:], strict=True):
        text += f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} "
        text += "CPUs=1 RealMemory=500 State=UNKNOWN\n"
    return text + f"PartitionName=all Nodes={','.join(nodes)} Default=YES MaxTime=INFINITE State=UP\n"
