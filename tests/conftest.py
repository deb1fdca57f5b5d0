"""Shared by all tests."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import topocheck.cli  # noqa: F401

# No test depends on how fast the machine is, and the same examples are tried on every one. To look for new ones:
# pytest --hypothesis-profile=explore
settings.register_profile(
    "everywhere",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("everywhere"), derandomize=False, max_examples=1000)
settings.load_profile("everywhere")

# The command line lets an interrupt end the process; the tests' own process takes it as pytest does.
signal.signal(signal.SIGINT, signal.default_int_handler)


# A test that starts a command would else compile the whole package each time, which takes longer than the command.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

FIRST = ("service", "torch", "slow")
"""Markers of the tests that take longest, in the order in which they begin: the long ones must not be the last."""
LARGE = "thousand_devices"
"""A described machine that takes as long as all others together: every test on it is slow."""


def pytest_xdist_auto_num_workers() -> int:
    """Use two processes for each CPU, four at most: half of the slow tests wait for limits and services."""
    return min(4, 2 * len(os.sched_getaffinity(0)))


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of files: xdist would begin with those that have the most tests."""
    config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, and mark the tests of the largest machine."""
    files: dict[Path, int] = {}
    for item in items:
        if LARGE in item.nodeid:
            item.add_marker(pytest.mark.slow)
        rank = next((i for i, m in enumerate(FIRST) if item.get_closest_marker(m)), len(FIRST))
        files[item.path] = min(rank, files.get(item.path, rank))
    items.sort(key=lambda item: files[item.path])


def pytest_collection_finish() -> None:
    """Spare the collector of cycles the thousands of tests: it looks through them again and again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that carries the marker `torch` where there is none; torch itself takes seconds to load."""
    if item.get_closest_marker("torch") and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch (the [bw] extra)")


def require_program(*names: str) -> None:
    """Skip the test where a program is absent; fail where TOPOCHECK_REQUIRE_SERVICES=1 promises it."""
    absent = [n for n in names if shutil.which(n, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None]
    if absent:
        _absent(f"needs {', '.join(absent)}, not installed here")


def require_readable_by_others() -> None:
    """Skip the test where another user cannot run this Python and read its packages and this checkout.

    Such a test starts its own Python as another user. An environment below /root or a home folder is often closed.
    """
    require_program("setpriv")
    if why := _unreadable_by_others():
        _absent(f"needs an environment and a checkout that other users can read: {why}")


@functools.cache
def _unreadable_by_others() -> str:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import msgspec, topocheck.tests_live.launch.frames"
    argv = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-I", "-B", "-c", code]
    done = subprocess.run(
        [*argv, str(Path(__file__).parents[1])], cwd="/", capture_output=True, text=True, timeout=600, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2]


def _absent(text: str) -> None:
    if os.environ.get("TOPOCHECK_REQUIRE_SERVICES") == "1":
        pytest.fail(text)
    pytest.skip(text)
