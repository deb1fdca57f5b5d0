"""NCCL's graph and paths. Expected values are NCCL's constants and path rules, worked out beside each case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nccl import files
from topocheck.nccl.predict.graph import build_graph
from topocheck.nccl.predict.paths import all_paths, find, locals_of
from topocheck.nccl.rules import versions
from topocheck.nccl.rules.versions import Cpu
from topocheck.nccl.topofile.xml import NcclXmlError, parse

V = (2, 28, 9)


def paths(text: str, version=V):
    graph = build_graph(parse(text).root, version)
    return graph, all_paths(graph)


def kinds(text: str, a: int, b: int, version=V) -> tuple[str, float]:
    _, table = paths(text, version)
    path = find(table, "GPU", a, "GPU", b)
    return path.type, round(path.gb_s, 4)


def test_under_one_switch_two_switches_one_cpu_and_two_cpus():
    one = files.system(
        files.cpu(
            0,
            files.INTEL,
            files.switch("0000:01:00.0", files.gpu("0000:02:00.0", 0, 80), files.gpu("0000:03:00.0", 1, 80)),
        )
    )
    assert kinds(one, 0, 1) == ("PIX", 24.0)  # gen 4 x16: 16 lanes x 1.5
    two = files.system(
        files.cpu(
            0,
            files.INTEL,
            files.switch(
                "0000:01:00.0",
                files.switch("0000:02:00.0", files.gpu("0000:03:00.0", 0, 80)),
                files.switch("0000:04:00.0", files.gpu("0000:05:00.0", 1, 80)),
            ),
        )
    )
    assert kinds(two, 0, 1) == ("PXB", 24.0)
    bridge = files.system(files.cpu(0, files.INTEL, files.gpu("0000:02:00.0", 0, 80), files.gpu("0000:03:00.0", 1, 80)))
    assert kinds(bridge, 0, 1) == ("PHB", 24.0)
    sockets = files.system(
        files.cpu(0, files.INTEL, files.gpu("0000:02:00.0", 0, 80)),
        files.cpu(1, files.INTEL, files.gpu("0000:83:00.0", 1, 80)),
    )
    # Model 143 (0x8F) is Sapphire Rapids: 22 GB/s from 2.26.2, the Skylake class with 10 before.
    assert kinds(sockets, 0, 1) == ("SYS", 22.0)
    assert kinds(sockets, 0, 1, (2, 25, 1)) == ("SYS", 10.0)


def test_a_two_level_broadcom_switch_is_one():
    ids = 'vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" subsystem_device="{}" '
    text = files.system(
        files.cpu(
            0,
            files.INTEL,
            files.switch(
                "0000:08:00.0",
                files.switch("0000:0a:00.0", files.gpu("0000:0c:00.0", 0, 90), ids=ids.format("0x1003")),
                files.switch("0000:0d:00.0", files.gpu("0000:0f:00.0", 1, 90), ids=ids.format("0x1003")),
                ids=ids.format("0x0072"),
            ),
        )
    )
    assert kinds(text, 0, 1) == ("PIX", 24.0)


def test_nvlink_through_the_switch_and_through_another_gpu():
    assert kinds(files.hgx_h100(), 0, 7) == ("NVL", 370.8)  # 18 x 20.6
    assert kinds(files.hgx_h100(), 0, 7, (2, 19, 4)) == ("NVL", 360.0)  # 20 a link before 2.20.3
    assert kinds(files.dgx1v(), 0, 3) == ("NVL", 40.0)  # two links of 20
    assert kinds(files.dgx1v(), 0, 1) == ("NVL", 20.0)
    assert kinds(files.dgx1v(), 0, 5)[0] == "NVB"  # by way of GPU 1 or 4


def test_nvb_can_be_switched_off():
    graph = build_graph(parse(files.dgx1v()).root, V)
    table = all_paths(graph, nvb=False)
    assert find(table, "GPU", 0, "GPU", 5).type == "SYS"


def test_links_that_point_nowhere_or_count_none_add_no_path():
    for link in (
        '<nvlink target="ffff:ff:1e.0" count="1" tclass="0x030200"/>',
        '<nvlink target="0000:02:00.0" count="12" tclass="0x030200"/>',  # the GPU itself, as in a public VM file
        '<nvlink target="ffff:ff:1e.0" count="0" tclass="0x068000"/>',
    ):
        text = files.system(
            files.cpu(
                0,
                files.INTEL,
                files.gpu("0000:02:00.0", 0, 80, link),
                files.gpu("0000:03:00.0", 1, 80, link.replace("02:", "03:")),
            )
        )
        assert kinds(text, 0, 1) == ("PHB", 24.0)


def test_c2c_is_unknown_to_2_18_an_nvlink_to_2_25_and_a_kind_of_its_own_from_2_26():
    """ncclTopoAddC2c (src/graph/topo.cc): not in 2.18.6; LINK_NVL in 2.19.1 to 2.25.1; LINK_C2C in 2.26.2."""
    link = '<c2c bw="44712" count="10"/>'
    text = files.system(files.cpu(0, files.ARM, files.gpu("0009:01:00.0", 0, 90, link, width=1)))
    for version, kind, gb_s in (
        ((2, 18, 6), "PHB", 1.5),  # one lane of 16 GT/s: 120 / 80 (kvDictPciGen)
        ((2, 19, 1), "NVL", 447.12),  # 10 links of 44,712 MB/s
        ((2, 25, 1), "NVL", 447.12),
        ((2, 26, 2), "C2C", 447.12),
    ):
        _, table = paths(text, version)
        found = find(table, "GPU", 0, "CPU", 0)
        assert (found.type, found.gb_s) == (kind, pytest.approx(gb_s))


@pytest.mark.parametrize(
    ("speed", "width", "gb_s"),
    [
        ("2.5 GT/s PCIe", 1, 0.1875),
        ("5.0 GT/s PCIe", 16, 6.0),
        ("8 GT/s", 16, 12.0),
        ("16.0 GT/s PCIe", 8, 12.0),
        ("32.0 GT/s PCIe", 16, 48.0),
        ("64.0 GT/s PCIe", 16, 96.0),
        ("32.0 GT/s PCIe", 0, 48.0),  # width 0 counts as 16
        ("32 GT/s PCIe/s", 16, 48.0),  # the beginning is a text NCCL knows
        ("Unknown", 16, 12.0),  # anything else is generation 3
        ("", None, 12.0),
        (None, None, 12.0),
    ],
)
def test_pcie_links_as_nccl_counts_them(speed, width, gb_s):
    assert versions.pcie_gb_s(speed, width, V) == pytest.approx(gb_s)


@pytest.mark.parametrize(
    ("sm", "version", "gb_s"),
    [
        (60, V, 18),
        (70, V, 20),
        (80, V, 20),
        (86, V, 12),
        (89, V, 20),
        (90, V, 20.6),
        (90, (2, 19, 1), 20),
        (90, (2, 17, 1), 22),  # before 2.18.1 Hopper had no figure of its own
        (100, V, 40.1),
        (100, (2, 25, 1), 40),
        (120, V, 40.1),
        (50, V, 20),
        (70, (2, 14, 3), 22),
    ],
)
def test_nvlink_rates_by_version(sm, version, gb_s):
    assert versions.nvlink_gb_s(sm, version) == gb_s


@pytest.mark.parametrize(
    ("kind", "cpus", "gpus", "version", "level"),
    [
        ("amd", 2, 8, (2, 22, 3), "SYS"),
        ("amd", 2, 8, (2, 23, 4), "PXB"),
        ("amd", 2, 2, (2, 23, 4), "SYS"),
        ("amd", 2, 2, (2, 30, 7), "SYS"),
        ("intel", 2, 8, (2, 22, 3), "PXB"),
        ("intel", 2, 2, (2, 28, 9), "PXB"),
        ("intel", 2, 2, (2, 7, 8), "PHB"),
        ("intel", 2, 2, (2, 6, 4), "SYS"),
        ("broadwell", 2, 2, (2, 6, 4), "PXB"),
        ("broadwell", 2, 2, (2, 7, 8), "PXB"),
        ("arm", 1, 2, (2, 6, 4), "PXB"),
        ("zhaoxin", 1, 2, (2, 7, 8), "SYS"),
        ("zhaoxin", 1, 2, (2, 8, 4), "PXB"),
        ("intel", 1, 2, (2, 5, 7), "PXB"),
        ("intel", 2, 2, (2, 5, 7), "PHB"),
        ("intel", 1, 2, (2, 3, 7), "PHB"),
    ],
)
def test_default_p2p_levels(kind, cpus, gpus, version, level):
    cpu = {
        "amd": Cpu(arch="x86_64", vendor="AuthenticAMD", family=175, model=17),
        "intel": Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=85),
        "broadwell": Cpu(arch="x86_64", vendor="GenuineIntel", family=6, model=79),
        "arm": Cpu(arch="arm64"),
        "zhaoxin": Cpu(arch="x86_64", vendor="CentaurHauls", family=7, model=91),
    }[kind]
    assert versions.p2p_level(version, cpu, cpus, gpus).value == level


def test_default_gdr_levels():
    assert versions.gdr_level((2, 25, 1), c2c=True)[0].value == "PXB"
    assert versions.gdr_level((2, 28, 9), c2c=True) == (versions.gdr_level((2, 28, 9), c2c=True)[0], True)
    assert versions.gdr_level((2, 29, 2), c2c=True)[0].value == "P2C"
    assert versions.gdr_level((2, 30, 7), c2c=False)[0].value == "PXB"


def test_peer_memory_files_by_version():
    assert "/sys/module/nvidia_peermem/version" not in versions.peermem_files((2, 22, 3))
    assert "/sys/module/nvidia_peermem/version" in versions.peermem_files((2, 23, 4))
    assert "/sys/kernel/mm/memory_peers/nvidia-peermem/version" in versions.peermem_files((2, 20, 5))


def test_the_nearest_nic_has_most_bandwidth_then_the_closest_type():
    graph, table = paths(files.hgx_h100())
    for g in range(8):
        assert [graph.nets[n].name for n in locals_of(graph, table, "GPU", g, "NET")] == [f"mlx5_{g}"]


@pytest.mark.parametrize("version", [(2, 3, 7), (2, 6, 4), (2, 12, 12), (2, 18, 6), (2, 23, 4), (2, 26, 5), (2, 30, 7)])
@pytest.mark.parametrize("text", [files.dgx1v(), files.hgx_h100(), files.eight_pcie_gpus(files.AMD)])
def test_every_version_reads_every_file(version, text):
    graph, table = paths(text, version)
    assert len(graph.gpus) == 8
    assert all(find(table, "GPU", a, "GPU", b).type != "DIS" for a in range(8) for b in range(8))


@given(st.text(alphabet='<>/= "csytempuigdbvnlk:0123.', max_size=150))
def test_any_file_that_parses_makes_a_graph(text):
    try:
        root = parse(text).root
    except NcclXmlError:
        return
    all_paths(build_graph(root, V))
