"""What a run of checks is asked for: the policy, the checks, a job's GPUs, the time; and the run itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from topocheck.cli import common
from topocheck.model.base import NOT_RECORDED, InputError, Missing

if TYPE_CHECKING:
    from collections.abc import Collection

    from topocheck.checks.registry import Check, CheckResult
    from topocheck.checks.result import Outcome
    from topocheck.host.base import Host
    from topocheck.model.base import Finding
    from topocheck.overtime.history import History
    from topocheck.pipeline import Report
    from topocheck.policy.types import Policy

RESERVE_S = 1.0
"""Of the budget, at most this (or a fifth of a short one) is kept for start-up, judging and printing."""


_SCRIPTS = ("prolog_slurmd", "epilog_slurmd", "prolog_slurmctld", "epilog_slurmctld")
"""SLURM_SCRIPT_CONTEXT of scripts that are not the job (Slurm, prolog_epilog guide)."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for.

    Attributes:
        recording: the files of the machine to judge; this machine where there are none.
        only, skip: ids or areas of checks.
        gpus: the GPUs to judge, as the user wrote them; all, or a prolog's job's, where None.
        scope: node, process or all.
        policy_file: the policy to read; the site's where None.
        preview: run the checks in preview too.
        lenient: a policy that cannot be used makes the run unknown and does not end it, since nobody would read
            why it ended.
        budget_s: seconds for the whole run, sampling aside; None: as many as the probes need on a machine of so many
            GPUs.
        since: a recording of `topocheck watch` to compare with.
        sample_s: how long to sample; None for not at all, or once where there is something to compare with.
    """

    recording: tuple[Path, ...]
    only: tuple[str, ...]
    skip: tuple[str, ...]
    gpus: str | None
    scope: str
    policy_file: Path | None
    strict: bool
    preview: bool
    lenient: bool
    budget_s: float | None
    since: Path | None = None
    sample_s: float | None = None

    @property
    def over_time(self) -> bool:
        """Whether the checks of samples are asked for."""
        return self.since is not None or self.sample_s is not None


class Told(msgspec.Struct):
    """What is to be said of the run beside its findings."""

    notices: list[str] = msgspec.field(default_factory=list)
    cannot_tell: list[str] = msgspec.field(default_factory=list)
    policy_readable: bool = True

    def doubt(self, what: str, instead: str) -> None:
        """Take down that something that must be known is not, and what was done instead; also on standard error."""
        common.warn(f"{what}; {instead}")
        self.notices.append(f"{what}; {instead}")
        self.cannot_tell.append(what)


def judge(asked: Asked) -> tuple[Outcome, Report]:
    """Run the checks and conclude.

    Raises:
        InputError: the command line, the policy or the recording cannot be used.
    """
    before = _before(asked)
    gather_s = None if asked.budget_s is None else asked.budget_s - min(RESERVE_S, asked.budget_s / 5)
    host = None
    if not (asked.only or asked.skip or asked.policy_file):
        # Nothing of the command line is left that could be wrong: the machine is asked while the rest is loaded.
        host = common.open_host(asked.recording, budget_s=gather_s)
    from topocheck.checks.result import conclude, no_gpu, only_gpus
    from topocheck.pipeline import build_report

    told = Told()
    policy = read_policy(asked, told)
    checks = chosen_checks(asked.only, asked.skip, asked.scope, policy, over_time=asked.over_time)
    facts = [c for c in checks if c.id not in _of_samples(asked)]
    host = host or common.open_host(asked.recording, budget_s=gather_s)
    report = _of_matrix(asked, host, {c.id for c in facts}) or build_report(host, policy, facts)
    policy = _possible(policy, report, asked, told)
    results, findings = report.results, report.findings
    if asked.over_time:
        more = _sampled(asked, before, report, policy, [c for c in checks if c.id in _of_samples(asked)])
        results, findings = (*results, *more[0]), (*findings, *more[1])
    chosen = _job_gpus(asked, report, told)
    if chosen is not None:
        findings = tuple(only_gpus(findings, report.topology, chosen))
    outcome = conclude(
        report.node,
        findings,
        sorted(results, key=lambda r: r.id),
        policy,
        told.notices,
        cannot_tell=told.cannot_tell,
        policy_readable=told.policy_readable,
        no_gpu=no_gpu(report.node, report.topology),
    )
    return outcome, report


class Before(msgspec.Struct, frozen=True):
    """What counters are compared with: samples of before, and the host and the boot they are of, where known."""

    history: History
    hostname: str = ""
    boot_id: str | Missing = NOT_RECORDED


def _before(asked: Asked) -> Before | None:
    """Return what to compare with: a recording of `topocheck watch`, or a snapshot of this machine.

    Raises:
        InputError: it cannot be used, or another machine than this one is judged.
    """
    from topocheck.cli import sampling

    snapshot = asked.since is not None and sampling.is_snapshot(asked.since)
    if asked.over_time and asked.recording and not (snapshot and asked.sample_s is None):
        raise InputError(
            "--sample and a recording of topocheck watch need this machine; with --from compare with an earlier "
            "snapshot of it: --since OLD.snap --from NEW.snap"
        )
    if asked.since is None:
        return None
    if not snapshot:
        history = sampling.load(asked.since)
        return Before(history, history.header.hostname)
    from topocheck.pipeline import build_report

    report = build_report(common.open_host((asked.since,)), checks=())
    history = sampling.of_snapshot(report)
    if not all(sampling.keeps_identifiers(path) for path in (asked.since, *asked.recording)):
        return Before(history)  # names of hosts and boots were replaced, in each snapshot by others
    return Before(history, history.header.hostname, report.node.system.boot_id)


def _of_samples(asked: Asked) -> frozenset[str]:
    if not asked.over_time:
        return frozenset()
    from topocheck.checks import watch_checks

    return frozenset(c.id for c in watch_checks())


def _sampled(
    asked: Asked, before: Before | None, report: Report, policy: Policy, checks: list[Check]
) -> tuple[tuple[CheckResult, ...], tuple[Finding, ...]]:
    """Sample this machine, or take the counters of its snapshot; return what the checks of samples come to."""
    if not checks:
        return (), ()
    from topocheck.checks.watch.run import judge_watch
    from topocheck.cli import sampling
    from topocheck.overtime.history import joined

    for_s = asked.sample_s or 0.0
    now = sampling.of_snapshot(report) if asked.recording else None
    header = now.header if now else sampling.header_of(report, min(1.0, max(sampling.MIN_INTERVAL_S, for_s or 1.0)))
    named = before.hostname if before is not None else ""
    if named and header.hostname not in ("", named):
        raise InputError(f"{asked.since}: recorded on {named}; this machine is {header.hostname}")
    history = now or sampling.sample(report, header, for_s)
    if before is not None:
        boots = (before.boot_id, report.node.system.boot_id)
        if all(isinstance(b, str) for b in boots) and boots[0] != boots[1]:
            history = msgspec.structs.replace(history, rebooted=True)
        else:
            history = joined(before.history, history)
    return judge_watch(history, node=report.node, topology=report.topology, policy=policy, checks=checks)


def _of_matrix(asked: Asked, host: Host, ids: Collection[str]) -> Report | None:
    """Return the report of a file that holds a matrix of nvidia-smi and nothing else, with the checks of these ids.

    All that it can show is in it, so nothing is said of what a machine would tell. None for everything else.
    """
    from topocheck.readers.files import only_a_matrix

    if len(asked.recording) != 1 or not only_a_matrix(host):
        return None
    from topocheck.cli.smi import read_matrix, report_of

    matrix, name = read_matrix(asked.recording[0])
    report = report_of(matrix, name)
    return msgspec.structs.replace(
        report,
        results=tuple(r for r in report.results if r.id in ids),
        findings=tuple(f for f in report.findings if f.id in ids),
    )


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
    return msgspec.structs.replace(
        policy, strict=policy.strict or asked.strict, preview=policy.preview or asked.preview
    )


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


def chosen_checks(
    only: tuple[str, ...], skip: tuple[str, ...], scope: str, policy: Policy, *, over_time: bool = False
) -> list[Check]:
    """Return the checks to run, before the policy takes some away.

    Raises:
        InputError: a name is no check and no area (names the nearest), or is a check in preview that nothing asks for.
    """
    import difflib

    from topocheck.checks import static_checks, watch_checks

    checks = [*static_checks(), *(watch_checks() if over_time else ())]
    names = [c.id for c in checks] + sorted({c.area for c in checks})
    for pattern in (*only, *skip):
        if not any(_matches(c.id, pattern) for c in checks):
            near = difflib.get_close_matches(pattern, names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InputError(f"no check or area {pattern!r}{hint} (topocheck explain list names all)")
        preview = next((c for c in checks if c.id == pattern and c.preview), None)
        if preview is not None and pattern in only and not policy.preview and not policy.of(preview.id).preview:
            raise InputError(f"check {pattern!r} is in preview: add --preview to run it")
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
    from topocheck.checks.result import resolve_gpus

    text, minors, name = asked.gpus, False, "--gpus"
    ours = not asked.recording or os.environ.get("SLURM_SCRIPT_CONTEXT", "").startswith(_SCRIPTS)
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
