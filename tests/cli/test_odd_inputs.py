"""Inputs that are no files, hold nothing of use, or would be read for ever."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.cli.commands import run
from topocheck.cli import common, fleet_files
from topocheck.cli.common import load_policy
from topocheck.cli.fleet import fleet
from topocheck.cli.nccl import log
from topocheck.model.base import InputError
from topocheck.policy import load as policy
from topocheck.render.formats import prometheus

LINE = "n1:100:100 [0] NCCL INFO NCCL_DEBUG set by environment to INFO\n"


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A FIFO that nobody writes to."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.mark.slow
def test_a_policy_or_baseline_that_is_a_fifo_is_refused_without_waiting(fifo: Path) -> None:
    with pytest.raises(policy.PolicyError, match="is a FIFO without a writer"):
        load_policy(fifo)
    with pytest.raises(InputError, match="is a FIFO without a writer"):
        common.load_run(fifo)
    with pytest.raises(policy.PolicyError, match="is a folder; expected a short TOML file"):
        load_policy(fifo.parent)


def test_a_policy_with_an_integer_beyond_use_is_refused() -> None:
    with pytest.raises(policy.PolicyError, match="policy p: holds a value that is no usable number"):
        policy.parse(b"version = " + b"1" * 5000, "p", [])


def test_a_log_that_is_a_device_is_refused() -> None:
    ran = run(log, "/dev/zero")
    assert (ran.code, ran.out) == (2, "")
    assert "/dev/zero: is a device" in ran.error


def test_a_log_may_come_through_a_fifo(fifo: Path) -> None:
    writer = threading.Thread(target=fifo.write_text, args=(LINE,))
    writer.start()
    ran = run(log, fifo)
    writer.join()
    assert ran.code == 0
    assert "1 of 1 lines from NCCL" in ran.out


def test_a_log_without_nccl_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("hello\nworld\n")
    ran = run(log, path)
    assert ran.code == 2
    assert "no line of NCCL among 2 lines" in ran.error
    assert "NCCL_DEBUG=INFO" in ran.error


def test_an_endless_line_is_read_at_its_start_only_and_told(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(3 << 20))
    assert "1 line (1 too long for a log" in run(log, path).error
    path.write_bytes(bytes(3 << 20) + b"\n" + LINE.encode())
    ran = run(log, path)
    assert ran.code == 0
    assert "1 of 2 lines from NCCL" in ran.out
    assert "longer than 8192 bytes" in " ".join(ran.out.split())


@pytest.mark.parametrize("arguments", [("",), (".", "--against", "")])
def test_an_empty_path_is_not_this_folder(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.cli.test_fleet import report

    report(tmp_path / "a.json", "a")
    monkeypatch.chdir(tmp_path)
    ran = run(fleet, *arguments)
    assert ran.code == 2
    assert "an empty path" in ran.error


def test_a_folder_with_too_much_in_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(6):
        (tmp_path / f"{i}.json").touch()
    monkeypatch.setattr(fleet_files, "MAX_LOOKED_AT", 6)
    assert len(list(fleet_files.find_files([tmp_path]))) == 6
    (tmp_path / "more").mkdir()
    with pytest.raises(InputError, match="more than 6 files and folders"):
        list(fleet_files.find_files([tmp_path]))


def test_links_to_folders_and_what_the_kernel_makes_up_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tmp_path / "top" / "proc"
    kernel.mkdir(parents=True)
    (kernel / "a.json").touch()
    (tmp_path / "top" / "b.json").touch()
    (tmp_path / "top" / "round").symlink_to(tmp_path / "top")
    monkeypatch.setattr(fleet_files, "KERNEL_FOLDERS", frozenset({str(kernel)}))
    assert list(fleet_files.find_files([tmp_path / "top"])) == [str(tmp_path / "top" / "b.json")]


@pytest.mark.parametrize("text", ["", "yesterday", "2026-02-30T00:00:00Z", "2026-99-01"])
def test_a_date_that_is_none_gives_no_metric(text: str) -> None:
    assert prometheus._seconds(text) is None


def test_a_date_gives_seconds_since_the_epoch() -> None:
    # 1970-01-02 is one day of 86 400 s after the epoch.
    assert prometheus._seconds("1970-01-02T00:00:00Z") == 86400
