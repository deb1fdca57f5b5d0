"""One file for each kind of input; `make(rng)` in it returns a case."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from random import Random

from tests.fuzz.case import Case

Make = Callable[[Random], Case]


def every() -> dict[str, Make]:
    """Return name -> function that makes a case, for every file here."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__))
    return {n: importlib.import_module(f"{__name__}.{n}").make for n in names}
