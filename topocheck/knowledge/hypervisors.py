"""Names by which virtual machines go in DMI (data/hypervisors.tsv)."""

from __future__ import annotations

import msgspec

from topocheck.knowledge.tables import rows


class Row(msgspec.Struct, frozen=True):
    """One name: `field` is sys_vendor or product_name, `text` what it begins with.

    `certain` tells that only guests bear the name; where it is False, the provider's bare-metal machines do too.
    """

    field: str
    text: str
    hypervisor: str
    certain: bool
    source: str


def table() -> tuple[Row, ...]:
    """Return all rows, in the order of the file."""
    return tuple(
        Row(r["field"], r["text"], r["hypervisor"], r["certain"] == "yes", r["source"]) for r in rows("hypervisors")
    )
