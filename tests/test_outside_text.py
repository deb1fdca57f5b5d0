"""Texts from outside: what is a digit, and that no other text is read as a number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from topocheck.checks.consistency.visible_devices import resolve
from topocheck.gpudirect.inputs import kernel_version
from topocheck.knowledge.nccl import parse_version
from topocheck.model.address import address_key
from topocheck.model.base import is_digits, small_number
from topocheck.model.hostlist import expand_hostlist
from topocheck.model.names import natural_key
from topocheck.nccl.logs.compare import bus_id
from topocheck.probes.cgroup import parse_cgroup

PACKAGE = Path(__file__).parents[1] / "topocheck"
HIDES = {"host/recording/identifiers.py", "host/recording/anonymize.py"}
"""Replace what may be an identifier; there a number in any script may be a part of one."""

OTHER_SCRIPTS = ("²", "٣", "１２", "𝟗", "৪", "①")
"""Digits to Unicode (Numeric_Type Digit or Decimal); `int` takes some of them, ASCII has none."""


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, node.func.attr


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_only_one_function_asks_python_what_a_digit_is() -> None:
    found = [
        f"{p.relative_to(PACKAGE)}:{call.lineno}"
        for p in modules()
        for call, name in calls(p)
        if name in ("isdigit", "isdecimal", "isnumeric") and p.relative_to(PACKAGE).as_posix() != "model/base.py"
    ]
    assert not found, (
        "use topocheck.model.base.is_digits or small_number: isdigit() takes ² for a digit, int() does not"
    )


def test_no_pattern_takes_the_digits_of_other_scripts() -> None:
    found = []
    for p in modules():
        if p.relative_to(PACKAGE).as_posix() in HIDES:
            continue
        for call, name in calls(p):
            texts = [a.value for a in call.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            flags = " ".join(ast.unparse(a) for a in (*call.args[1:], *(k.value for k in call.keywords)))
            if name in _RE and any(r"\d" in t for t in texts) and "ASCII" not in flags:
                found.append(f"{p.relative_to(PACKAGE)}:{call.lineno}")
    assert not found, r"write [0-9], or give re.ASCII: \d takes the digits of every script"


def test_who_decodes_takes_all_that_msgspec_raises() -> None:
    """DecodeError; UnicodeDecodeError, which is none, for text that is not UTF-8; RecursionError for what is too deep.

    A bare `except msgspec.ValidationError` beside the other one only tells another story first.
    """
    found = []
    for p in modules():
        for node in ast.walk(ast.parse(p.read_text())):
            if not isinstance(node, ast.ExceptHandler) or node.type is None:
                continue
            taken = set(re.findall(r"[A-Za-z]+Error", ast.unparse(node.type)))
            unicode = taken & {"UnicodeDecodeError", "UnicodeError", "ValueError"}
            if "DecodeError" in taken and not (unicode and "RecursionError" in taken):
                found.append(f"{p.relative_to(PACKAGE)}:{node.lineno}")
    assert not found, "except (msgspec.DecodeError, UnicodeDecodeError, RecursionError)"


_RE = ("compile", "match", "search", "fullmatch", "findall", "finditer", "split", "sub")


@pytest.mark.parametrize("text", OTHER_SCRIPTS)
def test_digits_are_those_of_ascii(text: str) -> None:
    assert text.isdigit()
    assert not is_digits(text)
    assert small_number(text) is None
    assert natural_key(f"hca{text}") == ((-1, f"hca{text}"),)
    assert parse_version(f"2.{text}.3") is None
    assert kernel_version(f"5.{text}") is None
    assert expand_hostlist(f"n[{text}-{text}]") == [f"n[{text}-{text}]"]
    assert parse_cgroup(f"{text}:memory:/a") == {}
    assert [e.problem for e in resolve(text, ())] == ["neither an index nor a UUID"]


def test_digits_of_ascii() -> None:
    assert is_digits("0123456789")
    assert not any(map(is_digits, ("", " 1", "1\n", "+1", "-1", "1_0", "0x1", "1.0")))
    assert (small_number("007"), small_number("9" * 9), small_number("1" * 10)) == (7, 999_999_999, None)
    assert kernel_version("9" * 5000 + ".1") is None


def test_a_name_that_stands_for_an_address_comes_after_all_addresses() -> None:
    names = ["nvml:10", "ffffffff:ff:1f.7", "nvml:2", "0000:00:06.0", "GPU0", "²"]
    # The domain of an address has 32 bits at most; names go by their number, one without as 0, equal ones as they came.
    assert sorted(names, key=address_key) == ["0000:00:06.0", "ffffffff:ff:1f.7", "GPU0", "²", "nvml:2", "nvml:10"]
    # NCCL's busIdToInt64 drops the separators: 0000:18:00.0 is 0x18000.
    assert (bus_id("0000:18:00.0"), bus_id("nvml:0")) == (0x18000, None)
