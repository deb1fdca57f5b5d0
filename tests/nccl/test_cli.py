"""The commands, from files and recordings."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.nccl import files
from tests.nccl.test_log import TWO_RANKS
from tests.support.snapshots import write_snapshot
from topocheck.cli.nccl import app
from topocheck.model.base import InputError
from topocheck.nccl.predict.rank_file import gpu_address, parse_rank_file

run = CliRunner()


def call(*args: str) -> str:
    result = run.invoke(app, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def topology(tmp_path):
    path = tmp_path / "two.xml"
    path.write_text(
        files.system(files.cpu(0, files.AMD, files.gpu("0000:06:00.0", 0, 90), files.gpu("0000:07:00.0", 1, 90)))
    )
    return path


def test_env_explains_one():
    text = call("env", "NCCL_IB_TIMEOUT")
    assert "2.14.3: 18" in text
    data = json.loads(call("env", "NCCL_IB_TIMEOUT", "--format", "json"))
    assert data["setting"]["name"] == "NCCL_IB_TIMEOUT"


def test_env_lists_all():
    assert len(json.loads(call("env", "--all", "--format", "json"))["settings"]) > 260
    assert "NCCL_P2P_LEVEL" in call("env", "--all", "--width", "200")


def test_env_of_an_unknown_name():
    with pytest.raises(InputError, match="no setting like"):
        call("env", "NCCL_FROBNICATE_XYZZY")


def test_predict_from_a_file(topology):
    text = call("predict", "--topo", str(topology), "--nccl-version", "2.28.9", "--why")
    assert "P2P/CUMEM" in text
    assert "within SYS" in text
    what_if = call("predict", "--topo", str(topology), "--nccl-version", "2.28.9", "--set", "NCCL_P2P_DISABLE=1")
    assert "SHM/direct/direct" in what_if
    data = json.loads(call("predict", "--topo", str(topology), "--nccl-version", "2.28.9", "--format", "json"))
    assert [p["transport"] for p in data["pairs"]] == ["P2P/CUMEM", "P2P/CUMEM"]


def test_log_beside_a_prediction(tmp_path, topology):
    path = tmp_path / "nccl.log"
    path.write_text(TWO_RANKS.replace("busId 60", "busId 6000").replace("busId 70", "busId 7000"))
    text = call("log", str(path), "--topo", str(topology))
    assert "2 of 2 pairs agree" in text
    data = json.loads(call("log", str(path), "--topo", str(topology), "--format", "json"))
    assert data["comparison"]["agree"] == 2


def test_a_log_of_another_machine_exits_1(tmp_path, topology):
    path = tmp_path / "nccl.log"
    path.write_text(TWO_RANKS)
    result = run.invoke(app, ["log", str(path), "--topo", str(topology)])
    assert result.exit_code == 1
    assert "the log has busId 60, busId 70, predicted 0000:06:00.0" in " ".join(result.output.split())


def test_one_rank_on_one_node_is_no_plural(tmp_path):
    path = tmp_path / "nccl.log"
    path.write_text("n1:1:1 [0] NCCL INFO comm 0x5 rank 0 nRanks 1 nNodes 1 localRanks 1 localRank 0 MNNVL 0\n")
    assert call("log", str(path)).splitlines()[1].split() == ["job", "1", "rank,", "1", "node"]


def test_log_of_a_failure_exits_1(tmp_path):
    path = tmp_path / "nccl.log"
    path.write_text("ncclSystemError: System call failed\n")
    result = run.invoke(app, ["log", str(path)])
    assert result.exit_code == 1
    assert "unhandled system error" in result.output


def test_topo_reads_a_file(topology):
    assert "2 gpu" in call("topo", "--input", str(topology), "--no-machine")


def test_topo_of_a_broken_file_says_where(tmp_path):
    path = tmp_path / "cut.xml"
    path.write_text('<system version="1">\n <cpu numaid="0">\n')
    with pytest.raises(InputError, match=r"cut\.xml: line 3, column 1"):
        call("topo", "--input", str(path), "--no-machine")


def test_topo_that_nccl_refuses_exits_1(tmp_path):
    path = tmp_path / "two.xml"
    path.write_text('<system version="2"/>')
    assert run.invoke(app, ["topo", "--input", str(path), "--no-machine"]).exit_code == 1


@pytest.mark.parametrize(
    "args",
    [
        ("predict", "--set", "P2P", "--topo", "x"),
        ("predict", "--topo", "/nonexistent/file.xml"),
        ("predict", "--ranks", "/nonexistent/file.toml"),
        ("predict", "--nccl-version", "banana", "--topo", "/nonexistent"),
        ("log", "/nonexistent/file.log"),
        ("predict", "--format", "yaml"),
    ],
)
def test_wrong_use_is_one_clear_error(args):
    with pytest.raises(InputError):
        call(*args)


GOOD = """
[hosts]
a = "a.snap"
[[ranks]]
host = "a"
gpu = 0
process = "p"
[[ranks]]
host = "a"
gpu = "0000:3B:00.0"
container = 2
visible = [1]
"""


def test_a_rank_file():
    hosts, entries = parse_rank_file(GOOD, "job.toml")
    assert hosts == {"a": "a.snap"}
    assert [e["rank"] for e in entries] == [0, 1]
    assert entries[1]["container"] == "2"
    as_json = json.dumps([{"host": "a", "gpu": 3}])
    assert parse_rank_file(as_json, "job.json")[1][0]["gpu"] == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = ", "not TOML: invalid value"),
        ("x = 1", "missing or empty"),
        ("ranks = [1]", "entry 0"),
        ("[[ranks]]\nhost = 1\ngpu = 0", "host must"),
        ("[[ranks]]\ngpu = 'zz'", "no PCI address"),
        ("[[ranks]]\ngpu = 1.5", "gpu must"),
        ("[[ranks]]\ngpu = 0\nrank = -1", "rank must"),
        ("[[ranks]]\ngpu = 0\nvisible = 3", "visible must"),
        ("[[ranks]]\ngpu = 0\ncolour = 3", "colour is not known"),
        ("hosts = 3\nranks = [{gpu = 0}]", "maps names"),
    ],
)
def test_rank_files_that_are_wrong(text, words):
    with pytest.raises(InputError, match=words):
        parse_rank_file(text, "job.toml")


@given(st.text(max_size=120))
def test_any_rank_file_parses_or_gives_its_one_error(text):
    with contextlib.suppress(InputError):
        parse_rank_file(text, "job.toml")


def test_gpus_by_index_or_address():
    known = {0: "0000:06:00.0", 1: "0000:07:00.0"}
    assert gpu_address(1, known, "x") == "0000:07:00.0"
    assert gpu_address("00000000:06:00.0", known, "x") == "0000:06:00.0"
    for bad in (7, "0000:99:00.0"):
        with pytest.raises(InputError, match="there are"):
            gpu_address(bad, known, "x")


def test_a_prediction_begins_with_the_answer_and_groups_equal_pairs(tmp_path):
    """8 GPUs through NVSwitch: 56 ordered pairs of one kind are one row; --all has each."""
    snap = write_snapshot(tmp_path / "hgx.snap", "hgx_h100_cx7")
    lines = call("predict", "--from", str(snap), "--nccl-version", "2.28.9").splitlines()
    answer = {line[:20].strip(): line[20:] for line in lines if line.startswith("  ") and line[19:20] == " "}
    assert answer["between GPUs"] == "P2P/CUMEM for all 56 pairs"
    assert answer["NICs"] == "mlx5_0-mlx5_7; GPUDirect RDMA: yes for all 8 GPUs"
    assert answer["AllReduce"].startswith("at most ")
    assert len([line for line in lines if "P2P/CUMEM" in line]) == 2
    assert len(lines) <= 30
    every = call("predict", "--from", str(snap), "--nccl-version", "2.28.9", "--all").splitlines()
    assert len([line for line in every if " -> " in line and "P2P/CUMEM" in line]) == 56
