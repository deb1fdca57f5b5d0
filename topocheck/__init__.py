"""topocheck: how GPUs, NICs and CPUs of a node are connected, and why a link is slow.

The Python API (docs/python.md): `report()` judges this machine, `load(file)` one that was recorded; both return a
NodeReport. Nothing is loaded before it is used.
"""

# Not even __future__: until topocheck.cli is there, an interrupt of a command is Python's to print.

__all__ = ["InputError", "NodeReport", "Pair", "load", "report"]

TYPE_CHECKING = False  # not from typing: this is loaded before the driver is asked
if TYPE_CHECKING:
    from os import PathLike

    from topocheck.api import NodeReport, Pair
    from topocheck.model.base import InputError
    from topocheck.model.version import __version__ as __version__

_PLACES = {
    "NodeReport": "topocheck.api",
    "Pair": "topocheck.api",
    "InputError": "topocheck.model.base",
    "__version__": "topocheck.model.version",
}
"""Name of this package -> the module that has it, which is loaded when somebody asks."""


def report(*, policy: "str | PathLike[str] | None" = None, budget_s: float | None = None) -> "NodeReport":
    """Ask this machine everything, in child processes with deadlines, and judge it.

    Needs no root; never hangs; changes nothing. Takes about a second.

    Args:
        policy: a policy file; the built-in policy where None.
        budget_s: seconds for all questions; by default 20, and 2 more for each GPU. What did not answer in time is
            unknown and named.

    Raises:
        InputError: the policy cannot be used.
    """
    from topocheck.api import report as judge

    return judge(policy=policy, budget_s=budget_s)


def load(*files: "str | PathLike[str]", policy: "str | PathLike[str] | None" = None) -> "NodeReport":
    """Judge a recorded machine.

    Args:
        files: one or several files of one machine: a snapshot, a JSON report, or texts of lspci, nvidia-smi, dmesg
            and others (docs/readers.md).
        policy: a policy file; the built-in policy where None.

    Raises:
        InputError: a file cannot be read or used; says which and what is wrong.
    """
    from topocheck.api import load as judge

    return judge(*files, policy=policy)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'topocheck' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)
