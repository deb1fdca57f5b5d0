"""Files of any format that is understood, one or many of one machine, as the answers of one recording.

Most are one snapshot; what reads all other formats (readers/together.py) is loaded where a file is something else.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from topocheck.host.base import Answer, Host, RecordedBackend
from topocheck.host.input import read_input
from topocheck.host.recording import snapshot

MAX_BYTES = 64 << 20
"""Of one file, as it lies there."""


class Read(msgspec.Struct, kw_only=True):
    """What was read.

    Attributes:
        answers: as those of a recording.
        header: of the snapshot, where one snapshot is all that was given.
    """

    answers: dict[str, Answer]
    header: snapshot.Header | None = None


def read_files(paths: Sequence[Path]) -> Read:
    """Return what files say of one machine. A folder is all the files in it and below it.

    One snapshot alone gives its own answers. Else the answers are those of all files, with `sources:` saying where
    each comes from, and the state of each probe.

    Raises:
        InputError: a file cannot be read, is damaged, or is of no format that is understood.
    """
    files: list[tuple[Path, bytes | None]] = [(p, None if os.path.isdir(p) else _bytes(p)) for p in paths]
    if len(files) == 1 and (data := files[0][1]) is not None and snapshot.is_snapshot(data):
        header, answers = snapshot.read(io.BytesIO(data), repr(str(paths[0])))
        return Read(answers=answers, header=header)
    from topocheck.readers.together import joined

    return Read(answers=joined(files))


def only_a_matrix(host: Host) -> bool:
    """Tell whether all that a file holds is a matrix of nvidia-smi, which then is all that can be shown."""
    answers = host.backend.answers if isinstance(host.backend, RecordedBackend) else {}
    told = [q for q in answers if not q.startswith(("sources:", "probe:"))]
    return "sources:" in answers and all(
        q.startswith(("nvml:DeviceGetP2PStatus|", "run:")) and (q.startswith("nvml:") or "|nvidia-smi|topo|-" in q)
        for q in told
    )


def read_data(name: str, data: bytes) -> Read:
    """Return what one file says, of which the bytes are here already; errors as for `read_files`."""
    from topocheck.readers.together import joined

    return Read(answers=joined([(Path(name), data)]))


def _bytes(path: Path) -> bytes:
    return read_input(path, MAX_BYTES, "a snapshot of topocheck, or a text of another program that it reads")


def is_snapshot_file(path: Path) -> bool:
    """Tell whether a path is a snapshot's, and no text, archive or folder.

    Raises:
        InputError: it cannot be read.
    """
    return str(path) != "-" and not os.path.isdir(path) and snapshot.is_snapshot(_bytes(path))
