"""`topocheck watch`: this machine over time, or a recording of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common, sampling
from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.overtime.history import History
    from topocheck.pipeline import Report
    from topocheck.policy.types import Policy
    from topocheck.render.page import Style

OptionalPath = Optional[Path]  # noqa: UP045 - typer reads it at run time
OptionalText = Optional[str]  # noqa: UP045
FORMATS = ("text", "json", "html")


def watch(
    interval: Annotated[
        OptionalText,
        typer.Option("--interval", metavar="TIME", help="Time between samples: 0.5, 1s, 1m.  [default: 1]"),
    ] = None,
    for_: Annotated[
        OptionalText, typer.Option("--for", metavar="TIME", help="Stop after 30s, 5m, 1h; else on Ctrl-C.")
    ] = None,
    record: Annotated[
        OptionalPath,
        typer.Option(
            "--record", metavar="FILE", help="Write the samples as JSON lines to a new file; compressed if it ends .gz."
        ),
    ] = None,
    prometheus: Annotated[
        OptionalPath,
        typer.Option("--prometheus", metavar="FILE", help="Write the latest values as Prometheus metrics to FILE."),
    ] = None,
    recording: Annotated[
        OptionalPath, typer.Option("--from", metavar="FILE", help="Judge a recording instead of this machine.")
    ] = None,
    policy_file: Annotated[
        OptionalPath, typer.Option("--policy", metavar="FILE", help="Severities and thresholds (TOML).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings and unknowns count as failures.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what was found at the end.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also notes, and every check.")] = False,
    format_: Annotated[
        str, typer.Option("--format", help="text, json (--json) of what was found, or html with charts over time.")
    ] = "text",
    output: common.Output = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Sample links, counters, clocks and ports, and judge what grew.

    Reads only, and wakes no suspended device. On a terminal: a table; keys
    sort and freeze it, q ends. Ends after --for, or on SIGINT and SIGTERM,
    and then judges: exit code 0 healthy, 1 failed, 2 wrong usage, 3 a
    required fact could not be determined.
    """
    common.choose(format_, FORMATS, "--format")
    if output is not None:
        common.check_writable(output, "--output")
    policy = _policy(policy_file, strict)
    if recording is not None:
        if (interval, for_, record, prometheus) != (None,) * 4:
            raise InputError("--interval, --for, --record and --prometheus need this machine, not --from")
        history = sampling.load(recording)
        outcome = _judged_alone(history, str(recording), policy)
    else:
        interval_s, for_s = _times(interval or "1", for_)
        if prometheus is not None:
            common.check_writable(prometheus, "--prometheus")
        report = _report(policy)
        shown = format_ == "text" and not quiet and output is None
        history = _sampled(report, interval_s, for_s, (record, prometheus), on=shown, no_color=no_color)
        if not history.samples and not history.header.devices:
            common.warn("nothing to sample: no NVIDIA GPU and no RDMA NIC on this machine; ended at once")
        outcome = judged(report, history, policy)
    common.emit(_text(format_, history, outcome, common.style(output, no_color, width), verbose=verbose), output)
    raise typer.Exit(outcome.exit_code)


def _times(interval: str, for_: str | None) -> tuple[float, float | None]:
    interval_s = sampling.seconds_of(interval, "--interval")
    if not sampling.MIN_INTERVAL_S <= interval_s <= sampling.MAX_INTERVAL_S:
        raise InputError(f"--interval {interval}: expected {sampling.MIN_INTERVAL_S:g} s to 1 h")
    for_s = None if for_ is None else sampling.seconds_of(for_, "--for")
    if for_s is not None and for_s < interval_s:
        raise InputError(f"--for {for_}: expected at least the interval, {interval_s:g} s")
    return interval_s, for_s


def _sampled(
    report: Report,
    interval_s: float,
    for_s: float | None,
    files: tuple[Path | None, Path | None],
    *,
    on: bool,
    no_color: bool,
) -> History:
    from topocheck.cli.signals import stop_cleanly
    from topocheck.cli.watch_shown import Shown

    header = sampling.header_of(report, interval_s)
    stop_cleanly()
    shown = Shown(header, *files, on=on, no_color=no_color)
    try:
        return sampling.sample(report, header, for_s, shown.each, traffic=shown.on_terminal)
    finally:
        shown.close()


def _text(format_: str, history: History, outcome: Outcome, style: Style, *, verbose: bool) -> str:
    from topocheck.render import checks as render

    if format_ == "json":
        from topocheck.render.check_json import check_json

        return check_json(outcome)
    if format_ == "html":
        from topocheck.overtime.timeline import panels
        from topocheck.render.html.watch import watch_html

        return watch_html(
            history.header,
            panels(history),
            outcome.findings,
            seconds=history.seconds,
            samples=len(history.samples),
        )
    return render.check_text(outcome, style, notes=verbose, verbose=verbose)


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


def _judged_alone(history: History, name: str, policy: Policy) -> Outcome:
    """Return what a recording comes to, without any other fact of its machine."""
    from msgspec.structs import replace

    from topocheck.checks.result import conclude
    from topocheck.checks.watch.run import judge_watch
    from topocheck.host.gather.jsonable import plain_text
    from topocheck.model.node import Node

    node = Node(source=plain_text(name), taken_at=history.header.begun)
    results, findings = judge_watch(history, node=node, policy=policy)
    none = "" if any(d.is_gpu for d in history.header.devices) else "no GPU was sampled"
    n = len(history.samples)
    untold = f"it holds {n} sample{'' if n == 1 else 's'}, and what grew takes two: was it cut, or just begun?"
    return conclude(
        node,
        findings,
        results,
        replace(policy, require_probes=()),
        cannot_tell=(f"nothing was measured: {untold}",) if n < 2 and history.header.devices else (),
        no_gpu=none,
    )
