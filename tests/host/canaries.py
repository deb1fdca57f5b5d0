"""Texts that must never be found in a snapshot, and planting them wherever an answer leaves room for a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from topocheck.host.base import Answer, HostError
from topocheck.probes.pci.config import walk_capabilities, walk_extended

CANARIES = {
    "uuid": "a9c4e1d7-5b20-4f83-9e6a-c1d2035b7e94",
    "uuid with _": "a9c4e1d7_5b20_4f83_9e6a_c1d2035b7e95",
    "bare uuid": "a9c4e1d75b204f839e6ac1d2035b7e96",
    "mac": "a6:5c:9e:13:d7:4b",
    "dashed mac": "a7-5c-9e-13-d7-4c",
    "dotted mac": "a65c.9e13.d74d",
    "bare mac": "a65c9e13d74e",
    "guid": "e41d:2d03:06ab:9c17",
    "guid number": "0xe41d2d0306ab9c18",
    "wwn": "50:01:43:80:12:6d:ae:c4",
    "ipv4": "10.83.197.113",
    "ipv6": "2001:db8:7a31:9c0e:51f2:8d44:b6e0:1973",
    "host": "borealis",
    "domain": "borealis.hpc.umbrella-labs.example",
    "user": "wjones",
    "serial": "7KQX0Z493PB2",
    "serial of digits": "1650522093417",
    "token": "ghp_R8sWq2LmZ0vTnYc4KbXe7UdJ1aPf5Hg3",
    "key": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
    "url": "https://wjones:hunter2secret@borealis:8443/x?sig=Zm9vYmFy",
    "pod": "umbrella-ml_train-umbrella-7f9c",
    "account": "acct_umbrella",
    "sentence": "property of Umbrella Corporation",
    "escape": "\x1b]0;umbrella\x07",
}
NEEDLES = sorted(
    {c.lower() for c in CANARIES.values()} | {"hunter2secret", "zm9vymfy", "wjones", "borealis", "umbrella"}
)

Plant = Callable[[str, str], str]


def _in_values(text: str, canary: str) -> str:
    return "\n".join(
        next((f"{line.partition(m)[0]}{m}{canary}" for m in ("=", ": ", ":\t", ":") if m in line), line)
        for line in text.split("\n")
    )


def _in_path(text: str, canary: str) -> str:
    head, slash, tail = text.rpartition("/")
    return f"{head}/{canary}/{tail}" if slash else f"/home/{canary}/{text}"


def _in_config_space(data: bytes, canary: bytes) -> bytes:
    """Put the canary wherever no register is that is read, nor one that leads to such a register."""
    out = bytearray(data)
    capabilities = [(at, 0x30) for _, at in walk_capabilities(data)] + [(at, 16) for _, at in walk_extended(data)]
    taken = {n for at, size in [(0, 64), *capabilities] for n in range(at, at + size)}
    at = 64
    while at + len(canary) <= len(out):
        if taken.isdisjoint(range(at, at + len(canary))):
            out[at : at + len(canary)] = canary
            at += len(canary)
        at += 1
    return bytes(out)


PLANTS: dict[str, Plant] = {
    "instead": lambda text, canary: canary,
    "after": lambda text, canary: f"{text.rstrip()} {canary}",
    "before": lambda text, canary: f"{canary} {text}",
    "joined": lambda text, canary: f"{text.strip()}-{canary}",
    "in brackets": lambda text, canary: f"{text.strip()} ({canary}@{canary})",
    "new line": lambda text, canary: f"{text}\n{canary}\n",
    "values": _in_values,
    "path": _in_path,
    "library": lambda text, canary: f"/opt/lib{canary}.so.2",
    "capitals": lambda text, canary: f"{text.strip()} {canary.upper()}",
    "list": lambda text, canary: f"{text.strip()},{canary}:1",
}


def planted(answer: Answer, plant: Plant, canary: str) -> Answer:
    """Return an answer with the canary in every text of it, in names of members and as a further entry."""
    if isinstance(answer, HostError):
        return HostError(answer.reason, plant(answer.detail, canary))
    if isinstance(answer, bytes):
        try:
            return plant(answer.decode(), canary).encode()
        except UnicodeDecodeError:  # a config space: what is not read of it
            return _in_config_space(answer, canary.encode())
    if isinstance(answer, str):
        return plant(answer, canary)
    if isinstance(answer, list):
        return [planted(a, plant, canary) for a in answer] + [a for a in answer if isinstance(a, str)] + [canary]
    if isinstance(answer, dict):
        return {k: planted(v, plant, canary) for k, v in answer.items()} | {canary: canary, f"NCCL_{canary}": canary}
    return answer


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a value."""
    if isinstance(value, HostError):
        yield value.detail
    elif isinstance(value, bytes):
        yield value.decode("latin-1")
        yield value.hex()
    elif isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield k
            yield from texts(v)
    elif isinstance(value, list | tuple):
        for v in value:
            yield from texts(v)


def found(*values: Any) -> list[str]:
    """Return the canaries, and parts of them, that stand in any text of the values."""
    every = [t.lower() for v in values for t in texts(v)]
    return [n for n in NEEDLES if any(n in t for t in every)]
