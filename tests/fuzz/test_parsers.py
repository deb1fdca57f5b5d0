"""Every function that reads a text from outside: it gives a value, or raises what its docstring says it raises."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import topocheck
from tests.fuzz import corpus, hostile, texts
from topocheck.model.base import InputError

ROOMS = (
    "model",
    "knowledge",
    "host",
    "probes",
    "nccl",
    "placement",
    "policy",
    "topology",
    "gpudirect",
    "compare",
    "tests_live",
)
_NAME = re.compile(
    r"(parse|read|expand|normalize|split|is)_\w+|parse|natural_key|address_key|small_number|kernel_version"
)
_TEXT = {"str": str, "bytes": bytes, "str | bytes": str}


def readers() -> dict[str, Callable[..., Any]]:
    """Return name -> function whose one necessary argument is a text."""
    out = {}
    for room in ROOMS:
        package = importlib.import_module(f"topocheck.{room}")
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            for name, f in vars(module).items():
                if inspect.isfunction(f) and f.__module__ == info.name and _NAME.fullmatch(name) and _takes(f):
                    out[f"{info.name.removeprefix('topocheck.')}.{name}"] = f
    return out


def _takes(f: Callable[..., Any]) -> type | None:
    needed = [p for p in inspect.signature(f).parameters.values() if p.default is p.empty]
    return _TEXT.get(needed[0].annotation) if len(needed) == 1 else None


def _allowed(f: Callable[..., Any]) -> tuple[type[Exception], ...]:
    """Return what its docstring says it raises."""
    said = (f.__doc__ or "").partition("Raises:")[2]
    words = re.findall(r"^ +(\w+(?:, \w+)*):", said, re.MULTILINE)
    names = [n.strip() for w in words for n in w.split(",")]
    module = importlib.import_module(f.__module__)
    builtin = {"ValueError": ValueError, "KeyError": KeyError, "OSError": OSError}
    return (InputError, *(builtin.get(n) or getattr(module, n) for n in names))


READERS = readers()


@functools.cache
def said_by_machines() -> tuple[str, ...]:
    said = dict.fromkeys(
        a.decode("utf-8", "replace")[:2000]
        for name in ("hgx_h100_cx7", "power9_ac922", "laptop")
        for a in corpus.answers(name).values()
        if isinstance(a, bytes)
    )
    return tuple(said)


@st.composite
def outside(draw: st.DrawFn) -> str:
    """Texts of real files a few edits away, and hostile ones."""
    rng: Random = draw(st.randoms(use_true_random=False))
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(st.text(st.characters(codec="utf-8"), max_size=60))
    if kind == 1:
        return hostile.text(rng)
    said = draw(st.sampled_from(said_by_machines()))
    return texts.lines(rng, said, 2) if kind == 2 else texts.words(rng, said)


def test_the_readers_are_found() -> None:
    named = {"probes.pci.text.parse_link_speed", "nccl.topofile.xml.parse", "model.address.parse_cpulist"}
    assert named <= set(READERS)
    assert topocheck


@pytest.mark.parametrize("name", sorted(READERS))
@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
@given(text=outside())
@example("²")
@example("9" * 5000)
@example("0x" + "f" * 5000)
@example("")
@example("\udcff")
def test_reads_whatever_comes(name: str, text: str) -> None:
    f = READERS[name]
    given_ = text.encode("utf-8", "surrogatepass") if _takes(f) is bytes else text
    try:
        f(given_)
    except _allowed(f):
        return
