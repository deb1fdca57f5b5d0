"""`topocheck watch` as a program, on the stand-in for NVML: lines, recording, signals, exit codes."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.stubs.build import build_library
from tests.support.waiting import PATIENCE_S, until
from topocheck.overtime.record import parse, written

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library("nvml_stub.c", tmp_path_factory.mktemp("nvml"), "libnvidia-ml.so.1")


def full_samples(file: Path) -> int:
    data = file.read_bytes()
    if b"\n" not in data:
        return 0
    return sum("pcie_replays" in s.gpus[0].counters for s in parse([data], "w").samples if s.gpus)


def start(libraries: Path | None, *args: str, command: str = "watch") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if libraries is not None:
        environment["LD_LIBRARY_PATH"] = str(libraries)
    return subprocess.Popen(
        [sys.executable, "-m", "topocheck", command, *args],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def test_it_records_judges_and_ends(libraries: Path, tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl"
    p = start(libraries, "--interval", "0.2", "--for", "1s", "--record", str(file))
    out, err = p.communicate(timeout=PATIENCE_S)
    # The stand-in's GPUs are on no PCI bus of this machine, so what the policy requires is not known: 3.
    assert p.returncode == 3, err
    assert "of 2 GPUs busy" in out
    history = parse([file.read_bytes()], "w")
    assert 2 <= len(history.samples) <= 6  # 0, 0.2, ... 1.0 s; a slow machine leaves some out
    assert [g.index for g in history.samples[-1].gpus] == [0, 1]
    assert "pcie_replays" in history.samples[-1].gpus[0].counters  # the last sample is a full one


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_it_judges(libraries: Path, tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "w.jsonl"
    p = start(libraries, "--interval", "0.2", "--record", str(file), "--quiet", "--format", "json")
    # A growth needs two samples that hold the counter; a busy machine writes others in between.
    until(lambda: file.exists() and full_samples(file) >= 2)
    p.send_signal(number)
    out, err = p.communicate(timeout=PATIENCE_S)
    assert p.returncode == 3, err
    checks = {c["id"]: c["state"] for c in json.loads(out)["checks"]}
    assert checks["watch.pcie-replays"] == "ok"
    assert checks["watch.not-sampled"] == "ok"


@pytest.mark.parametrize("name", ["w.jsonl", "w.jsonl.gz"])
def test_a_recording_is_judged_and_drawn_later(libraries: Path, tmp_path: Path, name: str) -> None:
    file, page = tmp_path / name, tmp_path / "w.html"
    start(libraries, "--interval", "0.2", "--for", "0.4s", "-q", "--record", str(file)).communicate(timeout=PATIENCE_S)
    assert file.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    p = start(libraries, "--from", str(file))
    out, err = p.communicate(timeout=PATIENCE_S)
    # A recording is judged by what is in it: no probe is required, so nothing is undetermined.
    assert (p.returncode, err) == (0, "")
    assert "nothing found by" in out
    p = start(libraries, "--from", str(file), "--format", "html", "-o", str(page))
    p.communicate(timeout=PATIENCE_S)
    assert p.returncode == 0
    assert "SM clock, MHz" in page.read_text()
    p = start(libraries, "--from", str(file), "--for", "5s")
    _, err = p.communicate(timeout=PATIENCE_S)
    assert (p.returncode, "need this machine" in err) == (2, True)


@pytest.mark.parametrize("samples", [0, 1])
def test_a_recording_that_was_cut_early_is_not_healthy(libraries: Path, tmp_path: Path, samples: int) -> None:
    file = tmp_path / "w.jsonl"
    lines = gzip.decompress((ROOT / "docs/examples/watch.jsonl.gz").read_bytes()).splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: 1 + samples]) + lines[1 + samples][:20])
    out, err = start(libraries, "--from", str(file)).communicate(timeout=PATIENCE_S)
    p = start(libraries, "--from", str(file), "--format", "json")
    out_json, _ = p.communicate(timeout=PATIENCE_S)
    assert p.returncode == 3
    said = f"nothing was measured: it holds {samples} sample"
    assert said in " ".join(out.split()), err
    assert json.loads(out_json)["exit_code"] == 3


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--interval", "0"), "expected a time above 0"),
        (("--interval", "2h"), "expected 0.1 s to 1 h"),
        (("--for", "soon"), "expected a time above 0"),
        (("--interval", "10", "--for", "5s"), "expected at least the interval"),
    ],
)
def test_a_wrong_time_is_usage(args: tuple[str, ...], words: str) -> None:
    p = start(None, *args)
    _, err = p.communicate(timeout=PATIENCE_S)
    assert p.returncode == 2
    assert words in err


def test_a_recording_does_not_replace_a_file(libraries: Path, tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text("mine")
    p = start(libraries, "--for", "1s", "--record", str(file))
    _, err = p.communicate(timeout=PATIENCE_S)
    assert p.returncode == 2
    assert "is there already" in err
    assert file.read_text() == "mine"


def test_check_compares_with_a_recording(libraries: Path, tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl"
    start(libraries, "--interval", "0.2", "--for", "0.4s", "-q", "--record", str(file)).communicate(timeout=PATIENCE_S)
    # The stand-in's counters are 0 now; in the recording they stood at 70.
    recorded = parse([file.read_bytes()], "w")
    more = [replace(s, gpus=tuple(replace(g, counters={"pcie_replays": 70}) for g in s.gpus)) for s in recorded.samples]
    file.write_bytes(written(replace(recorded, samples=tuple(more))))
    args = ("--since", str(file), "--only", "watch", "--format", "json")
    out, err = start(libraries, *args, command="check").communicate(timeout=PATIENCE_S)
    found = json.loads(out)
    assert {c["id"].split(".")[0] for c in found["checks"]} == {"watch"}, err
    assert {f["id"] for f in found["findings"]} == {"watch.counters-restarted"}
    assert "pcie_replays began again" in found["findings"][0]["title"]


def test_metrics_are_written_as_a_whole(libraries: Path, tmp_path: Path) -> None:
    file = tmp_path / "topocheck.prom"
    p = start(libraries, "--interval", "0.2", "--for", "0.4s", "-q", "--prometheus", str(file))
    _, err = p.communicate(timeout=PATIENCE_S)
    first = next(x for x in file.read_text().splitlines() if x.startswith("topocheck_gpu_pcie_replays_total{"))
    assert 'bdf="0000:1a:00.0",gpu="0"' in first, err
    assert first.endswith("} 0.0")
    assert [f.name for f in tmp_path.iterdir()] == ["topocheck.prom"]


def test_check_samples_for_a_while(libraries: Path) -> None:
    p = start(libraries, "--sample", "1s", "--only", "watch", "--format", "json", command="check")
    out, err = p.communicate(timeout=PATIENCE_S)
    checks = {c["id"]: c["state"] for c in json.loads(out)["checks"]}
    assert checks["watch.pcie-replays"] == "ok", err


def test_a_snapshot_is_not_sampled(tmp_path: Path) -> None:
    p = start(None, "--sample", "5s", "--from", str(tmp_path / "x"), command="check")
    _, err = p.communicate(timeout=PATIENCE_S)
    assert (p.returncode, "need this machine" in err) == (2, True)
