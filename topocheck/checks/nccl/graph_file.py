"""NCCL's graph file: whether NCCL can read it, and its GPUs against those that are here."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.settings import in_force, judged_version, place, quoted, version_evidence, version_words
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Evidence, Finding, Missing, Reason, State
from topocheck.nccl.topofile.graph_file import read_graphs
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
    """NCCL_GRAPH_FILE is in force, and the file is of another machine, or NCCL cannot read it.

    Looks at:
        Whether the file can be opened, whether it holds what NCCL's reader needs, and the device numbers of its GPUs
        against the GPUs that a job here can use.

    Why it matters:
        Images of clouds set it in /etc/nccl.conf for one size of machine. On a size with fewer GPUs the init of every
        communicator ends with "XML Import Channel : dev N not found". A file that cannot be opened, is malformed, or
        lacks an attribute ends it too. From a file without graphs NCCL takes nothing.

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
    text = c.node.settings.graph_file
    fix = f"unset {s.name}" if s.source == "environment" else f"remove {s.name} from {s.source.rpartition(':')[0]}"
    if isinstance(text, Missing):
        cannot = text.reason in (Reason.ABSENT, Reason.DENIED)
        yield Finding(
            id="nccl.graph-file",
            state=State.FAIL if cannot else State.UNKNOWN,
            subject=place(s),
            title=f"NCCL cannot open its graph file {s.value}: {text}"
            if cannot
            else f"whether the graph file {s.value} fits this machine is not known: {text}",
            consequence="every ncclCommInitRank fails with a system error",
            evidence=(*quoted(s), Evidence(s.value, str(text))),
            rule="NCCL needs the file that NCCL_GRAPH_FILE names (src/graph/xml.cc)",
            fix=fix,
        )
        return
    file = read_graphs(text, judged_version(c))
    if file.fatal or not file.graphs:
        yield Finding(
            id="nccl.graph-file",
            state=State.FAIL if file.fatal else State.NOTE,
            subject=place(s),
            title=f"NCCL cannot read its graph file {s.value}: {file.fatal}"
            if file.fatal
            else f"the graph file {s.value} holds no graphs: NCCL takes nothing from it",
            consequence="every ncclCommInitRank fails with an error" if file.fatal else "the setting does nothing",
            evidence=(*quoted(s), *version_evidence(c)),
            rule=f"the form that {version_words(c)} reads (src/graph/xml.cc, src/graph/search.cc)",
            fix=fix,
        )
        return
    missing = [n for n in file.devices if not 0 <= n < len(gpus)]
    if not missing:
        return
    yield Finding(
        id="nccl.graph-file",
        state=State.FAIL,
        subject=place(s),
        title=f"the graph file {s.value} names GPU {listed(map(str, missing))}, and {len(gpus)} are here",
        consequence="every ncclCommInitRank fails: XML Import Channel : dev not found",
        evidence=(*quoted(s), Evidence(s.value, f"gpu dev {listed(map(str, file.devices), 16)}")),
        rule=f"device numbers 0 to {len(gpus) - 1}, those of the GPUs here (src/graph/search.cc)",
        fix=fix,
    )
