"""Fleets for tests and benchmarks: a few nodes are recorded and judged, their reports multiplied.

A copy of a healthy report gets identifiers, addresses and counters of its own, as another healthy node would have.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import topocheck
from tests.compare.planting import Fault, node
from tests.support.recorder import Recorder
from topocheck.host.base import Answer, Host, RecordedBackend
from topocheck.host.recording import snapshot
from topocheck.pipeline import build_report, judge, read_node
from topocheck.probes.registry import PROBE_SET_VERSION, PROBES
from topocheck.render.report_json import encode, report_document


def record(number: int, fault: Fault | None = None, seed: int = 0) -> dict[str, Answer]:
    """Return every question of the probes to node `number`, with its answer."""
    recorder = Recorder(node(number, fault, seed).backend)
    read_node(Host(recorder), PROBES)
    return recorder.answers


def write_snapshot(path: Path, answers: dict[str, Answer]) -> None:
    """Write a recording with its identifiers."""
    snapshot.save(str(path), answers, probe_set=PROBE_SET_VERSION)


def report(answers: dict[str, Answer], name: str) -> str:
    """Return the JSON report of a recording, as `topocheck report --format json` prints it."""
    return encode(report_document(build_report(Host(RecordedBackend(answers), name)), topocheck.__version__))


def direct_report(number: int, fault: Fault | None = None, seed: int = 0) -> str:
    """Return the same report without the way over a recording, which is quicker."""
    facts = read_node(Host(node(number, fault, seed).backend, "x"), PROBES)
    return encode(report_document(judge(facts), topocheck.__version__))


# The last four groups of a GID are the GUID, but for a GID that maps an IPv4 address (0000:ffff:...).
_UUID = re.compile(r"GPU-[0-9a-f]{8}")
_GUID = re.compile(r"\b(?!0000)[0-9a-f]{4}:[0-9a-f]{4}:[0-9a-f]{4}:[0-9a-f]{4}(?=\")")
_MAPPED = re.compile(r"(ffff:0a[0-9a-f]{2}:)[0-9a-f]{4}")
_COUNTER = re.compile(r'("port_(?:xmit|rcv)_data": )\d+')


def copy_of(text: str, number: int, to: int) -> str:
    """Return the report of healthy node `number` as that of healthy node `to`."""
    digits = hashlib.sha256(str(to).encode()).hexdigest()
    text = text.replace(f"node{number:05d}", f"node{to:05d}")
    text = _UUID.sub(lambda m: f"GPU-{hashlib.sha256((m[0] + digits).encode()).hexdigest()[:8]}", text)
    text = _GUID.sub(lambda m: _own(m[0], digits), text)
    host = f"{to // 250:02x}{to % 250 + 1:02x}"
    text = _MAPPED.sub(lambda m: m[1] + host, text)
    return _COUNTER.sub(lambda m: m[1] + str(int(digits[:8], 16)), text)


def _own(guid: str, digits: str) -> str:
    own = hashlib.sha256((guid + digits).encode()).hexdigest()
    return ":".join((guid[:4], *(own[i : i + 4] for i in (0, 4, 8))))
