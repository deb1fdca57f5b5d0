"""Metrics of samples: their values, promtool's judgement of them and of the alerts made from them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import require_program
from tests.overtime import planting
from tests.support.waiting import PATIENCE_S
from topocheck.knowledge import xids
from topocheck.overtime.types import GpuEvent, Sample
from topocheck.render.formats import prometheus, watch_prometheus
from topocheck.render.formats.watch_prometheus import Exporter

RULES = Path(__file__).parents[3] / "integrations" / "prometheus"

UUID = next(d.uuid for d in planting.base()[0].devices if d.address == planting.GPU)


def exported(*samples: Sample) -> tuple[str, dict[tuple[str, ...], float]]:
    exporter = Exporter(planting.base()[0])
    text = ""
    for sample in samples:
        text = exporter.text(sample)
    values = {
        (s.name, *s.labels.values()): s.value for family in text_string_to_metric_families(text) for s in family.samples
    }
    return text, values


def test_values_are_in_base_units() -> None:
    sample = planting.recording(1, samples=1, plant=planting.always(planting.is_gpu, clock_sm_mhz=1980)).samples[0]
    _, values = exported(sample)
    port = next(p for p in sample.ports if p.subject == planting.PORT)
    where = (UUID, planting.GPU, "0")
    assert values["topocheck_gpu_sm_clock_hertz", *where] == 1980e6
    assert values["topocheck_pcie_link_speed_transfers_per_second", planting.GPU] == 32e9
    assert values["topocheck_pcie_link_max_width_lanes", planting.GPU] == 16
    assert values["topocheck_rdma_port_rate_bytes_per_second", "mlx5_2", "1"] == 400e9 / 8
    sent = port.counters["port_xmit_data"] * 4  # counted in words of 4 bytes
    assert values["topocheck_rdma_port_data_bytes_total", "mlx5_2", "transmit", "1"] == sent
    assert values["topocheck_watch_source_up", "nvml"] == 1


def test_counters_of_the_last_full_sample_stay() -> None:
    """A counter that is not there in one scrape would look like a series that ended."""
    history = planting.recording(1, samples=2)
    full, later = history.samples
    bare = Sample(at_s=later.at_s, gpus=tuple(type(g)(address=g.address, index=g.index) for g in later.gpus))
    _, values = exported(full, bare)
    replays = full.gpus[0].counters["pcie_replays"]
    assert values["topocheck_gpu_pcie_replays_total", UUID, planting.GPU, "0"] == replays


def test_events_are_counted_by_gpu_and_xid() -> None:
    """As DCGM_EXP_XID_ERRORS_TOTAL: a counter from the first of a kind on; samples without events keep it."""
    first = planting.recording(1, samples=1).samples[0]
    xid, poison = GpuEvent(address=planting.GPU, type=0x8, data=79), GpuEvent(address=planting.GPU, type=0x2000)
    elsewhere = GpuEvent(address="0000:ff:00.0", type=0x8, data=13)
    _, values = exported(
        replace(first, events=(xid, xid)), replace(first, events=(xid, poison, elsewhere)), replace(first, events=())
    )
    assert values["topocheck_gpu_xid_errors_total", UUID, planting.GPU, "0", "79"] == 3
    assert values["topocheck_gpu_fault_events_total", UUID, planting.GPU, "fatal_poison_error", "0"] == 1
    assert values["topocheck_gpu_xid_errors_total", "", "0000:ff:00.0", "", "13"] == 1
    assert "topocheck_gpu_xid_errors_total{" not in exported(first)[0]


def test_a_driver_that_invents_xids_does_not_fill_the_file() -> None:
    first = planting.recording(1, samples=1).samples[0]
    many = tuple(GpuEvent(address=planting.GPU, type=0x8, data=n) for n in range(10_000))
    assert exported(replace(first, events=many))[0].count("\ntopocheck_gpu_xid_errors_total{") == 4096


def test_every_event_that_is_asked_for_has_a_name() -> None:
    assert watch_prometheus._EVENTS.keys() == xids.EVENTS.keys()


def test_a_silent_source_is_down() -> None:
    _, values = exported(Sample(at_s=0.0, silent={"nvml": "no answer for 11 s"}))
    assert values["topocheck_watch_source_up", "nvml"] == 0
    assert values["topocheck_watch_source_up", "sysfs"] == 1


@pytest.mark.service
def test_promtool_accepts_the_metrics() -> None:
    require_program("promtool")
    text, _ = exported(*planting.recording(1).samples)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.service
def test_the_alerts_fire_and_are_quiet_as_their_tests_say() -> None:
    require_program("promtool")
    for words in (["check", "rules", "topocheck.rules.yml"], ["test", "rules", "topocheck.rules.test.yml"]):
        done = subprocess.run(
            ["promtool", *words], cwd=RULES, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_uses_metrics_that_are_exported() -> None:
    text, _ = exported(*planting.recording(1).samples)
    rules = (RULES / "topocheck.rules.yml").read_text(encoding="utf-8")
    expressions = re.findall(r"expr: (.*?)\n +(?:for|labels):", rules, re.DOTALL)
    used = {name for e in expressions for name in re.findall(r"topocheck_[a-z_]+", e)}
    assert len(used) >= 13
    checked = {m.full_name for m in prometheus.METRICS}
    assert used <= checked | set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
