"""The kernel's command line: the text of /proc/cmdline."""

from __future__ import annotations

import re

from topocheck.readers.base import Answers, Reader, numbered

COMMON = frozenset(
    "console crashkernel init initrd intel_iommu amd_iommu iommu mitigations nokaslr panic pci pcie_aspm quiet rdinit "
    "rhgb ro root rootflags rw splash".split()
)
"""Options that distributions and clouds write (kernel-parameters.txt); a line without BOOT_IMAGE has two of them."""


def recognise(text: str) -> bool:
    """Tell whether the text is one line of options, or has one that begins with BOOT_IMAGE=."""
    if len(text) >= 1 << 16:
        return False
    return re.search(r"^[ \t]*BOOT_IMAGE=\S+ ", text, re.M) is not None or _is_options(text)


def _is_options(text: str) -> bool:
    if "\n" in text.strip():
        return False
    names = [w.partition("=")[0] for w in text.partition(" -- ")[0].split()]
    return len(names) > 2 and len(COMMON.intersection(names)) > 1


def read(text: str) -> Answers:
    """Return the options."""
    found = Answers()
    one_line = _is_options(text)
    for number, line in numbered(text):
        if line.strip().startswith("BOOT_IMAGE=") or (one_line and line.strip()):
            found.options(number, line)
    return found


READER = Reader(name="/proc/cmdline", tells="the kernel's options", recognise=recognise, read=read)
