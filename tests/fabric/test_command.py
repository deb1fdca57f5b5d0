"""`topocheck network fabric` on a file."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from tests.cli.commands import run
from tests.support.fabric_faults import drop_uplink, half_width_uplink
from tests.support.fabrics import fat_tree
from topocheck.cli.fabric import fabric
from topocheck.fabric.read import KNOWN


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Eight leaves of 16 nodes on four spines."""
    path = tmp_path / "fabric.txt"
    path.write_text(fat_tree(8, 16, 4).text())
    return path


def test_a_healthy_fabric(dump: Path) -> None:
    ran = run(fabric, dump)
    assert ran.code == 0
    assert "128 nodes with 128 adapters, 12 switches (8 + 4 by tier), 160 links (160 of 200 Gb/s)" in ran.out
    assert "Nothing wrong found" in ran.out


def test_warnings_fail_with_strict_alone(dump: Path) -> None:
    made = fat_tree(8, 16, 4)
    drop_uplink(made, Random(1))
    dump.write_text(made.text())
    assert run(fabric, dump).code == 0
    assert run(fabric, dump, "--strict").code == 1


def test_a_slow_link_fails(dump: Path) -> None:
    made = fat_tree(8, 16, 4)
    planted = half_width_uplink(made, Random(1))
    assert planted is not None
    dump.write_text(made.text())
    ran = run(fabric, dump, "--format", "json")
    assert ran.code == 1
    tree = json.loads(ran.out)
    (bad,) = [f for f in tree["findings"] if f["state"] == "fail"]
    assert bad["id"] == "fabric.slow-link"
    assert all(e in bad["subject"] for e in planted.expected[0])
    assert len(tree["links"]) == 160
    assert len(tree["adapters"]) == 128


def test_a_file_of_another_kind_is_refused_with_what_is_understood(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    ran = run(fabric, tmp_path / "x")
    assert ran.code == 2
    assert ran.error.endswith("not a dump of a fabric; understood is the output of " + KNOWN)


def test_names_from_the_fabric_cannot_act_on_the_terminal(dump: Path) -> None:
    dump.write_text(dump.read_text().replace("leaf-1", "leaf\x1b[31m\u202e"))
    out = run(fabric, dump).out
    assert "\x1b" not in out
    assert "\u202e" not in out
