"""Compressed files and archives (tar, zip), read in memory: nothing is unpacked to disk, no name leads out of them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import posixpath
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from topocheck.model.base import InputError

MAX_MEMBERS = 1 << 17
MAX_MEMBER_BYTES = 32 << 20
MAX_UNPACKED = 512 << 20
MAX_ONE_TEXT = 96 << 20
"""Of one text, unpacked."""


def is_tar(data: bytes | bytearray) -> bool:
    """Tell whether these are the bytes of a tar archive (POSIX ustar: the magic at offset 257)."""
    return data[257:262] == b"ustar"


def is_archive(data: bytes | bytearray) -> bool:
    """Tell whether these are the bytes of an archive that is read: tar or zip."""
    return is_tar(data) or data[:4] in (b"PK\x03\x04", b"PK\x05\x06")


def unpacked(name: str, data: bytes, whole: Callable[[bytes], bool] = lambda _: False) -> bytes:
    """Return a file without its compression (gzip, xz, bzip2; also twice), as it is where it has none.

    One that is cut short counts as far as it goes, as collectors are often killed. `whole`: tells of bytes that they
    are read as they are, as a snapshot, which is compressed itself.

    Raises:
        InputError: it is damaged from its start, of a compression that is not read, or larger than is read: an archive
            than MAX_UNPACKED, one text than MAX_ONE_TEXT.
    """
    for _ in range(MAX_LAYERS):
        inner = data if whole(data) else _unpacked_once(name, data)
        if inner is data:
            break
        data = inner
    if other := next((o for start, o in _NOT_READ if data.startswith(start)), None):
        raise InputError(f"{name}: {other[0]}, which is not read; unpack it first: {other[1]}")
    return data


MAX_LAYERS = 3
"""Of compression around one file: collectors compress what is compressed already."""
_NOT_READ = (
    (b"\x28\xb5\x2f\xfd", ("compressed by zstd", "zstd -d FILE")),
    (b"\x04\x22\x4d\x18", ("compressed by lz4", "lz4 -d FILE")),
    (b"7z\xbc\xaf\x27\x1c", ("a 7z archive", "7z x FILE")),
    (b"Rar!\x1a\x07", ("a rar archive", "unrar x FILE")),
    (b"LZIP", ("compressed by lzip", "lzip -d FILE")),
    (b"\x1f\x9d", ("compressed by compress", "uncompress FILE")),
    (b"%PDF-", ("a PDF document", "pdftotext -layout FILE")),
)
"""First bytes of a file -> what it is, and the program that makes it readable."""


def _unpacked_once(name: str, data: bytes) -> bytes:
    kinds: tuple[tuple[bytes, Any], ...] = (
        (b"\x1f\x8b", gzip.open),
        (b"\xfd7zXZ\x00", lzma.open),
        (b"BZh", bz2.open),
    )
    opens = next((o for start, o in kinds if data.startswith(start)), None)
    if opens is None:
        return data
    out = bytearray()
    try:
        with opens(io.BytesIO(data)) as file:
            while piece := file.read(1 << 20):
                out += piece
                most = MAX_UNPACKED if is_archive(out) else MAX_ONE_TEXT
                if len(out) > most:
                    raise InputError(f"{name}: larger than {most >> 20} MiB when unpacked")
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as e:
        if not out:
            raise InputError(f"{name}: damaged compressed file: {e}") from None
    return bytes(out)


def names(name: str, data: bytes) -> list[str]:
    """Return the paths of an archive's files and links; errors as for `members`."""
    return [path for path, _ in _tar(name, data, bodies=False)] if is_tar(data) else [p for p, _ in _zip(name, data)]


def members(name: str, data: bytes) -> Iterator[tuple[str, bytes | str]]:
    """Yield (path, bytes of a file or target of a link) of an archive; whatever else it may hold is left out.

    Raises:
        InputError: the archive is damaged from its start.
    """
    return _tar(name, data) if is_tar(data) else _zip(name, data)


def _path(name: str) -> str | None:
    """Return the path of a member within the archive; None where it leads out of it."""
    path = posixpath.normpath(name.replace("\\", "/").lstrip("/"))
    return None if path.startswith("..") or path == "." else path


def _tar(name: str, data: bytes, *, bodies: bool = True) -> Iterator[tuple[str, bytes | str]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for number, member in enumerate(archive):
                if number >= MAX_MEMBERS:
                    return
                if (path := _path(member.name)) is None:
                    continue
                if member.issym():
                    yield path, member.linkname
                elif member.isreg() and member.size <= MAX_MEMBER_BYTES:
                    file = archive.extractfile(member) if bodies else None
                    yield path, file.read(MAX_MEMBER_BYTES) if file is not None else b""
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as e:
        if not isinstance(e, tarfile.ReadError | EOFError | OSError):
            raise InputError(f"{name}: damaged tar archive: {e}") from None


def _zip(name: str, data: bytes) -> Iterator[tuple[str, bytes | str]]:
    """Yield the files of a zip archive, whose links are files that hold their target."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            if len(infos) > MAX_MEMBERS or sum(i.file_size for i in infos) > MAX_UNPACKED:
                raise InputError(f"{name}: larger than {MAX_UNPACKED >> 20} MiB, or {MAX_MEMBERS} files, when unpacked")
            for info in infos:
                path = None if info.is_dir() or info.file_size > MAX_MEMBER_BYTES else _path(info.filename)
                if path is None:
                    continue
                with archive.open(info) as file:
                    body = file.read(MAX_MEMBER_BYTES)
                is_link = info.external_attr >> 28 == _LINK
                yield path, body[:4096].decode("utf-8", "replace") if is_link else body
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, NotImplementedError) as e:
        # RuntimeError: a password is wanted
        raise InputError(f"{name}: damaged or encrypted zip archive: {e}") from None


_LINK = 0o12
"""S_IFLNK of stat.h, without its lower 12 bits: the upper half of a zip's attributes is the file's mode."""
