"""Rank files, through `nccl predict --ranks` and `nccl log --ranks`."""

from __future__ import annotations

from random import Random

from tests.fuzz import corpus, hostile, texts, trees
from tests.fuzz.case import Case, command

TREE = {
    "hosts": {"a": "a.snap", "b": "b.snap"},
    "ranks": [
        {"rank": 0, "host": "a", "gpu": 0, "process": 1, "container": "x", "visible": [0, 1]},
        {"rank": 1, "host": "a", "gpu": "0000:00:07.0"},
        {"rank": 2, "host": "b.snap", "gpu": 1, "visible": ["0000:00:06.0", "0000:00:07.0"]},
    ],
}
LOG = (
    b"n1:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 3 nNodes 2 localRanks 2 localRank 0 MNNVL 0\n"
    b"n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
)


def make(rng: Random) -> Case:
    name = rng.choice(("r.toml", "r.json"))
    tree = trees.retouched(rng, TREE, 3) if rng.random() < 0.5 else trees.mutated(rng, TREE, 3)
    text = (
        trees.to_json(tree)
        if name == "r.json"
        else hostile.raw(trees.to_toml(tree if isinstance(tree, dict) else {"ranks": tree}))
    )
    pick = rng.randrange(6)
    if pick == 0:
        text = hostile.raw(texts.lines(rng, text.decode("utf-8", "surrogateescape")))
    elif pick == 1:
        text = rng.choice(
            (
                b"[" * 50_000,
                b'{"ranks":' * 2000,
                b"ranks = " + b"9" * 5000,
                b"\xff",
                hostile.raw(hostile.text(rng)),
            )
        )
    files = {
        name: text,
        "a.snap": corpus.recording("h100_x2_vm.snap"),
        "b.snap": corpus.recording("h100_x2_vm"),
        "log": LOG,
    }
    argv = ["nccl", "predict", "--ranks", name, *(["--why"] if rng.random() < 0.3 else [])]
    if rng.random() < 0.3:
        argv = ["nccl", "log", "log", "--compare", "--ranks", name]
    return Case(argv=command(*argv, "--format", rng.choice(("text", "json"))), files=files)
