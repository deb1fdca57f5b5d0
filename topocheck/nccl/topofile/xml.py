"""Reads and writes the XML of NCCL's topology and graph files: much less than XML.

NCCL's own reader (src/graph/xml.cc, 2.30.7) knows elements, attributes in quotes and comments between elements;
no prologue, no document type, no entities, no text. This reader takes a little more than NCCL does (tabs, several
blanks, lines inside a tag) and says with a remark where NCCL would stop. It never expands anything, and it stops at
fixed sizes, so a hostile file costs at most a few megabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from topocheck.model.base import InputError

MAX_BYTES = 8 << 20
MAX_ELEMENTS = 65536
MAX_DEPTH = 64
NCCL_MAX_TEXT = 255
"""Longest name or value NCCL takes: MAX_STR_LEN is 255 with its end mark (src/graph/xml.h), so 254 characters."""
NCCL_MAX_ATTRIBUTES = 16
"""MAX_ATTR_COUNT in src/graph/xml.h; further attributes are dropped with an INFO line."""

_BLANK = " \t\r\n"
_NAME = r"[^\s<>/=\"'&]+"
_ATTRIBUTE = r"([ \t\r\n]*)([^\s<>/=\"']+)(=)(\"[^\"<]*\"|'[^'<]*')"
_UNWRITABLE = "[<\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"
_END = r"([ \t\r\n]*)(/?)>"


class NcclXmlError(ValueError):
    """The text is not such a file. `line` and `column` count from 1."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(f"line {line}, column {column}: {text}")
        self.line = line
        self.column = column
        self.text = text


class Remark(msgspec.Struct, frozen=True):
    """Something NCCL would refuse or pass over, at a line of the file. `fatal` where NCCL's init would end."""

    line: int
    column: int
    text: str
    fatal: bool = False


class Element(msgspec.Struct, frozen=True, kw_only=True):
    """One element with its attributes in the order of the file. `line` is 0 for one that we made."""

    name: str
    attributes: tuple[tuple[str, str], ...] = ()
    children: tuple[Element, ...] = ()
    line: int = 0
    column: int = 0

    def get(self, name: str) -> str | None:
        """Return the value of an attribute (the first of that name, as NCCL takes it), or None."""
        for key, value in self.attributes:
            if key == name:
                return value
        return None

    def having(self, name: str) -> Iterator[Element]:
        """Yield the children of a name."""
        return (c for c in self.children if c.name == name)

    def walk(self) -> Iterator[Element]:
        """Yield this element and all below it, in the order of the file."""
        stack = [self]
        while stack:
            e = stack.pop()
            yield e
            stack.extend(reversed(e.children))

    def content(self) -> tuple[object, ...]:
        """Return name, attributes and children without places, for comparing two files."""
        return self.name, self.attributes, tuple(c.content() for c in self.children)


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The root element and what NCCL would say of the text."""

    root: Element
    remarks: tuple[Remark, ...] = ()


class _Open:
    """An element whose end is not read yet."""

    __slots__ = ("attributes", "children", "column", "line", "name")

    def __init__(self, name: str, attributes: tuple[tuple[str, str], ...], line: int, column: int) -> None:
        self.name, self.attributes, self.line, self.column = name, attributes, line, column
        self.children: list[Element] = []

    def close(self) -> Element:
        return Element(
            name=self.name,
            attributes=self.attributes,
            children=tuple(self.children),
            line=self.line,
            column=self.column,
        )


class _Reader:
    """One pass over the text; keeps the place as an offset and counts lines only forward."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.remarks: list[Remark] = []
        self._line, self._line_start, self._counted = 1, 0, 0

    def place(self, at: int) -> tuple[int, int]:
        """Return (line, column) of an offset; offsets are asked for in rising order, or nearly so."""
        if at < self._counted:
            self._line, self._line_start, self._counted = 1, 0, 0
        # Counting on from where the last place was keeps a file of one endless line linear.
        breaks = self.text.count("\n", self._counted, at)
        if breaks:
            self._line += breaks
            self._line_start = self.text.rfind("\n", self._counted, at) + 1
        self._counted = at
        return self._line, at - self._line_start + 1

    def error(self, text: str, at: int | None = None) -> NcclXmlError:
        return NcclXmlError(*self.place(self.at if at is None else at), text)

    def remark(self, at: int, text: str, *, fatal: bool) -> None:
        if len(self.remarks) < 100:
            self.remarks.append(Remark(*self.place(at), text, fatal))

    def skip_blanks(self) -> None:
        end = self.at
        while end < len(self.text) and self.text[end] in _BLANK:
            end += 1
        tab = self.text.find("\t", self.at, end)
        if tab >= 0:
            self.remark(tab, "a tab between elements: NCCL accepts only spaces and line ends", fatal=True)
        self.at = end

    def skip_comment(self) -> None:
        end = self.text.find("-->", self.at + 4)
        if end < 0:
            raise self.error("the comment that begins here has no end (-->)")
        self.at = end + 3

    def attributes(self, name: str) -> tuple[tuple[str, str], ...]:
        out: list[tuple[str, str]] = []
        while m := re.compile(_ATTRIBUTE).match(self.text, self.at):
            gap, key, _, quoted = m.groups()
            if gap != " ":
                if not gap:
                    raise self.error(f"no blank before the attribute {key[:40]}")
                if gap.strip(" "):
                    what = "attributes must be parted by spaces, on one line"
                    self.remark(m.start(), f"{what}: NCCL stops here", fatal=True)
                else:
                    self.remark(
                        m.start(), "several spaces: NCCL reads an empty attribute for each extra one", fatal=False
                    )
            value = quoted[1:-1]
            if len(value) >= NCCL_MAX_TEXT or len(key) >= NCCL_MAX_TEXT:
                self.remark(m.start(), f"longer than the {NCCL_MAX_TEXT - 1} characters NCCL accepts", fatal=True)
            if any(k == key for k, _ in out):
                self.remark(m.start(), f"{key} appears twice in <{name}>: NCCL uses the first", fatal=False)
            out.append((key, value))
            if len(out) > 256:
                raise self.error(f"<{name}> has more than 256 attributes")
            self.at = m.end()
        if len(out) > NCCL_MAX_ATTRIBUTES:
            self.remark(self.at, f"<{name}>: NCCL drops attributes after the 16th", fatal=False)
        return tuple(out)

    def tag(self) -> tuple[_Open, bool]:
        """Read an opening tag; return it and whether it closes itself."""
        start = self.at
        line, column = self.place(start)
        name = re.compile(_NAME).match(self.text, self.at + 1)
        if not name:
            raise self.error("an element's name was expected after '<'")
        self.at = name.end()
        attributes = self.attributes(name[0])
        end = re.compile(_END).match(self.text, self.at)
        if not end:
            if self.text.find(">", self.at) < 0:
                raise self.error(f"the file ends inside <{name[0][:40]}>")
            raise self.error(f'name="value" or the end of <{name[0][:40]}> was expected')
        if end[1].strip(" "):
            self.remark(end.start(), "a line end or tab before the end of a tag: NCCL stops here", fatal=True)
        self.at = end.end()
        return _Open(name[0], attributes, line, column), bool(end[2])

    def closing(self, stack: list[_Open]) -> Element:
        end = self.text.find(">", self.at)
        if end < 0:
            raise self.error("the file ends inside a closing tag")
        name = self.text[self.at + 2 : end]
        if not stack:
            raise self.error(f"</{name[:40]}> closes nothing")
        if name.rstrip(_BLANK) != stack[-1].name:
            opened = stack[-1]
            raise self.error(f"</{name[:40]}> where </{opened.name}> was expected (opened in line {opened.line})")
        self.at = end + 1
        return stack.pop().close()

    def document(self) -> Element:
        """Read the whole text; return its root."""
        stack: list[_Open] = []
        root: Element | None = None
        count = 0
        while True:
            self.skip_blanks()
            if self.at >= len(self.text):
                break
            if self.text[self.at] != "<":
                raise self.error("text where an element was expected")
            if self.text.startswith("<!--", self.at):
                self.skip_comment()
                continue
            if self.text.startswith(("<?", "<!"), self.at):
                raise self.error("NCCL's files have no prologue, document type or entities")
            if self.text.startswith("</", self.at):
                element = self.closing(stack)
            else:
                if root is not None and not stack:
                    raise self.error(f"a second root element; the first is <{root.name}>")
                opened, single = self.tag()
                count += 1
                if count > MAX_ELEMENTS:
                    raise self.error(f"more than {MAX_ELEMENTS} elements")
                if not single:
                    if len(stack) >= MAX_DEPTH:
                        raise self.error(f"elements nest more than {MAX_DEPTH} deep")
                    stack.append(opened)
                    continue
                element = opened.close()
            if stack:
                stack[-1].children.append(element)
            else:
                root = element
        if stack:
            names = " > ".join(f"<{o.name}> of line {o.line}" for o in stack[-3:])
            raise self.error(f"the file ends here, but {names} {'is' if len(stack) == 1 else 'are'} still open")
        if root is None:
            raise self.error("no element in this file")
        return root


def parse(data: str | bytes) -> Document:
    """Read a file of this dialect.

    Args:
        data: the text, or its bytes; bytes that are not UTF-8 become U+FFFD.

    Raises:
        NcclXmlError: it is not well formed, or larger than MAX_BYTES, MAX_ELEMENTS or MAX_DEPTH allow.
    """
    if len(data) > MAX_BYTES:
        raise NcclXmlError(1, 1, f"larger than {MAX_BYTES >> 20} MiB: no topology is")
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    reader = _Reader(text)
    root = reader.document()
    return Document(root=root, remarks=tuple(reader.remarks))


def parse_topology(data: str | bytes) -> Document:
    """Read a topology file: as `parse`, and its root must be `<system>`.

    Raises:
        NcclXmlError: as `parse`, or another root.
    """
    document = parse(data)
    root = document.root
    if root.name != "system":
        raise NcclXmlError(
            root.line, root.column, f"the root is <{root.name}>, not <system>: a fragment, or another kind of file"
        )
    return document


def write(root: Element, *, plain: bool = False) -> str:
    """Return the text of an element and all below it, indented as NCCL's own dump is.

    Args:
        root: the element.
        plain: refuse `&` as well, which means itself to NCCL and begins an entity for every other reader.

    Raises:
        InputError: a name or value holds what the dialect cannot express (a quote of both kinds, `<`, a control
            character), what cannot be seen, or more than NCCL takes.
    """
    out: list[str] = []
    _write(root, 0, out)
    text = "".join(out)
    bad = next((i for i, c in enumerate(text) if (plain and c == "&") or not (c.isprintable() or c == "\n")), None)
    if bad is not None:
        where, what = text[max(bad - 20, 0) : bad + 20], text[bad]
        raise InputError(f"{where!r}: {what!r} cannot be written in a topology file of NCCL")
    return text


def _write(e: Element, indent: int, out: list[str]) -> None:
    parts = [e.name]
    for key, value in e.attributes:
        quote = '"' if '"' not in value else "'"
        unwritable = quote in value or re.search(_UNWRITABLE, value) or not re.fullmatch(_NAME, key)
        if unwritable or len(value) >= NCCL_MAX_TEXT:
            raise InputError(f"<{e.name}>: {key}={value[:40]!r} cannot be written in a topology file of NCCL")
        parts.append(f"{key}={quote}{value}{quote}")
    head = " " * indent + "<" + " ".join(parts)
    if not e.children:
        out.append(head + "/>\n")
        return
    out.append(head + ">\n")
    for child in e.children:
        _write(child, indent + 2, out)
    out.append(" " * indent + f"</{e.name}>\n")
