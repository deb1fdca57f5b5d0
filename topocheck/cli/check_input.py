"""What a run of checks is asked for: the policy, the checks, a job's GPUs, the time; and the run itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from topocheck.cli import common
from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.checks.outcome import Outcome
    from topocheck.checks.registry import Check
    from topocheck.pipeline import Report
    from topocheck.policy.types import Policy

RESERVE_S = 1.0
"""Of the budget, at most this (or a fifth of a short one) is kept for start-up, judging and printing."""


_SCRIPTS = ("prolog_slurmd", "epilog_slurmd", "prolog_slurmctld", "epilog_slurmctld")
"""SLURM_SCRIPT_CONTEXT of scripts that are not the job (Slurm, prolog_epilog guide)."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for.

    Attributes:
        recording: the recording to judge; this machine where None.
        only, skip: ids or areas of checks.
        gpus: the GPUs to judge, as the user wrote them; all, or a prolog's job's, where None.
        scope: node, process or all.
        policy_file: the policy to read; the site's where None.
        lenient: a policy that cannot be used makes the run unknown and does not end it, since nobody would read
            why it ended.
        budget_s: seconds for the whole run.
    """

    recording: Path | None
    only: tuple[str, ...]
    skip: tuple[str, ...]
    gpus: str | None
    scope: str
    policy_file: Path | None
    strict: bool
    lenient: bool
    budget_s: float


class Told(msgspec.Struct):
    """What is to be said of the run beside its findings."""

    notices: list[str] = msgspec.field(default_factory=list)
    cannot_tell: list[str] = msgspec.field(default_factory=list)
    policy_readable: bool = True

    def doubt(self, what: str, instead: str) -> None:
        """Take down that something that must be known is not, and what was done instead; also on standard error."""
        print(f"topocheck: {what}; {instead}", file=sys.stderr)
        self.notices.append(f"{what}; {instead}")
        self.cannot_tell.append(what)


def judge(asked: Asked) -> tuple[Outcome, Report]:
    """Run the checks and conclude.

    Raises:
        InputError: the command line, the policy or the recording cannot be used.
    """
    gather_s = asked.budget_s - min(RESERVE_S, asked.budget_s / 5)
    host = None
    if not (asked.only or asked.skip or asked.policy_file):
        # Nothing of the command line is left that could be wrong: the machine is asked while the rest is loaded.
        host = common.open_host(asked.recording, budget_s=gather_s)
    from topocheck.checks.outcome import conclude, no_gpu, only_gpus
    from topocheck.pipeline import build_report

    told = Told()
    policy = read_policy(asked, told)
    checks = chosen_checks(asked.only, asked.skip, asked.scope)
    report = build_report(host or common.open_host(asked.recording, budget_s=gather_s), policy, checks)
    policy = _possible(policy, report, asked, told)
    findings = report.findings
    chosen = _job_gpus(asked, report, told)
    if chosen is not None:
        findings = tuple(only_gpus(findings, report.topology, chosen))
    outcome = conclude(
        report.node,
        findings,
        report.results,
        policy,
        told.notices,
        cannot_tell=told.cannot_tell,
        policy_readable=told.policy_readable,
        no_gpu=no_gpu(report.node, report.topology),
    )
    return outcome, report


def read_policy(asked: Asked, told: Told) -> Policy:
    """Return the policy. Where it cannot be read, a lenient run takes the built-in one and says so.

    Raises:
        PolicyError: it cannot be used, and the run is not lenient.
    """
    from topocheck.policy.load import PolicyError, find
    from topocheck.policy.types import Policy

    path = find(asked.policy_file, os.environ)
    policy = Policy()
    if path is not None:
        try:
            policy = common.load_policy(path)
        except PolicyError as e:
            if not asked.lenient:
                raise
            told.doubt(str(e), "the built-in policy was used")
            told.policy_readable = False
    return msgspec.structs.replace(policy, strict=True) if asked.strict else policy


def _possible(policy: Policy, report: Report, asked: Asked, told: Told) -> Policy:
    """Return the policy if this node could meet it.

    Raises:
        InputError: no healthy node of this wiring could, and the run is not lenient.
    """
    from topocheck.policy.possible import impossible

    problems = impossible(policy, report.topology)
    if problems:
        text = f"policy {policy.source} asks for the impossible: {'; '.join(problems)}"
        if not asked.lenient:
            raise InputError(text)
        told.doubt(text, "what it asks of bandwidth was not judged")
    return policy


def scope_of(scope: str, format_: str) -> str:
    """Return node, process or all: where the process is not the job, its environment says nothing of the job."""
    if scope != "auto":
        return scope
    from topocheck.render import formats

    not_the_job = os.environ.get("SLURM_SCRIPT_CONTEXT", "").startswith(_SCRIPTS)
    return "node" if not_the_job or format_ in formats.NODE_ONLY else "all"


def chosen_checks(only: tuple[str, ...], skip: tuple[str, ...], scope: str) -> list[Check]:
    """Return the checks to run.

    Raises:
        InputError: a name is no check and no area; names the nearest.
    """
    import difflib

    from topocheck.checks import static_checks

    checks = list(static_checks())
    names = [c.id for c in checks] + sorted({c.id.split(".", 1)[0] for c in checks})
    for pattern in (*only, *skip):
        if not any(_matches(c.id, pattern) for c in checks):
            near = difflib.get_close_matches(pattern, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"no check or area {pattern!r}{hint} (topocheck explain list names all)")
    if only:
        checks = [c for c in checks if any(_matches(c.id, p) for p in only)]
    checks = [c for c in checks if not any(_matches(c.id, p) for p in skip)]
    chosen = [c for c in checks if scope == "all" or c.scope == scope]
    if not chosen:
        raise InputError(f"--only, --skip and --scope {scope} leave no check to run")
    return chosen


def _matches(check_id: str, pattern: str) -> bool:
    area = pattern.removesuffix(".*")
    return check_id == pattern or (check_id.split(".", 1)[0] == area and "." not in area)


def _job_gpus(asked: Asked, report: Report, told: Told) -> frozenset[str] | None:
    """Return the addresses of the GPUs to judge, or None for all: --gpus, else Slurm's SLURM_JOB_GPUS.

    A recording is of another machine than this job's, unless it is a prolog that judges it.

    Raises:
        InputError: --gpus names what is not there.
    """
    from topocheck.checks.outcome import resolve_gpus

    text, minors, name = asked.gpus, False, "--gpus"
    ours = asked.recording is None or os.environ.get("SLURM_SCRIPT_CONTEXT", "").startswith(_SCRIPTS)
    if text is None and ours and os.environ.get("SLURM_JOB_GPUS"):
        # Slurm counts GPUs by the number in /dev/nvidiaN, which is the device's minor.
        text, minors, name = os.environ["SLURM_JOB_GPUS"], True, "SLURM_JOB_GPUS"
    if text is None:
        return None
    try:
        return resolve_gpus(text, report.node, report.topology, minors=minors)
    except ValueError as e:
        if not minors:
            raise InputError(f"{name}: {e}") from e
        told.doubt(f"{name}: {e}", "all GPUs were judged")
        return None
