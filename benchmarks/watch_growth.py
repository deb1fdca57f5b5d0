"""Growth, flaps and downshifts planted over time in a described machine: which are found, and what is invented.

    python benchmarks/watch_growth.py [--seeds 10] [--pairs 1000]

The recordings are made by tests/overtime/planting.py, which imports no check: eight GPUs and ten ports with healthy
jitter (load that comes and goes, clocks, traffic, corrected errors below the limits), and one fault each. A kind counts
as found where the device with the fault, and no other, has a warning or failure. The pairs are two samples each, five
seconds to a day apart, without a fault. Exits 1 where a fault is missed or one is invented.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.overtime import planting as p
from topocheck.checks.watch.run import judge_watch
from topocheck.model.base import State
from topocheck.overtime.history import History

HELD_BACK_BY_HEAT, AT_THE_POWER_CAP = 0x40, 0x4
"""Bits of nvmlClocksEventReasons (nvml.h)."""
LINK = f"{p.GPU} NVLink 3"
KINDS: dict[str, tuple[p.Plant, str]] = {
    "40 PCIe replays": (p.grow(p.is_gpu, "pcie_replays", 40), p.GPU_LABEL),
    "40 correctable AER link errors": (p.grow(p.is_function, "aer_link_errors", 40), p.GPU_LABEL),
    "1 non-fatal AER error": (p.grow(p.is_function, "aer_nonfatal", 1), p.GPU_LABEL),
    "1 fatal AER error": (p.grow(p.is_function, "aer_fatal", 1), p.GPU_LABEL),
    "PCIe falls to gen 1 under load": (p.later(p.is_function, speed_gt_s=2.5), p.GPU_LABEL),
    "PCIe at gen 4 of 5 from the start, under load": (p.always(p.is_function, speed_gt_s=16.0), p.GPU_LABEL),
    "PCIe falls to x8": (p.later(p.is_function, width_lanes=8), p.GPU_LABEL),
    "PCIe at x8 for three samples": (p.later(p.is_function, back=True, width_lanes=8), p.GPU_LABEL),
    "NIC's PCIe falls to x8": (p.later(p.is_nic, width_lanes=8), ""),
    "port falls from 400 to 200 Gb/s under traffic": (p.later(p.is_port, rate_gbit_s=200.0), p.PORT),
    "1 NVLink replay": (p.grow(p.is_link, "replay", 1), LINK),
    "60,000 NVLink CRC errors": (p.grow(p.is_link, "crc", 60_000), LINK),
    "NVLink goes down": (p.later(p.is_link, active=False), LINK),
    "NVLink goes down and comes back": (p.later(p.is_link, back=True, active=False), LINK),
    "GPU is lost": (p.later(p.is_gpu, lost=True), p.GPU_LABEL),
    "PCI function vanishes": (p.later(p.is_function, gone=True), p.GPU_LABEL),
    "RDMA port vanishes": (p.later(p.is_port, gone=True), p.PORT),
    "port goes down": (p.later(p.is_port, state="DOWN", phys_state="Polling"), p.PORT),
    "port leaves ACTIVE and comes back": (p.later(p.is_port, back=True, state="INIT"), p.PORT),
    "link_downed +1 between two samples": (p.grow(p.is_port, "link_downed", 1), p.PORT),
    "link_error_recovery +1": (p.grow(p.is_port, "link_error_recovery", 1), p.PORT),
    "400 symbol errors": (p.grow(p.is_port, "symbol_error", 400), p.PORT),
    "400 receive errors": (p.grow(p.is_port, "port_rcv_errors", 400), p.PORT),
    "40,000 discards": (p.grow(p.is_port, "port_xmit_discards", 40_000), p.PORT),
    "40,000 retransmissions": (p.grow(p.is_port, "packet_seq_err", 40_000), p.PORT),
    "hardware thermal slowdown": (p.later(p.is_gpu, clock_reasons=HELD_BACK_BY_HEAT), p.GPU_LABEL),
    "10 s of power brake between samples": (p.grow(p.is_gpu, "hw_power_brake_ns", 10_000_000_000), p.GPU_LABEL),
    "one GPU at 1200 MHz under load": (p.always(p.is_gpu, clock_sm_mhz=1200), p.GPU_LABEL),
}
HARMLESS: dict[str, p.Plant] = {
    **{
        f"all counters of a {name} begin again": p.cleared(match)
        for name, match in (("GPU", p.is_gpu), ("PCI function", p.is_function), ("port", p.is_port))
    },
    **{
        f"all counters of a {name} become unreadable": p.unreadable(match)
        for name, match in (
            ("GPU", p.is_gpu),
            ("PCI function", p.is_function),
            ("NVLink", p.is_link),
            ("port", p.is_port),
        )
    },
    "a GPU at its power cap": p.always(p.is_gpu, clock_reasons=AT_THE_POWER_CAP),
}
"""What is reported as a note at most."""


def loud(history: History) -> dict[str, set[str]]:
    """Return subject -> ids of the checks that warn, fail or cannot tell."""
    out: dict[str, set[str]] = {}
    for f in judge_watch(history)[1]:
        if f.state in (State.WARN, State.FAIL, State.UNKNOWN):
            out.setdefault(f.subject, set()).add(f.id)
    return out


def main() -> int:
    """Plant, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=1000)
    args = parser.parse_args()
    begun = time.process_time()
    nic = next(f"{d.address} {d.label}" for d in p.base()[0].devices if d.label == p.NIC)
    bad = 0
    print(f"{len(KINDS)} kinds, {args.seeds} recordings of 12 samples each\n")
    print("| planted | found | by | on other devices |\n| --- | --- | --- | --- |")
    for name, (plant, subject) in KINDS.items():
        found, others, ids = 0, 0, set[str]()
        for seed in range(args.seeds):
            seen = loud(p.recording(seed, plant=plant))
            mine = seen.pop(subject or nic, set())
            found += bool(mine)
            others += len(seen)
            ids |= mine
        bad += (args.seeds - found) + others
        print(f"| {name} | {found} of {args.seeds} | {', '.join(sorted(ids))} | {others} |", flush=True)
    print("\n| no fault | warnings and failures |\n| --- | --- |")
    for name, plant in HARMLESS.items():
        invented = sum(len(loud(p.recording(seed, plant=plant))) for seed in range(args.seeds))
        bad += invented
        print(f"| {name}, {args.seeds} recordings | {invented} |", flush=True)
    steps = (5.0, 60.0, 3600.0, 86_400.0)
    invented = sum(len(loud(p.recording(n, samples=2, step_s=steps[n % 4]))) for n in range(args.pairs))
    bad += invented
    print(f"| healthy jitter, {args.pairs} pairs of samples 5 s to a day apart | {invented} |")
    print(f"\n{time.process_time() - begun:.0f} s of CPU time")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
