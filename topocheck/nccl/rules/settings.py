"""The settings of one process, as a version of NCCL reads them."""

from __future__ import annotations

from topocheck.knowledge.nccl import Version, default_in, known_in, lookup
from topocheck.model.base import Evidence
from topocheck.nccl.rules.values import read_integer, read_level


class Settings:
    """Values in force. A name that the version does not read counts as unset, as does an empty value."""

    def __init__(self, values: dict[str, str], version: Version) -> None:
        self.version = version
        self.values: dict[str, str] = {}
        self._integers: dict[str, int] = {}
        for name, value in values.items():
            s = lookup(name)
            if value != "" and (s is None or known_in(s, version)):
                self.values[name] = value

    def integer(self, name: str, default: int) -> int:
        """Return a setting as NCCL's integer parse reads it, or the default."""
        value = self.values.get(name)
        if value is None:
            return default
        if name not in self._integers:
            self._integers[name] = read_integer(value)[0]
        return self._integers[name]

    def versioned(self, name: str, default: int) -> int:
        """Return a setting, or this version's own default where that is a number, else `default`."""
        table = default_in(name, self.version) or ""
        n, rest = read_integer(table.split(" ")[0])
        return self.integer(name, n if table and not rest else default)

    def is_one(self, name: str) -> bool:
        """Tell whether a setting is exactly 1, which is what several switches test for."""
        return self.integer(name, 0) == 1

    def nonzero(self, name: str) -> bool:
        """Tell whether a setting is anything but 0."""
        return self.integer(name, 0) != 0

    def level(self, name: str) -> str | None:
        """Return the path type that a level setting names, or None where it is unset or not understood."""
        value = self.values.get(name)
        return None if value is None else read_level(value, self.version)

    def evidence(self, name: str) -> tuple[Evidence, ...]:
        """Return the setting as evidence; nothing where it is unset."""
        return (Evidence("setting", f"{name}={self.values[name]}"),) if name in self.values else ()
