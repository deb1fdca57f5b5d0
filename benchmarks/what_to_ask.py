"""What each command's output lets topocheck decide, alone and with others; prints a table in Markdown.

    python benchmarks/what_to_ask.py [MACHINE]

A described machine (hgx_h100_cx7) is written out as each text, by lspci and lstopo themselves where they are installed.
A check is decided where it is not unknown and applies. Each row is the output that adds most to those above it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.machines.builder import cached
from tests.readers import texts, texts_network, texts_system
from topocheck.host.base import Host, RecordedBackend
from topocheck.model.base import State, known
from topocheck.pipeline import build_report, read_node
from topocheck.readers.together import joined

UNDECIDED = (State.UNKNOWN, State.NOT_APPLICABLE)


def printed(*argv: str, **environment: str) -> str:
    """Return what a program prints."""
    env = {**os.environ, "LC_ALL": "C", **environment}
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout


def outputs(machine: str) -> dict[str, str]:
    """Return command -> output."""
    m = cached(machine)
    node = read_node(m.host())
    with tempfile.TemporaryDirectory() as folder:
        m.export(Path(folder))
        pci = ("lspci", "-O", f"sysfs.path={folder}/sys/bus/pci")
        hwloc = {"HWLOC_FSROOT": folder, "HWLOC_THISSYSTEM": "0", "HWLOC_COMPONENTS": "linux,stop"}
        out = {
            "lspci -vvv -nn -D (root)": printed(*pci, "-vvv", "-nn", "-D"),
            "lspci -nn": printed(*pci, "-nn"),
            "lspci -tv": printed(*pci, "-tv"),
            "lstopo file.xml": printed("lstopo-no-graphics", "--of", "xml", "--whole-io", **hwloc),
        }
    devices = node.pci.devices if known(node.pci.devices) else ()
    return out | {
        "nvidia-smi -q": texts.smi_query(node.nvml),
        "nvidia-smi": texts_system.smi_table(node.nvml),
        "nvidia-smi topo -m": texts_system.smi_topo(m.classes_expected()),
        "nvidia-smi topo -p2p r, w, n": "\n".join(texts_system.smi_p2p(node.nvml, k) for k in "rwn"),
        "nvidia-smi nvlink -s": texts.smi_nvlink(node.nvml),
        "nvidia-smi nvlink -R": texts_system.smi_remote(node.nvml),
        "ibstat": texts.ibstat(node.net),
        "ibv_devinfo -v": texts_network.ibv_devinfo(node.net),
        "ip addr": texts_network.ip_addr(node.net),
        "numactl -H": texts.numactl(node.numa),
        "lscpu": texts_system.lscpu(node),
        "lsmod": texts_system.lsmod(node),
        "dmesg": texts.dmesg(devices),
    }


def decided(*given: str) -> int:
    """Return how many checks these texts let topocheck decide."""
    answers = joined([(Path(f"{n}.txt"), text.encode()) for n, text in enumerate(given)])
    report = build_report(Host(RecordedBackend(answers)))
    return sum(r.state not in UNDECIDED for r in report.results)


def main() -> None:
    """Print the table."""
    every = outputs(sys.argv[1] if len(sys.argv) > 1 else "hgx_h100_cx7")
    alone = {name: decided(text) for name, text in every.items()}
    chosen: list[str] = []
    print("| output | checks decided by it alone | with those above |\n| --- | --- | --- |")
    while left := [n for n in every if n not in chosen]:
        best = max(left, key=lambda n: (decided(*(every[c] for c in (*chosen, n))), alone[n]))
        chosen.append(best)
        print(f"| `{best}` | {alone[best]} | {decided(*(every[c] for c in chosen))} |", flush=True)


if __name__ == "__main__":
    main()
