"""Fingerprints, alignment, majorities and changes on small hand-made nodes."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compare.facts import device, gpu, lean, mapped, named, nic
from topocheck.compare.changes import changes, diff
from topocheck.compare.decode import decode
from topocheck.compare.fields import KINDS, kind_of
from topocheck.compare.outliers import judge
from topocheck.compare.store import Collection
from topocheck.compare.types import Fleet, NodeFacts
from topocheck.model.base import InputError


def _fleet(*nodes: NodeFacts) -> Fleet:
    collection = Collection()
    for n in nodes:
        collection.add(n)
    return judge(collection)


def _gpus(*addresses: str, **more: Any) -> dict[str, Any]:
    return {"gpus": [gpu(a, **more) for a in addresses], "pci": [device(a) for a in addresses]}


A, B, C = "0000:18:00.0", "0000:3a:00.0", "0000:4b:00.0"


def test_healthy_jitter_does_not_show() -> None:
    one = named("a", **_gpus(A, uuid="GPU-1", fabric_clique=0), limits={"shm_total_bytes": 1000})
    two = named("b", **_gpus(A, uuid="GPU-2", fabric_clique=3), limits={"shm_total_bytes": 1001})
    assert one.fingerprint == two.fingerprint


def test_a_gpu_at_rest_is_equal_to_a_busy_one() -> None:
    port = device("0000:17:00.0", class_code=0x060400)

    def at(speed: float) -> NodeFacts:
        up = {**port, "current_speed_gt_s": speed}
        return named("a", gpus=[gpu(A)], pci=[up, device(A, "0000:17:00.0", current_speed_gt_s=speed)])

    assert at(2.5).fingerprint == at(32.0).fingerprint
    # A port above no GPU is no such thing.
    slow = named("a", pci=[{**port, "current_speed_gt_s": 2.5}])
    fast = named("a", pci=[{**port, "current_speed_gt_s": 32.0}])
    assert slow.fingerprint != fast.fingerprint


def test_other_bus_numbers_are_equal_wiring() -> None:
    assert named("a", **_gpus(A, B)).fingerprint == named("b", **_gpus("0000:19:00.0", "0000:3b:00.0")).fingerprint


@pytest.mark.parametrize(
    ("part", "value"),
    [("vbios", "2"), ("ecc_current", False), ("cpu_node", 1), ("pcie_width_current", 8), ("memory_node", 2)],
)
def test_fields_that_count(part: str, value: object) -> None:
    one, two = named("a", **_gpus(A)), named("a", **_gpus(A, **{part: value}))
    assert one.fingerprint != two.fingerprint
    assert [d.field for d in diff(two, one)] == [part]


def test_the_missing_gpu_is_found_by_its_address() -> None:
    found = diff(named("a", **_gpus(A, C)), named("b", **_gpus(A, B, C)))
    assert [(d.device, d.value) for d in found if d.field == "gpu"] == [(f"GPU 1 {B}", "missing")]
    assert {d.field for d in found} == {"gpu", "gpus", "count"}
    back = diff(named("b", **_gpus(A, B, C)), named("a", **_gpus(A, C)))
    assert [(d.device.split()[-1], d.value) for d in back if d.field == "gpu"] == [(B, "extra")]


def test_a_value_nobody_could_read_is_told_as_unknown() -> None:
    denied = {"host": {"kernel_release": None, "missing": {"kernel_release": "denied: EACCES"}}}
    found = diff(named("a", **denied), named("b", host={"kernel_release": "6.8"}))
    assert [(d.field, d.value, d.majority, d.comparable) for d in found] == [
        ("kernel_release", "unknown (denied)", "6.8", False)
    ]


def test_what_the_machine_has_not_is_a_known_value() -> None:
    without = {"host": {"hypervisor": None, "missing": {"hypervisor": "absent: bare metal"}}}
    found = diff(named("a", host={"hypervisor": "KVM"}), named("b", **without))
    assert [(d.value, d.majority, d.comparable) for d in found] == [("KVM", "absent", True)]


def test_the_odd_one_of_three() -> None:
    usual = {"host": {"driver_version": "570"}}
    fleet = _fleet(named("a", **usual), named("b", host={"driver_version": "550"}), named("c", **usual))
    assert [(o.name, [(d.field, d.value, d.majority) for d in o.differences]) for o in fleet.outliers] == [
        ("b", [("driver_version", "550", "570")])
    ]
    assert fleet.outliers[0].differences[0].share == pytest.approx(2 / 3)
    assert fleet.outliers[0].differences[0].path == "host.driver_version"


def test_two_that_differ_accuse_nobody() -> None:
    fleet = _fleet(named("a", host={"driver_version": "570"}), named("b", host={"driver_version": "550"}))
    assert fleet.outliers == ()
    assert [(m.field, m.values) for m in fleet.hardware_types[0].no_majority] == [
        ("driver_version", (("550", 1), ("570", 1)))
    ]


def test_half_an_update_is_mixed_and_a_straggler_is_odd() -> None:
    def versions(new: int, old: int) -> Fleet:
        nodes = [named(f"n{i}", host={"driver_version": "2" if i < new else "1"}) for i in range(new + old)]
        return _fleet(*nodes)

    assert versions(5, 5).outliers == ()
    assert [o.name for o in versions(9, 1).outliers] == ["n9"]


def test_the_biggest_group_can_be_odd_in_one_field() -> None:
    # Three nodes have x in the setting, twelve others have y there and each another kernel: y is usual. Three are the
    # biggest group, and less than a quarter: no roll-out.
    nodes = [named(f"a{i}", host={"os_name": "x", "kernel_release": "k"}) for i in range(3)]
    nodes += [named(f"b{i}", host={"os_name": "y", "kernel_release": f"k{i}"}) for i in range(12)]
    fleet = _fleet(*nodes)
    odd = {o.name: [d.field for d in o.differences] for o in fleet.outliers}
    assert odd == {f"a{i}": ["os_name"] for i in range(3)}
    assert [m.field for m in fleet.hardware_types[0].no_majority] == ["kernel_release"]


def test_kinds_are_not_compared_with_each_other() -> None:
    nodes = [named(f"gpu{i}", host={"dmi_product": "X"}, **_gpus(A)) for i in range(4)]
    nodes += [named(f"cpu{i}", host={"dmi_product": "Y"}) for i in range(4)]
    fleet = _fleet(*nodes)
    assert len(fleet.hardware_types) == 2
    assert fleet.outliers == ()


def test_a_node_that_lost_all_gpus_is_compared_with_its_kind() -> None:
    fleet = _fleet(*(named(f"n{i}", **_gpus(A, B)) for i in range(5)), named("n9"))
    assert len(fleet.hardware_types) == 1
    assert [o.name for o in fleet.outliers] == ["n9"]


def test_memory_has_a_tolerance_of_three_percent() -> None:
    def node(name: str, size: int) -> NodeFacts:
        return named(name, host={"memory_total_bytes": size << 30})

    near = _fleet(node("a", 1000), node("b", 1020), node("c", 985))
    assert near.outliers == ()
    assert near.hardware_types[0].no_majority == ()
    far = _fleet(node("a", 1000), node("b", 1020), node("c", 960))
    assert [(o.name, o.differences[0].value) for o in far.outliers] == [("c", "960.0 GiB")]
    assert far.outliers[0].differences[0].source == "/proc/meminfo MemTotal"


def test_settings_versions_and_firmware_are_counted() -> None:
    def node(name: str, value: str | None, torch: str) -> NodeFacts:
        own = [] if value is None else [{"name": "NCCL_DEBUG", "value": value, "source": "environment"}]
        return named(name, nccl={"settings": own}, software={"torch": torch})

    fleet = _fleet(node("a", "INFO", "2.6"), node("b", "INFO", "2.6"), node("c", None, "2.5"))
    assert [(c.name, c.values) for c in fleet.settings] == [("NCCL_DEBUG", (("INFO", 2), ("not set", 1)))]
    assert {c.name: c.values for c in fleet.software}["torch"] == (("2.6", 2), ("2.5", 1))


def test_rank_variables_are_no_settings() -> None:
    one = named("a", nccl={"settings": [{"name": "NCCL_HOSTID", "value": "1", "source": "environment"}]})
    assert one.fingerprint == named("a").fingerprint


def test_shadowed_settings_do_not_count() -> None:
    one = named(
        "a", nccl={"settings": [{"name": "NCCL_DEBUG", "value": "x", "source": "environment", "in_force": False}]}
    )
    assert one.fingerprint == named("a").fingerprint


def test_findings_are_gathered_by_node() -> None:
    finding = {"id": "a.b", "state": "fail", "subject": "s", "title": "t"}
    fleet = _fleet(named("b", findings=[finding]), named("a", findings=[finding]), named("c"))
    assert [(f.id, f.nodes) for f in fleet.findings] == [("a.b", ("a", "b"))]


def test_equal_names_are_told_apart_by_file() -> None:
    one = msgspec.structs.replace(named("n"), file="/x/1.json")
    two = msgspec.structs.replace(named("n"), file="/x/2.json")
    assert _fleet(one, two).hardware_types[0].groups[0].nodes == ("n (1.json)", "n (2.json)")


def test_order_does_not_matter() -> None:
    nodes = [named(f"n{i}", host={"kernel_release": str(i % 3)}, **_gpus(A)) for i in range(9)]
    assert _fleet(*nodes) == _fleet(*reversed(nodes))


def test_changes_since_another_look() -> None:
    now, before = Collection(), Collection()
    for n in (
        named("same"),
        named("new"),
        named("other", host={"kernel_release": "2"}),
        named("gpu", **_gpus(A, uuid="2")),
    ):
        now.add(n)
    for n in (
        named("same"),
        named("gone"),
        named("other", host={"kernel_release": "1"}),
        named("gpu", **_gpus(A, uuid="1")),
    ):
        before.add(n)
    found = {c.name: (c.what, [(d.field, d.majority, d.value) for d in c.differences]) for c in changes(now, before)}
    assert found == {
        "new": ("new", []),
        "gone": ("gone", []),
        "other": ("changed", [("kernel_release", "1", "2")]),
        "gpu": ("changed", [("uuid", "1", "2")]),
    }


def test_a_port_that_moved_to_another_network_is_a_change() -> None:
    def look(b: int) -> NodeFacts:
        return named("n", nics=[nic(C, "mlx5_0", (mapped(10, b, 0, 7),))])

    now, before = Collection(), Collection()
    now.add(look(2))
    before.add(look(1))
    (change,) = changes(now, before)
    assert [(d.device, d.field, d.majority, d.value) for d in change.differences] == [
        (f"mlx5_0 {C} port 1", "address", "10.1.0.7", "10.2.0.7")
    ]
    assert change.differences[0].path == f"nics[?address=='{C}'].ports"
    assert diff(look(2), look(1), identifiers=True) == change.differences
    assert diff(look(2), look(1)) == ()  # of two nodes, each has its own


def test_values_have_the_length_of_their_fields() -> None:
    n = named("a", **_gpus(A, B), nics=[{"address": C, "label": "m", "ports": [{"port": 1}]}])
    for slot, values in n.devices.items():
        assert len(values) == len(KINDS[kind_of(slot)]), slot


@given(st.binary(max_size=300))
def test_any_bytes_give_a_report_or_an_input_error(data: bytes) -> None:
    with contextlib.suppress(InputError):
        decode(data, "x")


_TEXT = st.text(max_size=8)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"address": _TEXT, "parent": st.none() | _TEXT, "class_code": st.none() | st.integers(0, 0xFFFFFF)}
        ),
        max_size=6,
    ),
    st.lists(st.fixed_dictionaries({"address": _TEXT, "label": _TEXT, "vendor": _TEXT}), max_size=4),
    st.lists(st.fixed_dictionaries({"from": _TEXT, "to": _TEXT}), max_size=4),
)
def test_any_report_can_be_compared(pci: list[Any], gpus: list[Any], paths: list[Any]) -> None:
    from topocheck.compare.facts import node_facts

    odd = node_facts(lean(pci=pci, gpus=gpus, paths=paths), name="odd")
    fleet = _fleet(odd, named("a", **_gpus(A)), named("b", **_gpus(A)))
    assert fleet.nodes == 3
    diff(odd, named("a", **_gpus(A)))


def test_another_major_version_is_refused() -> None:
    text = msgspec.json.encode({**msgspec.to_builtins(lean()), "schema_version": "3.0"})
    with pytest.raises(InputError, match="schema version"):
        decode(text, "x")
