"""`topocheck scale`: what more ranks gain, and what training makes of the links."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common, curves
from topocheck.cli.fabric_join import FabricFiles
from topocheck.cli.signals import stop_cleanly
from topocheck.model.base import InputError
from topocheck.model.exit_codes import EXIT_OK, EXIT_UNKNOWN

if TYPE_CHECKING:
    from topocheck.model.node import Node
    from topocheck.tests_live.launch.rendezvous import Rendezvous
    from topocheck.tests_live.training.report_types import ScaleOptions, ScaleReport

FORMATS = ("text", "json", "csv", "markdown", "html")
MOST_MIB = 1 << 20
AGREE_S = 60.0
"""Seconds that the other ranks wait for rank 0's exit code once they have done their part."""
OptionalPath = Optional[Path]  # noqa: UP045 - typer reads it at run time
OptionalList = Optional[list[str]]  # noqa: UP045
OptionalText = Optional[str]  # noqa: UP045


def scale(
    backend: Annotated[OptionalList, typer.Option("--backend", help="nccl, gloo or mpi; may be repeated.")] = None,
    ranks: Annotated[int, typer.Option("--ranks", help="Most ranks; 0: one per GPU, or 2, or the launcher's.")] = 0,
    collective: Annotated[str, typer.Option("--collective", help="The collective to scale.")] = "all_reduce",
    size: Annotated[
        OptionalText, typer.Option("--size", help="Its size, such as 64MiB; else that of --gradients.")
    ] = None,
    gradients: Annotated[
        OptionalText, typer.Option("--gradients", help="Gradient bytes of the model; else 25MiB, on a GPU 256MiB.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Samples per rank and step; 0: 32, on a GPU 512.")] = 0,
    hooks: Annotated[
        str,
        typer.Option(
            "--hooks",
            help="usual, all, none, or by comma: fp16,bf16,fp8,8bit_tensor,8bit_channel,topk,sign,powersgd.",
        ),
    ] = "usual",
    buckets: Annotated[
        OptionalText, typer.Option("--buckets", help="Bucket sizes to sweep, in MiB by comma; none for no sweep.")
    ] = None,
    no_digits: Annotated[bool, typer.Option("--no-digits", help="No training on the digits.")] = False,
    no_patterns: Annotated[
        bool, typer.Option("--no-patterns", help="Do not compare ring and parameter server.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter samples.")] = False,
    simulate: Annotated[
        int,
        typer.Option("--simulate", metavar="N", help="Measure nothing: model times up to N GPUs (--levels, --fabric)."),
    ] = 0,
    levels: Annotated[
        OptionalPath,
        typer.Option("--levels", metavar="FILE", help="With --simulate: levels of the network, alpha and beta (TOML)."),
    ] = None,
    fabric: FabricFiles = None,
    gpus_per_node: Annotated[
        int,
        typer.Option("--gpus-per-node", min=0, max=1024, help="With --simulate --fabric; 0: one for each adapter."),
    ] = 0,
    step_ms: Annotated[
        float, typer.Option("--step-ms", help="With --simulate: computation of one GPU in a step, milliseconds.")
    ] = 0.0,
    deadline: common.Deadline = 60.0,
    curve: curves.Curve = None,
    format_: Annotated[
        str,
        typer.Option("--format", help="text, json (--json), csv, markdown or html; --simulate: text, json or csv."),
    ] = "text",
    output: common.Output = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Run the same collective and a data-parallel training step at 1, 2, 4 ... all ranks and nodes.

    Shows time, throughput, speed-up and efficiency; what gradient compression gains and costs; the best bucket size
    next to what the cost model predicted; a ring next to a parameter server. Starts its ranks itself on one node; under
    torchrun, srun or mpirun it joins as that rank. Exit code 0 fine, 2 wrong usage, 3 something could not be measured.
    """
    if simulate or levels is not None or fabric:
        _simulate(
            simulate, levels=levels, fabric=tuple(fabric or ()), gpus_per_node=gpus_per_node, size=size,
            step_ms=step_ms, gradients=gradients, format_=format_, output=output, curve=curve, no_color=no_color,
            width=width,
        )  # fmt: skip
        return
    common.choose(format_, FORMATS, "--format")
    common.deadline(deadline)
    options = _options(
        backends=backend, ranks=ranks, collective=collective, size=size, gradients=gradients, batch=batch, hooks=hooks,
        buckets=buckets, digits=not no_digits, patterns=not no_patterns, quick=quick,
    )  # fmt: skip
    with contextlib.ExitStack() as end:
        report, meeting = _run(options, (output, curve), end, deadline)
        if meeting is not None and meeting.world.rank:  # rank 0 prints
            if meeting.life.text:
                common.warn(meeting.life.text)
            raise typer.Exit(meeting.exit_code(AGREE_S))
        common.emit(_page(report, format_, output, no_color=no_color, width=width), output)
        if curve is not None:
            _draw(report, curve)
        code = EXIT_UNKNOWN if report.not_measured or not report.points else EXIT_OK
        if meeting is not None:
            meeting.agree(code, AGREE_S)
    raise typer.Exit(code)


def _simulate(
    most: int,
    *,
    levels: Path | None,
    fabric: tuple[Path, ...],
    gpus_per_node: int,
    size: str | None,
    step_ms: float,
    gradients: str | None,
    format_: str,
    output: Path | None,
    curve: Path | None,
    no_color: bool,
    width: int,
) -> None:
    from topocheck.bandwidth.cases import parse_size
    from topocheck.cli.simulate import simulate

    sizes = []
    for option, text in (("--size", size or "256MiB"), ("--gradients", gradients or "256MiB")):
        try:
            sizes.append(parse_size(text))
        except ValueError as e:
            raise InputError(f"{option}: {e}") from None
    simulate(
        most, levels=levels, fabric=fabric, gpus_per_node=gpus_per_node, size_bytes=sizes[0], step_ms=step_ms,
        gradient_bytes=sizes[1], format_=format_, output=output, curve=curve, no_color=no_color, width=width,
    )  # fmt: skip


def _options(
    *,
    backends: list[str] | None,
    ranks: int,
    collective: str,
    size: str | None,
    gradients: str | None,
    batch: int,
    hooks: str,
    buckets: str | None,
    digits: bool,
    patterns: bool,
    quick: bool,
) -> ScaleOptions:
    from topocheck.bandwidth.cases import parse_size
    from topocheck.bandwidth.collective_plan import BACKENDS, COLLECTIVES
    from topocheck.model.units import size_text
    from topocheck.tests_live.launch.training_job import HOOKS, SMALLEST_BYTES, USUAL_HOOKS
    from topocheck.tests_live.training.report_types import ScaleOptions

    named = tuple(common.choose(b, BACKENDS, "--backend") for b in common.by_comma(backends) if b)
    chosen_collective = common.choose(collective, COLLECTIVES, "--collective")
    for option, value, most in (("--ranks", ranks, 4096), ("--batch", batch, 1 << 20)):
        if not 0 <= value <= most:
            raise InputError(f"{option} {value}: expected 0 to {most}")
    sets: dict[str, tuple[str, ...]] = {"all": HOOKS, "usual": USUAL_HOOKS}
    names = sets.get(hooks) or ("none", *(h.strip() for h in hooks.split(",")))
    chosen = [common.choose(h, HOOKS, "--hooks") for h in names]
    sizes = []
    for option, text in (("--size", size), ("--gradients", gradients)):
        try:
            sizes.append(0 if text is None else parse_size(text))
        except ValueError as e:
            raise InputError(f"{option}: {e}") from None
    if gradients is not None and sizes[1] < SMALLEST_BYTES:
        raise InputError(f"--gradients {gradients}: the smallest model has {size_text(SMALLEST_BYTES)} of gradients")
    return ScaleOptions(
        backends=named,
        ranks=ranks,
        collective=chosen_collective,
        collective_bytes=sizes[0],
        gradient_bytes=sizes[1],
        batch=batch,
        hooks=tuple(dict.fromkeys(chosen)),
        buckets_mib=_bucket_sizes(buckets),
        digits=digits,
        patterns=patterns,
        samples=3 if quick else 5,
        sample_s=0.1 if quick else 0.3,
        limit_s=3.0 if quick else 30.0,
        quick=quick,
    )


def _bucket_sizes(text: str | None) -> tuple[float, ...] | None:
    """Return the sizes in MiB that `--buckets` names, each once; None for the usual ones, empty for no sweep.

    Raises:
        InputError: it names something else.
    """
    if text is None:
        return None
    if text.strip() == "none":
        return ()
    out: dict[str, float] = {}
    for word in text.split(","):
        try:
            mib = float(word)
        except ValueError:
            mib = 0.0
        if not 0 < mib <= MOST_MIB:
            raise InputError(
                f"--buckets: {word.strip()[:40]!r} is no size in MiB above 0 and up to {MOST_MIB}; "
                "expected such as 1,5,25, or none"
            )
        out.setdefault(f"{mib:g}", mib)  # as the rows are named
    return tuple(out.values())


def _run(
    options: ScaleOptions, files: tuple[Path | None, Path | None], end: contextlib.ExitStack, deadline_s: float
) -> tuple[ScaleReport, Rendezvous | None]:
    """Run it; a launcher's ranks other than 0 write none of the files. Returns the report and where the ranks meet."""
    import msgspec

    from topocheck.render.progress import Progress
    from topocheck.tests_live.launch import alive, rendezvous
    from topocheck.tests_live.launch import world as launchers
    from topocheck.tests_live.run import machine_facts, torch_installed
    from topocheck.tests_live.training import run as live
    from topocheck.tests_live.training.job_layout import common_job, local_job
    from topocheck.tests_live.training.summary import summarize

    if not torch_installed():
        raise InputError("scale trains with torch, which is not installed: pip install torch")
    try:
        world = launchers.detect_here()
        stop_cleanly(launched=world is not None)
        first = world is None or world.rank == 0
        if first:
            curves.check_files(*files)
        meeting = None if world is None else end.enter_context(rendezvous.join(world, "scale", deadline_s))
        node, gpus = _look()
        if meeting is None:
            job = local_job(gpus, options.ranks)
        else:
            rendezvous.warn(meeting)
            alive.watch(meeting, deadline_s)
            job = common_job(meeting, gpus, deadline_s)
        progress = Progress(enabled=first)
        with contextlib.closing(progress):
            raw, outcomes = live.run(job, options, meeting, lambda words: progress.tell("measured", words, 0.0))
    except launchers.LaunchError as e:
        raise launchers.input_error(e) from None
    return (msgspec.structs.replace(summarize(raw, outcomes), machine=machine_facts(node)) if first else raw), meeting


def _look() -> tuple[Node, tuple[str, ...]]:
    """Return the facts of this node, and the addresses of its NVIDIA GPUs in PCI order."""
    from topocheck.collect import read_live
    from topocheck.topology.build import build

    node = read_live(("pci", "numa", "system", "settings", "nvml"))
    return node, tuple(g.address for g in build(node).gpus if isinstance(g.index, int))


def _page(report: ScaleReport, format_: str, output: Path | None, *, no_color: bool, width: int) -> str:
    from topocheck.render import scale as render

    if format_ == "text":
        return render.scale_text(report, common.style(output, no_color, width))
    if format_ == "html":
        from topocheck.render.html.results import scale_html

        return scale_html(report)
    return {"json": render.scale_json, "csv": render.scale_csv, "markdown": render.scale_markdown}[format_](report)


def _draw(report: ScaleReport, path: Path) -> None:
    from topocheck.render.html import scale_curve

    curves.draw(path, lambda: scale_curve.svg(report), lambda: scale_curve.png(report))
