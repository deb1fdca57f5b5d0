"""Which transport NCCL picks, on machines written for the test; each expectation follows from the rules beside it."""

from __future__ import annotations

import pytest

from tests.nccl import files
from topocheck.model.base import Missing
from topocheck.nccl.predict.predict import PredictError, predict
from topocheck.nccl.predict.types import RankSpec

V = (2, 28, 9)
HIDE = '<nvlink target="ffff:ff:1e.0" count="1" tclass="0x030200"/>'


def two(kind: str, *, sockets: int = 1, inside: str = "") -> str:
    """Two GPUs on host bridges, of one socket or two."""
    a, b = files.gpu("0000:02:00.0", 0, 90, inside), files.gpu("0000:83:00.0", 1, 90, inside)
    if sockets == 1:
        return files.system(files.cpu(0, kind, a, b))
    return files.system(files.cpu(0, kind, a), files.cpu(1, kind, b))


def transports(text: str, version=V, **host: object) -> set[str]:
    p = predict((files.host(text, **host),), version)
    return {str(x.transport) for x in p.pairs}


@pytest.mark.parametrize(
    ("kind", "sockets", "version", "expected"),
    [
        # Default level PXB on Intel since 2.9.6; host bridges are PHB, other sockets SYS: farther.
        (files.INTEL, 1, V, "SHM/direct/direct"),
        (files.INTEL, 2, V, "SHM/direct/direct"),
        # AMD with at most two GPUs keeps SYS.
        (files.AMD, 1, V, "P2P/CUMEM"),
        (files.AMD, 2, V, "P2P/CUMEM"),
        # Before 2.18 there is no cuMem: older memory handles. SHM is worded otherwise before 2.13 and from 2.30.7.
        (files.AMD, 2, (2, 17, 1), "P2P/IPC"),
        (files.INTEL, 1, (2, 12, 12), "SHM"),
        (files.INTEL, 1, (2, 30, 7), "SHM/direct"),
        # 2.18 has cuMem, but off by default.
        (files.AMD, 1, (2, 18, 6), "P2P/IPC"),
    ],
)
def test_two_gpus_by_cpu_and_version(kind, sockets, version, expected):
    assert transports(two(kind, sockets=sockets), version) == {expected}


@pytest.mark.parametrize(
    ("kind", "version", "near", "far"),
    [
        # Eight GPUs on AMD: SYS up to 2.22, PXB from 2.23 on; on Intel PXB in both.
        (files.AMD, (2, 22, 3), "P2P/CUMEM", "P2P/CUMEM"),
        (files.AMD, (2, 23, 4), "SHM/direct/direct", "SHM/direct/direct"),
        (files.INTEL, (2, 22, 3), "SHM/direct/direct", "SHM/direct/direct"),
        (files.INTEL, (2, 23, 4), "SHM/direct/direct", "SHM/direct/direct"),
    ],
)
def test_eight_pcie_cards_where_the_default_level_changed(kind, version, near, far):
    p = predict((files.host(files.eight_pcie_gpus(kind)),), version)
    assert p.pair(0, 1).transport == near
    assert p.pair(0, 1).path == "PHB"
    assert p.pair(0, 4).transport == far
    assert p.pair(0, 4).path == "SYS"


@pytest.mark.parametrize("version", [(2, 12, 12), (2, 22, 3), (2, 23, 4), V, (2, 30, 7)])
@pytest.mark.parametrize("kind", [files.AMD, files.INTEL])
def test_cards_that_nvml_refuses_use_shared_memory_in_every_version(kind, version):
    text = files.eight_pcie_gpus(kind, sm=89)
    buses = [f"0000:{s * 8 + 1 + i:x}1:00.0" for s in range(2) for i in range(4)]
    status = {(a, b): ("CNS", "CNS") for a in buses for b in buses if a != b}
    p = predict((files.host(text, p2p_status=status, settings={"NCCL_P2P_LEVEL": "SYS"}),), version)
    assert all(str(x.transport).startswith("SHM") for x in p.pairs)
    assert p.fatal == ""
    assert any("NVML does not permit" in w.text for w in p.pair(0, 1).reasons)


def test_dgx1v_pairs_without_a_link_go_through_another_gpu():
    p = predict((files.host(files.dgx1v()),), V)
    assert p.pair(0, 3).transport == "P2P/CUMEM"
    # GPU 0 and 5 have no link: 0-4-5 or 0-1-5, each with a link of one at its narrowest.
    assert p.pair(0, 5).path == "NVB"
    assert p.pair(0, 5).transport == "P2P/indirect"
    assert p.pair(0, 5).through in (1, 4)
    assert p.nvls is False
    # Six NVLinks of 20 GB/s each leave every GPU.
    assert [(b.algorithm, b.busbw_gb_s) for b in p.bounds] == [("Ring", 120.0)]


def test_dgx1v_without_the_relay():
    off = {"NCCL_NVB_DISABLE": "1"}
    p = predict((files.host(files.dgx1v(), settings=off),), V)
    assert p.pair(0, 5).path == "SYS"
    # Broadwell gives 6 GB/s between the sockets; each GPU has 12 to a NIC under its own switch, so NET is faster.
    assert p.pair(0, 5).transport == "NET/GDRDMA"
    inside = predict((files.host(files.dgx1v(), settings=off | {"NCCL_NET_DISABLE_INTRA": "1"}),), V)
    assert inside.pair(0, 5).transport == "SHM/direct/direct"
    # A version that does not know the setting ignores it: 2.8.3 has NVB, and NCCL_NVB_DISABLE came with 2.9.9.
    old = predict((files.host(files.dgx1v(), settings={"NCCL_NVB_DISABLE": "1"}),), (2, 8, 3))
    assert old.pair(0, 5).path == "NVB"


def test_hgx_h100_inside():
    p = predict((files.host(files.hgx_h100()),), V)
    assert {x.transport for x in p.pairs} == {"P2P/CUMEM"}
    assert {x.path for x in p.pairs} == {"NVL"}
    assert p.nvls is True
    ring, nvls = p.bounds
    assert ring.busbw_gb_s == pytest.approx(370.8)  # 18 x 20.6
    assert nvls.busbw_gb_s == pytest.approx(2 * 370.8 * 7 / 9)  # 2 B (n-1)/(n+1)


def test_hgx_h100_nics():
    p = predict((files.host(files.hgx_h100()),), V)
    own = [n for n in p.nics if n.local]
    assert [(n.rank, n.nic, n.path) for n in own] == [(r, f"mlx5_{r}", "PIX") for r in range(8)]
    assert all(n.gdr_send is True and n.gdr_receive is True for n in own)
    others = [n for n in p.nics if not n.local]
    assert {n.path for n in others} == {"PXN"}
    assert all(n.proxy_rank == int(n.nic[5:]) for n in others)


def test_without_pxn_the_other_nics_are_beyond_the_cpu():
    p = predict((files.host(files.hgx_h100(), settings={"NCCL_PXN_DISABLE": "1"}),), V)
    assert {n.path for n in p.nics if n.rank == 0 and n.nic in ("mlx5_1", "mlx5_2", "mlx5_3")} == {"PHB"}
    assert {n.path for n in p.nics if n.rank == 0 and n.nic == "mlx5_7"} == {"SYS"}
    assert not any(n.gdr_send for n in p.nics if not n.local)


def test_a100_reads_over_nvlink():
    links = '<nvlink target="0000:c0:00.0" count="12" tclass="0x068000"/>'
    text = files.system(
        files.cpu(0, files.AMD, files.gpu("0000:02:00.0", 0, 80, links), files.gpu("0000:03:00.0", 1, 80, links))
    )
    p = predict((files.host(text),), V)
    assert {x.transport for x in p.pairs} == {"P2P/CUMEM/read"}
    assert p.nvls is False
    assert p.bounds[0].busbw_gb_s == 240.0  # 12 x 20


def test_gh200_reaches_its_nic_over_c2c():
    def superchip(n: int) -> str:
        link = '<c2c bw="44712" count="10"/>'
        g = files.gpu(f"00{n}9:01:00.0", n, 90, link, width=1)
        return files.cpu(n, files.ARM, g, files.nic(f"00{n}0:01:00.0", f"mlx5_{n}", n, 200000))

    text = files.system(superchip(0), superchip(1))
    new = predict((files.host(text),), (2, 30, 7))
    (own,) = [n for n in new.nics if n.rank == 0 and n.local]
    assert (own.nic, own.path, own.gdr_send) == ("mlx5_0", "P2C", True)
    # Through the CPUs, not through a link: 6 GB/s between them, and no P2P beyond PXB on ARM.
    assert new.pair(0, 1).path == "SYS"
    assert str(new.pair(0, 1).transport).startswith("SHM")
    # 2.26 knows C2C but does not use it for NICs by default; with NCCL_NET_GDR_C2C=0 neither does 2.30.
    old = predict((files.host(text),), (2, 26, 5))
    assert [n.gdr_send for n in old.nics if n.rank == 0 and n.local] == [False]
    off = predict((files.host(text, settings={"NCCL_NET_GDR_C2C": "0"}),), (2, 30, 7))
    assert [n.gdr_send for n in off.nics if n.rank == 0 and n.local] == [False]
    exception = predict((files.host(text, settings={"NCCL_NET_GDR_C2C": "1"}),), (2, 26, 5))
    assert [n.gdr_send for n in exception.nics if n.rank == 0 and n.local] == [True]


def test_a_virtual_machine_with_and_without_a_topology_file():
    flat = files.system(
        files.cpu(
            -1,
            files.INTEL,
            files.gpu("0000:00:06.0", 0, 80),
            files.gpu("0000:00:07.0", 1, 80),
            files.nic("0000:00:08.0", "mlx5_0", 0, 200000),
        )
    )
    told = files.system(
        files.cpu(
            0,
            files.INTEL,
            files.switch(
                "ffff:ff:01.0",
                files.gpu("0000:00:06.0", 0, 80),
                files.gpu("0000:00:07.0", 1, 80),
                files.nic("0000:00:08.0", "mlx5_0", 0, 200000),
            ),
        )
    )
    without, with_file = predict((files.host(flat),), V), predict((files.host(told),), V)
    assert without.pair(0, 1).transport == "SHM/direct/direct"
    assert not any(n.gdr_receive for n in without.nics)
    assert with_file.pair(0, 1).transport == "P2P/CUMEM"
    assert all(n.gdr_receive for n in with_file.nics)
    assert any("-1" in note for note in without.notes)


def test_settings():
    links = '<nvlink target="0000:c0:00.0" count="18" tclass="0x068000"/>'
    text = two(files.INTEL, inside=links)
    cases = {
        "P2P/CUMEM": {},
        "SHM/direct/direct": {"NCCL_P2P_DISABLE": "1"},
        "NET": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
        "P2P/IPC": {"NCCL_CUMEM_ENABLE": "0"},
    }
    for expected, settings in cases.items():
        assert transports(text, settings=settings) == {expected}
    assert transports(text, settings={"NCCL_P2P_LEVEL": "LOC"}) == {"SHM/direct/direct"}
    assert transports(text, settings={"NCCL_P2P_DISABLE": "2"}) == {"P2P/CUMEM"}  # only 1 acts
    assert transports(text, settings={"NCCL_P2P_DISABLE": "true"}) == {"P2P/CUMEM"}  # read as 0
    both = {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}
    assert transports(text, settings=both) == {"SHM/direct/direct"}
    # In 2.5 the level won. Its SYS is farther than any pair, and SHM has no such word yet.
    assert transports(text, (2, 5, 7), settings=both) == {"P2P/IPC"}


def test_two_ranks_on_one_gpu_end_init_unless_it_is_allowed():
    host, gpu = files.host(two(files.AMD)), "0000:02:00.0"
    same = tuple(RankSpec(rank=n, host=host.name, gpu=gpu) for n in range(2))
    assert "ranks 0 and 1 are both on 0000:02:00.0" in predict((host,), V, same).fatal
    # NCCL_MULTI_RANK_GPU_ENABLE came with 2.30.3; older versions do not read it.
    allowing = files.host(two(files.AMD), settings={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    assert predict((allowing,), V, same).fatal != ""
    assert predict((allowing,), (2, 30, 7), same).fatal == ""
    assert predict((host,), (2, 30, 7), same).fatal != ""
    assert predict((host,), V).fatal == ""


def test_nvlink_that_nvml_refuses_ends_init():
    links = '<nvlink target="0000:c0:00.0" count="18" tclass="0x068000"/>'
    a, b = "0000:02:00.0", "0000:83:00.0"
    bad = {(a, b): ("NS", "NS"), (b, a): ("NS", "NS")}
    p = predict((files.host(two(files.INTEL, inside=links), p2p_status=bad),), V)
    assert "unhandled cuda error" in p.fatal
    silent = {"NCCL_IGNORE_DISABLED_P2P": "1"}
    quiet = predict((files.host(two(files.INTEL, inside=links), p2p_status=bad, settings=silent),), V)
    assert quiet.fatal == ""
    assert quiet.pair(0, 1).transport == "SHM/direct/direct"
    # Before 2.12.7 NVML was not asked.
    assert predict((files.host(two(files.INTEL, inside=links), p2p_status=bad),), (2, 11, 4)).fatal == ""


def test_what_nvml_did_not_say_is_unknown():
    p = predict((files.host(two(files.AMD), assume=False, cumem=True),), V)
    assert isinstance(p.pair(0, 1).transport, Missing)


def test_processes_containers_and_hidden_gpus():
    host = files.host(two(files.AMD))
    a, b = "0000:02:00.0", "0000:83:00.0"

    def job(**second: object):
        first = {k: v for k, v in second.items() if k == "process"}
        ranks = (RankSpec(rank=0, host="node", gpu=a, **first), RankSpec(rank=1, host="node", gpu=b, **second))
        return predict((host,), V, ranks)

    assert job(process="x").pair(0, 1).transport == "P2P/direct pointer"
    assert job().pair(0, 1).transport == "P2P/CUMEM"
    assert str(job(container="other").pair(0, 1).transport).startswith("NET")
    refused = files.host(two(files.AMD), peer_access={(a, b): False, (b, a): False})
    seen = (RankSpec(rank=0, host="node", gpu=a), RankSpec(rank=1, host="node", gpu=b))
    assert predict((refused,), V, seen).pair(0, 1).transport == "SHM/direct/direct"
    hidden = tuple(RankSpec(rank=i, host="node", gpu=g, visible=(g,)) for i, g in enumerate((a, b)))
    assert predict((refused,), V, hidden).pair(0, 1).transport == "P2P/CUMEM"


def test_only_the_gpus_of_the_job_count():
    host = files.host(files.eight_pcie_gpus(files.AMD))
    ranks = tuple(RankSpec(rank=i, host="node", gpu=f"0000:{i + 1}1:00.0") for i in range(2))
    assert predict((host,), V, ranks).pair(0, 1).transport == "P2P/CUMEM"
    assert predict((host,), V).pair(0, 1).transport == "SHM/direct/direct"


def test_two_hosts_over_their_rails():
    hosts = tuple(files.host(files.hgx_h100(), name=f"n{i}") for i in range(2))
    p = predict(hosts, V)
    assert len(p.ranks) == 16
    same_rail, other_rail = p.pair(0, 8), p.pair(0, 11)
    assert same_rail.transport == "NET/GDRDMA"
    assert (same_rail.nic_send, same_rail.nic_receive, same_rail.proxy_rank) == ("mlx5_0", "mlx5_0", None)
    # To GPU 3 of the other host: out by the NIC of our GPU 3, which sends for us (PXN).
    assert (other_rail.nic_send, other_rail.nic_receive, other_rail.proxy_rank) == ("mlx5_3", "mlx5_3", 3)
    # Eight NICs of 50 GB/s are wider than the NVLinks inside: 370.8.
    assert p.bounds[0].busbw_gb_s == pytest.approx(370.8)
    assert p.bounds[1].busbw_gb_s == pytest.approx(370.8 * 15 / 16)


@pytest.mark.parametrize(("gpus", "gb_s"), [(1, 48.0), (2, 96.0), (4, 192.0), (8, 370.8)])
def test_nics_that_gpus_share_a_link_to_carry_no_more_than_that_link(gpus, gb_s):
    # Eight NICs of 48 GB/s a host, but a job of one GPU a host reaches all of them through its one PCIe link: gen 5
    # x16, which NCCL takes as 48 GB/s. With all eight, the NVLinks inside (18 x 20.6) are narrower than 8 x 48.
    hosts = tuple(files.host(files.hgx_h100(), name=f"n{i}") for i in range(2))
    every = [r for r in predict(hosts, V).ranks if r.rank % 8 < gpus]
    p = predict(hosts, V, tuple(every))
    assert p.bounds[0].algorithm == "Ring"
    assert p.bounds[0].busbw_gb_s == pytest.approx(gb_s)
    if gpus == 1:
        assert "PCIe link" in p.bounds[0].limited_by
        assert "on the way to the NICs of n0" in p.bounds[0].limited_by
        # Two nodes of one GPU: each sends S up one tree or down the other, so 2 B (n-1)/n = 2 x 48 x 1/2.
        assert p.bounds[1].algorithm == "Tree"
        assert p.bounds[1].busbw_gb_s == pytest.approx(48.0)
    elif gpus < 8:
        assert f"the {gpus} links between GPUs and NICs of n0" in p.bounds[0].limited_by


def test_a_tree_of_three_hosts_has_inner_nodes():
    hosts = tuple(files.host(files.hgx_h100(), name=f"n{i}") for i in range(3))
    every = [r for r in predict(hosts, V).ranks if r.rank % 8 < 1]
    tree = predict(hosts, V, tuple(every)).bounds[1]
    assert tree.busbw_gb_s == pytest.approx(48.0 * 2 / 3)  # B (n-1)/n
    assert tree.formula == "B (n-1)/n, n = 3"


def test_two_hosts_without_gpudirect():
    hosts = tuple(files.host(files.hgx_h100(nic_gdr=0), name=f"n{i}") for i in range(2))
    p = predict(hosts, V)
    assert p.pair(0, 8).transport == "NET"
    assert any("gdr=0" in w.text for w in p.pair(0, 8).reasons)


def test_multi_node_nvlink():
    text = files.hgx_h100()
    buses = [f"0000:{n + 1:x}3:00.0" for n in range(8)]

    def hosts(clique: int, **rest: object):
        fabrics = [dict.fromkeys(buses, ("Completed", "8d3f-1", c)) for c in (5, clique)]
        return tuple(files.host(text, name=f"n{i}", fabric=f, **rest) for i, f in enumerate(fabrics))

    joined = predict(hosts(5), V)
    assert joined.pair(0, 8).transport == "P2P/MNNVL"
    # One NVLink domain of 16 GPUs: 18 x 20.6 GB/s each, whatever the NICs; NVLS 2 B (n-1)/(n+1).
    assert {b.algorithm: b.busbw_gb_s for b in joined.bounds} == {
        "Ring": pytest.approx(370.8),
        "NVLS": pytest.approx(2 * 370.8 * 15 / 17),
    }
    assert str(predict(hosts(6), V).pair(0, 8).transport).startswith("NET")
    assert str(predict(hosts(5), (2, 19, 4)).pair(0, 8).transport).startswith("NET")
    off = {"NCCL_P2P_DISABLE": "1"}
    assert str(predict(hosts(5, settings=off), V).pair(0, 8).transport).startswith("NET")


def test_gdr_on_one_direction_only():
    # Volta without an NVLink peer: receiving is fine, sending needs the peer.
    text = files.system(
        files.cpu(
            0,
            files.INTEL,
            files.switch(
                "0000:01:00.0",
                files.gpu("0000:02:00.0", 0, 70),
                files.gpu("0000:03:00.0", 1, 70),
                files.nic("0000:04:00.0", "mlx5_0", 0, 100000),
            ),
        )
    )
    (first, _) = predict((files.host(text),), V).nics
    assert (first.gdr_send, first.gdr_receive) == (False, True)


def test_nics_that_are_faster_than_the_gpu_pair_are_used_inside_a_host():
    # Two switches joined by a slow link: 12 GB/s between the GPUs, 25 to each one's NIC within PIX.
    def side(n: int) -> str:
        return files.switch(
            f"0000:0{n}0:00.0"[-12:],
            files.gpu(f"0000:{n}1:00.0", n, 80, speed=files.G5),
            files.nic(f"0000:{n}2:00.0", f"mlx5_{n}", n, 200000),
            speed=files.G3,
        )

    text = files.system(files.cpu(0, files.INTEL, side(1), side(2)))
    p = predict((files.host(text),), V)
    assert {str(x.transport) for x in p.pairs} == {"NET/GDRDMA"}
    off = predict((files.host(text, settings={"NCCL_NET_DISABLE_INTRA": "1"}),), V)
    assert {str(x.transport) for x in off.pairs} == {"SHM/direct/direct"}


def test_ranks_that_make_no_job_are_refused():
    host = files.host(two(files.AMD))
    with pytest.raises(PredictError, match="not among the hosts"):
        predict((host,), V, (RankSpec(rank=0, host="elsewhere", gpu="0000:02:00.0"),))
    twice = tuple(RankSpec(rank=0, host="node", gpu=g) for g in ("0000:02:00.0", "0000:83:00.0"))
    with pytest.raises(PredictError, match="twice"):
        predict((host,), V, twice)


def test_a_gpu_that_is_not_there():
    ranks = tuple(RankSpec(rank=i, host="node", gpu=g) for i, g in enumerate(("0000:02:00.0", "0000:99:00.0")))
    p = predict((files.host(two(files.AMD)),), V, ranks)
    assert isinstance(p.pair(0, 1).transport, Missing)


def test_ports_that_nccl_joins_are_told():
    """From 2.20.3 the ports of a card are one NIC by default (NCCL_IB_MERGE_NICS; later NCCL_NET_MERGE_LEVEL=PORT)."""
    ports = "".join(f'<net name="mlx5_{n}" dev="{n}" speed="100000" port="1"/>' for n in range(2))
    card = f'<pci busid="0000:03:00.0" class="0x020700"><nic>{ports}</nic></pci>'
    single = files.nic("0000:04:00.0", "mlx5_2", 2, 100000)
    text = files.system(files.cpu(0, files.AMD, files.gpu("0000:01:00.0", 0, 80), card, single))

    def told(version=V, **settings):
        notes = predict((files.host(text, settings=settings),), version).notes
        return [n for n in notes if "joins ports" in n]

    assert told() == ["node: NCCL joins ports of one card to one NIC (mlx5_0+mlx5_1); here each is apart"]
    assert told((2, 19, 4)) == []
    assert told(NCCL_IB_MERGE_NICS="0") == []
    assert told(NCCL_NET_MERGE_LEVEL="LOC") == []
    # Read from 2.24.3 on.
    assert told((2, 23, 4), NCCL_NET_MERGE_LEVEL="LOC") == told()


def test_an_empty_system():
    p = predict((files.host('<system version="1"/>'),), V)
    assert p.pairs == ()
    assert p.bounds == ()
