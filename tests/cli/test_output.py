"""What becomes of a result that cannot be written, and of a run that is interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

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
        (f"check --from {SNAPSHOT} --format slurm-prolog", 0),
    ],
)
def test_full_disk_is_one_line(command, code):
    said = shell(f"TC {command} > /dev/full")
    assert said.returncode == code
    assert said.stderr.count(b"\n") == 1
    assert b"No space left on device" in said.stderr


def test_interrupt_while_the_machine_is_asked():
    """At whatever moment it comes: no traceback of ours, and exit code 130 where Python had started."""
    for wait in (0.15, 0.2, 0.25):
        p = subprocess.Popen(
            [sys.executable, "-m", "topocheck", "report"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        time.sleep(wait)
        p.send_signal(signal.SIGINT)
        error = p.communicate()[1]
        assert p.returncode in (0, 130, -signal.SIGINT)
        assert b"KeyError" not in error
