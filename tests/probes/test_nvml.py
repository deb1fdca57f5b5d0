"""The NVML probe on recorded answers: every field, and what the loss of one answer costs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.probes.nvml_answers import (
    INVALID,
    LINKS,
    LOST,
    NOT_SUPPORTED,
    changed,
    field_values,
    h100_vm,
    host,
    pci_info,
)
from topocheck.host.base import Host, HostError, key
from topocheck.model.base import Missing, Reason
from topocheck.model.gpu import NvmlFacts, NvmlGpu
from topocheck.probes import nvml
from topocheck.probes.nvml import fields


def gpus_of(facts: NvmlFacts) -> tuple[NvmlGpu, ...]:
    assert not isinstance(facts.gpus, Missing)
    return facts.gpus


def missing_fields(gpu: NvmlGpu) -> set[str]:
    return {name for name, value in msgspec.structs.asdict(gpu).items() if isinstance(value, Missing)}


def test_identity_of_h100() -> None:
    facts = nvml.read(host(h100_vm()))
    assert (facts.driver_version, facts.nvml_version, facts.cuda_version) == ("580.159.04", "13.580.159.04", "13.0")
    assert facts.conf_computing is False
    first, second = gpus_of(facts)
    assert (first.address, second.address) == ("0000:00:06.0", "0000:00:07.0")
    assert first.name == "NVIDIA H100 80GB HBM3"
    assert first.compute_capability == "9.0"
    assert first.memory_total_bytes == 85520809984
    assert first.bar1_total_bytes == 128 << 30
    assert (second.board_id, second.module_id, second.minor) == (7, 3, 1)
    assert first.source == "NVML GPU 0000:00:06.0"
    assert first.raw["DeviceGetCurrPcieLinkWidth"] == "16"
    assert not first.lost
    assert first.error == ""


def test_state_of_h100() -> None:
    first, _ = gpus_of(nvml.read(host(h100_vm())))
    assert (first.pcie_gen_current, first.pcie_width_current, first.pcie_replays) == (5, 16, 1)
    assert first.pcie_errors["recoveries"] == 849
    assert first.pcie_errors["bad_tlps"] == 25
    assert len(first.pcie_errors) == 13
    assert (first.clock_sm_mhz, first.clock_sm_max_mhz, first.clock_event_reasons) == (345, 1980, 1)
    assert (first.mig_current, first.ecc_current, first.ecc_pending, first.persistence_mode) == (
        False,
        True,
        True,
        True,
    )
    assert (first.compute_mode, first.virtualization_mode, first.addressing_mode) == ("Default", "PassThrough", "None")
    assert (first.cpu_affinity, first.memory_affinity) == ("0-31", "0")
    assert first.numa_node == Missing(Reason.UNSUPPORTED, "NVMLError_NotSupported")
    assert (first.c2c_enabled, first.c2c_links) == (False, Missing(Reason.UNSUPPORTED, "Not Supported"))
    assert first.processes == ()


def test_nvlinks_fabric_and_pairs_of_h100() -> None:
    facts = nvml.read(host(h100_vm()))
    first, _ = gpus_of(facts)
    assert (first.fabric_state, first.fabric_status, first.fabric_clique) == ("Completed", "Success", 0)
    assert first.fabric_cluster_uuid == "00000000-0000-0000-0000-000000000000"
    assert [link.link for link in first.nvlinks] == list(range(18))
    link = first.nvlinks[17]
    assert (link.active, link.version, link.speed_mb_s, link.remote_type) == (True, 4, 26562, "switch")
    assert link.remote_address == Missing(Reason.NOT_VISIBLE_HERE, "FFFFFFFF:FF:FF.0")
    assert link.errors == {"replay": 0, "recovery": 0, "crc": 0}
    assert link.capabilities["p2p_atomics"] is True
    assert [(p.from_address, p.to_address) for p in facts.p2p] == [
        ("0000:00:06.0", "0000:00:07.0"),
        ("0000:00:07.0", "0000:00:06.0"),
    ]
    for p in facts.p2p:
        assert (p.read, p.write, p.nvlink, p.atomics, p.pcie, p.ancestor) == ("OK", "OK", "OK", "OK", "NS", "PHB")


SINGLE = [
    ("serial", "DeviceGetSerial", ()),
    ("vbios", "DeviceGetVbiosVersion", ()),
    ("architecture", "DeviceGetArchitecture", ()),
    ("pcie_width_current", "DeviceGetCurrPcieLinkWidth", ()),
    ("performance_state", "DeviceGetPerformanceState", ()),
    ("clock_sm_mhz", "DeviceGetClockInfo", (1,)),
    ("utilization_percent", "DeviceGetUtilizationRates", ()),
    ("compute_mode", "DeviceGetComputeMode", ()),
    ("virtualization_mode", "DeviceGetVirtualizationMode", ()),
    ("addressing_mode", "DeviceGetAddressingMode", ()),
    ("cpu_affinity", "DeviceGetCpuAffinity", (64,)),
    ("memory_affinity", "DeviceGetMemoryAffinity", (16, 0)),
    ("c2c_enabled", "DeviceGetC2cModeInfoV", ()),
    ("bar1_total_bytes", "DeviceGetBAR1MemoryInfo", ()),
    ("address", "DeviceGetPciInfo", ()),
]


@pytest.mark.parametrize(("field", "call", "args"), SINGLE, ids=[s[0] for s in SINGLE])
def test_one_failing_call_loses_one_field(field: str, call: str, args: tuple[int, ...]) -> None:
    before, _ = gpus_of(nvml.read(host(h100_vm())))
    denied = HostError(Reason.DENIED, "NVMLError_NoPermission")
    after, other = gpus_of(nvml.read(host(changed(h100_vm(), call, denied, 0, *args))))
    assert getattr(after, field) == Missing(Reason.DENIED, "NVMLError_NoPermission")
    assert missing_fields(after) - missing_fields(before) == {field}
    assert getattr(other, field) == getattr(gpus_of(nvml.read(host(h100_vm())))[1], field)


def test_all_field_values_failing_costs_no_link() -> None:
    answers = {k: NOT_SUPPORTED if "FieldValues" in k else v for k, v in h100_vm().items()}
    # Without a count from the driver every one of the 36 possible links is asked for.
    for i in range(2):
        answers |= {key("nvml", ("DeviceGetNvLinkState", i, link)): INVALID for link in range(LINKS, 36)}
    first, _ = gpus_of(nvml.read(host(answers)))
    assert isinstance(first.nvlink_count, Missing)
    assert len(first.nvlinks) == LINKS
    assert all(isinstance(link.speed_mb_s, Missing) and link.active is True for link in first.nvlinks)
    assert first.pcie_errors == {}
    assert first.pcie_replays == 1


def test_replays_from_the_field_value_where_the_call_is_gone() -> None:
    gone = HostError(Reason.UNSUPPORTED, "NVMLError_FunctionNotFound")
    own = fields.device_fields()
    answers = changed(h100_vm(), "DeviceGetPcieReplayCounter", gone, 0)
    answers = changed(answers, "DeviceGetFieldValues", field_values(own, {91: LINKS, 94: 17}), 0, own)
    first, _ = gpus_of(nvml.read(host(answers)))
    assert first.pcie_replays == 17


def test_inactive_link_and_failing_link_leave_the_rest() -> None:
    answers = changed(h100_vm(), "DeviceGetNvLinkState", 0, 0, 3)
    answers = changed(answers, "DeviceGetNvLinkState", HostError(Reason.UNSUPPORTED, "NVMLError_Unknown"), 0, 4)
    first, _ = gpus_of(nvml.read(host(answers)))
    assert len(first.nvlinks) == LINKS
    assert first.nvlinks[3].active is False
    assert first.nvlinks[3].speed_mb_s == Missing(Reason.ABSENT, "inactive")
    assert first.nvlinks[4].active == Missing(Reason.UNSUPPORTED, "NVMLError_Unknown")
    assert sum(link.active is True for link in first.nvlinks) == 16


def test_links_without_a_count_and_with_a_gap() -> None:
    """A driver that does not count links, and a first link that does not answer: the others are still there."""
    own = fields.device_fields()
    answers = changed(h100_vm(), "DeviceGetFieldValues", field_values(own, {}), 0, own)
    for link in range(36):
        answers[key("nvml", ("DeviceGetNvLinkState", 0, link))] = 1 if link in (1, 2, 3) else NOT_SUPPORTED
    first, _ = gpus_of(nvml.read(host(answers)))
    assert [link.link for link in first.nvlinks] == [1, 2, 3]


def test_card_without_nvlink_has_no_links_and_no_question_about_them() -> None:
    own = fields.device_fields()
    answers = changed(h100_vm(), "DeviceGetFieldValues", field_values(own, {91: 0}), 0, own)
    answers = {k: v for k, v in answers.items() if "NvLink" not in k or "|1|" in k}
    first, _ = gpus_of(nvml.read(host(answers)))
    assert (first.nvlink_count, first.nvlinks) == (0, ())


def test_speed_by_the_fields_of_old_drivers() -> None:
    """Six links of a V100: NVML's old fields 84 to 89 hold 25781 MB/s (25.781 GB/s in `nvidia-smi nvlink -s`)."""
    own, new = fields.device_fields(), fields.link_speed_fields(6)
    old = "84:0,85:0,86:0,87:0,88:0,89:0"
    answers = changed(h100_vm(), "DeviceGetFieldValues", field_values(own, {91: 6}), 0, own)
    answers[key("nvml", ("DeviceGetFieldValues", 0, new))] = field_values(new, {})
    answers[key("nvml", ("DeviceGetFieldValues", 0, old))] = field_values(old, dict.fromkeys(range(84, 90), 25781))
    first, _ = gpus_of(nvml.read(host(answers)))
    assert [link.speed_mb_s for link in first.nvlinks] == [25781] * 6


def lost_gpu(index: int) -> dict[str, Any]:
    def about(k: str) -> bool:
        call, _, rest = k.removeprefix("nvml:").partition("|")
        return call.startswith("DeviceGet") and rest.split("|")[0] == str(index)

    return {k: LOST if about(k) else v for k, v in h100_vm().items()}


def test_lost_gpu_loses_itself_and_its_pairs() -> None:
    answers = lost_gpu(1)
    answers["list:/proc/driver/nvidia/gpus"] = ["0000:00:06.0", "0000:00:07.0"]
    facts = nvml.read(host(answers))
    first, second = gpus_of(facts)
    assert not first.lost
    assert len(first.nvlinks) == LINKS
    assert second.lost
    assert second.error == "NVMLError_GpuIsLost"
    assert second.address == "0000:00:07.0"
    assert len(facts.p2p) == 2
    assert all(p.read == Missing(Reason.UNSUPPORTED, "NVMLError_GpuIsLost") for p in facts.p2p)


def test_lost_gpu_without_an_address_from_elsewhere() -> None:
    answers = lost_gpu(1)
    answers["list:/proc/driver/nvidia/gpus"] = ["0000:00:06.0"]
    _, second = gpus_of(nvml.read(host(answers)))
    assert second.lost
    assert isinstance(second.address, Missing)


def test_gpu_lost_half_way_is_asked_nothing_more() -> None:
    asked: list[str] = []
    answers = changed(h100_vm(), "DeviceGetMigMode", LOST, 1)

    class Watching:
        def ask(self, kind: str, *args: str | int) -> Any:
            asked.append(key(kind, args))
            return host(answers)._ask(kind, *args)

    _, second = gpus_of(nvml.read(Host(Watching())))
    assert second.lost
    assert second.name == "NVIDIA H100 80GB HBM3"
    about_second = [k for k in asked if k.partition("|")[2].split("|")[0] == "1"]
    assert about_second[-1] == "nvml:DeviceGetMigMode|1"


def test_denied_and_hung_gpus_are_not_called_lost() -> None:
    for reason, detail in ((Reason.DENIED, "NVMLError_NoPermission"), (Reason.TIMED_OUT, "no answer in 10 s")):
        answers = {k: HostError(reason, detail) if v is LOST else v for k, v in lost_gpu(1).items()}
        _, second = gpus_of(nvml.read(host(answers)))
        assert not second.lost
        assert second.error == f"{reason.value}: {detail}"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (HostError(Reason.ABSENT, "libnvidia-ml.so.1 not found"), "libnvidia-ml.so.1 is not on this machine"),
        (HostError(Reason.ABSENT, "NVMLError_DriverNotLoaded"), "not loaded"),
        (HostError(Reason.UNSUPPORTED, "NVMLError_LibRmVersionMismatch"), "different versions"),
        (HostError(Reason.TIMED_OUT, "no answer in 10 s"), "does not answer"),
    ],
    ids=["library", "driver", "mismatch", "hang"],
)
def test_without_nvml(error: HostError, words: str) -> None:
    facts = nvml.read(host({"nvml:DeviceGetCount": error}))
    assert facts.gpus == error.missing()
    assert facts.driver_version == error.missing()
    assert words in facts.error


def test_driver_without_gpu() -> None:
    facts = nvml.read(host(changed(h100_vm(), "DeviceGetCount", 0)))
    assert (facts.gpus, facts.p2p, facts.driver_version) == ((), (), "580.159.04")


def test_mig_instances_with_a_gap() -> None:
    answers = changed(h100_vm(), "DeviceGetMigMode", [1, 1], 0)
    answers[key("nvml", ("DeviceGetMaxMigDeviceCount", 0))] = 3
    for m, answer in enumerate(({"uuid": "MIG-a", "name": "MIG 1g.10gb"}, HostError(Reason.ABSENT), {"uuid": "MIG-b"})):
        answers[key("nvml", ("DeviceGetMigDeviceHandleByIndex", 0, m))] = answer
    first, _ = gpus_of(nvml.read(host(answers)))
    assert first.mig_current is True
    assert [(m.uuid, isinstance(m.name, Missing)) for m in first.mig_instances] == [("MIG-a", False), ("MIG-b", True)]


def test_chip_to_chip_links() -> None:
    own, status = fields.device_fields(), "171:0,171:1,171:2"
    answers = changed(h100_vm(), "DeviceGetFieldValues", field_values(own, {91: 0, 170: 3, 172: 44712}), 0, own)
    answers[key("nvml", ("DeviceGetFieldValues", 0, status))] = [[171, 0, 1, 0], [171, 1, 0, 0], [171, 2, 1, 0]]
    first, _ = gpus_of(nvml.read(host(answers)))
    assert (first.c2c_links, first.c2c_links_active, first.c2c_link_mb_s) == (3, 2, 44712)


def test_visible_far_end_of_a_link_keeps_its_domain() -> None:
    answers = changed(h100_vm(), "DeviceGetNvLinkRemotePciInfo", pci_info("0001000F:C1:00.0"), 0, 0)
    first, _ = gpus_of(nvml.read(host(answers)))
    assert first.nvlinks[0].remote_address == "1000f:c1:00.0"


def test_no_gpu_count_is_believed_beyond_reason() -> None:
    facts = nvml.read(host(changed(h100_vm(), "DeviceGetCount", 10**9)))
    assert facts.gpus == Missing(Reason.UNPARSABLE, "1000000000: more than 256 GPUs")


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.data())
def test_any_answers_give_facts_of_the_right_types(data: st.DataObject) -> None:
    """Some answers of the machine replaced by anything: no error, and what comes out passes a strict decoder."""
    answers = h100_vm()
    for k in data.draw(st.lists(st.sampled_from(sorted(answers)), max_size=12)):
        answers[k] = data.draw(plain)
    facts = nvml.read(host(answers))
    assert msgspec.json.decode(msgspec.json.encode(facts), type=NvmlFacts) == facts
