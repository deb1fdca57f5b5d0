"""Reads a rank file: which ranks run where, for a prediction over several recorded nodes.

TOML or JSON with a list `ranks`; each entry has `host` (a recording, or the name of one given as `[hosts]`), `gpu`
(a PCI address or NVML index), and optionally `rank`, `process`, `container` and `visible` (addresses or indices).
"""

from __future__ import annotations

import json
import re
from typing import Any

from topocheck.model.address import normalize_address
from topocheck.model.base import InputError
from topocheck.model.excerpt import excerpt
from topocheck.model.toml import TomlError, parse_toml

MAX_RANKS = 512
"""Every pair of ranks is predicted; more nodes of a kind add pairs like those there are."""
MAX_BYTES = 4 << 20

Entry = dict[str, Any]
_HEAD = re.compile(r"\s*\[\[\s*ranks\s*\]\]")


def parse_rank_file(text: str, name: str) -> tuple[dict[str, str], list[Entry]]:
    """Return (host name -> recording, entries) of a rank file.

    Entries are checked: `host` a text, `gpu` an address or a number, the rest of the right kind. `where` of an entry is
    the file and the line, for messages.

    Raises:
        InputError: the file is neither TOML nor JSON, or an entry is not as described; says which.
    """
    if len(text) > MAX_BYTES:
        raise InputError(f"{name}: larger than {MAX_BYTES >> 20} MiB")
    try:
        data = json.loads(text) if text.lstrip()[:1] in ("{", "[") and name.endswith(".json") else parse_toml(text)
    except TomlError as e:
        raise InputError(f"{name}: {e}", excerpt=e.excerpt) from None
    except json.JSONDecodeError as e:
        what = f"{e.msg[:1].lower()}{e.msg[1:]}"
        raise InputError(
            f"{name}: line {e.lineno}, column {e.colno}: not JSON: {what}", excerpt=excerpt(text, (e.lineno, e.colno))
        ) from None
    except (ValueError, RecursionError) as e:
        raise InputError(f"{name}: neither TOML nor JSON: {e}") from None
    if isinstance(data, list):
        data = {"ranks": data}
    if not isinstance(data, dict):
        raise InputError(f"{name}: a list of ranks was expected")
    hosts = data.get("hosts", {})
    if not isinstance(hosts, dict) or not all(isinstance(v, str) for v in hosts.values()):
        raise InputError(f"{name}: [hosts] maps names to recordings")
    entries = data.get("ranks")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{name}: [[ranks]] is missing or empty")
    if len(entries) > MAX_RANKS:
        raise InputError(f"{name}: more than {MAX_RANKS} ranks; expected a few nodes of each kind")
    lines = [n for n, line in enumerate(text.splitlines(), 1) if _HEAD.match(line)]
    out: list[Entry] = []
    first: dict[int, str] = {}
    for number, entry in enumerate(entries):
        where = f"{name}: rank entry {number}"
        if len(lines) == len(entries):
            where = f"{name}: line {lines[number]} (rank entry {number})"
        out.append(_entry(entry, number, where))
        other = first.setdefault(out[-1]["rank"], where)
        if other != where:
            raise InputError(f"{where}: rank {out[-1]['rank']} comes twice; first in {other.removeprefix(f'{name}: ')}")
    return hosts, out


def _entry(entry: object, number: int, where: str) -> Entry:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: a table with host and gpu was expected")
    host, gpu = entry.get("host", "live"), entry.get("gpu")
    if not isinstance(host, str):
        raise InputError(f"{where}: host must be a text")
    if isinstance(gpu, str) and normalize_address(gpu) is None:
        raise InputError(f"{where}: gpu {gpu[:40]!r} is no PCI address (0000:3b:00.0) and no number")
    if isinstance(gpu, bool) or not isinstance(gpu, str | int):
        raise InputError(f"{where}: gpu must be a PCI address or a number")
    rank = entry.get("rank", number)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise InputError(f"{where}: rank must be a number from 0")
    out: Entry = {"host": host, "gpu": gpu, "rank": rank, "where": where}
    for key in ("process", "container"):
        value = entry.get(key, "")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise InputError(f"{where}: {key} must be a text or a number")
        out[key] = str(value)
    visible = entry.get("visible")
    if visible is not None and not (isinstance(visible, list) and all(isinstance(v, str | int) for v in visible)):
        raise InputError(f"{where}: visible must be a list of PCI addresses or numbers")
    out["visible"] = visible
    unknown = set(entry) - {"host", "gpu", "rank", "process", "container", "visible"}
    if unknown:
        raise InputError(f"{where}: {', '.join(sorted(map(str, unknown)))} is not known here")
    return out


def gpu_address(gpu: str | int, by_index: dict[int, str], where: str) -> str:
    """Return the address of a GPU given by address or NVML index.

    Raises:
        InputError: there is no such GPU; says which there are.
    """
    if isinstance(gpu, int):
        if gpu not in by_index:
            raise InputError(f"{where}: no GPU {gpu}; there are {', '.join(map(str, by_index)) or 'none'}")
        return by_index[gpu]
    address = normalize_address(gpu) or gpu
    if address not in by_index.values():
        raise InputError(f"{where}: no GPU at {address}; there are {', '.join(by_index.values()) or 'none'}")
    return address
