"""What the commands say of versions, settings and inputs that are not as they should be."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.cli.commands import Ran
from tests.cli.commands import run as run_one
from tests.nccl import files
from tests.support.snapshots import write_snapshot
from topocheck.cli import nccl
from topocheck.knowledge.nccl import TABLE_VERSION, settings

H100 = Path(__file__).parents[1] / "recordings" / "h100_x2_vm.snap"
"""A recording with NCCL 2.28.9 in it."""


def words(ran: Ran) -> str:
    return " ".join(ran.out.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings: of a laptop without GPU, of a node whose driver is not loaded, of one with a setting."""
    path = tmp_path_factory.mktemp("recordings")
    write_snapshot(path / "bare.snap", "no_pci")
    write_snapshot(path / "off.snap", "driver_not_loaded")
    write_snapshot(path / "set.snap", "h100_x2_vm", environment={"NCCL_NTHREADS": "100"})
    return path


def test_a_version_that_is_installed_needs_no_word():
    data = json.loads(run_one(nccl.predict, "--from", H100, "--format", "json").out)
    assert (data["version"], data["version_note"]) == ("2.28.9", "")
    assert "assumed" not in run_one(nccl.env, "--from", H100).out


def test_a_version_that_is_assumed_is_told(folder: Path):
    ran = run_one(nccl.env, "--from", folder / "bare.snap")
    assert f"no NCCL was found here: {TABLE_VERSION}, the newest known, is assumed" in words(ran)
    data = json.loads(run_one(nccl.env, "--from", folder / "bare.snap", "--format", "json").out)
    assert "is assumed" in data["version_note"]
    (folder / "two.xml").write_text(
        files.system(files.cpu(0, files.AMD, files.gpu("0000:06:00.0", 0, 90), files.gpu("0000:07:00.0", 1, 90)))
    )
    assert "no machine was looked at" in run_one(nccl.predict, "--topo", folder / "two.xml").out


@pytest.mark.parametrize(
    ("version", "note"),
    [
        ("99.0", f"99.0.0 is newer than {TABLE_VERSION}, the newest known, whose rules are taken"),
        # The oldest bandwidths known here are those of 2.6.
        ("2.4.8", "2.4.8 is older than 2.6.0, the oldest known in full; its bandwidths are taken"),
    ],
)
def test_a_version_outside_the_rules_is_told(version, note):
    for command in (nccl.env, nccl.predict):
        assert note in words(run_one(command, "--from", H100, "--nccl-version", version))


@pytest.mark.parametrize("version", ["1.0", "1.3.4", "banana", "banana 2.3", "", "2"])
def test_no_version_that_can_be_judged_by(version):
    for command in (nccl.env, nccl.predict):
        ran = run_one(command, "--from", H100, "--nccl-version", version)
        assert (ran.code, ran.out) == (2, "")
        assert ran.error.startswith("--nccl-version")


def test_a_setting_is_explained_with_the_value_in_force(folder: Path):
    ran = run_one(nccl.env, "NCCL_NTHREADS", "--from", folder / "set.snap")
    assert "here 100 (from environment)" in words(ran)
    assert "problem NCCL_NTHREADS=100 is outside what NCCL expects" in words(ran)
    data = json.loads(run_one(nccl.env, "NCCL_NTHREADS", "--from", folder / "set.snap", "--format", "json").out)
    (here,) = data["here"]
    assert (here["setting"]["value"], here["problems"][0]["kind"]) == ("100", "out_of_range")
    assert "here not set" in words(run_one(nccl.env, "NCCL_ALGO", "--from", folder / "set.snap"))


def test_a_setting_is_explained_by_the_version_of_the_machine():
    # NCCL_GIN_TYPE and others are younger; the IB timeout was 18 from 2.14.3 on.
    ran = run_one(nccl.env, "NCCL_IB_TIMEOUT", "--from", H100, "--nccl-version", "2.20.5")
    assert "judged by NCCL 2.20.5" in words(ran)
    assert "default 18" in words(ran)
    assert "judged by NCCL 2.28.9" in words(run_one(nccl.env, "NCCL_IB_TIMEOUT", "--from", H100))


def test_one_thing_at_a_time():
    assert run_one(nccl.env, "NCCL_ALGO", "--all").code == 2


def test_without_a_gpu_there_is_nothing_to_predict(folder: Path):
    ran = run_one(nccl.predict, "--from", folder / "bare.snap")
    assert (ran.code, ran.out) == (2, "")
    assert "no NVIDIA GPU in" in ran.error
    (folder / "empty.xml").write_text('<system version="1"><cpu numaid="0"/></system>')
    ran = run_one(nccl.predict, "--topo", folder / "empty.xml")
    assert (ran.code, ran.out) == (2, "")
    assert "no <gpu> in it" in ran.error


def test_with_gpus_that_cannot_be_used_nothing_can_be_told(folder: Path):
    ran = run_one(nccl.predict, "--from", folder / "off.snap")
    assert ran.code == 3
    assert "cannot be determined" in ran.out


RANKS = """[hosts]
a = "{recording}"

[[ranks]]
host = "a"
gpu = 0

[[ranks]]
{second}
"""


@pytest.mark.parametrize(
    ("recording", "second", "told"),
    [
        ("no.snap", 'host = "a"\ngpu = 1', r"line 4 \(rank entry 0\): host 'a': .*no.snap: cannot be read"),
        (
            "text.snap",
            'host = "a"\ngpu = 1',
            r"line 4 \(rank entry 0\): host 'a': .*text.snap: nothing in it is understood",
        ),
        ("set.snap", 'host = "b"\ngpu = 1', r"line 8 \(rank entry 1\): host 'b' \(not under \[hosts\]"),
        ("set.snap", 'host = "a"\ngpu = 7', r"line 8 \(rank entry 1\): no GPU 7; there are 0, 1"),
        ("set.snap", 'host = "a"\ngpu = 1\nrank = 0', r"line 8 \(rank entry 1\): rank 0 comes twice; first in line 4"),
        ("set.snap", 'gpu = "zz"', r"line 8 \(rank entry 1\): gpu 'zz' is no PCI address"),
    ],
)
def test_a_rank_file_that_is_wrong_is_told_with_its_line(folder: Path, recording, second, told):
    (folder / "text.snap").write_text("no recording")
    job = folder / "job.toml"
    job.write_text(RANKS.format(recording=recording, second=second))
    ran = run_one(nccl.predict, "--ranks", job)
    assert (ran.code, ran.out) == (2, "")
    assert ran.error.startswith(f"{job}: ")
    assert len(ran.error.splitlines()) == 1
    assert re.search(told, ran.error), ran.error


def test_hosts_of_different_versions_are_told(folder: Path):
    job = folder / "versions.toml"
    job.write_text(RANKS.format(recording=H100, second='host = "set.snap"\ngpu = 0'))
    assert "the hosts have different versions (a 2.28.9, set.snap" in words(run_one(nccl.predict, "--ranks", job))


@pytest.mark.parametrize(
    ("command", "argv", "told"),
    [
        (nccl.topo, ["--no-machine"], "without --input"),
        (nccl.topo, ["--input", "x.xml", "--restricted"], "--restricted"),
        (nccl.topo, ["--input", "x.xml", "--no-machine", "--from", H100], "expected one of them"),
        (nccl.predict, ["--ranks", "job.toml", "--from", H100], "expected one of them"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(command, argv, told):
    ran = run_one(command, *argv)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.error


def changed(folder: Path, old: str, new: str) -> Path:
    """The topology file of the recording, with one text replaced."""
    ran = run_one(nccl.topo, "--from", H100)
    assert old in ran.out
    path = folder / "changed.xml"
    path.write_text(ran.out.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        # strtol reads 0 from it, and 0 counts as 16 lanes: as the machine, whose width is not known.
        ('link_width="0"', 'link_width="abc"', "link_width 'abc' is read as 0, which counts as 16 lanes"),
        ("32.0 GT/s PCIe", "banana", "file banana, machine 32.0 GT/s PCIe: NCCL plans with 8 GT/s"),
        ('link_width="0"', 'link_width="8x"', "file 8x, machine 0: NCCL plans with 8 lanes"),
        ('sm="90"', 'sm="x"', "sm 'x' is read as 0"),
    ],
)
def test_what_nccl_reads_otherwise_than_it_looks_is_told(folder: Path, old, new, told):
    ran = run_one(nccl.topo, "--input", changed(folder, old, new), "--from", H100)
    assert ran.code == 0
    assert told in words(ran)
    assert "harmless" not in ran.out
    assert "It agrees with this machine" not in ran.out


@pytest.mark.parametrize(("old", "new"), [('version="1"', 'version="2"'), (' numaid="-1"', ""), ('count="18" ', "")])
def test_a_file_that_ends_nccl_is_a_finding(folder: Path, old, new):
    path = changed(folder, old, new)
    for machine in (["--no-machine"], ["--from", H100]):
        ran = run_one(nccl.topo, "--input", path, *machine)
        assert ran.code == 1
        assert "NCCL's init ends here" in words(ran)
    for machine in ([], ["--from", H100]):
        ran = run_one(nccl.predict, "--topo", path, *machine)
        assert ran.code == 1
        assert "ncclCommInitRank would fail:" in words(ran)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_name_or_number_of_the_table_is_broken(width):
    out = run_one(nccl.env, "--all", "--width", width).out
    assert max(map(len, out.splitlines())) <= max(width, max(map(len, settings())) + 2)
    told = out.split()
    for s in settings().values():
        assert s.name in told
        assert {*s.default.split(), *s.effect.split()} <= {w.rstrip(";") for w in told} | {*told}


def test_a_compressed_log_is_told_how_to_give(tmp_path: Path):
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress(b"n1:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"))
    ran = run_one(nccl.log, path)
    assert ran.code == 2
    assert f"is compressed: zcat {path} | topocheck nccl log -" in " ".join(ran.error.split())
