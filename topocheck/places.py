"""Evidence of facts that were read from files, with the file and line that said it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from topocheck.model.base import Evidence, known
from topocheck.model.node import MadeFrom, Node

_FILE_KINDS = ("read", "readlink", "realpath", "list", "lines", "lspci")
_NVML = re.compile(r"NVML GPU (\S+)(?: (\w+)(?:\((.*)\))?|$)")
_DRIVER = re.compile(r"NVML(?: (\w+))?")
"""Of the driver as a whole; without a call, of the first that is made."""
_REGISTER = re.compile(r"/sys/bus/pci/devices/([^/]+)/config ")


class Places:
    """Where the answers stand that evidence quotes."""

    def __init__(self, node: Node, made: MadeFrom) -> None:
        self._made = made
        self._paths: dict[str, str] = {}
        for question, place in made.places.items():
            kind, _, rest = question.partition(":")
            if kind in _FILE_KINDS:
                self._paths.setdefault(rest.partition("|")[0], place)
        gpus = node.nvml.gpus if known(node.nvml.gpus) else ()
        self._index = {str(g.address) if known(g.address) else str(g.index): g.index for g in gpus}

    def of(self, source: str) -> str | None:
        """Return `file:line` of what a piece of evidence names as its source, or None."""
        if (place := self._paths.get(source)) is not None:
            return place
        if m := _REGISTER.match(source):
            return self._paths.get(m[1]) or self._paths.get(f"/sys/bus/pci/devices/{m[1]}/config")
        if (m := _NVML.match(source)) and m[1] in self._index:
            args = "".join(f"|{a}" for a in (m[3] or "").split(", ") if a)
            return self._made.places.get(f"nvml:{m[2] or 'DeviceGetUUID'}|{self._index[m[1]]}{args}")
        if m := _DRIVER.fullmatch(source):
            return self._made.places.get(f"nvml:{m[1] or 'DeviceGetCount'}")
        return self._made.places.get(source)

    def evidence(self, e: Evidence) -> Evidence:
        """Return a piece of evidence whose source begins with the file and line, where that is known."""
        place = self.of(e.source)
        return e if place is None else Evidence(f"{place} ({e.source})", e.raw)

    def within(self, value: Any) -> Any:
        """Return a finding, a verdict or a tuple of them with all its evidence so changed."""
        if isinstance(value, Evidence):
            return self.evidence(value)
        if isinstance(value, tuple):
            return tuple(self.within(v) for v in value)
        if isinstance(value, msgspec.Struct):
            changed = {
                f: new
                for f in value.__struct_fields__
                if isinstance(old := getattr(value, f, None), tuple) and (new := self.within(old)) != old
            }
            return msgspec.structs.replace(value, **changed) if changed else value
        return value
