"""What `nvidia-smi topo` prints, pasted and damaged, through `report --smi-topo`."""

from __future__ import annotations

from random import Random

from tests.fuzz import corpus, hostile, texts
from tests.fuzz.case import Case, command

INVENTED = """\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\tNV4\tSYS\tPIX\tSYS\t0-31,64-95\t0\t\tN/A
GPU1\tNV4\t X \tPHB\tSYS\tSYS\tPXB\t32-63\t1\t\tN/A
GPU2\tNV4\tPHB\t X \tNODE\tPIX\tSYS\t0-31\t0\t\tN/A
GPU3\tSYS\tSYS\tNODE\t X \tSYS\tPIX\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\tPIX\tSYS\t X \tSYS
NIC1\tSYS\tPXB\tSYS\tPIX\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_0
"""


def make(rng: Random) -> Case:
    data = _matrix(rng)
    argv = ["report", "--smi-topo", "m.txt", "--format", rng.choice(("text", "json", "markdown"))]
    if rng.random() < 0.3:
        argv += ["--width", rng.choice(("1", "40", "200"))]
    if rng.random() < 0.15:
        argv[2] = "-"
        return Case(argv=command(*argv), stdin=data)
    return Case(argv=command(*argv), files={"m.txt": data})


def _matrix(rng: Random) -> bytes:
    seeds = (*corpus.files("*/topo_m*.txt"), *corpus.files("*/p2p_*.txt"), INVENTED, INVENTED)
    text = rng.choice(seeds)
    pick = rng.randrange(8)
    if pick < 6:
        return hostile.raw(texts.lines(rng, text, 6, other=rng.choice(seeds)))
    if pick == 6:
        return texts.broken(rng, text.encode())
    n = rng.choice((2, 16, 64, 300))
    names = [f"GPU{i}" if rng.random() < 0.98 else hostile.text(rng) for i in range(n)]
    rows = ["\t".join(["", *names]), *("\t".join([a, *(" X " if a == b else "NV18" for b in names)]) for a in names)]
    return hostile.raw("\n".join(rows))
