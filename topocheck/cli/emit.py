"""`topocheck emit`: configuration files made from facts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import msgspec
import typer

from topocheck.api import host_of
from topocheck.cli import common
from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.model.node import Node
    from topocheck.placement.blocks import NodePlace, Tree
    from topocheck.topology.types import Topology


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for."""

    machines: tuple[tuple[Path, ...], ...] = ()
    """The files of each machine."""
    fabric: tuple[Path, ...] = ()
    nodes: str = ""
    ranks_per_node: int = 0


def emit(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="gres-conf, topology-conf, topology-block, topology-yaml, nccl-env, rankfile, numactl, nccl-topo or "
            "hwloc-xml.",
        ),
    ],
    files: Annotated[
        Optional[list[Path]],  # noqa: UP045 - typer reads the annotation at run time
        typer.Argument(help="Snapshots, for topology-* also reports and folders; default: this machine."),
    ] = None,
    from_: common.From = None,
    output: common.Output = None,
    fabric: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            "--fabric",
            metavar="FILE",
            help="topology-conf, topology-yaml: dump of the fabric (as for network fabric; may be repeated).",
        ),
    ] = None,
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes",
            metavar="LIST",
            help="Hosts of a rankfile, or of a topology by --fabric, in Slurm's form: gpu[01-04].",
        ),
    ] = "",
    ranks_per_node: Annotated[int, typer.Option("--ranks-per-node", min=0, max=4096, help="0: one for each GPU.")] = 0,
) -> None:
    """Write a configuration file. A comment in it says from which facts it was made; read it before you use it."""
    common.choose(kind, tuple(_KINDS), "KIND")
    machines = [(f,) for f in files or ()] + ([tuple(from_)] if from_ else [])
    if fabric and kind not in ("topology-conf", "topology-yaml"):
        raise InputError(f"--fabric makes topology-conf and topology-yaml, not {kind}")
    wanted = Wanted(machines=tuple(machines), fabric=tuple(fabric or ()), nodes=nodes, ranks_per_node=ranks_per_node)
    common.emit(_KINDS[kind](wanted), output)


class Look(msgspec.Struct, frozen=True):
    """One machine: its facts, how its source is called, and what to say of its host name."""

    node: Node
    topology: Topology
    source: str
    renamed: str = ""


def _look(files: Sequence[Path]) -> Look:
    from topocheck.pipeline import read_node
    from topocheck.readers.files import read_files
    from topocheck.topology.build import build

    renamed = ""
    if not files:
        node = read_node(common.open_host(None))
    else:
        read = read_files(files)
        node = read_node(host_of(read.answers, files))
        if read.header is not None and read.header.identifiers == "replaced":
            renamed = "; host names were replaced when it was saved: put the real ones"
    return Look(node, build(node), _source(files, node), renamed)


def _one(wanted: Wanted) -> Look:
    """Return the one machine asked for."""
    if len(wanted.machines) > 1:
        n = len(wanted.machines)
        raise InputError(f"{wanted.machines[1][0]}: this file is made from one machine; {n} were given")
    return _look(wanted.machines[0] if wanted.machines else ())


def _source(files: Sequence[Path], node: Node) -> str:
    where = f"snapshot {', '.join(f.name for f in files)}" if files else "this machine"
    return f"{where} at {node.taken_at}" if node.taken_at else where


def _gres(wanted: Wanted) -> str:
    from topocheck.placement.gres import gres
    from topocheck.render.emit import gres_conf

    looks = [_look(f) for f in wanted.machines or ((),)]
    source = looks[0].source if len(looks) == 1 else f"{len(looks)} snapshots"
    source += max(x.renamed for x in looks)
    try:
        found = [gres(x.node, x.topology) for x in looks]
    except ValueError as e:
        raise InputError(str(e)) from None
    if not any(g.lines for g in found):
        raise InputError("; ".join(["no GPU to write a line for", *dict.fromkeys(n for g in found for n in g.notes)]))
    return gres_conf(found, source)


def _places(wanted: Wanted) -> tuple[list[NodePlace], str]:
    from topocheck.cli.fleet_files import find_files, read_all
    from topocheck.model.names import is_slurm_node
    from topocheck.placement.blocks import NodePlace

    if not wanted.machines:
        raise InputError("a network topology needs reports or snapshots of all nodes: topocheck emit KIND FOLDER")
    collection, bad = read_all(find_files([f for files in wanted.machines for f in files]))
    if bad:
        # A node left out of topology.conf is a node that Slurm never gives to a job: better no file than that one.
        raise InputError(f"{bad[0].file}: {bad[0].reason}" + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""))
    if not collection.entries:
        raise InputError("no report or snapshot found there")
    for e in collection.entries:
        if e.renamed:
            raise InputError(
                f"{e.file}: names, addresses and identifiers were replaced when it was saved, so its "
                "network is not known; "
                "use snapshots made with: topocheck snapshot save --keep-identifiers"
            )
        if e.name == e.file:
            raise InputError(f"{e.file}: has no host name, and Slurm wants one for each node")
        if not is_slurm_node(e.name):
            raise InputError(f"{e.file}: {e.name!r:.80} is no host name that Slurm's files can hold")
    names = collection.names()
    twice = next((n for n in names if "(" in n), None)
    if twice is not None:
        raise InputError(f"two files are of a node called {twice.split(' (')[0]!r}: {twice}; node names must be unique")
    places = [
        NodePlace(name=n, domain=e.nvlink_domain, ipv4=next((p.ipv4 for p in e.rails if p.ipv4), 0))
        for n, e in zip(names, collection.entries, strict=True)
    ]
    return places, f"{len(places)} reports"


def _fabric_tree(wanted: Wanted) -> tuple[Tree, str]:
    """Return the tree in a dump of the fabric, whose adapters the recordings name where there are any."""
    from topocheck.cli.fabric import read_fabric
    from topocheck.cli.fabric_join import node_ports
    from topocheck.cli.fleet_files import find_files, read_all
    from topocheck.fabric.join import join
    from topocheck.fabric.tiers import tiers_of
    from topocheck.placement.fabric_tree import fabric_tree

    found = read_fabric(wanted.fabric)
    source = ", ".join(f.name for f in wanted.fabric)
    if wanted.machines:
        collection, bad = read_all(find_files([f for files in wanted.machines for f in files]))
        if bad:
            raise InputError(f"{bad[0].file}: {bad[0].reason}")
        named = zip(collection.names(), collection.entries, strict=True)
        found = join(found, (p for n, e in named for p in node_ports(n, e))).fabric
        source += f" and {len(collection.entries)} reports"
    return fabric_tree(tiers_of(found), _hosts(wanted.nodes) if wanted.nodes else ()), source


def _tree(wanted: Wanted) -> str:
    from topocheck.placement.blocks import tree
    from topocheck.render.emit import FABRIC_FACTS, topology_conf

    if wanted.fabric:
        made, source = _fabric_tree(wanted)
        return topology_conf(made, None, source, FABRIC_FACTS)
    places, source = _places(wanted)
    return topology_conf(tree(places), None, source)


def _block(wanted: Wanted) -> str:
    from topocheck.placement.blocks import blocks, tree
    from topocheck.render.emit import topology_conf

    places, source = _places(wanted)
    found = blocks(places)
    if not found.blocks:
        raise InputError("no node is in an NVLink domain beyond itself, so there is no block; use topology-conf")
    return topology_conf(tree(places), found, source)


def _yaml(wanted: Wanted) -> str:
    from topocheck.placement.blocks import Blocks, blocks, tree
    from topocheck.render.emit import FABRIC_FACTS, topology_yaml

    if wanted.fabric:
        made, source = _fabric_tree(wanted)
        return topology_yaml(made, Blocks(blocks=(), sizes=()), source, FABRIC_FACTS)
    places, source = _places(wanted)
    return topology_yaml(tree(places), blocks(places), source)


def _nccl_env(wanted: Wanted) -> str:
    from topocheck.placement.nccl_env import suggestions
    from topocheck.render.emit import nccl_env

    look = _one(wanted)
    return nccl_env(suggestions(look.node, look.topology), look.source)


def _rankfile(wanted: Wanted) -> str:
    from topocheck.placement.launch import rankfile_lines
    from topocheck.placement.plan import plan
    from topocheck.render.emit import rankfile

    look = _one(wanted)
    chosen = plan(look.node, look.topology, wanted.ranks_per_node)
    hosts = _hosts(wanted.nodes) if wanted.nodes else (chosen.hostname,)
    if not chosen.bindings:
        raise InputError(chosen.notes[0])
    source = look.source if wanted.nodes else look.source + look.renamed
    try:
        return rankfile(rankfile_lines(chosen, hosts), source)
    except ValueError as e:
        raise InputError(str(e)) from None


def _hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of --nodes.

    Raises:
        InputError: it is no list of host names.
    """
    from topocheck.model.hostlist import expand_hostlist
    from topocheck.model.names import is_host_name

    if re.search(r"[\[\]]", re.sub(r"\[[^\[\]]*\]", "", text)):
        raise InputError(f"--nodes {text!r}: a bracket has no partner; expected such as gpu[01-04] or gpu01,gpu02")
    hosts = tuple(expand_hostlist(text))
    bad = next((h for h in hosts if not is_host_name(h)), None)
    if not hosts or bad is not None or any(not w for w in text.split(",")):
        what = "an empty name" if bad is None else repr(bad)
        raise InputError(f"--nodes {text!r}: {what} is no host name; expected such as gpu[01-04] or gpu01,gpu02")
    times = Counter(hosts)
    twice = next((h for h in hosts if times[h] > 1), None)
    if twice is not None:
        raise InputError(f"--nodes {text!r}: {twice} comes twice")
    return hosts


def _numactl(wanted: Wanted) -> str:
    from topocheck.placement.plan import plan
    from topocheck.render.emit import numactl_script

    look = _one(wanted)
    chosen = plan(look.node, look.topology, wanted.ranks_per_node)
    if not chosen.bindings:
        raise InputError(chosen.notes[0])
    return numactl_script(chosen, look.source)


def _nccl_topo(wanted: Wanted) -> str:
    from topocheck.nccl.predict.report import settings_of, version_for
    from topocheck.nccl.topofile.write import write_topology
    from topocheck.nccl.topofile.xml import write
    from topocheck.render.emit import xml_comment

    look = _one(wanted)
    node, source = look.node, look.source
    version = version_for(node, None)
    facts = f"PCI tree, NVML, NUMA nodes, RDMA ports; read as NCCL {'.'.join(map(str, version))} reads them"
    text = write(write_topology(node, look.topology, version, settings_of(node)), plain=True)
    return xml_comment(text, facts, source)


def _hwloc_xml(wanted: Wanted) -> str:
    """Return what hwloc's own lstopo writes: no library is needed beyond the program, and nothing is imitated."""
    from topocheck.host.base import Host, HostError
    from topocheck.host.live.backend import LiveBackend
    from topocheck.render.emit import xml_comment

    if wanted.machines:
        raise InputError(
            "hwloc-xml is written by lstopo from the machine itself: a snapshot lacks the topology of each CPU"
        )
    host = Host(LiveBackend())
    for program in ("lstopo-no-graphics", "lstopo"):
        try:
            said = host.run([program, "--of", "xml", "-"], timeout_s=30)
        except HostError:
            continue
        if said.rc == 0:
            # At the end: hwloc's own small reader takes no comment before the topology.
            return xml_comment(said.stdout, f"the output of {program} --of xml", "this machine", at_end=True)
        raise InputError(f"{program} failed with {said.rc}: {said.stderr.strip()[:200]}")
    raise InputError("hwloc-xml needs lstopo: install the package hwloc (or hwloc-nox)")


_KINDS: dict[str, Callable[[Wanted], str]] = {
    "gres-conf": _gres,
    "topology-conf": _tree,
    "topology-block": _block,
    "topology-yaml": _yaml,
    "nccl-env": _nccl_env,
    "rankfile": _rankfile,
    "numactl": _numactl,
    "nccl-topo": _nccl_topo,
    "hwloc-xml": _hwloc_xml,
}
