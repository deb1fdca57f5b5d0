"""The options of `topocheck bw`, read and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from topocheck.cli import common
from topocheck.model.base import InputError
from topocheck.model.measurement import Run
from topocheck.policy.types import Policy

if TYPE_CHECKING:
    from topocheck.tests_live.plan import Options


class Judge(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is judged with; see checks.bandwidth_run.make_report."""

    policy: Policy | None
    baseline: Run | None
    tolerance: float
    training: tuple[float, float] | None


def options(
    *, gpus: str | None, collectives: list[str] | None, backends: list[str] | None, sizes: str | None, **rest: object
) -> Options:
    """Return the options of a plan.

    Raises:
        InputError: one of them is not what it should be.
    """
    from topocheck.tests_live.collective_ops import DTYPES
    from topocheck.tests_live.plan import Options
    from topocheck.tests_live.plan_collectives import COLLECTIVES
    from topocheck.tests_live.rows import parse_size

    common.choose(str(rest["dtype"]), DTYPES, "--dtype")
    try:
        parsed = tuple(sorted(parse_size(s) for s in sizes.split(","))) if sizes else ()
    except ValueError as e:
        raise InputError(f"--sizes: {e}") from None
    named = tuple(c.strip() for x in collectives or () for c in x.split(",") if c.strip())
    if "all" in named:
        named = COLLECTIVES
    # `--quick --collective X` and `--backend gloo` mean the collective, not the copies before it.
    if named or backends:
        rest["copies"] = False
    return Options(
        gpus=tuple(g.strip() for g in gpus.split(",") if g.strip()) if gpus else (),
        collectives=named,
        backends=tuple(b.strip() for x in backends or () for b in x.split(",") if b.strip()),
        sizes_bytes=parsed,
        **rest,  # type: ignore[arg-type]
    )


def training(gradients: str | None, backward_s: float) -> tuple[float, float] | None:
    """Return (gradient bytes, seconds of a backward pass); `14GB` is 14e9 here, as models are counted.

    Raises:
        InputError: not a size, or no time.
    """
    from topocheck.tests_live.rows import parse_size

    if gradients is None:
        return None
    if not 0 < backward_s < 1e6:
        raise InputError(f"--backward {backward_s:g}: expected seconds above 0")
    text = gradients.strip().upper()
    try:
        if text.endswith(("GB", "MB")) and not text.endswith("IB"):
            return float(text[:-2]) * (1e9 if text.endswith("GB") else 1e6), backward_s
        return float(parse_size(text)), backward_s
    except ValueError as e:
        raise InputError(f"--gradients: {e}") from None
