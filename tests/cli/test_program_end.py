"""How the program ends: with its exit code and everything written, without taking apart what it loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.snapshots import write_snapshot

PROGRAM = [
    sys.executable,
    "-P",
    "-c",
    "import sys; sys.argv[0] = 'topocheck'\nfrom topocheck.cli.main import run\nrun()",
]
STARTED = "import sys; sys.argv = ['topocheck', 'pcie', '5', '16']\nfrom topocheck.cli.main import run\n{before}\nrun()"


def ended(before: str) -> subprocess.CompletedProcess[str]:
    code = STARTED.format(before=before)
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)


def test_the_whole_report_is_written(tmp_path) -> None:
    snapshot = write_snapshot(tmp_path / "hgx.snap", "hgx_h100_cx7")
    words = ["report", "--from", str(snapshot), "--format", "json"]
    piped = subprocess.run([*PROGRAM, *words], capture_output=True, check=True)
    assert piped.stderr == b""
    subprocess.run([*PROGRAM, *words, "-o", str(tmp_path / "report.json")], check=True)
    assert piped.stdout == (tmp_path / "report.json").read_bytes()


@pytest.mark.parametrize(("words", "code"), [("pcie 5 16", 0), ("pcie 9 16", 2), ("check --from /nowhere", 2)])
def test_the_exit_code_is_the_commands(words: str, code: int) -> None:
    assert subprocess.run([*PROGRAM, *words.split()], capture_output=True, check=False).returncode == code


def test_a_full_disk_is_no_success() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*PROGRAM, "pcie", "5", "16"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


def test_what_waits_for_the_end_is_done() -> None:
    done = ended("import atexit; atexit.register(print, 'cleared away')")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("cleared away\n")


def test_a_thread_that_still_works_is_waited_for() -> None:
    read, write = os.pipe()
    work = f"import os, threading; threading.Thread(target=lambda: (os.read({read}, 1), os.write(1, b'done'))).start()"
    code = STARTED.format(before=work)
    child = subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, pass_fds=(read,))
    assert child.stdout is not None
    assert any(b"source:" in line for line in child.stdout)  # the command is done
    os.write(write, b"x")
    assert child.communicate()[0].endswith(b"done")
    assert child.returncode == 0


def test_nothing_that_was_loaded_is_taken_apart() -> None:
    last = (
        "class Last:\n    def __del__(self, write=__import__('os').write): write(1, b'taken apart')\nsys.last = Last()"
    )
    assert "taken apart" not in ended(last).stdout
