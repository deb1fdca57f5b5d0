"""What `topocheck scale` refuses before it runs anything."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.commands import run
from topocheck.cli.scale import _bucket_sizes, scale


@pytest.mark.parametrize(
    ("text", "sizes"),
    [(None, None), ("none", ()), ("5", (5,)), ("1, 0.5,25", (1, 0.5, 25)), ("5,5.0", (5,)), ("1048576", (1 << 20,))],
)
def test_bucket_sizes(text, sizes):
    assert _bucket_sizes(text) == sizes


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--buckets", "foo"], "--buckets: 'foo' is no size in MiB above 0"),
        (["--buckets", "1,-1"], "--buckets: '-1' is no size"),
        (["--buckets", "0"], "--buckets: '0' is no size"),
        (["--buckets", ""], "--buckets: '' is no size"),
        (["--buckets", "1,,2"], "--buckets: '' is no size"),
        (["--buckets", "nan"], "--buckets: 'nan' is no size"),
        (["--buckets", "inf"], "--buckets: 'inf' is no size"),
        (["--buckets", "2e6"], "up to 1048576; expected such as 1,5,25, or none"),
        (["--size", "foo"], "--size: 'foo' is not a size"),
        (["--gradients", "-1"], "--gradients: '-1' is not a size between"),
        # Two layers of 128 x 128 in four bytes: 128 KiB.
        (["--gradients", "1000"], "--gradients 1000: the smallest model has 128 KiB of gradients"),
        (["--ranks", "5000"], "--ranks 5000: expected 0 to 4096"),
        (["--batch", "-1"], "--batch -1: expected 0 to 1048576"),
    ],
)
def test_a_number_that_is_none_is_named_with_its_option(argv, error):
    ran = run(scale, *argv)
    assert (ran.code, ran.out) == (2, "")
    assert error in ran.error
    assert len(ran.error.splitlines()) == 1


@pytest.mark.torch
@pytest.mark.parametrize(
    ("option", "file", "why"),
    [
        ("-o", "", "is a folder"),
        ("-o", "no/report.txt", "there is no folder"),
        ("--curve", "no/curve.svg", "there is no folder"),
        ("--curve", "curve.gif", "ends in .svg or .png"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_the_run(tmp_path: Path, option, file, why):
    pytest.importorskip("torch", reason="torch is not installed")
    ran = run(scale, option, tmp_path / file)
    assert (ran.code, ran.out) == (2, "")
    assert why in ran.error
    assert str(tmp_path) in ran.error


AS_NOBODY = """
import os, sys
from pathlib import Path
from topocheck.cli.common import check_writable
from topocheck.model.base import InputError
if os.geteuid() == 0:
    os.setuid(65534)
for name in sys.argv[1:]:
    try:
        check_writable(Path(name), "-o")
    except InputError as e:
        print(e)
"""


def test_what_this_user_may_not_write_is_told():
    # Not pytest's own folder, which is closed to other users.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        closed, read_only = Path(folder, "closed"), Path(folder, "read_only")
        for made, mode in ((closed, 0o000), (read_only, 0o555)):
            made.mkdir()
            made.chmod(mode)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(closed / "below" / "x"), str(read_only / "x")],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "there is no folder" in first
    assert "permission denied" in second


@pytest.mark.torch
def test_a_png_without_matplotlib_is_told_before_the_run(tmp_path: Path):
    pytest.importorskip("torch", reason="torch is not installed")
    if importlib.util.find_spec("matplotlib"):
        pytest.skip("matplotlib is installed")
    ran = run(scale, "--curve", tmp_path / "curve.png")
    assert (ran.code, ran.out) == (2, "")
    assert "pip install matplotlib, or ask for .svg" in ran.error
    assert not (tmp_path / "curve.png").exists()
