"""What ranks do in labs, on threads: every exchange brings what it should, and counts what it should."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tests_live.labs.threads import on_ranks
from topocheck.bandwidth.compression import payload_bytes
from topocheck.model.measurement import HOOK_NAMES
from topocheck.tests_live.collectives.by_hand import ring, ring_broadcast
from topocheck.tests_live.labs.bench import Bench, Told
from topocheck.tests_live.labs.rank import RUN
from topocheck.tests_live.launch.lab_job import LabRow
from topocheck.tests_live.training.codecs import Memory, mean, shapes_of

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

QUICK: dict[str, Any] = {"backend": "gloo", "samples": 2, "sample_s": 0.0}


def told(row: LabRow) -> dict[str, Told]:
    """Return what rank 0 of a row tells, by name."""

    def work(wire: Any) -> list[Told]:
        return list(RUN[row.work](Bench(torch, wire, row, lambda call: None)))

    return {t.name: t for t in on_ranks(torch, row.ranks, work)[0]}


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    "work",
    [
        "gather",
        "scatter",
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "ring_all_reduce",
        "broadcast",
        "ring_broadcast",
    ],
)
def test_an_exchange_brings_what_it_should(work: Any, ranks: int) -> None:
    found = told(LabRow(id="x", work=work, ranks=ranks, size_bytes=4096, pieces=3, **QUICK))
    assert found["time"].wrong == 0
    assert found["time"].samples[0] > 0


@pytest.mark.parametrize(("ranks", "inside"), [(4, 2), (6, 3), (6, 2)])
def test_the_hierarchical_all_reduce_sums_over_all_nodes(ranks: int, inside: int) -> None:
    row = LabRow(id="x", work="hierarchical_all_reduce", ranks=ranks, inside=inside, size_bytes=4096, **QUICK)
    assert told(row)["time"].wrong == 0


def test_a_wrong_exchange_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from topocheck.tests_live.labs import exchange

    def lazy(wire: Any, buffer: Any, pieces: int) -> None:
        """Bring nothing to the last rank."""
        if wire.rank < wire.size - 1:
            buffer.copy_(torch.arange(251).float().repeat(9)[: buffer.numel()])

    monkeypatch.setattr(exchange, "ring_broadcast", lazy)
    assert told(LabRow(id="x", work="ring_broadcast", ranks=3, size_bytes=4096, **QUICK))["time"].wrong > 0


@pytest.mark.parametrize("pieces", [1, 2, 7, 64])
def test_pieces_of_unequal_length(pieces: int) -> None:
    def work(wire: Any) -> Any:
        mine = torch.arange(50.0) if wire.rank == 0 else torch.zeros(50)
        ring_broadcast(wire, mine, pieces)
        return mine

    assert all(bool((t == torch.arange(50.0)).all()) for t in on_ranks(torch, 4, work))


def test_a_ring_of_parts_of_unequal_length() -> None:
    def work(wire: Any) -> Any:
        mine = torch.arange(10.0) + wire.rank
        ring(torch, wire, mine)
        return mine

    # 0 + 1 + 2 beside three times the place.
    assert all(bool((t == 3 * torch.arange(10.0) + 3).all()) for t in on_ranks(torch, 3, work))


@pytest.mark.parametrize(("work", "ranks"), [("ping_pong", 2), ("one_way", 2), ("both_ways", 2), ("halo", 3)])
def test_messages_and_borders_arrive(work: Any, ranks: int) -> None:
    assert told(LabRow(id="x", work=work, ranks=ranks, size_bytes=256, count=4, **QUICK))["time"].wrong == 0


@pytest.mark.parametrize(("schedule", "held"), [("f_then_b", 6), ("1f1b", 3)])
def test_a_pipeline_ends_and_holds_what_its_schedule_says(schedule: str, held: int) -> None:
    found = told(LabRow(id="x", work="pipeline", ranks=3, pieces=6, name=schedule, size_bytes=64, **QUICK))
    assert found["time"].wrong == 0
    assert found["held"].samples == [held]


@pytest.mark.parametrize("servers", [1, 2])
def test_parameter_servers(servers: int) -> None:
    row = LabRow(id="x", work="sync_servers", ranks=servers + 2, count=servers, size_bytes=64, steps=3, **QUICK)
    assert told(row)["rate"].samples[0] > 0
    found = told(
        LabRow(id="x", work="async_servers", ranks=servers + 2, count=servers, size_bytes=64, steps=5, **QUICK)
    )
    # Of two workers one may be ahead by all its steps, never by more.
    assert 0 <= found["staleness"].samples[0] <= found["most_stale"].samples[0] <= 5


def test_one_worker_is_never_stale() -> None:
    found = told(LabRow(id="x", work="async_servers", ranks=2, count=1, size_bytes=64, steps=5, **QUICK))
    assert found["most_stale"].samples == [0.0]


def test_a_backend_without_any_source_says_so() -> None:
    row = LabRow(id="x", work="async_servers", ranks=2, count=1, size_bytes=64, **QUICK)

    def work(wire: Any) -> None:
        wire.any_source = False
        list(RUN[row.work](Bench(torch, wire, row, lambda call: None)))

    with pytest.raises(Exception, match="no receive from any source"):
        on_ranks(torch, 2, work)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
def test_fused_buffers(name: str) -> None:
    row = LabRow(id="x", work="fused", ranks=2, name=name, layers=(64, 128, 64), count=2, size_bytes=256, **QUICK)
    assert told(row)["time"].samples[0] > 0


def means(hook: Any, gradients: list[Any], rounds: int = 1) -> tuple[Any, int]:
    """Return the mean that rank 0 gets in the last of some rounds, and the payload's bytes."""

    def work(wire: Any) -> Any:
        memory = Memory()
        for _ in range(rounds):
            got = mean(torch, wire, hook, gradients[wire.rank].clone(), memory)
        return got

    out = on_ranks(torch, len(gradients), work)
    assert all(bool(torch.equal(t, out[0][0])) for t, _ in out)
    return out[0]


@pytest.mark.parametrize("hook", HOOK_NAMES)
def test_the_payload_is_what_the_arithmetic_says(hook: Any) -> None:
    gradients = [torch.randn(1500, generator=torch.Generator().manual_seed(r)) for r in range(3)]
    assert means(hook, gradients)[1] == payload_bytes(hook, 1500)


@pytest.mark.parametrize(
    ("hook", "most"),
    # Rounding: 11 and 8 bits of mantissa; 4 bits of e4m3; 1/254 of the largest of the tensor, or of 512 numbers.
    [("none", 1e-6), ("fp16", 2**-11), ("bf16", 2**-7), ("fp8", 2**-4), ("8bit_tensor", 2e-2), ("8bit_channel", 1e-2)],
)
def test_how_far_the_mean_is_off(hook: Any, most: float) -> None:
    gradients = [torch.randn(1500, generator=torch.Generator().manual_seed(r)) for r in range(3)]
    exact = sum(gradients) / 3
    got, _ = means(hook, gradients)
    assert float((got - exact).norm() / exact.norm()) < most


def test_top_k_by_hand() -> None:
    # 1 % of 100 elements is one: rank 0's is 8 at place 3, rank 1's -4 at place 5.
    a, b = torch.zeros(100), torch.zeros(100)
    a[3], a[7], b[5] = 8.0, 1.0, -4.0
    got, _ = means("topk", [a, b])
    assert (got[3], got[5], got[7]) == (4.0, -2.0, 0.0)
    # What was left out grows until it is sent: in round 9 place 7 holds 9, more than 8.
    got, _ = means("topk", [a, b], rounds=9)
    assert (got[3], got[7]) == (0.0, 4.5)


def test_signs_by_hand() -> None:
    # Mean sizes 2 and 1: (2, -2, 2) and (1, 1, -1), halved.
    got, _ = means("sign", [torch.tensor([1.0, -2.0, 3.0]), torch.tensor([1.0, 1.0, -1.0])])
    assert got.tolist() == [1.5, -0.5, 0.5]


def test_powersgd_is_exact_for_a_matrix_of_rank_one() -> None:
    u, v = torch.arange(1.0, 11.0), torch.linspace(-1, 1, 10)
    one = torch.outer(u, v).reshape(-1)
    got, _ = means("powersgd", [one, 3 * one])
    assert float((got - 2 * one).norm() / one.norm()) < 1e-5


def test_powersgd_by_layers_brings_vectors_exactly() -> None:
    net = torch.nn.Linear(3, 2)
    shapes = shapes_of(net.parameters())
    assert shapes == [(2, 3), (1, 2)]
    flat = torch.tensor([1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 5.0, 7.0])

    def work(wire: Any) -> Any:
        return mean(torch, wire, "powersgd", flat.clone(), Memory(shapes))

    got, size = on_ranks(torch, 2, work)[0]
    assert torch.allclose(got, flat, atol=1e-5)
    assert size == 4 * (2 + 3 + 1 + 2)


def test_zeros_stay_zeros() -> None:
    for hook in HOOK_NAMES:
        got, _ = means(hook, [torch.zeros(600), torch.zeros(600)])
        assert not got.any(), hook
