"""Logs of what runs around NCCL: launchers, containers, UCX, NVSHMEM, PyTorch's own failures, and Xids by number.

The lines are as the programs print them (sources of the rows in nccl_causes.tsv), with names and addresses of our own.
"""

# ruff: noqa: E501 - lines as the programs print them
from __future__ import annotations

import pytest

from topocheck.nccl.logs.reader import read_text

I = "n1:10:11 [0] NCCL INFO "  # noqa: E741 - the mark of a line
W = "n1:10:11 [0] {} NCCL WARN {}\n"
CLI = "docker: Error response from daemon: OCI runtime create failed: nvidia-container-cli: "

CASES = [
    ("connect_refused", W.format("misc/socket.cc:464", "socketStartConnect: exceeded retries (20000)") + I + "init.cc:5 -> 6\n"),
    ("no_interface", W.format("bootstrap.cc:90", "no device found matching eth9, verify NCCL_OOB_NET_IFNAME") + I + "init.cc:5 -> 5\n"),
    ("uds", W.format("misc/ipcsocket.cc:80", "UDS: Sending data over socket @nccl-x failed : Connection refused (111)") + I + "proxy.cc:900 -> 2\n"),
    ("uds", W.format("proxy.cc:1100", "ncclProxyClientGetFd call to tpRank 3 handle 0x7f failed : 2") + I + "transport/p2p.cc:9 -> 2\n"),
    ("gdrcopy", W.format("misc/gdrwrap.cc:200", "gdr_pin_buffer(addr 7f00, size 65536) failed: 22") + I + "transport/net.cc:9 -> 2\n"),
    ("ibv_post", W.format("include/ibvwrap.h:70", "ibv_post_send() failed with error Invalid argument, Bad WR 0x7f, First WR 0x7f") + I + "transport/net_ib.cc:9 -> 2\n"),
    ("force_merge", W.format("graph/topo.cc:900", "TOPO/NET : Could not force merge NICs mlx5_8,mlx5_9. Please specify a valid NCCL_NET_FORCE_MERGE string.") + I + "graph/topo.cc:901 -> 5\n"),
    ("config_header", W.format("init.cc:1700", "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER") + I + "init.cc:1701 -> 4\n"),
    ("ipc_unsupported", W.format("transport/p2p.cc:275", "Cuda failure 'API call is not supported in the installed CUDA driver'") + I + "transport/p2p.cc:275 -> 1\n"),
    ("custom_all_reduce", "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:364 'invalid argument'\n"),
    ("ofi_memory", W.format("nccl_ofi_net.c:300", "NET/OFI Couldn't open an endpoint. RC: -12, Error: Cannot allocate memory") + I + "net.cc:104 -> 2\n"),
    ("cuda_unknown", "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment\n"),
    ("no_gpu", "RuntimeError: No CUDA GPUs are available\n"),
    ("driver_old", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n"),
    ("driver_mismatch", "Error 803: system has unsupported display driver / cuda driver combination\n"),
    ("torch_cpu", "AssertionError: Torch not compiled with CUDA enabled\n"),
    ("rank0_gone", "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer\n"),
    ("barrier", "RuntimeError: Rank 0 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 3.\n"),
    ("heartbeat", "[rank0]:[F ProcessGroupNCCL.cpp:1551] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n"),
    ("launcher", "ORTE was unable to reliably start one or more daemons.\n"),
    ("launcher", "PRTE has lost communication with a remote daemon.\n"),
    ("launcher", "There are not enough slots available in the system to satisfy the 16 slots\n"),
    ("killed", "[n1:12345] Signal: Segmentation fault (11)\n"),
    ("ucx_transport", "[1.1] [n1:1:0] ucp_context.c:1122 UCX  ERROR no usable transports/devices (asked rc on network:mlx5_9:1)\n"),
    ("ucx_reg", "[1.1] [n1:1:0]    ib_md.c:309  UCX  ERROR ibv_reg_mr(address=0x7f00, length=4096, access=0xf) failed: Bad address\n"),
    ("ucx_retry", "[n1:1:0:1] ib_mlx5_log.c:171  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)\n"),
    ("ucx", "[1.1] [n1:1:0] mm_posix.c:206  UCX  ERROR open(file_name=/proc/9/fd/40 flags=0x0) failed: Permission denied\n"),
    ("nvshmem", "src/host/transport/transport.cpp:nvshmemi_transport_init:275: init failed for transport: IBGDA\n"),
    ("container_versions", CLI + "initialization error: nvml error: driver/library version mismatch: unknown.\n"),
    ("container_driver", CLI + "initialization error: nvml error: driver not loaded: unknown.\n"),
    ("container_library", CLI + "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory: unknown\n"),
    ("container_device", CLI + "device error: 4: unknown device: unknown\n"),
    ("container_device", "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=4\n"),
    ("container_cgroup", CLI + "mount error: failed to add device rules: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted: unknown\n"),
    ("container_cuda", CLI + "requirement error: unsatisfied condition: cuda>=12.6, please update your driver to a newer version\n"),
    ("container_toolkit", 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n'),
    ("container", CLI + "mount error: file creation failed: /run/nvidia: read-only file system: unknown\n"),
    ("xid_bus", "RuntimeError: CUDA error: GPU is lost\nNVRM: Xid (PCI:0000:3b:00): 79, pid=9, GPU has fallen off the bus.\n"),
    ("xid_ecc", "RuntimeError: CUDA error: uncorrectable ECC error encountered\nNVRM: Xid (PCI:0000:3b:00): 94, pid=9, Contained ECC error\n"),
    ("xid_nvlink", "NVRM: Xid (PCI:0000:3b:00): 74, pid=9, NVLink: fatal error detected on link 3\nRuntimeError: CUDA error: unspecified launch failure\n"),
    ("xid_program", "NVRM: Xid (PCI:0000:3b:00): 31, pid=9, MMU Fault\nRuntimeError: CUDA error: an illegal memory access was encountered\n"),
    ("imex", W.format("transport/p2p.cc:273", "Cuda failure 101 'invalid device ordinal'")
     + W.format("mnnvl.cc:90", "MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel configuration (/dev/nvidia-caps-imex-channels).") + I + "init.cc:700 -> 1\n"),
]  # fmt: skip


@pytest.mark.parametrize(("id_", "text"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)])
def test_the_first_cause(id_: str, text: str) -> None:
    failures = read_text(text).failures
    assert failures
    assert failures[0].causes[0].id == id_, [[c.id for c in f.causes] for f in failures]


@pytest.mark.parametrize(
    "text",
    [
        "The call to cuIpcGetMemHandle failed. This means the GPU RDMA protocol\ncannot be used.\n",
        I + "NET/IB : No device found.\n" + I + "Failed to open libibverbs.so[.1]\n" + I + "Using network Socket\n",
        "[1.1] [n1:1:0] ucp_context.c:1 UCX  INFO  Version 1.17.0\n[1.1] [n1:1:0] parser.c:1 UCX  WARN  unused environment variable\n",
        "nvidia-container-cli -k -d /dev/tty info\nNVRM version: 580.95.05\n",
        W.format("ras/ras.cc:300", "Call to bind failed: Address already in use") + I + "comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1000 - Init COMPLETE\n",
        "NVSHMEM v3.2.5 nvshmemi_init done\n",
    ],
)  # fmt: skip
def test_lines_of_jobs_that_went_on(text: str) -> None:
    assert read_text(text).failures == ()


@pytest.mark.parametrize(
    ("line", "code", "cause"),
    [
        # gloo/transport/tcp/unbound_buffer.cc
        ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for "
         "recv operation to complete", "collective timeout", "gloo_timeout"),
        # NVIDIA/nccl issue 1105: torch's store before 2.0
        ("RuntimeError: Socket Timeout", "process group not formed", "store"),
        # NVIDIA/nccl issue 1664: a plugin's warning without NCCL's head
        ("NET/IBP:Got completion from peer 192.0.2.13<36315> with status=12 opcode=32698 len=32696 vendor err 129 (Send)",
         "remote error", "status12"),
        # NVSHMEM: src/mem/mem.cpp
        ("src/mem/mem.cpp:300: non-zero status: 7 nvshmem setup connections failed", "program ended", "nvshmem"),
        # ray, vLLM and DeepSpeed about a process that died
        ("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR", "program ended", "killed"),
        ("RuntimeError: Engine core initialization failed. See root cause above.", "program ended", "killed"),
        ("[ERROR] [launch.py:325:sigkill_handler] ['python', 't.py'] exits with return code = -6", "program ended", "killed"),
        # NVIDIA/nvbandwidth issue 44: no argument of NCCL's
        ("[CUDA_ERROR_INVALID_VALUE] invalid argument in expression cuMemSetAccess(p, 1, &d, 1)  on n1, rank = 3",
         "test failed", "nvbandwidth_call"),
        # vllm issue 21661: the error and the next line of NCCL in one line
        ("ERROR 11-04 RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details) n1:213:213 [1] "
         "NCCL INFO cudaDriverVersion 12080", "unhandled cuda error", "any_cuda"),
    ],
)  # fmt: skip
def test_a_line_of_a_program_that_died(line: str, code: str, cause: str) -> None:
    assert [(f.code, f.causes[0].id) for f in read_text(line + "\n").failures] == [(code, cause)]
