"""What other ranks and strangers send: frames to rank 0's place, words of ranks, and the recordings in them."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import msgspec

from tests.fuzz import answers, corpus, hostile, texts, trees
from tests.fuzz.case import Case, command

SMALL = ("laptop", "h100_x2_vm", "gh200", "h17_gid_link_local")
FORMATS = ("text", "json", "markdown")
_N = b"n" * 32
MESSAGES: tuple[dict[str, Any], ...] = (
    {
        "type": "Hello", "handshake": 1, "protocol": 1, "version": "0.1.0", "job": "7.0", "command": "report",
        "rank": 1, "size": 2, "instance": _N, "node": "n2", "nonce": _N,
    },
    {"type": "Challenge", "method": "secret", "protocol": 1, "version": "0.1.0", "node": "n1", "nonce": _N},
    {"type": "KeyRequest", "credential": "MUNGE:AAAA:"},
    {"type": "KeyGrant", "credential": "MUNGE:AAAA:"},
    {"type": "Proof", "tag": _N},
    {"type": "Welcome", "tag": _N},
    {"type": "Refused", "reason": "secret", "value": "", "node": "n1"},
    {"type": "Put", "id": 1, "key": "word/1", "value": b"x"},
    {"type": "Get", "id": 2, "key": "word/0", "wait_s": 0.5},
    {"type": "Add", "id": 3, "key": "count", "amount": 1},
    {"type": "Exchange", "id": 4, "key": "a", "expected": b"", "desired": b"1"},
    {"type": "Missing", "id": 5, "keys": ["word/0", "word/1"], "wait_s": 0.0},
    {"type": "Delete", "id": 6, "key": "a"},
    {"type": "Size", "id": 7, "prefix": ""},
    {"type": "Value", "id": 8, "value": b"x"},
    {"type": "Sum", "id": 9, "number": 3},
    {"type": "Absent", "id": 10, "keys": []},
    {"type": "Failed", "id": 11, "why": "no"},
)  # fmt: skip


def make(rng: Random) -> Case:
    return rng.choice((_stream, _words, _words))(rng)


def _packed(rng: Random, tree: Any) -> bytes:
    """Return MessagePack; what it has no form for becomes text."""
    try:
        data = msgspec.msgpack.encode(tree, enc_hook=str)
    except (OverflowError, UnicodeEncodeError, RecursionError):
        return hostile.raw(str(tree)[:1000])
    return texts.broken(rng, data, 2) if rng.random() < 0.2 else data


def _changed(rng: Random, tree: Any) -> Any:
    return trees.retouched(rng, tree, 3) if rng.random() < 0.5 else trees.mutated(rng, tree, 3)


def _stream(rng: Random) -> Case:
    """Frames of a caller, some of them whole, and where they are cut."""
    out = b""
    for _ in range(rng.randint(1, 5)):
        body = _packed(rng, _changed(rng, rng.choice(MESSAGES)))
        length = len(body) if rng.random() < 0.9 else rng.choice((0, 1, 4095, 4097, 1 << 25, 1 << 31, 2**32 - 1))
        out += length.to_bytes(4, "big") + body
    cuts = b"".join(rng.choice((1, 2, 3, 5, 17, 200)).to_bytes(1, "big") for _ in range(8))
    return Case(call="tests.fuzz.targets.rank_messages:split", files={"stream": out, "cuts": cuts})


def split(case: Case) -> None:
    """Take frames apart and decode each as every message that may come, as rank 0 and its callers do."""
    from topocheck.tests_live.launch import frames

    data, cuts = case.files["stream"], case.files["cuts"]
    splitter, at, n = frames.Splitter(), 0, 0
    seal = frames.Handshake(_N, b"hello", b"challenge").place_seal()
    try:
        while at < len(data):
            size = cuts[n % len(cuts)]
            for body in splitter.feed(data[at : at + size]):
                for read in (frames.from_caller, frames.from_place, frames.request, frames.reply, seal.open):
                    _tried(read, body)
            at, n = at + size, n + 1
    except frames.FrameError as e:
        print(ascii(e))


def _tried(read: Any, body: bytes) -> None:
    from topocheck.tests_live.launch.frames import FrameError

    try:
        read(body)
    except FrameError:
        return


def _words(rng: Random) -> Case:
    """Words of ranks, each with recordings in it, as rank 0 of `report --cluster` hears them."""
    files = {}
    name = rng.choice(SMALL)
    for rank in range(rng.randint(1, 3)):
        node = rng.choice((f"n{rank}", "n0", hostile.text(rng)))
        machine = rng.choice(
            (b"", corpus.recording(name), answers.mutated(rng, name), texts.broken(rng, b"\x1f\x8b" * 9))
        )
        own = rng.choice((corpus.recording(name), answers.mutated(rng, name, 2), b""))
        word = {"node": node, "machine": machine, "own": own, "error": rng.choice(("", "", hostile.text(rng)))}
        if rng.random() < 0.3:
            word = trees.mutated(rng, word, 2)
        files[f"rank{rank}"] = _packed(rng, word)
    call = "tests.fuzz.targets.rank_messages:hear"
    return Case(call=call, argv=command("report", "--format", rng.choice(FORMATS)), files=files)


def hear(case: Case) -> None:
    """Read the words and print the report of them."""
    from topocheck.cli import cluster
    from topocheck.tests_live.launch.exchange import Heard, RankWord, name_unresponsive
    from topocheck.tests_live.launch.words import InvalidWordError, read

    words, invalid = {}, {}
    for rank, text in enumerate(case.files.values()):
        try:
            words[rank] = read(text, RankWord, f"rank {rank}")
        except InvalidWordError as e:
            invalid[f"rank {rank}"] = str(e)
    heard = Heard(words=words, unresponsive=name_unresponsive(words, {7: ""}, ["n0", "n9"], 60.0) | invalid)
    report = cluster._judge(heard, "torchrun")
    sys.stdout.write(cluster._page(report, None, case.option("--format"), None, no_color=True, width=80))
