"""What the commands of `topocheck nccl` read: machines, versions, topology files, rank files and logs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topocheck.cli import common
from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.knowledge.nccl import Version
    from topocheck.model.node import Node
    from topocheck.nccl.types import HostInput, Prediction
    from topocheck.nccl.xml import Element
    from topocheck.topology.types import Topology


def load(recording: Path | None) -> tuple[Node, Topology]:
    """Return the facts and the topology of a recording, or of this machine."""
    from topocheck.pipeline import read_node
    from topocheck.topology.build import build

    node = read_node(common.open_host(recording))
    return node, build(node)


def version_of(text: str | None, node: Node | None = None) -> Version:
    """Return the version asked for, else the installed one, else the newest known."""
    from topocheck.knowledge.nccl import TABLE_VERSION, parse_version, version_key
    from topocheck.nccl.view import version_for

    if text is not None and parse_version(text) is None:
        raise InputError(f"--nccl-version {text!r}: expected a version such as 2.28.9")
    if node is not None:
        return version_for(node, text)
    return (parse_version(text) if text else None) or version_key(TABLE_VERSION)


def read_bytes(path: Path, limit: int) -> bytes:
    """Return a file, or standard input, no more than one byte beyond the limit."""
    try:
        if str(path) == "-":
            return common.standard_input().read(limit + 1)
        with path.open("rb") as f:
            return f.read(limit + 1)
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror}") from e


def topology_file(path: Path) -> Element:
    """Return the root of a topology file."""
    from topocheck.nccl.xml import MAX_BYTES, NcclXmlError, parse_topology

    try:
        return parse_topology(read_bytes(path, MAX_BYTES)).root
    except NcclXmlError as e:
        raise InputError(f"{path}: {e}") from e


def json_text(value: object) -> str:
    """Return a result as JSON; a missing value becomes a mapping that says why."""
    import msgspec

    from topocheck.model.base import Missing

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

    text = msgspec.json.encode({"schema_version": 1, **plain(value)})
    return msgspec.json.format(text, indent=2).decode() + "\n"


def parse_settings(items: list[str]) -> dict[str, str]:
    """Return NAME=VALUE items as a mapping."""
    out = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise InputError(f"--set {item!r}: expected NAME=VALUE")
        out[name.strip()] = value
    return out


def problems_of(settings: dict[str, str], version: Version) -> list[str]:
    """Return why a version would ignore some of the settings, or read them otherwise than they look."""
    from topocheck.knowledge.nccl_values import judge_setting

    found = [p for name, value in settings.items() for p in judge_setting(name, value, version)]
    return [p.text for p in found if p.kind != "risky"]


def library_names(path: Path, version_text: str | None) -> dict[str, object]:
    """Return how the table of settings and the names in a library differ."""
    from topocheck.knowledge import nccl_library

    names, stated = nccl_library.names_in(chunks_of(path))
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


def hosts_for(
    ranks: Path | None, from_: Path | None, topo_file: Path | None, version_text: str | None
) -> tuple[tuple[HostInput, ...], Version, Any, dict[int, str]]:
    """Return the hosts, the version, the ranks (None for all GPUs), and labels of ranks for a prediction."""
    from topocheck.nccl.types import HostInput
    from topocheck.nccl.view import host_input

    file = topology_file(topo_file) if topo_file is not None else None
    if ranks is not None:
        return from_rank_file(ranks, version_text, file)
    if file is not None and from_ is None:
        version = version_of(version_text)
        return (HostInput(name="file", topology=file, assume=True),), version, None, {}
    node, topology = load(from_)
    version = version_of(version_text, node)
    return (host_input(node, topology, version, file=file),), version, None, labels_of(topology)


def labels_of(topology: Topology) -> dict[int, str]:
    """Return the label of each rank's GPU where ranks are the usable GPUs in order."""
    from topocheck.nccl.topo import usable_gpus

    return {i: g.label for i, g in enumerate(usable_gpus(topology))}


def from_rank_file(
    path: Path, version_text: str | None, file: Element | None
) -> tuple[tuple[HostInput, ...], Version, Any, dict[int, str]]:
    """Return hosts, version, ranks and labels of a rank file."""
    from topocheck.nccl.rank_file import MAX_BYTES, gpu_address, parse_rank_file
    from topocheck.nccl.types import RankSpec
    from topocheck.nccl.view import host_input

    text = read_bytes(path, MAX_BYTES).decode("utf-8", "replace")
    recordings, entries = parse_rank_file(text, str(path))
    hosts: dict[str, HostInput] = {}
    indices: dict[str, dict[int, str]] = {}
    version: Version | None = None
    for entry in entries:
        name = entry["host"]
        if name in hosts:
            continue
        recording = recordings.get(name, name)
        place = None if recording == "live" else path.parent / str(recording)
        node, topology = load(place)
        version = version or version_of(version_text, node)
        hosts[name] = host_input(node, topology, version, name=name, file=file)
        indices[name] = {g.index: g.address for g in topology.gpus if isinstance(g.index, int)}
    specs = []
    for entry in entries:
        name, where = entry["host"], f"{path}: rank {entry['rank']}"
        visible = entry["visible"]
        specs.append(
            RankSpec(
                rank=entry["rank"],
                host=name,
                gpu=gpu_address(entry["gpu"], indices[name], where),
                process=entry["process"],
                container=entry["container"],
                visible=None if visible is None else tuple(gpu_address(v, indices[name], where) for v in visible),
            )
        )
    return tuple(hosts.values()), version or version_of(version_text), tuple(specs), {}


def counted_lines(lines: int, long_lines: int) -> str:
    """Return a number of lines in words, with those that were longer than what is read of a line."""
    text = "1 line" if lines == 1 else f"{lines} lines"
    return f"{text} ({long_lines} too long for a log, of which only the start was read)" if long_lines else text


def predict_or_fail(hosts: tuple[HostInput, ...], version: Version, ranks: Any, settings: dict[str, str]) -> Prediction:
    """Return the prediction; what is wrong with the job becomes an InputError."""
    from topocheck.nccl.predict import PredictError, predict

    try:
        return predict(hosts, version, ranks, settings)
    except PredictError as e:
        raise InputError(str(e)) from e


def chunks_of(path: Path) -> Iterator[bytes]:
    """Yield a log or a library in pieces; standard input for `-`. A FIFO is fine; a device has no end."""
    try:
        if str(path) == "-":
            while chunk := common.standard_input().read(1 << 20):
                yield chunk
            return
        mode = os.stat(path).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise InputError(f"{path}: a device, not a file; for standard input give -")
        with path.open("rb") as f:
            while chunk := f.read(1 << 20):
                yield chunk
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror}") from e
