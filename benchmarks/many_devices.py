"""What machines of many devices cost: CPU seconds and memory of `topocheck report --from`, and of what is read alone.

    python benchmarks/many_devices.py [--runs 5]

The machines are made up (tests/machines/many.py): GPUs with NVLink or PCIe alone, HCAs, and recordings in which a
driver or a folder names more than there can be. Each command runs in a process of its own; the minimum of its user
and system time is shown, for others on the machine only add to it. Exits 1 where 256 GPUs take BUDGET_S or more, as
text or as JSON.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.machines.many import many
from tests.support.recorder import Recorder
from topocheck.host.base import Answer, Host
from topocheck.host.recording import snapshot
from topocheck.pipeline import read_node
from topocheck.probes.registry import PROBE_SET_VERSION

BUDGET_S = 3.0
IN_BUDGET = "256 GPUs, NVLink"

MAIN = "import sys; sys.argv[0] = 'topocheck'; from topocheck.cli.main import main; main()"


def recorded(gpus: int, nics: int, *, nvlink: bool = True, others: int = 0) -> dict[str, Answer]:
    """Return the answers of a made-up machine."""
    recorder = Recorder(many(gpus, nics, nvlink=nvlink, others=others).backend)
    read_node(Host(recorder, "many"))
    return recorder.answers


def listed(gpus: int, *, counted: int | None = None) -> dict[str, Answer]:
    """Return what /sys says of some GPUs, and nothing else but how many NVML counts."""
    names = [f"{i // 32:04x}:{i % 32:02x}:00.0" for i in range(gpus)]
    out: dict[str, Answer] = {"list:/sys/bus/pci/devices": names}
    for a in names:
        path = f"/sys/bus/pci/devices/{a}"
        out |= {
            f"realpath:{path}": f"/sys/devices/pci{a[:7]}/{a}",
            f"read:{path}/class": "0x030200",
            f"read:{path}/vendor": "0x10de",
            f"read:{path}/device": "0x2330",
        }
    return out if counted is None else out | {"nvml:DeviceGetCount": counted}


def hcas(n: int) -> dict[str, Answer]:
    """Return what /sys/class/infiniband says of some HCAs, and nothing else."""
    out: dict[str, Answer] = {"list:/sys/class/infiniband": [f"mlx5_{i}" for i in range(n)]}
    for i in range(n):
        device = f"/sys/class/infiniband/mlx5_{i}"
        out |= {f"list:{device}/ports": ["1"], f"read:{device}/ports/1/state": "4: ACTIVE"}
    return out


MACHINES: dict[str, Callable[[], dict[str, Answer]]] = {
    "8 GPUs, 8 HCAs, NVLink": lambda: recorded(8, 8),
    "64 GPUs, 64 HCAs, NVLink": lambda: recorded(64, 64),
    "128 GPUs, 64 HCAs, NVLink": lambda: recorded(128, 64),
    IN_BUDGET: lambda: recorded(256, 0),
    "256 GPUs, 32 HCAs, PCIe": lambda: recorded(256, 32, nvlink=False),
    "1 GPU, 512 HCAs": lambda: recorded(1, 512),
    "1 GPU, 4000 NVMe drives": lambda: recorded(1, 1, others=4000),
    "400 GPUs in /sys alone": lambda: listed(400),
    "1000 GPUs in /sys alone": lambda: listed(1000),
    "NVML counts 256 GPUs, no more": lambda: {"nvml:DeviceGetCount": 256},
    "NVML counts 2^31 GPUs": lambda: listed(8, counted=2**31),
    "3000 HCAs": lambda: hcas(3000),
}


def costs(argv: list[str], runs: int) -> tuple[float, int]:
    """Return the least CPU seconds of some runs of a program, and the most KiB that one had in memory."""
    seconds, kib = float("inf"), 0
    for _ in range(runs):
        p = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        used = os.wait4(p.pid, 0)[2]
        p.returncode = 0
        seconds = min(seconds, used.ru_utime + used.ru_stime)
        kib = max(kib, used.ru_maxrss)
    return seconds, kib


def write(name: str, path: Path) -> None:
    """Write the recording of a machine in a process of its own, whose memory would count as that of later ones."""
    child = os.fork()
    if not child:
        snapshot.save(str(path), MACHINES[name](), probe_set=PROBE_SET_VERSION)
        os._exit(0)
    os.waitpid(child, 0)


def rows(folder: Path, runs: int) -> Iterator[tuple[str, int, float, float, int]]:
    """Yield (machine, bytes of its recording, seconds as text, seconds as JSON, KiB as JSON)."""
    for number, name in enumerate(MACHINES):
        path = folder / f"{number}.snap"
        write(name, path)
        report = [sys.executable, "-c", MAIN, "report", "--from", str(path)]
        text, _ = costs(report, runs)
        json, kib = costs([*report, "--format", "json"], runs)
        yield name, path.stat().st_size, text, json, kib


def main() -> int:
    """Print one line for each machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    print(f"{'machine':<32} {'recording':>10} {'text':>8} {'JSON':>8} {'memory':>9}")
    late = False
    with tempfile.TemporaryDirectory() as folder:
        for name, size, text, json, kib in rows(Path(folder), runs):
            print(f"{name:<32} {size >> 10:>6} KiB {text:>6.2f} s {json:>6.2f} s {kib >> 10:>5} MiB", flush=True)
            late |= name == IN_BUDGET and max(text, json) >= BUDGET_S
    return int(late)


if __name__ == "__main__":
    raise SystemExit(main())
