"""What the commands of `topocheck nccl` read: machines, versions, settings, topology files, libraries and logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from topocheck.cli import common
from topocheck.host.input import chunks_of, read_input
from topocheck.model.base import InputError, is_digits
from topocheck.model.version import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from topocheck.knowledge.nccl import NcclSetting, Version
    from topocheck.model.node import Node
    from topocheck.nccl.topofile.file import TopoFile
    from topocheck.topology.types import Topology


def load(recording: common.Given) -> tuple[Node, Topology]:
    """Return the facts and the topology of a recording, or of this machine."""
    from topocheck.pipeline import read_node
    from topocheck.topology.build import build

    node = read_node(common.open_host(recording))
    return node, build(node)


def version_of(text: str | None, node: Node | None = None) -> Version:
    """Return the version asked for, else the installed one, else the newest known.

    Raises:
        InputError: what is asked for is no version, or none that had what is predicted here.
    """
    from topocheck.knowledge.nccl import TABLE_VERSION, parse_version, version_key
    from topocheck.nccl.predict.report import version_for

    asked = parse_version(text) if text is not None and is_digits(text.lstrip("v")[:1]) else None
    if text is not None and (asked is None or asked < (2, 0, 0)):
        what = "a version such as 2.28.9" if asked is None else "NCCL 2.0 or newer; version 1 knew one node only"
        raise InputError(f"--nccl-version {text[:40]!r}: expected {what}")
    if node is not None:
        return version_for(node, text)
    return asked or version_key(TABLE_VERSION)


def setting_like(name: str) -> NcclSetting:
    """Return the setting of that name, or the one most like it, with a word on standard error.

    Raises:
        InputError: none is like it.
    """
    from topocheck.knowledge import nccl

    near = nccl.nearest(name)
    found = nccl.lookup(name) or (nccl.lookup(near) if near else None)
    if found is None:
        raise InputError(f"no setting like {name!r} is known (NCCL {nccl.TABLE_VERSION})")
    if found.name != name:
        common.warn(f"{name} is not known; nearest is {found.name}")
    return found


def topology_file(path: Path, version: Version) -> TopoFile:
    """Return a topology file and what a version of NCCL makes of it."""
    from topocheck.model.excerpt import excerpt
    from topocheck.nccl.topofile.file import judge_file
    from topocheck.nccl.topofile.xml import MAX_BYTES, NcclXmlError

    try:
        data = read_input(path, MAX_BYTES, "a topology file of NCCL")
        return judge_file(str(path), data, version)
    except NcclXmlError as e:
        raise InputError(f"{path}: {e}", excerpt=excerpt(data.decode("utf-8", "replace"), (e.line, e.column))) from e


def json_text(value: object) -> str:
    """Return a result as JSON; a missing value becomes a mapping that says why."""
    import msgspec

    from topocheck.model.base import Missing
    from topocheck.render import quoting

    def plain(x: Any) -> Any:
        if isinstance(x, Missing):
            return {"missing": str(x)}
        if isinstance(x, msgspec.Struct):
            return {f: plain(getattr(x, f)) for f in x.__struct_fields__}
        if isinstance(x, dict):
            return {
                (k if isinstance(k, str) else " ".join(map(str, k)) if isinstance(k, tuple) else str(k)): plain(v)
                for k, v in x.items()
            }
        if isinstance(x, list | tuple):
            return [plain(v) for v in x]
        return x

    return quoting.json_text({"schema_version": SCHEMA_VERSION, **plain(value)})


def library_names(path: Path, version_text: str | None) -> dict[str, object]:
    """Return how the table of settings and the names in a library differ."""
    from topocheck.knowledge import nccl_library

    names, stated = nccl_library.names_in(chunks_of(path, "libnccl.so.2"))
    if not names:
        raise InputError(f"{path}: no name of an NCCL setting in it; expected libnccl.so.2")
    version = version_of(version_text) if version_text or stated is None else stated
    return {
        "library": str(path),
        "nccl_version": ".".join(map(str, version)),
        "names": len(names),
        "unknown_to_table": nccl_library.unknown_to_table(names),
        "absent_from_library": nccl_library.absent_from_library(names, version),
    }


_COMPRESSED = {b"\x1f\x8b": "zcat", b"\x28\xb5\x2f\xfd": "zstdcat", b"\xfd7zXZ": "xzcat", b"BZh": "bzcat"}
"""First bytes of compressed files -> the program that shows them (RFC 1952, RFC 8878, the xz and bzip2 formats)."""


def uncompressed(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Yield a log as it is.

    Raises:
        InputError: it is compressed; says how to give it.
    """
    first = next(chunks, b"")
    for magic, program in _COMPRESSED.items():
        if first.startswith(magic):
            raise InputError(f"{name} is compressed: {program} {name} | topocheck nccl log -")
    yield first
    yield from chunks


def counted_lines(lines: int, long_lines: int) -> str:
    """Return a number of lines in words, with those that were longer than what is read of a line."""
    text = "1 line" if lines == 1 else f"{lines} lines"
    return f"{text} ({long_lines} too long for a log, of which only the start was read)" if long_lines else text
