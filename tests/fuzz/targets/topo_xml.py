"""NCCL's topology files, through `nccl topo --input`, `nccl predict --topo` and as NCCL_TOPO_FILE of a recording."""

from __future__ import annotations

from random import Random

from tests.fuzz import corpus, hostile, texts
from tests.fuzz.case import Case, command

SMALL = ("h100_x2_vm", "h100_x2_vm.snap", "dgx1v", "gh200", "l40s_x8", "laptop")
BOMB = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
) + ']><system version="1">&i;</system>'  # fmt: skip


def make(rng: Random) -> Case:
    data = _file(rng)
    files = {"t.xml": data, "in.snap": corpus.recording(rng.choice(SMALL))}
    pick = rng.randrange(4)
    if pick == 0:
        argv = ["nccl", "topo", "--input", "t.xml", "--no-machine"]
    elif pick == 1:
        argv = ["nccl", "topo", "--input", "t.xml", "--from", "in.snap"]
    elif pick == 2:
        argv = ["nccl", "predict", "--topo", "t.xml", "--from", "in.snap", *(["--why"] if rng.random() < 0.5 else [])]
    else:
        return _recorded(rng, data)
    argv += ["--format", rng.choice(("text", "json"))]
    if pick < 2 and rng.random() < 0.3:
        argv += ["-o", "out.xml"]
    if rng.random() < 0.2:
        argv += ["--nccl-version", rng.choice(("2.18.1", "2.28.9", "2.0.0", "9.9.9", "²", "2.²", "v2", "2" * 30))]
    return Case(argv=command(*argv), files=files)


def _recorded(rng: Random, data: bytes) -> Case:
    """The file as part of a recording, where the setting names it."""
    name = rng.choice(SMALL)
    answers = corpus.answers(name)
    environ = answers.get("environ:")
    known = environ if isinstance(environ, dict) else {}
    stat = {
        "kind": "file",
        "size_bytes": len(data),
        "uid": 0,
        "gid": 0,
        "mode": 0o644,
        "mtime": 0,
        "device": 1,
        "rdev": 0,
    }
    changed = {
        "environ:": {**known, "NCCL_TOPO_FILE": "/t.xml"},
        "read:/t.xml": data,
        "stat:/t.xml": stat,
        "access:/t.xml|r": True,
    }
    for question in answers:
        if "read:/var/run/nvidia-topologyd/virtualTopology.xml" in question:
            changed[question] = data
    changed["read:/var/run/nvidia-topologyd/virtualTopology.xml"] = data
    argv = rng.choice((["check"], ["report"], ["nccl", "predict"], ["nccl", "env"]))
    file = corpus.packed(corpus.recording_text(name, changed))
    return Case(argv=command(*argv, "--from", "in.snap"), files={"in.snap": file})


def _file(rng: Random) -> bytes:
    seeds = (*corpus.files("*/nccl_oracle/*.topo.xml"), *corpus.files("*/nccl_oracle/*.dump.xml"))
    text = rng.choice(seeds)
    pick = rng.randrange(10)
    if pick < 6:
        return hostile.raw(texts.xml(rng, text))
    if pick < 8:
        return hostile.raw(texts.lines(rng, text))
    if pick == 8:
        return texts.broken(rng, text.encode())
    return hostile.raw(rng.choice(
        (BOMB, "<system>" * 5000, "<!--" * 20000, "<a " * 20000, "<system " + 'a="1" ' * 5000 + "/>", "\n" * 100000,
         hostile.text(rng))
    ))  # fmt: skip
