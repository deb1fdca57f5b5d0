"""NVLink domains that reach beyond a node (GB200 NVL72 and the like): who is in which, and who is outside.

NVML gives each GPU's cluster UUID (the domain that the fabric manager of the rack has set up) and clique (the GPUs of
it that reach each other; NVML, nvmlGpuFabricInfo_t). NCCL uses NVLink between nodes where both agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from topocheck.compare.types import JobFacts, JobProblem, NvlinkDomain

AGREE = 0.75
"""Part of at least four nodes of a kind that must be in domains, or in one clique, before another is odd."""
MIN_NODES = 4
OUTSIDE = "none"
"""The GPUs say that they are in no domain beyond the node."""


def domains(nodes: Iterable[tuple[str, JobFacts]]) -> tuple[NvlinkDomain, ...]:
    """Return the NVLink domains of nodes (name, facts), the largest first; none where no node is in one."""
    found: dict[str, list[tuple[str, JobFacts]]] = {}
    for name, facts in nodes:
        if facts.domain:
            found.setdefault(facts.domain, []).append((name, facts))
    if set(found) <= {OUTSIDE}:
        return ()
    made = [
        NvlinkDomain(
            cluster_uuid="" if domain == OUTSIDE else domain.rpartition(".")[0],
            clique=None if domain == OUTSIDE else int(domain.rpartition(".")[2]),
            nodes=tuple(sorted(n for n, _ in members)),
            imex=sum(f.imex == "yes" for _, f in members),
        )
        for domain, members in found.items()
    ]
    return tuple(sorted(made, key=lambda d: (not d.cluster_uuid, -len(d.nodes), d.cluster_uuid, d.clique or 0)))


def domain_problems(nodes: Sequence[tuple[str, JobFacts]]) -> Iterable[JobProblem]:
    """Yield the nodes of one kind that are outside of the NVLink domain, or in another clique of it, than the rest."""
    known = [(name, f.domain) for name, f in nodes if f.domain]
    outside = tuple(name for name, d in known if d == OUTSIDE)
    inside = [name for name, d in known if d != OUTSIDE]
    if outside and len(known) >= MIN_NODES and len(inside) >= AGREE * len(known):
        yield JobProblem(
            state="warn",
            what="nvlink-domain",
            subject="NVLink domain",
            title=f"{_names(outside)} {_are(outside)} in no NVLink domain; {len(inside)} of {len(known)} nodes "
            "of this kind are in one",
            consequence="traffic of these nodes' GPUs to other nodes takes the network instead of NVLink",
            fix="nvidia-smi -q (Fabric: State, Status, ClusterUUID) on these nodes; the partition in NMX-C, and the "
            "NVLink cables of the compute tray",
            values=(("in a domain", tuple(inside)), ("in none", outside)),
        )
    by_cluster: dict[str, list[tuple[str, str]]] = {}
    for name, d in known:
        if d != OUTSIDE:
            cluster, _, clique = d.rpartition(".")
            by_cluster.setdefault(cluster, []).append((name, clique))
    for cluster, members in sorted(by_cluster.items()):
        cliques = Counter(c for _, c in members)
        usual, alike = cliques.most_common(1)[0]
        if len(cliques) < 2 or len(members) < MIN_NODES or alike < AGREE * len(members):
            continue
        odd = tuple(n for n, c in members if c != usual)
        yield JobProblem(
            state="warn",
            what="nvlink-domain",
            subject=f"NVLink domain {cluster}",
            title=f"{_names(odd)} {_are(odd)} in another clique; {alike} of {len(members)} nodes of this domain are in "
            f"clique {usual}",
            consequence="NVLink does not join the cliques of a domain: NCCL takes the network between them",
            fix="compare the partitions of the domain in NMX-C; nvidia-smi -q shows ClusterUUID and CliqueId",
            values=tuple((f"clique {c}", tuple(n for n, own in members if own == c)) for c, _ in cliques.most_common()),
        )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
