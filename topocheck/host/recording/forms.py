"""The forms that an answer may have in a snapshot. What is not of its form is replaced, or left out.

A form changes one text; `each`, `fields` and their like apply forms to whole answers. `what` says in plain words what
stays, for the table of docs/snapshots.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from topocheck.host.base import Answer
from topocheck.host.recording import identifiers
from topocheck.host.recording import vocabulary as words
from topocheck.host.recording.redaction import Redaction

Change = Callable[[Redaction, str], str | None]
"""What a text becomes; None where it is left out of a list of names or lines."""


class Form:
    """What a text may be, and what it becomes."""

    def __init__(self, what: str, change: Change) -> None:
        self.what = what
        self.change = change

    def __call__(self, r: Redaction, text: str) -> str | None:
        """Return what a text becomes, the blanks around it kept."""
        core = text.strip("\0 \t\r\n")
        if not core:
            return text
        at = text.index(core)
        new = self.change(r, core)
        return None if new is None else text[:at] + new + text[at + len(core) :]


def exactly(what: str, *patterns: str, drop: bool = False) -> Form:
    """Return the form of a text that is as a whole of one of the patterns; any other is replaced, or left out."""
    found = re.compile("|".join(f"(?:{p})" for p in patterns), re.ASCII)

    def change(r: Redaction, text: str) -> str | None:
        if found.fullmatch(text):
            return text
        return None if drop else r.unknown(text)

    return Form(what, change)


def one_of(listed: str, what: str = "", drop: bool = False) -> Form:
    """Return the form of a text that is one of the listed, which blanks part."""
    return exactly(what or "one of: " + ", ".join(listed.split()), *map(re.escape, listed.split()), drop=drop)


def by(method: Callable[[Redaction, str], str], what: str) -> Form:
    """Return the form of a text that a method of Redaction replaces."""
    return Form(what, method)


def identifier(what: str) -> Form:
    """Return the form of an identifier (UUID, GUID, address...), which is replaced; relations stay."""
    return Form(what, lambda r, text: found if (found := r.identifier(text)) is not None else r.unknown(text))


_MAX_PARTS = 6


def wordwise(what: str, vocabulary: frozenset[str], *patterns: str, word: str = "") -> Form:
    """Return the form of a text of which each word is in the vocabulary or of a pattern; other words are replaced.

    `word` is the pattern of a word; by default, what stands between blanks and marks.
    """
    found = re.compile("|".join(f"(?:{p})" for p in patterns) or "(?!)", re.ASCII)

    def known(text: str) -> bool:
        return text.lower().rstrip(".") in vocabulary or bool(found.fullmatch(text))

    each_word = re.compile(word or r"[^\s()\[\]{},;:=|&@\"'^/]+")

    def change(r: Redaction, text: str) -> str:
        def one(m: re.Match[str]) -> str:
            if known(m[0]):
                return m[0]
            # Before its parts are looked at: those of a MAC with dashes, or of a host's name, could be anything.
            if (new := r.identifier(m[0])) is not None:
                return new
            parts = re.split("[-_]", m[0])
            return m[0] if 1 < len(parts) <= _MAX_PARTS and all(map(known, parts)) else r.unknown(m[0])

        return each_word.sub(one, text)

    return Form(what, change)


NUMBER = exactly("a number", r"-?[0-9]{1,20}", r"0x[0-9a-fA-F]{1,16}")
NUMBERS = exactly("numbers", r"(?:[0-9]{1,20}\s+)*[0-9]{1,20}")
CPU_LIST = exactly("a list of CPUs or nodes", r"[0-9]{1,5}(?:[,\-][0-9]{1,5}){0,4096}")
PCI = exactly("PCI addresses", r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?", drop=True)
ADDRESS = exactly("a PCI address", r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?")
UUID = identifier("a UUID, replaced")
GUID = identifier("a GUID, replaced")
GID = identifier("an address, replaced")
HOST = by(Redaction.host, "names and addresses of hosts, replaced")
DEVICE = by(Redaction.device, "names of interfaces; those that the system does not give by itself are replaced")
PATH = by(Redaction.path, "a path; names in it that are not public are replaced")
SYSFS = by(Redaction.sysfs, "a path below /sys; names in it that the kernel does not give are replaced")
_NO_SERIAL = ("0", "n/a", "none", "unknown")
SERIAL = Form("a serial number, replaced", lambda r, text: _serial(r, text))
_CODE = r"[A-Za-z]{0,4}[0-9]{1,4}[A-Za-z]{0,4}[0-9]?\+?"
"""Of a product: H100, SXM5, 80GB, PM9A3, 8480+. Too short for a serial number or an id."""
NAME = wordwise(
    "words of public product names; others are replaced",
    words.HARDWARE,
    _CODE,
    r"[0-9]{1,4}(?:\.[0-9]{1,3}){1,2}(?:GHz)?",
    r"[A-Za-z][0-9]{1,2}[a-z]{0,3}\.[0-9]{0,2}(?:nano|micro|small|medium|metal|x?large)(?:-[0-9]{1,2}xl)?",
    r"[0-9]{1,3}-(?:[Cc]ores?|[Ww]ay|[Pp]ort|[Ll]ane|[Bb]it|[Ll]anes)",
    r"[0-9]{1,2}[A-Z][0-9]{1,3}|i[3579]-[0-9]{4,5}[A-Z]{0,2}|[0-9]{1,2}(?:st|nd|rd|th)",
    r"[0-9]g\.[0-9]{1,3}gb(?:\+[a-z.]{2,6})?",  # a MIG profile
    r"[-+_.]+",
    word=r"[^\s()\[\]{},;=|&@\"'^/]+",
)


def _serial(r: Redaction, text: str) -> str:
    if text.lower() in _NO_SERIAL:
        return text
    return r.map.serial(text) if len(text) <= _LONGEST_SERIAL else r.unknown(text)


_LONGEST_SERIAL = 64


def _version(r: Redaction, text: str) -> str:
    """Of one kind everywhere: the kernel's release is a part of questions, too."""

    def one(m: re.Match[str]) -> str:
        part = m[0].lower()
        found = re.fullmatch(r"[0-9]{1,8}|[0-9]{0,8}([^0-9]+)[0-9]{0,8}", part)
        if part in words.VERSIONS or (found and (not found[1] or found[1] in words.VERSIONS)):
            return m[0]
        return r.identifier(m[0]) or r.unknown(m[0], "version")

    text = identifiers.OCTETS.sub(lambda m: r.unknown(m[0], "version"), text)
    return re.sub(r"[^.\-+_~:\s]+", one, text)


VERSION = Form("a version number; words in it that are not public are replaced", _version)


def each(form: Form) -> Callable[[Redaction, Answer], Answer]:
    """Return what applies a form to every text of an answer; texts that it leaves out leave a list, too."""

    def apply(r: Redaction, answer: Answer) -> Answer:
        if isinstance(answer, bytes):
            return (form(r, answer.decode("utf-8", "replace")) or "").encode()
        if isinstance(answer, str):
            return form(r, answer) or ""
        if isinstance(answer, list):
            return [new for a in answer if isinstance(a, str) and (new := form(r, a)) is not None]
        return scalar(r, answer)

    return apply


def scalar(r: Redaction, answer: Answer) -> Answer:
    """Return a number, flag or None as it is; of anything else nothing but that it was there."""
    if answer is None or isinstance(answer, int | float):
        return answer
    if isinstance(answer, bytes):
        return r.unknown(answer.decode("utf-8", "replace")).encode()
    if isinstance(answer, str):
        return r.unknown(answer)
    return [scalar(r, a) for a in answer] if isinstance(answer, list) else {}


def fields(**forms: Form | Callable[[Redaction, Answer], Answer]) -> Callable[[Redaction, Answer], Answer]:
    """Return what keeps the named members of a mapping, each by its form; others are left out."""

    def apply(r: Redaction, answer: Answer) -> Answer:
        if not isinstance(answer, dict):
            return scalar(r, answer)
        return {k: _applied(forms[k], r, v) for k, v in answer.items() if k in forms}

    return apply


def _applied(form: Form | Callable[[Redaction, Answer], Answer], r: Redaction, answer: Answer) -> Answer:
    return each(form)(r, answer) if isinstance(form, Form) else form(r, answer)


def list_of(form: Callable[[Redaction, Answer], Answer]) -> Callable[[Redaction, Answer], Answer]:
    """Return what applies a form to each entry of a list."""

    def apply(r: Redaction, answer: Answer) -> Answer:
        return [form(r, a) for a in answer] if isinstance(answer, list) else scalar(r, answer)

    return apply


def mapping(names: Form, values: Callable[[Redaction, Answer], Answer]) -> Callable[[Redaction, Answer], Answer]:
    """Return what keeps a mapping from names of one form to answers of another."""

    def apply(r: Redaction, answer: Answer) -> Answer:
        if not isinstance(answer, dict):
            return scalar(r, answer)
        pairs = ((names(r, str(k)), v) for k, v in answer.items())
        return {k: values(r, v) for k, v in pairs if k is not None}

    return apply


def lines(form: Form) -> Form:
    """Return the form of a text of lines of a form; lines that it leaves out are gone."""

    def change(r: Redaction, text: str) -> str:
        return "\n".join(new for line in text.split("\n") if (new := form(r, line)) is not None)

    return Form(form.what, change)


def keyed(form_of: Mapping[str, Form], what: str, sep: str = ":") -> Form:
    """Return the form of a line `key: value`, kept where the key is one of those given, with its value's form."""

    def change(r: Redaction, text: str) -> str | None:
        key, mark, value = text.partition(sep)
        form = form_of.get(key.strip())
        if form is None or not mark:
            return None
        new = form(r, value)
        return None if new is None else f"{key}{mark}{new}"

    return Form(what, change)


def labelled(form: Form, what: str, *patterns: str) -> Form:
    """Return the form of a text in which a pattern finds the group `v`: what it finds stays, `v` by the form."""
    compiled = [re.compile(p, re.ASCII) for p in patterns]

    def change(r: Redaction, text: str) -> str | None:
        m: Any = next((found for p in compiled if (found := p.search(text))), None)
        if m is None:
            return r.unknown(text)
        at, end = m.span("v")
        return text[m.start() : at] + (form(r, text[at:end]) or "") + text[end : m.end()]

    return Form(what, change)
