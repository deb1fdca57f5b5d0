"""The Slurm scripts in a real Slurm of two nodes, each given a recorded machine of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stubs.build import build_library
from tests.support.slurm import Slurm, slurm_cluster
from tests.support.snapshots import write_snapshot
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.service

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "integrations" / "slurm"
WIDTH = "GPU3 PCIe x8 of x16: "

# Stands in for /usr/local/bin/topocheck: the mode file of this node and script says which machine it is.
WRAPPER = """#!/bin/sh
cd {folder} || exit 9
mode=mode.$SLURMD_NODENAME.${{SLURM_SCRIPT_CONTEXT:-health}}
. "./$mode"
PYTHONPATH={repository} exec {python} -c 'from topocheck.cli.main import main; main()' "$@" $FROM
"""


CONTEXTS = {"prolog": "prolog_slurmd", "epilog": "epilog_slurmd", "task": "prolog_task", "health": "health"}


class Site:
    """A cluster with the scripts installed. Each script of a node (a key of CONTEXTS) has its own machine."""

    def __init__(self, cluster: Slurm, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def machine(self, node: str, mode: str, *scripts: str) -> None:
        """Let `node` be the machine of `mode` for the named scripts, or all."""
        for script in scripts or tuple(CONTEXTS):
            path = self.folder / f"mode.{node}.{CONTEXTS[script]}"
            new = path.with_suffix(".new")
            new.write_text(mode)
            new.replace(path)

    def recorded(self, name: str) -> str:
        return f"FROM='--from {self.folder}/{name}.tcs'\n"

    def settings(self, text: str) -> None:
        (self.folder / "slurm.env").write_text(BASE_SETTINGS.format(folder=self.folder) + text)


BASE_SETTINGS = (
    "TOPOCHECK={folder}/topocheck\nSTATE_DIR={folder}/marks\nexport SLURM_CONF={folder}/slurm/slurm.conf\nBUDGET=100\n"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    write_snapshot(folder / "good.tcs", "hgx_h100_cx7")
    write_snapshot(folder / "half.tcs", "hgx_h100_cx7", patch={"GPU3": {"now": "5x8"}})
    for script in ("common", "prolog", "epilog", "task_prolog", "health_check"):
        text = (SCRIPTS / f"{script}.sh").read_text()
        text = text.replace("/usr/local/lib/topocheck/slurm-common.sh", f"{folder}/common.sh")
        text = text.replace("/etc/topocheck/slurm.env", f"{folder}/slurm.env")
        assert "/etc/topocheck" not in text.replace("/etc/topocheck/policy.toml", "")
        (folder / f"{script}.sh").write_text(text)
        (folder / f"{script}.sh").chmod(0o755)
    misled = {"NCCL_SOCKET_IFNAME": "ib9"}
    write_snapshot(folder / "misled.tcs", "hgx_h100_cx7", environment=misled, limits={"memlock": "unlimited"})
    wrapper = folder / "topocheck"
    wrapper.write_text(WRAPPER.format(folder=folder, repository=REPOSITORY, python=sys.executable))
    wrapper.chmod(0o755)
    settings = {
        "Prolog": f"{folder}/prolog.sh",
        "Epilog": f"{folder}/epilog.sh",
        "TaskProlog": f"{folder}/task_prolog.sh",
        "PrologFlags": "Alloc",
        "HealthCheckProgram": f"{folder}/health_check.sh",
        "HealthCheckInterval": "2",
        "HealthCheckNodeState": "ANY",
    }
    (folder / "slurm.env").write_text(BASE_SETTINGS.format(folder=folder))
    for node in ("n1", "n2"):
        for context in CONTEXTS.values():
            (folder / f"mode.{node}.{context}").write_text(f"FROM='--from {folder}/good.tcs'\n")
    with slurm_cluster(folder / "slurm", settings) as cluster:
        yield Site(cluster, folder)


@pytest.fixture(autouse=True)
def healthy(site: Site) -> None:
    """Every test begins with two healthy, idle nodes."""
    site.settings("")
    for node in site.cluster.nodes:
        site.machine(node, site.recorded("good"))
        if site.cluster.node(node)["Reason"]:
            site.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", "Reason=")
        site.cluster.wait(node, "idle", drained=False)


def srun(site: Site, node: str, *, timeout: float = PATIENCE_S) -> str:
    """Return what a job printed on a node."""
    done = site.cluster.run("srun", "-w", node, "-n1", "--quiet", "/bin/echo", "started", timeout=timeout)
    return done.stdout.strip() or done.stderr.strip()


def test_job_runs_on_healthy_node(site: Site) -> None:
    assert srun(site, "n1") == "started"
    assert site.cluster.wait("n1", "idle", drained=False)["Reason"] == ""


def test_health_check_drains_faulty_node_and_gives_it_back(site: Site) -> None:
    site.machine("n2", site.recorded("half"), "health")
    seen = site.cluster.wait("n2", "drained", drained=True)
    assert seen["Reason"].startswith(WIDTH)
    assert "x8" in seen["Reason"]
    assert srun(site, "n1") == "started"
    site.machine("n2", site.recorded("good"), "health")
    assert site.cluster.wait("n2", "given back", drained=False)["Reason"] == ""


def test_prolog_drains_and_requeues(site: Site) -> None:
    # The health check cannot tell here, so that it neither drains nor gives back, and the prolog is what is seen.
    site.machine("n2", "exit 3\n", "health")
    site.machine("n2", site.recorded("half"), "prolog")
    submitted = site.cluster.run("sbatch", "-w", "n2", "-o", "/dev/null", "--wrap", f"touch {site.folder}/ran")
    assert submitted.returncode == 0, submitted.stderr
    seen = site.cluster.wait("n2", "drained", drained=True)
    job = submitted.stdout.split()[-1]
    site.cluster.run("scancel", job)
    # Slurm's own reason for it would be "Prolog error".
    assert seen["Reason"].startswith(WIDTH)
    assert not (site.folder / "ran").exists()
    site.machine("n2", site.recorded("good"))
    site.cluster.wait("n2", "given back", drained=False)


def test_prolog_judges_the_gpus_of_the_job(site: Site) -> None:
    site.machine("n1", site.recorded("half") + "export SLURM_JOB_GPUS=0,1\n", "prolog", "epilog")
    assert srun(site, "n1") == "started"
    assert site.cluster.node("n1")["Reason"] == ""


def test_task_prolog_tells_the_user(site: Site) -> None:
    site.machine("n1", site.recorded("misled"))
    said = srun(site, "n1").splitlines()
    assert said[0].endswith(" - topocheck: nccl.interface-missing")
    assert said[1] == "started"
    assert site.cluster.node("n1")["Reason"] == ""
    site.settings("ON_TASK_FAIL=cancel\n")
    assert "started" not in srun(site, "n1")


def test_another_reason_stays(site: Site) -> None:
    site.cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=disk 3 is being replaced")
    site.machine("n2", site.recorded("half"), "health")
    site.cluster.wait("n2", "drained", drained=True)
    _wait_for_health_checks(site, "n2", 2)
    assert site.cluster.node("n2")["Reason"].startswith("disk 3 is being replaced")
    site.machine("n2", site.recorded("good"), "health")
    _wait_for_health_checks(site, "n2", 2)
    assert "DRAIN" in site.cluster.node("n2")["State"], site.cluster.logs()


def test_hung_nvml_does_not_hold_the_job(site: Site, tmp_path: Path) -> None:
    stub = build_library("nvml_stub.c", tmp_path / "nvml", "libnvidia-ml.so.1")
    hung = f"FROM=\nexport LD_LIBRARY_PATH={stub} NVML_STUB_SLEEP=nvmlInitWithFlags\n"
    site.settings("BUDGET=4\n")
    site.machine("n1", hung, "prolog", "epilog")
    # The stub never returns; that the budget counts and not the 10 s that NVML has is tested in test_budget.py.
    assert srun(site, "n1") == "started"
    assert "Prolog error" not in site.cluster.node("n1")["Reason"]


def test_unreadable_policy_drains_only_when_asked(site: Site) -> None:
    policy = site.folder / "policy.toml"
    policy.write_text("this is no TOML")
    site.settings(f"POLICY={policy}\n")
    assert srun(site, "n1") == "started"
    assert site.cluster.node("n1")["Reason"] == ""
    site.settings(f"POLICY={policy}\nON_UNKNOWN=fail\n")
    seen = site.cluster.wait("n2", "drained", drained=True)
    assert " - topocheck: unknown" in seen["Reason"]
    site.settings("")
    site.cluster.wait("n2", "given back", drained=False)


def test_broken_installation_drains_nothing(site: Site) -> None:
    site.machine("n1", "exit 127\n")
    assert srun(site, "n1") == "started"
    (site.folder / "slurm.env").write_text("if then fi (\n")
    assert srun(site, "n1") == "started"
    site.settings("")
    assert site.cluster.node("n1")["Reason"] == ""


def _wait_for_health_checks(site: Site, node: str, n: int) -> None:
    """Wait until the health check has begun `n` more times on a node, by a counter in its mode file."""
    counter = site.folder / f"count.{node}"
    counter.write_text("")
    path = site.folder / f"mode.{node}.health"
    path.write_text(f"echo >>{counter}\n" + path.read_text())
    until(lambda: len(counter.read_text()) > n, "health checks", else_=site.cluster.logs)
