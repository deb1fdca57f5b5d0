from __future__ import annotations

import re

import pytest

from topocheck.knowledge import products
from topocheck.knowledge.tables import TABLES


@pytest.mark.parametrize(
    ("name", "form_factor", "links", "p2p", "gdr"),
    [
        ("NVIDIA H100 80GB HBM3", "SXM", 18, True, True),
        ("NVIDIA H100 PCIe", "PCIe", None, True, True),
        ("NVIDIA H100 NVL", "PCIe", 12, True, True),
        ("NVIDIA A100-SXM4-80GB", "SXM", 12, True, True),
        ("NVIDIA A100 80GB PCIe", "PCIe", None, True, True),
        ("A100-PCIE-40GB", "PCIe", None, True, True),
        ("Tesla V100-SXM2-32GB", "SXM", 6, True, True),
        ("Tesla V100-PCIE-16GB", "PCIe", 0, True, True),
        ("NVIDIA GH200 480GB", "superchip", 18, True, True),
        ("NVIDIA GB200", "superchip", 18, True, True),
        ("NVIDIA L40S", "PCIe", 0, True, True),
        ("NVIDIA GeForce RTX 3090", "PCIe", None, False, False),
        ("NVIDIA GeForce RTX 4090", "PCIe", 0, False, False),
        ("NVIDIA GeForce RTX 5090", "PCIe", 0, False, False),
        ("NVIDIA RTX 6000 Ada Generation", "PCIe", 0, True, True),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "PCIe", 0, True, True),
        ("NVIDIA H20", "SXM", 18, True, True),
        ("NVIDIA H200", "SXM", 18, True, True),
        ("NVIDIA L4", "PCIe", 0, None, True),
    ],
)
def test_names_as_nvml_spells_them(name, form_factor, links, p2p, gdr) -> None:
    p = products.find_product(name)
    assert p is not None
    assert (p.form_factor, p.nvlink_links, p.p2p_pcie, p.gpudirect_rdma) == (form_factor, links, p2p, gdr)


def test_an_unknown_name_is_not_matched_to_the_nearest() -> None:
    assert products.find_product("NVIDIA Q900 FutureCard") is None
    # the name decides even where the id would fit
    assert products.find_product("NVIDIA Q900 FutureCard", 0x2330) is None


def test_the_id_serves_where_there_is_no_name() -> None:
    p = products.find_product(None, 0x2321)
    assert p is not None
    assert p.name == "H100 NVL"
    assert products.find_product(None, 0xFFFF) is None
    assert products.find_product(None, None) is None


def test_no_device_id_stands_twice_and_patterns_compile() -> None:
    every = TABLES["products"].rows()
    ids = [i for p in every for i in p.device_ids]
    assert len(ids) == len(set(ids))
    for p in every:
        re.compile(p.name_pattern)


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ((0x1000, 0xC010, 0xA064), "two_level"),
        ((0x1000, 0xC030, 0x0012), "two_level_outer"),
        ((0x1000, 0xC030, 0x1005), "two_level_inner"),
        ((0x1000, 0xC030, 0x2005), None),
        ((0x1000, 0xC010, None), None),
        ((0x104C, 0x8232, None), "emulated"),
        ((0x104C, 0x8233, 0x0000), "emulated"),
        ((0x1B36, 0x000C, None), "emulated"),
        ((0x10B5, 0x8796, None), None),
    ],
)
def test_switches(ids, kind) -> None:
    assert products.switch_kind(*ids) == kind


def test_efficiencies_grow_stricter_from_fail_to_pass() -> None:
    for r in TABLES["efficiencies"].rows():
        assert products.efficiency(r.kind, r.variant) == r
        assert 0 < (r.fail_below or 0.01) < r.pass_at_least < 1.1
    assert products.efficiency("p2p", "nvlink4").fail_below == 0.74
    assert products.efficiency("p2p", "tin-can") is None


@pytest.mark.parametrize("code", ["CNS", "GNS", "TNS", "NS", "DR", "U"])
def test_codes_are_spelt_out(code: str) -> None:
    meaning, fix = products.p2p_code(code)
    assert len(meaning) > 15
    assert fix


def test_nic_drivers() -> None:
    assert products.dmabuf_kernel("mlx5_core") == (5, 12)
    assert products.dmabuf_kernel("mlx4_core") is None
