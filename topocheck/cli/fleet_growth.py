"""Recordings of `topocheck watch` among the files of `fleet --against`: what grew on each node in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from topocheck.cli.fleet_files import RECORDINGS
from topocheck.compare.types import SharedFinding, UnreadableFile
from topocheck.host.gather.jsonable import plain_text
from topocheck.host.input import walk
from topocheck.model.base import InputError, State

if TYPE_CHECKING:
    from topocheck.compare.types import Fleet
    from topocheck.overtime.history import History
    from topocheck.policy.types import Policy

MOST = 20_000
"""Recordings of one run; a fleet has ten thousand nodes."""
_SHOWN = (State.FAIL, State.WARN, State.UNKNOWN)


def recordings(paths: Sequence[Path]) -> list[Path]:
    """Return the files with a recording's ending that paths name: files, and those below folders."""
    out = [p for p in paths if p.name.endswith(RECORDINGS)]
    for path in paths:
        for at, folders, names in walk(path):  # of a file: nothing
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            out += [Path(at, n) for n in sorted(names) if n.endswith(RECORDINGS) and not n.startswith(".")]
            if len(out) > MOST:
                raise InputError(f"{path}: more than {MOST} recordings below it; name the folder that holds them")
    return out


def grown(
    now: Sequence[Path], before: Sequence[Path], policy: Policy | None
) -> tuple[tuple[SharedFinding, ...], list[UnreadableFile]]:
    """Return what grew between the latest recordings of each node, and the files that could not be used.

    Counters become rates: the last values of the earlier recording are followed by the samples of the later one. A node
    with a recording in one of both places only is judged by that one.
    """
    from topocheck.checks.watch.run import judge_watch
    from topocheck.overtime.history import joined

    bad: list[UnreadableFile] = []
    new, old = _by_host(now, bad), _by_host(before, bad)
    nodes: dict[tuple[str, State, str, str, str], list[str]] = {}
    for host, history in new.items():
        whole = joined(old[host], history) if host in old else history
        for f in judge_watch(whole, policy=policy)[1]:
            if f.state in _SHOWN:
                nodes.setdefault((f.id, f.state, f.subject, f.title, f.fix or ""), []).append(host)
    found = [
        SharedFinding(id=id_, state=state.value, subject=subject, title=title, fix=fix, nodes=tuple(sorted(hosts)))
        for (id_, state, subject, title, fix), hosts in nodes.items()
    ]
    return tuple(sorted(found, key=lambda f: (f.state != "fail", f.id, f.nodes, f.subject))), bad


def with_growth(fleet: Fleet, now: Sequence[Path], before: Sequence[Path], policy: Policy | None) -> Fleet:
    """Return the result with what grew, where there are recordings."""
    files = recordings(now)
    if not files:
        return fleet
    found, bad = grown(files, recordings(before), policy)
    return replace(fleet, findings=(*fleet.findings, *found), unreadable_files=(*fleet.unreadable_files, *bad))


def _by_host(files: Sequence[Path], bad: list[UnreadableFile]) -> dict[str, History]:
    """Return host -> its latest recording."""
    from topocheck.cli.sampling import load

    out: dict[str, History] = {}
    for file in files:
        try:
            history = load(file)
        except InputError as e:
            bad.append(UnreadableFile(file=plain_text(str(file)), reason=str(e)))
            continue
        name = history.header.hostname or plain_text(file.name)
        if name not in out or out[name].header.begun_unix_s <= history.header.begun_unix_s:
            out[name] = history
    return out
