"""The dashboard's queries, asked of a real Prometheus that scrapes what topocheck writes."""

from __future__ import annotations

import http
import http.server
import itertools
import json
import re
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_program
from tests.overtime import planting
from tests.render.formats.made import WARNING, WIDTH, half_report, outcome
from tests.support.printed import REPOSITORY
from tests.support.slurm import free_ports
from tests.support.waiting import PATIENCE_S, until
from topocheck.render.formats import prometheus, watch_prometheus

DASHBOARD = json.loads((REPOSITORY / "integrations" / "grafana" / "topocheck.json").read_text(encoding="utf-8"))
PANELS = {p["title"]: p for p in DASHBOARD["panels"]}
QUIET = {"RDMA ports that are not active"}
"""Panels that are empty on the machine of this test, whose ports are all up."""


def expression(panel: dict[str, Any]) -> str:
    """Return a panel's query as Grafana sends it for all nodes."""
    (target,) = panel["targets"]
    return str(target["expr"]).replace("$instance", ".*").replace("$__rate_interval", "1m")


def test_panels_do_not_overlap_and_have_ids() -> None:
    assert len({p["id"] for p in DASHBOARD["panels"]}) == len(DASHBOARD["panels"]) == len(PANELS)
    cells: set[tuple[int, int]] = set()
    for p in DASHBOARD["panels"]:
        g = p["gridPos"]
        own = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert g["x"] + g["w"] <= 24  # Grafana's grid
        assert not own & cells, p["title"]
        cells |= own


def test_each_query_uses_metrics_and_labels_that_are_written() -> None:
    written = {m.full_name: {*m.labels, "instance", "job"} for m in (*prometheus.METRICS, *watch_prometheus.METRICS)}
    for p in DASHBOARD["panels"]:
        names = re.findall(r"topocheck_\w+", expression(p))
        assert names
        assert set(names) <= set(written)
        legend = set(re.findall(r"{{(\w+)}}", p["targets"][0].get("legendFormat", "")))
        assert legend <= written[names[0]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a Prometheus that has scraped two samples of a node."""
    require_program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    checked = prometheus.render(outcome(WIDTH, WARNING, on=half_report()), half_report())
    exporter, history = watch_prometheus.Exporter(planting.base()[0]), planting.recording(1)
    texts = [exporter.text(s) for s in history.samples]
    turns = itertools.count()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (checked + texts[min(next(turns), len(texts) - 1)]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    node = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=node.serve_forever, daemon=True).start()
    (port,) = free_ports(1)
    target = f"127.0.0.1:{node.server_port}"
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: node, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    try:
        until(
            lambda: asked(base, "count_over_time(topocheck_exit_code[5m]) >= 3"),
            "scrapes",
            else_=(folder / "log").read_text,
        )
        yield base
    finally:
        running.kill()
        running.wait(PATIENCE_S)
        node.shutdown()
        node.server_close()


def asked(base: str, query: str) -> list[dict[str, Any]]:
    """Return the result of a query; none where the server does not answer yet."""
    url = f"{base}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            said = json.load(answer)
    except urllib.error.HTTPError as e:
        if e.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
            return []  # it is still reading its log
        raise AssertionError(f"{query}: {e.read().decode()}") from None
    except urllib.error.URLError:
        return []
    assert said["status"] == "success"
    result: list[dict[str, Any]] = said["data"]["result"]
    return result


@pytest.mark.service
@pytest.mark.parametrize("title", PANELS)
def test_a_panel_shows_what_is_there(title: str, server: str) -> None:
    result = asked(server, expression(PANELS[title]))
    assert bool(result) is (title not in QUIET)


@pytest.mark.service
def test_the_faulty_link_is_shown_and_joins_dcgm(server: str) -> None:
    (link,) = asked(server, expression(PANELS["PCIe links below what both ends support (rate now / rate at most)"]))
    assert (link["metric"]["gpu"], link["metric"]["bdf"], float(link["value"][1])) == ("3", "0000:5c:00.0", 0.5)
    # A series with the labels that DCGM-Exporter gives to GPU 3.
    uuid = link["metric"]["UUID"]
    dcgm = f'label_replace(label_replace(vector(97), "UUID", "{uuid}", "", ""), "gpu", "3", "", "")'
    join = f"{dcgm} and on (UUID) (topocheck_pcie_link_bytes_per_second < topocheck_pcie_link_max_bytes_per_second)"
    assert [r["value"][1] for r in asked(server, join)] == ["97"]
    assert asked(server, expression(PANELS["Nodes with a failed check"]))[0]["value"][1] == "1"


def test_the_dashboard_is_one_file_of_json() -> None:
    assert Path(REPOSITORY / "integrations/grafana/topocheck.json").stat().st_size < 100_000
    assert DASHBOARD["schemaVersion"] >= 36
    assert {v["name"] for v in DASHBOARD["templating"]["list"]} == {"datasource", "instance"}
