"""XML of other programs as a small tree: read by expat, bounded, and nothing in it is ever expanded or fetched."""

from __future__ import annotations

from collections.abc import Iterator
from xml.parsers import expat

from topocheck.model.base import InputError

MAX_ELEMENTS = 1 << 18
MAX_DEPTH = 512
"""hwloc and NCCL nest a device in each bridge above it."""


class XmlError(InputError):
    """The text is no XML that is read here. `line` and `column` count from 1."""

    def __init__(self, what: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {what}")
        self.what, self.line, self.column = what, line, column


class Element:
    """One element: its name, attributes, text, children and line."""

    __slots__ = ("attributes", "children", "line", "name", "text")

    def __init__(self, name: str, attributes: dict[str, str], line: int) -> None:
        self.name, self.attributes, self.line = name, attributes, line
        self.children: list[Element] = []
        self.text = ""

    def get(self, name: str) -> str:
        """Return an attribute, empty where there is none."""
        return self.attributes.get(name, "")

    def walk(self) -> Iterator[Element]:
        """Yield this element and all below it, in the order of the text."""
        stack = [self]
        while stack:
            e = stack.pop()
            yield e
            stack.extend(reversed(e.children))


def parse(text: str, *, cut: bool = False, before: str = "") -> Element:
    """Return the root element.

    Args:
        text: of the element, and what may stand before and after it.
        cut: a text that ends early counts as far as it goes.
        before: what stands before it in its file, for the place of an error.

    Raises:
        XmlError: it is not well formed, declares entities, or is larger than is read.
    """
    parser = expat.ParserCreate()
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.buffer_text = True

    def error(what: str, line: int, column: int) -> XmlError:
        if line == 1:
            column += len(before) - before.rfind("\n") - 1
        return XmlError(what, line + before.count("\n"), column + 1)

    def here(what: str) -> XmlError:
        return error(what, parser.CurrentLineNumber, parser.CurrentColumnNumber)

    root: list[Element] = []
    stack: list[Element] = []
    count = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > MAX_ELEMENTS or len(stack) >= MAX_DEPTH:
            raise here("more elements, or deeper, than is read")
        element = Element(name, attributes, parser.CurrentLineNumber)
        (stack[-1].children if stack else root).append(element)
        stack.append(element)

    def end(_: str) -> None:
        stack.pop()

    def data(text: str) -> None:
        if stack and len(stack[-1].text) < 1 << 16:
            stack[-1].text += text

    def entity(*_: object) -> None:
        raise here("declares an entity; none is read here")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, data
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)
    except expat.ExpatError as e:
        if not (cut and root and e.code in (_NO_ELEMENTS, _UNCLOSED)):
            raise error(expat.ErrorString(e.code), e.lineno, e.offset) from None
    return root[0]


_NO_ELEMENTS, _UNCLOSED = 3, 5  # XML_ERROR_NO_ELEMENTS and XML_ERROR_UNCLOSED_TOKEN of expat.h
