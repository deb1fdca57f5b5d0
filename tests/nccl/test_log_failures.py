"""Logs of jobs that died, in the wordings of versions and programs: each fails, and names what the field found.

The lines are written after public reports, with names and addresses of our own; the source of each stands with it.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nccl.test_log import TWO_RANKS, init
from topocheck.knowledge.nccl_causes import RESULTS, causes
from topocheck.nccl.logs.reader import read_log, read_text

I = "n1:10:11 [0] NCCL INFO "  # noqa: E741 - the mark of a line
W = "n1:10:11 [0] src/file.cc:10 NCCL WARN "

DIED = [
    # AI-Hypercomputer/gpu-recipes issue 5: a plugin for a newer image, named by NCCL_NET.
    pytest.param(
        I + "NET/Plugin: Plugin load returned 2 : /lib/libc.so.6: version `GLIBC_2.32' not found (required by"
        " /opt/p/libnccl-net.so) : when loading libnccl-net.so\n"
        + I + "NCCL_NET set by environment to gIB.\n"
        "n1:10:11 [0] net.cc:579 NCCL WARN Error: network gIB not found.\n" + I + "init.cc:321 -> 5\n",
        "invalid usage", ["plugin_glibc", "net_missing"], id="plugin-glibc",
    ),
    # From 2.24 on the same line is worded otherwise (src/plugin/plugin_open.cc).
    pytest.param(
        I + "NET/Plugin: libnccl-net.so: /lib/libm.so.6: version `GLIBC_2.38' not found (required by /x/libfabric.so)\n"
        + W + "Failed to initialize any NET plugin\n" + I + "plugin/net.cc:350 (ncclNetInit) -> 5\n",
        "invalid usage", ["plugin_glibc", "no_net"], id="plugin-glibc-2.30",
    ),
    # aws/aws-ofi-nccl issue 803
    pytest.param(
        I + "NET/OFI Selected Provider is tcp (found 1 nics)\n"
        "n1:10:11 [0] configure_ep:143 NCCL WARN NET/OFI Disabling shared memory failed: Protocol not available\n"
        + I + "net.cc:104 -> 3\n" + I + "init.cc:352 -> 3\n",
        "internal error", ["ofi_not_efa", "ofi_warn"], id="ofi-on-tcp",
    ),
    # microsoft/WSL issue 12467: the same words as of a full /dev/shm, and CUDA's code.
    pytest.param(
        "RuntimeError: NCCL error in: x.hpp:275, unhandled cuda error, NCCL version 2.20.5\nLast error:\n"
        "Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)\n",
        "unhandled cuda error", ["shm_cuda"], id="shm-by-cuda",
    ),
    pytest.param(
        "RuntimeError: NCCL error in: x.hpp:275, unhandled system error, NCCL version 2.20.5\nLast error:\n"
        "Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)\n",
        "unhandled system error", ["shm_segment"], id="shm-by-system",
    ),
    # pytorch/pytorch issue 152302
    pytest.param(
        "n1:10:11 [0] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'\n"
        "n1:10:11 [0] transport/shm.cc:565 NCCL WARN Cuda failure 2 'out of memory'\n"
        + I + "transport/shm.cc:493 -> 1\n",
        "unhandled cuda error", ["cumem_host_oom"], id="host-memory-by-cumem",
    ),
    # Azure/azhpc-images issue 327
    pytest.param(
        I + "NCCL_GRAPH_FILE set by environment to /opt/graph.xml\n"
        + "n1:10:11 [0] graph/search.cc:703 NCCL WARN XML Import Channel : dev 1 not found.\n" + init(0, 1, "START")
        + I + "graph/search.cc:733 -> 2\n",
        "unhandled system error", ["graph_file"], id="graph-file",
    ),
    # Wordings of completion errors: to 2.9, 2.10 to 2.19, 2.20 to 2.29, from 2.30 (src/transport/net_ib).
    pytest.param(
        W + "NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129\n" + I + "include/net.h:28 -> 2\n",
        "unhandled system error", ["status12"], id="status12-2.8",
    ),
    pytest.param(
        W + "NET/IB : Got completion from peer 192.0.2.1<5> with error 12, opcode 0, len 0, vendor err 129 (Send)\n",
        "remote error", ["status12"], id="status12-2.18",
    ),
    pytest.param(
        W + "NET/IB: Got completion from peer 192.0.2.1<5> with status=12 opcode=0 len=0 vendor err 129 (Send) hca m\n",
        "remote error", ["status12"], id="status12-2.26",
    ),
    pytest.param(
        W + "NET/IB: Got completion from peer 192.0.2.1<5> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=X(0)\n",
        "remote error", ["status12"], id="status12-2.30",
    ),
    pytest.param(
        W + "NET/IB : Got completion from peer fe80::1%ib0<5> with error 4, opcode 3, len 3, vendor err 81 (Send)\n"
        + I + "transport/net.cc:1008 -> 6\n" + I + "proxy.cc:858 -> 6 [Proxy Thread]\n",
        "remote error", ["status4"], id="status4-2.18",
    ),
    # NVIDIA/nccl issues 1524 and 1710: the two ends differ in MTU.
    pytest.param(
        "n2:1:2 [0] net_ib.cc:101 NCCL WARN NET/IB : m:1 Got async event : local access violation work queue error\n"
        + W + "NET/IB : Got completion from peer 192.0.2.1<5> with status=9 opcode=0 len=0 vendor err 138 (Send)\n"
        + I + "transport/net.cc:1137 -> 6\n",
        "remote error", ["status9", "async_access"], id="status9",
    ),
    pytest.param(
        W + "NET/IB : mlx5_0:1 async fatal event on QP (0x7f) qpn=5: local work queue catastrophic error\n",
        "remote error", ["async_fatal"], id="async-2.24",
    ),
    # Sizes that differ between ranks, in the set-up and on a socket.
    pytest.param(
        W + "Message truncated : received 256 bytes instead of 4\n" + I + "bootstrap.cc:554 -> 3\n",
        "internal error", ["truncated_bootstrap"], id="truncated-bootstrap",
    ),
    pytest.param(
        W + "NET/Socket : peer 192.0.2.4<1> message truncated : receiving 4 bytes instead of 2. If you believe ...\n",
        "invalid usage", ["truncated_socket"], id="truncated-socket",
    ),
    pytest.param(
        W + "Net : No interface found in the same subnet as remote address 192.0.2.9<27030>\n"
        + W + "Call to bind failed : Cannot assign requested address\n" + I + "bootstrap.cc:91 -> 2\n",
        "unhandled system error", ["bind", "no_subnet"], id="bind",
    ),
    # RCCL: HIP's words, and paths of its build.
    pytest.param(
        I + "RCCL version : 2.27.7-HEAD:29e1567\n"
        + "n1:10:12 [0] /app/hipify/src/transport/p2p.cc:256 NCCL WARN HIP failure 'invalid argument'\n"
        + "n1:10:12 [0] NCCL INFO /app/hipify/src/transport/p2p.cc:473 -> 1\n",
        "unhandled cuda error", ["hip_call"], id="rccl",
    ),
    # Programs.
    pytest.param(
        TWO_RANKS + "h: Test CUDA failure common.cu:395 'an illegal memory access was encountered'\n"
        " .. h pid 4100: Test failure common.cu:572\n",
        "unhandled cuda error", ["illegal_access"], id="nccl-tests-cuda",
    ),
    pytest.param(
        "[W801 ProcessGroupGloo.cpp:757] Warning: Unable to resolve hostname to a (local) address. Using the loopback"
        " address as fallback.\n"
        "RuntimeError: Gloo connectFullMesh failed with [/p/gloo/transport/tcp/pair.cc:144] timed out connecting:"
        " SO_ERROR: Connection refused, remote=[127.0.0.1]:14215\n",
        "process group not formed", ["gloo_loopback", "gloo_local", "gloo_connect"], id="gloo-loopback",
    ),
    pytest.param(
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: x,"
        " remote=[127.0.1.1]:9\n",
        "process group not formed", ["gloo_local", "gloo_connect"], id="gloo-127.0.1.1",
    ),
    pytest.param(
        "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr."
        " Unable to find address for: eth5\n",
        "process group not formed", ["gloo_interface"], id="gloo-interface",
    ),
    pytest.param(
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.\n",
        "process group not formed", ["store"], id="torch-store",
    ),
    pytest.param(
        "./all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file\n",
        "library not loaded", ["loader"], id="loader",
    ),
    pytest.param(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: n1: task 3: Out Of Memory\n",
        "program ended", ["oom_kill"], id="oom-kill",
    ),
    pytest.param(
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-29T10:20:00 DUE TO TIME LIMIT ***\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n",
        "program ended", ["time_limit"], id="time-limit",
    ),
    pytest.param(
        "E1129 api.py:869] failed (exitcode: -9) local_rank: 0 (pid: 12) of binary: /usr/bin/python3\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "  exitcode  : -9 (pid: 12)\n  traceback : Signal 9 (SIGKILL) received by PID 12\n",
        "program ended", ["sigkill"], id="sigkill",
    ),
    pytest.param(
        "mpirun noticed that process rank 3 with PID 9 on node n1 exited on signal 11 (Segmentation fault).\n",
        "program ended", ["killed"], id="signal",
    ),
    pytest.param(
        "[CUDA_ERROR_ILLEGAL_ADDRESS] an illegal memory access was encountered in expression cuStreamSynchronize(s)\n",
        "unhandled cuda error", ["illegal_access"], id="nvbandwidth",
    ),
    # NVLink seen from one end: NCCL ends in every version (src/graph/paths.cc).
    pytest.param(
        W + "Failed to find reverse path from remNode 0/1000 nlinks 4 to node 0/2000\n"
        + I + "graph/topo.cc:1200 -> 3\n",
        "internal error", ["one_sided_nvlink"], id="one-sided-nvlink",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "ids"), DIED)
def test_a_job_that_died(text: str, code: str, ids: list[str]) -> None:
    failures = read_text(text).failures
    assert failures
    assert failures[0].code == code
    assert [c.id for c in failures[0].causes] == ids
    assert "init not finished" not in {f.code for f in failures}


@pytest.mark.parametrize(("text", "code", "ids"), DIED)
@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "0: ", "2026-01-02T03:04:05Z "])
def test_what_launchers_put_before_a_line_changes_nothing(text: str, code: str, ids: list[str], prefix: str) -> None:
    failures = read_text("".join(prefix + line for line in text.splitlines(keepends=True))).failures
    assert [c.id for c in failures[0].causes] == ids


@pytest.mark.parametrize("number", sorted(RESULTS))
@pytest.mark.parametrize(
    "form", ["init.cc:1533 -> {}", "group.cc:65 -> {} [Async thread]", "/a/b/src/enqueue.cc:9 -> {}",
             "plugin/net.cc:12 (ncclNetInit) -> {}", "proxy.cc:679 -> {} (No such file or directory)"],
)  # fmt: skip
def test_a_return_code_alone_is_a_failure(number: int, form: str) -> None:
    (f,) = read_text(I + form.format(number) + "\n").failures
    assert f.code == RESULTS[number]
    assert f.causes
    assert f"return code {number}" in f.text


@pytest.mark.parametrize("text", ["init.cc:9 -> 7", "init.cc:9 -> 0", "Ring 00 : 1 -> 0 -> 1", "Tree 0 : -1 -> 0 -> 1"])
def test_what_is_no_return_code(text: str) -> None:
    assert read_text(I + text + "\n").failures == ()


def test_a_connection_that_closes_at_the_end_is_no_failure() -> None:
    # Helper threads see the other end close when a healthy job ends.
    text = (
        TWO_RANKS + "node7:101:190 [0] NCCL INFO misc/socket.cc:58 -> 6\n"
        "node7:101:190 [0] NCCL INFO misc/socket.cc:775 -> 6\nnode7:101:190 [0] NCCL INFO proxy.cc:1384 -> 6\n"
    )
    log = read_text(text)
    assert log.failures == ()
    assert any("not counted as a failure" in n for n in log.notes)


def test_the_warning_nearest_before_the_failure_ranks_first() -> None:
    early = "n1:10:11 [0] a.cc:1 NCCL WARN Cuda failure 719 'unspecified launch failure'\n"
    near = "n1:10:11 [0] a.cc:2 NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'\n"
    (f,) = read_text(early + near + I + "enqueue.cc:5 -> 1\n").failures
    assert [c.id for c in f.causes] == ["ecc", "gpu_lost"]


def test_a_warning_that_no_row_knows_is_quoted() -> None:
    (f,) = read_text(W + "Something new went wrong\n" + I + "init.cc:5 -> 3\n").failures
    assert (f.causes[0].id, f.causes[0].line, f.causes[0].text) == ("warning", 1, "Something new went wrong")


def test_rccl_by_its_name_and_its_transports() -> None:
    text = (
        I + "RCCL version : 2.27.7-HEAD:29e1567\n"
        + I + "Channel 00/0 : 1[c6000] -> 0[c1000] via P2P/IPC comm 0x95cdeb0 nRanks 02\n"
    )  # fmt: skip
    log = read_text(text)
    assert (log.library, log.versions) == ("RCCL", ["2.27.7-HEAD:29e1567"])
    assert log.pairs[(1, 0)].transports == {"P2P/IPC": 1}


def test_ids_that_rows_name_are_rows() -> None:
    ids = {r.id for r in causes() if r.pattern is not None}
    assert {x for r in causes() for x in (*r.explains, *r.instead_of)} <= ids


HEALTHY = [
    TWO_RANKS,
    TWO_RANKS + "n1:1:1 [0] a.cc:1 NCCL WARN Call to recv from 192.0.2.1<5> failed : Connection reset by peer\n",
    I + "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\n",
    I + "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such"
    " file or directory\n",
    I + "Call to connect returned Connection refused, retrying\n",
    "[W socket.cpp:426] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not"
    " supported by protocol).\n",
    "epoch 3 loss 0.12 error 0.00 grad norm 1.2\nsaved checkpoint; killed time: 0\n",
]


@pytest.mark.parametrize("text", HEALTHY)
def test_a_job_that_ended_well(text: str) -> None:
    log = read_text(text)
    assert (log.failures, log.findings) == ((), ())


LINES = sorted({line for p in DIED for line in str(p.values[0]).splitlines()} | set(TWO_RANKS.splitlines()))


@settings(max_examples=60)
@given(st.lists(st.sampled_from(LINES), max_size=12), st.integers(1, 64))
def test_any_mixture_of_lines(lines: list[str], size: int) -> None:
    """Read in pieces of any size alike, and never without a failure where a thread states a code to the program."""
    data = "".join(f"{line}\n" for line in lines).encode()
    log = read_log([data])
    assert read_log([data[i : i + size] for i in range(0, len(data), size)]) == log
    if any(
        re.search(r"(init|enqueue|group|transport/net|graph/\w+|bootstrap)\.cc:\d+ (\(\w+\) )?-> [1-6]", x)
        for x in lines
    ):
        assert log.failures
    assert all(f.causes and c.cause and c.next for f in log.failures for c in f.causes)
    assert all(0 <= c.line <= len(lines) for f in log.failures for c in f.causes)
