"""`topocheck scale`: what more ranks gain, and what training makes of the wires."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.cli.signals import stop_cleanly
from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.model.node import Node
    from topocheck.tests_live.scale_types import ScaleOptions, ScaleReport

FORMATS = ("text", "json", "csv", "markdown")
MOST_MIB = 1 << 20
OptionalPath = Optional[Path]  # noqa: UP045 - typer reads it at run time
OptionalList = Optional[list[str]]  # noqa: UP045
OptionalText = Optional[str]  # noqa: UP045


def scale(
    backend: Annotated[OptionalList, typer.Option("--backend", help="nccl, gloo or mpi; may be repeated.")] = None,
    ranks: Annotated[int, typer.Option("--ranks", help="Most ranks; 0: one per GPU, or 2, or the launcher's.")] = 0,
    collective: Annotated[str, typer.Option("--collective", help="The collective to scale.")] = "all_reduce",
    size: Annotated[
        OptionalText, typer.Option("--size", help="Its size, such as 64MiB; else that of --gradient.")
    ] = None,
    gradient: Annotated[
        OptionalText, typer.Option("--gradient", help="Gradient bytes of the model; else 25MiB, on a GPU 256MiB.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Samples a rank takes in a step; 0: 32, on a GPU 512.")] = 0,
    hooks: Annotated[
        str, typer.Option("--hooks", help="all, none, or by comma: fp16,bf16,powersgd,8bit_tensor,8bit_channel.")
    ] = "all",
    buckets: Annotated[
        OptionalText, typer.Option("--buckets", help="Bucket sizes to sweep, in MiB by comma; none for no sweep.")
    ] = None,
    no_digits: Annotated[bool, typer.Option("--no-digits", help="No training on the digits.")] = False,
    no_patterns: Annotated[bool, typer.Option("--no-patterns", help="No ring beside parameter server.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter samples.")] = False,
    curve: Annotated[
        OptionalPath, typer.Option("--curve", metavar="FILE", help="Draw the curves: .svg or .png.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text, json, csv or markdown.")] = "text",
    output: common.Output = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Run the same collective and a data-parallel training step at 1, 2, 4 ... all ranks and nodes.

    Shows time, throughput, speed-up and efficiency; what gradient compression gains and costs; the best bucket size
    beside what the cost model predicted; a ring beside a parameter server. Starts its ranks itself on one node; under
    torchrun, srun or mpirun it joins as that rank. Exit code 0 fine, 2 wrong usage, 3 something could not be measured.
    """
    common.choose(format_, FORMATS, "--format")
    options = _options(
        backends=backend, ranks=ranks, collective=collective, size=size, gradient=gradient, batch=batch, hooks=hooks,
        buckets=buckets, digits=not no_digits, patterns=not no_patterns, quick=quick,
    )  # fmt: skip
    report = _run(options, {"--output": output, "--curve": curve})
    if report is None:
        return
    common.emit(_page(report, format_, output, no_color=no_color, width=width), output)
    if curve is not None:
        _draw(report, curve)
    raise typer.Exit(common.EXIT_UNKNOWN if report.not_measured or not report.points else common.EXIT_OK)


def _options(
    *,
    backends: list[str] | None,
    ranks: int,
    collective: str,
    size: str | None,
    gradient: str | None,
    batch: int,
    hooks: str,
    buckets: str | None,
    digits: bool,
    patterns: bool,
    quick: bool,
) -> ScaleOptions:
    from topocheck.model.units import size_text
    from topocheck.tests_live.plan_collectives import COLLECTIVES
    from topocheck.tests_live.rows import parse_size
    from topocheck.tests_live.scale_types import ScaleOptions
    from topocheck.tests_live.train_types import HOOKS, SMALLEST_BYTES

    named = tuple(b.strip() for x in backends or () for b in x.split(",") if b.strip())
    for b in named:
        common.choose(b, ("nccl", "gloo", "mpi"), "--backend")
    common.choose(collective, COLLECTIVES, "--collective")
    for option, value, most in (("--ranks", ranks, 4096), ("--batch", batch, 1 << 20)):
        if not 0 <= value <= most:
            raise InputError(f"{option} {value}: expected 0 to {most}")
    chosen = HOOKS if hooks == "all" else ("none", *(h.strip() for h in hooks.split(",") if h.strip() != "none"))
    for h in chosen:
        common.choose(h, HOOKS, "--hooks")
    sizes = []
    for option, text in (("--size", size), ("--gradient", gradient)):
        try:
            sizes.append(0 if text is None else parse_size(text))
        except ValueError as e:
            raise InputError(f"{option}: {e}") from None
    if gradient is not None and sizes[1] < SMALLEST_BYTES:
        raise InputError(f"--gradient {gradient}: the smallest model has {size_text(SMALLEST_BYTES)} of gradients")
    return ScaleOptions(
        backends=named,
        ranks=ranks,
        collective=collective,
        collective_bytes=sizes[0],
        gradient_bytes=sizes[1],
        batch=batch,
        hooks=tuple(dict.fromkeys(chosen)),
        buckets_mib=_bucket_sizes(buckets),
        digits=digits,
        patterns=patterns,
        samples=3 if quick else 5,
        sample_s=0.1 if quick else 0.3,
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


def _check_files(files: dict[str, Path | None]) -> None:
    """Refuse files that could not be written after the run; option -> its file.

    Raises:
        InputError: names the option and what is wrong.
    """
    from importlib.util import find_spec

    for option, path in files.items():
        if path is not None:
            common.check_writable(path, option)
    curve = files["--curve"]
    if curve is not None and curve.suffix not in (".svg", ".png"):
        raise InputError(f"--curve {curve}: expected a name that ends in .svg or .png")
    if curve is not None and curve.suffix == ".png" and find_spec("matplotlib") is None:
        raise InputError(f"--curve {curve}: a PNG needs matplotlib: pip install matplotlib, or ask for .svg")


def _run(options: ScaleOptions, files: dict[str, Path | None]) -> ScaleReport | None:
    """Run it; None on a launcher's ranks other than 0, which write none of the files."""
    import msgspec

    from topocheck.render.progress import Progress
    from topocheck.tests_live import ranks as launchers
    from topocheck.tests_live import scale as live
    from topocheck.tests_live.run import machine_facts, torch_installed
    from topocheck.tests_live.scale_ground import common_ground, local_ground
    from topocheck.tests_live.scale_summary import summarize

    if not torch_installed():
        raise InputError("scale trains with torch, which is not installed: pip install 'topocheck-gpu[bw]'")
    progress: Progress | None = None
    try:
        world = launchers.detect_here()
        stop_cleanly(launched=world is not None)
        first = world is None or world.rank == 0
        if first:
            _check_files(files)
        node, gpus = _look()
        ground, ports = (local_ground(gpus, options.ranks), ()) if world is None else common_ground(world, gpus)
        progress = Progress(enabled=first)
        done = 0

        def tell(words: str) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress.tell("measured", words, 0.0)

        raw, outcomes = live.run(ground, options, world, tell, ports)
    except launchers.LaunchError as e:
        raise InputError(str(e)) from None
    finally:
        if progress is not None:
            progress.close()
    if not first:
        return None
    return msgspec.structs.replace(summarize(raw, outcomes), machine=machine_facts(node))


def _look() -> tuple[Node, tuple[str, ...]]:
    """Return the facts of this node, and the addresses of its NVIDIA GPUs in PCI order."""
    from topocheck.host.base import Host, RecordedBackend
    from topocheck.host.gather import gather
    from topocheck.pipeline import read_node
    from topocheck.probes.registry import PROBES
    from topocheck.topology.build import build

    probes = [p for p in PROBES if p.name in ("pci", "numa", "system", "settings", "nvml")]
    node = read_node(Host(RecordedBackend(gather(probes, budget_s=10.0)), "live"), probes)
    return node, tuple(g.address for g in build(node).gpus if isinstance(g.index, int))


def _page(report: ScaleReport, format_: str, output: Path | None, *, no_color: bool, width: int) -> str:
    from topocheck.render import scale as render

    if format_ == "text":
        return render.scale_text(report, common.style(output, no_color, width))
    return {"json": render.scale_json, "csv": render.scale_csv, "markdown": render.scale_markdown}[format_](report)


def _draw(report: ScaleReport, path: Path) -> None:
    from topocheck.render import scale_curve

    if path.suffix == ".svg":
        common.replace_file(path, scale_curve.svg(report))
        return
    try:
        path.write_bytes(scale_curve.png(report))
    except ImportError as e:
        raise InputError(f"--curve {path}: matplotlib cannot be loaded ({e}); ask for .svg") from None
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror}") from e
