"""The experiments of `topocheck lab`: what one asks, the table it fills, and what it ran on."""

from __future__ import annotations

from typing import Annotated

import msgspec

from topocheck.model.bounded import Count
from topocheck.model.measurement import Fit, Measurement, NotMeasured
from topocheck.model.version import SCHEMA_VERSION

Words = Annotated[str, msgspec.Meta(max_length=512)]
"""A text of another node; what prints it cleans it."""
Value = float | int | str | bool | None
"""One cell. None where there is nothing to say; why a whole row has no numbers stands in its `reason`."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column.

    Attributes:
        key: its name in CSV and JSON; a column with a unit ends in it.
        title: its heading in text, Markdown and HTML.
        unit: `us`, `s`, `B`, `MB/s`, `share` (0 to 1), `ratio`, or any word that is printed behind the number; empty
            for names and counts.
        about: what it holds, in a few words.
    """

    key: str
    title: str
    unit: str = ""
    about: str = ""


class CurveSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Curves of a table: one chart for each value of the columns `chart`, one curve for each of `by` and of `y`.

    Attributes:
        x, y: columns; a `y` that is `predicted` or `formula` of another is drawn with hollow points.
        log: y is on a logarithmic axis; x always is.
        ideal: with the line y = x.
    """

    x: str
    y: tuple[str, ...]
    by: tuple[str, ...] = ()
    chart: tuple[str, ...] = ("backend", "memory")
    log: bool = False
    ideal: bool = False


class TableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A table: its name within the lab, its title, its columns, and the curves that are drawn of it."""

    name: str
    title: str
    columns: tuple[Column, ...]
    curves: tuple[CurveSpec, ...] = ()

    def row(self, reason: str = "", **values: Value) -> LabLine:
        """Return a row of the values by column; those not named are None.

        Raises:
            KeyError: a value that has no column.
        """
        unknown = set(values) - {c.key for c in self.columns}
        if unknown:
            raise KeyError(f"{self.name}: no column {', '.join(sorted(unknown))}")
        return LabLine(values=tuple(values.get(c.key) for c in self.columns), reason=reason)


class LabLine(msgspec.Struct, frozen=True, kw_only=True):
    """One row; `reason` says why numbers are missing in it."""

    values: tuple[Value, ...]
    reason: str = ""


class LabTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that was filled. `notes` stand below it."""

    spec: TableSpec
    rows: tuple[LabLine, ...] = ()
    notes: tuple[str, ...] = ()

    def column(self, key: str) -> list[Value]:
        """Return the values of a column, row by row."""
        at = [c.key for c in self.spec.columns].index(key)
        return [r.values[at] for r in self.rows]


class Lab(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment.

    Attributes:
        name: as the command line has it.
        question: what it answers.
        tables: what it fills.
        backends: over which it runs; empty for one that only calculates.
        fewest: ranks it needs.
        reading: how its tables are read.
        source: where its formulas are from.
    """

    name: str
    question: str
    tables: tuple[TableSpec, ...]
    backends: tuple[str, ...] = ()
    fewest: int = 2
    reading: str = ""
    source: str = ""

    def table(self, name: str) -> TableSpec:
        """Return the table of that name; KeyError where there is none."""
        return {t.name: t for t in self.tables}[name]


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one node of a job is; texts are empty where the machine says nothing. It comes from other ranks as well.

    Attributes:
        gpus, nics: `8 x NVIDIA H100 80GB HBM3`, `4 x MT4129 (400 Gb/s)`; several kinds are joined by commas.
        gpu_connection: the best path of each pair as nvidia-smi names it: `NV18 (56 of 56 pairs)`.
        cpus: that this process may use.
    """

    node: Words = ""
    server: Words = ""
    cpu: Words = ""
    cpus: Count = 0
    gpus: Words = ""
    gpu_connection: Words = ""
    nics: Words = ""
    os: Words = ""
    kernel: Words = ""
    driver: Words = ""
    cuda: Words = ""
    nccl: Words = ""
    framework: Words = ""
    mpi: Words = ""
    python: Words = ""
    settings: Words = ""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment record: all nodes of the job.

    Attributes:
        servers: how many nodes.
        launcher: torchrun, slurm, openmpi or mpich; empty where topocheck starts the ranks itself.
        nodes: one of each.
        missing: node or rank -> why nothing is known of it.
    """

    ranks: int
    servers: int = 1
    launcher: str = ""
    nodes: tuple[NodeRecord, ...] = ()
    missing: dict[str, str] = msgspec.field(default_factory=dict)


class LabReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `topocheck lab NAME` prints.

    Attributes:
        options: what was asked for, as the command line has it.
        method: how it was measured and what the columns are computed from.
        not_measured: rows that should have been measured and were not.
    """

    schema_version: str = SCHEMA_VERSION
    lab: str
    question: str
    taken_at: str = ""
    wall_s: float = 0.0
    record: JobRecord
    options: dict[str, str] = msgspec.field(default_factory=dict)
    software: dict[str, str] = msgspec.field(default_factory=dict)
    method: str = ""
    reading: str = ""
    source: str = ""
    tables: tuple[LabTable, ...] = ()
    notes: tuple[str, ...] = ()
    fits: tuple[Fit, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()
    measurements: tuple[Measurement, ...] = ()
