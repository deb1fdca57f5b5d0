"""A text, what a reader makes of it, and the reader itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from topocheck.host.base import Answer, HostError, key
from topocheck.host.live.filters import kernel_option_allowed
from topocheck.model.base import Reason

TEXT_ANSWERS = 1 << 19
"""Answers that one text may give; a server with 8,192 functions gives a tenth of it."""


JSON_REPORT = "a JSON report of topocheck"
"""Name of the reader of our own reports, each of which is a machine at one moment."""


def numbered(text: str, longest: int = 4096) -> Iterator[tuple[int, str]]:
    """Yield (number, line) of a text; of a line that is longer than any that is read, its start."""
    return ((n, line[:longest]) for n, line in enumerate(text.split("\n"), 1))


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """One text of a file, or of a section or member of it.

    Attributes:
        name: of the file, and of the member within it, as people are shown it.
        text: what stands there.
        first_line: the number in the file of the first line of `text`.
        heading: the command that printed it, or the path of the file that it is; empty where nothing says so. The line
            that says so is the first of `text`.
    """

    name: str
    text: str
    first_line: int = 1
    heading: str = ""


_PLACEHOLDER = re.compile(
    r"\s*(?:\.{2,}|\u2026|[xX*?#]{3,}|[xX*?#\-:.]{6,}|[\[(<]?(?i:redacted|removed|hidden|masked|omitted|snip)[\])>]?)\s*"
)
"""What stands where somebody took a value out before they handed the text over."""


class Answers:
    """Answers with the line of the text that gave each.

    `partial` names questions for lists of which the text may hold only some names (`lspci -s`). `soft` names those
    whose answer is concluded from a text that may be a part: any other text knows better. `members` names the file,
    with its line, where that is another than the text's own: one of an archive.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.lines: dict[str, int] = {}
        self.partial: set[str] = set()
        self.soft: set[str] = set()
        self.members: dict[str, str] = {}

    def put(self, line: int, answer: Answer, kind: str, *args: str | int) -> None:
        """Take down an answer; the first to a question stays. What people put in place of a value is none."""
        if _PLACEHOLDER.fullmatch(answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)):
            return
        question = key(kind, args)
        if question not in self.answers and len(self.answers) < TEXT_ANSWERS:
            self.answers[question] = answer
            self.lines[question] = line

    def file(self, line: int, path: str, text: str) -> None:
        """Take down what a file says."""
        self.put(line, f"{text}\n".encode("utf-8", "replace"), "read", path)

    def options(self, line: int, text: str) -> None:
        """Take down the kernel's command line, as far as a recording may hold it."""
        self.put(line, [o for o in text.split() if kernel_option_allowed(o)], "kernel_options")

    def hypervisor(self, line: int, name: str) -> None:
        """Take down a hypervisor by the name that a text gives it; the kernel's file of it gives some."""
        word = name.lower()
        kept = word if word in ("kvm", "xen", "vmware", "microsoft") else "unknown"
        self.file(line, "/sys/hypervisor/type", kept)
        self.soft.add("read:/sys/hypervisor/type")

    def absent(self, line: int, kind: str, *args: str | int) -> None:
        """Take down that the machine has no such file."""
        self.put(line, HostError(Reason.ABSENT, "ENOENT"), kind, *args)

    def names(self, line: int, folder: str, names: list[str], *, whole: bool) -> None:
        """Take down the names in a folder. `whole`: there are no others."""
        self.put(line, sorted(dict.fromkeys(names)), "list", folder)
        if not whole:
            self.partial.add(key("list", (folder,)))


Read: TypeAlias = Callable[[str], Answers]


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """One format.

    Attributes:
        name: as people are shown it: the command that prints it.
        tells: what it can tell, in a few words.
        recognise: tells by its content whether a text holds this format.
        read: the answers that a text gives; never raises on any text (an InputError where it is this format, damaged).
    """

    name: str
    tells: str
    recognise: Callable[[str], bool]
    read: Read


class Reading(msgspec.Struct, kw_only=True):
    """What one reader made of one text."""

    text: Text
    reader: str
    found: Answers
