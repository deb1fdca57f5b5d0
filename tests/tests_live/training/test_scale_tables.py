"""From measurements to tables, text and curve."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.model.version import SCHEMA_VERSION
from topocheck.render.html.scale_curve import svg
from topocheck.render.page import Style
from topocheck.render.scale import scale_csv, scale_json, scale_markdown, scale_text
from topocheck.tests_live.launch.training_job import MIB
from topocheck.tests_live.training.job_layout import _Word, job_of
from topocheck.tests_live.training.predict import all_reduce_fits, fit_of, unsure
from topocheck.tests_live.training.report_types import JobLayout, ScaleOptions, ScaleReport
from topocheck.tests_live.training.summary import summarize

OPTIONS = ScaleOptions(gradient_bytes=8 * MIB, batch=32, hooks=("none", "fp16", "bf16"))


def step(name: str, us: float, kind: str = "train_step", unit: str = "us") -> Measurement:
    ranks = int(name.split(":")[2])
    mode = name.rpartition("pattern ")[2] if "pattern" in name else None
    return Measurement(
        id=f"scale:train:{name}:{kind}", kind=kind, backend="gloo", ranks=ranks, mode=mode, placement="host",
        size_bytes=8 * MIB, samples=(us,), median=us, min=us, max=us, unit=unit,
    )  # fmt: skip


def sweep(ranks: int, size: int, us: float) -> Measurement:
    return Measurement(
        id=f"c:{ranks}:{size}", kind="collective", collective="all_reduce", backend="gloo", ranks=ranks,
        mode="back_to_back", size_bytes=size, median=us, unit="us", time_us=us, busbw_gb_s=size / us / 1e3,
    )  # fmt: skip


def even(sizes: tuple[int, ...]) -> list[Measurement]:
    """A sweep whose every time is 100 us + size / (10 GB/s)."""
    return [sweep(4, s, 100 + s / 1e4) for s in sizes]


SWEPT = (1 << 16, 1 << 18, 1 << 20, 4 << 20, 8 << 20)


def report(cores: int = 4, swept: Sequence[Measurement] | None = None) -> ScaleReport:
    outcomes: list[Measurement | NotMeasured] = [
        step("gloo:host:1:step", 1000),
        step("gloo:host:1:step", 600, "backward"),
        step("gloo:host:2:step", 1250),
        step("gloo:host:4:step", 2000),
        step("gloo:host:4:hook fp16", 1000),
        step("gloo:host:4:hook fp16", 3e-4, "gradient_error", "relative"),
        step("gloo:host:4:digits fp16", 0.95, "accuracy", "share"),
        step("gloo:host:4:bucket 1", 3000),
        step("gloo:host:4:bucket 8", 2000),
        step("gloo:host:4:pattern ring", 800, "pattern"),
        step("gloo:host:4:pattern parameter_server", 2400, "pattern"),
        NotMeasured(id="scale:train:gloo:host:4:hook bf16", reason="gloo, host, bf16: wants NCCL"),
        sweep(2, 8 * MIB, 900),
        *(even(SWEPT) if swept is None else swept),
    ]
    raw = ScaleReport(job=JobLayout(ranks=4, cores=cores), options=OPTIONS)
    return summarize(raw, outcomes)


def test_speed_up_and_efficiency():
    points = {p.ranks: p for p in report().points if p.curve == "training step"}
    # 32 samples in 1000 us are 32000 a second; 4 x 32 in 2000 us are 64000.
    assert points[1].rate == pytest.approx(32000)
    assert points[4].rate == pytest.approx(64000)
    assert points[2].speed_up == pytest.approx(1.6)
    assert points[2].efficiency == pytest.approx(0.8)
    assert points[4].efficiency == pytest.approx(0.5)


def test_more_ranks_than_cores_claim_nothing():
    points = {p.ranks: p for p in report(cores=2).points if p.curve == "training step"}
    assert points[2].efficiency is not None
    assert points[4].oversubscribed
    assert points[4].efficiency is None
    assert "oversubscribed" in scale_text(report(cores=2), Style())


def test_serial_parallel_and_compressed_stand_together():
    rows = {(t.ranks, t.hook): t for t in report().training}
    assert list(rows) == [(1, "none"), (4, "none"), (4, "fp16"), (4, "bf16")]
    assert rows[4, "fp16"].step_ratio == pytest.approx(0.5)
    assert rows[4, "fp16"].gradient_error == pytest.approx(3e-4)
    assert rows[4, "fp16"].accuracy == 0.95
    assert rows[4, "bf16"].step_us is None
    assert "wants NCCL" in rows[4, "bf16"].reason
    assert "gloo, host, bf16: wants NCCL" in report().not_applicable
    # In words it stands below its table, once.
    text = scale_text(report(), Style())
    assert text.count("wants NCCL") == 1
    assert text.index("wants NCCL") < text.index("Bucket size")
    assert "| n/a: gloo, host, bf16: wants NCCL |" in scale_markdown(report())


def test_the_fastest_bucket_beside_the_predicted():
    r = report()
    (s,) = r.sweeps
    assert s.best_mib == 8
    assert s.predicted_mib in (1, 8)
    by_size = {b.bucket_mib: b.predicted_us for b in r.buckets}
    # One bucket of 8 MiB: backward 600 us, then 100 us + 8 MiB / 10 GB/s = 938.9 us, and 400 us beside backward.
    assert by_size[8] == pytest.approx(400 + 600 + 938.9, rel=0.01)


def test_patterns_have_a_prediction():
    rows = {p.pattern: p for p in report().patterns}
    assert rows["ring"].predicted_us == pytest.approx(938.9, rel=0.01)
    # Four ranks: the server's port carries 2 x 3 buffers, a ring's link 2 x 3/4 of one; four times as long, less hops.
    assert rows["parameter_server"].predicted_us == pytest.approx(4 * 838.9 + 2 * 100 / 6, rel=0.01)


UNEVEN = [sweep(4, s, (100 + s / 1e4) * f) for s, f in zip(SWEPT, (1.6, 0.6, 1.5, 0.6, 1.6), strict=True)]
"""Times up to 1.6 times beside 0.6 times a line's, as on a host whose ranks wait for each other's core."""


@pytest.mark.parametrize(
    ("swept", "why"),
    [
        # 8 MiB to be exchanged, and three sizes, of which the cost model makes nothing.
        (even(SWEPT[2:]), "3 sizes; a fit needs 4 or more"),
        # Twice the bytes in no more time.
        ([sweep(4, s, 500) for s in SWEPT], "barely longer"),
        (UNEVEN, "the fit is uncertain: an all_reduce of 1 MiB takes"),
        # Four sizes, but up to 4 MiB: nothing is known of 8.
        (even(SWEPT[:4]), "ends at 4 MiB, below an exchange of 8 MiB"),
        ([], "no sweep of all_reduce over gloo with 4 ranks"),
    ],
)
def test_a_fit_that_says_little_foretells_nothing_and_says_why(swept, why):
    r = report(swept=swept)
    (s,) = r.sweeps
    assert [b.predicted_us for b in r.buckets] == [None, None]
    assert s.predicted_mib is None
    assert why in s.reason
    assert [p.predicted_us for p in r.patterns] == [None, None]
    assert all(p.reason for p in r.patterns)
    text = " ".join(scale_text(r, Style(width=300)).split())
    assert f"no prediction: {s.reason}" in text
    assert "the cost model said" not in text
    assert json.loads(scale_json(r))["sweeps"][0]["reason"] == s.reason


def test_two_real_sweeps_of_which_one_foretold_right():
    # Two H100: the model said 1 MiB over NCCL (measured: twice the time of the fastest, 64 MiB), and 66.1 ms for
    # that over Gloo in host memory (measured: 68.5 ms).
    kept = Path(__file__).parents[3] / "docs" / "measurements" / "2026-11-28-h100x2" / "scale.json"
    measured = msgspec.convert(json.loads(kept.read_text())["measurements"], list[Measurement])
    fits = all_reduce_fits(measured)
    sizes = (1 * MIB, 64 * MIB)
    assert "the fit is uncertain" in unsure(fits["nccl", 2], sizes)
    assert unsure(fits["gloo", 2], sizes) == ""


def test_gloo_on_gpus_is_not_foretold_by_a_sweep_of_host_memory():
    fits = all_reduce_fits(even(SWEPT))
    assert fit_of(fits, "gloo", "host", 4)[0] is not None
    assert fit_of(fits, "gloo", "gpu", 4) == (None, "all_reduce over Gloo was swept in host memory only")


def test_every_rendering_holds_together():
    r = report()
    for width in (60, 80, 120):
        text = scale_text(r, Style(width=width))
        assert "training step, gloo, host memory" in text
        lines = text.splitlines()
        assert max(map(len, lines)) <= max(width, 80)
        if width >= 80:
            # A bar a row: the two curves have three points and two.
            assert sum(line[-1:] in tuple("▏▎▍▌▋▊▉█") for line in lines) == 3 + 2
    assert json.loads(scale_json(r))["schema_version"] == SCHEMA_VERSION
    lines = list(csv.DictReader(io.StringIO(scale_csv(r))))
    told = {(x["curve"], x["ranks"], x["size_bytes"], x["batch"]) for x in lines}
    assert told >= {("training step", "4", "8388608", "32"), ("all_reduce", "2", "8388608", "")}
    given = "8 MiB of gradients, 32 samples a rank"
    assert f"| training step, gloo, host memory | {given} | 4 |" in scale_markdown(r)
    text = scale_text(r, Style())
    assert f"training step, gloo, host memory\n  {given}\n" in text
    assert "all_reduce, gloo, host memory\n  8 MiB\n" in text
    assert f"Serial, parallel and compressed training\n  host: {given}\n" in text
    assert f"gloo, host, 4 ranks\n  {given}\n" in text
    tables = json.loads(scale_json(r))
    assert {(t["gradient_bytes"], t["batch"]) for k in ("training", "buckets", "sweeps") for t in tables[k]} == {
        (8 * MIB, 32)
    }
    assert {p["size_bytes"] for p in tables["patterns"]} == {8 * MIB}
    root = ElementTree.fromstring(svg(r))
    shapes = [e.get("class", "") for e in root.iter() if e.tag.endswith("}circle")]
    assert len([s for s in shapes if s.startswith("dot c0")]) == 3 + 1  # three points, and the legend


def test_nothing_measured_renders_too():
    empty = ScaleReport(job=JobLayout(ranks=2), options=ScaleOptions())
    assert "Scaling" in scale_text(empty, Style())
    ElementTree.fromstring(svg(empty))


def test_ground_of_two_nodes_in_blocks():
    words = [_Word("a", (0,), 0), _Word("a", (1,), 0), _Word("b", (0,), 0), _Word("b", (1,), 0)]
    g = job_of(words, "slurm")
    # Each rank is bound to a core of its own; the node has both.
    assert (g.ranks, g.nodes, g.ranks_per_node, g.cores) == (4, 2, 2, 2)
    mixed = job_of([words[0], words[2], words[1], words[3]], "slurm")
    assert mixed.ranks_per_node == 0
    assert job_of([_Word("a", (0,), 1), _Word("a", (0,), 1)], "slurm").gpus == ()
