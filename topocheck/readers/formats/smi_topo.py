"""Text of `nvidia-smi topo -m`, `-mp` and `-p2p`, as printed or pasted; the parser is that of the cross-check.

The matrix is the answer to the command itself. Its P2P tables answer for NVML, which gives nvidia-smi these codes.
"""

from __future__ import annotations

import re

from topocheck.model.base import small_number
from topocheck.model.smi import SmiMatrix
from topocheck.probes.nvml.enums import P2P_STATUSES
from topocheck.probes.nvml.p2p import KINDS
from topocheck.probes.smi.topo import SMI_TIMEOUT_S, SmiTopoError, parse_matrix
from topocheck.readers.base import Answers, Reader

MAX_CHARS = 4 << 20
_ROW = re.compile(r"^[ \t]*GPU0[ \t]+(?:X\b|\S{1,6}[ \t]+X\b)", re.M)
_CODES = {word: number for number, word in P2P_STATUSES.items()}
_LETTERS = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "pcie"}


def recognise(text: str) -> bool:
    """Tell whether a row of the matrix stands in the text."""
    return _ROW.search(text) is not None


def read(text: str) -> Answers:
    """Return the matrix, and the status of each pair."""
    found = Answers()
    first = _ROW.search(text)
    line = text.count("\n", 0, first.start()) + 1 if first else 1
    try:
        matrix = parse_matrix(text[:MAX_CHARS])
    except SmiTopoError:
        return found
    result = {"rc": 0, "stdout": text[:MAX_CHARS], "stderr": ""}
    if matrix.kind:
        found.put(line, result, "run", SMI_TIMEOUT_S, "nvidia-smi", "topo", f"-{matrix.kind}")
    _statuses(found, matrix)
    return found


def _statuses(found: Answers, matrix: SmiMatrix) -> None:
    for table in matrix.p2p:
        for letter in table.capability:
            kind = KINDS.get(_LETTERS.get(letter, ""))
            for a, cells in table.codes.items():
                for b, code in cells.items():
                    i, j = _index(a), _index(b)
                    if kind is not None and i is not None and j is not None and code in _CODES:
                        found.put(table.line, _CODES[code], "nvml", "DeviceGetP2PStatus", i, j, kind)


def _index(label: str) -> int | None:
    return small_number(label[3:]) if label.startswith("GPU") else None


READER = Reader(
    name="nvidia-smi topo -m, -mp, -p2p",
    tells="the matrix of GPUs and NICs, and the driver's P2P status",
    recognise=recognise,
    read=read,
)
