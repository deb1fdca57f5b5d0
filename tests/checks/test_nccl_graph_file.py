"""NCCL_GRAPH_FILE: a file of another size of machine ends init (Azure/azhpc-images issue 327)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checks.software import findings, healthy, one, state, variant
from tests.checks.support import Row, assert_row
from topocheck.model.base import State
from topocheck.nccl.topofile.graph_file import read_graphs

ID = "nccl.graph-file"
GRAPH = (
    '<graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="20" speedinter="20" latencyinter="0"'
    ' typeintra="NVL" typeinter="PIX" samechannels="1">'
)
FOUR = f'<graphs version="1">{GRAPH}<channel>{{}}</channel></graph></graphs>'
"""As NCCL's own dump writes it (NCCL_GRAPH_DUMP_FILE)."""
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


@pytest.mark.parametrize("text", [None, {"error": "EACCES"}])
def test_a_file_that_cannot_be_opened_ends_init(text: dict[str, str] | None) -> None:
    assert one(ID, variant("h100_x2_vm", files=with_file("h100_x2_vm", text))).state is State.FAIL


def test_nothing_is_judged_where_it_is_not_set() -> None:
    assert state(ID, healthy("h100_x2_vm")) is State.NOT_APPLICABLE


def graph_of(text: str, version: str = "2.27.7") -> tuple[State, str]:
    machine = variant("h100_x2_vm", files=with_file("h100_x2_vm", text), software={"nccl": version})
    f = one(ID, machine)
    return f.state, f.title


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no element in this file"),
        ('<graphs version="1"><graph', "the file ends inside <graph>"),
        ('<?xml version="1.0"?><graphs version="1"/>', "no prologue"),
        ("<graphs/>", "line 1: no version"),
        ('<graphs version="2"/>', "version '2', and NCCL takes 1 only"),
        (f'<graphs version="1">{GRAPH.replace(" crossnic", " x")}</graph></graphs>', "<graph> without crossnic"),
        (f'<graphs version="1">{GRAPH.replace(" id", " x")}</graph></graphs>', "<graph> without id"),
        (FOUR.format('\n<gpu dev="0"/>\n<gpu rank="1"/>'), "line 3: <gpu> without dev"),
        (FOUR.format("<net/>"), "<net> without dev"),
    ],
)
def test_a_file_that_nccl_cannot_read_ends_init(text: str, says: str) -> None:
    """src/graph/xml.cc and search.cc: a wrong version is an invalid usage, a lacking attribute an internal error."""
    state_, title = graph_of(text)
    assert state_ is State.FAIL
    assert says in title


def test_a_file_of_another_kind_says_nothing() -> None:
    """NCCL passes over elements other than <graphs>."""
    assert graph_of('<system version="1"><cpu numaid="0"/></system>')[0] is State.NOTE


@pytest.mark.parametrize(
    ("gpus", "version", "devices"),
    [
        ('<gpu dev="0xa"/><gpu dev="0x1"/>', (2, 27, 7), (1, 10)),  # as dumps are written: snprintf "%#lx"
        ('<gpu dev="10"/>', (2, 21, 5), (16,)),  # strtol(str, NULL, 16)
        ('<gpu dev="10"/>', (2, 20, 5), (10,)),  # strtol(str, NULL, 0)
        ('<gpu dev="3" rank="0"/>', (2, 29, 7), (3,)),  # the rank is not read
        ('<gpu dev="3" rank="0"/>', (2, 30, 3), ()),
        ('<gpu dev="word"/>', (2, 27, 7), (0,)),
    ],
)
def test_device_numbers(gpus: str, version: tuple[int, ...], devices: tuple[int, ...]) -> None:
    assert read_graphs(FOUR.format(gpus), version).devices == devices


def test_a_file_of_many_devices_is_cut() -> None:
    many = "".join(f'<gpu dev="{n:x}"/>' for n in range(128))
    f = one(ID, variant("h100_x2_vm", files=with_file("h100_x2_vm", FOUR.format(many))))
    assert f.state is State.FAIL
    assert "and 112 more" in f.evidence[-1].raw
    assert len(f.title) < 200


@given(st.text('<>graphs channel/ versiond="0123456789x-!\n', max_size=300))
def test_any_text_of_a_graph_file(text: str) -> None:
    file = read_graphs(text, (2, 30, 7))
    assert file.fatal or file.graphs == 0 or "<graph" in text


@given(st.lists(st.tuples(st.sampled_from(("dev", "rank", "id")), st.text('09ax-+ "', max_size=20)), max_size=4))
def test_any_attributes_of_a_gpu(attributes: list[tuple[str, str]]) -> None:
    written = "".join(f' {k}="{v}"' for k, v in attributes)
    file = read_graphs(FOUR.format(f"<gpu{written}/>"), (2, 27, 7))
    assert all(isinstance(n, int) for n in file.devices)
