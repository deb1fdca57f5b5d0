"""What a text printed by `nvidia-smi topo` says."""

from __future__ import annotations

import msgspec

from topocheck.model.base import Fact


class P2pTable(msgspec.Struct, frozen=True, kw_only=True):
    """One table of `nvidia-smi topo -p2p`.

    Attributes:
        capability: the letters asked for (`r`, `w`, `n`, `a`, `p`, or several); empty where the text does not say.
        codes: row label -> column label -> OK, CNS, GNS, TNS, NS, DR or U. The diagonal is left out.
        line: line of the first row.
    """

    capability: str = ""
    codes: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    line: int = 0


class SmiMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """The matrix of `nvidia-smi topo -m` or `-mp`, and the P2P tables of the same text.

    Attributes:
        kind: `m`, `mp`, or `p2p` where the text holds nothing but P2P tables.
        rows, columns: labels in the order of the text (`GPU0`, `NIC0`, `mlx5_0`).
        cells: row label -> column label -> `NV#`, PIX, PXB, PHB, NODE or SYS; the diagonal is left out, and so is
            a cell that the text lost. SOC, the old word for SYS, is written SYS here.
        soc: True where the text said SOC.
        cpu_affinity, numa_affinity, gpu_numa_id: GPU label -> the text of that column; no entry where it is empty
            or `N/A`.
        legend: `NIC0` -> name of the device.
        pcie_cells: cells of a `-mp` table that follows a `-m` table of the same labels in one text.
        warnings: what was odd and how it was read, with line numbers.
    """

    kind: str
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    cells: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    soc: bool = False
    cpu_affinity: dict[str, str] = msgspec.field(default_factory=dict)
    numa_affinity: dict[str, str] = msgspec.field(default_factory=dict)
    gpu_numa_id: dict[str, str] = msgspec.field(default_factory=dict)
    legend: dict[str, str] = msgspec.field(default_factory=dict)
    p2p: tuple[P2pTable, ...] = ()
    pcie_cells: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def class_of(self, row: str, column: str) -> str | None:
        """Return the class of one cell; `X` on the diagonal; None where the text has no such cell."""
        if row == column and row in self.rows:
            return "X"
        return self.cells.get(row, {}).get(column)

    def device_name(self, label: str) -> str:
        """Return the device that a label stands for: by the legend for `NIC0`, itself otherwise."""
        return self.legend.get(label, label)


class SmiFacts(Fact, frozen=True, kw_only=True):
    """What `nvidia-smi` printed on this machine; `matrix` is None where it printed none, and `error` says why."""

    matrix: SmiMatrix | None = None
    error: str = ""
