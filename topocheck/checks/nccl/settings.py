"""NCCL's settings: names it does not read, values it misreads, and what was left over from debugging."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.settings import (
    OWN_NETWORKS,
    in_force,
    installed_version,
    judged_version,
    misread_files,
    misread_text,
    place,
    quoted,
    values,
    version_evidence,
    version_words,
)
from topocheck.checks.sources import Needs
from topocheck.knowledge.nccl import lookup
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, is_lost, known
from topocheck.model.system import Setting
from topocheck.nccl.rules.values import SettingProblem, judge_setting

_READS = ("environment NCCL_*", "NCCL_CONF_FILE or ~/.nccl.conf", "/etc/nccl.conf")


def _settings(c: Context) -> list[Setting]:
    found = list(in_force(c).values())
    if not found:
        raise not_applicable("no NCCL setting is in force")
    return found


def _problems(c: Context, *kinds: str) -> Iterator[tuple[Setting, SettingProblem]]:
    version = judged_version(c)
    for s in _settings(c):
        for p in judge_setting(s.name, s.value, version):
            if p.kind in kinds:
                yield s, p


def _finding(state: State, s: Setting, title: str, consequence: str, rule: str, fix: str | None) -> Finding:
    return Finding(
        state=state,
        subject=place(s),
        title=title,
        consequence=consequence,
        evidence=quoted(s),
        rule=rule,
        fix=fix,
    )


@check(
    "nccl.unknown-setting",
    title="A setting that no version of NCCL reads",
    severity=State.WARN,
    reads=_READS,
    needs=Needs(("settings",)),
    scope=Scope.PROCESS,
)
def unknown_setting(c: Context) -> Iterator[Finding]:
    """A name begins with NCCL_ and no version of NCCL, nor any known companion of it, reads it.

    Looks at:
        Every NCCL_ name in the environment and in NCCL's files, against the table of settings of all public
        versions and the names that plugins, nccl-tests and PyTorch read.

    Why it matters:
        A misspelt name does nothing and nothing says so; the job runs with the default.

    Fix:
        The nearest right name is named where there is one; otherwise unset it.

    Does not apply:
        Where no NCCL setting is in force. Names that plugins, nccl-tests or PyTorch read are no mistakes.
    """
    for s, p in _problems(c, "unknown_name"):
        yield _finding(
            State.WARN,
            s,
            p.text,
            "the setting does nothing; NCCL runs with its default",
            "a name that some version of NCCL reads",
            p.fix,
        )


@check(
    "nccl.removed-setting",
    title="A setting that the installed NCCL does not read, or no longer should",
    severity=State.WARN,
    reads=(*_READS, "installed NCCL"),
    needs=Needs(("settings",), ("nccl",)),
    scope=Scope.PROCESS,
)
def removed_setting(c: Context) -> Iterator[Finding]:
    """A setting belongs to another version of NCCL: removed, not there yet, deprecated, or read by nothing.

    Looks at:
        Each setting's first and last version against the installed NCCL; where that is not known, against the
        newest version in the table.

    Why it matters:
        An ignored setting does nothing. A deprecated one still works, and will not for long.

    Fix:
        The new name where there is one; else unset it.

    Does not apply:
        Where no NCCL setting is in force. A deprecated name that still works is not reported where NCCL_NET names a
        plugin's network: such a profile is the provider's, and its values belong together.
    """
    known_version = installed_version(c) is not None
    net = in_force(c).get("NCCL_NET")
    words = {"removed": "ignored", "not_yet": "ignored", "unused": "ignored", "deprecated": "it still works"}
    if net is not None and net.value.lower() not in OWN_NETWORKS:
        del words["deprecated"]  # a provider's profile, whose values are set together
    for s, p in _problems(c, *words):
        ignored = words[p.kind] == "ignored"
        state = State.WARN if ignored and (known_version or p.kind != "not_yet") else State.NOTE
        f = _finding(
            state,
            s,
            p.text,
            "the setting does nothing" if ignored else "it still works, and a later version may drop it",
            f"judged by {version_words(c)}",
            p.fix,
        )
        yield _with(f, *version_evidence(c))


def _with(f: Finding, *more: Evidence) -> Finding:
    return msgspec.structs.replace(f, evidence=(*f.evidence, *more))


@check(
    "nccl.value-ignored",
    title="A value that NCCL ignores or reads as another",
    severity=State.WARN,
    reads=_READS,
    needs=Needs(("settings",), ("nccl",)),
    scope=Scope.PROCESS,
)
def value_ignored(c: Context) -> Iterator[Finding]:
    """NCCL does not understand a value, and does not say so.

    Looks at:
        Each value by the way NCCL reads it: numbers through C's parse (`true` is 0, `08` is 0), switches of which
        only 1 acts (`NCCL_P2P_DISABLE=2` does nothing), path levels in upper case only, lists of words.

    Why it matters:
        The setting does nothing, or the opposite of what was meant, and the log does not say so.

    Fix:
        The value NCCL takes for what was meant.

    Does not apply:
        Where no NCCL setting is in force. An empty value counts as unset.
    """
    for s, p in _problems(c, "not_understood", "no_effect", "out_of_range"):
        yield _finding(
            State.WARN,
            s,
            p.text,
            "the setting does not do what was meant, and no log says so",
            f"a value that {version_words(c)} understands",
            p.fix,
        )


_LOUD = {"INFO": "a line for every channel of every communicator", "TRACE": "every call, in builds that have it"}


@check(
    "nccl.debug-left-on",
    title="A debugging switch was left on",
    severity=State.NOTE,
    reads=(*_READS, "environment CUDA_LAUNCH_BLOCKING"),
    scope=Scope.PROCESS,
)
def debug_left_on(c: Context) -> Iterator[Finding]:
    """A switch that serves to look into NCCL is still on.

    Looks at:
        NCCL_DEBUG at INFO or TRACE, NCCL_CHECK_POINTERS, NCCL_CHECK_MODE beyond its default, and
        CUDA_LAUNCH_BLOCKING.

    Why it matters:
        Logs of many ranks fill file systems and slow the start. Checked pointers cost a call each time;
        CUDA_LAUNCH_BLOCKING makes every kernel wait for the one before it.

    Fix:
        Unset it when the search is over; `NCCL_DEBUG=WARN` is harmless and tells what matters.

    Does not apply:
        `NCCL_DEBUG=WARN` and `VERSION`.
    """
    settings = in_force(c)
    read = values(c)
    found: list[tuple[Setting, str]] = []
    debug = settings.get("NCCL_DEBUG")
    if debug is not None and debug.value.upper() in _LOUD:
        found.append((debug, f"it prints {_LOUD[debug.value.upper()]}"))
    pointers = settings.get("NCCL_CHECK_POINTERS")
    if pointers is not None and read.nonzero("NCCL_CHECK_POINTERS"):
        found.append((pointers, "each call looks up its pointers first, which costs time"))
    mode = settings.get("NCCL_CHECK_MODE")
    if mode is not None and mode.value.upper() in ("DEBUG_LOCAL", "DEBUG_GLOBAL"):
        found.append((mode, "each call checks its arguments, with other ranks too at DEBUG_GLOBAL"))
    found += [
        (s, "every kernel waits for the one before it, so nothing overlaps")
        for s in c.node.settings.related
        if s.name == "CUDA_LAUNCH_BLOCKING" and s.value not in ("", "0")
    ]
    for s, effect in found:
        yield _finding(
            State.NOTE,
            s,
            f"{s.name}={s.value} is on",
            effect,
            "off in production",
            "export NCCL_DEBUG=WARN" if s.name == "NCCL_DEBUG" else f"unset {s.name}",
        )
    if not settings and not found:
        raise not_applicable("no NCCL setting is in force")


@check(
    "nccl.conf-shadowed",
    title="A setting in a file is shadowed, or not read",
    severity=State.WARN,
    reads=_READS,
    needs=Needs(("settings",)),
    scope=Scope.PROCESS,
)
def conf_shadowed(c: Context) -> Iterator[Finding]:
    """A line of NCCL's files does not count: an earlier place sets the name, or NCCL cannot read the line.

    Looks at:
        The environment, the user's file (NCCL_CONF_FILE, else ~/.nccl.conf) and /etc/nccl.conf, in NCCL's order:
        the first to set a name wins. Also lines with a blank beside the name, which NCCL takes for part of it, and
        files that this user may not read, and a file that NCCL_CONF_FILE names and that is not there.

    Why it matters:
        An administrator's setting in /etc/nccl.conf silently loses to a line in a home folder, and the same job
        behaves differently for two users.

    Fix:
        Keep a name in one place. `NAME=VALUE` without blanks, one a line.

    Does not apply:
        Where no file sets anything. A twin with the same value is no finding. A file that a recording does not hold,
        or whose read did not come back, is unknown.
    """
    facts = c.node.settings
    files = misread_files(facts)
    if not files and not any(s.source != "environment" for s in facts.nccl):
        raise not_applicable("no file sets anything for NCCL")
    first: dict[str, Setting] = {}
    for s in facts.nccl:
        winner = first.setdefault(s.name, s)
        if winner is s or winner.value == s.value or s.source == "environment":
            continue
        yield _finding(
            State.NOTE,
            s,
            f"{s.name}={s.value} in {s.source} does not count: {winner.source} sets {winner.value!r}",
            "two users, or two launchers, run with different settings",
            "the environment, then the user's file, then /etc/nccl.conf: the first to set a name wins",
            f"keep {s.name} in one place",
        )
    for path, said in files.items():
        # A file that this user may not read NCCL may not read either.
        unknown = isinstance(said, Missing) and is_lost(said) and said.reason is not Reason.DENIED
        what = misread_text(said)
        yield Finding(
            state=State.UNKNOWN if unknown else State.WARN,
            subject=path,
            title=f"{path}: {what}",
            consequence="what it sets, and whether it counts, is not known"
            if unknown
            else "NCCL runs without these settings and does not warn",
            evidence=(Evidence(path, what),),
            rule="NAME=VALUE without blanks, in a file that this user may read",
            fix=None if unknown else _conf_fix(said),
        )


def _conf_fix(said: tuple[str, ...] | Missing) -> str:
    if not isinstance(said, Missing):
        return "write the lines as NCCL reads them"
    if said.reason is Reason.DENIED:
        return "make it readable"
    if said.reason is Reason.ABSENT:
        return "write the file, or unset NCCL_CONF_FILE: NCCL does not read ~/.nccl.conf in its place"
    return "give NCCL_CONF_FILE the full path of a plain file; NCCL expands no ~"


@check(
    "nccl.harmful-value",
    title="A value that costs speed or safety",
    severity=State.WARN,
    reads=_READS,
    needs=Needs(("settings",), ("nccl", "hypervisor")),
    scope=Scope.PROCESS,
)
def harmful_value(c: Context) -> Iterator[Finding]:
    """A value that NCCL understands is known to cost speed or safety.

    Looks at:
        Values in the table of harmful ones that no check of its own judges: NCCL_IGNORE_CPU_AFFINITY,
        NCCL_IB_TIMEOUT=0, NCCL_IB_PCI_RELAXED_ORDERING=0, three channels or fewer, and the like.

    Why it matters:
        They come from recipes for another machine or version. Each says what it costs.

    Fix:
        Unset it, measure, and put it back only if the measurement asks for it.

    Does not apply:
        Values that switch a transport off (`nccl.transport-disabled`) and those with a check of their own;
        NCCL_IB_PCI_RELAXED_ORDERING outside of guests.
    """
    from topocheck.checks.nccl.transports import OWN_CHECKS

    for s, p in _problems(c, "risky"):
        if s.name in OWN_CHECKS or (s.name == "NCCL_IB_PCI_RELAXED_ORDERING" and not known(c.node.system.hypervisor)):
            continue
        table = lookup(s.name)
        yield _finding(
            State.WARN,
            s,
            p.text,
            table.risk if table is not None and table.risk else "slower, or less safe, than the default",
            "a value without known harm",
            p.fix,
        )
