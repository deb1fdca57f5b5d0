"""One sample of described machines: what is read, what is not woken, and what one lost device costs the others."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.machines.builder import Machine, machine
from topocheck.host.base import Answer, Host
from topocheck.model.base import Missing, Reason
from topocheck.monitor.child import read
from topocheck.monitor.plan import Plan, devices_of, plan_of
from topocheck.overtime.types import Sample, sample_of
from topocheck.pipeline import read_node
from topocheck.topology.build import build

HGX = "hgx_h100_cx7"


class Asked:
    """A machine that keeps what it was asked."""

    def __init__(self, of: Machine) -> None:
        self._inner = of.backend
        self.questions: list[str] = []

    def ask(self, kind: str, *args: str | int) -> Answer:
        self.questions.append(f"{kind}:{'|'.join(map(str, args))}")
        return self._inner.ask(kind, *args)


def plan(name: str = HGX, **overrides: Any) -> Plan:
    host = machine(name, **overrides).host()
    node = read_node(host)
    return plan_of(build(node), node, 10)


def sample(of: Plan, name: str = HGX, *, full: bool = True, **overrides: Any) -> tuple[Sample, list[str]]:
    asked = Asked(machine(name, **overrides))
    host = Host(asked)
    readings = read(host, "nvml", of, full=full) + read(host, "sysfs", of, full=full)
    return sample_of(0.0, readings), asked.questions


def test_a_full_sample_has_every_device() -> None:
    got, _ = sample(plan())
    assert (len(got.gpus), len(got.nvlinks), len(got.ports)) == (8, 8 * 18, 8 + 2)
    # Each GPU, each of the 8 NICs beside them and the ports above: root port, upstream and two downstream ports.
    assert len(got.functions) >= 8 * 6
    gpu = got.gpus[0]
    assert (gpu.address, gpu.pcie_gen, gpu.pcie_width_lanes, gpu.clock_sm_mhz) == ("0000:18:00.0", 5, 16, 345)
    assert got.ports[0].counters["link_downed"] == 0
    assert {"aer_fatal", "aer_nonfatal", "aer_link_errors"} <= got.functions[0].counters.keys()


def test_between_full_samples_costly_counters_are_not_asked() -> None:
    _, full = sample(plan())
    got, few = sample(plan(), full=False)
    assert not got.nvlinks
    assert not any("aer_dev" in q or "link_downed" in q or "NvLink" in q for q in few)
    assert not any("DeviceGetFieldValues" in q or "PcieThroughput" in q for q in few)
    assert len(few) < len(full) / 3


def test_nvlink_traffic_is_read_in_each_sample_where_it_is_asked_for() -> None:
    """138 and 139 are NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX (nvml.h)."""
    _, few = sample(msgspec.structs.replace(plan(), traffic=True), full=False)
    asked = [q for q in few if "DeviceGetFieldValues" in q]
    assert len(asked) == 8
    assert all(q.split("|")[2].split(",") == [f"138:{(1 << 32) - 1}", f"139:{(1 << 32) - 1}"] for q in asked), asked


def test_a_suspended_device_is_not_woken() -> None:
    off = {"GPU3": {"runtime": "suspended", "power": "D3cold"}, "mlx5_2": {"runtime": "suspended"}}
    whole = plan()
    got, questions = sample(whole, patch=off)
    gpu = next(g for g in got.gpus if g.index == 3)
    assert gpu.suspended
    nic = next(d.address for d in devices_of(build(read_node(machine(HGX).host()))) if d.label == "mlx5_2")
    for address in (gpu.address, nic):
        asked = {q for q in questions if address in q}
        assert asked == {f"read:/sys/bus/pci/devices/{address}/power/runtime_status"}
    assert not any(q.startswith("nvml:") and q.split("|")[1] == "3" for q in questions if "|" in q)


def test_a_lost_gpu_costs_the_others_nothing() -> None:
    whole = plan()
    got, questions = sample(whole, patch={"GPU3": {"lost": "1"}})
    assert [g.index for g in got.gpus if g.lost] == [3]
    assert all(isinstance(g.clock_sm_mhz, int) for g in got.gpus if not g.lost)
    # The first question says that it is lost; each further one might hang.
    assert sum(q.startswith("nvml:") and q.split("|")[1] == "3" for q in questions if "|" in q) == 1


def test_a_function_that_is_gone_is_said_to_be_gone() -> None:
    m = machine(HGX)
    m.tree.remove("/sys/class/infiniband/mlx5_2")
    m.tree.remove(f"/sys/bus/pci/devices/{m.label('GPU3').address}")
    got = sample_of(0.0, read(m.host(), "sysfs", plan(), full=True))
    assert [p.subject for p in got.ports if p.gone] == ["mlx5_2/1"]
    assert [f.address for f in got.functions if f.gone] == [m.label("GPU3").address]


def test_counters_that_cannot_be_read_say_why() -> None:
    path = "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
    got, _ = sample(plan(), files={path: {"error": "EINVAL"}})
    port = next(p for p in got.ports if p.device == "mlx5_0")
    assert "link_downed" not in port.counters
    assert port.missing["link_downed"] == Missing(Reason.UNSUPPORTED, "EINVAL")


def test_carrier_losses_of_an_interface_are_those_of_its_roce_port() -> None:
    of = plan()
    assert of.interfaces == (("mlx5_8", "ens7f0np0"), ("mlx5_9", "ens8f0np0"))  # the other eight are InfiniBand
    lost = {"/sys/class/net/ens7f0np0/carrier_down_count": "3"}
    got, _ = sample(of, files=lost)
    counts = {p.subject: p.counters.get("carrier_down_count") for p in got.ports}
    assert counts.pop("mlx5_8/1") == 3
    assert set(counts.values()) == {None}
    _, between = sample(of, full=False, files=lost)
    assert not any("carrier_down_count" in q for q in between)


def test_of_two_interfaces_on_one_function_neither_is_the_ports() -> None:
    node = read_node(machine(HGX).host())
    assert not isinstance(node.net.interfaces, Missing)
    second = next(i for i in node.net.interfaces if i.name == "ens7f0np0")
    more = (*node.net.interfaces, msgspec.structs.replace(second, name="ens7f0npf0vf0"))
    node = msgspec.structs.replace(node, net=msgspec.structs.replace(node.net, interfaces=more))
    assert plan_of(build(node), node).interfaces == (("mlx5_9", "ens8f0np0"),)


def test_a_machine_without_anything_has_nothing_to_sample() -> None:
    got, questions = sample(Plan())
    assert got == Sample(at_s=0.0)
    assert questions == []


def test_what_both_ends_can_do_is_not_known_of_a_guest() -> None:
    devices = devices_of(build(read_node(machine("h100_x2_vm").host())))
    assert devices
    assert all(isinstance(d.max_width_lanes, Missing) for d in devices)
    assert {d.max_width_lanes for d in devices_of(build(read_node(machine(HGX).host()))) if d.is_gpu} == {16}
