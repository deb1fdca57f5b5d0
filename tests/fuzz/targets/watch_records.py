"""Recordings of `watch`, read and judged as `check --since` does."""

from __future__ import annotations

import functools
import json
from random import Random

from tests.fuzz import texts, trees
from tests.fuzz.case import Case


@functools.cache
def _sound() -> tuple[bytes, ...]:
    from tests.overtime.planting import recording
    from topocheck.overtime.record import written

    return tuple(text + b"\n" for text in written(recording(1, samples=6)).splitlines())


def make(rng: Random) -> Case:
    lines = list(_sound())
    pick = rng.randrange(10)
    if pick < 7:
        at = rng.randrange(len(lines))
        change = trees.retouched if pick < 5 else trees.mutated
        lines[at] = trees.to_json(change(rng, json.loads(lines[at]), 4)).replace(b"\n", b" ") + b"\n"
        data = b"".join(lines)
    elif pick < 9:
        data = texts.broken(rng, b"".join(lines))
    else:
        rng.shuffle(lines)
        data = b"".join(lines * rng.choice((1, 20)))
    return Case(call="tests.fuzz.targets.watch_records:judge", files={"a.jsonl": data})


def judge(case: Case) -> None:
    """Read a recording, judge what grew, and print it."""
    import sys
    from pathlib import Path

    from topocheck.checks.watch.run import judge_watch
    from topocheck.cli.sampling import load
    from topocheck.model.base import InputError
    from topocheck.render.watch import summary
    from topocheck.tests_live.launch.words import plain

    try:
        history = load(Path("a.jsonl"))
    except InputError as e:
        print(f"topocheck: {plain(str(e))}", file=sys.stderr)
        raise SystemExit(2) from None
    print(plain(summary(history)))
    for f in judge_watch(history)[1]:
        print(plain(f"{f.id} {f.subject} {f.title}"))
