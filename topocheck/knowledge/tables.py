"""Reads the data files of this room into typed rows: tab-separated, a header line, lines that begin with `#` comments.

A row is a struct. A cell becomes what its field's type says, or is refused with the file, the line, the column, the
value and what is allowed there. An empty cell stands for the field's default, and only a field that has one takes it.
What msgspec cannot read from text by itself (`yes`, lists, versions) has a `Form`, which stands in the annotation.
Modules with rows do not postpone their annotations: to evaluate them again from text costs more than to read a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args

import msgspec
from msgspec import Meta

T = TypeVar("T", bound=msgspec.Struct)


class TableError(ValueError):
    """A data file with a bad cell, row or header."""


class Form(msgspec.Struct, frozen=True):
    """How the cells of a column are read: `read` raises ValueError for a cell that is not `allowed`."""

    read: Callable[[str], object]
    allowed: str


def _form(read: Callable[[str], object], allowed: str) -> Meta:
    return Meta(extra={"form": Form(read, allowed)})


def _one_of(words: dict[str, object]) -> Callable[[str], object]:
    def read(text: str) -> object:
        if text not in words:
            raise ValueError(text)
        return words[text]

    return read


def digits(text: str) -> bool:
    """Tell whether a text is one or more of the digits 0 to 9, and of no other script's."""
    return bool(text) and set(text) <= set("0123456789")


def _hex(text: str, more: str = "") -> str:
    if len(text) != 4 or not set(text) <= set("0123456789abcdef" + more):
        raise ValueError(text)
    return text


def _listed(separator: str) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        words = tuple(text.split(separator))
        if not all(words) or len(set(words)) != len(words):
            raise ValueError(text)
        return words

    return read


def release(text: str) -> tuple[int, int, int]:
    """Return a version of a cell, such as `2.30.7` or `2.6`; a missing patch number counts as 0.

    Raises:
        ValueError: the text is no version.
    """
    parts = text.split(".")
    if len(parts) not in (2, 3) or not all(digits(p) and len(p) < 4 for p in parts):
        raise ValueError(text)
    major, minor, patch = (*map(int, parts), 0)[:3]
    return major, minor, patch


def _release_text(text: str) -> str:
    release(text.removeprefix("<="))
    return text


def _name(text: str) -> str:
    if not text.startswith("NCCL_") or not (text.isascii() and text.isupper() and text.replace("_", "").isalnum()):
        raise ValueError(text)
    return text


def _glob(text: str) -> str:
    _name(text.replace("*", "_"))
    return text


def _sys_files(text: str) -> tuple[str, ...]:
    files = _listed(" ")(text)
    if not all(f.startswith("/sys/") for f in files):
        raise ValueError(text)
    return files


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error:
        raise ValueError(text) from None
    return text


def _pcie_speed(text: str) -> str:
    number, unit, rest = text.partition(" GT/s")
    if not digits(number.replace(".", "", 1)) or not unit or rest not in ("", " PCIe"):
        raise ValueError(text)
    return text


Source = Annotated[str, Meta(min_length=5)]
"""Where the numbers of a row come from; every table has this column, and no cell of it is empty."""

YesNo = Annotated[bool, _form(_one_of({"yes": True, "no": False}), "yes or no")]
Hex4 = Annotated[str, _form(_hex, "four hexadecimal digits in lower case")]
HexMask = Annotated[str, _form(lambda text: _hex(text, "."), "four hexadecimal digits in lower case, a dot for any")]
HexList = Annotated[
    frozenset[int],
    _form(
        lambda text: frozenset(int(_hex(x), 16) for x in _listed(",")(text)),
        "ids of four hexadecimal digits in lower case, separated by commas",
    ),
]
Release = Annotated[tuple[int, int, int], _form(release, "a version such as 2.30.7")]
ReleaseText = Annotated[str, _form(_release_text, "a version such as 2.30.7, or <=2.3.5")]
SettingName = Annotated[str, _form(_name, "a name of a setting (NCCL_ and capitals)")]
SettingGlob = Annotated[str, _form(_glob, "a name of a setting (NCCL_ and capitals), * for any letters")]
Kernel = Annotated[tuple[int, int], _form(lambda text: release(text)[:2], "a kernel version such as 6.12")]
SysFiles = Annotated[tuple[str, ...], _form(_sys_files, "files of /sys separated by one space")]
Pattern = Annotated[str, _form(_pattern, "a regular expression of Python")]
PcieSpeed = Annotated[str, _form(_pcie_speed, "a speed such as 8 GT/s or 8.0 GT/s PCIe")]
BY_COMMAS = _form(_listed(","), "words separated by commas")
BY_SPACES = _form(_listed(" "), "words separated by one space")


class Table(Generic[T]):
    """One file of `data/`, read when it is first asked for.

    Args:
        name: of the file, without `.tsv`.
        row: the struct of a row, whose fields are the columns.
        key: the fields that no two rows share.
        late: fields whose form is looked at when they are used (`first_found`): to compile all patterns takes longer
            than to read the table, and a run needs few of them.
    """

    def __init__(self, name: str, row: type[T], key: tuple[str, ...], late: tuple[str, ...] = ()) -> None:
        self.name, self.row, self.key, self.late = name, row, key, late
        self._forms: dict[str, Form] | None = None
        self._starting: tuple[list[str], dict[str, list[tuple[int, str]]]] | None = None
        self._rows: tuple[T, ...] | None = None
        TABLES[name] = self

    def rows(self) -> tuple[T, ...]:
        """Return all rows, in the order of the file.

        Raises:
            TableError: the file holds a bad cell.
        """
        if self._rows is None:
            self._rows = self._parse(read(self.name), self.late)
        return self._rows

    def first_found(self, column: str, text: str) -> T | None:
        """Return the first row whose pattern in a column is found in a text, or None.

        Raises:
            TableError: the file holds a bad cell.
        """
        try:
            return next((r for r in self.rows() if re.search(getattr(r, column), text)), None)
        except re.error:
            self.parse(read(self.name))  # says where
            raise

    def starting(self, cell: str) -> tuple[T, ...]:
        """Return the rows whose first cell this is, and read no others: for a long table of which a run needs little.

        Raises:
            TableError: one of them holds a bad cell.
        """
        if self._starting is None:
            header, lines = self._split(read(self.name))
            self._starting = header, {}
            for n, s in lines:
                self._starting[1].setdefault(s.partition("\t")[0], []).append((n, s))
        header, rows = self._starting
        return self._convert(header, rows[cell]) if cell in rows else ()

    def parse(self, text: str) -> tuple[T, ...]:
        """Return the rows of a file's text.

        Raises:
            TableError: what is wrong, and where.
        """
        return self._parse(text, ())

    def _parse(self, text: str, late: tuple[str, ...]) -> tuple[T, ...]:
        header, lines = self._split(text)
        out = self._convert(header, lines, late)
        if len({self._key_of(r) for r in out}) != len(out):
            raise TableError(next(self._twins(lines, out)))
        return out

    def _convert(self, header: list[str], lines: list[tuple[int, str]], late: tuple[str, ...] = ()) -> tuple[T, ...]:
        cells = self._cells(header, lines)
        forms = [(name, form.read) for name, form in self.forms().items() if name not in late]
        try:
            rows: list[dict[str, Any]] = [{h: c for h, c in zip(header, row, strict=True) if c} for row in cells]
            for row in rows:
                for name, read_cell in forms:
                    if name in row:
                        row[name] = read_cell(row[name])
            return msgspec.convert(rows, tuple[self.row, ...], strict=False)  # type: ignore[name-defined]
        except ValueError:
            raise TableError(next(self._faults(header, lines, cells))) from None

    def forms(self) -> dict[str, Form]:
        """Return the forms of the columns that have one."""
        if self._forms is None:
            found = {name: _form_of(hint) for name, hint in self.row.__annotations__.items()}
            self._forms = {name: form for name, form in found.items() if form is not None}
        return self._forms

    def _split(self, text: str) -> tuple[list[str], list[tuple[int, str]]]:
        """Return the header's names and the rows with the number of their lines."""
        lines = [(n, s) for n, s in enumerate(text.split("\n"), 1) if s and s[0] != "#"]
        if not lines:
            raise TableError(f"{self.name}.tsv: no header line")
        number, first = lines.pop(0)
        header = first.split("\t")
        fields = self.row.__struct_fields__
        if sorted(header) != sorted(fields):
            wrong = ", ".join(sorted(set(header) ^ set(fields))) or "a duplicate column"
            raise TableError(
                f"{self.name}.tsv, line {number}: expected the columns {', '.join(fields)}; wrong: {wrong}"
            )
        return header, lines

    def _cells(self, header: list[str], lines: list[tuple[int, str]]) -> list[list[str]]:
        out = []
        for number, line in lines:
            cells = line.split("\t")
            if len(cells) != len(header):
                raise TableError(
                    f"{self.name}.tsv, line {number}: {len(cells)} cells where the header has {len(header)} columns"
                )
            if "\t " in line or " \t" in line or line != line.strip(" \r"):
                padded = next(name for name, c in zip(header, cells, strict=True) if c != c.strip(" \r"))
                raise TableError(f"{self.name}.tsv, line {number}, column {padded}: a blank at an end of the cell")
            out.append(cells)
        return out

    def _faults(self, header: list[str], lines: list[tuple[int, str]], table: list[list[str]]) -> Iterator[str]:
        """Yield what is wrong, cell by cell; of a row whose cells are all right by themselves, what its struct says."""
        fields = {f.name: f for f in msgspec.structs.fields(self.row)}
        forms = self.forms()
        for (number, _), cells in zip(lines, table, strict=True):
            row: dict[str, Any] = {}
            for name, cell in zip(header, cells, strict=True):
                if not cell and not fields[name].required:
                    continue
                try:
                    row[name] = forms[name].read(cell) if name in forms else cell
                    if not cell:
                        raise ValueError(cell)
                    msgspec.convert(row[name], fields[name].type, strict=False)
                except ValueError:
                    allowed = _allowed(msgspec.inspect.type_info(fields[name].type))
                    allowed += "" if fields[name].required else " or an empty cell"
                    yield f"{self.name}.tsv, line {number}, column {name}: {cell!r} is not allowed: expected {allowed}"
            try:
                msgspec.convert(row, self.row, strict=False)
            except ValueError as e:
                yield f"{self.name}.tsv, line {number}: {e}"

    def _key_of(self, row: T) -> object:
        return attrgetter(*self.key)(row)

    def _twins(self, lines: list[tuple[int, str]], rows: tuple[T, ...]) -> Iterator[str]:
        first: dict[object, int] = {}
        for (number, _), row in zip(lines, rows, strict=True):
            before = first.setdefault(self._key_of(row), number)
            if before != number:
                columns = f"column{'s' if len(self.key) > 1 else ''} {', '.join(self.key)}"
                value = ", ".join(repr(getattr(row, k)) for k in self.key)
                yield f"{self.name}.tsv, line {number}, {columns}: {value} stands in line {before} already"


TABLES: dict[str, Table[Any]] = {}
"""Every table of the modules that are loaded, by the name of its file."""

DATA = Path(__file__).with_name("data")


def read(name: str) -> str:
    """Return the text of a data file, wherever this package was loaded from."""
    loader: Any = __spec__.loader
    data: bytes = loader.get_data(str(DATA / f"{name}.tsv"))
    return data.decode()


def _form_of(type_: Any) -> Form | None:
    """Return the form that an annotation holds, or one of the parts of `X | None`."""
    for part in (type_, *get_args(type_)):
        for meta in getattr(part, "__metadata__", ()):
            if meta.extra and "form" in meta.extra:
                form: Form = meta.extra["form"]
                return form
    return None


def _allowed(info: Any) -> str:
    """Return in words what a type takes. Only for messages: msgspec.inspect is slow."""
    inspect = msgspec.inspect
    match info:
        case inspect.Metadata(type=inner, extra=extra):
            words = extra["form"].allowed if extra else _allowed(inner)
            item = _allowed(inner.item_type) if isinstance(inner, inspect.VarTupleType) else "a text"
            return words if item == "a text" else f"{words}, each {item}"
        case inspect.UnionType(types=parts):
            return " or ".join(_allowed(p) for p in parts if not isinstance(p, inspect.NoneType))
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}"
        case inspect.IntType() | inspect.FloatType():
            whole = "a whole number" if isinstance(info, inspect.IntType) else "a number"
            bounds = ((info.ge, "from"), (info.gt, "above"), (info.le, "to"), (info.lt, "below"))
            return " ".join([whole, *(f"{word} {limit:g}" for limit, word in bounds if limit is not None)])
    return "a text"
