"""What becomes of a result that cannot be written."""

from __future__ import annotations

import subprocess
import sys

import pytest

SNAPSHOT = "tests/recordings/h100_x2_vm.snap"


def shell(line):
    return subprocess.run(["bash", "-c", line.replace("TC", f"{sys.executable} -m topocheck")], capture_output=True)


@pytest.mark.parametrize("format_", ["text", "json", "npd", "slurm-prolog"])
def test_closed_standard_output_leaves_the_exit_code(format_):
    said = shell(f"TC check --from {SNAPSHOT} --format {format_} >&-")
    assert (said.returncode, said.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (f"report --from {SNAPSHOT}", 2),
        (f"check --from {SNAPSHOT}", 2),
        ("--help", 2),
        # A scheduler drains a node for any other code, and a full disk is no failed GPU.
        (f"check --from {SNAPSHOT} --format prometheus", 0),
    ],
)
def test_full_disk_is_one_line(command, code):
    said = shell(f"TC {command} > /dev/full")
    assert said.returncode == code
    assert said.stderr.count(b"\n") == 1
    assert b"No space left on device" in said.stderr


@pytest.mark.parametrize("command", [["report"], ["check"], ["placement"], ["nccl", "predict"]])
@pytest.mark.parametrize(("where", "words"), [("nowhere/x", "there is no folder nowhere"), ("", "the name of a file")])
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(
    command: list[str], where: str, words: str
) -> None:
    said = subprocess.run(
        [sys.executable, "-P", "-m", "topocheck", *command, "--from", "/no/such/snapshot", "-o", where],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert words in said.stderr
