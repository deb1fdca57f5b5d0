"""The rooms of docs/architecture.md, held against the code's own imports."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.renew import RENEW
from tests.support.rooms import PAGE, ROOMS, renewed, table

PACKAGE = Path(__file__).parent.parent / "topocheck"

HEAVY = {"torch", "numpy", "rich", "jinja2", "psutil", "pynvml", "prometheus_client", "junitparser", "mpi4py", "cuda"}
DOOR_ONLY = {"subprocess", "socket", "ctypes"}
PURE = ("model", "probes", "topology", "gpudirect", "nccl", "policy", "bandwidth", "checks", "compare", "placement")


MODULES = {
    ".".join(("topocheck", *f.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): f
    for f in sorted(PACKAGE.rglob("*.py"))
}


class Import(NamedTuple):
    """What is imported, where, whether at module level, whether for annotations alone."""

    module: str
    line: int
    top: bool
    types: bool = False


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def files(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


def imports(tree: ast.AST) -> list[Import]:
    """Every import outside TYPE_CHECKING blocks."""
    return [i for i in every_import(tree) if not i.types]


@functools.cache
def every_import(tree: ast.AST) -> list[Import]:
    out = []

    def visit(node: ast.AST, top: bool, types: bool) -> None:
        types = types or (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"))
        if isinstance(node, ast.Import):
            out.extend(Import(a.name, node.lineno, top, types) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            out.append(Import(node.module or "", node.lineno, top, types))
            below = [f"{node.module}.{a.name}" for a in node.names]
            out.extend(Import(m, node.lineno, top, types) for m in below if m in MODULES)
        inner = top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inner, types)

    visit(tree, True, False)
    return out


def room_of(module: str) -> str:
    """The room of a module: its folder below the package, or itself."""
    parts = module.split(".")[1:]
    if MODULES[module].name != "__init__.py" and len(parts) > 1:
        parts = parts[:-1]
    return "/".join(parts)


@functools.cache
def arrows() -> dict[tuple[str, str, bool], str]:
    """(room, room it imports, for annotations alone) -> one place where it does."""
    out = {}
    for module, file in MODULES.items():
        if module == "topocheck":  # the package's own face
            continue
        found = every_import(parsed(file))
        deeper = {(i.line, i.module.rpartition(".")[0]) for i in found if i.module in MODULES}
        for i in found:
            # Of `from package import module`, the module counts.
            ours = i.module in MODULES and i.module != "topocheck" and (i.line, i.module) not in deeper
            if ours and room_of(i.module) != room_of(module):
                out[room_of(module), room_of(i.module), i.types] = f"{file.relative_to(PACKAGE)}:{i.line}"
    return out


def test_every_folder_is_in_the_table() -> None:
    assert {room_of(m) for m in MODULES if m != "topocheck"} == set(ROOMS)


def test_a_room_imports_only_what_the_table_says() -> None:
    wrong = [
        f"{where}: {room} imports {other}"
        for (room, other, types), where in arrows().items()
        if room != "cli" and other not in (ROOMS[room].may_name if types else ROOMS[room].may)
    ]
    assert not wrong


def test_the_table_says_nothing_that_is_not_so() -> None:
    said = {(r, o, False) for r, room in ROOMS.items() for o in room.may}
    said |= {(r, o, True) for r, room in ROOMS.items() for o in room.may_name - room.may}
    assert said - set(arrows()) == set()


def test_commands_start_no_processes_and_nothing_imports_them() -> None:
    assert [
        where for (room, other, _), where in arrows().items() if room == "cli" and other.startswith("process")
    ] == []
    assert {room for room, other, _ in arrows() if other == "cli"} == {"__main__"}


def test_nothing_within_the_package_imports_its_face() -> None:
    """`topocheck/__init__.py` stands on everything; who needs the version takes it from model/version.py."""
    assert [
        f"{file.relative_to(PACKAGE)}:{i.line}"
        for module, file in MODULES.items()
        for i in every_import(parsed(file))
        if i.module == "topocheck"
        and (i.line, True) not in {(j.line, j.module.startswith("topocheck.")) for j in every_import(parsed(file))}
    ] == []


def test_no_circle_between_folders_not_even_for_annotations() -> None:
    targets: dict[str, set[str]] = {}
    for room, other, _ in arrows():
        targets.setdefault(room, set()).add(other)

    def reached(room: str) -> set[str]:
        seen: set[str] = set()
        todo = [room]
        while todo:
            new = targets.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return seen

    assert [room for room in targets if room in reached(room)] == []


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, f"renew it: {RENEW}"
    assert table() in page


def test_nothing_heavy_at_module_level():
    wrong = [
        f"{f.relative_to(PACKAGE)}:{line} imports {module}"
        for f in sorted(PACKAGE.rglob("*.py"))
        for module, line, top, _ in imports(parsed(f))
        if top and module.split(".")[0] in HEAVY
    ]
    assert not wrong


def test_torch_only_in_tests_live():
    wrong = [
        str(f.relative_to(PACKAGE))
        for f in sorted(PACKAGE.rglob("*.py"))
        if f.relative_to(PACKAGE).parts[0] != "tests_live"
        for module, *_ in imports(parsed(f))
        if module.split(".")[0] == "torch"
    ]
    assert not wrong


def test_only_the_process_room_starts_processes():
    """So that each ends with its parent, comes from a known folder, and sends no more than was agreed."""
    starts = {"os.fork", "os.forkpty", "os.system", "os.popen", "os.posix_spawn", "os.posix_spawnp", "shutil.which"}
    starts |= {f"os.exec{how}" for how in ("v", "ve", "vp", "vpe", "l", "le", "lp", "lpe")}
    starts |= {f"os.spawn{how}" for how in ("v", "ve", "vp", "vpe", "l", "le", "lp", "lpe")} | {"sys.executable"}
    wrong = []
    for f in sorted(PACKAGE.rglob("*.py")):
        if f.relative_to(PACKAGE).parts[0] == "process":
            continue
        tree = parsed(f)
        at = f.relative_to(PACKAGE)
        for module, line, *_ in imports(tree):
            if module.split(".")[0] in ("subprocess", "multiprocessing", "pty"):
                wrong.append(f"{at}:{line} imports {module}")
        wrong += [
            f"{at}:{node.lineno} uses {ast.unparse(node)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node) in starts
        ]
    assert not wrong


def test_nothing_is_unpickled():
    wrong = [
        f"{f.relative_to(PACKAGE)}:{line} imports {module}"
        for f in sorted(PACKAGE.rglob("*.py"))
        for module, line, *_ in imports(parsed(f))
        if module.split(".")[0] in ("pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle")
    ]
    assert not wrong


@pytest.mark.parametrize("room", PURE)
def test_only_the_door_touches_the_machine(room):
    """No `open`, `os.environ`, `subprocess` in rooms of facts and opinions: it would escape the recording."""
    wrong = []
    for f in files(room):
        if f.name == "load.py" and room == "policy":
            continue  # reads the policy file the user names, which is no fact of the machine
        tree = parsed(f)
        for module, line, *_ in imports(tree):
            if module.split(".")[0] in DOOR_ONLY:
                wrong.append(f"{f.relative_to(PACKAGE)}:{line} imports {module}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                wrong.append(f"{f.relative_to(PACKAGE)}:{node.lineno} calls open")
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv", "time.time"):
                wrong.append(f"{f.relative_to(PACKAGE)}:{node.lineno} uses {ast.unparse(node)}")
    assert not wrong


def test_a_json_report_loads_nothing_heavy(tmp_path):
    from tests.support.snapshots import write_snapshot

    snapshot = write_snapshot(tmp_path / "hgx.snap", "hgx_h100_cx7")
    code = (
        "import sys; sys.argv = ['topocheck', 'report', '--from', sys.argv[1], '--format', 'json', '-o', '/dev/null']\n"
        "from topocheck.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code, str(snapshot)], capture_output=True, text=True, check=True)
    loaded = set(out.stdout.split())
    assert "topocheck" in loaded
    assert not loaded & (HEAVY | {"pydantic", "networkx", "matplotlib", "asyncio", "multiprocessing", "dataclasses"})


ONE_PLACE = {
    # What is called -> the files that may; files of a live test's own folder are its own.
    ("write_text", "write_bytes", "NamedTemporaryFile", "mkstemp", "replace_file"): {"tests_live/"},
    ("csv.writer", "msgspec.json.format"): {"render/quoting.py", "render/schema.py", "bandwidth/baseline.py"},
    ("print",): {"cli/main.py", "cli/common.py", "tests_live/", "process/become.py"},
}


@pytest.mark.parametrize(("calls", "places"), ONE_PLACE.items())
def test_files_are_written_and_text_is_quoted_in_one_place(calls: tuple[str, ...], places: set[str]) -> None:
    wrong = []
    for f in sorted(PACKAGE.rglob("*.py")):
        name = f.relative_to(PACKAGE).as_posix()
        if name.startswith(tuple(places)):
            continue
        for node in ast.walk(parsed(f)):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in calls or (called.rpartition(".")[2] in calls and called.rpartition(".")[2] != "print"):
                wrong.append(f"{name}:{node.lineno} calls {called}")
    assert not wrong
