"""Rules that the tests themselves keep, so that they pass on a slow and busy machine."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.waiting import PATIENCE_S, until

TESTS = Path(__file__).parent
GIVE_UP = ("cluster/attacker.py", "cluster/flood.py", "fuzz/client.py")
"""Files that play somebody who does not wait: an attacker, and a fuzzer that ends a server that hangs."""
FILES = sorted(p for p in TESTS.rglob("*.py") if p.relative_to(TESTS).as_posix() not in GIVE_UP)
LEAST_LIMIT_S = 60
"""A limit of a test is reached only where something is broken; PATIENCE_S is the usual one."""
PAUSE_S = 0.25
"""Longest sleep between two looks at whether something has happened."""
FOREVER_S = 60
"""From here on a sleep stands for something that hangs."""
CLOCKS = ("monotonic", "perf_counter", "time")


def name_of(node: ast.AST) -> str:
    """Return the name of the function that a node calls; empty where it calls none."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def number(node: ast.expr | None, named: Mapping[str, float] = {}) -> float | None:
    if isinstance(node, ast.Name):
        return named.get(node.id)
    value = node.value if isinstance(node, ast.Constant) else None
    return float(value) if isinstance(value, int | float) else None


def fixed_wait(node: ast.AST, named: Mapping[str, float]) -> str:
    """Return what is wrong with an expression that waits for a while, or that expects something to be quick."""
    name, limit = name_of(node), None
    if isinstance(node, ast.Call):
        limit = next((number(k.value, named) for k in node.keywords if k.arg == "timeout"), None)
        first = number(node.args[0], named) if node.args else None
        if name == "sleep" and first is not None and PAUSE_S < first < FOREVER_S:
            return f"sleep({first:g})"
        if name in ("join", "wait") and limit is None:
            limit = first
        if name == "settings" and any(k.arg == "deadline" for k in node.keywords):
            return "a deadline of hypothesis; the profile of conftest.py has none"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and name_of(node.left) in CLOCKS:
        name, limit = name_of(node.left), number(node.right)
    elif isinstance(node, ast.Compare):
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            took = isinstance(left, ast.BinOp) and name_of(left.left) in CLOCKS
            if took and isinstance(op, ast.Lt | ast.LtE) and number(right) is not None:
                return f"expected to be done within {number(right):g} s"
    return f"{name} with a limit of {limit:g} s" if limit is not None and 0 < limit < LEAST_LIMIT_S else ""


def fixed_waits(path: Path) -> list[str]:
    """Return the places where a test waits for a while instead of an event, or gives little time to what must come."""
    tree = ast.parse(path.read_text())
    named = {
        n.targets[0].id: value
        for n in tree.body
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and (value := number(n.value)) is not None
    }
    found = [(getattr(n, "lineno", 0), fixed_wait(n, named)) for n in ast.walk(tree)]
    return [f"line {line}: {what}" for line, what in sorted(found) if what]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(TESTS)))
def test_no_test_waits_for_a_while_or_expects_speed(path: Path) -> None:
    assert fixed_waits(path) == []


@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(1.0)",
        "run(timeout=30)",
        "thread.join(20)",
        "process.wait(20)",
        "end = time.monotonic() + 20",
        "assert time.monotonic() - begun < 500",
        "assert 1.0 <= perf_counter() - begun < 1.9",
        "@settings(deadline=200)\ndef f(): ...",
    ],
)
def test_a_fixed_wait_is_found(wait: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(f"import time\n{wait}\n")
    assert [w.split(":")[0] for w in fixed_waits(tmp_path / "x.py")] == ["line 2"]


def test_a_fixed_wait_with_a_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("LIMIT_S = 30.0\nqueue.get(timeout=LIMIT_S)\nthread.join(LIMIT_S)\n")
    assert [w.split(":")[0] for w in fixed_waits(tmp_path / "x.py")] == ["line 2", "line 3"]


@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(0.02)",
        "time.sleep(600)",
        "run(timeout=PATIENCE_S)",
        "thread.join()",
        "child.wait(0)",
        "', '.join(words)",
        "time.monotonic() - 1",
        "assert time.monotonic() - begun >= 4",
    ],
)
def test_what_depends_on_no_speed_is_left_alone(wait: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(f"import time\n{wait}\n")
    assert fixed_waits(tmp_path / "x.py") == []


def test_hypothesis_has_no_deadline_wherever_it_runs() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_waiting_gives_what_came_and_names_what_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([0, "", "here"])
    assert until(lambda: next(answers), "an answer") == "here"
    monkeypatch.setattr("tests.support.waiting.PATIENCE_S", 0.0)
    with pytest.raises(AssertionError, match=r"the moon: not within 0 s\nclouds"):
        until(lambda: False, "the moon", else_=lambda: "clouds")
    assert PATIENCE_S >= 10 * LEAST_LIMIT_S


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}


def needs_torch(node: ast.AST, helpers: set[str]) -> bool:
    """Tell whether a test skips itself without torch, by itself or by a function of its file."""
    for call in ast.walk(node):
        asked = isinstance(call, ast.Call) and call.args and getattr(call.args[0], "value", "") == "torch"
        if name_of(call) in helpers or (asked and name_of(call) == "importorskip"):
            return True
    return False


def unmarked(path: Path) -> list[str]:
    """Return the tests of a file that need torch and do not carry its marker (or that of GPUs)."""
    tree = ast.parse(path.read_text())
    marks = [ast.unparse(n) for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n).startswith("pytestmark")]
    if any(".torch" in m or ".gpu" in m for m in marks):
        return []
    own = functions(tree)
    helpers = {name for name, f in own.items() if needs_torch(f, set()) and not name.startswith("test_")}
    marked = {n for n, f in own.items() if any(".torch" in ast.unparse(d) for d in f.decorator_list)}
    return [n for n, f in own.items() if n.startswith("test_") and needs_torch(f, helpers) and n not in marked]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(TESTS)))
def test_who_needs_torch_carries_its_marker(path: Path) -> None:
    assert unmarked(path) == []


def test_a_forgotten_marker_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import pytest\ndef helper(): pytest.importorskip('torch')\ndef test_a(): helper()\n"
        "@pytest.mark.torch\ndef test_b(): helper()\ndef test_c(): pytest.importorskip('torch')\ndef test_d(): ...\n"
    )
    assert unmarked(tmp_path / "test_x.py") == ["test_a", "test_c"]
