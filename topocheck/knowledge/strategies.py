"""Strategies of distributed training and what they ask of the network (data/strategies.tsv)."""

from typing import Literal

import msgspec

from topocheck.knowledge.tables import Source, Table


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy.

    Attributes:
        name: as its framework calls it.
        sends: what goes between ranks.
        asks: what of the hardware decides how fast that is.
        measure: commands of topocheck that answer it, separated by semicolons.
    """

    name: str
    framework: Literal["Horovod", "PyTorch", "TensorFlow"]
    sends: str
    asks: str
    measure: str
    source: Source


_STRATEGIES = Table("strategies", Strategy, key=("name",))


def strategies() -> tuple[Strategy, ...]:
    """Return all rows, in the order of the file."""
    return _STRATEGIES.rows()
