"""Recordings of described machines, for tests that run commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.machines.builder import machine
from topocheck.host.base import Answer, Host, Recorder
from topocheck.host.snapshot import save
from topocheck.pipeline import read_node
from topocheck.probes.registry import PROBE_SET_VERSION


def record(name: str, /, **overrides: Any) -> dict[str, Answer]:
    """Return every question the probes ask of a described machine, with its answer."""
    recorder = Recorder(machine(name, **overrides).backend)
    read_node(Host(recorder, name))
    return recorder.answers


def write_snapshot(name: str, folder: Path, /, **overrides: Any) -> Path:
    """Write the recording of a described machine and return its path."""
    path = folder / f"{name}.snap"
    save(str(path), record(name, **overrides), probe_set=PROBE_SET_VERSION)
    return path
