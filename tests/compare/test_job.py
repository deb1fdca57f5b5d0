"""What differs between nodes means something to a job over them: the same in fleet, diff and report --cluster."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines.builder import machine
from topocheck.compare.decode import from_document
from topocheck.compare.facts import node_facts
from topocheck.compare.job import job_problems
from topocheck.compare.outliers import judge
from topocheck.compare.store import Collection
from topocheck.compare.types import JobFacts, JobPort, NodeFacts
from topocheck.knowledge.job_settings import job_setting
from topocheck.pipeline import build_report
from topocheck.render.report_json import report_document

HGX = "hgx_h100_cx7"
ROCE = {"nics": {"layer": "Ethernet"}}


def facts(name: str, **overrides: Any) -> NodeFacts:
    return node_facts(from_document(report_document(build_report(machine(HGX, **overrides).host()), "0")), name=name)


def problems(*nodes: NodeFacts) -> dict[str, tuple[str, str, str]]:
    found = job_problems([(n.name, n.job) for n in nodes])
    return {p.what: (p.state, p.subject, f"{p.title} {p.consequence} {p.fix}") for p in found}


def test_equal_nodes_have_no_problem() -> None:
    assert problems(facts("a"), facts("b")) == {}


def test_one_rail_of_another_mtu() -> None:
    a, b = facts("a", **ROCE), facts("b", **ROCE, patch={"mlx5_3": {"mtu": "1500"}})
    state, subject, text = problems(a, b)["mtu"]
    assert (state, subject) == ("fail", "mlx5_3")
    for word in ("9000 on a", "1500 on b", "status 9", "switch port"):
        assert word in text


def test_one_rail_of_another_netmask() -> None:
    """A sends to B's 10.3.1.7 through a router, since its network is 10.3.0.0/24; B takes A for a neighbour (/16)."""
    eth4 = {"addresses": {"eth4": ["10.3.0.1/24"]}}, {"addresses": {"eth4": ["10.3.1.7/16"]}}
    a, b = (facts(n, **ROCE, **more) for n, more in zip("ab", eth4, strict=True))
    state, subject, text = problems(a, b)["netmask"]
    assert (state, subject) == ("warn", "mlx5_3")
    for word in ("/24 on a", "/16 on b", "prefix length"):
        assert word in text
    assert "netmask" not in problems(a, facts("c", **ROCE, addresses={"eth4": ["10.3.0.9/24", "fe80::1/64"]}))


def test_a_device_that_one_node_may_not_open() -> None:
    b = facts("b", files={"/dev/infiniband/uverbs1": {"error": "EPERM"}})
    state, _, text = problems(facts("a"), b)["hcas"]
    assert state == "fail"
    assert "10 on a" in text
    assert "9 on b" in text
    assert "of b may not be opened" in text
    assert "hang" in text


def test_a_port_that_is_down_on_one_node() -> None:
    state, _, text = problems(facts("a"), facts("b", patch={"mlx5_2": {"state": "DOWN/Polling"}}))["hcas"]
    assert state == "warn"
    assert "mlx5_2 of b is down" in text


def test_a_node_without_one_nic_is_not_compared_port_by_port() -> None:
    """Behind the missing card each NIC stands one place further on: mlx5_2, Ethernet on both, where a has mlx5_1."""
    a = (JobPort("nic0/1", "mlx5_0", "InfiniBand"), JobPort("nic1/1", "mlx5_1", "InfiniBand"),
         JobPort("nic2/1", "mlx5_2", "Ethernet"))  # fmt: skip
    b = (a[0], JobPort("nic1/1", "mlx5_2", "Ethernet"))
    found = job_problems([("a", JobFacts(nics=3, ports=a)), ("b", JobFacts(nics=2, ports=b))])
    assert [p.what for p in found] == []


def test_link_layers_that_cannot_connect() -> None:
    state, subject, text = problems(facts("a"), facts("b", patch={"mlx5_0": {"layer": "Ethernet"}}))["link-layer"]
    assert (state, subject) == ("fail", "mlx5_0")
    assert "cannot connect" in text


@pytest.mark.parametrize(
    ("name", "value", "state"),
    [("NCCL_ALGO", "Ring", "fail"), ("NCCL_IB_DISABLE", "1", "fail"), ("NCCL_IB_TC", "106", "warn")],
)
def test_settings_that_must_be_alike(name: str, value: str, state: str) -> None:
    found = problems(facts("a"), facts("b", environment={name: value}))
    assert found["setting"][:2] == (state, name)
    assert "not set on a" in found["setting"][2]


def test_settings_that_each_node_may_have_for_itself() -> None:
    assert problems(facts("a"), facts("b", environment={"NCCL_SOCKET_IFNAME": "eno1", "NCCL_DEBUG": "INFO"})) == {}
    assert job_setting("NCCL_SOCKET_IFNAME") is None


def test_nccl_of_two_versions() -> None:
    a, b = JobFacts(version="2.27.3"), JobFacts(version="2.26.2")
    (p,) = job_problems([("a", a), ("b", b), ("c", a)])
    assert (p.state, p.what) == ("fail", "nccl-version")
    assert p.values == (("2.27.3", ("a", "c")), ("2.26.2", ("b",)))
    assert job_problems([("a", a), ("b", JobFacts())]) == ()


def test_imex_on_some_nodes_of_a_domain() -> None:
    (p,) = job_problems([("a", JobFacts(imex="yes")), ("b", JobFacts(imex="no")), ("c", JobFacts(imex=""))])
    assert (p.state, p.what) == ("fail", "imex")
    assert {n for _, nodes in p.values for n in nodes} == {"a", "b"}


def test_a_fleet_tells_it_per_kind() -> None:
    c = Collection()
    for n in (facts("a", **ROCE), facts("b", **ROCE), facts("c", **ROCE, patch={"mlx5_3": {"mtu": "1500"}})):
        c.add(n)
    (p,) = judge(c).job
    assert (p.what, p.values) == ("mtu", (("9000", ("a", "b")), ("1500", ("c",))))


_JOB = st.builds(
    JobFacts,
    version=st.sampled_from(["", "2.27.3", "2.26.2"]),
    usable=st.lists(st.sampled_from(["mlx5_0", "mlx5_1"]), unique=True).map(tuple),
    usable_known=st.booleans(),
    ports=st.lists(
        st.builds(JobPort, place=st.sampled_from(["nic0/1", "nic1/1"]), label=st.just("mlx5_0"),
                  layer=st.sampled_from(["Ethernet", "InfiniBand"]), mtu=st.sampled_from([0, 1500, 9000]),
                  prefix=st.sampled_from([0, 16, 24])),
        max_size=2, unique_by=lambda p: p.place,
    ).map(tuple),
    settings=st.dictionaries(st.sampled_from(["NCCL_ALGO", "NCCL_IB_TC"]), st.sampled_from(["a", "b"])),
    imex=st.sampled_from(["", "yes", "no"]),
)  # fmt: skip


@given(st.lists(_JOB, max_size=4))
def test_the_order_of_nodes_changes_nothing(jobs: list[JobFacts]) -> None:
    """Whatever the order, the same is found; each problem names each node once, and nodes that are alike have none."""
    named = [(f"n{i}", j) for i, j in enumerate(jobs)]
    expected = {(p.what, p.subject, p.values) for p in job_problems(named)}
    for some in itertools.islice(itertools.permutations(named), 6):
        got = {(p.what, p.subject, tuple((v, tuple(sorted(n))) for v, n in p.values)) for p in job_problems(some)}
        assert {(w, v) for w, _, v in got} == {(w, v) for w, _, v in expected}
    for p in job_problems(named):
        every = [n for _, nodes in p.values for n in nodes]
        assert len(every) == len(set(every))
        assert len(p.values) > 1
    if jobs:
        assert job_problems([("a", jobs[0]), ("b", jobs[0])]) == ()


def test_two_networks_in_one_job() -> None:
    """A node whose job may use no RDMA, and one with a plugin: neither connects with InfiniBand of NCCL's own."""
    a = facts("a")
    b = facts("b", environment={"NCCL_IB_DISABLE": "1"})
    state, subject, text = problems(a, b)["network"]
    assert (state, subject) == ("fail", "NCCL's network")
    assert "IB on a; Socket on b" in text
    c = facts("c", files={"/usr/lib/x86_64-linux-gnu/libnccl-net.so": "ELF"})
    assert "an external plugin on c" in problems(a, c)["network"][2]
    assert "network" not in problems(a, facts("d"))


def test_a_node_without_nics_is_named_once() -> None:
    """Its usable devices number none since its network is another: one problem, and not two."""
    down = {f"mlx5_{n}": {"state": "DOWN/Polling"} for n in range(10)}
    found = problems(facts("a"), facts("b", patch=down))
    assert found["network"][0] == "fail"
    assert "hcas" not in found
