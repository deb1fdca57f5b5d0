"""Numbers no kernel gives: of thousands of digits, or CPU lists without end. Each loses only its own fact."""

from __future__ import annotations

import sys

import pytest

from tests.support.snapshots import record
from topocheck.cli.main import main
from topocheck.host.base import Host, RecordedBackend
from topocheck.host.recording import snapshot
from topocheck.model.address import MAX_NUMBERS, parse_cpulist
from topocheck.model.base import Missing, Reason, small_number
from topocheck.nccl.topofile.write import cpumap
from topocheck.pipeline import build_report
from topocheck.probes.numa import parse_nodes
from topocheck.probes.registry import PROBE_SET_VERSION
from topocheck.probes.sysfs_reader import parse_int

LONG = "9" * 5000
"""More digits than `int` takes (sys.get_int_max_str_digits is 4300 by default)."""


@pytest.mark.parametrize(
    "text",
    [
        "18446744073709551616",
        f"{MAX_NUMBERS}",
        f"0-{MAX_NUMBERS}",
        "0-99999999",
        LONG,
        ",".join(["0-65535"] * 2),
        "1-",
        "-1",
        "3-1",
        "0x3",
        "٣",
    ],
)
def test_a_list_no_kernel_gives_is_refused(text):
    with pytest.raises(ValueError, match="kernel list"):
        parse_cpulist(text)


def test_the_largest_list_is_read():
    assert len(parse_cpulist(f"0-{MAX_NUMBERS - 1}")) == MAX_NUMBERS == 8192  # NR_CPUS of x86
    assert parse_cpulist("0-1, 4\n") == {0, 1, 4}


def test_mask_of_a_list_no_kernel_gives():
    with pytest.raises(ValueError, match="kernel list"):
        cpumap("18446744073709551616", 8)


def test_nodes_beyond_the_kernels_largest_number_are_refused():
    assert parse_nodes("0-1023") == "0-1023"
    assert parse_nodes("0-1024") == Missing(Reason.UNPARSABLE, "0-1024")


def test_whole_numbers_of_more_than_53_bits_are_unparsable():
    assert parse_int("-1") == -1
    assert parse_int("9007199254740991") == 9007199254740991
    for text in ("9007199254740992", "-9007199254740992", "18446744073709551616"):  # the last one was found by fuzzing
        assert isinstance(parse_int(text), Missing)
    assert isinstance(parse_int(LONG), Missing)
    assert isinstance(parse_int("--1"), Missing)


def test_small_numbers():
    assert small_number("007") == 7
    assert [small_number(t) for t in ("", "-1", "1234567890", "٣", LONG)] == [None] * 5


def changed(ending: str, text: str):
    """Return the recording of a machine, every file whose name ends so answering with `text`."""
    answers = record("h100_x2_vm")
    hit = [q for q in answers if q.startswith("read:") and q.split("|")[0].endswith(ending)]
    assert hit
    return answers | {q: text.encode() for q in hit}


CASES = [
    ("/sys/devices/system/cpu/online", "18446744073709551616"),
    ("/sys/devices/system/node/online", "0-60000"),
    ("cpulist", "0-99999999"),
    ("max_link_width", LONG),
    ("numa_node", LONG),
    ("vendor", "0x10\nde\"'"),
]


@pytest.mark.parametrize(("ending", "text"), CASES)
def test_every_part_of_the_report_bears_it(ending, text):
    answers = changed(ending, text)
    report = build_report(Host(RecordedBackend(answers), "x"))
    assert [f.title for f in report.findings if "own fault" in f.title] == []
    assert [p.detail for p in report.node.probes if p.state == "failed"] == []


@pytest.mark.parametrize(("ending", "text"), CASES)
def test_every_command_bears_it(ending, text, tmp_path, capsys, monkeypatch):
    path = tmp_path / "m.snap"
    snapshot.save(str(path), changed(ending, text), probe_set=PROBE_SET_VERSION)
    for command in (["nccl", "topo"], ["nccl", "predict"], ["placement"], ["report"]):
        monkeypatch.setattr(sys, "argv", ["topocheck", *command, "--from", str(path)])
        with pytest.raises(SystemExit) as e:
            main()
        assert not e.value.code, capsys.readouterr()
