"""`topocheck bw`: what the wires deliver, beside what they promise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import bw_options, common
from topocheck.cli.signals import stop_cleanly
from topocheck.model.base import InputError, State

if TYPE_CHECKING:
    from topocheck.model.measurement import BandwidthReport
    from topocheck.model.node import Node
    from topocheck.tests_live.plan import Options
    from topocheck.tests_live.ranks import World
    from topocheck.tests_live.roads import Roads
    from topocheck.tests_live.rows import Plan

FORMATS = ("text", "json", "csv", "markdown")
NEEDED_PROBES = ("pci", "numa", "system", "settings", "nvml")
OptionalPath = Optional[Path]  # noqa: UP045 - typer reads it at run time
OptionalList = Optional[list[str]]  # noqa: UP045
OptionalInt = Optional[int]  # noqa: UP045
OptionalText = Optional[str]  # noqa: UP045
EXIT_INTERRUPTED = 130
SETTLES_S = 1.2
"""NVML's utilisation is of the last second at most (nvml.h, nvmlUtilization_t)."""


def bw(
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds: copies of 128 MiB, without torch.")] = False,
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
    worst_node: Annotated[bool, typer.Option("--worst-node", help="Also host memory of the far NUMA node.")] = False,
    staged: Annotated[bool, typer.Option("--staged", help="Every pair also without peer access.")] = False,
    pairs: Annotated[
        OptionalText,
        typer.Option("--pairs", metavar="nodes", help="Every pair of nodes of a job, under srun, torchrun or mpirun."),
    ] = None,
    way: Annotated[
        OptionalList,
        typer.Option("--way", help="With --pairs: tcp, gloo, nccl_tcp, nccl_rdma or nccl_gdr; may be repeated."),
    ] = None,
    rails: Annotated[bool, typer.Option("--rails", help="With --pairs: also each NIC by itself.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", help="With --pairs: of each direction of each pair.")] = 1.0,
    no_copies: Annotated[bool, typer.Option("--no-copies", help="Collectives only.")] = False,
    allow_busy: Annotated[bool, typer.Option("--allow-busy", help="Measure although a GPU is in use.")] = False,
    plan_only: Annotated[bool, typer.Option("--plan", help="Say what would be done and how long, and stop.")] = False,
    save: Annotated[OptionalPath, typer.Option("--save", metavar="FILE", help="Keep this run as a baseline.")] = None,
    baseline: Annotated[
        OptionalPath, typer.Option("--baseline", metavar="FILE", help="Compare with a kept run.")
    ] = None,
    tolerance: Annotated[float, typer.Option("--tolerance", help="Part of the baseline that may be lost.")] = 0.1,
    gradients: Annotated[
        OptionalText, typer.Option("--gradients", help="Gradients of a model (14GB): advice on its fusion buffers.")
    ] = None,
    backward: Annotated[float, typer.Option("--backward", help="Seconds of its backward pass.")] = 0.5,
    policy_file: Annotated[OptionalPath, typer.Option("--policy", help="Policy (TOML).")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings and unknowns count as failures.")] = False,
    format_: Annotated[str, typer.Option("--format", help="text, json, csv or markdown.")] = "text",
    output: common.Output = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also every row beside what its road carries.")
    ] = False,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Measure copies and collectives on this node, check every byte, and say what limits them.

    With no option a standard run: it says first what it will do and how long it takes. Without GPUs it measures Gloo
    between local processes. Under torchrun, srun or mpirun it joins as that rank. Exit code 0 fine, 1 something is
    below what it should be or wrong, 2 wrong usage, 3 something asked for could not be measured.
    """
    from topocheck.cli.node_pairs import node_pairs
    from topocheck.tests_live import baseline as kept
    from topocheck.tests_live import ranks as launchers

    common.choose(format_, FORMATS, "--format")
    common.choose(engine, ("driver", "torch", "both"), "--engine")
    if pairs is not None:
        common.choose(pairs, ("nodes",), "--pairs")
        stop_cleanly()
        raise typer.Exit(
            node_pairs(
                ways=tuple(way or ()),
                rails=rails,
                seconds=seconds,
                format_=format_,
                output=output,
                strict=strict,
                no_color=no_color,
                width=width,
            )
        )
    if not 0 < tolerance < 1:
        raise InputError(f"--tolerance {tolerance:g}: expected a part between 0 and 1, such as 0.1")
    if quick + full + (budget is not None) > 1:
        raise InputError("--quick, --full and --budget say the same thing: give one of them")
    options = bw_options.options(
        budget=common.choose(
            budget or ("full" if full else "quick" if quick else "standard"), ("quick", "standard", "full"), "--budget"
        ),
        gpus=gpus,
        all_pairs=all_pairs,
        pageable=pageable,
        worst_node=worst_node,
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
    old = kept.load(baseline) if baseline else None
    policy = None if policy_file is None else common.load_policy(policy_file)
    training = bw_options.training(gradients, backward)
    try:
        world = launchers.detect_here()
    except launchers.LaunchError as e:
        raise InputError(str(e)) from None
    code = _measure(
        options,
        world,
        allow_busy=allow_busy,
        plan_only=plan_only,
        finish=lambda report: _finish(
            report, save, format_, output, verbose=verbose, strict=strict, style=(no_color, width)
        ),
        judge=bw_options.Judge(policy=policy, baseline=old, tolerance=tolerance, training=training),
    )
    raise typer.Exit(code)


def _look() -> tuple[Node, Roads]:
    """Ask the machine what the plan needs, and nothing else."""
    from topocheck.host.base import Host, RecordedBackend
    from topocheck.host.gather import gather
    from topocheck.pipeline import read_node
    from topocheck.probes.registry import PROBES
    from topocheck.tests_live.roads import Roads
    from topocheck.topology.build import build

    probes = [p for p in PROBES if p.name in NEEDED_PROBES]
    node = read_node(Host(RecordedBackend(gather(probes, budget_s=10.0)), "live"), probes)
    devices = node.pci.devices
    return node, Roads(build(node), devices if isinstance(devices, tuple) else ())


def _measure(
    options: Options,
    world: World | None,
    *,
    allow_busy: bool,
    plan_only: bool,
    finish: Callable[[BandwidthReport], int],
    judge: bw_options.Judge,
) -> int:
    import msgspec

    from topocheck.checks.bandwidth_run import make_report
    from topocheck.render.progress import Progress
    from topocheck.tests_live import run as live
    from topocheck.tests_live.plan import make_plan

    stop_cleanly()
    child = None if plan_only or world is not None or not options.copies else live.warm_child(options.engine)
    try:
        node, roads = _look()
        available = node.system.memory_available_bytes
        options = msgspec.structs.replace(
            options,
            torch_available=live.torch_installed(),
            driver_available=live.driver_installed() or options.engine == "torch",
            host_available_bytes=available if isinstance(available, int) else None,
        )
        if world is not None:
            options = msgspec.structs.replace(options, ranks=world.size, copies=False, joined=True)
        try:
            plan = make_plan(roads.topology, options)
        except ValueError as e:
            raise InputError(str(e)) from None
        _announce(plan, world)
        if plan_only:
            return common.EXIT_OK
        if not plan.copies and not plan.collectives:
            return _nothing(plan)
        problem = _refusal(plan, roads, allow_busy=allow_busy)
        if problem:
            # What NVML calls busy may be the end of the run before this one: look again once it has settled.
            sleep(SETTLES_S)
            node, roads = _look()
            problem = _refusal(plan, roads, allow_busy=allow_busy)
        if problem:
            print(f"topocheck: {problem}", file=sys.stderr)
            return common.EXIT_UNKNOWN
        progress = Progress(enabled=world is None or world.rank == 0)
        runner = live.Runner(plan, roads, node, world=world, tell=progress.tell, child=child)
        child = None
        try:
            run = runner.execute()
        finally:
            progress.close()
    finally:
        if child is not None:
            child.end()
    report = make_report(
        run,
        roads,
        node,
        policy=judge.policy,
        baseline=judge.baseline,
        tolerance=judge.tolerance,
        training=judge.training,
    )
    if world is not None and world.rank != 0:
        return _code(report, strict=False)
    return finish(report)


def _announce(plan: Plan, world: World | None) -> None:
    """Say on standard error what will be done and how long it takes."""
    if world is not None and world.rank != 0:
        return
    for line in plan.lines():
        print(f"  {line}", file=sys.stderr)
    if plan.copies or plan.collectives:
        print(f"topocheck bw, {plan.budget} run: about {plan.estimate_s:.0f} s in all", file=sys.stderr)
    for what, why in plan.left_out:
        print(f"  not measured: {what}: {why}", file=sys.stderr)


def _nothing(plan: Plan) -> int:
    why = "; ".join(f"{what}: {reason}" for what, reason in plan.left_out) or "no GPU, and no collective was asked for"
    print(f"topocheck: nothing to measure: {why}", file=sys.stderr)
    return common.EXIT_UNKNOWN


def _refusal(plan: Plan, roads: Roads, *, allow_busy: bool) -> str:
    from topocheck.tests_live.run import busy, forbidden

    used = {e for r in plan.copies for t in r.transfers for e in (t.source, t.destination)}
    used |= {a for c in plan.collectives for a in c.members}
    closed = forbidden(roads, used)
    if closed:
        return "; ".join(closed)
    found = busy(roads, used)
    if found and not allow_busy:
        return (
            f"{'; '.join(found)}: a measurement now would disturb it and be disturbed. Wait until it is idle, name "
            "other GPUs with --gpus, or measure all the same with --allow-busy"
        )
    return ""


def _finish(
    report: BandwidthReport,
    save: Path | None,
    format_: str,
    output: Path | None,
    *,
    verbose: bool,
    strict: bool,
    style: tuple[bool, int],
) -> int:
    from topocheck.tests_live import baseline as kept

    if save is not None:
        kept.save(report.run, save)
    if format_ == "text":
        from topocheck.render.bw import bw_text

        text = bw_text(report, common.style(output, *style), verbose=verbose)
    else:
        from topocheck.render import bw_data

        text = {"json": bw_data.bw_json, "csv": bw_data.bw_csv, "markdown": bw_data.bw_markdown}[format_](report)
    common.emit(text, output)
    return _code(report, strict=strict)


def _code(report: BandwidthReport, *, strict: bool) -> int:
    """Return the exit code: failure beats interrupted, which beats could-not-tell."""
    states = {f.state for f in report.findings}
    if State.FAIL in states or (strict and states & {State.WARN, State.UNKNOWN}):
        return common.EXIT_FAILED
    if report.run.interrupted:
        return EXIT_INTERRUPTED
    return common.EXIT_UNKNOWN if State.UNKNOWN in states else common.EXIT_OK
