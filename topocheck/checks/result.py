"""What a run of checks comes to: its state, its exit code, and for which devices it was asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from topocheck.checks.needs import lost_for, sources_lost
from topocheck.checks.registry import CHECKS, Check, CheckResult, MissingData, finding_order, worst
from topocheck.checks.visibility import driver_untold, nvml_silent, pci_hidden, tree_untold
from topocheck.model.address import normalize_address
from topocheck.model.base import Finding, Missing, ProbeStatus, Reason, State, known, small_number
from topocheck.model.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_UNKNOWN
from topocheck.model.node import Node
from topocheck.policy.types import Policy
from topocheck.topology.types import Topology


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run of checks.

    Attributes:
        hostname: of the node, for formats that name it.
        state: the worst state of all findings.
        exit_code: 0 healthy, 1 failed, 3 could not tell what the policy requires (docs/checks.md, "Exit codes").
        required_unknown: what the policy requires and nobody could tell, in words.
        notices: what the reader must know of the run itself (a policy that could not be read).
        policy_readable: False where the built-in policy had to take the place of the site's.
        overdue: ids of the checks that could not judge, since facts that they need did not come.
        no_gpu: why the checks of GPUs did not apply, in words; empty where there are GPUs, or may be.
        checks: the checks that were run, by id.
    """

    source: str
    taken_at: str
    hostname: str
    policy: Policy
    state: State
    exit_code: int
    findings: tuple[Finding, ...]
    results: tuple[CheckResult, ...]
    required_unknown: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    policy_readable: bool = True
    overdue: tuple[str, ...] = ()
    no_gpu: str = ""
    checks: Mapping[str, Check] = msgspec.field(default_factory=dict)


def no_gpu(node: Node, topology: Topology) -> str:
    """Return why the checks of GPUs did not apply; empty where there are GPUs, or NVML did not answer in time."""
    if topology.gpus or "NVML" in late_sources(node) or driver_untold(node) is not None:
        return ""
    if n := len(topology.accelerators):
        return f"{n} accelerator{'s' if n > 1 else ''} of another maker, reported and not judged"
    if node.made_from is not None and node.made_from.selection:
        return "no GPU is in the given files, so the checks of GPUs did not apply"
    return "no GPU was found, so the checks of GPUs did not apply"


def conclude(
    node: Node,
    findings: Sequence[Finding],
    results: Sequence[CheckResult],
    policy: Policy,
    notices: Sequence[str] = (),
    *,
    cannot_tell: Sequence[str] = (),
    policy_readable: bool = True,
    no_gpu: str = "",
) -> Outcome:
    """Return the outcome of findings under a policy. Failure beats could-not-tell.

    Args:
        node: the facts that were judged.
        findings: what is left of the findings after the policy's severities and the choice of GPUs.
        results: how the checks went.
        policy: the policy.
        notices: what the reader must know of the run itself.
        cannot_tell: what must be known beyond the policy's own musts, and is not (the policy itself, a job's GPUs).
        policy_readable: False where `policy` stands in for one that could not be read.
        no_gpu: see `Outcome`.
    """
    results = settle(node, findings, results)
    overdue = tuple(r.id for r in results if r.missing is not None)
    unknown = (*cannot_tell, *required_unknown(node, results, policy))
    state = worst([*(f.state for f in findings), *(State.UNKNOWN for _ in overdue)])
    failed = any(f.state is State.FAIL for f in findings)
    could_not_tell = EXIT_UNKNOWN if unknown else EXIT_OK
    doubtful = state in (State.WARN, State.UNKNOWN)
    code = EXIT_FAILED if failed or (policy.strict and (doubtful or unknown)) else could_not_tell
    return Outcome(
        source=node.source,
        taken_at=node.taken_at,
        hostname=node.system.hostname if isinstance(node.system.hostname, str) else "",
        policy=policy,
        state=state,
        exit_code=code,
        findings=tuple(sorted(findings, key=finding_order)),
        results=results,
        required_unknown=unknown,
        notices=tuple(notices),
        policy_readable=policy_readable,
        overdue=overdue,
        no_gpu=no_gpu,
        checks={r.id: CHECKS[r.id] for r in results if r.id in CHECKS},
    )


def settle(node: Node, findings: Iterable[Finding], results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Return the results as the findings that are left make them.

    A check that found nothing wrong, or nothing to judge, without all of the facts that it needs has not been run:
    unknown (`topocheck.checks.needs`).
    """
    by_id: dict[str, list[Finding]] = {}
    for f in findings:
        by_id.setdefault(f.id, []).append(f)
    late, lost = late_sources(node), sources_lost(node)
    out = []
    for r in results:
        own = by_id.get(r.id, [])
        state = worst(f.state for f in own) if own or r.state is not State.NOT_APPLICABLE else r.state
        detail, missing = r.detail, r.missing
        reads = CHECKS[r.id].reads if r.id in CHECKS else ()
        said = next((why for prefix, why in late.items() if any(x.startswith(prefix) for x in reads)), None)
        if said is not None and state in (State.OK, State.NOT_APPLICABLE):
            state, missing = State.UNKNOWN, MissingData.OVERDUE
            detail = f"{missing}: {said}"
        elif state in (State.OK, State.NOTE, State.NOT_APPLICABLE) and (missed := lost_for(r.id, state, lost)):
            late_one = missed[0].why.reason is Reason.TIMED_OUT
            state, missing = State.UNKNOWN, MissingData.OVERDUE if late_one else MissingData.LOST
            detail = f"{missing}: {missed[0].shown}: {missed[0].why_text}"
        out.append(
            CheckResult(
                id=r.id,
                scope=r.scope,
                state=state,
                subjects=tuple(f.subject for f in own),
                detail=detail,
                missing=missing,
            )
        )
    return tuple(out)


_OF_THE_TEXTS = "probe.answers-lost"
"""The check that says once what the given files do not tell."""


def without_untold(node: Node, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings less those that say of each check what a text of one program never tells.

    A machine that is made from texts (`Node.made_from`) lacks most facts: one finding says so for all, and a check
    whose every gap is of that kind stays unknown without a finding of its own (`settle`). What is found of a device
    stays where the texts say something of it: one answer at least that it rests on is there.
    """
    if node.made_from is None:
        return list(findings)
    lost = sources_lost(node)

    def only_untold(f: Finding) -> bool:
        gaps = () if f.devices and not _rests_on_nothing(f) else lost_for(f.id, State.OK, lost)
        return bool(gaps) and all(x.why.reason is Reason.NOT_RECORDED for x in gaps)

    return [f for f in findings if f.state is not State.UNKNOWN or f.id == _OF_THE_TEXTS or not only_untold(f)]


def _rests_on_nothing(f: Finding) -> bool:
    """Tell whether none of the answers that a finding quotes is in the given files (`str(Missing)`, `!` if raw)."""
    return all(e.raw.removeprefix("!").startswith(Reason.NOT_RECORDED.value) for e in f.evidence)


def late_sources(node: Node) -> dict[str, str]:
    """Return beginning of `Check.reads` -> what happened, for the sources that gave nothing within the time."""
    parts = {
        "NVML": node.nvml.gpus,
        "/sys/bus/pci": node.pci.devices,
        "/sys/class/infiniband": node.net.rdma,
        "/sys/class/net": node.net.interfaces,
        "/sys/devices/system/node": node.numa.nodes,
    }
    return {
        name: part.detail or "timed out"
        for name, part in parts.items()
        if isinstance(part, Missing) and part.reason is Reason.TIMED_OUT
    }


def required_unknown(node: Node, results: Iterable[CheckResult], policy: Policy) -> tuple[str, ...]:
    """Return what the policy requires and nobody could tell.

    Required are the probes the policy names (the PCI tree by default), NVML wherever the NVIDIA driver is loaded,
    and each check with `require = true`. A probe that says it went well and brought nothing of what must be there
    (`topocheck.checks.visibility`) has told nothing.
    """
    required = set(policy.require_probes)
    if "nvidia" in node.system.modules:
        required.add("nvml")
    said = {p.name: p for p in node.probes}
    probes = {
        name: _why(said.get(name)) if node.probes else _MATRIX_ALONE.get(name, "not in a matrix alone")
        for name in sorted(required)
        if (p := said.get(name)) is None or p.state in ("failed", "timed_out")
    }
    for name, why in (
        ("pci", tree_untold(node) or pci_hidden(node)),
        ("nvml", driver_untold(node) or nvml_silent(node)),
    ):
        if why is not None and (name in required or name == "nvml"):
            probes.setdefault(name, why)
    out = [f"probe {name}: {why}" for name, why in probes.items()]
    out += [
        f"check {r.id}: {r.detail or 'unknown'}"
        for r in results
        if r.state is State.UNKNOWN and policy.of(r.id).require
    ]
    return tuple(out)


_MATRIX_ALONE = {
    "pci": "a matrix alone does not show the PCI tree; add lspci -vvv, or judge a snapshot (topocheck snapshot save)"
}
"""Probe -> why it brought nothing where a pasted matrix is all there is, which no probe reads."""


def _why(probe: ProbeStatus | None) -> str:
    return "not run" if probe is None else f"{probe.state.replace('_', ' ')} {probe.detail}".strip()


def only_gpus(findings: Iterable[Finding], topology: Topology, chosen: frozenset[str]) -> list[Finding]:
    """Return the findings that concern a job on the chosen GPUs: all but those about what other GPUs alone use.

    That is another GPU itself, a switch or port above nothing else, and a NIC that shares a switch with none of the
    chosen and with another. What serves no GPU by itself (a NIC for storage, an empty slot) concerns every job.
    """
    others = {g.address for g in topology.gpus} - chosen
    near = _near_nics(topology)
    kept = []
    for f in findings:
        named = set(f.devices)
        users = {a: _users(a, topology, near) for a in named}
        used_by = frozenset().union(*users.values())
        shared = any(not gpus for gpus in users.values()) and not named & others
        if not used_by or used_by & chosen or shared:
            kept.append(f)
    return kept


def _near_nics(topology: Topology) -> dict[str, frozenset[str]]:
    """Return NIC -> the GPUs that it is the nearest of, behind a common switch; NICs of no GPU are left out."""
    out: dict[str, frozenset[str]] = {}
    for x in topology.nearest_nics:
        for nic in x.nics if x.class_ in ("PIX", "PXB") else ():
            out[nic] = out.get(nic, frozenset()) | {x.gpu}
    return out


def _users(address: str, topology: Topology, near: dict[str, frozenset[str]]) -> frozenset[str]:
    """Return the GPUs that use a device alone: those at or below it; empty where others, or nobody known, use it."""
    gpus, nics = {g.address for g in topology.gpus}, {n.address for n in topology.nics}
    below, todo = set(), [address]
    while todo:
        element = todo.pop()
        below.add(element)
        todo += topology.tree[element].children if element in topology.tree else ()
    if any(n not in near for n in below & nics):
        return frozenset()
    return frozenset(below & gpus).union(*(near[n] for n in below & nics))


def resolve_gpus(text: str, node: Node, topology: Topology, *, minors: bool) -> frozenset[str]:
    """Return the addresses of GPUs named by a comma list of indexes, UUIDs or their beginnings, or PCI addresses.

    Args:
        text: such as `0,2`, `GPU-7f57f032`, `0000:3b:00.0`.
        node: the facts.
        topology: its topology.
        minors: numbers are minors of /dev/nvidiaN (as in SLURM_JOB_GPUS) rather than NVML indexes.

    Raises:
        ValueError: names no GPU of this node, or more than one; the text says which and what there is.
    """
    by_minor = {minor: address for address, minor in node.system.nvidia_gpu_minors.items()}
    for g in topology.gpus:
        if g.nvml is not None and known(g.nvml.minor):
            by_minor.setdefault(g.nvml.minor, g.address)
    out = set()
    for word in filter(None, (w.strip() for w in text.split(","))):
        address = normalize_address(word)
        if address is not None:
            found = [g.address for g in topology.gpus if g.address == address]
        elif (n := small_number(word)) is not None:
            found = [by_minor[n]] if minors and n in by_minor else []
            if not minors:
                found = [g.address for g in topology.gpus if g.label == f"GPU{n}"]
        else:
            found = [
                g.address
                for g in topology.gpus
                if g.label == word or (isinstance(g.uuid, str) and g.uuid.startswith(word))
            ]
        if len(found) != 1:
            there = ", ".join(f"{g.label} {g.address}" for g in topology.gpus) or "none"
            what = "names no GPU" if not found else "names more than one GPU"
            raise ValueError(f"{word!r} {what} of this node; there are: {there}")
        out.add(found[0])
    if not out:
        raise ValueError("names no GPU; leave the option out to judge all of them")
    return frozenset(out)
