"""Side by side: topocheck, and nvbandwidth and nccl-tests where their binaries are given.

    python benchmarks/bw_vs_peers.py --out FOLDER [--nvbandwidth PATH] [--nccl-tests FOLDER]

Each reference tool runs before and after ours (A-B-A) in the same session and environment. A row agrees when ours is
within the tolerance of the mean of the two reference runs, or within twice their difference where that is more. Without
the binaries ours is compared with nothing and only listed.

Writes `comparison.md` and `comparison.json` to FOLDER and prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20
COPY_TESTS = {
    "host_to_device_memcpy_ce": "h2d",
    "device_to_host_memcpy_ce": "d2h",
    "device_to_device_memcpy_write_ce": "push",
    "device_to_device_memcpy_read_ce": "pull",
    "device_to_device_bidirectional_memcpy_write_ce": "both",
    "device_local_copy": "local",
}
"""nvbandwidth test -> our row. Of a write test cell [i][j] is i to j, of a read test j to i (its kernels.cuh and
testcases_ce.cpp)."""

COLLECTIVES = {
    "all_reduce": ("all_reduce_perf", "in"),
    "all_gather": ("all_gather_perf", "in"),
    "reduce_scatter": ("reduce_scatter_perf", "in"),
}
SIZES = (1024, 64 * MIB, 256 * MIB, 1024 * MIB)


def run(argv: list[str], timeout_s: float = 300, **env: str) -> tuple[str, float]:
    """Run a program from a clean environment; return its output and the seconds it took."""
    keep = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG")
    clean = {k: v for k, v in os.environ.items() if k in keep or k.startswith(("NCCL_", "CUDA_", "TORCH_"))} | env
    begun = time.monotonic()
    out = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, env=clean, check=False)
    seconds = time.monotonic() - begun
    if out.returncode not in (0, 1) or not out.stdout:
        print(f"{' '.join(argv)}: exit {out.returncode}\n{out.stderr[-1500:]}", file=sys.stderr)
    return out.stdout, seconds


def nvbandwidth(binary: str) -> tuple[dict[str, float], float]:
    """Return row -> GB/s of one run of nvbandwidth at 512 MiB, and its wall time."""
    text, seconds = run([binary, "-t", *COPY_TESTS, "-b", "512", "-j"])
    rows: dict[str, float] = {}
    try:
        cases = json.loads(text[text.index("{") :])["nvbandwidth"]["testcases"]
    except (ValueError, KeyError):
        return rows, seconds
    for case in cases:
        kind = COPY_TESTS.get(case["name"])
        matrix = case.get("bandwidth_matrix", [])
        # The bidirectional test appends three matrices: each direction, and last the total.
        if kind == "both":
            matrix = matrix[-(len(matrix) // 3) :] if len(matrix) % 3 == 0 else matrix
        for i, cells in enumerate(matrix):
            for j, cell in enumerate(cells):
                if kind is None or cell == "N/A":
                    continue
                if kind in ("h2d", "d2h", "local"):
                    rows[f"{kind} GPU{j if len(matrix) == 1 else i}"] = float(cell)
                elif kind == "pull":
                    rows[f"{kind} GPU{j} GPU{i}"] = float(cell)
                else:
                    rows[f"{kind} GPU{i} GPU{j}"] = float(cell)
    return rows, seconds


def nccl_tests(folder: str, gpus: int) -> dict[str, float]:
    """Return row -> busbw (microseconds for 1 KiB) of one run of nccl-tests, in place, one thread a GPU."""
    rows: dict[str, float] = {}
    for name, (binary, _) in COLLECTIVES.items():
        for size in SIZES:
            graphs = ["-G", "20"] if size == 1024 else []
            argv = [f"{folder}/{binary}", "-t", str(gpus), "-g", "1", "-b", str(size), "-e", str(size), "-w", "5"]
            text, _ = run([*argv, "-n", "20", "-c", "1", *graphs])
            line = next((x.split() for x in text.splitlines() if x.split()[:1] == [str(size)]), None)
            if line is None or len(line) < 12:
                continue
            # size count type redop root | time algbw busbw wrong | time algbw busbw wrong (the second is in place)
            time_us, busbw = float(line[-4]), float(line[-2])
            rows[f"{name} {size}"] = time_us if size == 1024 else busbw
    return rows


def ours(extra: list[str]) -> tuple[dict[str, Any], float]:
    """Return the JSON document of one run of topocheck bw, and its wall time."""
    start = "from topocheck.cli.main import main; main()"
    text, seconds = run([sys.executable, "-c", start, "bw", "--format", "json", *extra])
    return (json.loads(text) if text else {"measurements": []}), seconds


def rows_of(document: dict[str, Any]) -> dict[str, float]:
    """Return our measurements under the names used here."""
    rows: dict[str, float] = {}
    for m in document["measurements"]:
        a, b = m.get("from_label", ""), m.get("to_label", "")
        if m["kind"] in ("h2d", "d2h") and m["engine"] == "driver":
            rows[f"{m['kind']} {b if m['kind'] == 'h2d' else a}"] = m["median"]
        elif m["kind"] == "local":
            rows[f"local {a}"] = m["median"]
        elif m["kind"] == "p2p" and m["peer_access"] and m["engine"] == "driver":
            rows[f"{'push' if m['issuer'] == 'source' else 'pull'} {a} {b}"] = m["median"]
        elif m["kind"] == "p2p_both":
            rows[f"both {a} {b}"] = rows[f"both {b} {a}"] = m["median"]
        elif m["kind"] == "collective" and m["in_place"]:
            small = m["size_bytes"] == 1024
            if m["mode"] == ("graph" if small else "back_to_back"):
                rows[f"{m['collective']} {m['size_bytes']}"] = m["median"] if small else m["busbw_gb_s"]
    return rows


def compare(before: dict[str, float], mine: dict[str, float], after: dict[str, float]) -> list[dict[str, Any]]:
    """Return one record per row."""
    out = []
    for name in dict.fromkeys([*before, *mine]):
        a, b, c = before.get(name), mine.get(name), after.get(name)
        record: dict[str, Any] = {"row": name, "reference": a, "ours": b, "reference_again": c}
        if a and b and c:
            mean, moved = (a + c) / 2, abs(a - c)
            allowed = 0.15 * mean if name.endswith(" 1024") else max(0.01 * mean, 2 * moved)
            record |= {"difference_percent": 100 * (b / mean - 1), "agrees": abs(b - mean) <= allowed}
        out.append(record)
    return out


def table(records: list[dict[str, Any]]) -> str:
    """Return the records as a Markdown table."""
    lines = [
        "| row | reference | ours | reference again | difference | agrees |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for r in records:
        values = ["" if r[k] is None else f"{r[k]:.2f}" for k in ("reference", "ours", "reference_again")]
        gap = f"{r['difference_percent']:+.2f} %" if "difference_percent" in r else ""
        lines.append(f"| {r['row']} | {' | '.join(values)} | {gap} | {r.get('agrees', '')} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nvbandwidth")
    parser.add_argument("--nccl-tests")
    parser.add_argument("--gpus", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {}
    a, a_s = nvbandwidth(args.nvbandwidth) if args.nvbandwidth else ({}, 0.0)
    b, b_s = ours(["--all-pairs", "--sizes", "512MiB"])
    c, _ = nvbandwidth(args.nvbandwidth) if args.nvbandwidth else ({}, 0.0)
    _, quick_s = ours(["--all-pairs", "--quick"])
    _, four_s = ours(["--all-pairs", "--quick", "--sizes", "512MiB"])
    four = list(COPY_TESTS)[:4]
    peer_s = run([args.nvbandwidth, "-t", *four, "-b", "512", "-j"])[1] if args.nvbandwidth else 0.0
    names = ["all_reduce", "all_gather", "reduce_scatter"]
    d = nccl_tests(args.nccl_tests, args.gpus) if args.nccl_tests else {}
    wanted = [x for n in names for x in ("--collective", n)]
    sizes = ["--backend", "nccl", "--ranks", str(args.gpus), "--sizes", "1K,64M,256M,1G"]
    e, _ = ours([*sizes, *wanted])
    # nccl-tests takes its buffers from ncclMemAlloc: like beside like.
    g, _ = ours([*sizes, *wanted, "--allocator", "nccl"])
    f = nccl_tests(args.nccl_tests, args.gpus) if args.nccl_tests else {}
    records = compare(a, {k: v for k, v in rows_of(b).items() if k.split()[0] not in names}, c)
    records += compare(d, rows_of(e), f)
    records += [r | {"row": f"{r['row']}, ncclMemAlloc"} for r in compare(d, rows_of(g), f)]
    result = {
        "records": records,
        "wall_s": {
            "nvbandwidth, all six tests": a_s,
            "nvbandwidth, four copy matrices": peer_s,
            "topocheck, four copy matrices at 512 MiB": four_s,
            "topocheck --quick --all-pairs": quick_s,
            "topocheck, a standard run": b_s,
        },
        "copies": b,
        "collectives": e,
        "collectives_nccl_memory": g,
    }
    (args.out / "comparison.json").write_text(json.dumps(result, indent=1))
    text = table(records) + "\n" + "\n".join(f"- {k}: {v:.2f} s" for k, v in result["wall_s"].items()) + "\n"
    (args.out / "comparison.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
