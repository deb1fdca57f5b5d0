"""`topocheck fleet`: what many nodes have in common, and which of them are odd."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.cli.fabric_join import FabricFiles, judged
from topocheck.model.base import InputError
from topocheck.model.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from topocheck.checks.fabric.run import JudgedFabric
    from topocheck.compare.types import Fleet, UnreadableFile

FORMATS = ("text", "json", "html", "csv")


def fleet(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Reports (--format json, gzip'd or not), snapshots, and what --from takes: files, folders, archives, "
            "patterns.",
        ),
    ],
    against: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option(
            "--against",
            metavar="FOLDER",
            help="Also show what changed or grew since the reports and recordings in FOLDER.",
        ),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text, json (--json), html or csv.")] = "text",
    output: common.Output = None,
    policy: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--policy", metavar="FILE", help="Policy by which snapshots are judged."),
    ] = None,
    fabric: FabricFiles = None,
    processes: Annotated[int, typer.Option("--processes", min=0, help="Processes that read; 0: one per CPU.")] = 0,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Outlier and mixed nodes, warnings, unknowns and unreadable files count as failures."
        ),
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="List everything, however long.")] = False,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Compare any number of nodes: groups of equal ones, outliers and exactly what differs, rails, findings.

    Exits 1 where a check failed on some node, or a job over several would fail, 0 otherwise; --strict also counts odd
    and mixed nodes, warnings, unknowns and files that could not be read. 2 where no file could be read.
    """
    from topocheck.cli.fleet_files import RECORDINGS, find_files, read_all
    from topocheck.cli.fleet_growth import with_growth
    from topocheck.compare.changes import changes
    from topocheck.compare.outliers import judge

    common.choose(format_, FORMATS, "--format")
    if output is not None:
        common.check_writable(output, "--output")
    judged_by = None if policy is None else common.load_policy(policy)
    given = [_path(p) for p in paths]
    reports = (f for f in find_files(given) if not f.endswith(RECORDINGS))
    now, bad = read_all(reports, processes=processes, policy=judged_by)
    if not now.entries:
        raise InputError(f"no report or snapshot could be read{_first(bad)}")
    now, older = now.latest()
    changed = None
    if against is not None:
        earlier = (f for f in find_files([_path(against)]) if not f.endswith(RECORDINGS))
        before, bad_before = read_all(earlier, processes=processes, policy=judged_by)
        bad += bad_before
        if not before.entries:
            raise InputError(f"--against {against}: no report or snapshot could be read there{_first(bad_before)}")
        changed = changes(now, before.latest()[0])
    result = judge(now, bad, changed, older)
    if against is not None:
        result = with_growth(result, given, [_path(against)], judged_by)
    network = judged(fabric, now, judged_by)
    common.emit(_rendered(result, network, format_, output, no_color, width, all_), output)
    if code := max(exit_code(result, strict=strict), 0 if network is None else fabric_code(network, strict=strict)):
        raise typer.Exit(code)


def _first(bad: list[UnreadableFile]) -> str:
    return f"; the first: {bad[0].file}: {bad[0].reason}" if bad else ""


def _path(text: str) -> Path:
    """Return the path that was given. Of the empty one, an unset variable in a script, Path would make `.`."""
    if not text:
        raise InputError("an empty path was given; expected a report, a snapshot or a folder of these (. for this one)")
    return Path(text)


def fabric_code(network: JudgedFabric, *, strict: bool) -> int:
    """Return 1 where a check of the fabric failed; with `strict` also for warnings and unknowns."""
    counted = ("fail", "warn", "unknown") if strict else ("fail",)
    return EXIT_FAILED if any(f.state in counted for f in network.result.findings) else EXIT_OK


def _rendered(
    result: Fleet,
    network: JudgedFabric | None,
    format_: str,
    output: Path | None,
    no_color: bool,
    width: int,
    all_: bool,
) -> str:
    from topocheck.render import fleet as render

    if format_ == "json":
        return render.fleet_json(result, network)
    if format_ == "csv":
        return render.fleet_csv(result)
    if format_ == "html":
        from topocheck.render.html.fleet import fleet_html

        return fleet_html(result, network)
    return render.fleet_text(result, common.style(output, no_color, width), all_=all_, fabric=network)


def exit_code(result: Fleet, *, strict: bool) -> int:
    """Return 1 where a check failed on some node; with `strict` also for all that is not as it should be."""
    counted = ("fail", "warn", "unknown") if strict else ("fail",)
    if any(f.state in counted for f in result.findings) or any(p.state in counted for p in result.job):
        return EXIT_FAILED
    unlike = result.outliers or result.unreadable_files or any(k.no_majority for k in result.hardware_types)
    return EXIT_FAILED if strict and unlike else EXIT_OK
