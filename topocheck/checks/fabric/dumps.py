"""Several sources next to each other: dumps that contradict each other, Slurm's topology, subnet managers."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.fabric.run import READS, joined_or_none, tiers_in
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.fabric.plan import Misplaced, misplaced, unplanned
from topocheck.model.base import Evidence, Finding, State

MAX_NAMES = 8


@check("fabric.dumps-differ", severity=State.WARN, reads=READS)
def dumps_differ(context: Context) -> Iterator[Finding]:
    """A port is connected to something else by one dump than by another.

    Looks at:
        The other end of each port that two dumps show.

    Why it matters:
        A cable was moved between the two, or one dump is of another fabric: what is judged here is put together of
        both.

    Fix:
        Take the dumps again, at one time; give planes and fabrics of other nodes in runs of their own.

    Does not apply:
        To one dump alone.
    """
    fabric = tiers_in(context).fabric
    if len(fabric.sources) < 2:
        raise not_applicable("one dump alone")
    if fabric.conflicts:
        many = "a port leads" if len(fabric.conflicts) == 1 else f"{len(fabric.conflicts)} ports lead"
        yield Finding(
            state=State.WARN,
            subject="fabric",
            title=f"{many} elsewhere by one dump than by another: {fabric.conflicts[0]}",
            consequence="the first dump counts; what the others say of these ports is left out",
            evidence=tuple(Evidence(", ".join(fabric.sources)[:200], c) for c in fabric.conflicts[:4]),
            rule="a port has one cable",
            fix="take the dumps again, at one time",
        )


@check("fabric.slurm-differs", severity=State.WARN, reads=READS)
def slurm_differs(context: Context) -> Iterator[Finding]:
    """Slurm's topology has nodes together that the cables have apart.

    Looks at:
        The nodes of each leaf switch in topology.conf, topology.yaml or `scontrol show topology`, and the leaves that
        their cables are on; the nodes of each block, and their NVLink domains. And nodes of the dump that no switch
        of the file has, where others with such names have one.

    Why it matters:
        Slurm places jobs by its file: a job "below one leaf" crosses the spines, or a segment leaves its NVLink
        domain. A node that no switch has is never given to a job that asks for a topology.

    Fix:
        Write the file from the dump (`topocheck emit topology-conf --fabric FILE`, or `topology-yaml`).

    Does not apply:
        Without Slurm's file; of switches without a dump that shows cables next to it, of blocks without snapshots of
        nodes in NVLink domains.
    """
    tiers = tiers_in(context)
    joined = joined_or_none(context)
    planned = tiers.fabric.planned
    domains = joined.domains if joined else {}
    # Alone, the file is the graph that its own leaves are found in.
    if not planned or (len(tiers.fabric.sources) < 2 and not (domains and any(g.block for g in planned))):
        raise not_applicable(
            "no topology of Slurm was given together with a dump of the cables, or with NVLink domains"
        )
    for m in misplaced(tiers, domains):
        yield _misplaced(m)
    if missing := unplanned(tiers):
        yield Finding(
            state=State.WARN,
            subject="Slurm's topology",
            title=f"{_listed(missing)}: in the dump and in no switch of the file",
            consequence="Slurm gives these nodes to no job that it places by topology",
            evidence=(planned[0].evidence,),
            rule="each node of the cluster is below a switch of the file",
            fix="write the file from the dump: topocheck emit topology-conf --fabric FILE",
        )


def _misplaced(m: Misplaced) -> Finding:
    kind, place = ("block", "NVLink domain") if m.group.block else ("switch", "leaf")
    where = ", ".join(m.where[:3]) + (", ..." if len(m.where) > 3 else "")
    if m.usual:
        title = f"{_listed(m.nodes)} on {where}; {m.alike} of {m.known} nodes of this {kind} are on {m.usual}"
    else:
        title = f"its {m.known} nodes are on {len(m.where)} different {_plural(place)}: {where}"
    how = "topology-yaml" if m.group.block else "topology-conf --fabric FILE"
    return Finding(
        state=State.WARN,
        subject=f"Slurm {kind} {m.group.name}",
        title=title,
        consequence="a job that Slurm places inside it crosses the spines"
        if not m.group.block
        else "a segment that Slurm places inside it leaves the NVLink domain",
        evidence=(m.group.evidence,),
        rule=f"the nodes of a {kind} of Slurm's topology share a {place}",
        fix=f"write the file anew: topocheck emit {how}",
    )


def _plural(place: str) -> str:
    return "leaves" if place == "leaf" else f"{place}s"


def _listed(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes[:MAX_NAMES]) + (f" and {len(nodes) - MAX_NAMES} more" if len(nodes) > MAX_NAMES else "")


@check("fabric.subnet-manager", severity=State.FAIL, reads=("sminfo or saquery SMIR",))
def subnet_manager(context: Context) -> Iterator[Finding]:
    """Several subnet managers are master on one subnet, or none is.

    Looks at:
        The state of each subnet manager that `sminfo` or SMInfoRecords show, and how many parts the fabric has that no
        link joins, each of which has a subnet of its own.

    Why it matters:
        Two masters overwrite each other's LIDs and routes: connections break. Without a master no port becomes active.

    Fix:
        Find why they do not see each other (partitioned fabric, management keys that differ); stop one of them.

    Does not apply:
        Where no subnet manager is shown.
    """
    tiers = tiers_in(context)
    managers = tiers.fabric.managers
    if not managers:
        raise not_applicable("no subnet manager is shown; sminfo and saquery SMIR show them")
    masters = {m.guid: m for m in managers if m.state == "MASTER"}
    subnets = max(1, len(tiers.planes))
    if len(masters) > subnets:
        yield Finding(
            state=State.FAIL,
            subject="subnet manager",
            title=f"{len(masters)} subnet managers are master on {subnets} {'subnet' if subnets == 1 else 'subnets'}: "
            + ", ".join(f"{m.guid} (LID {m.lid}, priority {m.priority})" for m in list(masters.values())[:4]),
            consequence="they overwrite each other's LIDs and routes: connections break",
            evidence=tuple(m.evidence for m in list(masters.values())[:4]),
            rule="a subnet has one master subnet manager",
            fix="stop all but one; compare their management keys (sm_key), and whether they reach each other",
        )
    elif not masters:
        yield Finding(
            state=State.FAIL,
            subject="subnet manager",
            title=f"none of {len(managers)} subnet managers is master: {', '.join(m.state for m in managers[:4])}",
            consequence="no port becomes active, and no route is set",
            evidence=tuple(m.evidence for m in managers[:4]),
            rule="a subnet has one master subnet manager",
            fix="start a subnet manager (opensm, UFM or that of a managed switch) and see its log",
        )
