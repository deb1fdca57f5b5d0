"""NCCL_GRAPH_FILE: a file of another size of machine ends init (Azure/azhpc-images issue 327)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checks.software import findings, healthy, one, state, variant
from tests.checks.support import Row, assert_row
from topocheck.model.base import State
from topocheck.probes.settings import parse_graph

ID = "nccl.graph-file"
FOUR = '<graphs version="1"><graph id="0" nchannels="1"><channel>{}</channel></graph></graphs>'
GPUS = "".join(f'<gpu dev="{n}"/>' for n in range(4))


ROWS = [
    Row(
        id=ID,
        machine="h100_x2_vm",
        change={"files": {"/etc/nccl.conf": "NCCL_GRAPH_FILE=/opt/graph.xml\n", "/opt/graph.xml": FOUR.format(GPUS)}},
        state=State.FAIL,
    )
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(row: Row) -> None:
    assert_row(row)


def with_file(machine: str, text: str | dict[str, str] | None) -> dict[str, object]:
    files: dict[str, object] = {"/etc/nccl.conf": "NCCL_IB_PCI_RELAXED_ORDERING=1\nNCCL_GRAPH_FILE=/opt/graph.xml\n"}
    if text is not None:
        files["/opt/graph.xml"] = text
    return files


def test_a_file_for_more_gpus_than_are_here() -> None:
    f = one(ID, variant("h100_x2_vm", files=with_file("h100_x2_vm", FOUR.format(GPUS))))
    assert (f.state, f.subject) == (State.FAIL, "NCCL_GRAPH_FILE (/etc/nccl.conf:2)")
    assert "names GPU 2, 3, and 2 are here" in f.title
    assert f.fix == "remove NCCL_GRAPH_FILE from /etc/nccl.conf"
    assert f.evidence[0].source == "/etc/nccl.conf:2"


def test_a_file_of_this_machine() -> None:
    two = FOUR.format('<gpu dev="1"/><gpu dev="0"/>')
    assert findings(ID, variant("h100_x2_vm", files=with_file("h100_x2_vm", two))) == ()
    ranks = FOUR.format('<gpu dev="7" rank="0"/>')
    assert findings(ID, variant("h100_x2_vm", files=with_file("h100_x2_vm", ranks))) == ()


@pytest.mark.parametrize("text", [None, {"error": "EACCES"}])
def test_a_file_that_cannot_be_opened_ends_init(text: dict[str, str] | None) -> None:
    assert one(ID, variant("h100_x2_vm", files=with_file("h100_x2_vm", text))).state is State.FAIL


def test_nothing_is_judged_where_it_is_not_set() -> None:
    assert state(ID, healthy("h100_x2_vm")) is State.NOT_APPLICABLE


@given(st.text('<>gpu dev="0123456789/rank=', max_size=200))
def test_any_text_of_a_graph_file(text: str) -> None:
    assert all(0 <= n < 10**6 for n in parse_graph(text))
