"""`topocheck fleet` on files, good and bad."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import signal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.cli.commands import run
from tests.compare.facts import gpu, lean
from tests.overtime import planting
from tests.support.snapshots import write_snapshot
from topocheck.cli import fleet_files
from topocheck.cli.fleet import fleet
from topocheck.overtime.record import written


def report(path: Path, name: str, **parts: Any) -> Path:
    """Write a small JSON report of a node."""
    host = {"hostname": name, "driver_version": "570", **parts.pop("host", {})}
    path.write_bytes(msgspec.json.encode(lean(host=host, **parts)))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five nodes, one with an old driver."""
    for i in range(5):
        report(tmp_path / f"n{i}.json", f"n{i}", host={"driver_version": "550" if i == 3 else "570"})
    return tmp_path


def test_the_odd_one_is_named_with_what_differs(folder: Path) -> None:
    ran = run(fleet, folder)
    assert ran.code == 0
    assert "5 nodes, 1 outlier node" in ran.out
    assert "n3" in ran.out
    assert "driver 550, expected 570 (80 % of the nodes)" in ran.out


def test_two_sorts_of_machine_are_not_alike(tmp_path: Path) -> None:
    report(tmp_path / "a.json", "a", host={"dmi_product": "DGX H100"})
    report(tmp_path / "b.json", "b", host={"dmi_product": "R750xa"})
    ran = run(fleet, tmp_path)
    assert ran.out.splitlines()[0].endswith(": 2 nodes, 2 hardware types, no failed check")
    assert run(fleet, tmp_path, "--strict").code == 0  # two sorts of node are no fault of either


def test_two_nodes_of_one_sort_that_differ_are_mixed(tmp_path: Path) -> None:
    for name, driver in (("a", "550"), ("b", "570")):
        report(tmp_path / f"{name}.json", name, host={"driver_version": driver})
    ran = run(fleet, tmp_path)
    assert ran.out.splitlines()[0].endswith(": 2 nodes, mixed, no failed check")
    assert run(fleet, tmp_path, "--strict").code == 1


def test_one_node_is_like_no_other(tmp_path: Path) -> None:
    assert run(fleet, report(tmp_path / "a.json", "a")).out.splitlines()[0].endswith(": 1 node, no failed check")


def test_strict_counts_odd_nodes(folder: Path) -> None:
    assert run(fleet, folder, "--strict").code == 1
    (folder / "n3.json").unlink()
    assert run(fleet, folder, "--strict").code == 0


def test_a_failed_check_gives_1(folder: Path) -> None:
    report(folder / "x.json", "x", findings=[{"id": "a.b", "state": "fail", "subject": "s", "title": "t"}])
    ran = run(fleet, folder)
    assert ran.code == 1
    assert "FAIL  a.b  s" in ran.out


def test_files_patterns_and_compressed_reports(folder: Path) -> None:
    (folder / "z.json.gz").write_bytes(gzip.compress((folder / "n0.json").read_bytes().replace(b'"n0"', b'"z"')))
    assert "3 nodes" in run(fleet, folder / "n0.json", folder / "n1.json", folder / "z.json.gz").out
    assert "5 nodes" in run(fleet, folder / "n*.json").out
    assert "6 nodes" in run(fleet, folder).out


def test_of_several_looks_at_a_node_the_newest_counts(tmp_path: Path) -> None:
    a, b = gpu("0000:01:00.0", uuid="GPU-a"), gpu("0000:01:00.0", uuid="GPU-b")
    was = {"id": "a.b", "state": "fail", "subject": "s", "title": "t"}
    # Named against the order of their times, so that it is not the order of the names that decides.
    report(tmp_path / "1.json", "n0", taken_at="2026-03-02T00:00:00Z", gpus=[a])
    report(tmp_path / "2.json", "n0", taken_at="2026-03-01T00:00:00Z", gpus=[a], findings=[was])
    report(tmp_path / "3.json", "n1", taken_at="2026-03-01T00:00:00Z", gpus=[b])
    ran = run(fleet, tmp_path)
    assert ran.code == 0  # the older look's failed check is no news
    assert "2 nodes, all equal" in ran.out
    assert f"Skipped (older reports of the same node): 1 file\n  {tmp_path / '2.json'}" in ran.out
    assert json.loads(run(fleet, tmp_path, "--format", "json").out)["fleet"]["superseded_files"] == [
        str(tmp_path / "2.json")
    ]
    assert "2.json" in run(fleet, tmp_path, "--format", "html").out


@pytest.mark.parametrize("bad", ["1.json", "2.json"])
def test_of_two_looks_at_the_same_time_the_worse_counts(tmp_path: Path, bad: str) -> None:
    fault = {"id": "a.b", "state": "fail", "subject": "s", "title": "t"}
    for name in ("1.json", "2.json"):
        found = [fault] if name == bad else []
        report(
            tmp_path / name,
            "n0",
            taken_at="2026-03-01T00:00:00Z",
            gpus=[gpu("0000:01:00.0", uuid="GPU-a")],
            findings=found,
        )
    assert run(fleet, tmp_path).code == 1


def test_csv_holds_mixed_fields_and_files_left_out(tmp_path: Path) -> None:
    a = gpu("0000:01:00.0", uuid="GPU-a")
    report(tmp_path / "1.json", "n0", taken_at="2026-03-02T00:00:00Z", gpus=[a], host={"driver_version": "550"})
    report(tmp_path / "2.json", "n0", taken_at="2026-03-01T00:00:00Z", gpus=[a], host={"driver_version": "550"})
    report(tmp_path / "3.json", "n1", gpus=[gpu("0000:01:00.0", uuid="GPU-b")], host={"driver_version": "570"})
    rows = list(csv.DictReader(io.StringIO(run(fleet, tmp_path, "--format", "csv").out)))
    mixed = {
        (r["node"], r["value"], r["share"])
        for r in rows
        if r["what"] == "no_majority" and r["field"] == "driver_version"
    }
    assert mixed == {("n0", "550", "0.5000"), ("n1", "570", "0.5000")}
    assert [r["file"] for r in rows if r["what"] == "superseded"] == [str(tmp_path / "2.json")]


def test_a_name_alone_does_not_make_two_looks_one_node(tmp_path: Path) -> None:
    for i, uuid in enumerate(("GPU-a", "GPU-b")):
        report(tmp_path / f"{i}.json", "localhost", gpus=[gpu("0000:01:00.0", uuid=uuid)])
    report(tmp_path / "2.json", "localhost")
    report(tmp_path / "3.json", "localhost")
    out = run(fleet, tmp_path).out
    assert "4 nodes" in out
    assert "newer look" not in out


def test_one_bad_file_is_told_and_skipped(folder: Path) -> None:
    bad = {
        "not_json.json": b"hello",
        "empty.json": b"",
        "half.json": (folder / "n0.json").read_bytes()[:50],
        "check.json": b'{"schema_version": "2.0", "findings": []}',
        "wrong_type.json": b'{"schema_version": "2.0", "gpus": 7}',
        "deep.json": b"[" * 100_000,
        "half.json.gz": gzip.compress(b"x" * 1000)[:40],
        "no.snapshot": gzip.compress(b'{"format":"topocheck-snapshot"'),
    }
    for name, data in bad.items():
        (folder / name).write_bytes(data)
    os.mkfifo(folder / "fifo.json")
    (folder / "nowhere.json").symlink_to("/does/not/exist")
    ran = run(fleet, folder, "--format", "json")
    assert ran.code == 0
    found = json.loads(ran.out)["fleet"]
    assert found["nodes"] == 5
    assert {Path(b["file"]).name for b in found["unreadable_files"]} == {*bad, "fifo.json", "nowhere.json"}
    assert all(b["reason"] and "\n" not in b["reason"] for b in found["unreadable_files"])
    assert run(fleet, folder, "--strict").code == 1


def test_a_report_that_unpacks_without_end_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_files, "MAX_BYTES", 10_000)
    (folder / "big.json.gz").write_bytes(gzip.compress(b" " * 1_000_000))
    ran = run(fleet, folder, "--processes", 1)
    assert "larger than" in " ".join(ran.out.split())


@pytest.mark.parametrize("paths", [("nowhere",), ("no*thing",)])
def test_a_path_of_nothing_is_wrong_usage(tmp_path: Path, paths: tuple[str, ...]) -> None:
    ran = run(fleet, *(tmp_path / p for p in paths))
    assert ran.code == 2
    assert str(tmp_path) in ran.error


def test_nothing_readable_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("x")
    ran = run(fleet, tmp_path)
    assert ran.code == 2
    assert "a.json" in ran.error


def test_what_changed_since(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    before = tmp_path_factory.mktemp("before")
    for i in range(4):
        report(before / f"n{i}.json", f"n{i}")
    report(before / "old.json", "old")
    ran = run(fleet, folder, "--against", before, "--format", "json")
    changes = {c["name"]: c for c in json.loads(ran.out)["fleet"]["changes"]}
    assert {n: c["what"] for n, c in changes.items()} == {"n3": "changed", "n4": "new", "old": "gone"}
    assert [(d["field"], d["majority"], d["value"]) for d in changes["n3"]["differences"]] == [
        ("driver_version", "570", "550")
    ]
    assert "driver was 570, is 550" in run(fleet, folder, "--against", before).out


def test_what_grew_between_recordings(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """n1's port lost its link once between two recordings an hour apart; n2's counters rest."""
    before = tmp_path_factory.mktemp("before")
    report(before / "n1.json", "n1")
    plants = {"n1": planting.grow(planting.is_port, "link_downed", 1), "n2": None}
    for name, plant in plants.items():
        early, late = planting.recording(1, samples=2), planting.recording(1, samples=2, plant=plant)
        for where, history, at in ((before, early, 0), (folder, late, 3600)):
            header = replace(history.header, hostname=name, begun_unix_s=history.header.begun_unix_s + at)
            (where / f"{name}.jsonl.gz").write_bytes(written(replace(history, header=header), compressed=True))
    (folder / "bad.jsonl").write_text("no recording")
    ran = run(fleet, folder, "--against", before, "--format", "json")
    result = json.loads(ran.out)["fleet"]
    found = [(f["id"], f["subject"], f["title"], f["nodes"]) for f in result["findings"]]
    assert found == [("watch.port-flap", planting.PORT, "the link went down 1 time", ["n1"])]
    assert [Path(f["file"]).name for f in result["unreadable_files"]] == ["bad.jsonl"]
    assert ran.code == 0  # a warning
    assert run(fleet, folder, "--against", before, "--strict").code == 1
    # Without --against nothing is compared, and a recording is no report that could not be read.
    alone = json.loads(run(fleet, folder, "--format", "json").out)["fleet"]
    assert (alone["findings"], alone["unreadable_files"]) == ([], [])


def test_snapshots_are_judged_first(tmp_path: Path) -> None:
    for i in range(2):
        write_snapshot(tmp_path / f"n{i}.snapshot", "dgx_a100", system={"hostname": f"n{i}"})
    write_snapshot(tmp_path / "n2.snapshot", "dgx_a100", system={"hostname": "n2"}, patch={"GPU3": {"now": "4x8"}})
    found = json.loads(run(fleet, tmp_path, "--format", "json", "--processes", 1).out)["fleet"]
    assert [o["name"] for o in found["outliers"]] == ["n2"]
    assert {"pcie.link-width"} <= {f["id"] for f in found["findings"] if f["nodes"] == ["n2"]}


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_html_is_escaped_and_stands_alone(folder: Path) -> None:
    pytest.importorskip("jinja2")
    report(folder / "x.json", "<script>alert(1)</script>", host={"driver_version": "<img src=x>"})
    ran = run(fleet, folder, "--format", "html")
    page = _Tags()
    page.feed(ran.out)
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert "&lt;script&gt;" in ran.out


def test_csv_has_one_line_for_each_difference(folder: Path) -> None:
    report(folder / "x.json", "x", host={"driver_version": "=cmd()"})
    rows = list(csv.DictReader(io.StringIO(run(fleet, folder, "--format", "csv").out)))
    assert [(r["node"], r["field"], r["value"], r["majority"]) for r in rows] == [
        ("n3", "driver_version", "550", "570"),
        ("x", "driver_version", "'=cmd()", "570"),
    ]


def test_no_terminal_escape_passes_through(folder: Path) -> None:
    report(folder / "x.json", "x\x1b[31m", host={"driver_version": "\x1b]0;owned\x07"})
    assert "\x1b" not in run(fleet, folder).out
    assert "\x1b" not in run(fleet, folder, "--format", "csv").out


def test_many_files_on_several_processes_are_equal_to_one(tmp_path: Path) -> None:
    for i in range(40):
        report(tmp_path / f"n{i}.json", f"n{i}", host={"kernel_release": str(i % 7 == 0)})
    one = run(fleet, tmp_path, "--format", "json", "--processes", 1)
    assert run(fleet, tmp_path, "--format", "json", "--processes", 2) == one


def _dies(file: str, policy: object = None, **_: object) -> Any:
    if file.endswith("killer.json"):
        os.kill(os.getpid(), signal.SIGKILL)
    return [fleet_files.node_facts(fleet_files.decode(Path(file).read_bytes(), file), file=file)], []


def test_a_killed_reader_loses_only_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(40):
        report(tmp_path / f"n{i:02d}.json", f"n{i}")
    (tmp_path / "killer.json").write_text("{}")
    monkeypatch.setattr(fleet_files, "read_many", _dies)
    # Another test may have left a thread in this process, as a command does not: it would read by itself, and die.
    monkeypatch.setattr("topocheck.parallel.one_thread", lambda: True)
    collection, bad = fleet_files.read_all(fleet_files.find_files([tmp_path]), processes=2)
    assert len(collection.entries) == 40
    assert [Path(b.file).name for b in bad] == ["killer.json"]
    assert "killed" in bad[0].reason


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"d\xff")
    folder.mkdir()
    report(folder / "a.json", "a")
    report(folder / os.fsdecode(b"\xfe.json"), "b")
    (folder / os.fsdecode(b"\xfd.json")).write_bytes(b"no report")
    write_snapshot(folder / os.fsdecode(b"\xfc.snap"), "no_pci")
    for format_ in ("text", "json", "html", "csv"):
        ran = run(fleet, folder, "--format", format_)
        assert ran.code == 0
    assert "3 nodes" in run(fleet, folder).out
    assert "1 unreadable file" in run(fleet, folder).out


def test_against_nothing_is_wrong_usage(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    ran = run(fleet, folder, "--against", empty)
    assert ran.code == 2
    assert "--against" in ran.error
    (empty / "bad.json").write_text("no")
    assert "bad.json" in run(fleet, folder, "--against", empty).error


def test_odd_members_of_an_equal_group_are_named(tmp_path: Path) -> None:
    for i in range(5):
        size = (960 if i == 3 else 1024) << 30
        report(tmp_path / f"n{i}.json", f"n{i}", host={"memory_total_bytes": size})
    out = run(fleet, tmp_path).out
    assert "different in a rail or a size of memory: n3" in out
    assert "960.0 GiB, expected 1024.0 GiB (80 % of the nodes)" in " ".join(out.split())


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    ran = run(fleet, tmp_path / "not there", "-o", tmp_path / "no folder" / "x")
    assert ran.code == 2
    assert ran.error.startswith("--output ")
