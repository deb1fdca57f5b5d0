"""Lets NCCL itself answer what topocheck predicts, on a machine with two NVIDIA GPUs.

    python benchmarks/nccl_oracle.py run OUT        needs torch with NCCL and two GPUs, and nothing else
    python benchmarks/nccl_oracle.py compare OUT    needs topocheck; reads what `run` left in OUT

`run` starts two ranks for each scenario: an all_reduce with NCCL_DEBUG=INFO, under its own deadline, all of them in
less than five minutes. Some scenarios change a setting, others hand NCCL a topology file of a machine that is not
there. To have NCCL believe such a file:

- what the file states of speeds, widths, NUMA nodes, CPU vendor and GPUs is kept; only what is absent is found out;
- invented bus ids serve as switches, and stay as plain tree nodes;
- NVLinks are looked for only where a GPU has no `nvlink` element. One that points to a GPU outside the job adds no
  link and hides the real ones (`no_nvlink`); one with a count of 0 to a switch should do the same (`count_zero`);
- GPUs keep their real bus ids, for NCCL finds its own GPU by them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

TOTAL_S = 280
EACH_S = 40
HIDE = '<nvlink target="ffff:ff:1e.0" count="1" tclass="0x030200"/>'
ZERO = '<nvlink target="ffff:ff:1e.0" count="0" tclass="0x068000"/>'
INTEL = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207"'
AMD = 'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17"'


def gpu(bus: str, dev: int, inside: str = HIDE, speed: str = "32.0 GT/s PCIe", width: int = 16) -> str:
    """The PCI element of a GPU."""
    body = f'<gpu dev="{dev}" sm="90" rank="{dev}" gdr="1">{inside}</gpu>' if inside else ""
    head = f'<pci busid="{bus}" class="0x030200" link_speed="{speed}" link_width="{width}"'
    return f"{head}>{body}</pci>" if body else f"{head}/>"


def switch(number: int, *inside: str) -> str:
    """An invented switch with what hangs below it."""
    head = f'<pci busid="ffff:ff:0{number}.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16"'
    return f"{head}>{''.join(inside)}</pci>"


def cpu(numa: int, kind: str, *inside: str) -> str:
    """A CPU node."""
    return f'<cpu numaid="{numa}" affinity="ffffffff" {kind}>{"".join(inside)}</cpu>'


def system(*cpus: str) -> str:
    """A whole file."""
    return f'<system version="1">{"".join(cpus)}</system>\n'


def scenarios(a: str, b: str) -> list[dict]:
    """Every scenario: name, settings, topology file, and whether each process sees one GPU alone."""
    two_numa = [cpu(0, INTEL, switch(1, gpu(a, 0))), cpu(1, INTEL, switch(2, gpu(b, 1)))]
    amd_numa = [cpu(0, AMD, switch(1, gpu(a, 0))), cpu(1, AMD, switch(2, gpu(b, 1)))]
    one = system(cpu(0, INTEL, switch(1, gpu(a, 0), gpu(b, 1))))
    slow = {"speed": "2.5 GT/s PCIe", "width": 1}
    files = {
        "one_switch": one,
        "two_levels": system(cpu(0, INTEL, switch(1, switch(2, gpu(a, 0)), switch(3, gpu(b, 1))))),
        "two_numa_nodes": system(*two_numa),
        "two_numa_nodes_amd": system(*amd_numa),
        "host_bridge_intel": system(cpu(0, INTEL, gpu(a, 0), gpu(b, 1))),
        "host_bridge_amd": system(cpu(0, AMD, gpu(a, 0), gpu(b, 1))),
        "slow_link": system(cpu(0, INTEL, switch(1, gpu(a, 0, **slow), gpu(b, 1, **slow)))),
        "count_zero": system(cpu(0, INTEL, switch(1, gpu(a, 0, ZERO), gpu(b, 1, ZERO)))),
        "restricted_nvlink_found": system(cpu(0, INTEL, gpu(a, 0, ""), gpu(b, 1, ""))),
    }
    plain = [
        ("default", {}),
        ("p2p_disable", {"NCCL_P2P_DISABLE": "1"}),
        ("p2p_and_shm_disable", {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}),
        ("p2p_level_loc", {"NCCL_P2P_LEVEL": "LOC"}),
        ("cumem_off", {"NCCL_CUMEM_ENABLE": "0"}),
    ]
    out = [{"name": n, "settings": s, "file": None, "alone": False} for n, s in plain]
    out.append({"name": "one_gpu_visible_each", "settings": {}, "file": None, "alone": True})
    out += [{"name": n, "settings": {}, "file": f, "alone": False} for n, f in files.items()]
    level = {"NCCL_P2P_LEVEL": "SYS"}
    out.append({"name": "two_numa_nodes_level_sys", "settings": level, "file": system(*two_numa), "alone": False})
    level = {"NCCL_P2P_LEVEL": "PIX"}
    two_levels = files["two_levels"]
    out.append({"name": "two_levels_level_pix", "settings": level, "file": two_levels, "alone": False})
    return out


def addresses() -> list[str]:
    """PCI addresses of the GPUs as torch names them."""
    import torch

    out = []
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        out.append(f"{p.pci_domain_id:04x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0")
    return out


def worker() -> None:
    """One rank: one small all_reduce."""
    import datetime

    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["ORACLE_DEVICE"]))
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=EACH_S - 10))
    tensor = torch.full((1 << 20,), float(rank + 1), device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    print(f"rank {rank}: sum {tensor[0].item()} {'right' if tensor[0].item() == 3.0 else 'WRONG'}", flush=True)
    dist.destroy_process_group()


def run_one(scenario: dict, out: Path, port: int, deadline_s: float) -> dict:
    """Run one scenario; its log goes to OUT/NAME.log, its file and NCCL's dump beside it."""
    name = scenario["name"]
    log = out / f"{name}.log"
    env = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_") or k == "NCCL_NVLS_ENABLE"}
    env.update(scenario["settings"])
    env.update(
        NCCL_DEBUG="INFO",
        NCCL_DEBUG_SUBSYS="INIT,GRAPH,ENV,NET,P2P",
        NCCL_TOPO_DUMP_FILE=str(out / f"{name}.dump.xml"),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        WORLD_SIZE="2",
    )
    if scenario["file"]:
        path = out / f"{name}.topo.xml"
        path.write_text(scenario["file"])
        env["NCCL_TOPO_FILE"] = str(path)
    begin = time.monotonic()
    with log.open("wb") as f:
        ranks = []
        for rank in range(2):
            mine = dict(env, RANK=str(rank), ORACLE_DEVICE=str(rank))
            if scenario["alone"]:
                mine.update(CUDA_VISIBLE_DEVICES=str(rank), ORACLE_DEVICE="0")
            argv = [sys.executable, os.path.abspath(__file__), "worker"]
            ranks.append(subprocess.Popen(argv, env=mine, stdout=f, stderr=subprocess.STDOUT))
        end = begin + deadline_s
        codes = []
        for p in ranks:
            try:
                codes.append(p.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                p.kill()
                codes.append("timed out")
                p.wait()
    return {"name": name, "exit": codes, "seconds": round(time.monotonic() - begin, 1)}


def run(out: Path, written: str | None) -> None:
    """Run all scenarios while the time lasts."""
    import torch

    out.mkdir(parents=True, exist_ok=True)
    gpus = addresses()
    if len(gpus) < 2:
        raise SystemExit("two GPUs are needed")
    todo = scenarios(gpus[0], gpus[1])
    if written:
        todo.append({"name": "written", "settings": {}, "file": Path(written).read_text(), "alone": False})
    begin = time.monotonic()
    results = []
    for i, scenario in enumerate(todo):
        left = TOTAL_S - (time.monotonic() - begin)
        if left < 15:
            results.append({"name": scenario["name"], "exit": "not run: out of time"})
            continue
        results.append(run_one(scenario, out, 29600 + i, min(EACH_S, left)))
        print(results[-1], flush=True)
    facts = {
        "gpus": gpus[:2],
        "names": [torch.cuda.get_device_name(i) for i in range(2)],
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "torch": torch.__version__,
        "nvls_enable": os.environ.get("NCCL_NVLS_ENABLE", ""),
        "scenarios": todo,
        "results": results,
    }
    (out / "oracle.json").write_text(json.dumps(facts, indent=1))


def compare(out: Path) -> int:
    """Predict each scenario and set it beside NCCL's log; return how many differ."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from topocheck.knowledge.nccl import parse_version
    from topocheck.nccl.logs.compare import compare as compare_log
    from topocheck.nccl.logs.reader import read_log
    from topocheck.nccl.predict.predict import predict
    from topocheck.nccl.predict.types import HostInput, RankSpec
    from topocheck.nccl.topofile.xml import parse_topology

    facts = json.loads((out / "oracle.json").read_text())
    version = parse_version(facts["nccl"]) or (0, 0, 0)
    whole = parse_topology((out / "default.dump.xml").read_bytes()).root
    wrong = 0
    print(f"NCCL {facts['nccl']}, {' and '.join(facts['names'])}\n")
    print("| scenario | NCCL: path, transport | predicted | |\n| --- | --- | --- | --- |")
    for s in facts["scenarios"]:
        log_path = out / f"{s['name']}.log"
        if not log_path.exists():
            print(f"| {s['name']} | not run | | |")
            continue
        log = read_log([log_path.read_bytes()])
        root = parse_topology(s["file"]).root if s["file"] else whole
        if s["name"] in ("restricted_nvlink_found", "written"):
            # Here NCCL fills in what the file leaves out, so its own dump is what it went by.
            dump = out / f"{s['name']}.dump.xml"
            root = parse_topology(dump.read_bytes()).root if dump.exists() else root
        ranks = tuple(
            RankSpec(rank=i, host="node", gpu=g, visible=(g,) if s["alone"] else None)
            for i, g in enumerate(facts["gpus"])
        )
        p = predict((HostInput(name="node", topology=root, settings=s["settings"], assume=True),), version, ranks)
        difference = compare_log(log, p)
        mine = p.pair(0, 1)
        seen = log.pairs.get((0, 1))
        logged = seen.main() if seen else "no transport in the log"
        kinds = {v for (a, b), v in log.path_types.items() if a != b and a.startswith("GPU") and b.startswith("GPU")}
        path_right = not kinds or kinds == {mine.routed}
        right = bool(seen) and path_right and difference.agree == difference.compared > 0
        wrong += not right
        path = "/".join(sorted(kinds)) or "?"
        state = "agrees" if right else "DIFFERS"
        print(f"| {s['name']} | {path}, {logged} | {mine.routed}, {mine.transport} | {state} |")
    return wrong


if __name__ == "__main__":
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "worker":
        worker()
    elif command == "run" and len(sys.argv) > 2:
        run(Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
    elif command == "compare" and len(sys.argv) > 2:
        raise SystemExit(1 if compare(Path(sys.argv[2])) else 0)
    else:
        raise SystemExit(__doc__)
