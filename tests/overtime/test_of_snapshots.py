"""What grew between two snapshots of one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.support.snapshots import record, write_snapshot
from topocheck.cli.check import check
from topocheck.host.recording import snapshot
from topocheck.overtime.of_node import seconds_of
from topocheck.probes.registry import PROBE_SET_VERSION

PORT = "/sys/class/infiniband/mlx5_3/ports/1"
BOOT = "/proc/sys/kernel/random/boot_id"


def _snapshots(folder: Path, first: dict[str, str], then: dict[str, str]) -> list[object]:
    old = write_snapshot(folder / "old.snap", "hgx_h100_cx7", files=first)
    new = write_snapshot(folder / "new.snap", "hgx_h100_cx7", files=then, now="2026-01-01T01:00:00Z")
    return ["--since", old, "--from", new, "--width", "200"]


def test_growth_of_an_hour(tmp_path: Path) -> None:
    """1 to 3 link downs in 3600 s."""
    name = f"{PORT}/counters/link_downed"
    ran = run(check, *_snapshots(tmp_path, {name: "1"}, {name: "3"}))
    assert "watch.port-flap  mlx5_3/1" in ran.out
    assert "the link went down 2 times" in ran.out
    assert "1 -> 3, +2 in 3600 s" in ran.out


def test_nothing_grew(tmp_path: Path) -> None:
    name = f"{PORT}/counters/link_downed"
    ran = run(check, *_snapshots(tmp_path, {name: "3"}, {name: "3"}))
    assert "watch." not in ran.out


def test_counters_of_another_boot_are_not_compared(tmp_path: Path) -> None:
    name = f"{PORT}/counters/link_downed"
    boots = ("11111111-2222-4333-8444-555555555555", "99999999-2222-4333-8444-555555555555")
    ran = run(check, *_snapshots(tmp_path, {name: "1", BOOT: boots[0]}, {name: "3", BOOT: boots[1]}))
    assert "watch.port-flap" not in ran.out
    assert "the machine was started again since" in ran.out


def test_two_machines_are_not_compared(tmp_path: Path) -> None:
    old = write_snapshot(tmp_path / "old.snap", "hgx_h100_cx7", system={"hostname": "node1"})
    new = write_snapshot(tmp_path / "new.snap", "hgx_h100_cx7", system={"hostname": "node2"})
    ran = run(check, "--since", old, "--from", new)
    assert ran.code == 2
    assert "recorded on node1; this machine is node2" in ran.error


def test_names_that_were_replaced_are_not_compared(tmp_path: Path) -> None:
    """`snapshot save` replaces names of hosts and boots, in each file by others."""
    name = f"{PORT}/counters/link_downed"
    paths = []
    for number, (value, boot) in enumerate((("1", "1" * 8), ("4", "9" * 8))):
        path = tmp_path / f"{number}.snap"
        files = {name: value, BOOT: f"{boot}-2222-4333-8444-555555555555"}
        answers = record("hgx_h100_cx7", files=files, system={"hostname": f"node{number}"})
        snapshot.save(str(path), answers, probe_set=PROBE_SET_VERSION, identifiers="replaced")
        paths.append(path)
    ran = run(check, "--since", paths[0], "--from", paths[1], "--width", "200")
    assert "the link went down 3 times" in ran.out


def test_a_recording_of_watch_needs_this_machine(tmp_path: Path) -> None:
    old = tmp_path / "watch.jsonl"
    old.write_text("{}\n")
    ran = run(check, "--since", old, "--from", write_snapshot(tmp_path / "new.snap", "no_pci"))
    assert ran.code == 2
    assert "--since OLD.snap --from NEW.snap" in ran.error


@pytest.mark.parametrize(
    ("text", "seconds"), [("1970-01-01T00:01:00Z", 60.0), ("1970-01-01T01:00:00+01:00", 0.0), ("", 0.0), ("x", 0.0)]
)
def test_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
