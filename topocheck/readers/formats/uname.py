"""The line of `uname -a`: host name, kernel, architecture."""

from __future__ import annotations

import re

from topocheck.readers.base import Answers, Reader, numbered

_LINE = re.compile(
    r"(?:uname: )?Linux (\S{1,64}) ([0-9]+\.[0-9]+\S{0,80}) #\S.{0,160}? (x86_64|aarch64|ppc64le|s390x|riscv64)"
    r"(?: \S+){0,2} GNU/Linux\s*$"
)


def recognise(text: str) -> bool:
    """Tell whether such a line stands in the text."""
    return re.search(rf"^[ \t]*{_LINE.pattern}", text, re.M) is not None


def read(text: str) -> Answers:
    """Return the name of the host, the kernel's release, the architecture."""
    found = Answers()
    for number, line in numbered(text):
        if m := _LINE.match(line.strip()):
            for name, value in (("hostname", m[1]), ("osrelease", m[2]), ("arch", m[3])):
                found.file(number, f"/proc/sys/kernel/{name}", value)
    return found


READER = Reader(name="uname -a", tells="the kernel", recognise=recognise, read=read)
