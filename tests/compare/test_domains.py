"""NVLink domains of a fleet: listed, and the node outside of one named."""

from __future__ import annotations

from tests.compare.facts import gpu, named
from topocheck.compare.job import job_problems
from topocheck.compare.outliers import judge
from topocheck.compare.store import Collection
from topocheck.compare.types import JobProblem, NodeFacts
from topocheck.render.fleet import fleet_text
from topocheck.render.html.fleet import fleet_html
from topocheck.render.page import Style

RACK = "1f3a9c52-0000-4000-8000-000000000001"
ZERO = "00000000-0000-0000-0000-000000000000"


def tray(name: str, uuid: str | None = RACK, clique: int = 1, status: str = "Success") -> NodeFacts:
    gpus = [
        gpu(f"0000:0{i}:00.0", fabric_cluster_uuid=uuid, fabric_clique=clique, fabric_status=status) for i in range(4)
    ]
    return named(name, gpus=gpus, host={"imex_channels": ["channel0"]})


def problems(*nodes: NodeFacts) -> list[JobProblem]:
    return [p for p in job_problems([(n.name, n.job) for n in nodes]) if p.what == "nvlink-domain"]


def test_a_whole_rack_is_quiet() -> None:
    assert problems(*(tray(f"n{i}") for i in range(18))) == []


def test_the_node_outside_is_named() -> None:
    (found,) = problems(*(tray(f"n{i}") for i in range(17)), tray("n17", ZERO))
    assert found.state == "warn"
    assert found.title.startswith("n17 is in no NVLink domain; 17 of 18 nodes")
    (failed,) = problems(*(tray(f"n{i}") for i in range(17)), tray("n17", RACK, 0, "Failure"))
    assert failed.title == found.title


def test_a_node_whose_gpus_say_nothing_is_not_accused() -> None:
    assert problems(*(tray(f"n{i}") for i in range(17)), tray("n17", None)) == []


def test_another_clique_of_the_domain() -> None:
    (found,) = problems(*(tray(f"n{i}") for i in range(17)), tray("n17", clique=2))
    assert "n17 is in another clique; 17 of 18 nodes of this domain are in clique 1" in found.title
    # Two halves: a partition that somebody made.
    assert problems(*(tray(f"n{i}", clique=i % 2) for i in range(18))) == []


def test_two_racks_are_two_domains_and_no_problem() -> None:
    other = RACK.replace("1f3a", "2f3a")
    nodes = [*(tray(f"a{i}") for i in range(18)), *(tray(f"b{i}", other) for i in range(16))]
    assert problems(*nodes) == []
    collection = Collection()
    for n in nodes:
        collection.add(n)
    result = judge(collection)
    assert [(d.cluster_uuid, d.clique, len(d.nodes), d.imex) for d in result.nvlink_domains] == [
        (RACK, 1, 18, 18), (other, 1, 16, 16)
    ]  # fmt: skip
    text = fleet_text(result, Style(width=120))
    assert "NVLink domains" in text
    assert "18 of 18" in text
    assert RACK in fleet_html(result)


def test_nodes_without_such_domains_have_no_table() -> None:
    collection = Collection()
    for i in range(4):
        collection.add(tray(f"n{i}", ZERO))
    assert judge(collection).nvlink_domains == ()
