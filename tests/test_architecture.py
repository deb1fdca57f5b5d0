"""The rooms of docs/architecture.md, held against the code's own imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "topocheck"

# Room -> rooms of ours it may import at module level or inside functions (TYPE_CHECKING imports are types: free).
MAY_IMPORT = {
    "model": set(),
    "knowledge": {"model"},
    "host": {"model"},
    "probes": {"model", "host", "knowledge"},
    "topology": {"model", "knowledge"},
    "gpudirect": {"model", "knowledge", "topology"},
    "nccl": {"model", "knowledge", "topology", "gpudirect"},
    "policy": {"model", "knowledge", "topology", "gpudirect"},
    # The checks of measurements (bandwidth*.py) stand on the pure parts of tests_live: statistics, roads, cost model.
    "checks": {"model", "knowledge", "topology", "gpudirect", "nccl", "policy", "tests_live"},
    "compare": {"model", "knowledge", "topology", "checks"},
    "placement": {"model", "knowledge", "topology"},
}
HEAVY = {"torch", "numpy", "rich", "jinja2", "psutil", "pynvml", "prometheus_client", "junitparser", "mpi4py", "cuda"}
DOOR_ONLY = {"subprocess", "socket", "ctypes"}
DOOR_ROOMS = {"host", "tests_live"}


def files(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


def imports(tree: ast.AST) -> list[tuple[str, int, bool]]:
    """(module, line, at module level) of every import outside TYPE_CHECKING blocks."""
    out = []

    def visit(node: ast.AST, top: bool) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            return
        if isinstance(node, ast.Import):
            out.extend((a.name, node.lineno, top) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            out.append((node.module or "", node.lineno, top))
        inner = top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(tree, True)
    return out


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_room_imports_only_what_it_may(room):
    wrong = []
    for f in files(room):
        for module, line, _ in imports(ast.parse(f.read_text())):
            parts = module.split(".")
            if parts[0] == "topocheck" and len(parts) > 1 and parts[1] not in MAY_IMPORT[room] | {room}:
                wrong.append(f"{f.relative_to(PACKAGE)}:{line} imports {module}")
    assert not wrong


def test_nothing_heavy_at_module_level():
    wrong = [
        f"{f.relative_to(PACKAGE)}:{line} imports {module}"
        for f in sorted(PACKAGE.rglob("*.py"))
        for module, line, top in imports(ast.parse(f.read_text()))
        if top and module.split(".")[0] in HEAVY
    ]
    assert not wrong


def test_torch_only_in_tests_live():
    wrong = [
        str(f.relative_to(PACKAGE))
        for f in sorted(PACKAGE.rglob("*.py"))
        if f.relative_to(PACKAGE).parts[0] != "tests_live"
        for module, _, _ in imports(ast.parse(f.read_text()))
        if module.split(".")[0] == "torch"
    ]
    assert not wrong


@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - {"host", "knowledge"}))
def test_only_the_door_touches_the_machine(room):
    """No `open`, `os.environ`, `subprocess` in rooms of facts and opinions: it would escape the recording."""
    wrong = []
    for f in files(room):
        if f.name == "load.py" and room == "policy":
            continue  # reads the policy file the user names, which is no fact of the machine
        tree = ast.parse(f.read_text())
        for module, line, _ in imports(tree):
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
