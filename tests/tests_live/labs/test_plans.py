"""What labs plan and what they make of results: every row once, every table filled, derived columns by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.placement.machines import look
from topocheck.bandwidth.lab_catalogue import BY_NAME, LABS
from topocheck.model.base import ABSENT
from topocheck.model.lab import LabTable
from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.model.node import Node
from topocheck.tests_live.labs.bench import Told
from topocheck.tests_live.labs.plans import gdr, stages, training, unmeasured
from topocheck.tests_live.labs.plans.bounds import network_of
from topocheck.tests_live.labs.plans.bounds import table as bounds_table
from topocheck.tests_live.labs.plans.common import LabOptions, Links, Results, Rows, link_rows
from topocheck.tests_live.labs.plans.unmeasured import HOW_TO_SEE, why_no_gpu_mpi
from topocheck.tests_live.labs.rank import measurement
from topocheck.tests_live.labs.run import LIVE, scattered_note
from topocheck.tests_live.launch.lab_job import LabRow
from topocheck.tests_live.training.report_types import JobLayout
from topocheck.topology.types import Nic, Topology

JOB = JobLayout(ranks=4, cores=4)
OPTIONS = LabOptions(backends=("gloo", "mpi"), ranks=(2, 4), samples=2)
NAMES = {
    "ping_pong": ("time",), "one_way": ("time",), "both_ways": ("time",), "fused": ("time",),
    "halo": ("time", "compute", "exchange"), "pipeline": ("time", "held"), "torch_pipeline": ("time", "held"),
    "ring_workers": ("time", "rate"),
    "sync_servers": ("time", "rate"), "async_servers": ("rate", "staleness", "most_stale"),
    "codec": ("payload", "compress", "send", "decompress"),
}  # fmt: skip


def made(rows: Rows) -> list[Measurement | NotMeasured]:
    """Return results for all rows: messages and exchanges of 10 us and 1 GB/s, all else 1 ms."""
    out: list[Measurement | NotMeasured] = []
    for row in rows.lab:
        us = 10 + row.size_bytes / 1000 if row.work not in ("fused", "codec") else 1000.0
        out += [measurement(row, Told(n, [us, us], wrong=0)) for n in NAMES.get(row.work, ("time",))]
    for t in rows.train:
        stub = LabRow(id=t.id, work="halo", backend=t.backend, ranks=t.ranks)
        kinds = ("accuracy", "epoch") if t.kind == "digits" else ("train_step", "gradient_error")
        out += [measurement(stub, Told(k, [1000.0 * t.ranks])) for k in kinds]
    return out


def filled(name: str, rows: Rows, outcomes: Any, job: JobLayout = JOB, without: dict[str, str] | None = None) -> Any:
    if name == "backends":
        return training.fill_backends(job, OPTIONS, without or {}, rows, Results(outcomes), {"on": "no NIC"})
    return LIVE[name][1](job, OPTIONS, without or {}, rows, Results(outcomes))


def plan(name: str, job: JobLayout = JOB, options: LabOptions = OPTIONS, without: dict[str, str] | None = None) -> Rows:
    return (training.plan_backends if name == "backends" else LIVE[name][0])(job, options, without or {})


LIVE_NAMES = [x.name for x in LABS if x.backends]


@pytest.mark.parametrize("name", LIVE_NAMES)
def test_every_row_is_named_once_and_its_numbers_reach_a_table(name: str) -> None:
    rows = plan(name)
    ids = [r.id for r in (*rows.train, *rows.lab)]
    assert ids
    assert len(ids) == len(set(ids))
    got = filled(name, rows, made(rows))
    assert [t.spec.name for t in got.tables] == [t.name for t in BY_NAME[name].tables]
    for table in got.tables:
        assert table.rows, table.spec.name
        for column in table.spec.columns:
            # gdr: only NCCL has it. remark, bound of servers: words. error of fp32 alone is none.
            if column.key not in ("gdr", "buffer_b", "buffer_low_b", "buffer_high_b"):
                assert any(v is not None for v in table.column(column.key)), (table.spec.name, column.key)


@pytest.mark.parametrize("name", LIVE_NAMES)
def test_a_backend_that_is_not_there_is_a_row_with_its_reason(name: str) -> None:
    without = {"nccl": "no GPU", "gloo": "no torch", "mpi": "no mpi4py"}
    options = LabOptions(ranks=(2,))
    rows = plan(name, options=options, without=without)
    assert rows == Rows()
    got = filled(name, rows, (), without=without)
    reasons = {r.reason for r in got.tables[0].rows}
    assert reasons <= {*without.values(), "no NIC"}
    assert reasons


@pytest.mark.parametrize("name", LIVE_NAMES)
def test_what_was_not_measured_keeps_its_row_and_reason(name: str) -> None:
    rows = plan(name)
    lost = [NotMeasured(id=r.id, reason="rank 1 was lost") for r in (*rows.train, *rows.lab)]
    got = filled(name, rows, lost)
    assert any("rank 1 was lost" in r.reason for t in got.tables for r in t.rows)


def test_more_ranks_than_gpus_say_so() -> None:
    job = JobLayout(ranks=4, gpus=("a", "b"))
    options = LabOptions(backends=("nccl",), ranks=(2, 4))
    rows = plan("compression", job, options)
    assert {r.ranks for r in rows.lab} == {2}
    got = LIVE["compression"][1](job, options, {}, rows, Results(made(rows)))
    assert "needs 4 GPUs, one for each rank; 2 are used here" in {r.reason for r in got.tables[0].rows}


def test_more_servers_than_ranks_say_so() -> None:
    job = JobLayout(ranks=2, cores=4)
    options = LabOptions(backends=("gloo",), ranks=(2,), servers=(1, 9))
    rows = plan("parameter-server", job, options)
    table = LIVE["parameter-server"][1](job, options, {}, rows, Results(made(rows))).tables[0]
    nine = [r for r in table.rows if r.values[4] == 9]
    assert {r.values[2] for r in nine} == {"PS sync", "PS async"}
    assert {r.reason for r in nine} == {"needs 10 ranks, for the servers and a worker; 2 are used here"}


def one(table: LabTable, **wanted: object) -> dict[str, object]:
    keys = [c.key for c in table.spec.columns]
    (found,) = (r for r in table.rows if all(r.values[keys.index(k)] == v for k, v in wanted.items()))
    return dict(zip(keys, found.values, strict=True))


def test_the_bubble_by_hand() -> None:
    options = LabOptions(backends=("gloo",), ranks=(2,), pieces=(4,), compute_ms=10)
    rows = stages.plan_pipeline(JOB, options, {})
    # 4 x (10 + 20) ms of work in a step of 150 ms: busy 120, idle 20 %; of stages without messages 1 / 5.
    results = Results([measurement(r, Told("time", [150_000.0])) for r in rows.lab])
    row = one(stages.fill_pipeline(JOB, options, {}, rows, results).tables[0], schedule="1F1B")
    assert row["bubble"] == pytest.approx(0.2)
    assert row["formula"] == pytest.approx(0.2)
    assert row["predicted_us"] == pytest.approx(150_000)


def test_osu_counts_by_hand() -> None:
    rows = plan("p2p", options=LabOptions(backends=("gloo",), sizes=(1 << 20,), samples=2))
    got = filled("p2p", rows, made(rows)).tables[0]
    # 2^20 bytes in 10 + 1048.576 us: 990.55 MB/s one way, twice that of both.
    row = one(got, size_b=1 << 20)
    assert row["bandwidth_mb_s"] == pytest.approx(990.55, rel=1e-4)
    assert row["bibandwidth_mb_s"] == pytest.approx(1981.1, rel=1e-4)
    assert row["data"] == "right"


def test_a_wrong_exchange_is_written_in_its_row() -> None:
    rows = plan("halo")
    outcomes = [measurement(r, Told(n, [1.0], wrong=3)) for r in rows.lab for n in ("time", "compute", "exchange")]
    assert set(filled("halo", rows, outcomes).tables[0].column("data")) == {"WRONG"}


def test_speed_up_by_hand() -> None:
    rows = plan("models")
    # Compute 1 ms; a step of 2 ranks takes 2 ms: speed-up 2 x 1 / 2 = 1; the GRU's all_reduce takes 10 + 462.336 us.
    row = one(filled("models", rows, made(rows)).tables[0], backend="gloo", ranks=2, model="rnn")
    assert row["speed_up"] == pytest.approx(1.0)
    # 3 x (2 x 128^2 + 2 x 128) + 128^2 + 128 numbers of four bytes.
    assert row["size_b"] == 462_336
    assert row["no_overlap"] == pytest.approx(2 * 1000 / 1472.336)


def test_the_link_is_fitted_to_the_fastest_samples() -> None:
    rows = link_rows(JOB, OPTIONS, [("gloo", "host", "")])
    outcomes = []
    for r in rows:
        us = 10 + r.size_bytes / 1000
        outcomes.append(measurement(r, Told("time", [us, 50 * us, 20 * us])))
    alpha, beta = Links(rows, Results(outcomes)).cost("gloo", "host") or (0.0, 0.0)
    assert alpha == pytest.approx(10e-6, rel=0.01)
    assert beta == pytest.approx(1e9, rel=0.01)


@pytest.mark.parametrize(
    ("job", "nics", "why"),
    [
        (JobLayout(ranks=2), 1, "no GPU is used"),
        (JobLayout(ranks=2, gpus=("a", "b")), 0, "no RDMA NIC"),
        (JobLayout(ranks=2, gpus=("a", "b")), 1, "between servers only"),
        (JobLayout(ranks=16, nodes=2, ranks_per_node=8, gpus=("a",), launcher="slurm"), 1, ""),
    ],
)
def test_where_gpudirect_rdma_can_be_switched(job: JobLayout, nics: int, why: str) -> None:
    topology = Topology(nics=tuple(Nic(address=f"0000:0{i}:00.0", label=f"mlx5_{i}") for i in range(nics)))
    got = gdr.why_not(job, Node(source="x"), topology)
    assert why in got
    assert bool(got) is bool(why)


def test_gpudirect_rdma_on_and_off_are_rows_of_their_own() -> None:
    job = JobLayout(ranks=16, nodes=2, ranks_per_node=8, gpus=("a",), launcher="slurm")
    options = LabOptions(backends=("nccl",))
    rows = training.plan_backends(job, options, {})
    more = [r for setting in gdr.SETTINGS for r in gdr.rows_of(rows.train, setting)]
    assert [r.ranks for r in more] == [16, 16]
    assert gdr.SETTINGS["off"] == {"NCCL_NET_GDR_LEVEL": "LOC"}
    took = [1000.0] * len(rows.train) + [2000.0, 4000.0]
    results = [
        measurement(LabRow(id=r.id, work="halo", backend="nccl"), Told("train_step", [us]))
        for r, us in zip((*rows.train, *more), took, strict=True)
    ]
    table = training.fill_backends(job, options, {}, rows, Results(results), dict.fromkeys(gdr.SETTINGS, "")).tables[0]
    # 16 ranks x 512 samples in 2 and 4 ms.
    assert one(table, gdr="on")["rate"] == pytest.approx(4_096_000)
    assert one(table, gdr="off")["rate"] == pytest.approx(2_048_000)
    assert one(table, gdr="on", ranks=16)["servers"] == 2


@pytest.mark.parametrize(
    ("machine", "unit", "gather", "all_to_all"),
    [
        # 25 GB/s a link; SCCL's R/C of a DGX-1.
        ("dgx1v", 25.0, (2, "7/6"), "1/3"),
        # Each pair has a bundle of its own: three bundles into a GPU.
        ("a100_x4", 100.0, (1, "1"), "1/4"),
        # No NVLink: Gen 5 x16 to each GPU, 32 GT/s x 16 / 8 x 128/130, which idle GPUs have slowed down. Pairs share
        # the uplink of a switch: 2 x 6 / 8 C leave them by one link.
        ("rtxpro6000_x8_asus", 63.0, (1, "7"), "3/2"),
    ],
)
def test_the_graph_of_a_machine(machine: str, unit: float, gather: tuple[int, str], all_to_all: str) -> None:
    network = network_of(look(machine)[1])
    assert not isinstance(network, str)
    assert network.unit_gb_s == pytest.approx(unit, rel=0.01)
    found = {r.values[0]: r.values for r in bounds_table(network, 1 << 20).rows}
    assert found["all_gather"][1:3] == gather
    assert found["all_to_all"][2] == all_to_all


def test_backends_that_are_not_measured_have_rows_with_the_reason() -> None:
    rows = plan("backends")
    every = msgspec.structs.replace(OPTIONS, backends=())
    table = unmeasured.added(filled("backends", rows, made(rows)), every, ABSENT, binding=False).tables[0]
    last = [(r.values[0], r.values[1], r.reason) for r in table.rows[-2:]]
    assert last == [
        ("mpi", "gpu", f"mpi4py is given host memory only; whether this MPI is CUDA-aware is not known ({HOW_TO_SEE})"),
        ("oneccl", "host", "oneccl_bindings_for_pytorch is not installed"),
    ]
    gloo = msgspec.structs.replace(OPTIONS, backends=("gloo",))
    assert len(unmeasured.added(filled("backends", rows, made(rows)), gloo, True, binding=True).tables[0].rows) == (
        len(table.rows) - 2
    )


def test_a_cuda_aware_mpi_is_named() -> None:
    assert "this MPI is CUDA-aware (ompi_info" in why_no_gpu_mpi(True)
    assert "this MPI is not CUDA-aware (ompi_info" in why_no_gpu_mpi(False)


def test_samples_that_are_far_apart_are_told():
    row = LabRow(id="lab:x", work="scatter", backend="gloo", ranks=2)
    steady, wide = (measurement(row, Told("time", samples)) for samples in ([10.0, 10.0, 10.5], [10.0, 20.0, 40.0]))
    assert scattered_note([steady, NotMeasured(id="y", reason="stopped")]) == ()
    (note,) = scattered_note([steady, wide, steady])
    # The quartiles of 10, 20 and 40 are 15 and 30.
    assert note.startswith("Samples of 1 of 3 timings spread over more than 20% of their median (up to 75%)")


def test_hierarchical_groups_are_explained_only_where_there_are_some():
    def notes(*ranks: int) -> str:
        options = msgspec.structs.replace(OPTIONS, ranks=ranks)
        rows = plan("collectives", options=options)
        table = LIVE["collectives"][1](JOB, options, {}, rows, Results(made(rows))).tables[0]
        return " ".join(table.notes)

    assert "hierarchical" not in notes(2)
    assert "hierarchical: groups of ranks stand for nodes" in notes(2, 4)
