"""The one composition of a run: facts, topology, verdicts, checks. Commands, the Python API and the fleet call it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from topocheck.checks import registry
from topocheck.gpudirect.types import GpuDirect
from topocheck.host.base import Host, HostError, RecordedBackend
from topocheck.model.base import Finding, Missing, ProbeStatus, Reason
from topocheck.model.node import Node
from topocheck.model.system import SoftwareFacts
from topocheck.nccl.types import Backend, NcclView
from topocheck.policy.types import Policy
from topocheck.probes.registry import OPTIONAL_PROBES, PROBES, Probe
from topocheck.topology.types import Topology


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that one run knows: facts first, then what was made of them.

    `results` says how each check went; `findings` are theirs, worst first.
    """

    node: Node
    topology: Topology
    gpudirect: GpuDirect
    nccl: NcclView
    backends: tuple[Backend, ...] = ()
    results: tuple[registry.CheckResult, ...] = ()
    findings: tuple[Finding, ...] = ()


def read_node(host: Host, probes: Sequence[Probe] | None = None) -> Node:
    """Run the probes on a host and return its facts. A probe that breaks leaves its part missing and says so.

    Args:
        host: where the answers come from.
        probes: which to run; where None, all, and of the optional ones those that the machine was asked.
    """
    facts: dict[str, Any] = {}
    statuses = []
    if probes is None:
        probes = PROBES + tuple(p for p in OPTIONAL_PROBES if _was_asked(host, p))
    for p in probes:
        status = _recorded_status(host, p)
        try:
            facts[p.name] = p.read(_as_left(host, status))
        except HostError as e:
            status = ProbeStatus(name=p.name, state=_failed_state(e), ms=status.ms, detail=status.detail or str(e))
        except Exception as e:  # noqa: BLE001 - a fault of one probe must not take the others with it
            detail = f"an answer of unexpected form ({type(e).__name__}: {e})"
            status = ProbeStatus(name=p.name, state="failed", ms=status.ms, detail=detail)
        statuses.append(status)
    software = facts.pop("software", None) or SoftwareFacts()
    programs = facts.pop("programs", None)
    if isinstance(software, SoftwareFacts) and isinstance(programs, SoftwareFacts):
        software = _merge_software(software, programs)
    services = facts.pop("services", None)
    system = facts.get("system")
    if system is not None and isinstance(services, dict):
        facts["system"] = msgspec.structs.replace(system, **services)
    return Node(
        source=host.source,
        taken_at=_or_empty(host),
        software=software,
        probes=tuple(statuses),
        **facts,  # each probe's name is the field its facts belong to
    )


def build_report(host: Host, policy: Policy | None = None, checks: Iterable[registry.Check] | None = None) -> Report:
    """Run everything on a host, live or recorded, and return the report.

    Args:
        host: where the answers come from.
        policy: what is judged and how; the default policy where None.
        checks: the checks to run; all that the policy has on where None.
    """
    return judge(read_node(host), policy, checks)


def judge(node: Node, policy: Policy | None = None, checks: Iterable[registry.Check] | None = None) -> Report:
    """Make topology, verdicts and findings from facts. Pure."""
    from topocheck.checks import static_checks
    from topocheck.checks.outcome import settle
    from topocheck.gpudirect import judge as judge_gpudirect
    from topocheck.nccl.backend import backends
    from topocheck.nccl.view import view
    from topocheck.topology.build import build

    policy = policy or Policy()
    topology = build(node)
    gpudirect = judge_gpudirect(node, topology)
    nccl = view(node, topology, gpudirect)
    context = registry.Context(node=node, topology=topology, gpudirect=gpudirect, nccl=nccl, policy=policy)
    chosen = static_checks() if checks is None else checks
    outcomes = list(registry.run(policy.select(chosen), context))
    findings = [policy.adjust(f) for _, found in outcomes for f in found]
    return Report(
        node=node,
        topology=topology,
        gpudirect=gpudirect,
        nccl=nccl,
        backends=backends(node, topology),
        results=settle(node, findings, [r for r, _ in outcomes]),
        findings=tuple(sorted(findings, key=registry.finding_order)),
    )


def _was_asked(host: Host, probe: Probe) -> bool:
    try:
        host.probe_status(probe.name)
    except HostError:
        return False
    return True


def _recorded_status(host: Host, probe: Probe) -> ProbeStatus:
    try:
        return host.probe_status(probe.name)
    except HostError:
        return ProbeStatus(name=probe.name, state="failed", ms=0.0, detail="not recorded")


def _as_left(host: Host, status: ProbeStatus) -> Host:
    """Return the host as a timed-out probe left it: what it never came to ask timed out too, by the same call."""
    if status.state != "timed_out" or not isinstance(host.backend, RecordedBackend):
        return host
    unasked = HostError(Reason.TIMED_OUT, status.detail)
    return Host(RecordedBackend(host.backend.answers, unasked), host.source)


def _failed_state(error: HostError) -> str:
    return "timed_out" if error.reason is Reason.TIMED_OUT else "failed"


def _or_empty(host: Host) -> str:
    try:
        return host.now()
    except HostError:
        return ""


def _merge_software(a: SoftwareFacts, b: SoftwareFacts) -> SoftwareFacts:
    cuda_aware = b.mpi_cuda_aware if isinstance(a.mpi_cuda_aware, Missing) else a.mpi_cuda_aware
    implementation = b.mpi_implementation if isinstance(a.mpi_implementation, Missing) else a.mpi_implementation
    return SoftwareFacts(
        source=a.source,
        raw={**b.raw, **a.raw},
        versions={**b.versions, **a.versions},
        mpi_cuda_aware=cuda_aware,
        mpi_implementation=implementation,
    )
