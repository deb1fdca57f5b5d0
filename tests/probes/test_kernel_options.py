"""The kernel's command line, word by word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.model.kernel_options import Trouble, doubts, iommu_mode


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["pci=noacs"], [("noacs", Trouble.UNKNOWN)]),
        (["pci=realloc,noacs,noats"], [("noacs", Trouble.UNKNOWN)]),
        (["pci=realloc=off"], []),
        (["pci=disable_acs_redir=0000:00:01.1;0000:40:01.1"], []),
        (["pci=config_acs=xxx00xx@0000:00:01.1;xxx00xx@0000:40:01.1"], []),
        (["pci=disable_acs_redir=0000:00:01.1", "pci=disable_acs_redir=0000:40:01.1"],
         [("disable_acs_redir=0000:00:01.1", Trouble.REPLACED)]),
        (["pci=noats", "pci=realloc"], []),  # each is parsed: only lists replace one another
        (["amd_iommu=on"], [("on", Trouble.UNKNOWN)]),  # drivers/iommu/amd/init.c knows no such word
        (["intel_iommu=on,sm_on"], []),
        (["iommu=pt", "iommu.passthrough=0"], [("pt", Trouble.TAKEN_BACK)]),
        (["iommu=pt", "iommu=pt"], []),
        (["nvidia.x=1", "quiet"], []),
        ([], []),
    ],
)  # fmt: skip
def test_words(options: list[str], words: list[tuple[str, Trouble]]) -> None:
    assert [(d.word, d.trouble) for d in doubts(options)] == words


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        (["iommu=pt"], "identity"),
        (["iommu=pt", "iommu=nopt"], "translated"),
        (["iommu=nopt", "iommu.passthrough=1"], "identity"),
        (["intel_iommu=off"], "off"),
        (["intel_iommu=off", "intel_iommu=on"], None),
        (["intel_iommu=on", "iommu=pt"], "identity"),
        (["quiet"], None),
    ],
)
def test_the_last_word_counts(options: list[str], mode: str | None) -> None:
    found = iommu_mode(options)
    assert (found[0] if found is not None else None) == mode


@given(st.lists(st.text(max_size=60), max_size=20))
def test_any_command_line_is_read(options: list[str]) -> None:
    doubts(options)
    iommu_mode(options)
    doubts([f"pci={o}" for o in options])
