"""Commands that are interrupted while they are loaded, while the machine is asked, and at their end."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.processes import Family

# The process interrupts itself at its n-th import: what Python's own start has loaded is not counted.
AT_IMPORT = """
import os, sys
left, number = map(int, sys.argv[1:3])
def hook(event, args):
    global left
    if event == "import":
        left -= 1
        if left == 0: os.kill(os.getpid(), number)
sys.addaudithook(hook)
sys.argv[1:] = sys.argv[3:]
from topocheck.cli.main import main
main()
"""
# At the last thing that Python does: interrupts that come after the command is done.
AT_END = """
import os, signal, sys
class Last:
    def __del__(self, kill=os.kill, pid=os.getpid()): kill(pid, signal.SIGINT)
sys.last = Last()
{prepare}
sys.argv = ["topocheck", "pcie", "5", "16"]
from topocheck.cli.main import main
main()
"""
FIRST = 4
"""topocheck, topocheck.cli, _signal: from then on an interrupt is taken."""


def interrupted(code: str, *args: str, family: Family | None = None) -> subprocess.CompletedProcess[str]:
    env = None if family is None else family.environment
    return subprocess.run(
        [sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_is_the_end_and_no_more(ending: signal.Signals) -> None:
    """At whatever moment: the status of the signal, no traceback, no crash, no child."""
    family = Family()
    moments = [*range(FIRST, 30, 5), *range(30, 320, 40)] if ending is signal.SIGINT else [FIRST, 60, 200]
    for moment in moments:
        done = interrupted(AT_IMPORT, str(moment), str(ending.value), "report", family=family)
        assert done.returncode in (-ending, 0), (moment, done.returncode, done.stderr)
        assert done.stderr == "", moment
    family.wait_until_gone()


def test_a_module_half_loaded_is_never_used() -> None:
    """msgspec swallows an interrupt of the imports it makes itself, and crashes when it is used later."""
    listing = interrupted(AT_IMPORT.replace("left -= 1", "left -= 1; print(args[0])"), "-1", "0", "report")
    names = listing.stdout.split()
    assert names.count("msgspec") >= 1
    at = names.index("msgspec") + 1
    for moment in range(at, at + 25):
        done = interrupted(AT_IMPORT, str(moment), str(signal.SIGINT.value), "report")
        assert (done.returncode, done.stderr) == (-signal.SIGINT, ""), (moment, done.stderr)


@pytest.mark.parametrize("prepare", ["", "from topocheck.cli.signals import stop_cleanly; stop_cleanly()"])
def test_after_the_end(prepare: str) -> None:
    done = interrupted(AT_END.format(prepare=prepare))
    assert done.returncode in (0, -signal.SIGINT)
    assert done.stderr == ""


def test_an_interrupt_that_is_ignored_stays_ignored() -> None:
    code = AT_IMPORT.replace("import os, sys\n", "import os, sys, signal\nsignal.signal(2, signal.SIG_IGN)\n")
    done = interrupted(code, "60", str(signal.SIGINT.value), "report")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_measurement_asked_to_stop_twice_at_once_clears_away_all_the_same() -> None:
    """A terminal and a launcher send the same interrupt to the same process."""
    code = (
        "import os, signal, sys\n"
        "from topocheck.cli.signals import stop_cleanly\n"
        "stop_cleanly()\n"
        "try: os.kill(os.getpid(), 2)\n"
        "except KeyboardInterrupt:\n"
        "    os.kill(os.getpid(), 2)\n"
        "    print('cleared', flush=True)\n"
        "from topocheck.cli import signals\n"
        "signals._AGAIN_S = 0\n"
        "os.kill(os.getpid(), 2)\n"
        "print('still here')\n"
    )
    done = interrupted(code)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "cleared\n", "")


def test_loading_the_commands_in_a_thread_changes_nothing() -> None:
    code = (
        "import signal, threading\n"
        "def load():\n"
        "    import topocheck.cli.main\n"
        "t = threading.Thread(target=load); t.start(); t.join()\n"
        "print(signal.getsignal(2) is signal.default_int_handler)\n"
    )
    done = interrupted(code)
    assert (done.stdout, done.stderr) == ("True\n", "")
