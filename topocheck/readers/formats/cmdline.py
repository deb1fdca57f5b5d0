"""The kernel's command line: the text of /proc/cmdline."""

from __future__ import annotations

import re

from topocheck.readers.base import Answers, Reader, numbered


def recognise(text: str) -> bool:
    """Tell whether the text is one line of options, or has one that begins with BOOT_IMAGE=."""
    return len(text) < 1 << 16 and re.search(r"^[ \t]*BOOT_IMAGE=\S+ ", text, re.M) is not None


def read(text: str) -> Answers:
    """Return the options."""
    found = Answers()
    for number, line in numbered(text):
        if line.strip().startswith("BOOT_IMAGE="):
            found.options(number, line)
    return found


READER = Reader(name="/proc/cmdline", tells="the kernel's options", recognise=recognise, read=read)
