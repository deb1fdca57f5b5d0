"""The table of docs/facts.md: every recorded fact, and what uses it. `python -m tests.support.facts_page` writes it.

A fact is used where some file of the rooms that judge, derive or show asks for the attribute of its name, or where the
JSON report has a field of that name. The reading is by name, so a common name may count for a stranger.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "facts.md"
MODULES = ("pci", "gpu", "net", "system", "smi")
_READERS = ("model", "probes", "host", "knowledge", "process")
_FIRST = ("checks", "gpudirect", "nccl", "topology", "policy", "placement", "compare", "bandwidth", "render", "cli")
_PLUMBING = frozenset(("raw", "source"))

NOT_JUDGED: dict[str, str] = {
    "Bar.is_64bit": "tells a BAR's two lines apart, in the parser",
    "Window.is_64bit": "tells a window's kind apart, in the parser",
    "PciDevice.sysfs_path": "the folder that the chain is read from",
    "PciDevice.virtfns": "names of virtual functions, as lspci prints them",
    "PciDevice.config_bytes": "how much of config space was readable: the reason of other facts' gaps",
    "NumaFacts.online_nodes": "the list that the nodes are read by",
    "SmiMatrix.soc": "the text's old word, for writing it again",
    "Limits.shm_device": "tells whether /dev/shm is the same for two ranks, in tests of containers",
    "CudaPeer.can_access": "read by the table of pairs beside it, which GPUDirect P2P goes by",
    "GpuProcess.used_memory_bytes": "of whoever uses a GPU during a measurement; only that there is one is judged",
}
"""Facts that nothing judges or shows, and why they are read all the same."""


def facts() -> Iterator[tuple[str, str]]:
    """Yield (struct, field) of every fact."""
    for name in MODULES:
        module = importlib.import_module(f"topocheck.model.{name}")
        for struct, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__ and issubclass(kind, msgspec.Struct):
                yield from ((struct, f) for f in kind.__struct_fields__ if f not in _PLUMBING)


@functools.cache
def _users() -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "topocheck").rglob("*.py")):
        name = path.relative_to(ROOT / "topocheck").as_posix()
        if name.split("/")[0] in _READERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                found.setdefault(node.attr, set()).add(name.rpartition("/")[0] or name)
    order = {room: i for i, room in enumerate(_FIRST)}
    return {a: sorted(n, key=lambda f: (order.get(f.split("/")[0], 99), f)) for a, n in found.items()}


@functools.cache
def _shown() -> frozenset[str]:
    from topocheck.model import document, document_host

    modules = (document, document_host)
    kinds = {k for m in modules for _, k in inspect.getmembers(m, inspect.isclass) if issubclass(k, msgspec.Struct)}
    return frozenset(f for k in kinds for f in k.__struct_fields__)


def use(struct: str, field: str) -> str:
    """Return what uses a fact, in words; empty where nothing does."""
    users = _users().get(field, [])
    said = ", ".join(f"`{u}`" for u in users)
    if field in _shown():
        said = f"{said}; JSON" if said else "JSON"
    return said or NOT_JUDGED.get(f"{struct}.{field}", "")


def page() -> str:
    """Return docs/facts.md."""
    rows = [f"| `{s}.{f}` | {use(s, f)} |" for s, f in facts()]
    head = (
        "# Facts, and what uses them\n\nMade by `python -m tests.support.facts_page`. Each field of `topocheck/model/` "
        "with the folders that ask for it by name,\nand `JSON` where the report has a field of that name. A fact that "
        "nothing uses is judged, shown, or no longer asked for.\n\n| fact | used by |\n| --- | --- |\n"
    )
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
