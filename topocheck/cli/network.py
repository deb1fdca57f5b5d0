"""`topocheck network`: bandwidth between the nodes of a job, pair by pair; the cabling, by a dump of the fabric."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.cli.fabric import fabric as fabric_command
from topocheck.cli.fabric import read_fabric
from topocheck.cli.fabric_join import FabricFiles
from topocheck.cli.signals import stop_cleanly
from topocheck.model.base import InputError, State
from topocheck.model.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_UNKNOWN

if TYPE_CHECKING:
    from topocheck.bandwidth.node_pairs import LeafNodes, NodePairsReport
    from topocheck.tests_live.launch.rendezvous import Rendezvous
    from topocheck.tests_live.nodes.coordinator import PairsOptions

AGREE_S = 3600.0
"""Seconds that ranks without a part of their own wait for rank 0's exit code; where it is gone they know at once."""
FORMATS = ("text", "json", "csv", "markdown")
HOW = (
    "network bw runs as one of several ranks: start it with srun (srun -N 4 --ntasks-per-node 1 topocheck network bw), "
    "mpirun or torchrun --no-python"
)
OptionalList = Optional[list[str]]  # noqa: UP045 - typer reads it at run time

app = typer.Typer(
    help="The network between nodes: measure it, check its cabling.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def network() -> None:
    """The network between nodes: measure it, check its cabling."""


@app.command("bw")
def bw(
    transport: Annotated[
        OptionalList,
        typer.Option("--transport", help="tcp, gloo, nccl_tcp, nccl_rdma or nccl_gdr; may be repeated."),
    ] = None,
    rails: Annotated[bool, typer.Option("--rails", help="Also each NIC by itself.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", help="Of each direction of each pair.")] = 1.0,
    deadline: Annotated[float, typer.Option("--deadline", help="Seconds to wait for the other ranks.")] = 60.0,
    fabric: FabricFiles = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings and unknowns count as failures.")] = False,
    format_: Annotated[str, typer.Option("--format", help="text, json (--json), csv or markdown.")] = "text",
    output: common.Output = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Measure the bandwidth between every pair of nodes of a job, under srun, torchrun or mpirun.

    Without --transport: TCP and, where all nodes have GPUs, NCCL. Rank 0 prints. Exit code 0 fine, 1 a node or link is
    slow or a node did not answer, 2 wrong usage, 3 rates scatter too far or nothing could be measured.
    """
    stop_cleanly(launched=True)
    raise typer.Exit(
        node_pairs(
            transports=tuple(transport or ()),
            rails=rails,
            seconds=seconds,
            join_s=common.deadline(deadline),
            fabric=tuple(fabric or ()),
            format_=format_,
            output=output,
            strict=strict,
            no_color=no_color,
            width=width,
        )
    )


def node_pairs(
    *,
    transports: tuple[str, ...] = (),
    rails: bool = False,
    seconds: float = 1.0,
    join_s: float = 60.0,
    fabric: Sequence[Path] = (),
    format_: str = "text",
    output: Path | None = None,
    strict: bool = False,
    no_color: bool = False,
    width: int = 0,
) -> int:
    """Take part as the rank that the environment names; rank 0 prints. Returns the exit code.

    Args:
        transports: of tcp, gloo, nccl_tcp, nccl_rdma, nccl_gdr; empty for TCP and, with GPUs everywhere, NCCL.
        rails: also each NIC by itself.
        seconds: of each direction of each pair.
        join_s: how long to wait for the other nodes.
        fabric: dumps of the fabric: pairs are planned and judged by the leaves of their nodes.
        format_: text, json, csv or markdown.
        output: file to write; standard output where None.
        strict: warnings and unknowns count as failures.
        no_color: no colour whatever the terminal.
        width: columns of the text; 0 takes the terminal's.

    Raises:
        InputError: no launcher, an unknown transport, or ranks that cannot meet.
    """
    import msgspec

    from topocheck.tests_live.launch import alive, rendezvous
    from topocheck.tests_live.launch import world as launchers
    from topocheck.tests_live.nodes.agent import TRANSPORTS
    from topocheck.tests_live.nodes.coordinator import PairsOptions

    common.choose(format_, FORMATS, "--format")
    for t in transports:
        common.choose(t, ("tcp", *TRANSPORTS), "--transport")
    if not 0.1 <= seconds <= 60:
        raise InputError(f"--seconds {seconds:g}: expected between 0.1 and 60")
    options = PairsOptions(transports=transports, rails=rails, seconds=seconds, join_s=join_s)
    try:
        world = launchers.detect_here()
        if world is None:
            raise InputError(HOW)
        if fabric and not world.rank:
            options = msgspec.structs.replace(options, leaves=leaves(fabric, rails=rails))
        with rendezvous.join(world, "network bw", join_s) as meeting:
            rendezvous.warn(meeting)
            alive.watch(meeting, join_s)
            report = _take_part(meeting, options)
            if report is None:
                return meeting.exit_code(AGREE_S)
            common.emit(_page(report, format_, output, no_color=no_color, width=width), output)
            code = _code(report, strict=strict)
            meeting.agree(code, AGREE_S)
    except launchers.LaunchError as e:
        raise launchers.input_error(e) from None
    if report.unresponsive:
        # A rank that is gone would be waited for at the end of MPI.
        sys.stdout.flush()
        os._exit(code)
    return code


def _code(report: NodePairsReport, *, strict: bool) -> int:
    states = {f.state for f in report.findings}
    if State.FAIL in states or (strict and states & {State.WARN, State.UNKNOWN}):
        return EXIT_FAILED
    return EXIT_UNKNOWN if State.UNKNOWN in states or not report.pairs else EXIT_OK


def _take_part(meeting: Rendezvous, options: PairsOptions) -> NodePairsReport | None:
    """Return what rank 0 makes of all pairs, and None on the other ranks."""
    from topocheck.bandwidth.node_pairs_summary import summarize
    from topocheck.checks.network.pairs import judge_pairs
    from topocheck.tests_live.nodes.coordinator import run

    def tell(words: str) -> None:
        common.warn(words, prefix="  ")

    raw = run(meeting, options, active_nics(), tell)
    return None if raw is None else judge_pairs(summarize(raw))


def leaves(files: Sequence[Path], *, rails: bool) -> tuple[LeafNodes, ...]:
    """Return which nodes are below which leaf, for all NICs together and, with `rails`, for each.

    Raises:
        InputError: a dump cannot be read, or names no node.
    """
    from topocheck.bandwidth.node_pairs import LeafNodes
    from topocheck.fabric.places import places
    from topocheck.fabric.tiers import tiers_of

    tiers = tiers_of(read_fabric(files))
    if not tiers.nodes:
        raise InputError(f"{files[0]}: no adapter in it has a host name, so it shows no node's leaf")
    names = sorted({rail for own in tiers.nodes.values() for rail in own}) if rails else []
    return tuple(
        LeafNodes(rail=rail, leaf=p.leaf, nodes=p.nodes, uplinks=p.uplinks)
        for rail in ("", *names)
        for p in places(tiers, rail)
    )


def active_nics() -> tuple[str, ...]:
    """Return the labels of this node's RDMA devices with an active port."""
    from topocheck.collect import read_live

    node = read_live(("net",))
    devices = node.net.rdma if isinstance(node.net.rdma, tuple) else ()
    return tuple(d.name for d in devices if any(p.state == "ACTIVE" for p in d.ports))


def _page(report: NodePairsReport, format_: str, output: Path | None, *, no_color: bool, width: int) -> str:
    from topocheck.render import node_pairs as render

    if format_ == "text":
        return render.pairs_text(report, common.style(output, no_color, width))
    return {"json": render.pairs_json, "csv": render.pairs_csv, "markdown": render.pairs_markdown}[format_](report)


app.command("fabric")(fabric_command)
