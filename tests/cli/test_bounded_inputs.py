"""Inputs of more than there can be end in one line and exit code 2, in work that grows with their size alone."""

from __future__ import annotations

import functools
import gzip
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Topocheck, one_line
from tests.nccl import files
from tests.support.snapshots import record
from tests.support.work import lines_run
from topocheck.host import input as given
from topocheck.host.recording import snapshot
from topocheck.model.base import InputError
from topocheck.model.toml import TomlError, parse_toml
from topocheck.nccl.predict.rank_file import MAX_RANKS, parse_rank_file
from topocheck.nccl.topofile.graph_types import MAX_NODES
from topocheck.policy.load import parse
from topocheck.probes.registry import PROBE_SET_VERSION

COMMANDS = (
    "report --from {}",
    "report --smi-topo {}",
    "check --from {}",
    "check --from in.snap --policy {}",
    "placement --from {}",
    "emit gres-conf --from {}",
    "emit topology-conf {}",
    "snapshot show {}",
    "nccl predict --from {}",
    "nccl predict --from in.snap --topo {}",
    "nccl predict --ranks {}",
    "nccl topo --input {} --no-machine",
    "nccl env --library {}",
    "nccl log {}",
    "diff {} in.snap",
    "diff in.snap {}",
    "fleet {}",
    "fleet in.snap --policy {}",
    "bw --plan --baseline {}",
    "bw --plan --policy {}",
)
FOLDERS_ARE_SEARCHED = ("emit topology-conf {}", "fleet {}")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What is no file -> its path."""
    folder = tmp_path_factory.mktemp("odd")
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(folder / "socket"))
        yield {
            "fifo": str(folder / "fifo"),
            "socket": str(folder / "socket"),
            "device": "/dev/zero",
            "folder": str(folder),
        }


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "folder"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_file_is_one_line_at_once(
    topocheck: Topocheck, monkeypatch: pytest.MonkeyPatch, odd: dict[str, str], command: str, kind: str
) -> None:
    monkeypatch.setattr(given, "WRITER_S", 0)
    snapshot.save("in.snap", record("laptop"), probe_set=PROBE_SET_VERSION)
    ran = topocheck(*command.format(odd[kind]).split())
    if kind == "folder" and command in FOLDERS_ARE_SEARCHED:
        assert ran.code == 2
    else:
        assert one_line(ran), ran.error
        assert odd[kind] in ran.error


def test_a_policy_of_40_kib_in_one_dotted_key_is_refused_by_line(topocheck: Topocheck) -> None:
    """20,000 parts of two characters."""
    Path("p.toml").write_text("version = 1\n\n" + ".".join("a" * 20_000) + " = 1\n")
    snapshot.save("in.snap", record("laptop"), probe_set=PROBE_SET_VERSION)
    ran = topocheck("check", "--from", "in.snap", "--policy", "p.toml")
    assert one_line(ran)
    assert "p.toml: line 3: a key of more than 16 parts" in ran.error
    Path("ranks.toml").write_text("[" + ".".join("a" * 20_000) + "]\n")
    ran = topocheck("nccl", "predict", "--ranks", "ranks.toml")
    assert one_line(ran)
    assert "line 1: a key of more than 16 parts" in ran.error


@pytest.mark.parametrize(
    "key",
    [
        ".".join("a" * 17),
        " . ".join("a" * 17),
        ".".join(['"a"'] * 17),
        "\t.".join(["'a b'"] * 17),
        "a." + ".".join(['"."', "'\"'", "-", "_", "1"] * 4),
    ],
)
@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "[[ {} ]]", "x = {{ {} = 1 }}", "x = 1\n  {}=1"])
def test_a_key_of_17_parts_is_refused_however_it_is_written(key: str, form: str) -> None:
    with pytest.raises(TomlError, match="a key of more than 16 parts"):
        parse_toml(form.format(key))


def test_keys_of_16_parts_and_long_texts_are_read() -> None:
    assert parse_toml(".".join("a" * 16) + " = 1")["a"]
    text = ", ".join(["a.b"] * 1000)
    assert parse_toml(f'x = "{text}"') == {"x": text}


def test_more_keys_and_values_than_a_file_has_are_refused() -> None:
    with pytest.raises(TomlError, match="more than 65536 keys and values"):
        parse_toml("x = [" + "1," * 70_000 + "]")
    with pytest.raises(InputError, match="policy p: more than 65536 keys and values"):
        parse(b"x = [" + b"1," * 70_000 + b"]", "p", [])


@pytest.mark.parametrize("text", ["[" * 5000, "x = " + "[" * 5000, "x = " + "{a=" * 5000, "x = " + "[{a=" * 5000])
def test_toml_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(TomlError):
        parse_toml(text)


def test_a_rank_file_of_more_ranks_than_are_judged_is_refused() -> None:
    ranks = [{"rank": i, "host": "n1", "gpu": "0000:06:00.0"} for i in range(MAX_RANKS + 1)]
    with pytest.raises(InputError, match=f"more than {MAX_RANKS} ranks"):
        parse_rank_file(json.dumps({"ranks": ranks}, indent=1), "f.json")


def test_a_topology_of_more_cpus_than_are_walked_is_refused(topocheck: Topocheck) -> None:
    gpus = files.gpu("0000:06:00.0", 0, 90), files.gpu("0000:07:00.0", 1, 90)
    cpus = [files.cpu(i, files.AMD, *(gpus if i == 0 else ())) for i in range(1024)]
    Path("t.xml").write_text(files.system(*cpus))
    ran = topocheck("nccl", "predict", "--topo", "t.xml")
    assert one_line(ran)
    assert "more than 128 nodes of kind CPU" in ran.error


def test_a_report_goes_on_without_a_prediction_where_the_topology_is_too_large(
    topocheck: Topocheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAX_NODES, "CPU", 1)  # the machine has two sockets
    snapshot.save("in.snap", record("hgx_h100_cx7"), probe_set=PROBE_SET_VERSION)
    ran = topocheck("report", "--from", "in.snap", "--format", "json")
    assert ran.code == 0, ran.error
    nccl = json.loads(ran.out)["nccl"]
    assert nccl["fatal"].startswith("not predicted: a topology of more than 1 nodes of kind CPU")


def test_a_snapshot_of_more_values_than_a_machine_has_is_refused(topocheck: Topocheck) -> None:
    """7 million empty lists are 14 MB, 14 KB compressed, and would be hundreds of MB in memory."""
    text = b"[" + b",".join([b"[]"] * 7_000_000) + b"]"
    Path("bomb.snap").write_bytes(gzip.compress(text, 1))
    ran = topocheck("report", "--from", "bomb.snap")
    assert one_line(ran)
    assert "nothing in it is understood" in ran.error


def test_a_snapshot_that_unpacks_to_more_than_is_read_is_refused(
    topocheck: Topocheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot.save("in.snap", record("laptop"), probe_set=PROBE_SET_VERSION)
    head = gzip.decompress(Path("in.snap").read_bytes())
    Path("line.snap").write_bytes(gzip.compress(head) + gzip.compress(bytes(1 << 20)) * 20)
    ran = topocheck("report", "--from", "line.snap")
    assert one_line(ran)
    assert "a line of at most 16 MiB" in ran.error
    monkeypatch.setattr(snapshot, "MAX_BYTES", 4 << 20)
    lines = [b'{"q":"read:/%d","t":"%s"}\n' % (i, b"x" * (1 << 20)) for i in range(5)]
    Path("lines.snap").write_bytes(gzip.compress(head + b"".join(lines)))
    ran = topocheck("report", "--from", "lines.snap")
    assert one_line(ran)
    assert "expected at most 4 MiB when uncompressed" in ran.error


def test_a_report_of_more_values_than_a_report_has_is_refused(topocheck: Topocheck) -> None:
    Path("r.json").write_bytes(b'{"kind":"report","x":[' + b"0," * 6_100_000 + b"0]}")
    snapshot.save("in.snap", record("laptop"), probe_set=PROBE_SET_VERSION)
    ran = topocheck("diff", "r.json", "in.snap")
    assert one_line(ran)
    assert "r.json" in ran.error


@pytest.mark.parametrize(
    "line",
    [
        "n:1:1 [0] NCCL INFO NCCL_{0}_X set by environment to {0}.\n",
        "n:1:1 [0] NCCL WARN misc/ibvwrap.cc:{0} NCCL WARN Call to ibv_create_qp failed with error {0}\n",
        "n:{0}:{0} [0] NCCL INFO Channel 00/0 : {0}[0] -> 1[1] via P2P/CUMEM/{0}\n",
        "n:{0}:{0} [0] NCCL INFO ncclCommInitRank comm 0x{0} rank 0 nranks 2 cudaDev 0 busId 60 commId 0x{0}\n",
        "n:{0}:1 [0] NCCL INFO Using network {0}\n",
        "n:{0}:1 [0] NCCL INFO NET/IB : Using [0]mlx5_{0}:1/IB [RO]; OOB eth0:10.0.0.7<0>\n",
        "words {0} of something else\n",
        "[rank{0}]: NCCL WARN Cuda failure {0} 'out of memory' NCCL NCCL NCCL\n",
    ],
)
def test_the_work_for_a_log_grows_with_its_lines(topocheck: Topocheck, line: str) -> None:
    head = "n:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
    counts = []
    for n in (400, 800):
        Path(f"{n}.log").write_text(head + "".join(line.format(i) for i in range(n)))
        counts.append(sum(lines_run(functools.partial(topocheck, "nccl", "log", f"{n}.log")).values()))
    assert counts[1] < 2.2 * counts[0]
