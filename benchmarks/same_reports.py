"""Whether two checkouts of topocheck report the same of every described machine and recording.

    python benchmarks/same_reports.py OTHER_CHECKOUT [NAME...]

Each checkout reports in a process of its own, from its own descriptions and from this checkout's recordings: JSON and
text of `report`; JSON of `check`, `placement`, `nccl predict` and `fleet`. Names that version 0.1.0 had are first
replaced by those of today (RENAMED, topocheck/model/old_names.py), so that `OTHER_CHECKOUT` may be 0.1.0. Prints what
differs besides, each kind of difference once with an example: values and structure of JSON apart from sentences in
which only words differ. Exits 1 where anything but words differs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from topocheck.model import old_names

HERE = Path(__file__).resolve().parent.parent

RENAMED = {
    "report.record": "system_summary",
    "report.neighbours": "related_settings",
    "report.gpudirect.p2p.road": "link",
    "report.paths.narrowest.upper": "upstream",
    "report.nccl.nvls_why": "nvls_reason",
    "report.nccl.pairs.why": "reasons",
    "report.backends.why": "reason",
    "placement.ranks.near": "local_cpus",
    "placement.ranks.why_no_gpu": "gpu_missing_reason",
    "nccl predict.nvls_why": "nvls_reason",
    "nccl predict.pairs.why": "reasons",
    "nccl predict.nics.why": "reasons",
    "fleet.fleet.kinds": "hardware_types",
    "fleet.fleet.kinds.mixed": "no_majority",
    "fleet.fleet.odd": "outliers",
    "fleet.fleet.odd.kind": "hardware_type",
    "fleet.fleet.odd.differences.usual": "majority",
    "fleet.fleet.odd.differences.told": "comparable",
    "fleet.fleet.rails.kind": "hardware_type",
    "fleet.fleet.bad_files": "unreadable_files",
    "fleet.fleet.bad_files.why": "reason",
    "fleet.fleet.older_files": "superseded_files",
}
"""Old name of a JSON field, with the command and the fields that it stands in -> its name."""

WORKER = """
import os, shutil, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.machines.builder import _all_names
from tests.support.snapshots import write_snapshot
from topocheck.cli.main import make_app
os.chdir(sys.argv[2])
os.mkdir("snapshots")
for path in Path(sys.argv[3]).rglob("*.snap") if not sys.argv[4:] else ():
    shutil.copy(path, f"snapshots/{path.stem}.snap")
for name in sys.argv[4:] or _all_names():
    write_snapshot(Path(f"snapshots/described {name}.snap"), name)
def run(machine, command, where, form, *more):
    words = [*command.split(), *where, "--format", form, *more, "-o", f"{machine}.{command}.{form}"]
    try:
        make_app(words[0])(words, standalone_mode=False)
    except Exception as e:
        Path(words[-1]).write_text(f'"{type(e).__name__}"')
for path in sorted(Path("snapshots").iterdir()):
    where = ("--from", str(path))
    run(path.stem, "report", where, "text", "--width", "100000")
    for command in ("report", "check", "placement", "nccl predict"):
        run(path.stem, command, where, "json")
run("all", "fleet", ("snapshots", "--processes", "1"), "json")
shutil.rmtree("snapshots")
"""


def reports(checkout: Path, folder: Path, names: list[str]) -> dict[str, str]:
    """Return file name -> text of all reports of a checkout, written to `folder`."""
    folder.mkdir()
    command = [sys.executable, "-P", "-c", WORKER, str(checkout), str(folder), str(HERE / "tests"), *names]
    subprocess.run(command, check=True, cwd=checkout)
    return {p.name: p.read_text() for p in sorted(folder.iterdir())}


def today(value: Any, at: str) -> Any:
    """Return a part of a JSON document with its old names replaced; `at` is where it stands, without indices."""
    if isinstance(value, dict):
        return {RENAMED.get(f"{at}.{k}", k): today(v, f"{at}.{k}") for k, v in value.items()}
    if isinstance(value, list):
        return sorted_by_id([today(v, at) for v in value])
    return old_names.current(value) if isinstance(value, str) and at.endswith(".id") else value


def sorted_by_id(items: list[Any]) -> Any:
    """Return findings and checks by id, subject and number, since a new id may stand elsewhere; others as they are."""
    if not items or not all(isinstance(i, dict) and "id" in i and "state" in i for i in items):
        return items
    out: dict[str, Any] = {}
    for item in items:
        key = f"{item['id']} {item.get('subject', '')}"
        out[f"{key} {sum(k.startswith(key) for k in out)}"] = item
    return out


class Differences:
    """Kinds of difference: where and what -> the machines that show it, and an example."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)

    def add(self, what: str, where: str, machine: str, example: str) -> None:
        """Take down one difference."""
        self.found[what, where].append((machine, example))

    def shown(self) -> list[str]:
        """Return a line for each kind of difference, and one for an example."""
        out = []
        for (what, where), all_ in sorted(self.found.items()):
            machines = sorted({m for m, _ in all_})
            out += [f"{what}  {where}: {len(all_)} times on {len(machines)} machines ({', '.join(machines[:3])})"]
            out += [f"    {all_[0][1][:400]}"]
        return out

    def only_words(self) -> bool:
        """Tell whether nothing but words differs."""
        return all(what == "words" for what, _ in self.found)


IGNORED = re.compile(r"\.(schema_version|ms)$")


def compare(theirs: Any, ours: Any, at: str, machine: str, found: Differences) -> None:
    """Find what differs between two JSON values of one place."""
    place = re.sub(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]", "ADDRESS", at)
    if type(theirs) is type(ours) and isinstance(theirs, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            name = key.partition(" ")[0]
            if key not in ours:
                found.add("gone", f"{place}.{name}", machine, f"{theirs[key]}")
            elif key not in theirs:
                found.add("new", f"{place}.{name}", machine, f"{ours[key]}")
            else:
                compare(theirs[key], ours[key], f"{at}.{name}", machine, found)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for a, b in zip(theirs, ours, strict=True):
            compare(a, b, at, machine, found)
    elif theirs != ours and not IGNORED.search(at):
        sentence = isinstance(theirs, str) and isinstance(ours, str) and " " in theirs and " " in ours
        found.add("words" if sentence else "value", place, machine, f"{theirs} -> {ours}")


def compare_text(theirs: str, ours: str, machine: str, found: Differences) -> None:
    """Find lines that only one of two texts has; one may stand elsewhere, since findings are sorted by id."""
    for old, new in old_names.CHECKS.items():
        theirs = theirs.replace(old, new)
    a, b = ([" ".join(line.split()) for line in text.splitlines()] for text in (theirs, ours))
    gone, new_lines = [x for x in a if x not in b], [x for x in b if x not in a]
    for old, new in zip(gone, new_lines, strict=False):
        found.add("words", "text", machine, f"{old} -> {new}")
    for line in gone[len(new_lines) :]:
        found.add("gone", "text", machine, line)
    for line in new_lines[len(gone) :]:
        found.add("new", "text", machine, line)


def main() -> int:
    """Compare; return 1 where something but words differs."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        ours = reports(HERE, Path(folder) / "ours", sys.argv[2:])
        theirs = reports(Path(sys.argv[1]).resolve(), Path(folder) / "theirs", sys.argv[2:])
    found = Differences()
    for name in sorted(ours.keys() | theirs.keys()):
        machine, document, form = name.rsplit(".", 2)
        if name not in ours or name not in theirs:
            found.add("new" if name in ours else "gone", document, machine, name)
        elif form == "json":
            a, b = (today(json.loads(x), document) for x in (theirs[name], ours[name]))
            compare(a, b, document, machine, found)
        else:
            compare_text(theirs[name], ours[name], machine, found)
    print("\n".join(found.shown()))
    print(f"{len(ours)} reports; {len(found.found)} kinds of difference")
    return 0 if found.only_words() else 1


if __name__ == "__main__":
    sys.exit(main())
