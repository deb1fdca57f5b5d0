"""`topocheck check` and `topocheck explain`: may a job start here, and why not.

Annotations are not postponed: typer would evaluate each from text, twice, which takes as long as reading a recording.
"""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
import typer.core

from topocheck.cli import check_input, common, sampling
from topocheck.model.base import InputError, OutputError
from topocheck.model.exit_codes import EXIT_UNKNOWN, EXIT_USAGE
from topocheck.render import formats

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.pipeline import Report

OptionalPath = Optional[Path]  # noqa: UP045 - typer reads it at run time
OptionalList = Optional[list[str]]  # noqa: UP045
OptionalText = Optional[str]  # noqa: UP045


LEAST_BUDGET_S = 1.0
"""Within less, nothing of a machine could be read: the driver alone may take as long."""


class CheckCommand(typer.core.TyperCommand):
    """The command, with wrong usage told as Nagios wants it where its format is asked for: 2 is CRITICAL there."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Read the command line."""
        nagios = "--format=nagios" in args or ("--format", "nagios") in itertools.pairwise(args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except Exception as e:
            if nagios and getattr(e, "exit_code", None) == EXIT_USAGE:
                _nagios_usage(str(getattr(e, "message", e)))
                raise typer.Exit(EXIT_UNKNOWN) from None
            raise


def check(
    from_: common.From = None,
    only: Annotated[
        OptionalList, typer.Option("--only", help="Only these checks or areas (pcie.*), by comma or repeated.")
    ] = None,
    skip: Annotated[
        OptionalList, typer.Option("--skip", help="Not these checks or areas, by comma or repeated.")
    ] = None,
    gpus: Annotated[
        OptionalText,
        typer.Option("--gpus", help="Judge only these GPUs: indexes, UUIDs or PCI addresses, comma separated."),
    ] = None,
    scope: Annotated[
        str, typer.Option("--scope", help="auto, all, node or process: process checks judge this environment.")
    ] = "auto",
    policy_file: Annotated[
        OptionalPath,
        typer.Option("--policy", help="Policy (TOML); else TOPOCHECK_POLICY, else /etc/topocheck/policy.toml."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings and unknowns count as failures.")] = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Also the checks in preview, whose judgement may still change.")
    ] = False,
    on_unknown: Annotated[
        str,
        typer.Option("--on-unknown", help="In a prolog: pass or fail where the policy's musts cannot be determined."),
    ] = "pass",
    budget: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--budget",
            help="Seconds for the whole run; what had no time is unknown. By default 20, and 2 more for each GPU.",
        ),
    ] = None,
    since: Annotated[
        OptionalPath,
        typer.Option(
            "--since", metavar="FILE", help="Also what grew since a recording of topocheck watch, or since a snapshot."
        ),
    ] = None,
    sample: Annotated[
        OptionalText,
        typer.Option("--sample", metavar="TIME", help="Also what grows while this machine is sampled: 5s, 1m."),
    ] = None,
    format_: Annotated[
        str,
        typer.Option("--format", help=f"{', '.join(formats.NAMES)}; --json for json."),
    ] = "text",
    output: common.UncheckedOutput = None,
    metrics: Annotated[
        OptionalPath,
        typer.Option("--metrics", metavar="FILE", help="Also write the outcome as Prometheus metrics to FILE."),
    ] = None,
    write_policy: Annotated[
        OptionalPath,
        typer.Option("--write-policy", metavar="FILE", help="Write a policy that expects what this node has."),
    ] = None,
    notes: Annotated[bool, typer.Option("--notes", help="Also the notes, which need no attention.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also every check with its state.")] = False,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Judge this node: exit code 0 healthy, 1 failed, 2 wrong usage, 3 a required fact could not be determined."""
    try:
        common.choose(format_, formats.NAMES, "--format")
        common.choose(scope, ("auto", "all", "node", "process"), "--scope")
        common.choose(on_unknown, ("pass", "fail"), "--on-unknown")
        if not formats.FORMATS[format_].unattended:
            common.writable(output)
        if budget is not None and not budget > 0:
            raise InputError(f"--budget {budget:g}: expected seconds above 0")
        if budget is not None and budget < LEAST_BUDGET_S:
            raise InputError(
                f"--budget {budget:g}: no check could be evaluated in that time; expected at least {LEAST_BUDGET_S:g} s"
            )
        asked = check_input.Asked(
            recording=tuple(from_ or ()),
            only=tuple(map(common.current_check, common.by_comma(only))),
            skip=tuple(map(common.current_check, common.by_comma(skip))),
            gpus=gpus,
            scope=check_input.scope_of(scope, format_),
            policy_file=policy_file,
            strict=strict,
            preview=preview,
            lenient=formats.FORMATS[format_].unattended,
            budget_s=budget,
            since=since,
            sample_s=None if sample is None else sampling.seconds_of(sample, "--sample"),
        )
        if write_policy is not None:
            _write_policy(write_policy, check_input.judge(asked)[1])
            return
        outcome, report = check_input.judge(asked)
        if metrics is not None:
            _metrics(metrics, outcome, report)
        layout = common.style(output, no_color, width)
        text, code = formats.render(
            format_, outcome, report, layout, notes=notes, verbose=verbose, unknown_fails=on_unknown == "fail"
        )
        try:
            common.emit(text, output)
        except OutputError as e:
            # The exit code is the answer that a scheduler acts on: a full disk is no failed node.
            if not formats.FORMATS[format_].unattended:
                raise
            common.warn(str(e))
    except InputError as e:
        if format_ != "nagios":
            raise
        _nagios_usage(str(e))
        raise typer.Exit(EXIT_UNKNOWN) from None
    raise typer.Exit(code)


check.__doc__ = f"{check.__doc__}\n\n\b\n{formats.conventions()}"


def explain(
    id_: Annotated[str, typer.Argument(metavar="ID", help="Id of a check, `formats`, `strategies`, or `list`.")],
    no_color: common.NoColor = False,
) -> None:
    """Explain what a check evaluates, why it matters, how to fix it and when it does not apply."""
    import difflib

    from topocheck.checks import all_checks
    from topocheck.render import checks as render

    known = {c.id: c for c in all_checks()}
    style = common.style(None, no_color, 0)
    if id_ == "list":
        common.emit("".join(f"{i:<32} {known[i].listed}\n" for i in sorted(known)))
        return
    if id_ == "formats":
        common.emit(formats.conventions())
        return
    if id_ == "strategies":
        from topocheck.knowledge.strategies import strategies
        from topocheck.render.strategies import strategies_text

        common.emit(strategies_text(strategies(), style))
        return
    id_ = common.current_check(id_)
    if id_ not in known:
        near = difflib.get_close_matches(id_, known, 3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"no check {id_!r}{hint} (topocheck explain list names all)")
    common.emit(render.explain_text(known[id_], style))


def _nagios_usage(message: str) -> None:
    from topocheck.render.formats.nagios import usage_line

    common.emit(usage_line(message))


def _metrics(path: Path, outcome: "Outcome", report: "Report") -> None:
    """Write the metrics; a failure is reported and changes nothing of the verdict."""
    from topocheck.render.formats import prometheus

    try:
        common.emit(prometheus.render(outcome, report), path)
    except InputError as e:
        common.warn(f"no metrics: {e}")


def _write_policy(path: Path, report: "Report") -> None:
    from topocheck.model.base import State
    from topocheck.policy.write import expectations
    from topocheck.render.policy import policy_toml

    bad = [f for f in report.findings if f.state is State.FAIL]
    if bad:
        raise InputError(
            f"this node is not healthy, so no policy is made from it: {bad[0].id}: {bad[0].title}"
            + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else "")
        )
    if not report.topology.gpus and not report.topology.nics:
        raise InputError("this node shows neither a GPU nor an RDMA NIC, so a policy from it would expect nothing")
    expected = expectations(report.node, report.topology, report.gpudirect)
    common.emit(policy_toml(expected, report.node), path)
    common.wrote(str(path), path)
