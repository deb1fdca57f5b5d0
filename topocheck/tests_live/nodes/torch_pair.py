"""One side of one pair of nodes over torch.distributed: `python -m topocheck.tests_live.nodes.torch_pair FD`.

A fresh process for each pair and each transport, since NCCL reads its settings once.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from time import perf_counter
from typing import Any

import msgspec

from topocheck.bandwidth.stats import median, spread
from topocheck.process.parent import EventPipe, die_with_parent
from topocheck.tests_live.launch.connection import Ticket
from topocheck.tests_live.launch.rendezvous import rejoin
from topocheck.tests_live.launch.torch_store import torch_store
from topocheck.tests_live.launch.world import World

SIZE = {"gloo": 4 << 20, "nccl": 64 << 20}
PINGS = 50


class PairJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one side is reported; `rank` 0 sends first. `gpu` is torch's number of it.

    The two meet where the ranks of the job do (`world`, `ticket`), under the keys of `scope`.
    """

    backend: str
    rank: int
    world: World
    ticket: Ticket
    scope: str
    seconds: float = 1.0
    gpu: int = 0
    timeout_s: float = 30.0


def measure(torch: Any, job: PairJob) -> dict[str, Any]:
    """Join the other side and measure both directions and the latency; returns the fields of a Half."""
    dist = torch.distributed
    device = torch.device("cuda", job.gpu) if job.backend == "nccl" else torch.device("cpu")
    meeting = rejoin(job.world, job.ticket, job.timeout_s)
    dist.init_process_group(
        job.backend,
        store=torch_store(torch, meeting.scoped(job.scope), job.timeout_s),
        rank=job.rank,
        world_size=2,
        timeout=timedelta(seconds=job.timeout_s),
    )
    other = 1 - job.rank

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def carry(tensor: Any, sender: int) -> None:
        dist.send(tensor, other) if sender == job.rank else dist.recv(tensor, other)

    small = torch.ones(2, device=device)
    times = []
    for _ in range(PINGS):
        start = perf_counter()
        carry(small, 0)
        carry(small, 1)
        finish()
        times.append((perf_counter() - start) / 2 * 1e6)
    big = torch.full((SIZE[job.backend] // 4,), float(job.rank + 1), device=device)
    samples: list[float] = []
    wrong = 0
    for sender in (0, 1):
        carry(big, sender)
        finish()
        start = perf_counter()
        carry(big, sender)
        finish()
        count = torch.tensor([max(2.0, job.seconds / 5 / max(perf_counter() - start, 1e-6))], device=device)
        carry(count, sender)
        calls = min(int(count[0]), 2000)
        for _ in range(5):
            if sender != job.rank:
                big.fill_(9)
            carry(small, sender)
            finish()
            start = perf_counter()
            for _ in range(calls):
                carry(big, sender)
            finish()
            if sender != job.rank:
                samples.append(calls * SIZE[job.backend] / (perf_counter() - start) / 1e9)
                wrong += int((big != float(other + 1)).sum())
        big.fill_(float(job.rank + 1))
    out = {
        "received_gb_s": median(samples),
        "samples": samples,
        "spread": spread(samples),
        "latency_us": median(times),
    }
    if wrong:
        out = {"error": f"wrong data: {wrong} elements are not what was sent"}
    dist.destroy_process_group()
    meeting.close()
    return out


def main() -> None:
    """Read a PairJob from standard input, send one event `half` or `failed`."""
    die_with_parent()
    pipe = EventPipe(int(sys.argv[1]))
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=PairJob)
    try:
        import torch

        if job.backend == "nccl":
            torch.cuda.set_device(job.gpu)
        pipe.send("half", half=measure(torch, job))
    except Exception as e:  # noqa: BLE001 - whatever torch raises must reach the parent as words
        pipe.send("failed", reason=(str(e).splitlines() or [type(e).__name__])[0][:200])
    # Threads of torch may still use the place where the ranks meet; they must not find an interpreter that ends.
    os._exit(0)


if __name__ == "__main__":
    main()
