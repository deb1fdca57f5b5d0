"""The options of `topocheck bw`, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from topocheck.cli import common
from topocheck.model.base import InputError
from topocheck.model.measurement import Run
from topocheck.policy.types import Policy

if TYPE_CHECKING:
    import typer

    from topocheck.bandwidth.options import Options


class Judge(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is judged with; see checks.bandwidth_run.make_report."""

    policy: Policy | None
    baseline: Run | None
    tolerance: float
    training: tuple[float, float] | None


NEEDS = {
    "--tolerance": ("--baseline",),
    "--backward": ("--gradients",),
}
"""Option -> the option without which it says nothing."""
NOT_WITH_PLAN = ("--save",)


def given(ctx: typer.Context) -> set[str]:
    """Return the options on the command line, by their long names."""
    sources = {max(p.opts, key=len): ctx.get_parameter_source(p.name) for p in ctx.command.params if p.name}
    # By name: typer brings click's ParameterSource along in its later versions, and needs click in its earlier ones.
    return {option for option, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def refuse_unused(options: set[str]) -> None:
    """Refuse options that would be ignored: what a user asks for is done, or said not to be.

    Raises:
        InputError: one of them says nothing without, or beside, another one.
    """
    for option, needed in NEEDS.items():
        if option in options and not options & set(needed):
            raise InputError(f"{option} needs {' or '.join(needed)}")
    if "--plan" in options:
        for option in NOT_WITH_PLAN:
            if option in options:
                raise InputError(f"{option}: --plan measures nothing, so there is nothing to keep")


WITH_SAVED = frozenset(
    {
        *("--from", "--baseline", "--tolerance", "--gradients", "--backward", "--strict"),
        *("--format", "--output", "--verbose", "--no-color", "--width"),
    }
)
"""Options that mean something for a run that was measured before."""


def refuse_unused_from(options: set[str], files: list[Path]) -> None:
    """Refuse what cannot be done with a saved run.

    Raises:
        InputError: an option asks for a measurement, or there are several runs.
    """
    idle = sorted(options - WITH_SAVED)
    if idle:
        raise InputError(
            f"{', '.join(idle)}: --from shows a saved run and measures nothing; leave it out, or add --plan"
        )
    if len(files) > 1:
        raise InputError(
            f"--from {files[1]}: one saved run is shown; --baseline FILE names the one it is compared with"
        )


def check_files(save: Path | None, output: Path | None) -> None:
    """Look whether the files to be written can be, before minutes are spent on what goes into them.

    Raises:
        InputError: one of them cannot, or both are the same.
    """
    for option, path in (("--save", save), ("--output", output)):
        if path is not None:
            common.check_writable(path, option)
    if save is not None and output is not None and save.resolve() == output.resolve():
        raise InputError(f"--save and --output both name {save}: give two files")


def listed(text: str | None, option: str) -> tuple[str, ...]:
    """Return the parts of a list by comma; empty where the option was not given.

    Raises:
        InputError: it was given, and a part of it is empty.
    """
    if text is None:
        return ()
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise InputError(f"{option} {text!r:.60}: expected names or sizes by comma, none of them empty")
    return parts


def options(
    *, gpus: str | None, collectives: list[str] | None, backends: list[str] | None, sizes: str | None, **rest: object
) -> Options:
    """Return the options of a plan.

    Raises:
        InputError: one of them is not what it should be.
    """
    from topocheck.bandwidth.cases import parse_size
    from topocheck.bandwidth.collective_plan import COLLECTIVES, backend_named, collective_named
    from topocheck.bandwidth.collective_sizes import DTYPES
    from topocheck.bandwidth.options import Options

    common.choose(str(rest["dtype"]), DTYPES, "--dtype")
    try:
        parsed = tuple(sorted({parse_size(s) for s in listed(sizes, "--sizes")}))
    except ValueError as e:
        raise InputError(f"--sizes: {e}") from None
    names = tuple(c for x in collectives or () for c in listed(x, "--collective"))
    try:
        named = COLLECTIVES if "all" in names else tuple(map(collective_named, names))
        wanted = tuple(backend_named(b) for x in backends or () for b in listed(x, "--backend"))
    except ValueError as e:
        raise InputError(str(e)) from None
    # `--quick --collective X` and `--backend gloo` mean the collective, not the copies before it.
    if named or wanted:
        rest["copies"] = False
    return Options(
        gpus=listed(gpus, "--gpus"),
        collectives=tuple(dict.fromkeys(named)),
        backends=tuple(dict.fromkeys(wanted)),
        sizes_bytes=parsed,
        **rest,  # type: ignore[arg-type]
    )


def training(gradients: str | None, backward_s: float) -> tuple[float, float] | None:
    """Return (gradient bytes, seconds of a backward pass); `14GB` is 14e9 here, as models are counted.

    Raises:
        InputError: not a size, or no time.
    """
    from topocheck.bandwidth.cases import parse_size

    if gradients is None:
        return None
    if not 0 < backward_s < 1e6:
        raise InputError(f"--backward {backward_s:g}: expected seconds above 0")
    text = gradients.strip().upper()
    try:
        if text.endswith(("GB", "MB")):
            number = float(text[:-2]) * (1e9 if text.endswith("GB") else 1e6)
        else:
            number = float(parse_size(text))
    except ValueError:
        number = 0.0
    if not 1 <= number <= 1e15:
        raise InputError(f"--gradients {gradients.strip()[:40]!r}: expected a size above 0, such as 14GB")
    return number, backward_s
