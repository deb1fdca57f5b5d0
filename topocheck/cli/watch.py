"""`topocheck watch`: this machine over time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common, sampling
from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.overtime.history import History
    from topocheck.overtime.types import Header, Sample
    from topocheck.pipeline import Report
    from topocheck.policy.types import Policy

OptionalPath = Optional[Path]  # noqa: UP045 - typer reads it at run time
OptionalText = Optional[str]  # noqa: UP045
FORMATS = ("text", "json")


def watch(
    interval: Annotated[str, typer.Option("--interval", help="Time between samples: 0.5, 1s, 1m.")] = "1",
    for_: Annotated[
        OptionalText, typer.Option("--for", metavar="TIME", help="Stop after 30s, 5m, 1h; else on Ctrl-C.")
    ] = None,
    record: Annotated[
        OptionalPath, typer.Option("--record", metavar="FILE", help="Write the samples as JSON lines to a new file.")
    ] = None,
    prometheus: Annotated[
        OptionalPath,
        typer.Option("--prometheus", metavar="FILE", help="Write the latest values as Prometheus metrics to FILE."),
    ] = None,
    policy_file: Annotated[
        OptionalPath, typer.Option("--policy", metavar="FILE", help="Severities and thresholds (TOML).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings and unknowns count as failures.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what was found at the end.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also notes, and every check.")] = False,
    format_: Annotated[str, typer.Option("--format", help="text, or json of what was found.")] = "text",
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Sample links, counters, clocks and ports, and judge what grew.

    Reads only, and wakes no suspended device. Ends after --for, or on SIGINT and SIGTERM, and then judges: exit code
    0 healthy, 1 failed, 2 wrong usage, 3 a required fact could not be determined.
    """
    from topocheck.cli.signals import stop_cleanly
    from topocheck.render import checks as render

    common.choose(format_, FORMATS, "--format")
    interval_s = sampling.seconds_of(interval, "--interval")
    if not sampling.MIN_INTERVAL_S <= interval_s <= sampling.MAX_INTERVAL_S:
        raise InputError(f"--interval {interval}: expected {sampling.MIN_INTERVAL_S:g} s to 1 h")
    for_s = None if for_ is None else sampling.seconds_of(for_, "--for")
    if for_s is not None and for_s < interval_s:
        raise InputError(f"--for {for_}: expected at least the interval, {interval_s:g} s")
    if prometheus is not None:
        common.check_writable(prometheus, "--prometheus")
    policy = _policy(policy_file, strict)
    report = _report(policy)
    header = sampling.header_of(report, interval_s)
    shown = _Shown(header, record, prometheus, on=not quiet and format_ == "text", no_color=no_color)
    stop_cleanly()
    try:
        history = sampling.sample(report, header, for_s, shown.each, traffic=shown.on_terminal)
    finally:
        shown.close()
    outcome = judged(report, history, policy)
    if format_ == "json":
        common.emit(render.check_json(outcome))
    else:
        common.emit(render.check_text(outcome, common.style(None, no_color, width), notes=verbose, verbose=verbose))
    raise typer.Exit(outcome.exit_code)


class _Shown:
    """Where samples go as they come: the terminal or pipe, the recording, the metrics."""

    def __init__(self, header: Header, record: Path | None, metrics: Path | None, *, on: bool, no_color: bool) -> None:
        from topocheck.host.output import GrowingFile
        from topocheck.overtime.record import line
        from topocheck.render.formats.watch_prometheus import Exporter
        from topocheck.render.watch import Lines, LiveTable

        self._metrics = metrics
        self._exporter = None if metrics is None else Exporter(header)
        self._file = None if record is None else GrowingFile(record)
        if self._file is not None:
            self._file.write(line(header))
        style = common.style(None, no_color, 0)
        self.on_terminal = on and common.on_terminal()
        self._table = LiveTable(header, colour=style.colour) if self.on_terminal else None
        self._lines = Lines(header) if on and not self.on_terminal else None

    def each(self, sample: Sample) -> None:
        """Record and show a sample."""
        from topocheck.overtime.record import line

        if self._file is not None:
            self._file.write(line(sample))
        if self._exporter is not None and self._metrics is not None:
            common.emit(self._exporter.text(sample), self._metrics)
        if self._table is not None:
            self._table.show(sample)
        if self._lines is not None:
            common.emit(self._lines.line(sample) + "\n")

    def close(self) -> None:
        """End the table and the file."""
        if self._table is not None:
            self._table.close()
        if self._file is not None:
            self._file.close()


def _policy(path: Path | None, strict: bool) -> Policy:
    import os

    from msgspec.structs import replace

    from topocheck.policy.load import find
    from topocheck.policy.types import Policy

    found = find(path, os.environ)
    policy = Policy() if found is None else common.load_policy(found)
    return replace(policy, strict=policy.strict or strict)


def _report(policy: Policy) -> Report:
    from topocheck.pipeline import build_report

    return build_report(common.open_host(None), policy, ())


def judged(report: Report, history: History, policy: Policy) -> Outcome:
    """Return what the samples come to."""
    from topocheck.checks.result import conclude, no_gpu
    from topocheck.checks.watch.run import judge_watch

    results, findings = judge_watch(history, node=report.node, topology=report.topology, policy=policy)
    return conclude(report.node, findings, results, policy, no_gpu=no_gpu(report.node, report.topology))
