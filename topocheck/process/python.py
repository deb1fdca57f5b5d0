"""Starting this program's own modules in a new interpreter, with nothing taken from the current folder."""

from __future__ import annotations

import errno
import os
import sys

from topocheck.process.programs import search_path

TYPE_CHECKING = False  # not from typing: this is loaded before the driver is asked
if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
"""The folder that holds this package."""


def python_argv(module: str, *args: str) -> list[str]:
    """Return the command that runs a module in a new interpreter; -P keeps the current folder off its `sys.path`.

    Raises:
        OSError: it is not known which program this interpreter is, or it cannot be executed.
    """
    if not sys.executable:
        why = "Python does not know which program it is (sys.executable is empty), so it cannot start another process"
        raise OSError(errno.ENOENT, why, "python")
    if not os.access(sys.executable, os.X_OK):
        number = errno.EACCES if os.path.lexists(sys.executable) else errno.ENOENT
        raise not_started(OSError(number, os.strerror(number)), sys.executable)
    return [sys.executable, "-P", "-m", module, *args]


def not_started(error: OSError, interpreter: str) -> OSError:
    """Return the error of an interpreter that could not be started, which says what may have become of it."""
    why = f"{error.strerror}: this Python interpreter cannot be started; was its environment removed or changed?"
    return OSError(error.errno, why, interpreter)


def child_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child: `base` (this process's own where None), without the current folder.

    PYTHONSAFEPATH does for the interpreters that a child starts itself what -P does for the child; PATH holds the
    folders in which `find_program` looks.
    """
    env = dict(os.environ if base is None else base)
    env["PYTHONSAFEPATH"] = "1"
    env["PATH"] = os.pathsep.join(search_path(env.get("PATH", "")))
    if _in_checkout():
        # `python -m topocheck` in a checkout that is not installed: the package itself must still be found.
        env["PYTHONPATH"] = os.pathsep.join(p for p in (env.get("PYTHONPATH", ""), _ROOT) if p)
    return env


def leave_current_folder() -> None:
    """Drop the current folder from `sys.path`, where `python -c` or `python -m` put it.

    It stays where this package is found nowhere else.
    """
    if _started_here() and not _in_checkout():
        del sys.path[0]


def _started_here() -> bool:
    """Tell whether the first entry of `sys.path` is the current folder, for having been started there."""
    return not sys.flags.safe_path and bool(sys.path) and (sys.path[0] == "" or _same(sys.path[0], os.curdir))


def _in_checkout() -> bool:
    """Tell whether this package was found only because the interpreter was started in its folder."""
    return _started_here() and _same(os.curdir, _ROOT) and not any(_same(p, _ROOT) for p in sys.path[1:])


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
