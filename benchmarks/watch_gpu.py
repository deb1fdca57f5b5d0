"""`topocheck watch` on a machine with NVIDIA GPUs, next to what `bw`'s engine moved and what nvidia-smi says.

    python benchmarks/watch_gpu.py [--out FILE] [--seconds 7]

It records with `topocheck watch --interval 0.5 --record`, and meanwhile copies GPU to GPU, host to GPU and GPU to host
with the engine of `topocheck bw`, which counts every byte, and multiplies matrices where torch is installed. Then:

- bytes: the growth of NVML's counters from before to after each copy against the bytes that were copied (NVLink: within
  5 %; PCIe: the deviation is reported, as is that of nvmlDeviceGetPcieThroughput, which looks at 20 ms);
- clocks and event reasons of the samples next to `nvidia-smi -q -d PERFORMANCE,CLOCK` at the same times;
- CPU time of the sampler at 1 Hz with no GPU, one, two, ... all: the fixed part and the part of each GPU.

Reads only, apart from the copies; needs no root. Exits 1 where NVLink differs by more than 5 %, clocks or reasons
do not agree, or the cost of a node of eight GPUs is above 1 % of a core. Less than three minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # its own load is started with -P

from watch_peers import Peers, clocks_agree, compared

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[1]
PYTHON = [sys.executable, "-P"]


def environment() -> dict[str, str]:
    """Return the environment of the programs that are run: this checkout's package."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


# The load, in a process of its own.


def copy(kind: str, seconds: float, addresses: list[str]) -> dict[str, Any]:
    """Copy for some seconds with the engine of `bw`; return what was copied, and when (seconds since 1970)."""
    from topocheck.bandwidth.cases import HOST, CopyRow, Transfer
    from topocheck.tests_live.copies.driver import DriverEngine

    a, b = addresses[0], addresses[-1]
    source, destination = {"p2p": (a, b), "h2d": (HOST, a), "d2h": (a, HOST)}[kind]
    row = CopyRow(
        id=kind,
        kind=kind,  # type: ignore[arg-type]
        group="driver",
        transfers=(Transfer(source=source, destination=destination, issuer=a),),
        size_bytes=256 * MIB,
        copies=12,
        warm_ups=0,
        peer_access=True if kind == "p2p" else None,
    )
    engine = DriverEngine(peers=True)
    engine.open(tuple(addresses), lambda call: None)
    prepared: Any = engine.prepare(row, lambda call: None)
    prepared.clear()
    moved, rates, begun = 0, [], time.time()
    while time.time() - begun < seconds:
        taken = prepared.sample().seconds[0]
        rates.append(row.copies * row.size_bytes / taken / 1e9)
        moved += row.copies * row.size_bytes
    ended = time.time()
    return {
        "kind": kind,
        "begun": begun,
        "ended": ended,
        "bytes": moved,
        "gb_s": statistics.median(rates),
        "peer_access": prepared.peer_access,
        "wrong": prepared.check(),
        "notes": prepared.notes,
    }


def multiply(seconds: float) -> dict[str, Any]:
    """Multiply matrices on all GPUs for some seconds."""
    import torch

    count = torch.cuda.device_count()
    parts = [torch.randn(8192, 8192, device=f"cuda:{i}", dtype=torch.bfloat16) for i in range(count)]
    begun = time.time()
    while time.time() - begun < seconds:
        for x in parts:
            for _ in range(4):
                x @ x
        for i in range(count):
            torch.cuda.synchronize(i)
    return {"kind": "matmul", "begun": begun, "ended": time.time()}


def load(kind: str, seconds: float, addresses: list[str]) -> dict[str, Any]:
    """Run one load in a process of its own; `error` where it could not."""
    argv = [*PYTHON, str(Path(__file__).resolve()), "--load", kind, "--seconds", str(seconds), *addresses]
    try:
        done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=45, check=False)
    except subprocess.TimeoutExpired:
        return {"kind": kind, "error": "did not end within 45 s"}
    if done.returncode:
        return {"kind": kind, "error": (done.stderr.strip().splitlines() or ["?"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# What else looks at the GPUs.


class Screen(threading.Thread):
    """The other end of a pseudo-terminal; keeps what was written to it last."""

    def __init__(self, fd: int) -> None:
        super().__init__(daemon=True)
        self._fd = fd
        self._text = b""

    def run(self) -> None:
        """Read until the program is gone."""
        with contextlib.suppress(OSError):
            while data := os.read(self._fd, 1 << 16):
                self._text = (self._text + data)[-20_000:]

    def text(self) -> str:
        """Return the last lines."""
        self.join(5)
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._text.decode("utf-8", "replace"))
        return "\n".join(plain.splitlines()[-12:])


# The cost.


def cpu_s(root: int) -> float:
    """Return CPU seconds of a process and all below it, in nanoseconds (Linux Documentation/scheduler/sched-stats)."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
                tasks = Path(f"/proc/{entry}/task").glob("*/schedstat")
                used[int(entry)] = sum(int(t.read_text().split()[0]) for t in tasks) / 1e9
            except (OSError, ValueError):
                continue
    total, queue = 0.0, [root]
    while queue:
        pid = queue.pop()
        total += used.get(pid, 0.0)
        queue += [p for p, parent in parents.items() if parent == pid]
    return total


SAMPLER = """
import sys, msgspec
from topocheck.cli import common, sampling
from topocheck.monitor.plan import plan_of
from topocheck.monitor.sampler import Sampler
from topocheck.pipeline import build_report
report = build_report(common.open_host(None), None, ())
plan = plan_of(report.topology, report.node, round(sampling.FULL_S))
count = int(sys.argv[1])
plan = msgspec.structs.replace(plan, gpus=plan.gpus[:count])
if not (plan.gpus or plan.functions or plan.ports):
    print("nothing", flush=True)
    sys.exit()
sampler = Sampler(plan, 1.0)
while True:
    sampler.next()
    print("sample", flush=True)
"""


def cost(count: int, seconds: float) -> float | None:
    """Return CPU seconds per second of the sampler at 1 Hz with so many GPUs; None where there is nothing to sample."""
    process = subprocess.Popen(
        [*PYTHON, "-c", SAMPLER, str(count)], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline().strip() != "sample":
            return None
        process.stdout.readline()
        before, begun = cpu_s(process.pid), time.monotonic()
        while time.monotonic() - begun < seconds:
            process.stdout.readline()
        return (cpu_s(process.pid) - before) / (time.monotonic() - begun)
    finally:
        process.terminate()
        process.wait()


def recorded(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header and the samples, with `at` in seconds since 1970. Read by the product's own reader."""
    import msgspec

    from topocheck.overtime.record import parse

    history = parse([path.read_bytes()], str(path))
    header = msgspec.to_builtins(history.header)
    samples = [msgspec.to_builtins(s) for s in history.samples]
    for s in samples:
        s["at"] = header["begun_unix_s"] + s["at_s"]
    return header, samples


def main() -> int:
    """Run all, print the tables, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load")
    parser.add_argument("--load", choices=("p2p", "h2d", "d2h", "matmul"), help=argparse.SUPPRESS)
    parser.add_argument("addresses", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        done = multiply(args.seconds) if args.load == "matmul" else copy(args.load, args.seconds, args.addresses)
        print(json.dumps(done))
        return 0
    sys.path.insert(0, str(ROOT))
    from topocheck.cli import sampling

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "watch.jsonl"
        command = [*PYTHON, "-m", "topocheck", "watch", "--interval", "0.5", "--record", str(file)]
        # NVLink's counters are read in each sample only where a terminal shows them.
        screen, other = pty.openpty()
        watch = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=other, stderr=other)
        os.close(other)
        shown = Screen(screen)
        shown.start()
        while watch.poll() is None and (not file.exists() or file.read_bytes().count(b"\n") < 4):
            time.sleep(0.1)
        if watch.poll() is not None:
            print(shown.text())
            return 2
        addresses = [d["address"] for d in json.loads(file.read_bytes().split(b"\n")[0])["devices"] if d["is_gpu"]]
        peers = Peers()
        peers.start()
        kinds = ["p2p"] * (len(addresses) > 1) + ["h2d", "d2h", "matmul"]
        loads = {}
        for kind in kinds:
            loads[kind] = load(kind, args.seconds, addresses)
            time.sleep(2.5)
        peers.over.set()
        watch.terminate()
        watch.wait(timeout=30)
        said = shown.text()
        header, samples = recorded(file)
        size = file.stat().st_size
    rows = []
    if "p2p" in loads:
        rows.append(compared(samples, loads["p2p"], addresses[0], "nvlink_tx_kib", 1024))
        rows.append(compared(samples, loads["p2p"], addresses[-1], "nvlink_rx_kib", 1024))
    agreed = clocks_agree(samples, peers)
    counts = sorted({0, 1, len(addresses)})
    # Two periods, with one full sample each. Side by side: they use one CPU each, for milliseconds.
    with ThreadPoolExecutor(len(counts)) as pool:
        costs = dict(zip(counts, pool.map(lambda n: cost(n, 2 * sampling.FULL_S), counts), strict=True))
    bad = report(header, samples, loads, rows, agreed, costs, peers, said, size)
    print(f"{time.monotonic() - started:.0f} s in all")
    if args.out is not None:
        args.out.write_text(
            json.dumps({"loads": loads, "bytes": rows, "clocks": agreed, "cost": costs, "pcie": peers.pcie}, indent=1)
        )
    return 1 if bad else 0


def report(
    header: dict[str, Any],
    samples: list[dict[str, Any]],
    loads: dict[str, dict[str, Any]],
    rows: list[dict[str, Any]],
    agreed: list[dict[str, Any]],
    costs: dict[int, float | None],
    peers: Peers,
    said: str,
    size: int,
) -> bool:
    """Print what was found; tell whether something does not hold."""
    bad = False
    span = samples[-1]["at_s"] - samples[0]["at_s"]
    print(f"{len(samples)} samples in {span:.1f} s, {size / 1e3:.0f} kB recorded; devices:")
    for d in header["devices"]:
        print(f"  {d['address']} {d['label']} {d.get('product', '')}")
    for kind, x in loads.items():
        wrong = x.get("error") or x.get("wrong") or "; ".join(x.get("notes", ()))
        print(f"load {kind}: {x.get('gb_s', 0):.1f} GB/s{'  ' + wrong if wrong else ''}")
    print("\nbytes copied by bw's engine, and counted in the samples")
    for r in rows:
        if "missing" in r:
            print(f"  {r['address']} {r['counter']:14} {r['missing']}")
            continue
        print(
            f"  {r['address']} {r['counter']:14} copied {r['copied_bytes'] / 1e9:8.1f} GB  counted "
            f"{r['counted_bytes'] / 1e9:8.1f} GB  {r['percent']:+.2f} %;  {r['copied_gb_s']} GB/s on the device's "
            f"clock, {r['overall_gb_s']} over all, {r['watch_gb_s']} by watch"
        )
    for r in rows:
        bad |= abs(r.get("percent", 100.0)) > 5
    for kind, direction in (("h2d", "rx"), ("d2h", "tx")):
        x = loads[kind]
        seen = [
            v * 1024 / 1e9
            for at, i, name, v in peers.pcie
            if i == 0 and name == direction and x.get("begun", 1e18) + 0.5 < at < x.get("ended", 0) - 0.3
        ]
        if seen:
            middle = statistics.median(seen)
            print(
                f"  nvmlDeviceGetPcieThroughput {direction} during {kind}: median {middle:.1f} GB/s of {len(seen)} "
                f"({min(seen):.1f} to {max(seen):.1f}), {100 * (middle / x['gb_s'] - 1):+.1f} % against bw's engine"
            )
        else:
            print(f"  nvmlDeviceGetPcieThroughput {direction} during {kind}: no value {peers.why}")
    full = [s for s in samples if "pcie_replays" in s["gpus"][0].get("counters", {})] or samples
    print("\ncounters of the first GPU, first and last full sample")
    for s in (full[0], full[-1]):
        print(f"  {json.dumps(s['gpus'][0].get('counters', {}))}")
        print(f"  not read: {json.dumps(s['gpus'][0].get('missing', {}))}")
    print("\nclocks and reasons next to nvidia-smi -q -d PERFORMANCE,CLOCK")
    for a in agreed:
        print(
            f"  {a['at']:5.1f} s {a['address']} smi {a['smi_mhz']} MHz {a['smi_reasons']}; watch {a['watch_mhz'][0]}-"
            f"{a['watch_mhz'][1]} MHz {' '.join(a['watch_reasons'])}{'' if a['agree'] else '   DIFFERS'}"
        )
    differ = sum(not a["agree"] for a in agreed)
    print(f"  {len(agreed) - differ} of {len(agreed)} agree {peers.no_smi}")
    bad |= not agreed or differ > len(agreed) // 10
    print("\nCPU time at 1 Hz, all processes of the sampler")
    for n, share in costs.items():
        print(f"  {n} GPUs: " + ("nothing to sample" if share is None else f"{100 * share:.3f} % of a core"))
    # Without a GPU there is no process that asks NVML: what one more GPU takes is seen from one on.
    known = {n: c for n, c in costs.items() if c is not None and n > 0}
    if len(known) > 1:
        few, many = min(known), max(known)
        each = (known[many] - known[few]) / (many - few)
        fixed = known[few] - few * each
        print(f"  each GPU {100 * each:.3f} %, fixed {100 * fixed:.3f} %; eight GPUs {100 * (fixed + 8 * each):.3f} %")
        bad |= fixed + 8 * each > 0.01
    print(f"\nwhat watch said at its end:\n{said}")
    return bad


if __name__ == "__main__":
    raise SystemExit(main())
