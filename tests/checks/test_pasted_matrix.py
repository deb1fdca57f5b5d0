"""Pasted matrices are judged by what they say, and say unknown where they cannot know. All matrices are made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topocheck.cli.smi import report_of
from topocheck.model.base import Finding, State
from topocheck.pipeline import Report
from topocheck.probes.smi.topo import parse_matrix
from topocheck.render import report_json as document


def _text(cells: list[list[str]], cpus: list[str] | None = None) -> str:
    names = [f"GPU{i}" for i in range(len(cells))]
    head = "\t" + "\t".join(names) + ("\tCPU Affinity" if cpus else "")
    rows = [
        f"{n}\t" + "\t".join(row) + (f"\t{cpus[i]}" if cpus else "")
        for i, (n, row) in enumerate(zip(names, cells, strict=True))
    ]
    return "\n".join((head, *rows)) + "\n"


def _matrix(n: int, word: str, **odd: str) -> list[list[str]]:
    """Return n x n cells of one word; `_2="SYS"` puts a word into row and column 2, `_2_3` into one cell."""
    cells = [["X" if a == b else word for b in range(n)] for a in range(n)]
    for key, other in odd.items():
        at = [int(k) for k in key.strip("_").split("_")]
        for a in range(n):
            if len(at) == 2:
                cells[at[0]][at[1]] = other
            elif a != at[0]:
                cells[a][at[0]] = cells[at[0]][a] = other
    return cells


def judged(text: str) -> tuple[Report, dict[str, Finding]]:
    r = report_of(parse_matrix(text), "a ticket")
    return r, {f.id: f for f in r.findings}


@pytest.mark.parametrize("who", [0, 2, 7])
def test_one_gpu_without_nvlink_is_named(who: int) -> None:
    _, found = judged(_text(_matrix(8, "NV18", **{f"_{who}": "SYS"})))
    f = found["nvlink.links-down"]
    assert (f.state, f.subject) == (State.FAIL, f"GPU{who}")
    assert f"GPU{who} alone has no NVLink" in f.title
    assert "NV18" in f.title
    assert f.evidence[0].source == f"row GPU{who}"


def test_one_pair_with_fewer_links_is_named() -> None:
    """One pair of six lacks a link at both ends; a mesh of two kinds of pairs, as a DGX-1, was built so."""
    cells = _matrix(4, "NV4", _1_3="NV3", _3_1="NV3")
    _, found = judged(_text(cells))
    f = found["nvlink.links-down"]
    assert (f.state, f.subject) == (State.FAIL, "GPU1-GPU3")
    assert "5 of 6 pairs have 4" in f.title
    _, found = judged(_text(_matrix(4, "NV2", _0_1="NV1", _1_0="NV1", _2_3="NV1", _3_2="NV1")))
    assert "nvlink.links-down" not in found


def test_one_gpu_with_fewer_links_is_named() -> None:
    _, found = judged(_text(_matrix(4, "NV12", _1="NV8")))
    f = found["nvlink.links-down"]
    assert (f.state, f.subject) == (State.FAIL, "GPU1")


@pytest.mark.parametrize(
    "cells",
    [
        _matrix(8, "NV18"),
        _matrix(8, "SYS"),
        _matrix(2, "NV4"),
        # two bridged pairs
        [
            ["X", "NV4", "SYS", "SYS"],
            ["NV4", "X", "SYS", "SYS"],
            ["SYS", "SYS", "X", "NV4"],
            ["SYS", "SYS", "NV4", "X"],
        ],
        # one bridged pair beside six cards
        [["X" if a == b else "NV4" if {a, b} == {6, 7} else "NODE" for b in range(8)] for a in range(8)],
        # a ring: no three are joined pair by pair
        [["X" if a == b else "NV2" if (a - b) % 4 in (1, 3) else "SYS" for b in range(4)] for a in range(4)],
    ],
)
def test_a_matrix_of_a_sound_machine_is_quiet(cells: list[list[str]]) -> None:
    _, found = judged(_text(cells))
    assert found == {}


def test_row_and_column_that_differ() -> None:
    _, found = judged(_text(_matrix(4, "NV12", _1_2="PHB")))
    f = found["consistency.smi-matrix-differs"]
    assert (f.state, f.subject) == (State.WARN, "GPU1-GPU2")
    assert "internal error" in f.consequence


def test_one_affinity_for_all_says_nothing() -> None:
    cells = _matrix(4, "PIX", _3="SYS")
    assert judged(_text(cells, ["0-103"] * 4))[1]["numa.one-affinity"].state is State.NOTE
    assert judged(_text(cells, ["0-51", "0-51", "0-51", "52-103"]))[1] == {}
    assert judged(_text(_matrix(4, "PIX"), ["0-103"] * 4))[1] == {}


def test_a_gpu_without_a_near_nic() -> None:
    rows = ["GPU0 X SYS SYS PIX SYS", "GPU1 SYS X SYS SYS PIX", "GPU2 SYS SYS X SYS SYS",
            "NIC0 PIX SYS SYS X SYS", "NIC1 SYS PIX SYS SYS X"]  # fmt: skip
    _, found = judged("\tGPU0 GPU1 GPU2 NIC0 NIC1\n" + "\n".join(rows))
    assert found["rdma.nearest-nic-far"].subject == "GPU2"


def test_cells_that_say_nothing_make_their_rule_unjudged() -> None:
    r, found = judged(_text(_matrix(4, "NV12", _0_2="N/A", _2_0="N/A")))
    assert "nvlink.links-down" not in found
    (result,) = [x for x in r.results if x.id == "nvlink.links-down"]
    assert result.state is State.NOT_APPLICABLE


def test_a_p2p_table_knows_no_nics_and_no_classes() -> None:
    """What the text does not hold is null with a reason in JSON too."""
    r, found = judged(_text([["X", "CNS"], ["CNS", "X"]]))
    assert found["p2p.refused"].state is State.NOTE
    assert "chipset" in found["p2p.refused"].title
    j = json.loads(document.encode(document.report_document(r, "0")))
    assert "nics" in j["missing"]
    assert {(p["class"], p["nvlinks"]) for p in j["paths"]} == {(None, None)}
    assert all("nvlinks" in p["missing"] for p in j["paths"])


def test_an_mp_matrix_knows_no_nvlinks(tmp_path: Path) -> None:
    del tmp_path
    r, found = judged("nvidia-smi topo -mp\n" + _text(_matrix(4, "SYS")))
    assert found == {}
    j = json.loads(document.encode(document.report_document(r, "0")))
    assert {(p["class"], p["nvlinks"]) for p in j["paths"]} == {("SYS", None)}
    assert "leaves NVLink out" in j["paths"][0]["missing"]["nvlinks"]


def test_a_text_without_anything_to_judge_claims_nothing() -> None:
    r, _ = judged("nvidia-smi topo -p2p n\n" + _text([["X", "OK"], ["OK", "X"]]).replace("OK", "U"))
    assert all(x.state is not State.OK for x in r.results if x.id != "p2p.refused")


def test_pairs_of_one_node_that_are_sys_show_that_the_tree_is_hidden() -> None:
    """deepseek-ai/DeepEP issue 128: eight GPUs, all SYS, four on each socket."""
    cpus = ["0-55"] * 4 + ["56-111"] * 4
    _, found = judged(_text(_matrix(8, "SYS"), cpus))
    f = found["p2p.flat-vm-tree"]
    assert f.state is State.UNKNOWN
    assert "11 pairs more" in f.title  # 2 x 6 pairs of one socket
    assert "p2p.flat-vm-tree" not in judged(_text(_matrix(8, "SYS"), [str(n) for n in range(8)]))[1]


def test_a_bridge_that_is_missing_beside_bridged_pairs() -> None:
    cells = _matrix(8, "NODE", _0_1="NV4", _1_0="NV4", _2_3="NV4", _3_2="NV4", _6_7="NV4", _7_6="NV4")
    f = judged(_text(cells))[1]["nvlink.links-down"]
    assert (f.state, f.subject) == (State.NOTE, "GPU4, GPU5")
    assert "nvlink.links-down" not in judged(_text(_matrix(8, "NODE")))[1]
