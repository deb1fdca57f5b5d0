"""Names by which virtual machines go in DMI (data/hypervisors.tsv)."""

from typing import Literal

import msgspec

from topocheck.knowledge.tables import Source, Table, YesNo

Field = Literal["sys_vendor", "product_name"]
Hypervisor = Literal["KVM", "VMware", "Xen", "VirtualBox", "Microsoft", "Parallels", "bhyve", "Apple"]


class Row(msgspec.Struct, frozen=True):
    """One name: `text` is what the field begins with.

    `certain` tells that only guests bear the name; where it is False, the provider's bare-metal machines do too.
    """

    field: Field
    text: str
    hypervisor: Hypervisor
    certain: YesNo
    source: Source


_NAMES = Table("hypervisors", Row, key=("field", "text"))


def table() -> tuple[Row, ...]:
    """Return all rows, in the order of the file."""
    return _NAMES.rows()
