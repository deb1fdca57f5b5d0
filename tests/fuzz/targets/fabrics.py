"""Texts of `ibnetdiscover`, ibdiagnet, UFM, saquery and switches' LLDP, through `network fabric`."""

from __future__ import annotations

import functools
from random import Random

from tests.fuzz import hostile, texts
from tests.fuzz.case import Case, command
from tests.support import fabric_writers as write
from tests.support.fabrics import rail_pods
from tests.support.lldp_tables import TABLES as BY_FORM

TABLES = tuple(BY_FORM.values())


@functools.cache
def _sound(which: int) -> str:
    made = rail_pods(2, 3, 2, 2)
    return (
        made.text(), made.text(), made.text(), write.lst(made), write.net_dump(made), write.ufm_links(made),
        write.ufm_ports(made), write.saquery_nodes(made) + write.saquery_links(made) + write.SMINFO, *TABLES,
    )[which]  # fmt: skip


KINDS = 8 + len(TABLES)


def make(rng: Random) -> Case:
    text = _sound(rng.randrange(KINDS))
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
