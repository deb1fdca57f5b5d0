"""Backends of the field that `lab backends` does not measure: rows that say why, and how to see what is there."""

from __future__ import annotations

import msgspec

from topocheck.bandwidth.lab_catalogue import BY_NAME
from topocheck.model.base import Missing
from topocheck.tests_live.labs.plans.common import Filled, LabOptions

ONECCL = "oneccl_bindings_for_pytorch"
"""oneCCL's binding to torch; Intel's package index has it, PyPI has not."""
HOW_TO_SEE = "ompi_info --parsable --level 9 --all | grep mpi_built_with_cuda_support:value"
"""Open MPI's FAQ, "How can I tell if Open MPI was built with CUDA support?"."""


def why_no_gpu_mpi(aware: bool | Missing) -> str:
    """Return why MPI is given host memory only; `aware` is what the node's MPI says of itself."""
    state = "this MPI is CUDA-aware" if aware is True else "this MPI is not CUDA-aware"
    if isinstance(aware, Missing):
        state = "whether this MPI is CUDA-aware is not known"
    return f"mpi4py is given host memory only; {state} ({HOW_TO_SEE})"


def why_no_oneccl(*, binding: bool) -> str:
    """Return why oneCCL is not measured; `binding` tells whether its binding to torch is installed."""
    return f"{ONECCL} is " + ("installed, and not measured" if binding else "not installed")


def added(filled: Filled, options: LabOptions, aware: bool | Missing, *, binding: bool) -> Filled:
    """Return the table of `backends` with those rows, where they were not left out by `--backend`."""
    spec = BY_NAME["backends"].table("backends")
    more = []
    if not options.backends or "mpi" in options.backends:
        more.append(spec.row(why_no_gpu_mpi(aware), backend="mpi", memory="gpu"))
    if not options.backends:
        more.append(spec.row(why_no_oneccl(binding=binding), backend="oneccl", memory="host"))
    (table, *rest) = filled.tables
    table = msgspec.structs.replace(table, rows=(*table.rows, *more))
    return msgspec.structs.replace(filled, tables=(table, *rest))
