"""The file of `watch --prometheus`, a real node_exporter that serves it, and a real Prometheus with the alert rules."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.conftest import require_program
from tests.overtime import planting
from tests.support.slurm import free_ports
from tests.support.waiting import PATIENCE_S, until
from topocheck.host.output import write_file
from topocheck.render.formats.watch_prometheus import Exporter

RULES = Path(__file__).parents[2] / "integrations" / "prometheus" / "topocheck.rules.yml"
pytestmark = pytest.mark.service


class Site:
    """node_exporter with a folder of metrics, and Prometheus, which scrapes it each second."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self.metrics = folder / "textfile" / "topocheck_watch.prom"
        self.metrics.parent.mkdir()
        self.log = folder / "log"
        node, server = free_ports(2)
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{RULES}']\n"
            f"scrape_configs: [{{job_name: node, static_configs: [{{targets: ['127.0.0.1:{node}']}}]}}]\n"
        )
        for argv in (
            [
                "prometheus-node-exporter",
                f"--web.listen-address=127.0.0.1:{node}",
                "--collector.disable-defaults",
                "--collector.textfile",
                f"--collector.textfile.directory={self.metrics.parent}",
            ],
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{server}",
            ],
        ):
            log = running.enter_context(self.log.open("ab"))
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            running.callback(process.wait, PATIENCE_S)
            running.callback(process.kill)
        self._base = f"http://127.0.0.1:{server}/api/v1"

    def asked(self, path: str) -> Any:
        """Return the data of an answer; None where the server does not answer yet."""
        try:
            with urllib.request.urlopen(f"{self._base}/{path}", timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.URLError:
            return None

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        found = self.asked("alerts") or {"alerts": []}
        return {a["labels"]["alertname"] for a in found["alerts"] if a["state"] == "firing"}

    def wait_for(self, holds: Any, what: str) -> None:
        until(holds, what, else_=self.log.read_text)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    require_program("prometheus")
    require_program("prometheus-node-exporter")
    with ExitStack() as running:
        yield Site(tmp_path, running)


def test_a_healthy_node_is_quiet_and_faults_raise_their_alerts(site: Site) -> None:
    history = planting.recording(1, samples=3)
    # Sampled now: an old time would raise the alert that no samples come.

    header = replace(history.header, begun_unix_s=time.time())
    exporter = Exporter(header)
    healthy = replace(history.samples[0], at_s=0.0)
    write_file(site.metrics, exporter.text(healthy).encode())
    site.wait_for(lambda: (site.asked("query?query=topocheck_gpu_lost") or {}).get("result"), "scrapes")
    site.wait_for(lambda: _evaluated(site) >= 3, "evaluations")
    rules = [r for g in site.asked("rules")["groups"] for r in g["rules"]]
    assert {r["health"] for r in rules} == {"ok"}, [r for r in rules if r["health"] != "ok"]
    assert site.firing() == set()

    lost = tuple(replace(g, lost=g.address == planting.GPU) for g in healthy.gpus)
    down = tuple(replace(x, active=False) if (x.address, x.link) == (planting.GPU, 3) else x for x in healthy.nvlinks)
    ports = tuple(
        replace(p, counters={**p.counters, "link_downed": p.counters["link_downed"] + 1})
        if p.subject == planting.PORT
        else p
        for p in healthy.ports
    )
    write_file(site.metrics, exporter.text(replace(healthy, at_s=1.0, gpus=lost, nvlinks=down, ports=ports)).encode())
    wanted = {"TopocheckGpuLost", "TopocheckNvlinkDown", "TopocheckPortFlap"}
    site.wait_for(lambda: site.firing() >= wanted, "alerts")
    assert site.firing() == wanted


def _evaluated(site: Site) -> int:
    """Return how often the metric was seen, as each scrape is followed by an evaluation."""
    found = (site.asked("query?query=count_over_time(topocheck_watch_source_up[5m])") or {}).get("result")
    return min((int(r["value"][1]) for r in found), default=0) if found else 0
