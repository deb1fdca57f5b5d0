"""`topocheck placement`: who runs where, what is wrong in it, and how to bind instead."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.model.node import Node
    from topocheck.placement.ranks import RankPlace
    from topocheck.topology.types import Topology

FORMATS = ("text", "json")


def placement(
    from_: Annotated[
        Optional[list[Path]],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option("--from", metavar="FILE", help="Recording of one rank; may be repeated. This process otherwise."),
    ] = None,
    ranks_per_node: Annotated[int, typer.Option("--ranks-per-node", min=0, max=4096, help="0: one for each GPU.")] = 0,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes of the job, for the suggested commands.")] = 1,
    launcher: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--launcher", help="Only the options of srun, mpirun or torchrun."),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    output: common.Output = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Show where the ranks of a job run, what is wrong in it, and a better order and binding.

    Started by srun, mpirun or torchrun, each rank looks at itself and rank 0 prints the table of all; that needs
    torch on the nodes. Exits 1 where something is wrong.
    """
    from topocheck.placement import launch
    from topocheck.placement.plan import plan
    from topocheck.placement.ranks import problems
    from topocheck.render.placement import placement_json, placement_text

    common.choose(format_, FORMATS, "--format")
    if launcher is not None:
        common.choose(launcher, launch.LAUNCHERS, "--launcher")
    recordings: list[Path | None] = [*from_] if from_ else [None]
    looked = [_look(f) for f in recordings]
    ranks: list[RankPlace] | None = [_place(*x) for x in looked]
    if not from_:
        ranks = _gathered(ranks[0]) if ranks else None
        if ranks is None:
            return  # rank 0 prints
    assert ranks is not None
    ranks.sort(key=lambda r: (r.rank is None, r.rank or 0, r.node))
    if len(ranks) > 1 and (loose := [r.node or "?" for r in ranks if r.rank is None]):
        are = "is" if len(loose) == 1 else "are"
        raise InputError(
            f"{len(loose)} of the recordings (of {', '.join(loose[:4])}) {are} of no rank: record each rank from "
            "inside its job (srun topocheck snapshot save ...), or give one recording for the plan of its node"
        )
    numbers = Counter(r.rank for r in ranks if r.rank is not None)
    if from_ and (twice := [n for n, count in numbers.items() if count > 1]):
        raise InputError(f"two recordings or more are of rank {twice[0]}: expected one of each rank of one job")
    wanted = plan(*looked[0], ranks_per_node)
    found = problems(ranks, suggested=any(b.cpus for b in wanted.bindings))
    lines = {x: list(launch.options(wanted, x, nodes)) for x in launch.LAUNCHERS if launcher in (None, x)}
    if format_ == "json":
        common.emit(placement_json(ranks, found, wanted, lines), output)
    else:
        common.emit(placement_text(ranks, found, wanted, lines, common.style(output, no_color, width)), output)
    if any(p.state == "warn" for p in found):
        raise typer.Exit(common.EXIT_FAILED)


def _look(recording: Path | None) -> tuple[Node, Topology]:
    from topocheck.pipeline import read_node
    from topocheck.topology.build import build

    node = read_node(common.open_host(recording))
    return node, build(node)


def _place(node: Node, topology: Topology) -> RankPlace:
    from topocheck.placement.ranks import rank_place

    return rank_place(node, topology)


def _gathered(mine: RankPlace) -> list[RankPlace] | None:
    """Return the places of all ranks on rank 0, None on the others; this process's alone where it is no rank."""
    import sys

    import msgspec

    from topocheck.placement.ranks import RankPlace
    from topocheck.tests_live.ranks import LaunchError, detect_here, gather

    try:
        world = detect_here()
        if world is None:
            return [mine]
        found = gather(msgspec.json.encode(mine), world)
    except LaunchError as e:
        print(f"topocheck: only this rank is shown: {e}", file=sys.stderr)
        return [mine]
    if found is None:
        return None
    for why in found.missing.values():
        print(f"topocheck: {why}", file=sys.stderr)
    return [msgspec.json.decode(p, type=RankPlace) for p in found.payloads.values()]
