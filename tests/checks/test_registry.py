"""Checks are found by walking their folder; a check in preview is run only when it is asked for."""

from __future__ import annotations

import ast
import compileall
import functools
import importlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.checks import support
from tests.checks.support import healthy
from tests.support.losses import Case
from tests.support.snapshots import record
from topocheck import checks
from topocheck.checks import (
    all_checks,
    fabric_checks,
    files,
    live_checks,
    node_checks,
    registry,
    static_checks,
    watch_checks,
)
from topocheck.checks.sources import NOTHING, Needs
from topocheck.cli.check_input import chosen_checks
from topocheck.cli.checks_page import checks_page
from topocheck.model.base import Finding, InputError, State
from topocheck.policy.load import parse
from topocheck.policy.types import CheckPolicy, Policy
from topocheck.render.checks import explain_text
from topocheck.render.page import Style

FOLDER = Path(checks.__file__).parent
PLANTED = '''
from topocheck.checks.registry import check
from topocheck.model.base import Finding, State

@check("zz.{name}", severity=State.WARN, reads=("nothing",), preview={preview})
def _planted(context):
    """A planted check.

    Looks at: nothing.
    """
    yield Finding(state=State.WARN, subject="node", title="found")
'''


def used_by_others(folder: Path) -> set[str]:
    """Return the files of checks that the files below a folder import, as names within the package."""
    used = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("topocheck.checks"):
                base = (node.module or "").removeprefix("topocheck.checks").lstrip(".")
                used |= {base} | {f"{base}.{a.name}".lstrip(".") for a in node.names}
    return used


@functools.cache
def used() -> set[str]:
    return used_by_others(FOLDER.parent)


def registered_by(file: str) -> list[str]:
    module = importlib.import_module(f"topocheck.checks.{file}").__name__
    return [c.id for c in registry.CHECKS.values() if c.function.__module__ == module]


def test_files_are_found_by_walking() -> None:
    assert set(files()) == {
        ".".join(p.relative_to(FOLDER).with_suffix("").parts)
        for p in FOLDER.glob("*/*.py")
        if p.name != "__init__.py" and p.parent.name != "shared"
    }


@pytest.mark.parametrize("file", files())
def test_the_folder_of_a_check_is_the_area_of_its_id(file: str) -> None:
    assert {i.partition(".")[0] for i in registered_by(file)} <= {file.partition(".")[0]}


@pytest.mark.parametrize("file", files())
def test_a_file_registers_checks_or_is_imported_by_another(file: str) -> None:
    assert registered_by(file) or file in used(), f"checks/{file} registers nothing and nobody uses it"


@pytest.mark.parametrize("file", files())
def test_every_check_of_a_file_is_among_the_checks(file: str) -> None:
    assert set(registered_by(file)) <= {c.id for c in all_checks()}


def test_a_check_that_can_warn_or_fail_says_what_it_needs() -> None:
    silent = [c.id for c in static_checks() if c.severity in (State.FAIL, State.WARN) and c.needs == NOTHING]
    # The first judges what the files say alone; the other has an answer of its own to a fact that is missing.
    expected = ["consistency.sources-differ", "policy.driver-differs"]
    assert silent == expected, "add needs=Needs(...) to @check, names in topocheck/checks/sources.py"


def test_a_need_that_no_source_has_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"check zz\.one needs 'moon', which is no name in topocheck/checks/sources\.py"
    ):
        registry.check("zz.one", severity=State.WARN, reads=(), needs=Needs(("pci",), ("moon",)))(lambda c: ())


def test_what_checks_judge_is_told_by_their_area() -> None:
    assert {c.id.split(".")[0] for c in live_checks()} == {"bw"}
    assert {c.id.split(".")[0] for c in node_checks()} == {"network"}
    assert {c.id.split(".")[0] for c in fabric_checks()} == {"fabric"}
    assert {c.id.split(".")[0] for c in watch_checks()} == {"watch"}
    assert not {"bw", "network", "fabric", "watch"} & {c.id.split(".")[0] for c in static_checks()}
    apart = (static_checks(), live_checks(), node_checks(), fabric_checks(), watch_checks())
    assert len(all_checks()) == sum(map(len, apart))


def test_checks_of_facts_load_no_checks_of_measurements() -> None:
    code = (
        "import sys, topocheck.checks as c; c.static_checks(); "
        "print([m for m in sys.modules if m.startswith(('topocheck.checks.bw', 'topocheck.checks.network'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An area of checks of its own, `zz`; what its files register is taken out again."""
    before = dict(registry.CHECKS)
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])
    (tmp_path / "zz").mkdir()
    (tmp_path / "zz" / "__init__.py").touch()
    yield tmp_path / "zz"
    for name in [m for m in sys.modules if m.startswith("topocheck.checks.zz")]:
        del sys.modules[name]
    registry.CHECKS.clear()
    registry.CHECKS.update(before)


def test_a_new_file_and_a_new_folder_need_no_list(planted: Path) -> None:
    (planted / "one.py").write_text(PLANTED.format(name="one", preview=False))
    (planted / "two.py").write_text(PLANTED.format(name="two", preview=False))
    found = {c.id: c for c in static_checks()}
    assert {"zz.one", "zz.two"} <= set(found)
    assert found["zz.one"].title == "A planted check"


def test_a_file_that_registers_nothing_is_named(planted: Path) -> None:
    (planted / "idle.py").write_text("def forgotten(context): ...\n")
    assert registered_by("zz.idle") == []
    assert "zz.idle" in files()
    assert "zz.idle" not in used() | used_by_others(planted)


def test_a_finding_gets_the_id_of_its_check(planted: Path) -> None:
    (planted / "thing.py").write_text(PLANTED.format(name="flat", preview=False))
    (check,) = [c for c in static_checks() if c.id == "zz.flat"]
    _, found = next(iter(registry.run([check], healthy("dgx_a100"))))
    assert found == (Finding(id="zz.flat", state=State.WARN, subject="node", title="found"),)


def test_a_check_in_preview_runs_only_when_asked_for(planted: Path) -> None:
    (planted / "thing.py").write_text(PLANTED.format(name="new", preview=True))
    every = static_checks()
    context = healthy("dgx_a100")

    def runs(policy: Policy) -> bool:
        return "zz.new" in {r.id for r, _ in registry.run(every, msgspec.structs.replace(context, policy=policy))}

    assert not runs(Policy())
    assert not runs(Policy(checks={"zz.new": CheckPolicy(severity="note")}))
    assert runs(Policy(preview=True))
    assert runs(Policy(checks={"zz.new": CheckPolicy(preview=True)}))
    assert runs(Policy(checks={"zz.*": CheckPolicy(preview=True)}))
    assert not runs(Policy(preview=True, checks={"zz.new": CheckPolicy(enabled=False)}))
    assert runs(parse(b"preview = true", "p.toml", [c.id for c in every]))
    assert runs(parse(b'[checks."zz.new"]\npreview = true', "p.toml", [c.id for c in every]))
    with pytest.raises(InputError, match=r"check 'zz\.new' is in preview: add --preview"):
        chosen_checks(("zz.new",), (), "all", Policy())
    assert [c.id for c in chosen_checks(("zz.new",), (), "all", Policy(preview=True))] == ["zz.new"]
    assert "zz.new" in [c.id for c in chosen_checks((), ("pcie",), "all", Policy())]


def test_a_check_in_preview_is_marked(planted: Path) -> None:
    (planted / "thing.py").write_text(PLANTED.format(name="new", preview=True))
    (check,) = [c for c in static_checks() if c.id == "zz.new"]
    page = checks_page([check])
    assert "| A planted check (preview) |" in page
    assert "In preview: run only with `--preview`" in page
    assert "--preview" in explain_text(check, Style(width=100, colour=False))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["zip", "bytecode alone"])
def test_checks_are_found_wherever_the_package_is_loaded_from(tmp_path: Path, form: str) -> None:
    package = FOLDER.parent
    sources = [p for p in package.rglob("*") if p.suffix in (".py", ".tsv")]
    where = tmp_path / ("packed.zip" if form == "zip" else "compiled")
    if form == "zip":
        with zipfile.ZipFile(where, "w") as z:
            for path in sources:
                z.write(path, path.relative_to(package.parent))
    else:
        for path in sources:
            to = where / path.relative_to(package.parent)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
        assert compileall.compile_dir(where / "topocheck", legacy=True, quiet=1)
        for path in where.rglob("*.py"):
            path.unlink()
    code = "import topocheck.checks as c; print(c.__file__, len(c.all_checks()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(where)}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(where)), done.stderr
    assert int(done.stdout.split()[-1]) == len(all_checks())


def test_the_tests_judge_a_check_in_preview_like_any_other(planted: Path) -> None:
    """One that warns on a healthy machine, or on a lost answer, fails `test_healthy` or `test_lost_evidence`."""
    (planted / "thing.py").write_text(PLANTED.format(name="new", preview=True))
    machine = "laptop"
    assert support.states("zz.new", support.healthy(machine)) == {"node": State.WARN}
    assert support.states("zz.new", support.variant(machine, system={"root": False})) == {"node": State.WARN}
    assert "zz.new" in {f.id for f in Case(machine, record(machine)).base.findings}
