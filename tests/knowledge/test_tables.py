"""Every data file, read; and what a mistyped cell of each column of each file gives: an error that names the place."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from tests.machines.products import parse_products
from topocheck import knowledge
from topocheck.knowledge import tables
from topocheck.knowledge.tables import TABLES, TableError
from topocheck.nccl.rules import values  # noqa: F401 - has a table of its own

for _module in pkgutil.iter_modules(knowledge.__path__):
    importlib.import_module(f"{knowledge.__name__}.{_module.name}")
importlib.import_module("topocheck.nccl.rules.values")  # it reads a table of its own

NAMES = sorted(TABLES)
TYPOS = ("SXN", "yess", "maybe", "1O", "nan", "1e400", "99999999999999999999")
FREE = {
    *(
        "accepted",
        "asks",
        "cause",
        "consequence",
        "default",
        "devices",
        "driver",
        "effect",
        "fix",
        "id",
        "in_guest",
        "meaning",
        "module",
    ),
    *("measure", "name", "name_pattern", "next", "pattern", "plugin", "product", "reader", "risk", "seen", "seen_on"),
    *("sends", "source", "text", "theory", "values", "what", "without", "words"),
}
"""Columns whose cells are free text: any text of them could be meant."""
IDS = {("nccl_causes", "explains"), ("nccl_causes", "instead_of")}
"""Columns of ids of other rows of the same file, which a test of that file follows."""


def cells_of(name: str) -> tuple[list[str], list[str], list[list[str]]]:
    """Return (comments, header, rows) of a file."""
    lines = tables.read(name).rstrip("\n").split("\n")
    comments = [s for s in lines if s.startswith("#")]
    header, *rows = [s.split("\t") for s in lines if not s.startswith("#")]
    return comments, header, rows


def text_of(comments: list[str], header: list[str], rows: list[list[str]]) -> str:
    return "\n".join([*comments, *("\t".join(r) for r in (header, *rows))]) + "\n"


def test_every_file_is_a_table_and_every_table_a_file() -> None:
    assert {p.stem for p in tables.DATA.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_table_loads_and_every_row_has_a_source(name: str) -> None:
    table = TABLES[name]
    assert table.rows()
    assert all(r.source.strip() for r in table.rows())
    table.parse(tables.read(name))  # the patterns too, which are else looked at when they are used


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("typo", TYPOS)
def test_a_mistyped_cell_names_its_place(name: str, typo: str) -> None:
    comments, header, rows = cells_of(name)
    table = TABLES[name]
    line = len(comments) + 1 + len(rows)
    for at, column in enumerate(header):
        if (name, column) in IDS or (column in FREE and _takes_any_text(table, column)):
            continue
        wrong = [*rows[:-1], [*rows[-1][:at], typo, *rows[-1][at + 1 :]]]
        with pytest.raises(TableError) as e:
            table.parse(text_of(comments, header, wrong))
        place = f"{name}.tsv, line {line}, column {column}: {typo!r} is not allowed: expected "
        assert str(e.value).startswith(place), str(e.value)
        assert len(str(e.value)) > len(place)


PATTERNS = [("products", "name_pattern"), ("nvlink_bridges", "name_pattern"), ("nccl_causes", "pattern")]


@pytest.mark.parametrize(("name", "column"), PATTERNS)
@pytest.mark.parametrize("broken", [r"\bH100(", "[a-", "*", "(?P<a>x)(?P<a>y)"])
def test_a_broken_pattern_names_its_place(name: str, column: str, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    comments, header, rows = cells_of(name)
    at, wrong = header.index(column), next(i for i, row in enumerate(rows) if row[header.index(column)])
    rows[wrong] = [*rows[wrong][:at], broken, *rows[wrong][at + 1 :]]
    text = text_of(comments, header, rows)
    place = f"{name}.tsv, line {len(comments) + 2 + wrong}, column {column}: {broken!r} is not allowed: expected "
    table = TABLES[name]
    with pytest.raises(TableError) as e:
        table.parse(text)
    assert str(e.value).removeprefix(place).startswith("a regular expression of Python")
    if table.late:  # those of which a run needs few are looked at when they are used
        monkeypatch.setattr(tables, "read", lambda _: text)
        with pytest.raises(TableError, match=re.escape(place)):
            tables.Table(name, table.row, table.key, table.late).first_found(column, "NVIDIA no such thing")
        TABLES[name] = table


def _takes_any_text(table: tables.Table, column: str) -> bool:
    form = table.forms().get(column)
    try:
        msgspec.convert(form.read("any text") if form else "any text", table.row.__annotations__[column])
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_cell_stands_only_where_a_field_has_a_default(name: str) -> None:
    comments, header, rows = cells_of(name)
    table = TABLES[name]
    required = {f.name for f in msgspec.structs.fields(table.row) if f.required}
    assert "source" in required
    for column in sorted(required):
        at = header.index(column)
        wrong = [[*rows[0][:at], "", *rows[0][at + 1 :]], *rows[1:]]
        with pytest.raises(TableError, match=rf"^{name}\.tsv, line {len(comments) + 2}, column {column}: ''"):
            table.parse(text_of(comments, header, wrong))


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_headers_of_another_shape_are_refused(name: str) -> None:
    comments, header, rows = cells_of(name)
    table, first = TABLES[name], len(comments) + 2
    short, long = [rows[0][:-1], *rows[1:]], [[*rows[0], "more"], *rows[1:]]
    for wrong, count in ((short, len(header) - 1), (long, len(header) + 1)):
        with pytest.raises(TableError, match=rf"^{name}\.tsv, line {first}: {count} cells where the header has"):
            table.parse(text_of(comments, header, wrong))
    with pytest.raises(TableError, match=rf"^{name}\.tsv, line {first - 1}: expected the columns .*; wrong: "):
        table.parse(text_of(comments, [f"{header[0]}s", *header[1:]], rows))
    with pytest.raises(TableError, match=r"expected the columns .*; wrong: "):
        table.parse(text_of(comments, [header[0], header[0], *header[2:]], rows))
    with pytest.raises(TableError, match="no header"):
        table.parse("# nothing\n")
    blank = [[f"{rows[0][0]} ", *rows[0][1:]], *rows[1:]]
    with pytest.raises(TableError, match=rf"^{name}\.tsv, line {first}, column {header[0]}: a blank at an end"):
        table.parse(text_of(comments, header, blank))
    with pytest.raises(TableError, match=rf"^{name}\.tsv, line {first}, column {header[-1]}: a blank at an end"):
        table.parse(text_of(comments, header, rows).replace("\n", "\r\n").replace(f"{header[-1]}\r", header[-1]))


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_stands_twice_names_both_lines(name: str) -> None:
    comments, header, rows = cells_of(name)
    first, last = len(comments) + 2, len(comments) + 2 + len(rows)
    with pytest.raises(TableError, match=rf"^{name}\.tsv, line {last}, columns? .* stands in line {first} already$"):
        TABLES[name].parse(text_of(comments, header, [*rows, rows[0]]))


@pytest.mark.parametrize(
    ("name", "column", "value", "says"),
    [
        ("products", "form_factor", "SXN", "'SXN' is not allowed: expected one of OAM, PCIe, SXM, superchip"),
        ("products", "gpudirect_rdma", "yess", "'yess' is not allowed: expected yes or no"),
        ("products", "fabric", "maybe", "'maybe' is not allowed: expected yes or no or an empty cell"),
        ("products", "nvlink_links", "1O", "'1O' is not allowed: expected a whole number from 0 to 72 or an empty"),
        ("products", "gpudirect_rdma", "1", "'1' is not allowed: expected yes or no"),
        ("products", "device_ids", "20b0,20B2", "expected ids of four hexadecimal digits in lower case, separated"),
        ("nccl_path_orders", "order", "PIX PXX", "expected words separated by one space, each one of C2C, DIS, LOC"),
        ("nccl_rules", "from_version", "2,6", "'2,6' is not allowed: expected a version such as 2.30.7"),
        ("pcie_generations", "share_numerator", "0", "expected a whole number from 1 to 1024"),
        ("nccl_p2p_levels", "cpus", "two", "expected a whole number from 1 to 1024 or one of \\*"),
    ],
)
def test_what_is_allowed_is_said(name: str, column: str, value: str, says: str) -> None:
    comments, header, rows = cells_of(name)
    at = header.index(column)
    with pytest.raises(TableError, match=says):
        TABLES[name].parse(text_of(comments, header, [[*rows[0][:at], value, *rows[0][at + 1 :]], *rows[1:]]))


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        (
            "efficiencies",
            {"pass_at_least": "0.5", "fail_below": "0.6"},
            "0.6 is not below pass_at_least 0.5",
        ),
        ("pcie_generations", {"share_numerator": "11"}, "a share of 11/10 is more than all"),
        ("infiniband_rates", {"data_gbit_s_per_lane": "3"}, "data_gbit_s_per_lane is 2.0 by the other columns"),
        ("nccl_settings", {"status": "current"}, "a version for every status but current"),
        ("nccl_harmful", {"match": "nonzero"}, "none for nonzero"),
        ("nccl_causes", {"kind": ""}, "one of the words where there is a pattern"),
    ],
)
def test_cells_that_do_not_fit_together_name_their_line(name: str, changes: dict[str, str], says: str) -> None:
    comments, header, rows = cells_of(name)
    row = [changes.get(column, cell) for column, cell in zip(header, rows[0], strict=True)]
    with pytest.raises(TableError, match=rf"^{name}\.tsv, line {len(comments) + 2}: .*{re.escape(says)}"):
        TABLES[name].parse(text_of(comments, header, [row, *rows[1:]]))


def test_rows_of_one_name_are_read_alone() -> None:
    table = TABLES["nccl_default_history"]
    assert table.starting("NCCL_BUFFSIZE") == tuple(r for r in table.rows() if r.name == "NCCL_BUFFSIZE")
    assert table.starting("NCCL_BUFF") == ()
    assert table.starting("NCCL_BUFFSIZE\t2.3.7") == ()


def test_tables_are_read_from_a_zip_file_too(tmp_path: Path) -> None:
    package = Path(knowledge.__file__).parent.parent
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as z:
        for path in (package / "__init__.py", *(package / "knowledge").rglob("*.*")):
            if path.suffix in (".py", ".tsv"):
                z.write(path, path.relative_to(package.parent))
    code = "from topocheck.knowledge import products as p; print(p.__file__, p.find_product('NVIDIA H200').name)"
    path = {"PYTHONPATH": str(tmp_path / "packed.zip")}
    done = subprocess.run([sys.executable, "-c", code], env=path, cwd=tmp_path, capture_output=True, text=True)
    assert "packed.zip" in done.stdout, done.stderr
    assert done.stdout.split()[-1] == "H200"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('kind = "gpuu"', "'gpuu'"),
        ('kind = "gpu"\nid = "10de:1"', "id"),
        ('kind = "gpu"\nid = "10de:1db5"\nclass = "0x030200"\nlink = "3x17"', "link"),
        ('kind = "gpu"\nid = "10de:1db5"\nclass = "0x030200"\nlinks = "3x16"', "links"),
        ('kind = "gpu"\nid = "10de:1db5"\nclass = "0x030200"\nnvlinks = "6"', "nvlinks"),
    ],
)
def test_a_mistyped_product_of_the_described_machines_is_named(entry: str, says: str) -> None:
    with pytest.raises(ValueError, match=rf"products\.toml, \[odd\]: .*{says}"):
        parse_products(f"[odd]\n{entry}\n")
