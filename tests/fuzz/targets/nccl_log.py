"""Logs of NCCL and torch, through `nccl log`."""

from __future__ import annotations

from random import Random

from tests.fuzz import corpus, hostile, texts
from tests.fuzz.case import Case, command

HEAD = "n1:100:101 [0] NCCL INFO "
_MESSAGES = (
    "Bootstrap: Using eth0:10.0.0.1<0>",
    "NCCL version 2.21.5+cuda12.4",
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
    "Using network IB",
    "ncclCommInitRank comm 0x55d0 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1a - Init START",
    "comm 0x55d0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "Channel 01/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA",
    "Channel 02 : 3[1b000] -> 2[1a000] via SHM/direct/direct",
    "Channel 00/24 :    0   1   2   3   4   5   6   7",
    "Ring 00 : 7 -> 0 -> 1",
    "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
    "Connected all rings",
    "24 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer",
    "P2P Chunksize set to 524288",
    "threadThresholds 8/8/64 | 16/8/64 | 512 | 512",
    "=== System : maxBw 48.0 totalBw 48.0 ===",
    "CPU/0-0 (1/1/2)",
    "GPU/0-1B000 (0)",
    "Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1",
    "0 : NET/0 GPU/0 GPU/1 NET/0",
    "NCCL_IB_HCA set by environment to mlx5_0,mlx5_1",
    "NCCL_P2P_LEVEL set by environment to SYS",
    "transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> "
    "with status=12 opcode=0 len=0 vendor err 129",
    "misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n2<1234>",
    "Call to connect returned Connection refused, retrying",
    "init.cc:1000 -> 2",
    "Could not enable P2P between dev 0(=1b000) and dev 1(=1c000)",
    "Cuda failure 'out of memory'",
    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
)
SAID = (
    *(HEAD + m for m in _MESSAGES),
    "[rank0]:[E1128 03:00:00.000000000 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for "
    " 600011 milliseconds before timing out.",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error",
    "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***",
)  # fmt: skip


def make(rng: Random) -> Case:
    data = _log(rng)
    argv = ["nccl", "log", "log", "--format", rng.choice(("text", "json"))]
    files = {"log": data}
    pick = rng.randrange(4)
    if pick < 2:
        files["in.snap"] = corpus.recording(
            rng.choice(("h100_x2_vm.snap", "h100_x2_vm", "gh200", "laptop", "gpu_lost"))
        )
        argv += ["--from", "in.snap", "--compare"] if pick else ["--from", "in.snap"]
    stdin = b""
    if rng.random() < 0.1:
        argv[2], stdin = "-", files.pop("log")
    return Case(argv=command(*argv), files=files, stdin=stdin)


def _log(rng: Random) -> bytes:
    seeds = corpus.files("*/nccl_oracle/*.log")
    pick = rng.randrange(10)
    text = rng.choice(seeds) if pick < 5 else "\n".join(rng.choice(SAID) for _ in range(rng.randint(1, 30)))
    if pick < 9:
        text = texts.lines(rng, text, 8, other=rng.choice((*seeds, "\n".join(SAID))))
        return hostile.raw(text)
    return rng.choice(
        (
            texts.broken(rng, hostile.raw(text)),
            b"\0" * (1 << 20),
            text.encode() + b"\xff" * 100,
            (HEAD + "Channel 00/0 : 0[0] -> 1[1] via " + "P2P/" * 5000 + "\n").encode(),
            hostile.raw(HEAD + hostile.text(rng) + "\n") * 200,
            b"".join(
                b"n%d:1:1 [0] NCCL INFO comm 0x%x rank %d nRanks 999999999 nNodes 99999999 localRanks 8\n" % (i, i, i)
                for i in range(500)
            ),
        )
    )
