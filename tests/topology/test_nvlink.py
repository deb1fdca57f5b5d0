from __future__ import annotations

import pytest

from tests.topology import facts
from topocheck.model.base import ABSENT, UNSUPPORTED, Missing, Reason
from topocheck.model.gpu import NvLink, P2pStatus
from topocheck.topology.nvlink import graph, groups
from topocheck.topology.types import Gpu

ADDRESSES = tuple(f"0000:0{i}:00.0" for i in range(1, 5))
A, B, C, D = ADDRESSES
SWITCH = "0000:c1:00.0"


def gpus(*nvlinks: tuple[NvLink, ...]) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(address=a, label=f"GPU{i}", vendor="NVIDIA", nvml=facts.nvml(i, a, nvlinks=n))
        for i, (a, n) in enumerate(zip(ADDRESSES, nvlinks, strict=False))
    )


def test_direct_links_are_counted_per_pair() -> None:
    g = gpus(facts.links(2, B) + facts.links(1, C), facts.links(2, A), facts.links(1, A))
    found = graph(g, (), {})
    assert {k: b.links for k, b in found.items()} == {(A, B): 2, (B, A): 2, (A, C): 1, (C, A): 1}
    assert found[A, B].gb_s == pytest.approx(50.0)
    assert [x.kind for x in groups(g, found)] == ["partial"]  # B and C have no link to each other


def test_a_switch_joins_all_with_the_smaller_number_of_links() -> None:
    g = gpus(*(facts.links(n, SWITCH, "switch") for n in (18, 18, 17)))
    found = graph(g, {SWITCH}, {})
    assert found[A, B].links == 18
    assert found[A, C].links == found[C, B].links == 17
    assert found[A, C].gb_s == pytest.approx(425.0)  # 17 x 25
    assert all(b.through_switch for b in found.values())
    assert [x.kind for x in groups(g, found)] == ["switch"]


def test_a_switch_is_known_by_its_address_where_its_type_is_not_told() -> None:
    g = gpus(*(facts.links(6, SWITCH, UNSUPPORTED, 2, 25781) for _ in range(2)))
    assert graph(g, {SWITCH}, {})[A, B].links == 6


def test_a_masked_far_end_is_taken_for_a_switch() -> None:
    g = gpus(*(facts.links(18, facts.MASKED, UNSUPPORTED) for _ in range(2)))
    assert graph(g, (), {})[A, B].through_switch


def test_links_to_a_cpu_or_a_hidden_gpu_join_nothing() -> None:
    """POWER9: three links to the CPU; a container: links to a GPU that is not shown."""
    npu = facts.links(3, "0004:00:00.0", "ibmnpu", 2, 25781)
    hidden = facts.links(3, "0000:77:00.0", "gpu", 2, 25781)
    assert graph(gpus(npu, npu), (), {}) == {}
    assert graph(gpus(hidden, hidden), (), {}) == {}


def test_inactive_links_do_not_count() -> None:
    dead = tuple(NvLink(link=i, active=False) for i in range(12))
    assert graph(gpus(dead, dead), (), {}) == {}


def status(ok: set[frozenset[str]]) -> dict[tuple[str, str], P2pStatus]:
    return {
        (a, b): P2pStatus(from_address=a, to_address=b, nvlink="OK" if frozenset((a, b)) in ok else "NS")
        for a in ADDRESSES
        for b in ADDRESSES
        if a != b
    }


def test_islands_by_status_where_far_ends_are_not_told() -> None:
    """Four active links each is no full mesh: the driver says which pairs are joined (vllm-project/vllm PR 4159)."""
    untold = facts.links(4, UNSUPPORTED, UNSUPPORTED, 3, 14062)
    g = gpus(untold, untold, untold, untold)
    found = graph(g, (), status({frozenset((A, B)), frozenset((C, D))}))
    assert set(found) == {(A, B), (B, A), (C, D), (D, C)}
    assert found[A, B].links == 4
    assert found[A, B].gb_s == pytest.approx(56.25)
    assert [(x.gpus, x.kind) for x in groups(g, found)] == [((A, B), "mesh"), ((C, D), "mesh")]


def test_untold_far_ends_without_a_status_join_nothing() -> None:
    untold = facts.links(4, UNSUPPORTED, UNSUPPORTED)
    assert graph(gpus(untold, untold), (), {}) == {}


def test_one_sides_word_stands_for_a_silent_other() -> None:
    g = gpus(facts.links(4, B), facts.links(4, UNSUPPORTED, UNSUPPORTED))
    assert graph(g, (), {})[B, A].links == 4


def test_an_unknown_rate_leaves_the_links_counted() -> None:
    odd = (
        facts.links(2, B, version=ABSENT, speed=Missing(Reason.UNSUPPORTED)),
        facts.links(2, A, version=ABSENT, speed=UNSUPPORTED),
    )
    bundle = graph(gpus(*odd), (), {})[A, B]
    assert bundle.links == 2
    assert isinstance(bundle.gb_s, Missing)


def test_a_full_mesh_of_direct_links() -> None:
    g = gpus(
        facts.links(4, B) + facts.links(4, C),
        facts.links(4, A) + facts.links(4, C),
        facts.links(4, A) + facts.links(4, B),
    )
    assert [x.kind for x in groups(g, graph(g, (), {}))] == ["mesh"]
