"""Recordings whose file itself is damaged: bytes, lines and JSON."""

from __future__ import annotations

import bz2
import gzip
import lzma
from random import Random

from tests.fuzz import commands, corpus, hostile, texts, trees
from tests.fuzz.case import Case, command


def make(rng: Random) -> Case:
    data = _file(rng)
    argv = commands.of_recording(rng, "in.snap", "other.snap" if rng.random() < 0.3 else "")
    return Case(argv=command(*argv), files={"in.snap": data, "other.snap": corpus.recording("laptop")})


def _file(rng: Random) -> bytes:
    name = corpus.any_machine(rng)
    pick = rng.randrange(9)
    if pick == 0:
        return texts.broken(rng, corpus.recording(name))
    if pick == 1:
        return corpus.recording(name) + rng.choice((b"\0", b"\x1f\x8b", b"x" * 100, corpus.recording("laptop")))
    text = corpus.recording_text(name)
    if pick == 2:
        return corpus.packed(texts.broken(rng, text))
    if pick in (3, 4):
        lines = text.split(b"\n")
        for _ in range(rng.randint(1, 3)):
            at = rng.choice((0, rng.randrange(len(lines))))
            lines[at] = hostile.raw(texts.words(rng, lines[at].decode("utf-8", "surrogateescape")))
        return corpus.packed(b"\n".join(lines))
    if pick == 5:
        header = trees.mutated(rng, dict(corpus.HEADER))
        return corpus.packed(trees.to_json(header) + b"\n" + text.partition(b"\n")[2])
    if pick == 6:
        line = {"q": rng.choice(("read:/proc/version", hostile.text(rng))), rng.choice("atbe"): hostile.scalar(rng)}
        return corpus.packed(text + trees.to_json(trees.mutated(rng, line, 2)) + b"\n")
    if pick == 7:
        return rng.choice(
            (b"", b"\n", b"{}", b"[]", b"\x1f\x8b", bz2.compress(text), lzma.compress(text), text, rng.randbytes(200))
        )
    return _bomb(rng, text)


def _bomb(rng: Random, text: bytes) -> bytes:
    """Return a little that becomes much when it is read."""
    tail = rng.choice(
        (
            b"\0" * (40 << 20),
            b'{"q":"a:b","a":' + b"[" * 100_000,
            b'{"q":"a:b","a":[' + b"[]," * 200_000 + b"1]}\n",
            b"\n" * (1 << 20),
            b"".join(b'{"q":"a:%d","a":1}\n' % i for i in range(50_000)),
            b'{"q":"' + b"a" * (17 << 20) + b':b","a":1}\n',
        )
    )
    return gzip.compress(text + tail, 1, mtime=0)
