"""Whatever ends a process, its children and all they started end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.processes import Family, runs
from tests.support.waiting import until

ENDINGS = [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGSEGV]

# A child with grandchildren in its process group; all say where they are on standard error, which the test reads.
_TREE = "sleep 1000 & sleep 1000 & wait"
_PROGRAM = f"""
import time
from topocheck.process.child import Child
child = Child(["sh", "-c", {_TREE!r}])
time.sleep(1000)
"""
_COMMAND = f"""
import os
from topocheck.process.command import run
run(["/bin/sh", "-c", {_TREE!r}], dict(os.environ), 1000, 1000)
"""
# The child runs a program of its own, as a probe does; the program has a process group of its own.
_CHAIN = f"""
import os, time
from topocheck.process.command import run
from topocheck.process.fork import fork
worker = fork(lambda pipe: run(["/bin/sh", "-c", {_TREE!r}], dict(os.environ), 1000, 1000))
time.sleep(1000)
"""
_FORKED = f"""
import os, subprocess, time
from topocheck.process.fork import fork
def body(pipe):
    subprocess.run(["sh", "-c", {_TREE!r}])
worker = fork(body)
time.sleep(1000)
"""
# PR_SET_PDEATHSIG would end the child with the thread, and leave it with the process.
_THREAD = f"""
import threading, time
from topocheck.process.child import Child
thread = threading.Thread(target=lambda: kept.append(Child(["sh", "-c", {_TREE!r}])))
kept = []
thread.start(); thread.join()
time.sleep(1000)
"""
# It closes what it inherits, and with it its lifeline.
_CLOSES = """
import sys, time
from topocheck.process.child import Child
child = Child([sys.executable, "-c", "import os, time; os.closerange(3, 1000); time.sleep(1000)"])
time.sleep(1000)
"""
WAYS = {
    "program": (_PROGRAM, 4),
    "command": (_COMMAND, 4),
    "forked": (_FORKED, 5),
    "chain": (_CHAIN, 5),
    "thread": (_THREAD, 4),
}


@pytest.fixture
def family() -> Iterator[Family]:
    family = Family()
    yield family
    for pid in family.pids():
        os.kill(pid, signal.SIGKILL)


def start(code: str, family: Family) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=family.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left(way: str, ending: signal.Signals, family: Family) -> None:
    code, members = WAYS[way]
    parent = start(code, family)
    until(lambda: len(family.pids()) == members)
    parent.send_signal(ending)
    out, _ = parent.communicate(timeout=60)  # end of file: nothing holds the parent's standard output
    assert parent.returncode != 0
    assert out == b""
    family.wait_until_gone()


def test_a_parent_that_ends_in_peace_leaves_nothing_either(family: Family) -> None:
    parent = start(_PROGRAM.replace("time.sleep(1000)", "import os; os._exit(0)"), family)
    parent.communicate(timeout=60)
    assert parent.returncode == 0
    family.wait_until_gone()


def test_a_child_outlives_the_thread_that_started_it(family: Family) -> None:
    parent = start(_THREAD, family)
    until(lambda: len(family.pids()) == 4)
    threads = f"/proc/{parent.pid}/task"
    until(lambda: len(os.listdir(threads)) == 1)
    assert len(family.pids()) == 4
    parent.kill()
    parent.communicate(timeout=60)
    family.wait_until_gone()


def test_a_program_that_closes_what_it_inherits(family: Family) -> None:
    parent = start(_CLOSES, family)

    def closed() -> bool:
        children = family.pids() - {parent.pid}
        return len(children) == 1 and len(os.listdir(f"/proc/{next(iter(children))}/fd")) == 3

    until(closed)
    parent.kill()
    parent.communicate(timeout=60)
    family.wait_until_gone()


def test_a_setuid_program_ends_too(family: Family, tmp_path: os.PathLike[str]) -> None:
    """It clears PR_SET_PDEATHSIG when it starts; the lifeline stays."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a program setuid")
    program = os.path.join(tmp_path, "sleeper")
    subprocess.run(["cp", "/bin/sleep", program], check=True)
    os.chown(program, 65534, 65534)
    os.chmod(program, 0o4755)
    os.chmod(tmp_path, 0o755)
    code = (
        f"import os\nfrom topocheck.process.command import run\nrun([{program!r}, '1000'], dict(os.environ), 1000, 9)"
    )
    parent = start(code, family)
    until(lambda: len(family.pids()) == 2)
    parent.kill()
    parent.communicate(timeout=60)
    family.wait_until_gone()


def test_one_of_ours_whose_parent_is_gone_before_it_looks() -> None:
    """The lifeline is closed before the child binds itself: it ends at once instead of staying for ever."""
    code = (
        "import os, time\n"
        "from topocheck.process.lifeline import VARIABLE\n"
        "from topocheck.process.parent import die_with_parent\n"
        "life, ours = os.pipe()\n"
        "os.close(ours)\n"
        "os.environ[VARIABLE] = f'{life}:{os.fstat(life).st_ino}'\n"
        "die_with_parent()\n"
        "time.sleep(1000)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 1


def test_a_lifeline_that_is_another_file_by_now_is_left_alone() -> None:
    """A launcher in between hands the variable on, but not the descriptor."""
    code = (
        "import os\n"
        "from topocheck.process.lifeline import VARIABLE\n"
        "from topocheck.process.parent import die_with_parent\n"
        "life, ours = os.pipe()\n"
        "os.environ[VARIABLE] = f'{life}:{os.fstat(life).st_ino + 1}'\n"
        "die_with_parent()\n"
        "os.write(ours, b'x'); os.close(ours)\n"
        "print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_ended_by_its_parent_with_all_it_started(family: Family) -> None:
    code = _PROGRAM.replace("time.sleep(1000)", "input(); child.end(); print('ended', flush=True); time.sleep(1000)")
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=family.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    until(lambda: len(family.pids()) == 4)
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(b"\n")
    parent.stdin.flush()
    assert parent.stdout.readline() == b"ended\n"
    until(lambda: family.pids() == {parent.pid})
    parent.kill()
    parent.communicate(timeout=60)
    assert not runs(parent.pid)
