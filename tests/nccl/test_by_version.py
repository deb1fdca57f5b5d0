"""What NCCL's topology code does by version, against its own results on small topology files.

The expected values are those that NCCL's code of 2.30.4 and 2.30.7 gave for these files, or stand in its source.
"""

from __future__ import annotations

import msgspec
import pytest

from topocheck.nccl.predict.graph import build_graph
from topocheck.nccl.predict.predict import predict
from topocheck.nccl.predict.types import HostInput, Prediction
from topocheck.nccl.rules.versions import Cpu, cpu_gb_s
from topocheck.nccl.topofile.file import judge_file
from topocheck.nccl.topofile.xml import parse_topology

OLD, NEW = (2, 30, 4), (2, 30, 7)
GPU = '<pci busid="0000:0{n}:00.0" class="0x030200" link_speed="{speed} GT/s PCIe" link_width="16">'


def gpu(n: int, *links: tuple[int, int], sm: int = 80, speed: str = "16.0") -> str:
    """Return a GPU on bus n with NVLinks as (bus of the peer, count)."""
    inside = "".join(f'<nvlink target="0000:0{b}:00.0" count="{c}" tclass="0x030200"/>' for b, c in links)
    return GPU.format(n=n, speed=speed) + f'<gpu dev="{n - 1}" sm="{sm}" rank="{n - 1}" gdr="1">{inside}</gpu></pci>'


def system(*inside: str) -> str:
    cpu = '<cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">'
    return f'<system version="1">{cpu}{"".join(inside)}</cpu></system>'


def told(text: str, version: tuple[int, int, int], **settings: str) -> Prediction:
    host = HostInput(name="file", topology=parse_topology(text).root, settings=settings, assume=True)
    return predict((host,), version)


def test_the_closer_path_type_wins_from_2_30_7() -> None:
    # 0 - 1 - 2 by one NVLink of 20 GB/s each, PCIe of 24 GB/s: NVB is narrower than PHB.
    text = system(gpu(1, (2, 1)), gpu(2, (1, 1), (3, 1)), gpu(3, (2, 1)))
    path = {v: next(p for p in told(text, v).pairs if (p.from_rank, p.to_rank) == (0, 2)) for v in (OLD, NEW)}
    assert (path[OLD].path, path[OLD].gb_s) == ("PHB", 24.0)
    assert (path[NEW].path, path[NEW].gb_s) == ("NVB", 20.0)


@pytest.mark.parametrize("version", [(2, 21, 5), OLD, NEW])
def test_an_nvlink_of_one_side_ends_init(version: tuple[int, int, int]) -> None:
    text = system(gpu(1, (2, 12)), gpu(2))
    assert "Failed to find reverse path" in told(text, version).fatal
    assert "unless NVML" in told(text, version).fatal
    assert told(system(gpu(1, (2, 12)), gpu(2, (1, 12))), version).fatal == ""


def test_a_file_with_an_nvlink_of_one_side() -> None:
    # Where the other GPU lists links of its own, NCCL does not ask NVML for more.
    certain = judge_file("x", system(gpu(1, (2, 12)), gpu(2, (3, 12)), gpu(3, (2, 12))), NEW)
    assert "reverse path" in certain.fatal
    open_ = judge_file("x", system(gpu(1, (2, 12)), gpu(2)), NEW)
    assert open_.fatal == ""
    assert any("asks NVML" in r.text for r in open_.remarks)


def test_what_a_file_alone_cannot_say_is_said() -> None:
    (note,) = [n for n in told(system(gpu(1), gpu(2)), NEW).notes if "NVML" in n]
    assert "2 of 2 GPUs" in note
    joined = told(system(gpu(1, (2, 4)), gpu(2, (1, 4))), NEW)
    assert not [n for n in joined.notes if "NVML" in n]


def nics(bus: int, first: int) -> str:
    out = ""
    for i in range(4):
        name = (
            f'<net name="nic{first + i}" dev="{first + i}" speed="100000" port="1" guid="0x{first + i + 1}" gdr="1"/>'
        )
        out += (
            f'<pci busid="0000:{bus}{i + 2}:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="8">'
            f"<nic>{name}</nic></pci>"
        )
    return out


@pytest.mark.parametrize(("version", "nic"), [(OLD, "nic6"), (NEW, "nic4")])
def test_the_first_nic_of_a_gpu(version: tuple[int, int, int], nic: str) -> None:
    # GPU 1 has four NICs of its own. Up to 2.30.4 it begins at its device number, bits mirrored: 1 -> 2 of 4.
    switch = '<pci busid="0000:{}0:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">'
    halves = [
        switch.format(bus)
        + gpu(n, sm=90, speed="32.0").replace(f"0000:0{n}", f"0000:{bus}1")
        + nics(bus, first)
        + "</pci>"
        for n, bus, first in ((1, 1, 0), (2, 2, 4))
    ]
    off = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    pairs = told(system(*halves), version, **off).pairs
    assert {(p.nic_send, p.nic_receive) for p in pairs} == {("nic0", nic), (nic, "nic0")}


def test_a_ring_bound_where_nvlink_joins_some_pairs_is_not_below_what_nccl_reaches() -> None:
    # Two bridged pairs: rings run through the PCIe links of both GPUs of a pair, 2 x 24 GB/s.
    text = system(gpu(1, (2, 4)), gpu(2, (1, 4)), gpu(3, (4, 4)), gpu(4, (3, 4)))
    bound = next(b for b in told(text, NEW).bounds if b.algorithm == "Ring")
    assert bound.busbw_gb_s == pytest.approx(48.0)
    assert "0000:01:00.0, 0000:02:00.0" in bound.limited_by


def test_a_ring_bound_of_a_machine_without_nvlink_stays_the_narrowest_hop() -> None:
    bound = next(b for b in told(system(gpu(1), gpu(2)), NEW).bounds if b.algorithm == "Ring")
    assert bound.busbw_gb_s == pytest.approx(24.0)


@pytest.mark.parametrize(
    ("vendor", "family", "model", "old", "new"),
    [
        ("AuthenticAMD", 23, 49, 16, 16),  # Rome
        ("AuthenticAMD", 25, 17, 16, 24),  # Genoa, as CPUID has it
        ("AuthenticAMD", 175, 17, 16, 24),  # and as files of an older NCCL have it
        ("AuthenticAMD", 26, 2, 16, 32),  # Turin
        ("AuthenticAMD", 191, 2, 16, 32),
        ("GenuineIntel", 6, 143, 22, 22),  # Sapphire Rapids
        ("GenuineIntel", 6, 173, 22, 40),  # Granite Rapids, whose model number is below that of Emerald Rapids
        ("GenuineIntel", 6, 175, 22, 40),  # Sierra Forest
        ("GenuineIntel", 6, 182, 22, 22),
        ("GenuineIntel", 6, 207, 40, 40),  # Emerald Rapids
    ],
)
def test_the_rate_between_sockets(vendor: str, family: int, model: int, old: float, new: float) -> None:
    """From 2.31 by the generation of AMD's CPUs; Intel's newest are no longer taken for Sapphire Rapids (topo.cc)."""
    cpu = Cpu(arch="x86_64", vendor=vendor, family=family, model=model)
    assert (cpu_gb_s(cpu, NEW), cpu_gb_s(cpu, (2, 31, 2))) == (old, new)


# What NCCL's own code (src/graph/) answers for three sockets with a GPU and a NIC of 48 GB/s each;
# NVLink joins 0 to 1 and 1 to 2. Between 0 and 2 stand 22 GB/s between sockets, so the NICs win; but on one host up to
# 2.28.3 there are none, since every GPU reaches the first without them. Without the NVLinks it does not: NICs stay.
def three_sockets(*, nvlink: bool) -> str:
    part = (
        '<cpu numaid="{n}" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
        '<pci busid="0000:{n}0:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">'
        '<pci busid="0000:{n}1:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
        '<gpu dev="{n}" sm="90" rank="{n}" gdr="1">{links}</gpu></pci>'
        '<pci busid="0000:{n}2:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">'
        '<nic><net name="mlx5_{n}" dev="{n}" speed="400000" port="1" guid="0x{n}1" gdr="1"/></nic></pci></pci></cpu>'
    )
    far = '<nvlink target="fffffff:ff:ff.0" count="0" tclass="0x068000"/>'
    to = '<nvlink target="0000:{}1:00.0" count="4" tclass="0x030200"/>'
    links = (
        {0: to.format(1), 1: to.format(0) + to.format(2), 2: to.format(1)} if nvlink else dict.fromkeys(range(3), far)
    )
    return f'<system version="1">{"".join(part.format(n=n, links=links[n]) for n in range(3))}</system>'


@pytest.mark.parametrize(
    ("version", "nvlink", "path", "way"),
    [
        ((2, 27, 7), True, "SYS", "SHM"),
        ((2, 28, 3), True, "SYS", "SHM"),
        ((2, 28, 7), True, "NET", "NET"),
        ((2, 27, 7), False, "NET", "NET"),
    ],
)
def test_nics_on_one_host(version: tuple[int, int, int], *, nvlink: bool, path: str, way: str) -> None:
    root = parse_topology(three_sockets(nvlink=nvlink)).root
    settings = {"NCCL_NVB_DISABLE": "1"}
    host = HostInput(name="a", topology=root, settings=settings, assume=True, cumem=True)
    pair = predict((host,), version).pair(0, 2)
    assert (pair.routed, pair.transport_kind) == (path, way)
    several = predict((host, msgspec.structs.replace(host, name="b")), version)
    assert several.pair(0, 2).transport_kind == "NET"


# A GPU and its CPU joined by C2C (10 x 44.712 GB/s), two GPUs below a CPU, no NVLink: C2C is no link up to 2.18.6,
# counts as NVLink from 2.19.1 and is a type of its own from 2.26.2.
@pytest.mark.parametrize(
    ("version", "kinds"), [((2, 18, 6), set()), ((2, 19, 1), {"NVL"}), ((2, 25, 1), {"NVL"}), ((2, 26, 2), {"C2C"})]
)
def test_c2c_by_version(version: tuple[int, int, int], kinds: set[str]) -> None:
    gpus = "".join(
        f'<pci busid="0000:0{n}:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
        f'<gpu dev="{n}" sm="90" rank="{n}" gdr="1"><c2c bw="44712" count="10"/></gpu></pci>'
        for n in (1, 2)
    )
    text = f'<system version="1"><cpu numaid="0" affinity="ff" arch="arm64">{gpus}</cpu></system>'
    graph = build_graph(parse_topology(text).root, version)
    found = {link.kind for node in graph.nodes["GPU"] for link in node.links if link.to.kind == "CPU"} - {"PCI"}
    assert found == kinds
    rates = [x.gb_s for node in graph.nodes["GPU"] for x in node.links if x.kind in kinds]
    assert rates == ([pytest.approx(447.12)] * 2 if kinds else [])
