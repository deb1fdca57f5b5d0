"""A log beside the prediction: what agrees, and what can make each difference."""

from __future__ import annotations

from tests.nccl import files
from tests.nccl.test_log import HEAD, TWO_RANKS, init
from topocheck.nccl.logs.compare import bus_id, compare, settings_for
from topocheck.nccl.logs.reader import read_text
from topocheck.nccl.predict.predict import predict


def test_a_log_that_agrees():
    log = read_text(TWO_RANKS)
    p = predict((files.host(files.two_gpus(files.INTEL), settings=settings_for(log)),), (2, 28, 9))
    c = compare(log, p)
    assert (c.agree, c.compared, c.differences) == (2, 2, ())


def test_differences_are_explained():
    log = read_text(TWO_RANKS)
    p = predict((files.host(files.two_gpus(files.INTEL)),), (2, 22, 3))
    c = compare(log, p)
    assert c.agree == 0
    pair = next(d for d in c.differences if d.subject == "rank 0 -> rank 1")
    assert (pair.logged, pair.predicted) == ("P2P/CUMEM", "SHM/direct/direct")
    assert any("NCCL_P2P_LEVEL=SYS" in e for e in pair.explanations)
    assert any(d.subject == "version" for d in c.differences)


def test_containers_show_as_more_nodes():
    text = TWO_RANKS.replace("nNodes 1", "nNodes 2").replace("via P2P/CUMEM", "[send] via NET/Socket/0")
    log = read_text(text)
    p = predict((files.host(files.two_gpus(files.AMD)),), (2, 28, 9))
    c = compare(log, p)
    assert any(d.subject == "nodes" and "containers" in d.explanations[0] for d in c.differences)
    assert any("/dev/shm" in e for d in c.differences for e in d.explanations)


def test_another_network_than_predicted():
    # The HGX has mlx5_0 to mlx5_7; its GPU 0 is at 0000:1b:00.0, NCCL's busId 1b000.
    host = files.host(files.hgx_h100())
    ranks = predict((host,), (2, 28, 9)).ranks
    lines = "".join(
        init(r.rank, 8, "COMPLETE", pid=r.rank + 1).replace("busId 60", f"busId {bus_id(r.gpu):x}") for r in ranks
    )
    text = lines + HEAD + "Using network Socket\n" + HEAD + "NET/Socket : Using [0]eth0:10.0.0.7<0>\n"
    found = compare(read_text(text), predict((host,), (2, 28, 9))).differences
    assert [d.subject for d in found] == ["network"]
    assert found[0].logged == "Socket: eth0"
    assert "NCCL_IB_DISABLE" in found[0].explanations[0]
    moved = compare(
        read_text(text.replace(f"busId {bus_id(ranks[3].gpu):x}", "busId 60")), predict((host,), (2, 28, 9))
    )
    assert [d.subject for d in moved.differences] == ["GPU of rank 3", "network"]


def test_ranks_of_two_hosts_beside_the_prediction_of_one():
    text = (
        init(0, 2, "COMPLETE", host="a") + init(1, 2, "COMPLETE", host="b")
        + "a:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n"
        + "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
    )  # fmt: skip
    nodes, pair = compare(read_text(text), predict((files.host(files.two_gpus(files.INTEL)),), (2, 28, 9))).differences
    assert (nodes.subject, nodes.logged, nodes.predicted) == ("nodes", "2", "1")
    assert nodes.explanations[0] == "the job ran on 2 hosts (a, b): give their recordings with --ranks"
    assert pair.explanations[0] == "the log has these ranks on two hosts, a and b: give the job's ranks with --ranks"


def test_gpudirect_that_is_missing_in_the_log():
    hosts = tuple(files.host(files.hgx_h100(), name=f"n{i}") for i in range(2))
    p = predict(hosts, (2, 28, 9))
    log = read_text(HEAD + "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0\n")
    (d,) = compare(log, p).differences
    assert "GPUDirect" in d.predicted
    assert d.explanations


def test_a_setting_that_the_job_may_have_run_without():
    log = read_text(TWO_RANKS)
    host = files.host(files.hgx_h100(), settings={"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO"})
    pair = next(d for d in compare(log, predict((host,), (2, 28, 9))).differences if d.subject == "rank 0 -> rank 1")
    (said,) = [e for e in pair.explanations if "in force in the prediction" in e]
    assert said.startswith("NCCL_P2P_DISABLE=1 is in force")
    assert said.endswith("predict with --set NCCL_P2P_DISABLE=")
    log.settings["NCCL_P2P_DISABLE"] = ["1"]
    pair = next(d for d in compare(log, predict((host,), (2, 28, 9))).differences if d.subject == "rank 0 -> rank 1")
    assert not [e for e in pair.explanations if "in force in the prediction" in e]
