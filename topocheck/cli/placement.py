"""`topocheck placement`: who runs where, what is wrong in it, and how to bind instead."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.cli.fabric_join import FabricFiles
from topocheck.model.base import InputError
from topocheck.model.exit_codes import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from topocheck.fabric.tiers import Tiers
    from topocheck.model.node import Node
    from topocheck.placement.order import LeafRates
    from topocheck.placement.ranks import Problem, RankPlace
    from topocheck.tests_live.launch.rendezvous import Rendezvous
    from topocheck.topology.types import Topology

FORMATS = ("text", "json")
AGREE_S = 30.0
"""Seconds beyond the deadline that the other ranks wait for rank 0's exit code."""


def placement(
    from_: Annotated[
        Optional[list[Path]],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option(
            "--from",
            metavar="FILE",
            help="Snapshot of one rank; may be repeated. Texts of lspci, nvidia-smi and others, which together are of "
            "one machine. This process otherwise.",
        ),
    ] = None,
    ranks_per_node: Annotated[int, typer.Option("--ranks-per-node", min=0, max=4096, help="0: one for each GPU.")] = 0,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes of the job, for the suggested commands.")] = 1,
    launcher: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--launcher", help="Only the options of srun, mpirun or torchrun."),
    ] = None,
    fabric: FabricFiles = None,
    deadline: common.Deadline = 60.0,
    format_: Annotated[str, typer.Option("--format", help="text or json (--json).")] = "text",
    output: common.Output = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Show where the ranks of a job run, what is wrong in it, and a better order and binding.

    Started by srun, mpirun or torchrun, each rank reads its own placement and rank 0 prints the table of all. Exits 1
    where something is wrong.
    """
    from topocheck.placement import launch
    from topocheck.placement.plan import plan
    from topocheck.placement.ranks import problems
    from topocheck.render.placement import placement_json, placement_text

    common.choose(format_, FORMATS, "--format")
    common.deadline(deadline)
    if launcher is not None:
        common.choose(launcher, launch.LAUNCHERS, "--launcher")
    tiers = _tiers(fabric)  # before anybody waits for anything
    looked = [_look(files) for files in (_machines(from_) if from_ else [()])]
    with contextlib.ExitStack() as end:
        meeting, ranks = None, [_place(*x) for x in looked]
        lost: list[Problem] = []
        if not from_:
            meeting = _join(end, lost, deadline)
            if meeting is not None:
                ranks = _gathered(meeting, _named(ranks[0], meeting), lost, deadline)
                if meeting.world.rank:  # rank 0 prints
                    raise typer.Exit(meeting.exit_code(deadline + AGREE_S))
        _check(ranks, recorded=bool(from_))
        wanted = plan(*looked[0], ranks_per_node)
        placed = problems(ranks, suggested=any(b.cpus for b in wanted.bindings))
        placed += _order(ranks, tiers)
        named = {n for p in lost for n in p.ranks}
        # A rank that did not come is named with the reason, and not once more as missing.
        found = (*lost, *(p for p in placed if not p.ranks or not set(p.ranks) <= named))
        lines = {x: list(launch.options(wanted, x, nodes)) for x in launch.LAUNCHERS if launcher in (None, x)}
        if format_ == "json":
            common.emit(placement_json(ranks, found, wanted, lines), output)
        else:
            common.emit(placement_text(ranks, found, wanted, lines, common.style(output, no_color, width)), output)
        code = EXIT_FAILED if any(p.state == "warn" for p in found) else EXIT_OK
        if meeting is not None:
            meeting.agree(code, AGREE_S)
    raise typer.Exit(code)


def _tiers(files: list[Path] | None) -> Tiers | None:
    """Return the fabric in dumps; None without one.

    Raises:
        InputError: a dump cannot be read.
    """
    if not files:
        return None
    from topocheck.cli.fabric import read_fabric
    from topocheck.fabric.tiers import tiers_of

    return tiers_of(read_fabric(files))


def _order(ranks: list[RankPlace], tiers: Tiers | None) -> tuple[Problem, ...]:
    """Return what the order of the nodes costs on a fabric."""
    from topocheck.placement.order import node_order, order_problems

    order = None if tiers is None else node_order(ranks, leaf_rates(tiers))
    return () if order is None else order_problems(order)


def leaf_rates(tiers: Tiers) -> tuple[LeafRates, ...]:
    """Return the places of a fabric's nodes, and what their nodes and uplinks carry."""
    from topocheck.fabric.places import place_rates, places
    from topocheck.placement.order import LeafRates

    out = []
    for p in places(tiers):
        node, up = place_rates(tiers, p)
        out.append(LeafRates(leaf=p.leaf, nodes=p.nodes, node_gbit_s=node, up_gbit_s=up))
    return tuple(out)


def _check(ranks: list[RankPlace], *, recorded: bool) -> None:
    """Put the ranks in order.

    Raises:
        InputError: these are not the ranks of one job.
    """
    ranks.sort(key=lambda r: (r.rank is None, r.rank or 0, r.node))
    if len(ranks) > 1 and (loose := [r.node or "?" for r in ranks if r.rank is None]):
        are = "is" if len(loose) == 1 else "are"
        raise InputError(
            f"{len(loose)} of the recordings (of {', '.join(loose[:4])}) {are} of no rank: record each rank from "
            "inside its job (srun topocheck snapshot save ...), or give one recording for the plan of its node"
        )
    numbers = Counter(r.rank for r in ranks if r.rank is not None)
    if recorded and (twice := [n for n, count in numbers.items() if count > 1]):
        raise InputError(f"two recordings or more are of rank {twice[0]}: expected one of each rank of one job")


def _machines(files: list[Path]) -> list[tuple[Path, ...]]:
    """Return the files of each rank or machine: a snapshot is one rank's, all texts together are of one machine."""
    from topocheck.readers.files import is_snapshot_file

    texts = tuple(f for f in files if not is_snapshot_file(f))
    ranks: list[tuple[Path, ...]] = [(f,) for f in files if f not in texts]
    return [*ranks, texts] if texts else ranks


def _look(files: tuple[Path, ...]) -> tuple[Node, Topology]:
    from topocheck.pipeline import read_node
    from topocheck.topology.build import build

    node = read_node(common.open_host(files or None))
    return node, build(node)


def _place(node: Node, topology: Topology) -> RankPlace:
    from topocheck.placement.ranks import rank_place

    return rank_place(node, topology)


def _join(end: contextlib.ExitStack, lost: list[Problem], deadline_s: float) -> Rendezvous | None:
    """Join the ranks of a launcher; None where this process is none of them, or they cannot meet: then `lost` says so.

    Where rank 0 is gone, each of the others shows itself.
    """
    from topocheck.tests_live.launch import rendezvous
    from topocheck.tests_live.launch.world import LaunchError, detect_here, input_error

    try:
        world = detect_here()
    except LaunchError as e:  # variables that cannot be a rank's
        raise input_error(e) from None
    if world is None:
        return None
    try:
        meeting = end.enter_context(rendezvous.join(world, "placement", deadline_s))
    except LaunchError as e:
        lost.append(_problem((), f"only this rank is shown: {e}"))
        return None
    rendezvous.warn(meeting)
    return meeting


def _named(mine: RankPlace, meeting: Rendezvous) -> RankPlace:
    """Return this rank's place with the node's key, where that tells nodes apart that share a host name."""
    import os
    import socket

    import msgspec

    told = "TOPOCHECK_NODE" in os.environ or meeting.node != socket.gethostname()
    return msgspec.structs.replace(mine, node=meeting.node) if told else mine


def _problem(ranks: tuple[int, ...], text: str) -> Problem:
    from topocheck.placement.ranks import Problem

    return Problem(state="warn", ranks=ranks, text=text)


def _gathered(meeting: Rendezvous, mine: RankPlace, lost: list[Problem], deadline_s: float) -> list[RankPlace]:
    """Return the places of all ranks on rank 0, only this rank's on the others; `lost` gets who did not come."""
    import msgspec

    from topocheck.placement.ranks import RankPlace
    from topocheck.tests_live.launch.exchange import gather
    from topocheck.tests_live.launch.words import InvalidWordError, read
    from topocheck.tests_live.launch.world import LaunchError

    try:
        found = gather(meeting, msgspec.msgpack.encode(mine), deadline_s)
    except LaunchError as e:
        lost.append(_problem((), f"only this rank is shown: {e}"))
        return [mine]
    if found is None:
        return [mine]
    places = []
    for why, ranks in _by_reason(found.missing, found.late, deadline_s, meeting).items():
        lost.append(_problem(ranks, why))
    for rank, text in found.payloads.items():
        try:
            place = read(text, RankPlace, meeting.name(rank))
            if place.rank in (None, rank):
                places.append(place)
            else:
                lost.append(_problem((rank,), f"{meeting.name(rank)} says that it is rank {place.rank}"))
        except InvalidWordError as e:
            lost.append(_problem((rank,), str(e)))
    return places


def _by_reason(
    missing: dict[int, str], late: list[int], deadline_s: float, meeting: Rendezvous
) -> dict[str, tuple[int, ...]]:
    """Return reason -> ranks: those that did not come at all are one line."""
    out: dict[str, tuple[int, ...]] = {why: (rank,) for rank, why in missing.items() if rank not in late}
    for node in dict.fromkeys(meeting.node_of(r) for r in late):
        ranks = tuple(r for r in late if meeting.node_of(r) == node)
        did = f"came from node {node} and then sent nothing" if node else f"{meeting.names(ranks)} did not come"
        out[f"{did} within {deadline_s:.0f} s"] = ranks
    return out
