"""`topocheck bw`: measured bandwidth against theoretical."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from topocheck.cli import bw_options, common
from topocheck.model.base import InputError

FORMATS = ("text", "json", "csv", "markdown", "html")
OptionalPath = Optional[Path]  # noqa: UP045 - typer reads it at run time
OptionalPaths = Optional[list[Path]]  # noqa: UP045
OptionalList = Optional[list[str]]  # noqa: UP045
OptionalInt = Optional[int]  # noqa: UP045
OptionalText = Optional[str]  # noqa: UP045


def bw(
    ctx: typer.Context,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A few seconds: copies of 128 MiB, without torch; without GPUs all_reduce over Gloo."
        ),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Minutes: all sizes, collectives and load patterns.")] = False,
    budget: Annotated[OptionalText, typer.Option("--budget", help="quick, standard or full.")] = None,
    all_pairs: Annotated[
        bool, typer.Option("--all-pairs", help="Every ordered GPU pair, whatever the budget.")
    ] = False,
    gpus: Annotated[OptionalText, typer.Option("--gpus", help="Labels, indices, addresses or UUIDs, by comma.")] = None,
    ranks: Annotated[
        OptionalInt, typer.Option("--ranks", help="Ranks of a collective; default: all GPUs, or 2.")
    ] = None,
    backend: Annotated[OptionalList, typer.Option("--backend", help="nccl, gloo or mpi; may be repeated.")] = None,
    collective: Annotated[
        OptionalList, typer.Option("--collective", help="all_reduce, all_gather, ...; may be repeated; or all.")
    ] = None,
    sizes: Annotated[OptionalText, typer.Option("--sizes", help="Sizes by comma: 64K,1MiB,256MiB.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Element type of collectives.")] = "float32",
    allocator: Annotated[
        str, typer.Option("--allocator", help="Buffers of NCCL: torch (cudaMalloc) or nccl (ncclMemAlloc).")
    ] = "torch",
    engine: Annotated[str, typer.Option("--engine", help="What copies: driver, torch or both.")] = "driver",
    pageable: Annotated[bool, typer.Option("--pageable", help="Also copies of pageable host memory.")] = False,
    far_numa: Annotated[bool, typer.Option("--far-numa", help="Also host memory of the far NUMA node.")] = False,
    staged: Annotated[bool, typer.Option("--staged", help="Every pair also without peer access.")] = False,
    deadline: common.Deadline = 60.0,
    no_copies: Annotated[bool, typer.Option("--no-copies", help="Collectives only.")] = False,
    allow_busy: Annotated[bool, typer.Option("--allow-busy", help="Measure even if GPUs are busy.")] = False,
    plan_only: Annotated[
        bool,
        typer.Option(
            "--plan", help="Print what would be measured, how long it takes and what it should reach (text or json)."
        ),
    ] = False,
    from_: Annotated[
        OptionalPaths,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Show a saved run (--save, --format json) instead of measuring; with --plan, a snapshot to plan for.",
        ),
    ] = None,
    save: Annotated[OptionalPath, typer.Option("--save", metavar="FILE", help="Save this run to FILE.")] = None,
    baseline: Annotated[
        OptionalPath,
        typer.Option("--baseline", metavar="FILE", help="Compare with a saved run; with --from, two saved runs."),
    ] = None,
    tolerance: Annotated[float, typer.Option("--tolerance", help="With --baseline: share that may be lost.")] = 0.1,
    gradients: Annotated[
        OptionalText, typer.Option("--gradients", help="Gradients of a model (14GB): advice on its fusion buffers.")
    ] = None,
    backward: Annotated[
        float, typer.Option("--backward", help="With --gradients: seconds of the backward pass.")
    ] = 0.5,
    policy_file: Annotated[OptionalPath, typer.Option("--policy", help="Policy (TOML).")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings and unknowns count as failures.")] = False,
    format_: Annotated[str, typer.Option("--format", help="text, json (--json), csv, markdown or html.")] = "text",
    output: common.Output = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show the theoretical rate of each row.")
    ] = False,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Measure copies and collectives on this node, check every byte, and say what limits them.

    With no option a standard run: it says first what it will do and how long it takes. Without GPUs it measures Gloo
    between local processes. Under torchrun, srun or mpirun it joins as that rank. Exit code 0 fine, 1 something is
    below what it should be or wrong, 2 wrong usage, 3 something asked for could not be measured.
    """
    from topocheck.cli import bw_run
    from topocheck.tests_live.launch import world as launchers

    bw_options.refuse_unused(bw_options.given(ctx))
    common.deadline(deadline)
    common.choose(format_, FORMATS, "--format")
    common.choose(engine, ("driver", "torch", "both"), "--engine")
    if not 0 < tolerance < 1:
        raise InputError(f"--tolerance {tolerance:g}: expected a part between 0 and 1, such as 0.1")
    if quick + full + (budget is not None) > 1:
        raise InputError("--quick, --full and --budget say the same thing: give one of them")
    if plan_only:
        common.choose(format_, ("text", "json"), "--plan --format")
    options = bw_options.options(
        budget=common.choose(
            budget or ("full" if full else "quick" if quick else "standard"), ("quick", "standard", "full"), "--budget"
        ),
        gpus=gpus,
        all_pairs=all_pairs,
        pageable=pageable,
        far_numa=far_numa,
        staged=staged,
        engine=engine,
        copies=not no_copies,
        collectives=collective,
        backends=backend,
        ranks=ranks,
        sizes=sizes,
        dtype=dtype,
        allocator=common.choose(allocator, ("torch", "nccl"), "--allocator"),
    )
    judge = bw_options.Judge(
        policy=None if policy_file is None else common.load_policy(policy_file),
        baseline=common.load_run(baseline).run if baseline else None,
        tolerance=tolerance,
        training=bw_options.training(gradients, backward),
    )
    show = bw_run.Show(
        format_=format_,
        output=output,
        save=save,
        verbose=verbose,
        advice=gradients is not None,
        strict=strict,
        no_color=no_color,
        width=width,
    )
    if from_ and not plan_only:
        bw_options.refuse_unused_from(bw_options.given(ctx), from_)
        raise typer.Exit(bw_run.show_again(from_[0], judge, show))
    if from_:
        raise typer.Exit(bw_run.plan(options, None, show, from_))
    try:
        world = launchers.detect_here()
    except launchers.LaunchError as e:
        raise launchers.input_error(e) from None
    if world is None or world.rank == 0:
        bw_options.check_files(save, output)
    raise typer.Exit(
        bw_run.plan(options, world, show)
        if plan_only
        else bw_run.measure(options, world, judge, show, allow_busy=allow_busy, deadline_s=deadline)
    )
