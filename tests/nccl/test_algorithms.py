"""What NCCL_ALGO leaves to AllReduce, and when NVLink SHARP is used, by version."""

from __future__ import annotations

import pytest

from tests.nccl import files
from topocheck.nccl.predict.algorithms import allowed, list_stops
from topocheck.nccl.predict.predict import predict
from topocheck.nccl.predict.types import RankSpec
from topocheck.nccl.rules.settings import Settings

V = (2, 28, 9)
EVERY = {"ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"}


@pytest.mark.parametrize(
    ("value", "version", "expected"),
    [
        ("", V, EVERY),
        ("Ring", V, {"ring"}),
        ("ring,TREE", V, {"ring", "tree"}),
        ("^NVLS", V, EVERY - {"nvls"}),
        # The two examples of parseList's own comment (src/graph/tuning.cc, 2.24.3).
        ("ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring", V, {"tree", "collnetdirect"}),
        ("broadcast:ring", V, EVERY),
        # Before 2.24.3 there is one list, and words that are not known say nothing.
        ("allreduce:tree", (2, 23, 4), {"ring", "tree"}),
        ("CollNetChain", (2, 23, 4), {"collnetchain", "ring", "tree"}),
        ("NVLS,foo", (2, 23, 4), {"nvls"}),
    ],
)
def test_what_a_list_leaves(value, version, expected):
    assert allowed(Settings({"NCCL_ALGO": value}, version)) == expected


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("NCCL_ALGO", "foo", "foo is not known"),
        ("NCCL_ALGO", "ring;tree", "must name a function"),
        ("NCCL_ALGO", "gather:ring", "no function is named gather"),
        ("NCCL_PROTO", "LL,Fast", "Fast is not known"),
    ],
)
def test_a_list_that_ends_init(name, value, told):
    """parseList returns ncclInvalidUsage for these from 2.24.3 on, and passed over them before."""
    assert told in list_stops(Settings({name: value}, V))
    assert list_stops(Settings({name: value}, (2, 23, 4))) == ""
    assert told in predict((files.host(files.hgx_h100(), settings={name: value}),), V).fatal


def job(gpus: int, hosts: int = 1, version=V, **host):
    """Return the prediction for some GPUs of each of some HGX boards."""
    made = tuple(files.host(files.hgx_h100(), name=f"h{n}", **host) for n in range(hosts))
    ranks = tuple(r for r in predict(made, version).ranks if r.rank % 8 < gpus)
    return predict(made, version, ranks)


@pytest.mark.parametrize(
    ("version", "least"),
    # localRanks <= 1, then gpuCount <= 2, then gpuCount < 2 (src/transport/nvls.cc).
    [((2, 17, 1), 2), ((2, 18, 1), 3), ((2, 21, 5), 3), ((2, 28, 3), 3), ((2, 28, 7), 2), ((2, 30, 7), 2)],
)
def test_fewest_gpus_of_a_host_for_nvls(version, least):
    assert job(least, version=version).nvls is True
    fewer = job(least - 1, version=version)
    assert (fewer.nvls, fewer.nvls_reason) == (False, f"needs at least {least} GPUs of a host")
    assert "NVLS" not in [b.algorithm for b in fewer.bounds]


def test_nvls_counts_the_gpus_of_each_host():
    """Two GPUs on each of two hosts are four in the job, but two in each communicator's graph."""
    assert job(2, hosts=2, version=(2, 28, 3)).nvls is False
    assert job(3, hosts=2, version=(2, 28, 3)).nvls is True
    assert job(2, hosts=2).nvls is True


def test_nvls_over_several_hosts():
    """2.17.1 has no NVLSTree: it leaves where nNodes > 1. Later NCCL_ALGO must leave NVLSTree, not NVLS."""
    assert job(8, hosts=2, version=(2, 17, 1)).nvls is False
    assert job(8, hosts=2, settings={"NCCL_ALGO": "Ring,NVLSTree"}).nvls is True
    without = job(8, hosts=2, settings={"NCCL_ALGO": "Ring,NVLS"})
    assert (without.nvls, without.nvls_reason) == (False, "NCCL_ALGO=Ring,NVLS leaves NVLSTree out of AllReduce")


def test_nvls_over_an_nvlink_domain_counts_its_gpus():
    """Two trays with one GPU each give a graph of two GPUs: enough from 2.28.7 on. 2.20 has none with MNNVL."""

    def nvls(version, gpus):
        fabric = {f"0000:{n + 1:x}3:00.0": ("completed", "aa-1", 5) for n in range(8)}
        hosts = tuple(files.host(files.hgx_h100(), name=f"h{n}", fabric=fabric, imex=True) for n in range(2))
        ranks = tuple(
            RankSpec(rank=8 * n + i, host=h.name, gpu=f"0000:{i + 1:x}3:00.0")
            for n, h in enumerate(hosts)
            for i in range(gpus)
        )
        p = predict(hosts, version, ranks)
        # NICs set no bound to what goes over NVLink: 18 links of 20.6 GB/s do.
        assert p.bounds[0].busbw_gb_s == pytest.approx(370.8)
        return p.nvls

    assert nvls((2, 28, 9), 1) is True
    assert nvls((2, 28, 3), 1) is False
    assert nvls((2, 28, 3), 2) is True
    assert nvls((2, 20, 5), 4) is False


def test_an_nvlink_domain_beside_a_host_outside_it_has_no_bound():
    fabric = {f"0000:{n + 1:x}3:00.0": ("completed", "aa-1", 5) for n in range(8)}
    inside = tuple(files.host(files.hgx_h100(), name=f"h{n}", fabric=fabric, imex=True) for n in range(2))
    p = predict((*inside, files.host(files.hgx_h100(), name="out")), (2, 28, 9))
    assert p.bounds == ()
    assert "no bound is worked out where NVLink joins some hosts and not others" in p.notes


def test_bounds_are_those_of_the_algorithms_that_are_left():
    assert [b.algorithm for b in job(8).bounds] == ["Ring", "NVLS"]
    ring = job(8, settings={"NCCL_ALGO": "Ring"})
    assert [b.algorithm for b in ring.bounds] == ["Ring"]
    assert (ring.nvls, ring.nvls_reason) == (False, "NCCL_ALGO=Ring leaves NVLS out of AllReduce")
    assert [b.algorithm for b in job(8, settings={"NCCL_ALGO": "NVLS"}).bounds] == ["NVLS"]
    assert [b.algorithm for b in job(8, hosts=2, settings={"NCCL_ALGO": "Tree"}).bounds] == ["Tree"]


def test_a_list_without_an_algorithm_that_works_is_told():
    """From 2.24.3 the call ends with "no algorithm/protocol available" (src/enqueue.cc)."""
    off = {"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": "0"}
    assert "leaves AllReduce no algorithm" in " ".join(job(8, settings=off).notes)
    assert job(8, settings={"NCCL_ALGO": "NVLS"}).notes == job(8).notes


def test_gpus_that_only_nics_join_are_nodes_of_their_own():
    """ncclTopoTrimSystem drops the GPUs behind PATH_NET: without P2P and SHM each graph holds one GPU."""
    apart = job(8, settings={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"})
    assert apart.nvls is False
    assert apart.nvls_reason == "needs at least 2 GPUs of a host that reach each other by P2P or SHM"
    # SHM alone keeps them together.
    assert job(8, settings={"NCCL_P2P_DISABLE": "1"}).nvls is True
    # Over NICs of 400 Gb/s a pair has no more than what its way to them carries: PCIe 5 x16 by NCCL's constants.
    pair = apart.pair(0, 1)
    assert (pair.routed, pair.gb_s) == ("NET", pytest.approx(48.0))
    assert job(8, hosts=2).pair(0, 8).gb_s == pytest.approx(48.0)


def test_a_pair_over_a_slow_nic_has_its_rate():
    text = files.system(
        files.cpu(
            0,
            files.AMD,
            files.gpu("0000:01:00.0", 0, 89),
            files.gpu("0000:02:00.0", 1, 89),
            files.nic("0000:03:00.0", "eno1", 0, 10000),
        )
    )
    p = predict((files.host(text, settings={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}),), V)
    assert (p.pair(0, 1).routed, p.pair(0, 1).gb_s) == ("NET", pytest.approx(10 / 8))


def test_one_host_without_multicast_leaves_nvls_out():
    hosts = tuple(files.host(files.hgx_h100(), name=f"h{n}", multicast=n == 0) for n in range(2))
    assert predict(hosts, V).nvls is False
