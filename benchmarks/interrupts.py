"""Interrupt a command at every moment of its first second, and look how it ends.

    python benchmarks/interrupts.py [--runs 500] [--step-ms 2] [--signal SIGINT] [-- report]

A clean end is one by the signal itself, one with 128 + its number, or the command's own when it was done before; with
nothing of Python's on standard error and no process left. Python's own start, before it has run a line of topocheck,
is counted apart: an interrupt then is Python's to take, and it may print it. Exits 1 where an end was not clean.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARKER = "TOPOCHECK_BENCHMARK"
PACKAGE = str(Path(__file__).resolve().parents[1] / "topocheck")
COMMAND = [sys.executable, "-P", "-c", "from topocheck.cli.main import main; main()"]
GONE_S = 10.0


def left(marker: str) -> list[str]:
    """Return the processes that carry the marker, once those that are ending have had a moment to end."""
    end = time.monotonic() + GONE_S
    while found := [p for p in os.listdir("/proc") if p.isdecimal() and _carries(p, marker)]:
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return found


def _carries(pid: str, marker: str) -> bool:
    try:
        return f"{MARKER}={marker}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def end_of(words: list[str], after_s: float, number: signal.Signals) -> tuple[str, str]:
    """Run the command, send the signal after some time, and return what sort of end it was, and what it printed."""
    marker = uuid.uuid4().hex
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, MARKER: marker, "PYTHONPATH": str(Path(PACKAGE).parent)},
        cwd="/",
    )
    time.sleep(after_s)
    process.send_signal(number)
    error = process.communicate()[1].decode(errors="replace")
    if pids := left(marker):
        return "processes left", f"{' '.join(pids)}\n{error}"
    code = process.returncode
    if "Traceback" in error or "Fatal Python error" in error or "KeyboardInterrupt" in error:
        return ("unclean" if PACKAGE in error else "Python's own start"), error
    if code == -number:
        return "ended by the signal", ""
    if code in (128 + number, 130):
        return "ended with 128 + the signal", ""
    return ("done before" if code == 0 else "unclean"), f"status {code}\n{error}"


def main() -> None:
    """Run the command `--runs` times and print how often it ended how."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--signal", default="SIGINT")
    parser.add_argument("words", nargs="*", default=["report"])
    options = parser.parse_args()
    ends: collections.Counter[str] = collections.Counter()
    for i in range(options.runs):
        moment = (i + 1) * options.step_ms / 1000
        end, error = end_of(options.words, moment, signal.Signals[options.signal])
        ends[end] += 1
        if end in ("unclean", "processes left"):
            print(f"--- {moment * 1000:g} ms: {end}\n{error}", flush=True)
    print(f"{options.signal}, {' '.join(options.words)}: " + ", ".join(f"{n} {end}" for end, n in ends.most_common()))
    raise SystemExit(1 if ends["unclean"] or ends["processes left"] else 0)


if __name__ == "__main__":
    main()
