"""`topocheck check` and `topocheck explain`: may a job start here, and why not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.checks.registry import Check
    from topocheck.pipeline import Report
    from topocheck.policy.types import Policy

OptionalPath = Optional[Path]  # noqa: UP045 - typer reads it at run time
OptionalList = Optional[list[str]]  # noqa: UP045
OptionalText = Optional[str]  # noqa: UP045


def check(
    from_: common.From = None,
    only: Annotated[
        OptionalList, typer.Option("--only", help="Only this check or area (pcie.*); may be repeated.")
    ] = None,
    skip: Annotated[OptionalList, typer.Option("--skip", help="Not this check or area; may be repeated.")] = None,
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
    on_unknown: Annotated[
        str, typer.Option("--on-unknown", help="In a prolog: pass or fail where the policy's musts cannot be told.")
    ] = "pass",
    budget: Annotated[
        float, typer.Option("--budget", help="Seconds for the whole run; what had no time is unknown.")
    ] = 20.0,
    format_: Annotated[
        str,
        typer.Option("--format", help="text, json, junit, sarif, nagios, npd, nhc, slurm-prolog, prometheus, nfd."),
    ] = "text",
    output: common.Output = None,
    write_policy: Annotated[
        OptionalPath,
        typer.Option("--write-policy", metavar="FILE", help="Write a policy that expects what this node has."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also notes, and every check with its state.")
    ] = False,
    no_color: common.NoColor = False,
    width: Annotated[int, typer.Option("--width", help="Columns of the text; 0 takes the terminal's, or 80.")] = 0,
) -> None:
    """Judge this node: exit code 0 healthy, 1 failed, 2 wrong usage, 3 could not tell what must be known.

    How each --format maps states to exit codes: topocheck explain formats.
    """
    from topocheck.checks.outcome import conclude, only_gpus
    from topocheck.pipeline import build_report
    from topocheck.render import formats

    common.choose(format_, formats.NAMES, "--format")
    common.choose(scope, ("auto", "all", "node", "process"), "--scope")
    common.choose(on_unknown, ("pass", "fail"), "--on-unknown")
    if budget <= 0:
        raise InputError(f"--budget {budget:g}: expected seconds above 0")
    policy, notices = _policy(policy_file, strict, lenient=formats.for_prolog(format_))
    checks = _chosen(only, skip, _scope(scope, format_))
    report = build_report(common.open_host(from_, budget_s=budget), policy, checks)
    _refuse_impossible(policy, report)
    if write_policy is not None:
        _write_policy(write_policy, report)
        return
    findings = report.findings
    chosen = _job_gpus(gpus, report, recorded=from_ is not None)
    if chosen is not None:
        findings = tuple(only_gpus(findings, report.topology, chosen))
    outcome = conclude(report.node, findings, report.results, policy, notices)
    layout = common.style(output, no_color, width)
    text, code = formats.render(format_, outcome, report, layout, verbose=verbose, unknown_fails=on_unknown == "fail")
    if format_ == "prometheus" and output is not None:
        common.replace_file(output, text)
    else:
        common.emit(text, output)
    raise typer.Exit(code)


def explain(
    id_: Annotated[str, typer.Argument(metavar="ID", help="Id of a check, `formats`, or `list`.")],
    no_color: common.NoColor = False,
) -> None:
    """Tell what a check looks at, why it matters, how to mend it and when it does not apply."""
    import difflib

    from topocheck.checks import all_checks
    from topocheck.render import checks as render
    from topocheck.render import formats

    known = {c.id: c for c in all_checks()}
    style = common.style(None, no_color, 0)
    if id_ == "list":
        common.emit("".join(f"{i:<32} {known[i].title}\n" for i in sorted(known)))
        return
    if id_ == "formats":
        common.emit(formats.conventions())
        return
    if id_ not in known:
        near = difflib.get_close_matches(id_, known, 3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"no check {id_!r}{hint} (topocheck explain list names all)")
    common.emit(render.explain_text(known[id_], style))


def _policy(option: Path | None, strict: bool, *, lenient: bool) -> tuple[Policy, list[str]]:
    """Return the policy, and what must be said of it.

    In a prolog (`lenient`) a policy that cannot be read must not stop every job of the cluster: the built-in one
    takes its place, which is logged, noted in the output, and makes the run unknown.
    """
    import msgspec

    from topocheck.checks import all_checks
    from topocheck.policy.load import PolicyError, find, load
    from topocheck.policy.types import Policy

    notices: list[str] = []
    path = find(option, os.environ)
    policy = Policy()
    if path is not None:
        try:
            policy = load(path, [c.id for c in all_checks()])
        except PolicyError as e:
            if not lenient:
                raise
            print(f"topocheck: {e}; the built-in policy is used", file=sys.stderr)
            notices.append(f"{e}; the built-in policy was used")
            policy = Policy(source=f"built in, since {path} cannot be read", require_probes=("pci", "policy"))
    return (msgspec.structs.replace(policy, strict=True) if strict else policy), notices


def _scope(scope: str, format_: str) -> str:
    """Return node, process or all: where the process is not the job, its environment says nothing of the job."""
    if scope != "auto":
        return scope
    from topocheck.render import formats

    context = os.environ.get("SLURM_SCRIPT_CONTEXT", "")
    not_the_job = context.startswith(("prolog_slurmd", "epilog_slurmd", "prolog_slurmctld", "epilog_slurmctld"))
    return "node" if not_the_job or format_ in formats.NODE_ONLY else "all"


def _chosen(only: list[str] | None, skip: list[str] | None, scope: str) -> list[Check]:
    from topocheck.checks import all_checks

    checks = list(all_checks())
    for pattern in (*(only or ()), *(skip or ())):
        if not any(_matches(c.id, pattern) for c in checks):
            raise InputError(f"no check or area {pattern!r} (topocheck explain list names all)")
    if only:
        checks = [c for c in checks if any(_matches(c.id, p) for p in only)]
    checks = [c for c in checks if not any(_matches(c.id, p) for p in skip or ())]
    return [c for c in checks if scope == "all" or c.scope == scope]


def _matches(check_id: str, pattern: str) -> bool:
    area = pattern.removesuffix(".*")
    return check_id == pattern or (check_id.split(".", 1)[0] == area and "." not in area)


def _refuse_impossible(policy: Policy, report: Report) -> None:
    from topocheck.policy.possible import impossible

    problems = impossible(policy, report.topology)
    if problems:
        raise InputError(f"policy {policy.source} asks for the impossible: {'; '.join(problems)}")


def _write_policy(path: Path, report: Report) -> None:
    from topocheck.model.base import State
    from topocheck.policy.write import policy_toml

    bad = [f for f in report.findings if f.state is State.FAIL]
    if bad:
        raise InputError(
            f"this node is not healthy, so no policy is made from it: {bad[0].id}: {bad[0].title}"
            + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else "")
        )
    common.emit(policy_toml(report.node, report.topology, report.gpudirect), path)
    print(f"wrote {path}")


def _job_gpus(option: str | None, report: Report, *, recorded: bool) -> frozenset[str] | None:
    """Return the addresses of the GPUs to judge, or None for all: --gpus, else a prolog's SLURM_JOB_GPUS."""
    from topocheck.checks.outcome import resolve_gpus

    text, minors, name = option, False, "--gpus"
    if text is None and not recorded and os.environ.get("SLURM_JOB_GPUS"):
        # Slurm counts GPUs by the number in /dev/nvidiaN, which is the device's minor.
        text, minors, name = os.environ["SLURM_JOB_GPUS"], True, "SLURM_JOB_GPUS"
    if text is None:
        return None
    try:
        return resolve_gpus(text, report.node, report.topology, minors=minors)
    except ValueError as e:
        raise InputError(f"{name}: {e}") from e
