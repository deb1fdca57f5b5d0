"""A week's recording of an eight-GPU node at 1 Hz: its size, and the time to write it and to read it back.

    python benchmarks/watch_week.py [--days 7] [--keep FILE] [--load 0.9] [--full-every 30]

The node is described (tests/machines, eight GPUs and ten ports); its week is made up here and imports no check: jobs of
an hour to half a day under load, breaks between them, every rate and clock jittering each second, an error now and
then. A full sample, with the counters that cost much, comes as often as watch takes one. The same samples go to a plain
and to a compressed recording. The compressed one is read back, judged and drawn, in CPU time and by the clock.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.overtime.planting import base  # noqa: E402
from topocheck.overtime.record import Writer  # noqa: E402
from topocheck.overtime.types import FunctionReading, GpuReading, PortReading, Sample  # noqa: E402


class Week:
    """Samples of a node, one a second."""

    def __init__(self, seed: int, load: float, full_every: int) -> None:
        self._full_every = full_every
        self._rng = random.Random(seed)
        self._share = load
        _, readings = base()
        self._gpus = [r for r in readings if isinstance(r, GpuReading)]
        self._ports = [r for r in readings if isinstance(r, PortReading)]
        ends = {d.address for d in base()[0].devices}
        self._ends = [r for r in readings if isinstance(r, FunctionReading) and r.address in ends]
        self._rest = [r for r in readings if not isinstance(r, GpuReading | PortReading) and r not in self._ends]
        self._sums: dict[tuple[str, str], int] = {}
        self._until, self._busy = 0, False

    def _add(self, subject: str, name: str, by: float) -> int:
        key = (subject, name)
        self._sums[key] = self._sums.get(key, 0) + int(by)
        return self._sums[key]

    def samples(self, seconds: int) -> Iterator[Sample]:
        """Yield a sample a second."""
        for n in range(seconds):
            if n >= self._until:
                self._busy = self._rng.random() < self._share
                self._until = n + self._rng.randrange(3600, 43_200)
            yield self._sample(n, full=n % self._full_every == 0)

    def _sample(self, n: int, *, full: bool) -> Sample:
        return Sample(
            at_s=float(n),
            gpus=tuple(self._gpu(r, full=full) for r in self._gpus),
            functions=tuple(self._function(r, full=full) for r in self._ends)
            + tuple(r for r in self._rest if full and isinstance(r, FunctionReading)),
            nvlinks=tuple(r for r in self._rest if full and not isinstance(r, FunctionReading)),  # type: ignore[misc]
            ports=tuple(self._port(r, full=full) for r in self._ports),
        )

    def _gpu(self, r: GpuReading, *, full: bool) -> GpuReading:
        rng, busy, a = self._rng, self._busy, r.address
        sent, received = rng.uniform(1e8, 3e8) if busy else 0, rng.uniform(1e8, 3e8) if busy else 0
        moved = (self._add(a, "t", sent), self._add(a, "r", received))
        counters: dict[str, int] = {}
        more: dict[str, Any] = {}
        if full:  # as the sampler reads it where no terminal shows it
            counters = dict(r.counters)
            counters |= {"nvlink_tx_kib": moved[0], "nvlink_rx_kib": moved[1]}
            more = {n: int(rng.uniform(1e5, 5e7)) if busy else 0 for n in ("pcie_tx_kb_s", "pcie_rx_kb_s")}
            more["pids"] = (4242,) if busy else ()
            counters["pcie_replays"] = self._add(a, "replays", rng.random() < 1e-4)
            counters["sw_power_cap_ns"] = self._add(a, "cap", rng.uniform(0, 1e9) if busy else 0)
        return GpuReading(
            address=a,
            index=r.index,
            counters=counters,
            clock_sm_mhz=15 * rng.randrange(110, 132) if busy else 345,
            clock_reasons=(0x4 if rng.random() < 0.7 else 0) if busy else 1,
            performance_state=0 if busy else 8,
            utilization_percent=rng.randrange(93, 101) if busy else 0,
            temperature_c=rng.randrange(62, 68) if busy else rng.randrange(30, 32),
            pcie_gen=5 if busy else 1,
            pcie_width_lanes=16,
            **more,
        )

    def _function(self, r: FunctionReading, *, full: bool) -> FunctionReading:
        gpu = any(g.address == r.address for g in self._gpus)
        speed = (32.0 if self._busy else 2.5) if gpu else r.speed_gt_s
        return msgspec.structs.replace(r, speed_gt_s=speed, counters=r.counters if full else {})

    def _port(self, r: PortReading, *, full: bool) -> PortReading:
        rng, busy, s = self._rng, self._busy and r.state == "ACTIVE", r.subject
        counters = {
            "port_xmit_data": self._add(s, "x", rng.uniform(1e9, 1.2e10) if busy else rng.uniform(0, 1000)),
            "port_rcv_data": self._add(s, "y", rng.uniform(1e9, 1.2e10) if busy else rng.uniform(0, 1000)),
        }
        if full:
            counters |= {k: v for k, v in r.counters.items() if k not in counters}
            for name in ("port_xmit_packets", "port_rcv_packets", "port_xmit_wait", "out_of_sequence"):
                counters[name] = self._add(s, name, rng.uniform(1e7, 1e8) if busy else rng.uniform(0, 100))
            counters["symbol_error"] = self._add(s, "symbol", rng.random() < 1e-4)
        return msgspec.structs.replace(r, counters=counters)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Write, read, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--load", type=float, default=0.9, help="share of the jobs' slots that are busy")
    parser.add_argument("--full-every", type=int, default=30, help="seconds from one full sample to the next")
    parser.add_argument("--keep", type=Path, help="keep the compressed recording as this file")
    args = parser.parse_args()
    seconds = int(args.days * 86_400)
    with tempfile.TemporaryDirectory() as folder:
        file = args.keep or Path(folder) / "week.jsonl.gz"
        plain, packed = Writer(compressed=False), Writer(compressed=True)
        sizes, spent = [0, 0], [0.0, 0.0]
        with file.open("wb") as out:
            for number, (writer, head) in enumerate(((plain, base()[0]), (packed, base()[0]))):
                data = writer.header(head)
                sizes[number] += len(data)
                if writer is packed:
                    out.write(data)
            for sample in Week(1, args.load, args.full_every).samples(seconds):
                for number, writer in enumerate((plain, packed)):
                    begun = time.process_time()
                    data = writer.sample(sample)
                    spent[number] += time.process_time() - begun
                    sizes[number] += len(data)
                    if writer is packed:
                        out.write(data)
            out.write(packed.end())
        print(f"{seconds} samples of 8 GPUs and 10 ports, {100 * args.load:.0f} % of the jobs' slots under load")
        for name, size, cpu in zip(("plain", "compressed"), sizes, spent, strict=True):
            print(f"{name}: {size / 1e6:.0f} MB, {size / seconds:.0f} bytes and {1e6 * cpu / seconds:.0f} us a sample")
        environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        for words in (("--from", str(file)), ("--from", str(file), "--format", "html", "-o", f"{folder}/page.html")):
            begun, used = time.monotonic(), _children_s()
            command = [sys.executable, "-P", "-m", "topocheck", "watch", *words]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            print(
                f"topocheck watch {' '.join(words[2:]) or '--from FILE'}: {_children_s() - used:.1f} s of CPU, "
                f"{time.monotonic() - begun:.1f} s"
            )
            print("\n".join("    " + text for text in (done.stdout + done.stderr).splitlines()[-4:]))
        page = Path(folder) / "page.html"
        if page.exists():
            print(f"page: {page.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
