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
    assert found(text + HEAD + "NCCL_IB_TC set by environment to 106\n") == {"sockets": "warn"}
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
    assert [h.id for h in read_text(line).hints] == ["shm_segment"]


def test_a_segment_that_could_not_be_extended_has_one_cause() -> None:
    # NCCL 2.18 states no reason (src/misc/shmutils.cc, ncclShmOpen): posix_fallocate failed, so CUDA was not asked yet.
    text = (
        "n1:1:1 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9637892 bytes\n"
        "n1:1:1 [0] misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a\n"
    )
    for ending in ("", "n1:1:1 [0] NCCL INFO transport/shm.cc:110 -> 2\n"):
        log = read_text(text + ending)
        assert [c.id for f in log.failures for c in f.causes] == ["shm_small"]
        assert log.hints == ()


def test_multicast_memory_is_not_sharp_of_the_switches() -> None:
    line = (
        "n1:1:1 [0] transport/nvls.cc:122 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152"
        " : CUDA error 401 'the operation cannot be performed in the present state'\n"
    )
    earlier = "n1:1:1 [0] transport/nvls.cc:245 NCCL WARN Cuda failure 1 'invalid argument'\n"
    for text in (line, earlier + line):
        log = read_text(text)
        assert [c.id for f in log.failures for c in f.causes] == ["nvls_bind"]
        assert "NCCL_NVLS_ENABLE=0" in log.failures[0].causes[0].next
        assert log.hints == ()
    assert [h.id for h in read_text("n1:1:1 [0] NCCL WARN SHARP coll init failed\n").hints] == ["sharp"]


def test_no_device_that_matches_the_setting() -> None:
    asked = HEAD + "NCCL_IB_HCA set to mlx5_9\n"
    none = HEAD + "NET/IB : No device found.\n"
    sockets = HEAD + "Using network Socket\n"
    for nodes in ("", ranks(2, "n1", "n2")):
        (f,) = read_text(nodes + asked + none + sockets).findings
        assert (f.id, f.state) == ("no-matching-hca", "warn")
        assert "NCCL_IB_HCA=mlx5_9; NCCL uses Socket" in f.title
        assert "ibv_devinfo -l" in f.fix
        assert "/dev/infiniband" not in f.fix
    assert found(none + sockets) == {}
    assert found(asked.replace("mlx5_9", "") + none + sockets) == {}
    assert found(asked + none + HEAD + "Using network AWS Libfabric\n") == {}
    assert found(asked + none + sockets + HEAD + "NCCL_NET set by environment to Socket\n") == {}


def test_gpudirect_that_no_hca_has() -> None:
    gdr = HEAD + "NET/{} : GPU Direct RDMA {} for HCA {} '{}'\n"
    ib = ranks(2, "n1", "n2") + HEAD + "Using network IB\n"
    off = gdr.format("IB", "Disabled", 0, "mlx5_0") + gdr.format("IB", "Disabled", 1, "mlx5_1")
    (f,) = read_text(ib + off).findings
    assert (f.id, f.state) == ("gpudirect-off", "warn")
    assert "every HCA: mlx5_0, mlx5_1" in f.title
    assert "nvidia-peermem" in f.fix
    assert "DMA-BUF" in f.fix
    on = gdr.format("IB", "Enabled", 0, "mlx5_0")
    assert found(ib + on) == {}
    assert found(ib + on + gdr.format("IB", "Disabled", 1, "mlx5_1")) == {}
    # Another host's device of the same name does not hide it.
    assert found(ib + gdr.format("IB", "Disabled", 0, "mlx5_0") + on) == {"gpudirect-off": "warn"}
    # Without traffic over the NICs nothing is lost.
    assert found(ranks(1, "n1", "n1") + HEAD + "Using network IB\n" + off) == {}
    # NCCL prints it for TCP interfaces too.
    assert found(HEAD + "Using network Socket\n" + gdr.format("Socket", "Disabled", 0, "eth0")) == {}


TABLE = "# Out of bounds values : 512 FAILED\n"


@pytest.mark.parametrize(
    ("via", "advice", "not_said"),
    [
        ("SHM/direct/direct", "NCCL_SHM_DISABLE=1", "P2P"),
        ("NET/IB/0/GDRDMA", "NCCL_NET_GDR_LEVEL=LOC", "P2P"),
        ("P2P/CUMEM", "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE"),
        (None, "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE"),
    ],
)
def test_wrong_values_are_of_the_transport_in_use(via: str | None, advice: str, not_said: str) -> None:
    channel = HEAD + f"Channel 00 : 0[0] -> 1[1] via {via}\n" if via else ""
    (f,) = read_text(channel + TABLE).failures
    assert f.causes[0].id == "wrong_values"
    assert advice in f.causes[0].next
    assert not_said not in f.causes[0].next


@pytest.mark.parametrize(("name", "inside"), [("docker0", True), ("br-1f2e", True), ("lo", True), ("loan0", False)])
def test_bootstrap_over_an_interface_inside_one_host(name: str, inside: bool) -> None:
    text = (
        f"n1:1:1 [0] NCCL INFO Bootstrap : Using {name}:172.17.0.1<0>\n"
        "n1:1:1 [0] misc/socket.cc:426 NCCL WARN socketStartConnect: Connect to 172.17.0.1<39281> failed : Connection"
        " refused\n"
    )
    (f,) = read_text(text).failures
    assert (f"Bootstrap uses {name}" in f.causes[0].cause) == inside
    assert "NCCL_SOCKET_IFNAME" in f.causes[0].next
