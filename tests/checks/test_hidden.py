"""What must be there and was not shown is could-not-tell, whatever the probes say of themselves."""

from __future__ import annotations

import pytest

from tests.machines.builder import healthy_names
from tests.support.snapshots import record
from topocheck.checks.result import conclude
from topocheck.checks.visibility import nvml_silent, pci_hidden
from topocheck.host.base import Host, HostError, RecordedBackend
from topocheck.model.base import Reason, State
from topocheck.model.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_UNKNOWN
from topocheck.pipeline import build_report
from topocheck.policy.types import Policy

VM = "h100_x2_vm"


def run(answers):
    report = build_report(Host(RecordedBackend(answers), "x"))
    return report, conclude(report.node, report.findings, report.results, Policy())


def refuse(answers, asked, reason=Reason.ABSENT):
    """Return the answers, those of the questions that `asked` picks replaced by an error."""
    hit = [q for q in answers if asked(q)]
    assert hit
    return answers | {q: HostError(reason, "x") for q in hit}


def hidden_findings(report):
    return {f.subject: f.state for f in report.findings if f.id == "probe.failed"}


@pytest.mark.parametrize("name", healthy_names())
def test_healthy_machines_hide_nothing(name):
    node = build_report(Host(RecordedBackend(record(name)), name)).node
    assert pci_hidden(node) is None
    assert nvml_silent(node) is None


@pytest.mark.parametrize("reason", [Reason.ABSENT, Reason.DENIED, Reason.TIMED_OUT])
@pytest.mark.parametrize("below", ["/sys/", "/sys/bus/pci"])
def test_gpus_of_nvml_without_a_pci_tree(below, reason):
    report, outcome = run(refuse(record(VM), lambda q: below in q, reason))
    assert outcome.exit_code == EXIT_UNKNOWN
    assert outcome.state is State.UNKNOWN
    assert outcome.required_unknown[0].startswith("probe pci: ")
    assert hidden_findings(report) == {"probe pci": State.UNKNOWN}


def test_an_empty_pci_tree_hides_the_gpus_of_nvml():
    _, outcome = run(record(VM) | {"list:/sys/bus/pci/devices": []})
    assert (outcome.exit_code, outcome.state) == (EXIT_UNKNOWN, State.UNKNOWN)


def test_one_gpu_of_nvml_outside_the_pci_tree():
    answers = record(VM)
    _, outcome = run(answers | {"list:/sys/bus/pci/devices": answers["list:/sys/bus/pci/devices"][:-1]})
    assert outcome.exit_code == EXIT_UNKNOWN
    assert "0000:00:07.0" in outcome.required_unknown[0]


def test_a_machine_without_pci_and_gpus_is_believed():
    report, outcome = run(record("no_pci"))
    assert outcome.exit_code == EXIT_OK
    assert hidden_findings(report) == {}


@pytest.mark.parametrize("reason", [Reason.DENIED, Reason.TIMED_OUT, Reason.NOT_RECORDED])
def test_a_pci_tree_that_may_not_be_read_is_not_believed_absent(reason):
    _, outcome = run(refuse(record("no_pci"), lambda q: q == "list:/sys/bus/pci/devices", reason))
    assert outcome.exit_code == EXIT_UNKNOWN


def test_a_masked_sys_is_not_a_machine_without_pci():
    report, outcome = run(refuse(record("no_pci"), lambda q: "/sys/" in q))
    assert outcome.exit_code == EXIT_UNKNOWN
    assert hidden_findings(report) == {"probe pci": State.UNKNOWN}


@pytest.mark.parametrize("reason", [r for r in Reason if r is not Reason.TIMED_OUT])
def test_nvml_that_answers_nothing_where_the_driver_is_loaded(reason):
    _, outcome = run(refuse(record(VM), lambda q: q.startswith("nvml:"), reason))
    assert outcome.exit_code == EXIT_UNKNOWN
    assert outcome.required_unknown[0].startswith("probe nvml: ")
    assert outcome.state is State.UNKNOWN


def test_a_loaded_driver_that_hangs_is_a_failure():
    report, outcome = run(refuse(record(VM), lambda q: q.startswith("nvml:"), Reason.TIMED_OUT))
    assert outcome.exit_code == EXIT_FAILED
    (f,) = [f for f in report.findings if f.id == "driver.not-answering"]
    assert f.state is State.FAIL
    assert "install" not in (f.fix or "")


def test_nvml_that_counts_gpus_and_tells_nothing_of_them():
    def asked(q):
        return q.startswith("nvml:") and "Device" in q and "GetCount" not in q

    _, outcome = run(refuse(record(VM), asked, Reason.TIMED_OUT))
    assert outcome.exit_code != EXIT_OK
    assert outcome.state is not State.OK


def test_nvml_that_counts_no_gpu_where_the_driver_holds_two():
    answers = record(VM)
    [count] = [q for q in answers if q.startswith("nvml:DeviceGetCount")]
    report, outcome = run(answers | {count: 0})
    assert outcome.exit_code == EXIT_FAILED
    assert [f.subject for f in report.findings if f.id == "driver.gpu-not-listed"] == [
        "0000:00:06.0 GPU0",
        "0000:00:07.0 GPU1",
    ]


def test_statuses_without_any_answer():
    _, outcome = run({q: a for q, a in record(VM).items() if q.startswith(("probe:", "now:"))})
    assert outcome.exit_code == EXIT_UNKNOWN
    assert outcome.state is State.UNKNOWN
    assert outcome.required_unknown[0].startswith("probe pci: ")
