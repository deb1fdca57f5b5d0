"""Children that work, fail, crash, hang, and what the parent makes of it. The engine moves host memory for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.stubs.build import build_library, run_python
from tests.support.processes import runs
from tests.support.waiting import PATIENCE_S, until
from topocheck.bandwidth.cases import HOST, CopyRow, Transfer
from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.process.child import Child
from topocheck.tests_live.copies.supervisor import run_group, start_child

FAULTY = "tests.tests_live.faulty_child"
MIB = 1 << 20


def row(name: str, size: int = 4 * MIB, **more: object) -> CopyRow:
    t = Transfer(source=HOST, destination=HOST, issuer=HOST)
    fields = {"samples_min": 2, "samples_max": 2, "copies": 2, "warm_ups": 1, "budget_s": 0.1} | more
    return CopyRow(id=name, kind="host_memory", group="host", transfers=(t,), size_bytes=size, **fields)  # type: ignore[arg-type]


def run(*rows: CopyRow, module: str = FAULTY) -> dict[str, Measurement | NotMeasured]:
    seen: list[str] = []
    results = list(run_group("host", rows, (), listen=lambda k, r, t: seen.append(k), module=module))
    assert len({r.id for r in results}) == len(results), "each row is settled once"
    assert "row" in seen
    return {r.id: r for r in results}


def test_real_engine_measures_and_verifies() -> None:
    result = run(row("plain", 8 * MIB), module="topocheck.tests_live.copies.child")["plain"]
    assert isinstance(result, Measurement)
    assert result.verified is True
    assert result.wrong == ""
    assert len(result.samples) == 2
    assert result.bandwidth_gb_s == result.median > 0.05
    assert result.engine == "host"
    assert result.iterations == 2


def test_one_flipped_byte_is_found_and_placed() -> None:
    results = run(row("a"), row("flip"), row("b"))
    wrong = results["flip"]
    assert isinstance(wrong, Measurement)
    assert wrong.verified is False
    assert "1 of 4194304 bytes are wrong; the first at offset 3000001" in wrong.wrong
    assert all(isinstance(results[n], Measurement) and results[n].verified for n in "ab")  # type: ignore[union-attr]


class Scripted:
    """A child that says what it is told to, and nothing after that: it is silent (None ends it)."""

    pid = 1

    def __init__(self, *events: dict[str, object] | None) -> None:
        self.events = list(events)

    def send_line(self, data: bytes) -> None:
        pass

    def next_event(self, deadline: float) -> dict[str, object] | None:
        if not self.events:
            raise TimeoutError
        return self.events.pop(0)

    def wait(self, seconds: float) -> int:
        return 1

    def printed(self, limit: int) -> str:
        return ""

    def stack(self) -> str:
        return ""

    def end(self) -> bool:
        return True


@pytest.mark.parametrize("ends", [(), (None,)], ids=["silent", "ended"])
def test_a_child_that_stops_between_two_rows_loses_the_next_one_not_the_last(ends: tuple[None, ...]) -> None:
    rows = row("a"), row("b")
    (sound,) = run(row("a")).values()
    assert isinstance(sound, Measurement)
    said = {"event": "measured", "measurement": msgspec.to_builtins(sound)}
    child = Scripted({"event": "ready", "software": {}}, {"event": "row", "row": "a"}, said, *ends)
    results = list(run_group("host", rows, (), listen=lambda k, r, t: None, child=child, module=FAULTY))  # type: ignore[arg-type]
    assert [type(r) for r in results] == [Measurement, NotMeasured]
    assert [r.id for r in results] == ["a", "b"]
    # All rows are there: what the child does afterwards takes nothing away.
    child = Scripted({"event": "ready", "software": {}}, {"event": "row", "row": "a"}, said, *ends)
    results = list(run_group("host", rows[:1], (), listen=lambda k, r, t: None, child=child, module=FAULTY))  # type: ignore[arg-type]
    assert results == [sound]


def test_a_row_that_raises_loses_only_itself() -> None:
    results = run(row("raise"), row("refuse"), row("after"))
    assert isinstance(results["raise"], NotMeasured)
    assert "cuMemAlloc said no" in results["raise"].reason
    assert results["raise"].required
    refused = results["refuse"]
    assert isinstance(refused, NotMeasured)
    assert refused.reason == "this device cannot"
    assert not refused.required
    assert isinstance(results["after"], Measurement)


def test_a_crash_loses_only_its_row_and_names_the_signal() -> None:
    results = run(row("before"), row("crash"), row("after"))
    crashed = results["crash"]
    assert isinstance(crashed, NotMeasured)
    assert "SIGABRT" in crashed.reason
    assert crashed.required
    assert isinstance(results["before"], Measurement)
    assert isinstance(results["after"], Measurement)


@pytest.mark.slow
def test_a_hang_ends_and_names_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "topocheck.tests_live.copies.supervisor.row_deadline_s", lambda r: 10.0 if "hang" in r.id else PATIENCE_S
    )
    results = run(row("hang"), row("after"))
    hung = results["hang"]
    assert isinstance(hung, NotMeasured)
    assert "hung in sample 1" in hung.reason
    assert hung.required
    assert "faulty_child.py" in hung.next_step
    # The rows after it move host memory only, which no device's hang spoils.
    assert isinstance(results["after"], Measurement)


def test_a_stopped_child_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    child = start_child("host", FAULTY)
    os.kill(child.pid, signal.SIGSTOP)
    listen = lambda *a: None  # noqa: E731
    results = list(run_group("host", (row("x"),), (), listen=listen, child=child, module=FAULTY, start_deadline_s=1.0))
    assert isinstance(results[0], NotMeasured)
    assert "start of the host engine did not come back" in results[0].reason
    assert child.wait(0) is not None


def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys,time\n"
        "from topocheck.tests_live.copies.supervisor import start_child\n"
        "c = start_child('host'); print(c.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not runs(pid), "the child outlived its parent")


def test_events_that_come_in_pieces_are_joined() -> None:
    code = (
        "import os,sys,time\n"
        "w = lambda b: (os.write(int(sys.argv[1]), b), time.sleep(.05))\n"
        "w(b'{\"a\"'); w(b':1}\\n{\"a\":2}\\n')\n"
    )
    p = Child([sys.executable, "-c", code, "{fd}"])
    try:
        assert [p.next_event(time.monotonic() + PATIENCE_S) for _ in range(3)] == [{"a": 1}, {"a": 2}, None]
    finally:
        assert p.end()


def test_what_has_come_is_taken_though_no_time_is_left() -> None:
    """The watch looks in between two rows and must not wait, nor miss what already lies in the pipe."""
    code = 'import os,sys,time; os.write(int(sys.argv[1]), b\'{"a":1}\\n{"a":2}\\n\'); time.sleep(60)'
    p = Child([sys.executable, "-c", code, "{fd}"])
    try:
        assert p.next_event(time.monotonic() + PATIENCE_S) == {"a": 1}
        assert p.next_event(time.monotonic() - 1) == {"a": 2}
        with pytest.raises(TimeoutError):
            p.next_event(time.monotonic() - 1)
    finally:
        assert p.end()


def test_watch_takes_the_looks_of_its_child(tmp_path: Path) -> None:
    """A real watch on the stand-in for NVML: its looks arrive in the parent, with the GPU's address."""
    code = (
        "import time\n"
        "from topocheck.tests_live.disturbance import Watch, device_states\n"
        "devices = {0: '0000:18:00.0'}\n"
        "w = Watch(devices)\n"
        "end = time.monotonic() + 600\n"
        "while len(w.looks) < 3 and time.monotonic() < end:\n"
        "    time.sleep(0.05); w.collect()\n"
        "w.close()\n"
        "print(len(w.looks) >= 3, device_states(w.looks, devices, {})[0].samples >= 3)\n"
    )
    libraries = build_library("nvml_stub.c", tmp_path, "libnvidia-ml.so.1")
    said = run_python(code, libraries=libraries)
    assert said.stdout.split() == ["True", "True"], said.stderr
