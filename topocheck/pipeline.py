"""The one composition of a run: facts, topology, verdicts, checks. Commands, the Python API and the fleet call it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from topocheck.checks import registry
from topocheck.checks.registry import CheckResult
from topocheck.gpudirect.types import GpuDirect
from topocheck.host.base import Host, HostError, RecordedBackend, Watch
from topocheck.model.base import Finding, Missing, ProbeStatus, Reason
from topocheck.model.node import Lost, MadeFrom, Node
from topocheck.model.smi import SmiMatrix
from topocheck.model.system import SoftwareFacts
from topocheck.nccl.predict.types import Backend, NcclView
from topocheck.policy.types import Policy
from topocheck.probes.registry import OPTIONAL_PROBES, PROBES, Probe
from topocheck.topology.types import Topology


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that one run knows: facts first, then what was made of them.

    `results` says how each check went; `findings` are theirs, worst first; `untold` names the lists of the document
    that may lack entries (topology/untold.py).
    """

    node: Node
    topology: Topology
    gpudirect: GpuDirect
    nccl: NcclView
    backends: tuple[Backend, ...] = ()
    results: tuple[registry.CheckResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    untold: dict[str, Missing] = msgspec.field(default_factory=dict)


def read_node(host: Host, probes: Sequence[Probe] | None = None) -> Node:
    """Run the probes on a host and return its facts. A probe that breaks leaves its part missing and says so.

    Args:
        host: where the answers come from.
        probes: which to run; where None, all, and of the optional ones those that the machine was asked.
    """
    facts: dict[str, Any] = {}
    statuses = []
    lost: list[Lost] = []
    if probes is None:
        probes = PROBES + tuple(p for p in OPTIONAL_PROBES if _was_asked(host, p))
    for p in probes:
        status = _recorded_status(host, p)
        watch = Watch(_as_left(host, status).backend)
        asked = Host(watch, host.source)
        try:
            facts[p.name] = p.read(asked)
        except HostError as e:
            status = ProbeStatus(name=p.name, state=_failed_state(e), ms=status.ms, detail=status.detail or str(e))
            facts |= _untold(p.name, e.missing())
            watch.note(f"probe:{p.name}", e.missing())
        except Exception as e:  # noqa: BLE001 - a fault of one probe must not take the others with it
            detail = f"an answer of unexpected form ({type(e).__name__}: {e})"
            status = ProbeStatus(name=p.name, state="failed", ms=status.ms, detail=detail)
            facts |= _untold(p.name, Missing(Reason.UNPARSABLE, detail))
            watch.note(f"probe:{p.name}", Missing(Reason.UNPARSABLE, detail))
        statuses.append(_with_left_out(status, [*asked.left_out, *watch.left_out]))
        lost += (Lost(probe=p.name, question=q, why=why) for q, why in watch.lost.items())
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
        lost=tuple(lost),
        made_from=_sources(host),
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
    from topocheck.gpudirect import judge as judge_gpudirect
    from topocheck.nccl.backend import backends
    from topocheck.nccl.predict.report import view
    from topocheck.topology.build import build
    from topocheck.topology.untold import lists_untold

    policy = policy or Policy()
    topology = build(node)
    if node.made_from is not None and node.smi_topo.matrix is not None:
        from topocheck.topology.from_smi import with_matrix

        topology = with_matrix(topology, node.smi_topo.matrix)
    gpudirect = judge_gpudirect(node, topology)
    nccl = _as_known(node, view(node, topology, gpudirect))
    context = registry.Context(node=node, topology=topology, gpudirect=gpudirect, nccl=nccl, policy=policy)
    results, findings = run_checks(context, checks)
    if node.made_from is not None:
        from topocheck.places import Places

        if (matrix := node.smi_topo.matrix) is not None:
            results, findings = _with_rules_of(matrix, results, findings)
            if not topology.gpus:
                unplaced = topology.unplaced_nics
                topology, gpudirect = _of_matrix(matrix)
                topology = msgspec.structs.replace(topology, unplaced_nics=unplaced)

        places = Places(node, node.made_from)
        gpudirect, findings = places.within(gpudirect), places.within(findings)
    return Report(
        node=node,
        topology=topology,
        gpudirect=gpudirect,
        nccl=nccl,
        backends=backends(node, topology),
        results=results,
        findings=findings,
        untold=lists_untold(node),
    )


def _of_matrix(matrix: SmiMatrix) -> tuple[Topology, GpuDirect]:
    """Return what a matrix tells where nothing else that was given names a GPU; addresses are its labels."""
    from topocheck.gpudirect.from_matrix import verdicts_of
    from topocheck.topology.from_smi import topology_of

    topology = topology_of(matrix)
    return topology, verdicts_of(matrix, topology)


def _with_rules_of(
    matrix: SmiMatrix, results: tuple[CheckResult, ...], findings: tuple[Finding, ...]
) -> tuple[tuple[CheckResult, ...], tuple[Finding, ...]]:
    """Return results and findings with what the matrix alone shows, of the checks that ran and found nothing."""
    from topocheck.checks.registry import finding_order
    from topocheck.checks.shared.pasted_matrix import judge_matrix
    from topocheck.topology.from_smi import p2p_codes, topology_of

    found = {f.id for f in findings}
    told, more = judge_matrix(topology_of(matrix), p2p_codes(matrix))
    ran = {r.id for r in results}
    more = tuple(f for f in more if f.id in ran - found)
    changed = {r.id: r for r in told if r.id in {f.id for f in more}}
    results = tuple(changed.get(r.id, r) for r in results)
    return results, tuple(sorted((*findings, *more), key=finding_order))


_NCCL_SEES = (
    *("pci", "nvml", "nvlinks", "peer access", "fabric", "rdma", "modules", "link", "node", "numa"),
    *("settings", "topology file"),
)
"""Sources of what NCCL sees for itself, by their names in topocheck.checks.sources.

Without CUDA's answers the prediction itself says what is not known: cuMem, multicast.
"""


def _as_known(node: Node, nccl: NcclView) -> NcclView:
    """Return NCCL's view without its decisions, where answers were lost: NCCL will see what was not reported here."""
    from topocheck.checks.needs import sources_lost

    lost = sources_lost(node)
    found = next((lost[name][0] for name in _NCCL_SEES if name in lost), None)
    if found is None:
        return nccl
    gap = Missing(found.why.reason, f"prediction not available: {found.shown} could not be read")
    pairs = tuple(msgspec.structs.replace(p, nccl_class=gap, transport=gap, reasons=()) for p in nccl.pairs)
    return msgspec.structs.replace(
        nccl, pairs=pairs, nvls=gap, nvls_reason=gap.detail if nccl.nvls_reason else "", bounds=()
    )


def run_checks(
    context: registry.Context, checks: Iterable[registry.Check] | None = None
) -> tuple[tuple[registry.CheckResult, ...], tuple[Finding, ...]]:
    """Run the checks that the policy of a context has on; return how each went, and the findings, worst first."""
    from topocheck.checks import static_checks
    from topocheck.checks.result import settle, without_untold

    chosen = static_checks() if checks is None else checks
    outcomes = list(registry.run(chosen, context))
    findings = without_untold(context.node, [f for _, found in outcomes for f in found])
    results = settle(context.node, findings, sorted((r for r, _ in outcomes), key=lambda r: r.id))
    return results, tuple(sorted(findings, key=registry.finding_order))


def _was_asked(host: Host, probe: Probe) -> bool:
    try:
        host.probe_status(probe.name)
    except HostError:
        return False
    return True


def _untold(probe: str, why: Missing) -> dict[str, Any]:
    """Return the part of a node's facts that a failed probe was to bring, each fact missing for the reason of that."""
    part = getattr(Node(source=""), probe, None)
    if part is None:
        return {}
    gaps = {f: why for f in part.__struct_fields__ if isinstance(getattr(part, f), Missing)}
    return {probe: msgspec.structs.replace(part, **gaps)}


def _recorded_status(host: Host, probe: Probe) -> ProbeStatus:
    try:
        return host.probe_status(probe.name)
    except HostError:
        return ProbeStatus(name=probe.name, state="failed", ms=0.0, detail="not recorded")


def _with_left_out(status: ProbeStatus, left_out: list[str]) -> ProbeStatus:
    """Return a probe's status with what was too much to look at."""
    if not left_out:
        return status
    words = "; ".join(left_out[:_NAMED_CUTS]) + (f"; and {n} more" if (n := len(left_out) - _NAMED_CUTS) > 0 else "")
    detail = f"{status.detail}; cut: {words}" if status.detail else f"cut: {words}"
    return msgspec.structs.replace(status, detail=detail, left_out=tuple(left_out))


_NAMED_CUTS = 4


def _as_left(host: Host, status: ProbeStatus) -> Host:
    """Return the host as a timed-out probe left it: what it never came to ask timed out too, by the same call."""
    if status.state != "timed_out" or not isinstance(host.backend, RecordedBackend):
        return Host(host.backend, host.source)
    unasked = HostError(Reason.TIMED_OUT, status.detail)
    return Host(RecordedBackend(host.backend.answers, unasked), host.source)


def _failed_state(error: HostError) -> str:
    return "timed_out" if error.reason is Reason.TIMED_OUT else "failed"


def _or_empty(host: Host) -> str:
    try:
        return host.now()
    except HostError:
        return ""


def _sources(host: Host) -> MadeFrom | None:
    try:
        return host.sources()
    except HostError:
        return None


def _merge_software(a: SoftwareFacts, b: SoftwareFacts) -> SoftwareFacts:
    cuda_aware = b.mpi_cuda_aware if isinstance(a.mpi_cuda_aware, Missing) else a.mpi_cuda_aware
    implementation = b.mpi_implementation if isinstance(a.mpi_implementation, Missing) else a.mpi_implementation
    return SoftwareFacts(
        source=a.source,
        raw={**b.raw, **a.raw},
        versions={**b.versions, **a.versions},
        mpi_cuda_aware=cuda_aware,
        mpi_implementation=implementation,
        network_plugins=a.network_plugins,
        plugins_elsewhere=a.plugins_elsewhere,
    )
