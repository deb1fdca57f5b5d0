"""The first screen of `report`: a screen and a half, whatever is wrong with the node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.machines.builder import case_names, names
from tests.support.faults import FAULTS
from tests.support.snapshots import write_snapshot
from topocheck.api import NodeReport, load
from topocheck.model.base import State
from topocheck.pipeline import Report
from topocheck.render.page import Style
from topocheck.render.text import MAX_LINES, report_text

LARGER = {"thousand_devices"}
"""Machines of more GPUs or NICs than the screen is laid out for."""


def _report(path: Path) -> Report:
    read = load(path)
    assert isinstance(read, NodeReport)
    return read.report


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*names(), *case_names()} - LARGER))
def test_a_screen_and_a_half(name: str, tmp_path: Path) -> None:
    """No more than 70 lines on machines with one fault and with none."""
    text = report_text(_report(write_snapshot(tmp_path / "m.snap", name)), None, Style(80))
    assert text.count("\n") <= 70 == MAX_LINES, text


@pytest.mark.parametrize("faults", ["hardware", "bound"])
def test_many_faults_keep_what_and_how_to_fix_it(faults: str, tmp_path: Path) -> None:
    """The title of each failure with its fix, and where the rest is, however many there are."""
    name, changes = FAULTS[faults]
    report = _report(write_snapshot(tmp_path / "m.snap", name, **changes))
    text = report_text(report, None, Style(80))
    flat = " ".join(text.split())
    assert "shortened (--section findings shows all)" in flat
    fails = [f for f in report.findings if f.state is State.FAIL]
    assert fails
    assert all(f.id in flat and " ".join((f.fix or "").split()) in flat for f in fails)
    full = " ".join(report_text(report, ["findings"], Style(80)).split())
    assert all(" ".join(f.title.split()) in full for f in fails[:1])
    assert "shortened" not in full


def test_pairs_that_are_all_equal_are_one_line(tmp_path: Path) -> None:
    """8 GPUs and 10 NICs take two blocks of columns at 80: the GPUs' 56 equal cells are said once."""
    report = _report(write_snapshot(tmp_path / "m.snap", "hgx_h100_cx7"))
    short, wide = report_text(report, None, Style(80)), report_text(report, None, Style(160))
    assert "NV18 between all 28 pairs of GPUs" in short
    assert not re.search(r"^  GPU0 .*NV18", short, re.MULTILINE)
    assert re.search(r"^  GPU0 +X NV18 NV18", wide, re.MULTILINE)
    assert re.search(r"^  GPU0 +X NV18 NV18", report_text(report, ["matrix"], Style(80)), re.MULTILINE)


def test_a_lost_gpu_shows_in_the_matrix(tmp_path: Path) -> None:
    """Where pairs differ, their cells stay, and the NICs give way."""
    text = report_text(_report(write_snapshot(tmp_path / "m.snap", "gpu_lost")), None, Style(80))
    assert re.search(r"^  GPU5✕ +\?", text, re.MULTILINE)
    assert "--section matrix has the NICs" in text


def test_equal_nics_share_a_row_where_lines_are_short(tmp_path: Path) -> None:
    """A faulty node folds its healthy NICs by NUMA node; the faulty one keeps its row."""
    patch = {"GPU3": {"now": "5x8"}, "mlx5_5": {"now": "5x8"}}
    report = _report(
        write_snapshot(tmp_path / "m.snap", "hgx_h100_cx7", patch=patch, environment={"NCCL_P2P_DISABLE": "1"})
    )
    text = report_text(report, None, Style(80))
    assert re.search(r"^  4 NICs +mlx5_0-3 +gen5 x16", text, re.MULTILINE)
    assert re.search(r"^  3 NICs +mlx5_4,", text, re.MULTILINE)
    assert re.search(r"^  mlx5_5 +0000:ac:00.0 +gen5 x8 .*x8 of x16", text, re.MULTILINE)


def test_ethernet_has_no_words_of_infiniband(tmp_path: Path) -> None:
    """`rate` of a RoCE port in sysfs is `100 Gb/sec (4X EDR)`; EDR is InfiniBand's."""
    text = report_text(_report(write_snapshot(tmp_path / "m.snap", "hgx_h100_cx7")), ["nics"], Style(160))
    assert re.search(r"100 Gb/s +Ethernet", text)
    assert re.search(r"400 Gb/s NDR +InfiniBand", text)


def test_one_device_has_no_matrix_and_the_only_numa_node(tmp_path: Path) -> None:
    """A laptop's GPU reports NUMA node -1 where the machine has node 0 alone."""
    text = report_text(_report(write_snapshot(tmp_path / "m.snap", "laptop")), None, Style(80))
    assert "Matrix" not in text
    assert re.search(r"^  GPU0 .* 15\.8  0 ", text, re.MULTILINE)
