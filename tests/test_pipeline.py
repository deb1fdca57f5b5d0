"""One run, live or recorded: the same report."""

from __future__ import annotations

import msgspec
import pytest

import topocheck
from tests.machines.builder import machine, names
from tests.support.snapshots import record
from topocheck.collect import ask_machine
from topocheck.host.base import Host, HostError, RecordedBackend
from topocheck.host.recording.anonymize import anonymize
from topocheck.host.recording.snapshot import load, save
from topocheck.model.base import Missing, Reason, State, known
from topocheck.model.document import ReportDoc
from topocheck.model.version import SCHEMA_VERSION
from topocheck.pipeline import build_report, read_node
from topocheck.probes.kept.table import table
from topocheck.probes.registry import PROBE_SET_VERSION
from topocheck.render.page import Style
from topocheck.render.report_json import encode, report_document, report_pieces
from topocheck.render.text import SECTIONS, report_text

SMALL = ("h100_x2_vm", "laptop", "no_pci", "gpu_lost", "mig_node")


def texts(answers, source="x"):
    report = build_report(Host(RecordedBackend(answers), source))
    return report_text(report, tuple(SECTIONS), Style()), encode(report_document(report, topocheck.__version__))


def test_live_report_equals_the_report_of_its_recording(tmp_path):
    answers = ask_machine()
    path = tmp_path / "live.snap"
    save(str(path), answers, probe_set=PROBE_SET_VERSION)
    header, loaded = load(str(path))
    assert header.taken_at == answers["now:"]
    assert texts(loaded) == texts(answers)


@pytest.mark.parametrize("name", SMALL)
def test_recording_of_a_described_machine_replays_equal(name, tmp_path):
    answers = record(name)
    path = tmp_path / "m.snap"
    save(str(path), answers, probe_set=PROBE_SET_VERSION)
    direct = build_report(machine(name).host())
    loaded = load(str(path))[1]
    assert texts(loaded, direct.node.source) == (
        report_text(direct, tuple(SECTIONS), Style()),
        encode(report_document(direct, topocheck.__version__)),
    )


@pytest.mark.parametrize("name", [*SMALL, "hgx_h100_cx7", "cloud_vm_17nic", "gb200_tray"])
def test_findings_are_the_same_with_identifiers_replaced(name):
    answers = record(name)
    kept = build_report(Host(RecordedBackend(answers), name))
    replaced = build_report(Host(RecordedBackend(anonymize(answers, table())), name))
    assert [(f.id, f.state, f.subject) for f in replaced.findings] == [
        (f.id, f.state, f.subject) for f in kept.findings
    ]
    assert [(r.id, r.state) for r in replaced.results] == [(r.id, r.state) for r in kept.results]
    assert [(v.from_, v.to, v.verdict) for v in replaced.gpudirect.rdma] == [
        (v.from_, v.to, v.verdict) for v in kept.gpudirect.rdma
    ]


@pytest.mark.parametrize("name", names())
def test_json_of_every_machine_is_of_the_promised_form(name):
    report = build_report(machine(name).host())
    text = encode(report_document(report, topocheck.__version__))
    assert "".join(report_pieces(report, topocheck.__version__)) == text
    document = msgspec.json.decode(text, type=ReportDoc, strict=True)
    assert document.schema_version == SCHEMA_VERSION
    for devices in (document.gpus, document.accelerators):  # every ordered pair, and each one to every NIC
        addresses = {g.address for g in devices}
        pairs = [p for p in document.paths if p.from_ in addresses]
        assert len(pairs) == len(devices) * (len(devices) - 1 + len(document.nics))


@pytest.mark.parametrize("name", names())
def test_no_line_of_the_text_is_wider_than_its_page(name):
    report = build_report(machine(name).host())
    for sections, width in ((tuple(SECTIONS), 80), (None, 80), (None, 132)):
        text = report_text(report, sections, Style(width=width))
        assert not [line for line in text.splitlines() if len(line) > width]


def test_empty_recording_is_told_as_not_recorded():
    node = read_node(Host(RecordedBackend({}), "empty"))
    assert isinstance(node.pci.devices, Missing)
    assert node.pci.devices.reason is Reason.NOT_RECORDED
    assert isinstance(node.system.kernel_release, Missing)
    report = build_report(Host(RecordedBackend({}), "empty"))
    assert not [f for f in report.findings if f.state is State.FAIL]
    assert not [r.id for r in report.results if r.state is State.OK]


def test_a_probe_that_timed_out_leaves_timed_out_facts():
    answers = {k: v for k, v in record("laptop").items() if not k.startswith("nvml:")}
    answers["nvml:DeviceGetCount"] = HostError(Reason.TIMED_OUT, "nvml:DeviceGetCount")
    answers["probe:nvml"] = {"state": "timed_out", "ms": 10000.0, "detail": "nvml:DeviceGetCount"}
    report = build_report(Host(RecordedBackend(answers), "hung"))
    assert isinstance(report.node.nvml.gpus, Missing)
    assert report.node.nvml.gpus.reason is Reason.TIMED_OUT
    assert "DeviceGetCount" in report_text(report, ("summary",), Style())


def test_lost_gpu_costs_only_its_own_pairs():
    """One of eight is off the bus: 21 unordered pairs stay judged, 7 are unknown."""
    report = build_report(machine("gpu_lost").host())
    verdicts = [v.verdict.value for v in report.gpudirect.p2p]
    assert verdicts.count("yes") == 42
    assert verdicts.count("unknown") == 14
    assert all(known(p.class_) or "ab:00.0" in p.from_ + p.to for p in report.topology.paths)
