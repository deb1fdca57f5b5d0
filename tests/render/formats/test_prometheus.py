"""The textfile: by promtool, by a real node_exporter, and by what the exposition format asks."""

from __future__ import annotations

import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import require_program
from tests.machines.builder import machine
from tests.render.formats.made import NOTE, UNSURE, WARNING, WIDTH, half_report, outcome, report
from tests.support.hostile import PIECES, unseen
from tests.support.slurm import free_ports
from tests.support.waiting import PATIENCE_S, until
from topocheck.model.base import Finding, State
from topocheck.pipeline import build_report
from topocheck.render.formats import prometheus, watch_prometheus

HOSTILE = Finding(id="net.x", state=State.WARN, subject='a"b\\c\nd', title="odd")
ALL = (WIDTH, WARNING, UNSURE, NOTE, HOSTILE)


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (s.name, *(v for _, v in sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_values() -> None:
    got = samples(prometheus.render(outcome(*ALL, on=half_report()), half_report()))
    assert got["topocheck_exit_code",] == 1
    assert got["topocheck_policy_readable",] == 1
    # 2026-01-01T00:00:00Z, the time of the described machines: 20454 days of 86400 s.
    assert got["topocheck_run_timestamp_seconds",] == 20454 * 86400
    states = {k[1]: v for k, v in got.items() if k[0] == "topocheck_check_status"}
    assert states["pcie.link-width"] == 2
    assert states["numa.node-missing"] == 1
    assert states["p2p.acs-redirect"] == 3
    assert states["numa.nps"] == 0
    assert states["pcie.aer-errors"] == 0
    assert "p2p.mig" not in states
    assert got["topocheck_check_applicable", "p2p.mig", "node"] == 0
    assert got["topocheck_finding_info", "pcie.link-width", "fail", "0000:5c:00.0 GPU3"] == 1
    # Gen 5, 32 GT/s, 128b/130b: x8 and x16.
    lane = 32e9 * 128 / 130 / 8
    gpu3 = next(g for g in half_report().topology.gpus if g.label == "GPU3")
    where = (gpu3.uuid, "0000:5c:00.0", "3")
    assert got["topocheck_pcie_link_bytes_per_second", *where, "gpu"] == pytest.approx(8 * lane, rel=1e-3)
    assert got["topocheck_pcie_link_max_bytes_per_second", *where, "gpu"] == pytest.approx(16 * lane, rel=1e-3)
    # NVLink 4: 25 GB/s per direction and link (NVIDIA H100 whitepaper: 18 links, 900 GB/s in both directions).
    assert got["topocheck_nvlink_links", *where] == got["topocheck_nvlink_links_up", *where] == 18
    assert got["topocheck_nvlink_bytes_per_second", *where] == 18 * 25e9
    assert got["topocheck_nic_port_active", "0000:5d:00.0", "mlx5_3", "1"] == 1
    assert got["topocheck_nic_port_bytes_per_second", "0000:5d:00.0", "mlx5_3", "1"] == 400e9 / 8


def test_gpu_labels_are_those_of_dcgm_exporter() -> None:
    """DCGM-Exporter prints `DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-...",pci_bus_id=...` (its README and template)."""
    said = prometheus.render(outcome(on=half_report()), half_report())
    families = {f.name: f for f in text_string_to_metric_families(said)}
    for name in ("topocheck_nvlink_links_up", "topocheck_pcie_link_bytes_per_second"):
        found = {(s.labels["gpu"], s.labels["UUID"]) for s in families[name].samples if s.labels.get("gpu")}
        assert found == {(str(g.index), g.uuid) for g in half_report().topology.gpus}


def test_links_that_are_down_are_counted_and_ports_too() -> None:
    links = {"3": {"links_down": [3, 17]}}
    made = build_report(machine("hgx_h100_cx7", patch={"mlx5_3": {"state": "DOWN"}}, gpu=links).host(), checks=())
    got = samples(prometheus.render(outcome(on=made), made))
    where = (next(str(g.uuid) for g in made.topology.gpus if g.label == "GPU3"), "0000:5c:00.0", "3")
    assert (got["topocheck_nvlink_links", *where], got["topocheck_nvlink_links_up", *where]) == (18, 16)
    assert got["topocheck_nvlink_bytes_per_second", *where] == 16 * 25e9
    assert got["topocheck_nic_port_active", "0000:5d:00.0", "mlx5_3", "1"] == 0


def test_no_metric_is_also_written_by_watch() -> None:
    assert not {m.full_name for m in prometheus.METRICS} & {m.full_name for m in watch_prometheus.METRICS}


def test_a_subject_is_one_line_of_text_whatever_stands_in_it() -> None:
    subjects = [f"a{piece}b" for piece in PIECES]
    findings = [Finding(id="net.x", state=State.WARN, subject=s, title="odd") for s in subjects]
    said = prometheus.render(outcome(*findings), report())
    got = {k[3] for k in samples(said) if k[0] == "topocheck_finding_info"}
    assert not any(unseen(s) or "\n" in s for s in got)
    assert {'a"b', "a\\b", "a|b", "a\ufffdb"} <= got
    if shutil.which("promtool"):
        done = subprocess.run(["promtool", "check", "metrics"], input=said.encode(), capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


def test_unreadable_policy() -> None:
    o = outcome(cannot_tell=["policy x"], policy_readable=False)
    got = samples(prometheus.render(o, report()))
    assert got["topocheck_policy_readable",] == 0
    assert got["topocheck_exit_code",] == 3
    assert got["topocheck_required_unknown",] == 1


def test_no_timestamps_and_help_for_every_family() -> None:
    said = prometheus.render(outcome(*ALL), report())
    assert "# EOF" not in said
    names = {line.split("{")[0].split(" ")[0] for line in said.splitlines() if not line.startswith("#")}
    for name in names:
        assert f"# HELP {name} " in said
        assert name.startswith("topocheck_")
    for line in said.splitlines():
        if not line.startswith("#"):
            assert len(line.rpartition("}")[2].split()) == (1 if "}" in line else 2), line


@pytest.mark.service
def test_promtool() -> None:
    require_program("promtool")
    said = prometheus.render(outcome(*ALL, on=half_report()), half_report())
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=said, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.service
def test_node_exporter_scrapes_it(tmp_path: Path) -> None:
    require_program("prometheus-node-exporter")
    (tmp_path / "topocheck.prom").write_text(prometheus.render(outcome(*ALL, on=half_report()), half_report()))
    (port,) = free_ports(1)
    exporter = subprocess.Popen(
        [
            "prometheus-node-exporter",
            "--collector.disable-defaults",
            "--collector.textfile",
            f"--collector.textfile.directory={tmp_path}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        page = scrape(f"http://127.0.0.1:{port}/metrics")
    finally:
        exporter.terminate()
        exporter.wait(timeout=PATIENCE_S)
    got = samples(page)
    assert got["node_textfile_scrape_error",] == 0
    assert ("node_textfile_mtime_seconds", str(tmp_path / "topocheck.prom")) in got
    ours = samples(prometheus.render(outcome(*ALL, on=half_report()), half_report()))
    assert {k: v for k, v in got.items() if k[0].startswith("topocheck_")} == ours


def scrape(url: str) -> str:
    def answered() -> str:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, ConnectionError):
            return ""

    return until(answered, f"an answer of {url}")
