"""How long a PCI tree of about 1,000 functions takes to be read (from its recording) and classified.

python benchmarks/pci_tree.py [--runs 10]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))


def main() -> int:
    """Time reading and classifying; exit 1 where the best run takes a second or more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    from tests.support.snapshots import record
    from topocheck.host.base import Host, RecordedBackend
    from topocheck.pipeline import read_node
    from topocheck.probes.registry import PROBES
    from topocheck.topology.build import build

    host = Host(RecordedBackend(record("thousand_devices")), "thousand_devices")
    pci = [p for p in PROBES if p.name == "pci"]
    read, whole = [], []
    for _ in range(runs):
        began = time.perf_counter()
        node = read_node(host, pci)
        read.append(time.perf_counter() - began)
        node = read_node(host)
        began = time.perf_counter()
        topology = build(node)
        whole.append(read[-1] + time.perf_counter() - began)
    functions = len(node.pci.devices) if isinstance(node.pci.devices, tuple) else 0
    print(f"{functions} functions, {len(topology.gpus)} GPUs, {len(topology.nics)} NICs, {len(topology.paths)} paths")
    print(f"read       min {min(read) * 1e3:.0f} ms  median {sorted(read)[runs // 2] * 1e3:.0f} ms")
    print(f"classified min {min(whole) * 1e3:.0f} ms  median {sorted(whole)[runs // 2] * 1e3:.0f} ms, reading included")
    return 0 if min(whole) < 1 else 1


if __name__ == "__main__":
    sys.exit(main())
