"""What a run of checks comes to: its state, its exit code, and for which devices it was asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from topocheck.checks.hidden import nvml_silent, pci_hidden
from topocheck.checks.registry import CHECKS, CheckResult, finding_order, worst
from topocheck.model.address import normalize_address
from topocheck.model.base import Finding, Missing, ProbeStatus, Reason, State, known, small_number
from topocheck.model.node import Node
from topocheck.policy.types import Policy
from topocheck.topology.types import Topology

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_UNKNOWN = 0, 1, 2, 3


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run of checks.

    Attributes:
        hostname: of the node, for formats that name it.
        state: the worst state of all findings.
        exit_code: 0 healthy, 1 failed, 3 could not tell what the policy requires (docs/checks.md, "Exit codes").
        required_unknown: what the policy requires and nobody could tell, in words.
        notices: what the reader must know of the run itself (a policy that could not be read).
        policy_readable: False where the built-in policy had to take the place of the site's.
        overdue: ids of the checks whose facts did not come in time.
        no_gpu: why the checks of GPUs did not apply, in words; empty where there are GPUs, or may be.
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


def no_gpu(node: Node, topology: Topology) -> str:
    """Return why the checks of GPUs did not apply; empty where there are GPUs, or NVML did not answer in time."""
    if topology.gpus or "NVML" in late_sources(node):
        return ""
    if n := len(topology.accelerators):
        return f"{n} accelerator{'s' if n > 1 else ''} of another maker, reported and not judged"
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
    overdue = tuple(r.id for r in results if r.detail.startswith(OVERDUE))
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
    )


OVERDUE = "no answer in time"


def settle(node: Node, findings: Iterable[Finding], results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Return the results as the findings that are left make them.

    A check that found nothing, or nothing to judge, in facts that did not come in time has not been run: unknown.
    """
    by_id: dict[str, list[Finding]] = {}
    for f in findings:
        by_id.setdefault(f.id, []).append(f)
    late = late_sources(node)
    out = []
    for r in results:
        own = by_id.get(r.id, [])
        state = worst(f.state for f in own) if own or r.state is not State.NOT_APPLICABLE else r.state
        detail = r.detail
        reads = CHECKS[r.id].reads if r.id in CHECKS else ()
        said = next((why for prefix, why in late.items() if any(x.startswith(prefix) for x in reads)), None)
        if said is not None and state in (State.OK, State.NOT_APPLICABLE):
            state, detail = State.UNKNOWN, f"{OVERDUE}: {said}"
        out.append(
            CheckResult(id=r.id, scope=r.scope, state=state, subjects=tuple(f.subject for f in own), detail=detail)
        )
    return tuple(out)


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
    (`topocheck.checks.hidden`) has told nothing.
    """
    required = set(policy.require_probes)
    if "nvidia" in node.system.modules:
        required.add("nvml")
    said = {p.name: p for p in node.probes}
    out = [
        f"probe {name}: {_why(said.get(name))}"
        for name in sorted(required)
        if (p := said.get(name)) is None or p.state in ("failed", "timed_out")
    ]
    told_not = {"pci": pci_hidden(node), "nvml": nvml_silent(node)}
    out += [
        f"probe {name}: {why}"
        for name, why in told_not.items()
        if why is not None
        and (name in required or name == "nvml")
        and not any(x.startswith(f"probe {name}:") for x in out)
    ]
    out += [
        f"check {r.id}: {r.detail or 'unknown'}"
        for r in results
        if r.state is State.UNKNOWN and policy.of(r.id).require
    ]
    return tuple(out)


def _why(probe: ProbeStatus | None) -> str:
    return "not run" if probe is None else f"{probe.state.replace('_', ' ')} {probe.detail}".strip()


_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def only_gpus(findings: Iterable[Finding], topology: Topology, chosen: frozenset[str]) -> list[Finding]:
    """Return the findings that concern a job on the chosen GPUs: all but those about what other GPUs alone use.

    That is another GPU itself, a switch or port above nothing else, and a NIC that shares a switch with none of the
    chosen and with another. What serves no GPU by itself (a NIC for storage, an empty slot) concerns every job.
    """
    others = {g.address for g in topology.gpus} - chosen
    near = _near_nics(topology)
    kept = []
    for f in findings:
        named = set(_ADDRESS.findall(f.subject))
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
