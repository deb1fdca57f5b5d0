"""What is wrong in a matrix that somebody pasted: judged by the text alone, under the ids of the checks of machines."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from topocheck.checks.registry import CheckResult, NotApplicableError, Scope, finding_order, not_applicable, worst
from topocheck.checks.shared.common import listed
from topocheck.knowledge.products import p2p_code
from topocheck.model.base import Evidence, Finding, State, known
from topocheck.topology.types import Path, Topology

_NEAR = ("PIX", "PXB")
_RESET = (
    "check nvidia-smi nvlink -s and the fabric state (nvidia-smi -q) of these GPUs, and the fabric manager's log; "
    "then drain the node and reset all GPUs together (nvidia-smi -r, ends all that runs on them)"
)


def judge_matrix(
    topology: Topology, codes: Mapping[tuple[str, str], Mapping[str, str]]
) -> tuple[tuple[CheckResult, ...], tuple[Finding, ...]]:
    """Return how each rule went and what was found, worst first. A rule that the text gives nothing to says so.

    Args:
        topology: of the matrix.
        codes: (from, to) -> capability letter -> code, of the P2P tables of the text.
    """
    rules: dict[str, Callable[[], Iterator[Finding]]] = {
        "consistency.smi-matrix-differs": lambda: _one_sided(topology),
        "numa.one-affinity": lambda: _one_affinity(topology),
        "nvlink.links-down": lambda: _links(topology),
        "p2p.flat-vm-tree": lambda: _apart_in_one_node(topology),
        "p2p.refused": lambda: _refused(codes),
        "rdma.nearest-nic-far": lambda: _far_nics(topology),
    }
    results: list[CheckResult] = []
    findings: list[Finding] = []
    for id_, rule in rules.items():
        try:
            found = list(rule())
        except NotApplicableError as e:
            state, detail, found = State.NOT_APPLICABLE, str(e), []
        else:
            state, detail = worst(f.state for f in found), ""
        findings += found
        subjects = tuple(f.subject for f in found)
        results.append(CheckResult(id=id_, scope=Scope.NODE, state=state, subjects=subjects, detail=detail))
    return tuple(results), tuple(sorted(findings, key=finding_order))


def _refused(codes: Mapping[tuple[str, str], Mapping[str, str]]) -> Iterator[Finding]:
    """Pairs that a P2P table refuses, by code."""
    if not codes:
        raise not_applicable("no P2P table in the text")
    by_code: dict[str, list[tuple[str, str]]] = {}
    for pair, told in codes.items():
        for code in {told[c] for c in ("r", "w", "?") if c in told and told[c] not in ("OK", "X")}:
            if pair[0] < pair[1] or (pair[1], pair[0]) not in codes:
                by_code.setdefault(code, []).append(pair)
    for code, pairs in sorted(by_code.items()):
        meaning, fix = p2p_code(code, guest=None) or ("unknown to this version", "")
        yield Finding(
            id="p2p.refused",
            state=State.UNKNOWN if code == "U" else State.NOTE,
            subject=listed(f"{a}-{b}" for a, b in pairs),
            title=f"no peer access: {code}, {meaning}",
            consequence="copies between these GPUs go through host memory",
            evidence=tuple(Evidence(f"row {a}, column {b}", code) for a, b in pairs[:4]),
            rule="OK for read and write",
            fix=fix or None,
        )


def _between_gpus(t: Topology) -> dict[tuple[str, str], Path]:
    gpus = {g.address for g in t.gpus}
    return {(p.from_, p.to): p for p in t.paths if p.to in gpus}


def _row(t: Topology, gpu: str) -> Evidence:
    paths = _between_gpus(t)
    others = [paths[gpu, g.address].class_ for g in t.gpus if g.address != gpu]
    cells = [c if known(c) else "?" for c in others]
    return Evidence(f"row {gpu}", " ".join(cells))


def _links(t: Topology) -> Iterator[Finding]:
    """GPUs that stand outside a group which NVLink joins pair by pair, and those with fewer links than the group."""
    paths = _between_gpus(t)
    if len(t.gpus) < 3:
        raise not_applicable("fewer than three GPUs, so no outlier can be found")
    if any(p.nvlinks_untold is not None for p in paths.values()):
        raise not_applicable("the text does not say for every pair whether NVLink connects it")
    linked = {g.address: {b for (a, b), p in paths.items() if a == g.address and p.nvlinks} for g in t.gpus}
    inside = max(
        (frozenset({a, *others}) for a, others in linked.items()),
        key=lambda s: (len(s), sorted(s)),
        default=frozenset[str](),
    )
    mesh = len(inside) > 2 and all(paths[a, b].nvlinks for a, b in itertools.combinations(sorted(inside), 2))
    if not mesh:
        yield from _unbridged(t, linked)
        return
    outside = [g.address for g in t.gpus if g.address not in inside]
    bare = [a for a in outside if not linked[a]]
    if bare and len(outside) < len(inside):
        alone = f"{bare[0]} alone has" if len(bare) == 1 else f"{listed(bare)} have"
        usual = Counter(paths[a, b].class_ for a, b in itertools.permutations(sorted(inside), 2)).most_common(1)[0][0]
        yield Finding(
            id="nvlink.links-down",
            state=State.FAIL,
            subject=listed(bare),
            title=f"{alone} no NVLink; the other {len(inside)} GPUs have {usual} with each other",
            consequence="its traffic goes over PCIe, about ten times slower, and collectives over all GPUs wait for it",
            evidence=(_row(t, bare[0]), _row(t, min(inside))),
            rule="GPUs of one board are joined by NVLink like their siblings",
            fix=_RESET,
        )
    yield from _fewer(t, paths, inside)


def _unbridged(t: Topology, linked: Mapping[str, set[str]]) -> Iterator[Finding]:
    """Find the GPUs without NVLink among GPUs of which some are bridged in pairs or fours."""
    bare = [a for a, others in linked.items() if not others]
    joined = [a for a, others in linked.items() if others]
    if bare and len(joined) > len(bare):
        yield Finding(
            id="nvlink.links-down",
            state=State.NOTE,
            subject=listed(bare),
            title=f"{listed(bare)} {'has' if len(bare) == 1 else 'have'} no NVLink; {len(joined)} of {len(t.gpus)} "
            "GPUs are bridged: is a bridge missing or not seated?",
            consequence="pairs without a bridge copy over PCIe, and collectives over all GPUs run at that rate",
            evidence=(_row(t, bare[0]), _row(t, joined[0])),
            rule="as many bridges as pairs, where the site wants them",
            fix="switch the node off and fit or seat the bridge, if these cards were sold with one",
        )


def _apart_in_one_node(t: Topology) -> Iterator[Finding]:
    """GPUs that are SYS to each other though they show the same CPUs, beside GPUs that show others."""
    affinity = {g.address: str(g.cpu_affinity) for g in t.gpus if known(g.cpu_affinity)}
    if len(affinity) < len(t.gpus) or len(set(affinity.values())) < 2:
        raise not_applicable("the text does not show several groups of CPUs")
    paths = _between_gpus(t)
    odd = [
        (a, b)
        for a, b in itertools.combinations([g.address for g in t.gpus], 2)
        if paths[a, b].class_ == "SYS" and affinity[a] == affinity[b]
    ]
    if odd:
        a, b = odd[0]
        yield Finding(
            id="p2p.flat-vm-tree",
            state=State.UNKNOWN,
            subject=listed(f"{x}-{y}" for x, y in odd),
            title=f"{a}-{b} is SYS though both show the CPUs {affinity[a]}"
            + (f", and {len(odd) - 1} pairs more" if len(odd) > 1 else "")
            + ": this matrix does not show how close they are, nor whether NVLink joins them",
            consequence="the tree, or the NVLink fabric, is hidden from whoever took the matrix: NCCL would go over "
            "the host or the network there",
            evidence=(
                _row(t, a),
                Evidence(f"{a} CPU Affinity", affinity[a]),
                Evidence(f"{b} CPU Affinity", affinity[b]),
            ),
            rule="SYS is between NUMA nodes (legend of nvidia-smi topo)",
            fix="take the matrix on the host, outside a container or guest; nvidia-smi nvlink -s and the fabric state "
            "(nvidia-smi -q) say whether NVLink is there",
        )


def _fewer(t: Topology, paths: dict[tuple[str, str], Path], inside: frozenset[str]) -> Iterator[Finding]:
    """Find the GPUs whose every pair has fewer links than most pairs."""
    pairs = {(a, b): paths[a, b].nvlinks for a, b in itertools.combinations(sorted(inside), 2)}
    # All pairs but those of one GPU; with three GPUs one pair against two says nothing.
    enough = (len(inside) - 1) * (len(inside) - 2) // 2
    usual = max((v for v, n in Counter(pairs.values()).items() if n >= enough), default=0)
    if len(inside) < 4 or not usual:
        return
    poor = set[str]()
    for gpu in sorted(inside):
        own = [links for pair, links in pairs.items() if gpu in pair]
        if own and all(links < usual for links in own):
            poor.add(gpu)
            yield Finding(
                id="nvlink.links-down",
                state=State.FAIL,
                subject=gpu,
                title=f"{gpu} has {max(own)} NVLinks to its peers, most pairs have {usual}",
                consequence="traffic with it is slower, and collectives run at the speed of the slowest GPU",
                evidence=(_row(t, gpu),),
                rule="as many links as most pairs of the matrix",
                fix=_RESET,
            )

    odd = [pair for pair, links in pairs.items() if links < usual and not poor & set(pair)]
    # A mesh of two kinds of pairs was built so; one or two that lack links among many were not.
    if odd and len(odd) * 5 <= len(pairs):
        a, b = odd[0]
        yield Finding(
            id="nvlink.links-down",
            state=State.FAIL,
            subject=listed(f"{x}-{y}" for x, y in odd),
            title=f"{a}-{b} has {pairs[a, b]} NVLinks, {sum(n == usual for n in pairs.values())} of {len(pairs)} pairs "
            f"have {usual}",
            consequence="traffic between them is slower, and collectives run at the speed of the slowest pair",
            evidence=(_row(t, a), _row(t, b)),
            rule="as many links as four of five pairs of the matrix",
            fix=_RESET,
        )


def _one_sided(t: Topology) -> Iterator[Finding]:
    """Pairs of GPUs whose two cells differ."""
    paths = _between_gpus(t)
    if not any(known(p.class_) for p in paths.values()):
        raise not_applicable("no class of a pair of GPUs in the text")
    odd = [
        (a, b)
        for a, b in itertools.combinations([g.address for g in t.gpus], 2)
        if known(x := paths[a, b].class_) and known(y := paths[b, a].class_) and x != y
    ]
    if odd:
        a, b = odd[0]
        nvlink = any(bool(paths[x, y].nvlinks) != bool(paths[y, x].nvlinks) for x, y in odd)
        yield Finding(
            id="consistency.smi-matrix-differs",
            state=State.WARN,
            subject=listed(f"{x}-{y}" for x, y in odd),
            title=f"row and column differ: {a} to {b} is {paths[a, b].class_}, {b} to {a} is {paths[b, a].class_}",
            consequence="NVLink that one end alone reports ends NCCL's init with an internal error"
            if nvlink
            else "one of the two is wrong, or the text was changed on its way",
            evidence=(_row(t, a), _row(t, b)),
            rule="a way is the same in both directions",
            fix="take the matrix again; if it stays the same, reset the GPUs (nvidia-smi -r, ends all "
            "that runs on them)",
        )


def _far_nics(t: Topology) -> Iterator[Finding]:
    """GPUs without a near NIC beside most that have one."""
    if not t.nics:
        raise not_applicable("no NIC in the text")
    near = [n.gpu for n in t.nearest_nics if n.class_ in _NEAR]
    far = [n for n in t.nearest_nics if known(n.class_) and n.class_ not in _NEAR]
    if far and len(near) > len(far):
        yield Finding(
            id="rdma.nearest-nic-far",
            state=State.WARN,
            subject=listed(n.gpu for n in far),
            title=f"the nearest NIC of {listed(n.gpu for n in far)} is {far[0].class_}; {len(near)} GPUs have one at "
            "PIX or PXB",
            consequence="NCCL stages its traffic to other hosts in host memory by default",
            evidence=tuple(Evidence(f"row {n.gpu}", f"{', '.join(n.nics)}: {n.class_}") for n in far[:4]),
            rule="most GPUs of the matrix have a NIC below their own switch",
            fix="check whether its NIC is missing (lspci, rdma link) or sits in another slot",
        )


def _one_affinity(t: Topology) -> Iterator[Finding]:
    """One CPU affinity for GPUs that are on different sockets."""
    if len(t.gpus) < 2 or not all(known(g.cpu_affinity) for g in t.gpus):
        raise not_applicable("the text does not show the CPUs of several GPUs")
    affinities = {str(g.cpu_affinity) for g in t.gpus if known(g.cpu_affinity)}
    apart = any("SYS" in (p.class_, p.pcie_class) for p in _between_gpus(t).values())
    if len(affinities) == 1 and apart:
        yield Finding(
            id="numa.one-affinity",
            state=State.NOTE,
            subject="node",
            title=f"every GPU shows the CPUs {affinities.pop()}, though some pairs are SYS: these CPUs say nothing of "
            "where a GPU is",
            consequence="binding by this column puts processes on the wrong socket",
            evidence=tuple(Evidence(f"{g.address} CPU Affinity", str(g.cpu_affinity)) for g in t.gpus[:4]),
            rule="GPUs of different sockets have different CPUs",
            fix="take the matrix outside a container, guest or job step; or bind by /sys/bus/pci/devices/*/numa_node",
        )
