"""What a log shows of a job that may have gone on."""

from __future__ import annotations

import pytest

from tests.nccl import files
from tests.nccl.test_log import HEAD, TWO_RANKS, init
from topocheck.nccl.logs.build_note import build_findings
from topocheck.nccl.logs.reader import read_text


def found(text: str) -> dict[str, str]:
    return {f.id: f.state for f in read_text(text).findings}


def ranks(nodes: int, *hosts: str) -> str:
    lines = [init(r, len(hosts), "COMPLETE", host=h, pid=r + 1) for r, h in enumerate(hosts)]
    layout = (
        f"{hosts[0]}:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks {len(hosts)} nNodes {nodes} localRanks 1 localRank 0\n"
    )
    return "".join(lines) + layout


NVML = "n1:1:1 [0] misc/nvmlwrap.cc:181 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found\n"


def test_one_gpu_for_each_task() -> None:
    # NVIDIA/nccl issue 1066
    text = ranks(1, "n1", "n1") + NVML + HEAD + "Channel 00 : 0[31000] -> 1[32000] via SHM/direct/direct\n"
    (f,) = read_text(text).findings
    assert (f.id, f.state) == ("one-gpu-per-task", "warn")
    assert "SHM is used instead" in f.title
    assert "rank 0 -> 1 via SHM/direct/direct" in f.evidence
    assert "--gpus-per-node" in f.fix
    assert found(NVML) == {"one-gpu-per-task": "warn"}


def test_the_network_inside_a_node() -> None:
    way = HEAD + "Channel 00/0 : 0[0] -> 1[1] [send] via NET/{}\n"
    assert found(ranks(1, "n1", "n1") + way.format("Socket/0")) == {"network-inside-node": "warn"}
    assert found(ranks(2, "n1", "n2") + way.format("IB/0/GDRDMA")) == {}
    # Up to 2.21 NCCL takes a NIC that is faster than the path between the GPUs (src/graph/paths.cc, ncclTopoCheckNet).
    old = HEAD + "NCCL version 2.20.5+cuda12.4\n"
    assert found(old + ranks(1, "n1", "n1") + way.format("IB/0/GDRDMA")) == {"network-inside-node": "note"}
    # Threads of one process are distinguished by their process.
    same = init(0, 2, "COMPLETE") + init(1, 2, "COMPLETE")
    assert found(same + way.format("Socket/0")) == {}


def test_two_networks_in_one_job() -> None:
    text = "n1:1:1 [0] NCCL INFO Using network AWS Libfabric\nn2:1:1 [0] NCCL INFO Using network Socket\n"
    (f,) = read_text(text).findings
    assert (f.id, f.state) == ("networks-differ", "warn")
    assert "AWS Libfabric on n1" in f.evidence
    assert "Socket on n2" in f.evidence
    assert found(text.replace("Socket", "AWS Libfabric")) == {}
    # From 2.28 on the line is worded otherwise.
    assert "networks-differ" in found(text.replace("Using network AWS Libfabric", "Assigned NET plugin IB to comm"))


GLIBC = HEAD + "NET/Plugin: libnccl-net.so: libc.so.6: version `GLIBC_2.34' not found (required by libnccl-net.so)\n"


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        (GLIBC, "GLIBC"),
        (HEAD + "NET/Plugin: Plugin load returned 2 : libfabric.so.1: cannot open shared object file: No such file or"
         " directory : when loading libnccl-net.so\n", "LD_LIBRARY_PATH"),
        (HEAD + "NET/Plugin: libnccl-net.so: /x/libnccl-net.so: undefined symbol: fi_x\n", "matching versions"),
    ],
)  # fmt: skip
def test_a_plugin_that_did_not_load_and_the_job_went_on(line: str, fix: str) -> None:
    (f,) = read_text(line + HEAD + "Using network IB\n").findings
    assert (f.id, f.state) == ("plugin-not-loaded", "warn")
    assert "NCCL uses IB" in f.title
    assert fix in f.fix
    assert found(line + HEAD + "Using network AWS Libfabric\n") == {}


def test_a_plugin_that_was_asked_for_and_not_found() -> None:
    lost = HEAD + "NET/Plugin: Could not find: aws-ofi libnccl-net-aws-ofi.so. Using internal network plugin.\n"
    asked = HEAD + "NCCL_NET_PLUGIN set by environment to aws-ofi\n"
    assert found(asked + lost + HEAD + "Using network IB\n") == {"plugin-not-loaded": "warn"}
    assert found(lost + HEAD + "Using network IB\n") == {}
    assert found(asked.replace("aws-ofi", "none") + lost) == {}


def test_sockets_between_nodes() -> None:
    text = ranks(2, "n1", "n2") + HEAD + "NET/IB : No device found.\n" + HEAD + "Using network Socket\n"
    assert found(text) == {"sockets": "note"}
    assert found(text + HEAD + "NCCL_IB_HCA set by environment to mlx5_0\n") == {"sockets": "warn"}
    off = (
        text + HEAD + "NCCL_IB_HCA set by environment to mlx5_0\n" + HEAD + "NCCL_IB_DISABLE set by environment to 1\n"
    )
    assert found(off) == {"sockets": "note"}
    assert found(text.replace("nNodes 2", "nNodes 1").replace("n2:", "n1:")) == {}


def test_another_provider_than_efa() -> None:
    text = (
        HEAD + "NET/OFI Selected provider is {}, fabric is x (found 4 nics)\n" + HEAD + "Using network AWS Libfabric\n"
    )
    assert found(text.format("tcp")) == {"not-efa": "warn"}
    assert found(text.format("efa")) == {}


TREE = """{h}=== System : maxBw 48.0 totalBw 370.8 ===
{h}CPU/0-0 (1/2/-1)
{h}+ PCI[{a}] - PCI/0-65000 (104c823200000000)
{h}             + PCI[{b}] - NIC/0-67000
{h}                           + NET[50.0] - NET/0-c (0/1/1/50.000000)
{h}             + PCI[48.0] - GPU/0-68000 (8)
{h}==========================================
"""


def test_a_link_that_an_emulated_switch_makes_narrow() -> None:
    # nccl-tests issue 256: 2.5 GT/s x1 is 0.2 GB/s by NCCL's constants.
    (f,) = read_text(TREE.format(h=HEAD, a="0.2", b="48.0")).findings
    assert (f.id, f.state) == ("narrow-link", "warn")
    assert "PCI/0-65000" in f.title
    assert "NCCL_TOPO_FILE" in f.fix
    assert found(TREE.format(h=HEAD, a="48.0", b="0.2")) == {"narrow-link": "warn"}
    assert found(TREE.format(h=HEAD, a="12.0", b="24.0")) == {}


def test_code_for_the_gpu_that_a_build_cannot_hold() -> None:
    # Native code for sm_120 came with CUDA 12.8 (its release notes); the field's case was 2.26.2+cuda12.2.
    gpus = [files.host(files.system(files.cpu(0, files.INTEL, files.gpu("0000:01:00.0", 0, 120))))]
    log = read_text(TWO_RANKS.replace("2.28.9+cuda13.0", "2.26.2+cuda12.2"))
    (f,) = build_findings(log, gpus)
    assert (f.state, f.id) == ("note", "build-without-native-code")
    assert "sm_120" in f.title
    assert "12.8" in f.fix
    assert build_findings(read_text(TWO_RANKS), gpus) == ()


P2P_OFF = (
    "P2P is disabled between {}connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1."
)


@pytest.mark.parametrize("level", ["INFO", "WARN"])
@pytest.mark.parametrize("kind", ["", "NVLINK "])
def test_p2p_that_nvml_does_not_permit(level: str, kind: str) -> None:
    # NCCL's src/graph/paths.cc, ncclTopoCheckP2p
    text = f"n1:1:1 [0] NCCL {level} {P2P_OFF.format(kind)}\n"
    (f,) = read_text(text).findings
    assert (f.id, f.state, f.line) == ("p2p-disabled", "warn", 1)
    assert found("n1:1:1 [0] NCCL INFO P2P Chunksize set to 131072\n") == {}


def test_rdma_that_a_setting_turns_off() -> None:
    line = "n1:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to {}.\n"
    assert found(ranks(1, "n1", "n1") + line.format(1)) == {"ib-disabled": "note"}
    assert found(ranks(1, "n1", "n1") + line.format(0)) == {}
    sockets = "n1:1:1 [0] NCCL INFO Using network Socket\n"
    assert "ib-disabled" not in found(ranks(2, "n1", "n2") + sockets + line.format(1))


def test_a_warning_without_a_reason_has_no_two_causes_that_contradict() -> None:
    line = "n1:1:1 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a (size 96)\n"
    assert [h.id for h in read_text(line).hints] == ["shm_small"]
