"""Configuration files for Slurm, NCCL, Open MPI and numactl. Each says in a comment from which facts it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topocheck.model.hostlist import compress_hostlist
from topocheck.model.version import __version__
from topocheck.render import quoting

if TYPE_CHECKING:
    from topocheck.placement.blocks import Blocks, Tree
    from topocheck.placement.gres import Gres
    from topocheck.placement.nccl_env import Suggestion
    from topocheck.placement.plan import Binding, Plan


def _head(what: str, facts: str, source: str) -> list[str]:
    return _notes((f"{what}, by topocheck {__version__}", f"from {source}: {facts}"))


def _text(lines: Sequence[str]) -> str:
    """Return lines as a file. Whatever a machine said stands in them, so none may hold a line break of its own."""
    return "".join(f"{quoting.one_line(line)}\n" for line in lines)


def gres_conf(nodes: Sequence[Gres], source: str) -> str:
    """Return gres.conf lines; nodes with equal lines share them."""
    facts = (
        "GPU names and device minors (NVML), CPUs near each GPU (NVML CpuAffinity, NUMA nodes, cores per socket), "
        "NVLinks between GPUs (NVML)"
    )
    out = _head("gres.conf for Slurm, no AutoDetect", facts, source)
    groups: dict[tuple[str, ...], list[Gres]] = {}
    for g in nodes:
        lines = tuple(
            f"Name=gpu Type={x.type_} File={x.file}"
            + (f" Cores={x.cores}" if x.cores else "")
            + (f" Links={','.join(map(str, x.links))}" if x.links else "")
            for x in g.lines
        )
        groups.setdefault(lines, []).append(g)
    for lines, alike in groups.items():
        hosts = compress_hostlist(g.hostname for g in alike)
        counts: dict[str, int] = {}
        for x in alike[0].lines:
            counts[x.type_] = counts.get(x.type_, 0) + 1
        told = ",".join(f"gpu:{t}:{n}" for t, n in counts.items())
        out.append("")
        out += _notes(alike[0].notes)
        if told:
            out += _notes((f"slurm.conf: GresTypes=gpu and NodeName={hosts} Gres={told}",))
        out += [f"NodeName={hosts} {line}" for line in lines]
    return _text(out)


_DOMAIN_FACTS = "NVLink domain (NVML GpuFabricInfo: cluster UUID and clique), host names"


_TREE_FACTS = f"{_DOMAIN_FACTS}, IPv4 networks of RDMA ports"
FABRIC_FACTS = "links between switches and adapters, host names that adapters announce"


def topology_conf(tree: Tree, blocks: Blocks | None, source: str, facts: str = _TREE_FACTS) -> str:
    """Return topology.conf: a tree, or blocks where `blocks` is given (Slurm 23.11 and newer).

    Args:
        tree: leaf switches and what is above them.
        blocks: of NVLink domains.
        source: what was read.
        facts: what of it a tree was made from.
    """
    if blocks is not None:
        out = [*_head("topology.conf for Slurm's topology/block", _DOMAIN_FACTS, source), *_notes(blocks.notes)]
        for b in blocks.blocks:
            out += [quoting.comment(b.source), f"BlockName={b.name} Nodes={compress_hostlist(b.nodes)}"]
        return _text([*out, f"BlockSizes={','.join(map(str, blocks.sizes))}"])
    out = [*_head("topology.conf for Slurm's topology/tree", facts, source), *_notes(tree.notes)]
    for s in reversed(tree.above):
        out += _notes((s.source,) if s.source else ())
        out.append(f"SwitchName={s.name} Switches={compress_hostlist(s.children)}")
    for leaf in tree.leaves:
        out += [quoting.comment(leaf.source), f"SwitchName={leaf.name} Nodes={compress_hostlist(leaf.nodes)}"]
    return _text(out)


def topology_yaml(tree: Tree, blocks: Blocks, source: str, facts: str = _TREE_FACTS) -> str:
    """Return topology.yaml: the tree as the cluster's topology, and the blocks beside it where there are any."""
    out = [*_head("topology.yaml for Slurm 25.05 and newer", facts, source), *_notes((*tree.notes, *blocks.notes))]
    has_blocks = bool(blocks.blocks)
    out += ["- topology: fabric", "  cluster_default: true", "  tree:", "    switches:"]
    for s in reversed(tree.above):
        out += [f"      {n}" for n in _notes((s.source,) if s.source else ())]
        out += _yaml("switch", s.name, "children", compress_hostlist(s.children))
    for leaf in tree.leaves:
        out += [
            f"      {quoting.comment(leaf.source)}",
            *_yaml("switch", leaf.name, "nodes", compress_hostlist(leaf.nodes)),
        ]
    if has_blocks:
        out += ["- topology: nvl", "  cluster_default: false", "  block:"]
        out += [f"    block_sizes: [{', '.join(map(str, blocks.sizes))}]", "    blocks:"]
        for b in blocks.blocks:
            out += [f"      {quoting.comment(b.source)}", *_yaml("block", b.name, "nodes", compress_hostlist(b.nodes))]
    return _text(out)


def _yaml(kind: str, name: str, what: str, hosts: str) -> list[str]:
    return [f"      - {kind}: {quoting.yaml_string(name)}", f"        {what}: {quoting.yaml_string(hosts)}"]


def _notes(notes: Sequence[str]) -> list[str]:
    return [quoting.comment(n) for n in notes]


def nccl_env(suggestions: Sequence[Suggestion], source: str) -> str:
    """Return settings in the form of nccl.conf, which a shell reads as well (`set -a; . FILE`)."""
    facts = "RDMA ports (state, rate), their place in the PCI tree, interfaces and their addresses"
    out = _head("settings for NCCL (/etc/nccl.conf)", facts, source)
    for s in suggestions:
        out += ["", *_notes(s.why)]
        out.append(f"{s.name}={s.value}" if s.value else quoting.comment(f"{s.name}: nothing to suggest"))
    return _text(out)


def xml_comment(xml: str, facts: str, source: str, *, at_end: bool = False) -> str:
    """Return XML with a comment that says from which facts it was made, before its root or after it."""
    comment = quoting.xml_comment(f"by topocheck {__version__} from {source}: {facts}") + "\n"
    if at_end:
        return xml.rstrip("\n") + "\n" + comment
    head, declared, rest = xml.partition("?>\n")
    return head + declared + comment + rest if declared else comment + xml


def rankfile(lines: Sequence[str], source: str) -> str:
    """Return an Open MPI rankfile (mpirun --rankfile), in logical sockets and cores."""
    facts = "GPUs in PCI order, CPUs near each (NVML CpuAffinity, NUMA nodes), sockets and cores"
    return _text([*_head("rankfile for Open MPI 4 and 5", facts, source), *lines])


_LOCAL_RANK = "${LOCAL_RANK:-${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-${MPI_LOCALRANKID:-}}}}"


def numactl_script(plan: Plan, source: str) -> str:
    """Return a wrapper that binds each local rank and runs the command given to it."""
    facts = "GPUs in PCI order, CPUs near each (NVML CpuAffinity, NUMA nodes); memory of the CPUs' own NUMA node"
    out = ["#!/bin/sh", *_head("binds the ranks of one node", facts, source), *_notes(plan.notes)]
    out += [
        "# usage: LAUNCHER ... ./numactl.sh COMMAND ARGUMENTS",
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        f'case "{_LOCAL_RANK}" in',
    ]
    for b in plan.bindings:
        near = f"{b.gpu_label} {b.gpu}" + (f", {', '.join(b.nics)}" if b.nics else "")
        words = numactl_words(b)
        out += [f"  {quoting.comment(near)}", f'  {b.local_rank}) exec {words + " " if words else ""}"$@" ;;']
    out += [
        '  "") echo "numactl.sh: no local rank here; start it by torchrun, srun or mpirun" >&2; exit 2 ;;',
        f'  *) echo "numactl.sh: local rank {_LOCAL_RANK} is not among 0-{len(plan.bindings) - 1}" >&2; exit 2 ;;',
        "esac",
    ]
    return _text(out)


def numactl_words(b: Binding) -> str:
    """Return the numactl call of one local rank; empty where nothing is known to bind to.

    Memory is bound to the NUMA node of the CPUs, so never to the memory of a GPU that is a node of its own.
    """
    if not b.cpus:
        return ""
    memory = f"--membind={b.memory_node}" if b.memory_node is not None else "--localalloc"
    return f"numactl --physcpubind={b.cpus} {memory}"
