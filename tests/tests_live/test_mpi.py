"""Collectives over a real MPI, exact, beside the same over Gloo by their definition of sizes."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from tests.conftest import require_program
from topocheck.bandwidth.cases import CollectiveRow
from topocheck.bandwidth.collective_plan import COLLECTIVES
from topocheck.bandwidth.costs import busbw_factor
from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.tests_live.collectives import mpi


def row(name: str, ranks: int) -> CollectiveRow:
    return CollectiveRow(
        id=f"{name}:mpi:{ranks}",
        collective=name,
        backend="mpi",
        ranks=ranks,
        sizes_bytes=(1 << 12, 1 << 16),
        samples_min=2,
        samples_max=2,
        budget_s=0.05,
    )


@pytest.mark.service
def test_every_collective_over_mpi_is_exact() -> None:
    require_program("mpirun")
    pytest.importorskip("mpi4py", reason="needs mpi4py (the [mpi] extra)")
    pytest.importorskip("numpy", reason="needs numpy (the [bw] extra)")
    software: dict[str, str] = {}
    out = list(mpi.run_mpi(tuple(row(n, 2) for n in COLLECTIVES), software=software))
    assert [r.reason for r in out if isinstance(r, NotMeasured)] == []
    measured = [r for r in out if isinstance(r, Measurement)]
    assert {m.collective for m in measured} == set(COLLECTIVES)
    assert len(measured) == 2 * len(COLLECTIVES)
    for m in measured:
        assert m.verified is True, m.wrong
        assert m.busbw_gb_s == pytest.approx((m.algbw_gb_s or 0) * busbw_factor(m.collective or "", 2))
    assert software["mpi"]


@pytest.mark.service
def test_a_rank_of_mpi_that_fails_says_why() -> None:
    require_program("mpirun")
    pytest.importorskip("mpi4py", reason="needs mpi4py (the [mpi] extra)")
    bad = msgspec.structs.replace(row("all_reduce", 2), dtype="float16")  # a type that MPI has not
    (n,) = mpi.run_mpi((bad,))
    assert isinstance(n, NotMeasured)
    assert n.required
    assert n.reason.startswith("rank ")
    assert "failed in all_reduce 4096 bytes over MPI: " in n.reason
    assert "torch" not in n.next_step.lower()


def test_without_mpirun_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topocheck.tests_live.collectives.mpi.find_program", lambda name: None)
    (n,) = mpi.run_mpi((row("all_reduce", 2),))
    assert isinstance(n, NotMeasured)
    assert "mpirun was not found" in n.reason or "mpi4py" in n.reason
    assert n.required, "MPI was asked for by name"


def test_without_mpi4py_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (n,) = mpi.run_mpi((row("all_reduce", 2),))
    assert isinstance(n, NotMeasured)
    assert "pip install mpi4py" in n.reason
    assert n.required, "MPI was asked for by name"


def test_a_world_of_mpi_smaller_than_asked_for_is_no_measurement() -> None:
    # As under a launcher that MPI does not know: each process is a world of its own.
    alone = SimpleNamespace(size=1)
    with pytest.raises(RuntimeError, match="MPI joins 1 of 2 ranks here"):
        mpi.need_ranks(alone, 2)
    mpi.need_ranks(SimpleNamespace(size=4), 2)
