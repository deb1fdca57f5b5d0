"""`topocheck lab`: the experiments of a course on distributed training, each with its record and its tables."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common, curves
from topocheck.cli.signals import stop_cleanly
from topocheck.model.base import InputError
from topocheck.model.exit_codes import EXIT_OK, EXIT_UNKNOWN

if TYPE_CHECKING:
    from topocheck.model.lab import LabReport
    from topocheck.model.node import Node
    from topocheck.tests_live.labs.plans.common import LabOptions
    from topocheck.tests_live.launch.rendezvous import Rendezvous
    from topocheck.tests_live.training.report_types import JobLayout
    from topocheck.topology.types import Topology

FORMATS = ("text", "json", "csv", "markdown", "html")
AGREE_S = 60.0
"""Seconds that the other ranks wait for rank 0's exit code once they have done their part."""
ASKED_ONLY = ("record", "bounds")
"""Labs that start no ranks of their own and read snapshots too."""
MOST_RANKS, MOST_SIZES = 4096, 64
OptionalList = Optional[list[str]]  # noqa: UP045 - typer reads it at run time
OptionalPath = Optional[Path]  # noqa: UP045
OptionalText = Optional[str]  # noqa: UP045


def lab(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a lab, or `list`.")],
    from_: common.From = None,
    backend: Annotated[
        OptionalList, typer.Option("--backend", help="nccl, gloo or mpi; may be repeated. All where not given.")
    ] = None,
    ranks: Annotated[
        OptionalText, typer.Option("--ranks", help="Numbers of ranks by comma, such as 1,2,4; else the launcher's.")
    ] = None,
    sizes: Annotated[
        OptionalText, typer.Option("--sizes", help="Sizes by comma: of buffers, messages, activations or borders.")
    ] = None,
    pieces: Annotated[
        OptionalText, typer.Option("--pieces", help="Pieces of a ring broadcast or micro-batches, by comma.")
    ] = None,
    group: Annotated[int, typer.Option("--group", help="Ranks that count as one node, of all on one node.")] = 0,
    servers: Annotated[OptionalText, typer.Option("--servers", help="Numbers of parameter servers, by comma.")] = None,
    compute: Annotated[
        float, typer.Option("--compute", help="Milliseconds that a stage or worker waits as if it computed.")
    ] = 0.0,
    gradients: Annotated[OptionalText, typer.Option("--gradients", help="Gradient bytes of the larger model.")] = None,
    epochs: Annotated[int, typer.Option("--epochs", help="Over the digits.")] = 8,
    data: Annotated[
        OptionalPath, typer.Option("--data", help="compression: images to learn, such as train-images-idx3-ubyte.gz.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter samples.")] = False,
    deadline: common.Deadline = 60.0,
    curve: curves.Curve = None,
    format_: Annotated[str, typer.Option("--format", help="text, json (--json), csv, markdown or html.")] = "text",
    output: common.Output = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Run one lab: the experiment record of all nodes of the job, then the tables; `topocheck lab list` names all.

    Starts its ranks itself on one node; under torchrun, srun or mpirun it joins as that rank, and rank 0 prints. A row
    that cannot run here stays in the table with the reason. Exit code 0 fine, 2 wrong usage, 3 something could not be
    measured, or nothing was.
    """
    from topocheck.bandwidth.lab_catalogue import BY_NAME, LABS
    from topocheck.render import lab as render

    common.choose(format_, FORMATS, "--format")
    common.deadline(deadline)
    if name == "list":
        common.choose(format_, ("text", "json"), "lab list --format")
        text = render.list_json if format_ == "json" else render.list_text
        common.emit(text(LABS, common.style(output, no_color, width)), output)
        return
    if name not in BY_NAME:
        import difflib

        near = difflib.get_close_matches(name, BY_NAME, 3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"no lab {name[:40]!r}{hint} (topocheck lab list names all)")
    if from_ and name not in ASKED_ONLY:
        raise InputError(f"lab {name} measures; --from serves {' and '.join(ASKED_ONLY)} alone")
    if data is not None and name != "compression":
        raise InputError(f"lab {name} learns nothing; --data serves compression alone")
    options = _options(
        backend=backend, ranks=ranks, sizes=sizes, pieces=pieces, group=group, servers=servers, compute=compute,
        gradients=gradients, epochs=epochs, quick=quick,
        data=data,
    )  # fmt: skip
    with contextlib.ExitStack() as end:
        report, meeting = _run(name, from_, options, (output, curve), end, deadline)
        if meeting is not None and meeting.world.rank:  # rank 0 prints
            if meeting.life.text:
                common.warn(meeting.life.text)
            raise typer.Exit(meeting.exit_code(AGREE_S))
        common.emit(_page(report, format_, output, no_color=no_color, width=width), output)
        if curve is not None:
            from topocheck.render.html import lab as drawn

            curves.draw(curve, lambda: drawn.lab_svg(report), lambda: drawn.lab_png(report))
        nothing = bool(BY_NAME[name].backends) and all(r.reason for r in report.tables[0].rows)
        code = EXIT_UNKNOWN if report.not_measured or report.record.missing or nothing else EXIT_OK
        if meeting is not None:
            meeting.agree(code, AGREE_S)
    raise typer.Exit(code)


def _options(
    *,
    backend: list[str] | None,
    ranks: str | None,
    sizes: str | None,
    pieces: str | None,
    group: int,
    servers: str | None,
    compute: float,
    gradients: str | None,
    epochs: int,
    quick: bool,
    data: Path | None,
) -> LabOptions:
    from topocheck.bandwidth.collective_plan import BACKENDS
    from topocheck.tests_live.labs.plans.common import LabOptions

    named = tuple(common.choose(b, BACKENDS, "--backend") for b in common.by_comma(backend) if b)
    for option, value, most in (("--group", group, MOST_RANKS), ("--epochs", epochs, 1000)):
        if not 0 <= value <= most:
            raise InputError(f"{option} {value}: expected 0 to {most}")
    if not 0 <= compute <= 10_000:
        raise InputError(f"--compute {compute:g}: expected 0 to 10000 milliseconds")
    return LabOptions(
        backends=tuple(dict.fromkeys(named)),
        ranks=_numbers(ranks, "--ranks", MOST_RANKS),
        sizes=_sizes(sizes, "--sizes"),
        pieces=_numbers(pieces, "--pieces", 1 << 16),
        inside=group,
        servers=_numbers(servers, "--servers", MOST_RANKS),
        compute_ms=compute,
        epochs=epochs or 8,
        gradient_bytes=next(iter(_sizes(gradients, "--gradients")), 0),
        samples=3 if quick else 5,
        sample_s=0.05 if quick else 0.2,
        limit_s=3.0 if quick else 20.0,
        data="" if data is None else str(data.absolute()),
    )


def _numbers(text: str | None, option: str, most: int) -> tuple[int, ...]:
    """Return ascending numbers, each once; none where nothing was asked for.

    Raises:
        InputError: it names something else.
    """
    from topocheck.model.base import small_number

    found = [small_number(w.strip()) for w in text.split(",")] if text is not None else []
    if any(n is None or not 1 <= n <= most for n in found) or len(found) > MOST_SIZES:
        raise InputError(f"{option} {(text or '')[:40]!r}: expected numbers from 1 to {most} by comma, such as 1,2,4")
    return tuple(sorted({n for n in found if n is not None}))


def _sizes(text: str | None, option: str) -> tuple[int, ...]:
    from topocheck.bandwidth.cases import parse_size

    words = text.split(",") if text is not None else []
    if len(words) > MOST_SIZES:
        raise InputError(f"{option}: {len(words)} sizes; expected up to {MOST_SIZES}")
    try:
        return tuple(sorted({parse_size(w.strip()) for w in words}))
    except ValueError as e:
        raise InputError(f"{option}: {e}") from None


def _run(
    name: str,
    from_: common.Given,
    options: LabOptions,
    files: tuple[Path | None, Path | None],
    end: contextlib.ExitStack,
    deadline_s: float,
) -> tuple[LabReport, Rendezvous | None]:
    """Run it. Returns the report and where the ranks meet; None where topocheck starts them.

    `files` are what rank 0 writes afterwards: the report and the curves.
    """
    from topocheck.render.progress import Progress
    from topocheck.tests_live.labs.record import job_record, node_record
    from topocheck.tests_live.labs.run import Runner
    from topocheck.tests_live.launch import alive, rendezvous
    from topocheck.tests_live.launch import world as launchers
    from topocheck.tests_live.training import idx
    from topocheck.tests_live.training.job_layout import common_job

    try:
        world = None if from_ else launchers.detect_here()
        stop_cleanly(launched=world is not None)
        first = world is None or world.rank == 0
        if first:
            curves.check_files(*files)
            if options.data:
                idx.read_split(Path(options.data))  # before anything is measured
        meeting = None if world is None else end.enter_context(rendezvous.join(world, f"lab {name}", deadline_s))
        node, topology, gpus = _look(from_)
        if meeting is None:
            job = _local(gpus, options, name)
        else:
            rendezvous.warn(meeting)
            alive.watch(meeting, deadline_s)
            job = common_job(meeting, gpus, deadline_s)
        mine = node_record(node, topology, "" if meeting is None else meeting.node, job.cores if not from_ else 0)
        record = job_record(job, mine, meeting, deadline_s)
        progress = Progress(enabled=first)
        with contextlib.closing(progress):
            runner = Runner(job, options, meeting, lambda words: progress.tell("measured", words, 0.0))
            return runner.run(name, record, node, topology), meeting
    except launchers.LaunchError as e:
        raise launchers.input_error(e) from None


def _local(gpus: tuple[str, ...], options: LabOptions, name: str) -> JobLayout:
    """Return the job of ranks that are started here: as many as asked for, else one per GPU, or four."""
    from topocheck.tests_live.training.job_layout import local_job

    most = max(options.ranks, default=0)
    return local_job(gpus, 1 if name in ASKED_ONLY else most or max(len(gpus), 4))


def _look(from_: common.Given) -> tuple[Node, Topology, tuple[str, ...]]:
    """Return the facts of this node or of a snapshot, and the addresses of its NVIDIA GPUs in PCI order."""
    from topocheck.collect import read_live
    from topocheck.pipeline import read_node
    from topocheck.tests_live.labs.record import PROBES
    from topocheck.topology.build import build

    node = read_node(common.open_host(from_)) if from_ else read_live(PROBES)
    topology = build(node)
    return node, topology, tuple(g.address for g in topology.gpus if isinstance(g.index, int))


def _page(report: LabReport, format_: str, output: Path | None, *, no_color: bool, width: int) -> str:
    from topocheck.render import lab as render

    if format_ == "text":
        return render.lab_text(report, common.style(output, no_color, width))
    forms = {
        "json": render.lab_json, "csv": render.lab_csv, "markdown": render.lab_markdown,
    }  # fmt: skip
    if format_ == "html":
        from topocheck.render.html.lab import lab_html

        return lab_html(report)
    return forms[format_](report)
