"""Which rows a scaling run has, and what the cost model says of buckets and patterns."""

from __future__ import annotations

import pytest

from topocheck.tests_live.launch.training_job import HOOKS, MIB, layers_of
from topocheck.tests_live.training.bucket_model import step_seconds
from topocheck.tests_live.training.patterns import predicted_seconds
from topocheck.tests_live.training.plan import bucket_sizes, collective_rows, counts, places, train_rows
from topocheck.tests_live.training.report_types import JobLayout, ScaleOptions


@pytest.mark.parametrize(
    ("ranks", "per_node", "expected"),
    [(1, 0, (1,)), (2, 0, (1, 2)), (6, 0, (1, 2, 4, 6)), (24, 6, (1, 2, 4, 6, 8, 12, 16, 24)), (8, 8, (1, 2, 4, 8))],
)
def test_counts(ranks, per_node, expected):
    assert counts(ranks, per_node) == expected


def test_hosts_without_gpus_run_gloo_and_say_why_not_nccl():
    assert places(JobLayout(ranks=2), ScaleOptions()) == ([("gloo", "host")], [])
    where, why = places(JobLayout(ranks=2), ScaleOptions(backends=("nccl", "mpi")))
    assert where == [("mpi", "host")]
    assert any(w.startswith("nccl:") for w in why)
    assert any("GPU tensors" in w for w in why)


def test_with_gpus_gloo_runs_on_both_memories():
    where, _ = places(JobLayout(ranks=2, gpus=("a", "b")), ScaleOptions())
    assert where == [("nccl", "gpu"), ("gloo", "host"), ("gloo", "gpu")]


def test_rows_have_every_hook_pattern_and_bucket_once():
    rows = train_rows(JobLayout(ranks=2), ScaleOptions(gradient_bytes=8 * MIB))
    ids = [r.id for r in rows]
    assert len(ids) == len(set(ids))
    assert {r.hook for r in rows if r.exact} == set(HOOKS) - {"none"}
    assert [r.bucket_mib for r in rows if r.bucket_mib] == [1, 2, 5, 8]
    assert {r.pattern for r in rows if r.pattern} == {"backend", "ring", "parameter_server"}
    assert all(r.ranks == 2 for r in rows if r.hook != "none")


def test_one_rank_compresses_nothing():
    rows = train_rows(JobLayout(ranks=1), ScaleOptions(gradient_bytes=MIB))
    assert {(r.kind, r.hook) for r in rows} == {("step", "none"), ("digits", "none")}
    assert collective_rows(JobLayout(ranks=1), ScaleOptions()) == ()


def test_the_collective_is_as_large_as_the_gradients_where_nothing_else_is_asked_for():
    def largest(**asked: int) -> int:
        return max(collective_rows(JobLayout(ranks=2), ScaleOptions(**asked))[-1].sizes_bytes)

    assert largest() == 25 * MIB
    assert largest(gradient_bytes=100 * MIB) == 100 * MIB
    assert largest(gradient_bytes=100 * MIB, collective_bytes=MIB) == MIB


def test_bucket_sizes_grow_with_the_gradient():
    assert bucket_sizes(ScaleOptions(), 1024 * MIB) == (2, 5, 10, 25, 50, 100, 200, 1024)
    assert bucket_sizes(ScaleOptions(buckets_mib=(3.0,)), 1024 * MIB) == (3.0,)


@pytest.mark.parametrize("size", [65536, MIB, 25 * MIB, 256 * MIB])
def test_the_model_has_about_the_gradient_asked_for(size):
    width, layers = layers_of(size)
    assert layers >= 2
    assert 4 * width * width * layers == pytest.approx(max(size, 2 * 4 * width * width), rel=0.05)


def test_step_of_exchange_hidden_and_exchange_bound():
    # 4 layers of 100 bytes, backward 4 s (a layer a second), exchange of one layer 0.5 s + 0: only the last shows.
    quick = step_seconds([100] * 4, 100, serial_s=6, backward_s=4, alpha_s=0, rate=200)
    assert quick == pytest.approx(6 + 0.5)
    # At 2 s a layer the first is ready after 1 s, and then the wire is busy for 8 s: 1 + 8 + the 2 s beside backward.
    slow = step_seconds([100] * 4, 100, serial_s=6, backward_s=4, alpha_s=0, rate=50)
    assert slow == pytest.approx(2 + 1 + 8)
    # One bucket of everything waits for the whole backward pass.
    whole = step_seconds([100] * 4, 400, serial_s=6, backward_s=4, alpha_s=0, rate=50)
    assert whole == pytest.approx(2 + 4 + 8)


def test_ring_and_parameter_server():
    # 4 ranks, 100 bytes, 10 bytes/s: ring 2 x 3/4 x 100 / 10 = 15 s, server 2 x 3 x 100 / 10 = 60 s.
    assert predicted_seconds("ring", 4, 100, 0, 10) == pytest.approx(15)
    assert predicted_seconds("parameter_server", 4, 100, 0, 10) == pytest.approx(60)
    assert predicted_seconds("ring", 4, 0, 1, 10) == pytest.approx(6)
    assert predicted_seconds("parameter_server", 4, 0, 1, 10) == pytest.approx(2)
