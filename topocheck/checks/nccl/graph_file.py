"""NCCL's graph file against the GPUs that are here."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.settings import in_force, place, quoted
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Evidence, Finding, Missing, Reason, State
from topocheck.nccl.topofile.write import usable_gpus


@check(
    "nccl.graph-file",
    title="NCCL's graph file names GPUs that are not here, or cannot be read",
    severity=State.FAIL,
    reads=("NCCL_GRAPH_FILE", "NCCL_CONF_FILE or ~/.nccl.conf", "/etc/nccl.conf", "the file of NCCL_GRAPH_FILE"),
    needs=Needs((*GPUS, "settings", "topology file")),
    scope=Scope.PROCESS,
)
def graph_file(c: Context) -> Iterator[Finding]:
    """NCCL_GRAPH_FILE is in force, and the file is of another machine.

    Looks at:
        The device numbers of the file's GPUs against the GPUs that a job here can use, and whether the file can be
        opened.

    Why it matters:
        Images of clouds set it in /etc/nccl.conf for one size of machine. On a size with fewer GPUs the init of every
        communicator ends with "XML Import Channel : dev N not found". A file that cannot be opened ends it too.

    Fix:
        Remove the line, or the variable: NCCL finds its channels by itself.

    Does not apply:
        Where NCCL_GRAPH_FILE is not set, or no GPU is here.
    """
    s = in_force(c).get("NCCL_GRAPH_FILE")
    if s is None:
        raise not_applicable("NCCL_GRAPH_FILE is not set")
    gpus = usable_gpus(c.topology)
    if not gpus:
        raise not_applicable("no GPU that NCCL could use")
    named = c.node.settings.graph_file_devices
    fix = f"unset {s.name}" if s.source == "environment" else f"remove {s.name} from {s.source.rpartition(':')[0]}"
    if isinstance(named, Missing):
        cannot = named.reason in (Reason.ABSENT, Reason.DENIED)
        yield Finding(
            id="nccl.graph-file",
            state=State.FAIL if cannot else State.UNKNOWN,
            subject=place(s),
            title=f"NCCL cannot open its graph file {s.value}: {named}"
            if cannot
            else f"whether the graph file {s.value} fits this machine is not known: {named}",
            consequence="every ncclCommInitRank fails with a system error",
            evidence=(*quoted(s), Evidence(s.value, str(named))),
            rule="NCCL needs the file that NCCL_GRAPH_FILE names (src/graph/xml.cc)",
            fix=fix,
        )
        return
    missing = [n for n in named if n >= len(gpus)]
    if not missing:
        return
    yield Finding(
        id="nccl.graph-file",
        state=State.FAIL,
        subject=place(s),
        title=f"the graph file {s.value} names GPU {listed(map(str, missing))}, and {len(gpus)} are here",
        consequence="every ncclCommInitRank fails: XML Import Channel : dev not found",
        evidence=(*quoted(s), Evidence(s.value, f"gpu dev {', '.join(map(str, named))}")),
        rule=f"device numbers 0 to {len(gpus) - 1}, those of the GPUs here (src/graph/search.cc)",
        fix=fix,
    )
