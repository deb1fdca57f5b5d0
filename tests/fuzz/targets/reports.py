"""JSON reports, through `fleet` and `diff` and `emit topology-*`."""

from __future__ import annotations

import gzip
from random import Random

from tests.fuzz import commands, corpus, texts, trees
from tests.fuzz.case import Case, command

SMALL = (
    "laptop",
    "h100_x2_vm",
    "gh200",
    "l4_x2_across_sockets",
    "h17_gid_link_local",
    "a100_x4",
    "h100_x2_vm.snap",
    "no_pci",
    "gb200_tray",
    "mig_node",
)


def make(rng: Random) -> Case:
    name = rng.choice(SMALL)
    files = {"a.json": _report(rng, name)}
    names = ["a.json"]
    for other in ("b.json", "c.json")[: rng.randrange(3)]:
        files[other] = (
            trees.to_json(corpus.report(name))
            if rng.random() < 0.5
            else _report(rng, rng.choice((name, rng.choice(SMALL))))
        )
        names.append(other)
    if rng.random() < 0.1:
        files["d.snap"] = corpus.recording(name)
        names.append("d.snap")
    pick = rng.randrange(6)
    if pick == 0 or (pick < 3 and len(names) > 1):
        argv = commands.diff(rng, names[0], names[-1])
    elif pick == 3:
        argv = ["emit", rng.choice(("topology-conf", "topology-block", "topology-yaml")), *names]
    else:
        argv = commands.fleet(rng, names[0])
        argv[2:2] = names[1:]
        if rng.random() < 0.2:
            files["before/a.json"] = _report(rng, name)
            argv += ["--against", "before"]
    return Case(argv=command(*argv), files=files)


def _report(rng: Random, name: str) -> bytes:
    tree = corpus.report(name)
    pick = rng.randrange(10)
    if pick < 6:
        data = trees.to_json(trees.retouched(rng, tree, 20))
    elif pick < 8:
        data = trees.to_json(trees.mutated(rng, tree, 3))
    elif pick == 8:
        data = texts.broken(rng, trees.to_json(tree))
    else:
        data = rng.choice(
            (b"", b"{}", b"[]", b"null", b"[" * 100_000, b'{"a":' * 2000, b"\xff\xfe", trees.to_json(tree)[:-1])
        )
    return gzip.compress(data, 1, mtime=0) if rng.random() < 0.1 else data
