"""Logs of NCCL in the forms its versions print. The lines are written after the formats in NCCL's sources."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nccl import files
from topocheck.knowledge.nccl_causes import causes
from topocheck.nccl.logs.compare import compare
from topocheck.nccl.logs.reader import MAX_LINE, lines_of, read_log, read_text
from topocheck.nccl.logs.transports import take_apart
from topocheck.nccl.predict.predict import predict

HEAD = "node7:101:101 [0] NCCL INFO "

TWO_RANKS = """
node7:101:101 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.7<0>
node7:101:101 [0] NCCL INFO cudaDriverVersion 13000
node7:101:101 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
node7:102:102 [1] NCCL INFO NCCL version 2.28.9+cuda13.0
node7:101:101 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.7<0>
node7:101:101 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0> [1]eth1:10.1.0.7<0>
node7:101:101 [0] NCCL INFO Using network IB
node7:101:101 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
node7:101:101 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'
node7:101:101 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 4 busId 60 commId 0x8 - Init START
node7:102:102 [1] NCCL INFO ncclCommInitRankConfig comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 5 busId 70 commId 0x8 - Init START
node7:102:102 [1] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS
node7:101:101 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
node7:101:101 [0] NCCL INFO === System : maxBw 48.0 totalBw 48.0 ===
node7:101:101 [0] NCCL INFO CPU/0-0 (1/1/4)
node7:101:101 [0] NCCL INFO + PCI[48.0] - GPU/0-60 (0)
node7:101:101 [0] NCCL INFO ==========================================
node7:101:101 [0] NCCL INFO GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/48.0/PHB) CPU/0-0 (1/48.0/PHB) 
node7:101:101 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 20.000000/20.000000, type PHB/PIX, sameChannels 1
node7:101:101 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
node7:102:102 [1] NCCL INFO comm 0x2 rank 1 nRanks 2 nNodes 1 localRanks 2 localRank 1 MNNVL 0
node7:101:101 [0] NCCL INFO Channel 00/02 : 0 1
node7:101:101 [0] NCCL INFO Channel 01/02 : 0 1
node7:101:101 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1
node7:101:101 [0] NCCL INFO NVLS multicast support is not available on dev 0
node7:101:101 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer
node7:101:101 [0] NCCL INFO Channel 00/0 : 0[4] -> 1[5] via P2P/CUMEM
node7:102:102 [1] NCCL INFO Channel 00/0 : 1[5] -> 0[4] via P2P/CUMEM
node7:101:101 [0] NCCL INFO Channel 01/0 : 0[4] -> 1[5] via P2P/CUMEM
node7:102:102 [1] NCCL INFO Channel 01/0 : 1[5] -> 0[4] via P2P/CUMEM
node7:101:101 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
node7:101:101 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 4 busId 60 commId 0x8 - Init COMPLETE
node7:102:102 [1] NCCL INFO ncclCommInitRankConfig comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 5 busId 70 commId 0x8 - Init COMPLETE
"""  # noqa: E501, W291


def test_everything_a_current_log_says():
    log = read_text(TWO_RANKS)
    assert log.versions == ["2.28.9+cuda13.0"]
    assert log.drivers == ["13000"]
    assert log.bootstrap == ["eth0:10.0.0.7<0>"]
    assert log.networks == ["IB"]
    assert log.hcas == ["mlx5_0:1/IB", "mlx5_1:1/RoCE"]
    assert log.sockets == ["eth0:10.0.0.7<0>", "eth1:10.1.0.7<0>"]
    assert log.gdr_of_hca == {"mlx5_0": True, "mlx5_1": False}
    assert log.settings == {"NCCL_P2P_LEVEL": ["SYS"], "NCCL_NVLS_ENABLE": ["0"]}
    assert (log.nranks, log.nnodes, log.local_ranks, log.mnnvl) == (2, 1, 2, False)
    assert {r: (x.pid, x.cuda_dev, x.nvml_dev, x.bus_id) for r, x in log.ranks.items()} == {
        0: (101, 0, 4, "60"),
        1: (102, 1, 5, "70"),
    }
    assert {k: p.transports for k, p in log.pairs.items()} == {(0, 1): {"P2P/CUMEM": 2}, (1, 0): {"P2P/CUMEM": 2}}
    assert log.rings == {0: "0 1", 1: "0 1"}
    assert log.trees[0].startswith("[0] 1/-1/-1->0")
    assert log.channels == {"coll": 2, "collnet": 2, "nvls": 0, "p2p": 4}
    assert log.nvls is False
    assert (log.pxn_summary, log.gdr_summary) == (False, True)
    assert log.path_types[("GPU/0-60", "GPU/0-70")] == "PHB"
    assert log.patterns == ["Ring: 2 channels of 20.0/20.0 GB/s, PHB/PIX"]
    assert len(log.tree) == 3
    assert log.complete == 2
    assert log.comms["0x8"].completed == {0, 1}
    assert log.failures == ()
    assert log.notes == []


@pytest.mark.parametrize(
    ("line", "pair", "transport"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", (0, 1), "P2P/direct pointer"),
        ("Channel 07/1 : 3[6] -> 2[5] via P2P/CUMEM/read", (3, 2), "P2P/CUMEM/read"),
        ("Channel 00/0 : 0[0] -> 5[5] via P2P/indirect/1[1]", (0, 5), "P2P/indirect/1[1]"),
        ("Channel 00 : 0[07000] -> 1[0f000] via P2P/IPC", (0, 1), "P2P/IPC"),
        ("Channel 00/0 : 0[1a000] -> 1[1b000] via P2P/IPC/read", (0, 1), "P2P/IPC/read"),
        ("Ring 00 : 0[0] -> 1[1] via P2P/IPC", (0, 1), "P2P/IPC"),
        ("Ring 00 : 1[6000] -> 0[5000] via direct shared memory", (1, 0), "direct shared memory"),
        ("Channel 02 : 0[0] -> 1[1] via SHM/direct/direct", (0, 1), "SHM/direct/direct"),
        ("Channel 02 : 0[0] -> 1[1] via SHM/CE/direct", (0, 1), "SHM/CE/direct"),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/3(5)/GDRDMA", (7, 8), "send NET/IB/3(5)/GDRDMA"),
        ("Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA/Shared", (7, 8), "receive NET/IB/0/GDRDMA/Shared"),
        ("Channel 00 : 1[b000] -> 2[a000] [receive] via NET/Socket/0", (1, 2), "receive NET/Socket/0"),
    ],
)
def test_transport_lines_of_the_versions(line, pair, transport):
    log = read_text(HEAD + line)
    assert list(log.pairs[pair].transports) == [transport]
    assert log.cut_lines == 0


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "0: ", "2026-01-02T03:04:05Z ", "worker-0 | ", "\x1b[32m"])
def test_what_launchers_put_before_a_line(prefix):
    log = read_text(prefix + HEAD + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
    assert list(log.pairs) == [(0, 1)]


def test_transports_taken_apart():
    t = take_apart("send NET/IB/3(5)/GDRDMA/Shared")
    assert (t.kind, t.side, t.network, t.dev, t.proxy_rank, t.gdr) == ("NET", "send", "IB", 3, 5, True)
    assert take_apart("receive NET/Socket/0").gdr is False
    assert take_apart("direct shared memory").kind == "SHM"
    assert take_apart("SHM/direct").kind == "SHM"
    assert take_apart("P2P/CUMEM/read").kind == "P2P/CUMEM"
    assert take_apart("P2P/indirect/4[4]").through == 4
    assert take_apart("P2P/a new one").kind == take_apart("CollNet/4").kind == "other"


def test_the_version_line_without_a_prefix():
    assert read_text("NCCL version 2.19.4+cuda12.2\n").versions == ["2.19.4+cuda12.2"]


def test_lines_are_counted_once():
    two = HEAD + "Using network IB" + HEAD + "Using network IB"
    log = read_text(f"{two}\nno line of NCCL\n")
    assert (log.lines, log.nccl_lines) == (2, 1)


def test_two_messages_in_one_line():
    text = "node7:1:1 [0] NCCL INFO Using network IBnode7:2:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM\n"
    log = read_text(text)
    assert log.networks == ["IB"]
    assert list(log.pairs) == [(1, 0)]


def test_cut_lines_are_counted_and_passed_over():
    whole = HEAD + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    log = read_text("\n".join([whole, HEAD + "Channel 00/0 : 0[0] -> 1[1] via", HEAD + "Channel 00/0 : 0[0"]))
    assert log.pairs[(0, 1)].transports == {"P2P/CUMEM": 1}
    assert any("cut off" in n for n in log.notes) or log.cut_lines >= 1


def test_warnings_with_time_and_source():
    head = "[2026-01-02 03:04:05] node7:101:144 [3] transport/net_ib/p2p.cc:88 (ncclIbTest) NCCL WARN "
    line = head + "NET/IB: Got completion from peer 10.0.0.8<4> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=0"
    log = read_text("\n" + line + "\n" + line)
    (w,) = log.warnings.values()
    assert (w.count, w.line, w.host) == (2, 2, "node7")
    assert "status12" in log.signs


@pytest.mark.parametrize(
    ("text", "code", "sign"),
    [
        (
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error, NCCL version 2.21.5",
            "unhandled cuda error",
            None,
        ),
        ("ncclUnhandledCudaError: Call to CUDA function failed.", "unhandled cuda error", None),
        (
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
            "unhandled system error",
            None,
        ),
        ("ncclInternalError: Internal check failed.", "internal error", None),
        ("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", "invalid usage", None),
        ("ncclInvalidArgument: Invalid value for an argument.", "invalid argument", None),
        (
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "remote error",
            None,
        ),
        (
            "h: Test NCCL failure common.cu:1005 'unhandled system error (run with NCCL_DEBUG=INFO for details)'",
            "unhandled system error",
            None,
        ),
    ],
)
def test_failures_are_classified(text, code, sign):
    (f,) = read_text(text).failures
    assert f.code == code
    assert f.causes
    assert all(c.cause and c.next for c in f.causes)


def test_the_cause_of_a_failure_is_found_in_other_lines():
    text = (
        "node7:1:9 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 9637892 bytes\n"
        "RuntimeError: NCCL error: ncclSystemError: System call failed\n"
    )
    (f,) = read_text(text).failures
    assert f.causes[0].id == "shm_small"
    assert f.causes[0].line == 1
    assert "--shm-size" in f.causes[0].next


@pytest.mark.parametrize(
    ("warning", "code", "sign"),
    [
        ("Error: failed to extend /dev/shm/nccl-a to 9637892 bytes, error: No space left on device (28)",
         "unhandled system error", "shm_small"),
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "unhandled system error", "memlock"),
        ("NET/IB: Got completion from peer 10.0.0.8<4> with status=12 opcode=0", "remote error", "status12"),
        ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000", "invalid usage", "duplicate"),
        ("Cuda failure 2 'out of memory'", "unhandled cuda error", "oom"),
        # CUDA's invalid argument is not the program's: NCCL hands it on as ncclUnhandledCudaError (checks.h).
        ("Cuda failure 1 'invalid argument'", "unhandled cuda error", "cuda_call"),
        ("Cuda failure 719 'unspecified launch failure'", "unhandled cuda error", "gpu_lost"),
    ],
)  # fmt: skip
def test_a_warning_tells_of_a_failure_where_the_program_prints_no_code(warning, code, sign):
    text = "".join(f"node7:1:9 [{i}] some/file.cc:72 NCCL WARN {warning}\n" for i in range(3))
    (f,) = read_text(TWO_RANKS + text).failures
    assert (f.code, f.count, f.stated) == (code, 3, False)
    assert [c.id for c in f.causes] == [sign]


def test_a_warning_keeps_its_cause_beside_the_code_of_another_rank():
    text = (
        "node7:1:9 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 9637892 bytes\n"
        "node8:1:9 [0] misc/socket.cc:80 NCCL WARN socketProgress: Connection closed by remote peer node7<4>\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    )
    local, remote = read_text(text).failures
    assert (local.code, local.stated, [c.id for c in local.causes]) == ("unhandled system error", False, ["shm_small"])
    assert (remote.code, remote.stated, [c.id for c in remote.causes]) == ("remote error", True, ["peer_died"])


def test_a_warning_that_may_be_harmless_is_explained_and_no_failure():
    closed = "node7:1:9 [0] misc/socket.cc:80 NCCL WARN Connection closed by remote peer node8<4>\n"
    log = read_text(TWO_RANKS + closed)
    assert log.failures == ()
    assert [c.id for c in log.hints] == ["peer_died"]


def test_what_information_points_to_is_no_failure():
    log = read_text(TWO_RANKS + HEAD + "NET/IB : No device found.\n")
    assert (log.failures, log.hints) == ((), ())


INIT = "{host}:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0x1 rank {rank} nranks {n} cudaDev 0 nvmlDev 0 busId 60"


def init(rank: int, n: int, end: str, *, host: str = "a", pid: int = 1, comm: str = "0x8") -> str:
    return INIT.format(host=host, pid=pid, rank=rank, n=n) + f" commId {comm} - Init {end}\n"


def test_an_init_that_does_not_end():
    text = "".join(init(r, 4, "START", pid=r + 1) for r in (0, 1, 3)) + init(3, 4, "COMPLETE", pid=4)
    (f,) = read_text(text).failures
    assert f.code == "init not finished"
    assert f.text == "communicator 0x8: no end of init for rank 0-1 of 4; no line at all of rank 2"


def watchdog(rank: int, seq: int, op: str) -> str:
    call = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=5056, NumelOut=5056, Timeout(ms)=600000)"
    caught = "Watchdog caught collective operation timeout"
    return (
        f"[rank{rank}]:[E816 01:45:40.183009389 ProcessGroupNCCL.cpp:607] [Rank {rank}] {caught}: {call} ran for 600026"
        " milliseconds before timing out.\n"
    )


def test_a_collective_that_timed_out_names_who_waited_and_who_did_not():
    layout = HEAD + "comm 0x1 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0\n"
    text = layout + watchdog(0, 9, "ALLREDUCE") + watchdog(1, 9, "ALLREDUCE") + watchdog(3, 8, "BROADCAST")
    (f,) = read_text(text).failures
    assert (f.code, f.count, f.line) == ("collective timeout", 3, 2)
    assert f.text == (
        "waited in vain: rank 3 in BROADCAST, SeqNum 8; rank 0-1 in ALLREDUCE, SeqNum 9; rank 2 reports no timeout"
    )
    assert "flight recorder" in f.causes[0].next


def test_a_coloured_log_says_the_same():
    coloured = "".join(f"\x1b[31m{line}\x1b[0m\n" for line in TWO_RANKS.splitlines())
    assert read_text(coloured) == read_text("".join(f"{line}\n" for line in TWO_RANKS.splitlines()))


def test_communicators_of_one_job_and_of_two():
    # Ranks 0 and 1 are processes 1 and 2; a second communicator of the same processes mixes nothing.
    same = "".join(
        init(r, 2, e, pid=r + 1, comm=c) for c in ("0x8", "0x9") for e in ("START", "COMPLETE") for r in (0, 1)
    )
    assert read_text(same).notes == []
    other = "".join(init(r, 2, e, host="b", pid=r + 7, comm="0xa") for e in ("START", "COMPLETE") for r in (0, 1))
    (note,) = read_text(same + other).notes
    assert note.startswith("3 communicators")
    assert "rank 0 is process 1 of a and process 7 of b" in note


def test_an_nvlink_fault():
    text = (
        "node7:1:9 [0] graph/paths.cc:323 NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0.\n"
        "NCCL error: ncclUnhandledCudaError\n"
    )
    (f,) = read_text(text).failures
    assert (f.code, f.causes[0].id) == ("unhandled cuda error", "nvlink_p2p")


def test_a_healthy_log_has_no_failure():
    assert read_text(TWO_RANKS).failures == ()


def test_every_code_has_a_cause_of_last_resort():
    codes = {r.code for r in causes()}
    assert {r.code for r in causes() if r.pattern is None} == codes
    # NCCL's seven, an init that does not end, torch's collective that does not, and five of other programs.
    assert len(codes) == 14


def test_lines_come_from_pieces_of_any_size():
    data = b"first\r\nsecond\n\nlast"
    for size in (1, 2, 3, 7, 100):
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        assert [line for line, _ in lines_of(pieces)] == [b"first", b"second", b"", b"last"]


def test_a_line_without_end_costs_no_more_than_its_limit():
    seen = list(lines_of(b"x" * 100_000 for _ in range(50)))
    assert [(len(line), cut) for line, cut in seen] == [(MAX_LINE, True)]
    after = list(lines_of([b"x" * 100_000, b"tail\nnext\n"]))
    assert after[-1] == (b"next", False)


def test_memory_is_bounded_whatever_comes():
    log = read_log(
        f"h:1:1 [0] x.cc:1 NCCL WARN warning {i}\n{HEAD}NCCL_X{i} set by environment to {i}\n".encode()
        for i in range(3000)
    )
    assert len(log.warnings) == 1000
    assert len(log.settings) <= 1000
    assert log.notes


def test_bytes_that_are_no_text():
    log = read_log([HEAD.encode() + b"Using network \xff\xfe\n"])
    assert log.undecodable == 1
    assert any("UTF-8" in n for n in log.notes)


def test_a_log_without_nccl_says_so():
    assert any("NCCL_DEBUG=INFO" in n for n in read_text("hello\n").notes)


@pytest.mark.parametrize(
    "text",
    [
        "comm 0x1 rank 1 nranks {n} cudaDev 0 busId 60 commId 0x1 - Init START",
        "comm 0x1 rank {n} nRanks 2 nNodes 2 localRanks 1 localRank 1",
        "Channel 00/0 : 0[0] -> {n}[1] via P2P",
        "Channel {n}/02 : 0 1",
        "Ring {n} : 0 1",
        "Trees [0] ->{n}->",
        "Pattern 4, crossNic 0, nChannels {n}, bw 20/20, type A/B",
        "{n} coll channels, 2 p2p channels",
        "Channel 00/0 : 0[0] -> 1[1] via NET/Socket/{n}",
    ],
)
def test_numbers_that_are_none(text):
    # Python refuses to read more than 4300 digits as a number; a line may have 8192.
    log = read_text(HEAD + text.format(n="9" * 5000))
    compare(log, predict((files.host(files.two_gpus(files.INTEL)),), (2, 28, 9)))


@given(st.binary(max_size=300))
def test_any_bytes_are_read(data):
    read_log([data])


@settings(max_examples=60)
@given(st.integers(0, len(TWO_RANKS)), st.integers(0, len(TWO_RANKS)))
def test_any_part_of_a_log_is_read(a, b):
    read_text(TWO_RANKS[min(a, b) : max(a, b)])
