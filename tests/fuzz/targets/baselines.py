"""Runs of `bw` as they are kept, through what reads them and what is made of them."""

from __future__ import annotations

import copy
import functools
import json
from random import Random
from typing import Any

from tests.fuzz import corpus, texts, trees
from tests.fuzz.case import Case


@functools.cache
def _kept() -> Any:
    """Return a baseline, decoded. Not to be changed."""
    text = corpus.files("2026-11-28-h100x2/bw_standard.json")[0]
    said = json.loads(text)
    from topocheck.model.measurement import Run

    run = {f: said[f] for f in Run.__struct_fields__ if f in said}
    run["measurements"] = run["measurements"][:60]
    return {"format": "topocheck-bw-baseline", "version": 1, "run": run}


def make(rng: Random) -> Case:
    kept = _kept()
    pick = rng.randrange(10)
    if pick < 8:
        tree = copy.deepcopy(kept)
        rows = tree["run"]["measurements"]
        tree["run"]["measurements"] = rng.sample(rows, min(len(rows), rng.choice((1, 4, 60))))
        change = trees.retouched if pick < 6 else trees.mutated
        tree["run"] = change(rng, tree["run"], 12 if pick < 6 else 3)
        data = trees.to_json(tree)
    elif pick == 8:
        data = texts.broken(rng, trees.to_json(kept))
    else:
        data = rng.choice(
            (b"", b"{}", b"[" * 100_000, b"null", b'{"format":"topocheck-bw-baseline","version":1,"run":{}}')
        )
    files = {"kept.json": data, "now.json": trees.to_json(kept), "in.snap": corpus.recording("h100_x2_vm.snap")}
    if rng.random() < 0.3:
        files["kept.json"], files["now.json"] = files["now.json"], files["kept.json"]
    return Case(call="tests.fuzz.targets.baselines:judge", files=files)


def judge(case: Case) -> None:
    """Judge a run beside another and print it in every format, as `bw --baseline` does after it has measured."""
    import sys
    from pathlib import Path

    from topocheck.checks.bw.run import make_report
    from topocheck.cli import common
    from topocheck.model.base import InputError
    from topocheck.pipeline import read_node
    from topocheck.render.bw import bw_text
    from topocheck.render.bw_data import bw_csv, bw_json, bw_markdown
    from topocheck.render.page import Style
    from topocheck.topology.build import build

    try:
        kept, now = (common.load_run(Path(p)).run for p in ("kept.json", "now.json"))
    except InputError as e:
        print(f"topocheck: {e}", file=sys.stderr)
        raise SystemExit(2) from None
    node = read_node(common.open_host([Path("in.snap")]))
    report = make_report(now, build(node), node, baseline=kept, training=(14e9, 0.5))
    json.loads(bw_json(report))
    print(bw_text(report, Style(80, False), verbose=True))
    print(bw_markdown(report))
    print(bw_csv(report))
