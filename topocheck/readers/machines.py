"""Members of an archive or folder, put together to the machines that they are of.

A tree of the kernel's files (`sys/`, `proc/`) or of sosreport (`sos_commands/`) is one machine with all below its
folder. Of the other files, those of one folder are one machine. A snapshot, a report of topocheck, a bug report of
NVIDIA and an archive are each whole: several in one folder are several machines.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator

import msgspec

from topocheck.host.gather.jsonable import plain_text
from topocheck.model.base import InputError
from topocheck.readers import archive
from topocheck.readers.base import Reading
from topocheck.readers.collected import Collected

MAX_TEXT_BYTES = 192 << 20
"""Of all members that are read."""
MAX_NESTED = 2
_KERNEL = re.compile(r"(?:(.*?)/)?((?:sys/(?:bus|devices|class|kernel|module|firmware)|proc|etc|dev|run)/.+)$")
_TREE = re.compile(r"(?:(.*?)/)?(?:sys/(?:bus|devices|class|kernel|module|firmware)|proc|sos_commands)/.+$")
_NO_TEXT = (".rpm", ".deb", ".pcap", ".core", ".so", ".png", ".svg", ".pyc", ".html", ".md5", ".sha256")

Member = tuple[str, "bytes | str"]
"""Path and bytes of a file, or path and target of a link."""


class Machine(msgspec.Struct, kw_only=True):
    """One machine of an archive or folder.

    Attributes:
        name: the folder or file within it that the machine's texts are of; empty for the archive as a whole.
        readings: what its texts say.
        certain: it is known to be one, by a tree of the kernel's files or by a file that is whole by itself; texts in
            several folders may be of one.
        unread: members that could not be read, with the reason.
        not_understood: parts of its one text that no reader takes, in words.
    """

    name: str
    certain: bool = False
    readings: list[Reading] = msgspec.field(default_factory=list)
    unread: list[str] = msgspec.field(default_factory=list)
    not_understood: list[str] = msgspec.field(default_factory=list)


class _Piece(msgspec.Struct):
    """What one member says, or the kernel's files of one tree (`kernel`)."""

    folder: str
    path: str
    whole: bool
    readings: list[Reading]
    kernel: bool = False


Texts = Callable[[str, bytes, str], Iterator[Reading]]
"""Yields what a text says: its name, its bytes, the command that printed it."""


def machines(
    name: str,
    names: Iterable[str],
    members: Iterable[Member],
    texts: Texts,
    whole: Callable[[bytes], bool],
    depth: int = 0,
    *,
    alike_apart: bool = False,
) -> list[Machine]:
    """Return the machines of an archive or folder, each with what its members say.

    Args:
        name: of the archive.
        names: the paths of all members.
        members: the same with what they hold.
        texts: reads a text, or any other single file.
        whole: tells whether a file's bytes are a machine by themselves.
        depth: of archives within archives.
        alike_apart: files of one folder that are all of the same formats are each of a machine.
    """
    trees = _trees(names)
    kernel: dict[str, Collected] = {}
    pieces: list[_Piece] = []
    inner: list[Machine] = []
    unread: list[str] = []
    budget = MAX_TEXT_BYTES
    left = 0
    for path, body in members:
        shown = plain_text(path)
        tree = next((t for t in trees if t == "" or path.startswith(f"{t}/")), None)
        below = path if not tree else path[len(tree) + 1 :]
        if tree is not None and (m := _KERNEL.match(below)) and not m[1] and not below.startswith("sos_commands/"):
            kernel.setdefault(tree, Collected()).add(f"/{m[2]}", body, f"{name}: {shown}")
            if m[2].startswith(("sys/", "proc/")):
                continue
        if isinstance(body, str) or not body or path.endswith(_NO_TEXT):
            continue
        try:
            data = archive.unpacked(f"{name}: {shown}", body, whole)
            if (budget := budget - len(data)) < 0:
                left += 1
                continue
            folder = tree if tree is not None else posixpath.dirname(path)
            if archive.is_archive(data):
                if depth < MAX_NESTED:
                    inner += _nested(name, shown, folder, data, texts, whole, depth, pieces)
                continue
            if b"\0" in data[:4096] and not _utf16(data) and not whole(body):
                continue
            found = list(texts(f"{name}: {shown}", body if whole(body) else data, _command(below)))
            if found:
                pieces.append(_Piece(folder, path, whole(body) or whole(data), found))
        except InputError as e:
            unread.append(plain_text(str(e))[:300])
    for tree, collected in kernel.items():
        if (reading := collected.reading(name)) is not None:
            pieces.append(_Piece(tree, tree, False, [reading], kernel=True))
    if left:
        unread.append(f"{name}: {left} files not read, of more than {MAX_TEXT_BYTES >> 20} MiB in all")
    return _grouped(pieces, inner, unread, alike_apart=alike_apart)


def _trees(names: Iterable[str]) -> list[str]:
    """Return the folders that hold a machine's own files; of two within each other the outer."""
    found = sorted({m[1] or "" for n in names if (m := _TREE.match(n))}, key=len)
    outer: list[str] = []
    for folder in found:
        if not any(o == "" or folder.startswith(f"{o}/") for o in outer):
            outer.append(folder)
    return outer


def _utf16(data: bytes) -> bool:
    return data.startswith((b"\xff\xfe", b"\xfe\xff")) or max(data[1:64:2].count(0), data[:64:2].count(0)) > 16


def _command(path: str) -> str:
    """Return the command that sosreport ran for a file, by its name, where it is one; else the path."""
    if path.startswith("sos_commands/"):
        return posixpath.basename(path).replace("_", " ")
    return "" if "/" not in path else f"/{path}"


def _nested(
    name: str,
    shown: str,
    folder: str,
    data: bytes,
    texts: Texts,
    whole: Callable[[bytes], bool],
    depth: int,
    pieces: list[_Piece],
) -> list[Machine]:
    """Return the machines of an archive within an archive, but one alone, which is a piece of its folder."""
    inside = f"{name}: {shown}"
    found = machines(inside, archive.names(inside, data), archive.members(inside, data), texts, whole, depth + 1)
    if len(found) != 1:
        return [msgspec.structs.replace(m, name=f"{shown}: {m.name}", certain=True) for m in found]
    pieces.append(_Piece(folder, shown, True, found[0].readings))
    return []


def _grouped(pieces: list[_Piece], inner: list[Machine], unread: list[str], *, alike_apart: bool) -> list[Machine]:
    folders: dict[str, list[_Piece]] = {}
    for p in pieces:
        folders.setdefault(p.folder, []).append(p)
    out = list(inner)
    for folder, held in folders.items():
        wholes = [p for p in held if p.whole]
        if not wholes and alike_apart and len(held) > 1 and len({_formats(p) for p in held}) == 1:
            out += [Machine(name=p.path, readings=p.readings) for p in held]
            continue
        if len(wholes) < 2:
            certain = bool(wholes) or any(p.kernel for p in held)
            name = folder or (wholes[0].path if wholes and len(folders) > 1 else "")
            out.append(Machine(name=name, certain=certain, readings=[r for p in held for r in p.readings]))
            continue
        out += [Machine(name=p.path, certain=True, readings=p.readings) for p in wholes]
        loose = [p.path for p in held if not p.whole]
        if loose:
            out[-1].unread.append(
                f"{', '.join(map(plain_text, loose[:4]))}: beside {len(wholes)} machines, so not known of which it is; "
                "put the files of each machine in a folder of its own"
            )
    if out:
        out[0].unread += unread
    elif unread:
        raise InputError(unread[0])
    return out


def _formats(piece: _Piece) -> frozenset[str]:
    return frozenset(r.reader for r in piece.readings)
