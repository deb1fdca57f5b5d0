"""The registry of checks and the files that fill it, found by walking the folders below: no list is kept anywhere.

The folder of a check is the area of its id (`pcie/links.py` has `pcie.width-below-both-ends`); `shared/` has what
checks of several areas use. `bw/` judges measurements on one node, `network/` those between nodes, `fabric/` dumps
of the network, `watch/` samples over time, every other folder the facts of a machine. Only the files that are asked
for are imported.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Literal

from topocheck.checks.registry import CHECKS, Check

Judged = Literal["facts", "run", "node pairs", "fabric", "samples"]
_MEASURED: dict[str, Judged] = {"bw": "run", "network": "node pairs", "fabric": "fabric", "watch": "samples"}


def static_checks() -> tuple[Check, ...]:
    """Return the checks of facts, by id: those of `topocheck check` and `report`."""
    return _load("facts")


def live_checks() -> tuple[Check, ...]:
    """Return the checks of measurements on one node, by id: those of `topocheck bw`."""
    return _load("run")


def node_checks() -> tuple[Check, ...]:
    """Return the checks of measurements between nodes, by id."""
    return _load("node pairs")


def fabric_checks() -> tuple[Check, ...]:
    """Return the checks of dumps of the network between nodes, by id."""
    return _load("fabric")


def watch_checks() -> tuple[Check, ...]:
    """Return the checks of samples over time, by id: those of `topocheck watch`."""
    return _load("samples")


def all_checks() -> tuple[Check, ...]:
    """Return every check there is, by id."""
    every = (*static_checks(), *live_checks(), *node_checks(), *fabric_checks(), *watch_checks())
    return tuple(sorted(every, key=lambda c: c.id))


def threshold_names() -> dict[str, tuple[str, ...]]:
    """Return the id of every check with the names of its thresholds, as reading a policy takes them."""
    return {c.id: c.thresholds for c in all_checks()}


def files() -> list[str]:
    """Return the files of every area, as names of modules within the package, in order."""
    areas = sorted({area for path in __path__ for area in _areas(path)} - {"shared"})
    return [f"{area}.{file}" for area in areas for file in _files_of(area)]


def _areas(folder: str) -> Iterable[str]:
    try:
        with os.scandir(folder) as found:
            return [e.name for e in found if e.name.isidentifier() and not e.name.startswith("__") and e.is_dir()]
    except OSError:
        return [name for name, package in _modules_of(folder) if package]


def _files_of(area: str) -> list[str]:
    return sorted({name for path in __path__ for name in _names(os.path.join(path, area))} - {"__init__"})


def _names(folder: str) -> Iterable[str]:
    """Return the names of the modules in a folder, which may be inside a zip file."""
    try:
        names = os.listdir(folder)
    except OSError:
        return [name for name, _ in _modules_of(folder)]
    return [n.rpartition(".")[0] for n in names if n.endswith((".py", ".pyc"))]


def _modules_of(folder: str) -> list[tuple[str, bool]]:
    """Return the modules of a folder that is inside a zip file: their names, and whether each is a package."""
    import pkgutil

    return [(m.name, m.ispkg) for m in pkgutil.iter_modules([folder])]


def _judged(file: str) -> Judged:
    return _MEASURED.get(file.partition(".")[0], "facts")


def _load(judged: Judged) -> tuple[Check, ...]:
    """Return the checks of the files that judge this, and of no other file that happens to be imported."""
    names = {importlib.import_module(f"{__name__}.{file}").__name__ for file in files() if _judged(file) == judged}
    return tuple(CHECKS[i] for i in sorted(CHECKS) if CHECKS[i].function.__module__ in names)
