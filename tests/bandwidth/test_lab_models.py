"""The arithmetic of the labs, each number worked out by hand beside it."""

from __future__ import annotations

import pytest

from topocheck.bandwidth import collective_model as c
from topocheck.bandwidth import compression, fusion, pipeline, server_model
from topocheck.bandwidth.cost_model import fit_sweep, point_of
from topocheck.bandwidth.pipeline import Pass
from topocheck.model.measurement import Measurement

US, MB = 1e-6, 1e6
LINK = (10 * US, 1000 * MB)
"""10 us and 1 GB/s: 1 MB takes 10 us + 1 ms."""


def test_ring_broadcast():
    # N(S+K-2)/(S B) = 8 MB (4+4-2)/(4 x 1 GB/s) = 12 ms; with alpha 6 steps of (10 us + 2 ms) = 12.06 ms.
    assert c.ring_broadcast_s(4, 8 * MB, 4, 1000 * MB) == pytest.approx(12e-3)
    assert c.ring_broadcast_s(4, 8 * MB, 4, 1000 * MB, 10 * US) == pytest.approx(12.06e-3)
    # One piece: K - 1 = 3 hops of 8 ms. Two ranks: one hop, whatever the pieces.
    assert c.ring_broadcast_s(4, 8 * MB, 1, 1000 * MB) == pytest.approx(24e-3)
    assert c.ring_broadcast_s(2, 8 * MB, 16, 1000 * MB) == pytest.approx(8e-3)


def test_best_pieces_is_where_the_time_is_least():
    # sqrt(8 MB x 2 / (10 us x 1 GB/s)) = sqrt(1600) = 40.
    best = c.best_pieces(4, 8 * MB, *LINK)
    assert best == 40
    times = {s: c.ring_broadcast_s(4, 8 * MB, s, LINK[1], LINK[0]) for s in range(1, 200)}
    assert min(times, key=times.__getitem__) == best
    assert c.best_pieces(2, 8 * MB, *LINK) == 1


def test_all_reduce():
    # 4 ranks, 4 MB: 6 steps of 10 us + 1 ms = 6.06 ms.
    assert c.ring_all_reduce_s(4, 4 * MB, *LINK) == pytest.approx(6.06e-3)
    # 2 nodes of 2: within 2 x 1 step of 2 MB (2.01 ms each), between 2 steps of 1 MB at 0.1 GB/s and 50 us (10.05 ms).
    far = (50 * US, 100 * MB)
    assert c.hierarchical_all_reduce_s(2, 2, 4 * MB, LINK, far) == pytest.approx(2 * 2.01e-3 + 2 * 10.05e-3)
    # The flat ring sends over the slow link in each of its 6 steps: 6 x 10.05 ms.
    assert c.ring_all_reduce_s(4, 4 * MB, *far) > c.hierarchical_all_reduce_s(2, 2, 4 * MB, LINK, far)


def test_gather_scatter_and_trees():
    # The root takes 3 parts of 1 MB: 10 us + 3 ms. A binomial tree of 5 ranks has 3 levels.
    assert c.rooted_s(4, 1 * MB, *LINK) == pytest.approx(3.01e-3)
    assert c.tree_broadcast_s(5, 1 * MB, *LINK) == pytest.approx(3 * 1.01e-3)
    assert c.ring_part_s(4, 4 * MB, *LINK) == pytest.approx(3 * 1.01e-3)
    assert c.halo_s(2, 1 * MB, *LINK) == pytest.approx(2.02e-3)


@pytest.mark.parametrize(
    ("stages", "micro", "share"), [(2, 1, 1 / 2), (4, 1, 3 / 4), (4, 8, 3 / 11), (1, 8, 0.0), (4, 13, 3 / 16)]
)
@pytest.mark.parametrize("schedule", pipeline.SCHEDULES)
def test_the_bubble_is_what_going_through_the_passes_gives(schedule, stages, micro, share):
    assert pipeline.bubble(stages, micro) == pytest.approx(share)
    took = pipeline.step_s(schedule, stages, micro, 1.0, 2.0)
    assert 1 - 3.0 * micro / took == pytest.approx(share)


def test_the_passes_of_two_stages_by_hand():
    f, b = (lambda i: Pass(True, i)), (lambda i: Pass(False, i))
    assert pipeline.passes("f_then_b", 0, 2, 3) == (f(0), f(1), f(2), b(0), b(1), b(2))
    # The last stage runs each backward pass at once; the first has two micro-batches on the way.
    assert pipeline.passes("1f1b", 1, 2, 3) == (f(0), b(0), f(1), b(1), f(2), b(2))
    assert pipeline.passes("1f1b", 0, 2, 3) == (f(0), f(1), b(0), f(2), b(1), b(2))
    assert [pipeline.held(pipeline.passes(s, 0, 4, 8)) for s in pipeline.SCHEDULES] == [8, 4]


def test_messages_lengthen_the_step():
    # Two stages, one micro-batch: forward 1 + send + 1, backward 2 + send + 2.
    assert pipeline.step_s("f_then_b", 2, 1, 1.0, 2.0, 0.5) == pytest.approx(7.0)


def test_parameter_servers():
    # 4 workers, 1 server, 1 MB, 5 ms: 5 ms + 20 us + 2 x 4 x 1 ms = 13.02 ms. Two servers halve what a port carries.
    assert server_model.synchronous_step_s(4, 1, MB, 5e-3, *LINK) == pytest.approx(13.02e-3)
    assert server_model.synchronous_step_s(4, 2, MB, 5e-3, *LINK) == pytest.approx(9.02e-3)
    # With 8 servers for 4 workers a worker's own port is the narrow one: 2 x 1 ms.
    assert server_model.synchronous_step_s(4, 8, MB, 5e-3, *LINK) == pytest.approx(7.02e-3)
    # Ring: 5 ms + 6 x (10 us + 0.25 ms) = 6.56 ms.
    assert server_model.ring_step_s(4, MB, 5e-3, *LINK) == pytest.approx(6.56e-3)
    # Alone 7.02 ms a step: 4 workers make 569.8 a second; 64 would make 9,117, and the port takes 1,000.
    assert server_model.asynchronous_steps_per_s(4, 1, MB, 5e-3, *LINK) == pytest.approx(4 / 7.02e-3)
    assert server_model.asynchronous_steps_per_s(64, 1, MB, 5e-3, *LINK) == pytest.approx(1000)
    assert server_model.mean_staleness(4) == 3


@pytest.mark.parametrize(
    ("hook", "payload", "sent"),
    [
        # 1024 elements and 4 ranks: all_reduce sends 2 x 3/4 of the payload, all_gather 3 times the payload.
        ("none", 4096, 6144.0),
        ("fp16", 2048, 3072.0),
        ("fp8", 1028, 3084.0),
        ("8bit_tensor", 1028, 3084.0),
        ("8bit_channel", 2 * 516, 3096.0),
        ("topk", 80, 240.0),
        ("sign", 132, 396.0),
        ("powersgd", 4 * 64, 384.0),
    ],
)
def test_bytes_of_compression(hook, payload, sent):
    assert compression.payload_bytes(hook, 1024) == payload
    assert compression.sent_bytes(hook, 1024, 4) == sent


def test_fused_by_index_and_by_size():
    assert fusion.by_index([1, 2, 4, 1, 2], 2) == [3, 5, 2]
    assert fusion.by_size([4, 4, 4, 4], 8) == [8, 8]
    assert fusion.by_size([4, 4, 4], 8) == [8, 4]
    assert fusion.by_size([10], 1) == [10]
    # Two buffers of 1 and 2 MB: 10 us + 1 ms and 10 us + 2 ms.
    assert fusion.exchange_s([MB, 2 * MB], *LINK) == pytest.approx(3.02e-3)


def sweep(sizes, spread=0.0, bend=0.0):
    out = []
    for size in sizes:
        us = 1e6 * (LINK[0] + size / LINK[1]) * (1 + bend * (size > MB))
        out.append(
            Measurement(
                id=str(size),
                kind="lab",
                size_bytes=int(size),
                samples=(us * (1 - spread), us, us * (1 + spread)),
                median=us,
                spread=spread,
                unit="us",
                time_us=us,
            )
        )
    return out


def advice(points):
    made = [point_of(p) for p in points]
    return fusion.buffer_for(fit_sweep("x", made), made)


def test_a_buffer_from_a_steady_saturated_sweep():
    # alpha beta = 10 kB; 80 % takes four times that.
    got = advice(sweep([1e3, 1e4, 1e5, 1e6, 1e7]))
    assert got.size_bytes == pytest.approx(40_000, rel=0.01)
    assert got.low <= got.size_bytes <= got.high
    assert got.reason == ""


def test_a_buffer_off_a_curve_that_bends():
    # Half the rate above 1 MB: the peak is 1 MB / 1.01 ms = 990 MB/s, and 80 % of it lie between 10 and 100 kB, where
    # the rate is 500 and 909 MB/s: 10 kB x 10 ^ ((792 - 500) / (909 - 500)) = 51.8 kB.
    got = advice(sweep([1e3, 1e4, 1e5, 1e6, 1e7, 1e8], bend=1.0))
    assert got.how == "read off the curve"
    assert got.size_bytes == pytest.approx(51_800, rel=0.01)


@pytest.mark.parametrize(
    ("points", "why"),
    [
        (sweep([1e3, 3e3, 1e4, 3e4]), "not saturated"),
        (sweep([1e3, 1e4, 1e5, 1e6, 1e7], spread=0.5), "scatter by more than 20%"),
        (sweep([1e3, 1e4]), "a fit needs 4 or more"),
    ],
    ids=["not saturated", "unsteady", "too few"],
)
def test_no_buffer_where_the_sweep_does_not_say(points, why):
    got = advice(points)
    assert got.size_bytes is None
    assert why in got.reason
