"""Recordings of described machines, as `topocheck snapshot save` would have written them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.machines.builder import machine
from tests.support.recorder import Recorder
from topocheck.host.base import Answer, Host
from topocheck.host.recording import snapshot
from topocheck.pipeline import read_node
from topocheck.probes.registry import PROBE_SET_VERSION


def record(name: str, /, **overrides: Any) -> dict[str, Answer]:
    """Return every question the probes ask of the described machine `name`, with its answer."""
    recorder = Recorder(machine(name, **overrides).backend)
    read_node(Host(recorder, name))
    return recorder.answers


def write_snapshot(path: Path, name: str, /, **overrides: Any) -> Path:
    """Record the described machine `name`, with `overrides` laid over its description, to `path`; return `path`."""
    snapshot.save(str(path), record(name, **overrides), probe_set=PROBE_SET_VERSION)
    return path
