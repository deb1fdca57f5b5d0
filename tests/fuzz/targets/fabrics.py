"""Texts of `ibnetdiscover`, through `network fabric`."""

from __future__ import annotations

import functools
from random import Random

from tests.fuzz import hostile, texts
from tests.fuzz.case import Case, command
from tests.support.fabrics import rail_pods


@functools.cache
def _sound() -> str:
    return rail_pods(2, 3, 2, 2).text()


def make(rng: Random) -> Case:
    text = _sound()
    pick = rng.randrange(10)
    if pick < 6:
        data = hostile.raw(texts.lines(rng, text, 8, other=text))
    elif pick < 8:
        data = texts.broken(rng, text.encode())
    elif pick == 8:
        data = hostile.raw(text.replace("leaf", hostile.text(rng)[:60]).replace("4xNDR", hostile.text(rng)[:20]))
    else:
        data = hostile.raw(text * rng.choice((2, 50)))
    shape = rng.choice(("text", "json"))
    return Case(argv=command("network", "fabric", "in.txt", "--format", shape), files={"in.txt": data})
