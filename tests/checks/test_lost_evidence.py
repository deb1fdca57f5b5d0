"""A lost answer never improves a result and never causes a warning or failure.

The whole of it is benchmarks/lost_evidence.py (its table: docs/measurements/lost_evidence.md); here each trial of
some machines, and a part of those of the others, always the same one.
"""

from __future__ import annotations

import functools
import re

import pytest

from tests.checks.support import rows
from tests.support.faults import FAULTS, HGX, case_list, case_of, faulty
from tests.support.losses import Case, Tally, error_of
from tests.support.snapshots import record
from topocheck.checks import static_checks
from topocheck.checks.registry import MissingData
from topocheck.checks.result import conclude
from topocheck.host.base import Host, HostError, RecordedBackend
from topocheck.model.base import Finding, Missing, Reason, State, Verdict, is_lost
from topocheck.model.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_UNKNOWN
from topocheck.pipeline import Report, build_report
from topocheck.policy.types import CheckPolicy, Policy

pytestmark = pytest.mark.slow

WHOLE = ("laptop", "no_pci", "vmd", "h05_a100_pcie_alone", "h06_h100_nvl_links_down", "h12_acs_redirect", "guest")
LARGE = ("thousand_devices",)
"""Machines of which only the benchmark tries anything: one trial takes as long as all of another machine."""


@functools.cache
def case(name: str) -> Case:
    return case_of(name)


def run(c: Case, part: int) -> list[str]:
    tallies: dict[str, Tally] = {}
    return [str(change) for trial in c.trials(part) for change in c.changes(trial, tallies)]


@pytest.mark.parametrize("name", WHOLE)
def test_every_answer_in_turn(name: str) -> None:
    assert run(case(name), 1) == []


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_answers_of_machines_with_faults(name: str) -> None:
    assert run(case(name), 80) == []


@pytest.mark.parametrize("name", sorted(set(case_list()) - FAULTS.keys() - set(WHOLE) - set(LARGE)))
def test_answers_of_the_other_machines(name: str) -> None:
    assert run(case(name), 300) == []


def test_a_fault_is_planted_for_every_check_that_can_warn_or_fail() -> None:
    fired = {f.id for name in FAULTS for f in case(name).base.findings if f.state in (State.FAIL, State.WARN)}
    fired |= {f.id for f in case(f"policy {HGX}").base.findings if f.state is State.FAIL}
    described = ("driver_not_loaded", "h15_hca_prefix", "h16_socket_ifname_prefix", "h18_peermem_not_registered")
    field = ("h40_device_cgroup", "h43_bridge_window", "h44_one_nic_refused", "h45_peer_access_offered")
    plugins = ("h61_efa_no_plugin",)
    for name in (*described, *field, "h15b_hca_exact", "h22_mixed_gpus", "h46_task_of_one_gpu", *plugins):
        fired |= {f.id for f in case(name).base.findings if f.state in (State.FAIL, State.WARN)}
    able = {c.id for c in static_checks() if c.severity in (State.FAIL, State.WARN)} - OF_FILES
    for id_ in sorted(able - fired):
        row = next((r for r in rows() if r.id == id_ and r.state in (State.FAIL, State.WARN)), None)
        assert row, f"{id_}: no row in ROWS of a test of checks has a machine on which it warns or fails"
        assert run(Case(str(row), record(row.machine, **row.change)), 80) == []


OF_FILES = {"consistency.sources-differ"}
"""Checks of files that people hand over (tests/readers): no question of a machine stands behind them."""


def asked(c: Case, begins: str) -> list[str]:
    """Return the questions that begin so, with `*` for the name of a device; of a folder's list, that one."""
    name = re.compile(re.escape(begins).replace(r"\*", "[^/]+"))
    return [q for q in c.questions if q == begins or (not begins.startswith("list:") and name.match(q))]


# One answer each, on machines where the fault would be passed over: what takes the finding away must not clear it.
@pytest.mark.parametrize(
    ("machine", "begins", "id_"),
    [
        ("h18_peermem_not_registered", "list:/sys/kernel/mm/memory_peers", "rdma.peermem-not-registered"),
        ("h15_hca_prefix", "list:/sys/class/infiniband", "nccl.hca-prefix"),
        ("h15_hca_prefix", "environ:", "nccl.hca-prefix"),
        ("h17_gid_link_local", "environ:", "rdma.gid-index"),
        ("driver_not_loaded", "list:/sys/bus/pci/devices", "driver.not-loaded"),
        ("shared memory", "now:", "limits.shm-leftovers"),
        ("bound", "lines:/proc/self/status|CapEff", "limits.cumem-host"),
        ("settings of a rack", "run:", "nvlink.imex"),
        ("h49_acs_above_nics", "read:/sys/bus/pci/devices/*/numa_node", "p2p.acs-redirect"),
        ("h54_spark_half_port", "nvml:DeviceGetName|", "rdma.half-port"),
        ("h58_dra_imex", "stat:/var/lib/kubelet", "nvlink.imex"),
        ("h65_busy_at_gen1", "nvml:DeviceGetPerformanceState|", "pcie.link-speed"),
        ("idle", "nvml:DeviceGetUtilizationRates|", "pcie.link-speed"),
        ("h72_nodes_across_sockets", "read:/sys/devices/system/cpu/online", "numa.nodes-across-sockets"),
        ("h72_nodes_across_sockets", "read:/sys/devices/system/cpu/cpu8/topology", "numa.nodes-across-sockets"),
        ("hardware", "nvml:DeviceGetCurrentClocksEventReasons|", "driver.clocks-held-down"),
    ],
)
@pytest.mark.parametrize("loss", ["denied", "timed_out", "not_recorded", "unparsable", "error"])
def test_without_its_evidence_a_check_is_unknown(machine: str, begins: str, id_: str, loss: str) -> None:
    c = case(machine)
    assert any(f.id == id_ for f in c.base.findings)
    lost = asked(c, begins)
    assert lost
    report = c.without(lost, loss)
    result = next(r for r in report.results if r.id == id_)
    assert result.state is State.UNKNOWN
    assert any(
        f.state is State.UNKNOWN and f.id in (id_, "probe.answers-lost", "probe.failed") for f in report.findings
    )


# And the other way round: what made a machine healthy is not known, so nothing is wrong with it either.
@pytest.mark.parametrize(
    ("machine", "begins", "id_"),
    [
        ("saved by a setting", "environ:", "consistency.device-order"),
        ("saved by a capability", "lines:/proc/self/status|CapEff", "limits.memlock"),
        ("saved by confidential computing", "nvml:SystemGetConfComputeState", "nvlink.p2p-disabled"),
        ("h15b_hca_exact", "list:/sys/class/infiniband", "nccl.hca-missing"),
        ("h23_mig_visible", "nvml:DeviceGetMigMode", "consistency.visible-devices"),
        ("gb200_tray", "nvml:DeviceGetGpuFabricInfoV", "nvlink.fabric-not-ready"),
        ("a100_x4", "nvml:DeviceGetNvLinkState|0|0", "nvlink.links-down"),
        ("h43_bridge_window", "list:/sys/bus/pci/devices", "consistency.siblings-differ"),
        ("h71_behind_chipset", "list:/sys/bus/pci/devices", "consistency.siblings-differ"),
        ("h69_graph_file_of_four", "read:/sys/class/infiniband/mlx5_an0/ports/1/gids/0", "rdma.gid-index"),
        ("azure_ndv4_vm", "lines:/proc/modules", "rdma.peermem-not-registered"),
        (f"kept {HGX}", "list:/sys/bus/pci/devices", "policy.gpus-differ"),
        (f"kept {HGX}", "list:/sys/class/infiniband", "policy.nics-differ"),
        (f"kept {HGX}", "realpath:/sys/class/infiniband/", "policy.p2p-missing"),
    ],
)
def test_without_its_evidence_a_check_accuses_nobody(machine: str, begins: str, id_: str) -> None:
    c = case(machine)
    lost = asked(c, begins)
    assert lost
    report = c.without(lost, "error")
    assert [(f.id, f.title) for f in report.findings if f.id == id_ and f.state in (State.FAIL, State.WARN)] == []
    assert next(r for r in report.results if r.id == id_).state is State.UNKNOWN


def of_check(report: Report, id_: str) -> list[tuple[str, State]]:
    return [(f.subject, f.state) for f in report.findings if f.id == id_]


def test_a_link_whose_state_is_lost_makes_a_half_seated_bridge_no_failure() -> None:
    c = case("h56_bridge_half_seated")
    before = of_check(c.base, "nvlink.links-down")
    assert {state for _, state in before} == {State.WARN}
    assert of_check(c.without(["nvml:DeviceGetNvLinkState|0|0"], "error"), "nvlink.links-down") == before


def test_a_port_is_down_wherever_its_device_is() -> None:
    """The finding stays, without the PCI address."""
    c = case("h21_port_polling")
    assert of_check(c.base, "rdma.port-down") == [("0000:ac:00.0 mlx5_5 port 1", State.WARN)]
    after = c.without(asked(c, "realpath:/sys/class/infiniband/"), "denied")
    assert of_check(after, "rdma.port-down") == [("mlx5_5 port 1", State.WARN)]
    assert list(c.compare(after, "", {})) == []


def test_a_machine_that_may_be_a_guest_has_no_path_in_order() -> None:
    c = case("h71_behind_chipset")
    report = c.without(asked(c, "read:/proc/cpuinfo"), "timed_out")
    assert next(r for r in report.results if r.id == "pcie.narrower-than-siblings").state is State.UNKNOWN


def lose(name: str, question: str, reason: Reason = Reason.DENIED) -> Report:
    answers = record(name)
    assert question in answers
    return build_report(Host(RecordedBackend(answers | {question: HostError(reason, "EACCES")}), name))


def told(report: Report) -> list[Finding]:
    return [f for f in report.findings if f.id == "probe.answers-lost"]


def test_one_cause_is_told_once_and_every_check_that_needs_it_is_unknown() -> None:
    report = lose("h15_hca_prefix", "environ:")
    (f,) = told(report)
    assert (f.state, f.subject) == (State.UNKNOWN, "probe system")  # the first to ask for the environment
    assert "environment (denied)" in f.title
    assert f.evidence[0].source == "environment"
    unknown = {r.id: r.detail for r in report.results if r.state is State.UNKNOWN}
    assert {"nccl.hca-prefix", "nccl.unknown-setting", "rdma.gid-index"} <= unknown.keys()
    assert unknown["nccl.hca-prefix"].startswith(MissingData.LOST)
    assert "environment: denied" in unknown["nccl.hca-prefix"]


def test_what_nobody_needs_is_no_matter() -> None:
    """The firmware's name of the machine, the speed of an interface, a counter that is not judged."""
    for question in (
        "read:/proc/sys/kernel/random/boot_id",
        "read:/sys/class/net/eno1/speed",
        "nvml:DeviceGetSerial|0",
    ):
        report = lose(HGX, question)
        assert told(report) == []
        assert [r.id for r in report.results if r.state is State.UNKNOWN] == []


@pytest.mark.parametrize("question", ["conf:/etc/nccl.conf", "read:/var/run/nvidia-topologyd/virtualTopology.xml"])
def test_a_file_that_nccl_may_not_read_either_is_an_answer(question: str) -> None:
    report = lose(HGX, question)
    assert told(report) == []
    assert [f.state for f in report.findings if f.id in ("nccl.conf-shadowed", "nccl.topo-file")] == [State.WARN]
    assert told(lose(HGX, question, Reason.TIMED_OUT)) != []


def test_nccls_choice_is_not_known_without_what_it_sees() -> None:
    """Without the links of a GPU it would be reported to take shared memory."""
    whole = build_report(Host(RecordedBackend(record(HGX)), HGX)).nccl
    assert {p.transport for p in whole.pairs} <= {"P2P/CUMEM", "NET/GDRDMA", "NET"}
    nccl = lose(HGX, "nvml:DeviceGetNvLinkState|3|0").nccl
    assert all(isinstance(p.transport, Missing) for p in nccl.pairs)
    assert (isinstance(nccl.nvls, Missing), nccl.bounds) == (True, ())
    assert lose(HGX, "nvml:DeviceGetSerial|0").nccl == whole


def test_a_check_that_has_nothing_to_judge_needs_no_evidence() -> None:
    """Without an NCCL setting nobody has to know whether the GPUs have peer access."""
    report = lose("laptop", "run:3|systemctl|show|--property=Id,LoadState,ActiveState|nvidia-fabricmanager.service"
                  "|nvidia-imex.service|nvidia-persistenced.service", Reason.TIMED_OUT)  # fmt: skip
    assert told(report) == []
    assert next(r for r in report.results if r.id == "nvlink.imex").state is State.NOT_APPLICABLE


def test_another_file_that_says_the_same_makes_up_for_it() -> None:
    answers = record(HGX)
    question = next(q for q in answers if q.endswith("0000:5c:00.0/class"))
    modalias = question.replace("/class", "/modalias")
    assert isinstance(answers[modalias], HostError)  # so the five numbers come from files of their own
    assert told(lose(HGX, modalias, Reason.DENIED)) == []
    assert told(lose(HGX, question)) != []


def conclusion(report: Report, policy: Policy) -> tuple[State, int]:
    outcome = conclude(report.node, report.findings, report.results, policy)
    return outcome.state, outcome.exit_code


def test_exit_codes() -> None:
    report = lose("h15_hca_prefix", "list:/sys/class/infiniband")
    assert conclusion(report, Policy()) == (State.UNKNOWN, EXIT_OK)
    assert conclusion(report, Policy(strict=True)) == (State.UNKNOWN, EXIT_FAILED)
    required = Policy(checks={"nccl.hca-prefix": CheckPolicy(require=True)})
    assert conclusion(report, required) == (State.UNKNOWN, EXIT_UNKNOWN)


def test_a_failure_that_is_still_seen_stays_one() -> None:
    report = lose("h12_acs_redirect", "list:/sys/class/infiniband")
    assert conclusion(report, Policy())[1] == EXIT_FAILED


def test_a_probe_that_broke_leaves_facts_that_say_so() -> None:
    """Not the word for what a machine does not have."""
    answers = {q: a for q, a in record("h100_x2_vm").items() if "/proc/sys" not in q}
    answers["probe:pci"] = {"state": "failed", "ms": 1.0, "detail": "x"}
    answers["list:/sys/bus/pci/devices"] = ["0000:00:00.0", 3]  # of a form that no answer has
    node = build_report(Host(RecordedBackend(answers), "x")).node
    assert isinstance(node.pci.devices, Missing)
    assert is_lost(node.pci.devices)


@pytest.mark.parametrize(
    ("why", "lost"),
    [
        (Missing(Reason.ABSENT, "ENOENT"), False),
        (Missing(Reason.UNSUPPORTED, "NVMLError_NotSupported"), False),
        (Missing(Reason.UNSUPPORTED, "EINVAL"), False),
        (Missing(Reason.UNSUPPORTED, "EIO"), True),
        (Missing(Reason.UNSUPPORTED, "NVMLError_Unknown"), True),
        (Missing(Reason.UNSUPPORTED, "the process that asked it crashed (signal 11)"), True),
        *(
            (error_of(loss, "read:/x").missing(), True)
            for loss in ("denied", "timed_out", "not_recorded", "unparsable")
        ),
        (Missing(Reason.NOT_VISIBLE_HERE), False),
    ],
)
def test_what_is_lost_and_what_is_an_answer(why: Missing, lost: bool) -> None:
    assert is_lost(why) is lost


def test_the_machines_with_faults_are_those_they_seem() -> None:
    """None of them is broken by what is laid over it."""
    for name in FAULTS:
        assert [f.title for f in case(name).base.findings if "own fault" in f.title] == [], name
        assert faulty(name)


def test_without_the_groups_of_the_devices_the_iommu_is_not_known() -> None:
    c = case("bound")
    assert {v.verdict for v in c.base.gpudirect.rdma if v.from_label == "GPU0"} >= {Verdict.DEGRADED}
    groups = [q for q in c.questions if q.startswith("readlink:/sys/bus/pci/devices/") and q.endswith("/iommu_group")]
    verdicts = {v.verdict for v in c.without(groups, "not_recorded").gpudirect.rdma if v.from_label == "GPU0"}
    assert Verdict.YES not in verdicts


@pytest.mark.parametrize("address", ["0000:cb:00.0", ""])
def test_switches_whose_board_is_not_known_are_still_compared(address: str) -> None:
    c = case("hardware")
    lost = [q for q in c.questions if q.startswith(f"read:/sys/bus/pci/devices/{address}") and "subsystem_device" in q]
    assert lost
    report = c.without(lost, "not_recorded")
    assert [f.state for f in report.findings if f.id == "consistency.gpu-missing"] == [State.WARN]


HIDING = ("access:/dev/nvidia1|", "list:/dev", "list:/proc/driver/nvidia/gpus", "read:/proc/driver/nvidia/version",
          "lines:/proc/driver/nvidia/gpus/0000:46:00.0/")  # fmt: skip
"""What says that the device cgroup hides GPU1 of h46_task_of_one_gpu."""


def states_of(report: Report, id_: str, address: str = "") -> list[State]:
    return [f.state for f in report.findings if f.id == id_ and (not address or address in f.devices)]


@pytest.mark.parametrize("begins", HIDING)
def test_a_gpu_that_may_be_hidden_from_this_task_is_no_failure(begins: str) -> None:
    c = case("h46_task_of_one_gpu")
    report = c.without(asked(c, begins), "timed_out")
    assert states_of(report, "driver.gpu-not-listed", "0000:46:00.0") == [State.UNKNOWN]
    assert states_of(report, "p2p.hidden-from-task") == [State.UNKNOWN]


def test_two_gpus_that_a_task_may_open_are_enough() -> None:
    """GPU2 may be hidden or not: this step has two GPUs in any case."""
    c = case("h47_step_of_two_gpus")
    assert states_of(c.without(asked(c, "access:/dev/nvidia2|"), "timed_out"), "p2p.hidden-from-task") == []


@pytest.mark.parametrize("begins", ["access:/dev/nvidia0|", "list:/dev", "list:/proc/driver/nvidia/gpus"])
def test_gpus_that_nvml_lists_are_not_hidden(begins: str) -> None:
    c = case(HGX)
    report = c.without(asked(c, begins), "timed_out")
    assert states_of(report, "driver.gpu-not-listed") + states_of(report, "p2p.hidden-from-task") == []


@pytest.mark.parametrize(
    ("begins", "files", "state"),
    [
        ("list:/dev", {}, State.UNKNOWN),
        ("list:/dev", {"/dev/kmsg": "NVRM: GPU 0000:5c:00.0: RmInitAdapter failed! (0x62:0x40:2477)"}, State.FAIL),
        # All files may be opened, so none is hidden, whichever is that of this GPU.
        ("list:/proc/driver/nvidia/gpus", {}, State.FAIL),
    ],
)
def test_a_gpu_that_is_not_hidden_fails_still(begins: str, files: dict[str, str], state: State) -> None:
    c = Case("one not driven", record(HGX, patch={"GPU3": {"driver": "none"}}, files=files))
    (f,) = (f for f in c.base.findings if f.id == "driver.gpu-not-listed")
    assert f.devices == ("0000:5c:00.0",)
    report = c.without(asked(c, begins), "timed_out")
    assert states_of(report, "driver.gpu-not-listed", f.devices[0]) == [state]


@pytest.mark.parametrize("what", ["readlink:/sys/bus/pci/devices/", "read:/sys/kernel/iommu_groups/"])
def test_without_iommu_groups_the_driver_may_refuse_a_dma_buf(what: str) -> None:
    c = case("h53_gb200_iommu_groups")
    lost = [q for q in c.questions if q.startswith(what) and q.endswith(("/iommu_group", "/type"))]
    assert lost
    verdicts = [v.dma_buf for v in c.without(lost, "timed_out").gpudirect.rdma]
    assert verdicts == [v.dma_buf for v in c.base.gpudirect.rdma] == [Verdict.UNKNOWN] * len(verdicts)


@pytest.mark.parametrize(
    ("calls", "lost"),
    [
        (("DeviceGetName",), []),
        (("DeviceGetPerformanceState",), []),
        (("DeviceGetName", "DeviceGetPerformanceState"), [State.FAIL]),
    ],
)
def test_a_gpu_without_a_name_is_lost_if_it_answers_nothing_else(calls: tuple[str, ...], lost: list[State]) -> None:
    c = case(HGX)
    report = c.without([f"nvml:{call}|1" for call in calls], "error")
    assert states_of(report, "pcie.device-lost") == lost


def test_without_the_parameters_of_the_driver_a_dma_buf_is_unknown() -> None:
    """One of them may tell it to refuse (NVreg_GrdmaPciTopoCheckOverride=2)."""
    refuses = {"flavor": "open", "params": {"GrdmaPciTopoCheckOverride": 2}}
    c = Case("refuses", record(HGX, driver=refuses, modules={"nvidia_peermem": {"absent": True}}))
    lost = [q for q in c.questions if q.startswith("lines:/proc/driver/nvidia/params|")]
    assert {v.dma_buf for v in c.base.gpudirect.rdma} == {Verdict.NO}
    report = c.without(lost, "timed_out")
    assert {v.dma_buf for v in report.gpudirect.rdma} == {Verdict.UNKNOWN}
    assert states_of(report, "rdma.no-gdr-path") == [State.UNKNOWN]
