"""Settings of programs other than NCCL that move P2P, devices or transports (data/other_settings.tsv)."""

import re
from typing import Annotated, Literal

import msgspec

from topocheck.knowledge.tables import BY_COMMAS, Source, Table

Reads = Literal["presence", "on", "off", "word", "without", "interfaces", "devices"]
Moves = Literal[
    "p2p_on",
    "p2p_off",
    "p2p_trust",
    "gdr_off",
    "rdma_off",
    "unified",
    "schedule",
    "interface",
    "devices",
]


class OtherSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting.

    Attributes:
        reader: the program or library that reads it.
        reads: how: by presence, by a true or false value, as a list of words or of names.
        words: of the list, where it reads words.
        moves: what it changes on a machine.
        effect: what the program then does.
    """

    name: str
    reader: str
    reads: Reads
    words: Annotated[tuple[str, ...], BY_COMMAS] = ()
    moves: Moves
    effect: str
    fix: str
    source: Source

    def __post_init__(self) -> None:
        if bool(self.words) is not (self.reads in ("word", "without")):
            raise ValueError("words: the words of the list for word and without, and empty otherwise")


_SETTINGS = Table("other_settings", OtherSetting, key=("name",))
_FALSE = frozenset({"0", "false", "no", "off", "n", "f", "disable", "disabled"})


def other_settings() -> tuple[OtherSetting, ...]:
    """Return all rows, in the order of the file."""
    return _SETTINGS.rows()


def means_no(value: str) -> bool:
    """Tell whether a person who writes this value means no."""
    return value.strip().lower() in _FALSE


def names_in(value: str) -> tuple[str, ...]:
    """Return the names of a list, separated by commas, semicolons or blanks, without the mark that excludes them."""
    return tuple(x for x in re.split(r"[,; ]+", value.strip().lstrip("^=")) if x)


def acts(setting: OtherSetting, value: str) -> bool:
    """Tell whether the program acts on a value, for those that it reads as a switch or as words."""
    if setting.reads == "presence":
        return True
    if setting.reads == "on":
        return value.strip() != "" and not means_no(value)
    if setting.reads == "off":
        return means_no(value)
    if setting.reads in ("interfaces", "devices") or not value.strip():
        return False
    listed = {w.lower() for w in names_in(value)} & set(setting.words)
    excluded = value.strip().startswith("^")
    return bool(listed) is excluded if setting.reads == "without" else bool(listed) and not excluded
