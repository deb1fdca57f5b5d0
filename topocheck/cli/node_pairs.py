"""`topocheck bw --pairs nodes`: the network between the nodes of a job, pair by pair."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from topocheck.cli import common
from topocheck.model.base import InputError, State

if TYPE_CHECKING:
    from topocheck.tests_live.node_pairs import PairsOptions
    from topocheck.tests_live.node_pairs_types import NodePairsReport
    from topocheck.tests_live.ranks import World

FORMATS = ("text", "json", "csv", "markdown")
HOW = (
    "bw --pairs nodes runs as one of several ranks: start it with srun (srun -N 4 --ntasks-per-node 1 topocheck bw "
    "--pairs nodes), mpirun or torchrun --no-python"
)


def node_pairs(
    *,
    ways: tuple[str, ...] = (),
    rails: bool = False,
    seconds: float = 1.0,
    join_s: float = 60.0,
    format_: str = "text",
    output: Path | None = None,
    strict: bool = False,
    no_color: bool = False,
    width: int = 0,
) -> int:
    """Take part as the rank that the environment names; rank 0 prints. Returns the exit code.

    Args:
        ways: of tcp, gloo, nccl_tcp, nccl_rdma, nccl_gdr; empty for TCP and, with GPUs everywhere, NCCL's ways.
        rails: also each NIC by itself.
        seconds: of each direction of each pair.
        join_s: how long to wait for the other nodes.
        format_: text, json, csv or markdown.
        output: file to write; standard output where None.
        strict: warnings and unknowns count as failures.
        no_color: no colour whatever the terminal.
        width: columns of the text; 0 takes the terminal's.

    Raises:
        InputError: no launcher, an unknown way, or ranks that cannot meet.
    """
    from topocheck.tests_live import ranks
    from topocheck.tests_live.node_agent import WAYS
    from topocheck.tests_live.node_pairs import PairsOptions

    common.choose(format_, FORMATS, "--format")
    for w in ways:
        common.choose(w, ("tcp", *WAYS), "--way")
    if not 0.1 <= seconds <= 60:
        raise InputError(f"--seconds {seconds:g}: expected between 0.1 and 60")
    try:
        world = ranks.detect_here()
        if world is None:
            raise InputError(HOW)
        report = _take_part(world, PairsOptions(ways=ways, rails=rails, seconds=seconds, join_s=join_s))
    except ranks.LaunchError as e:
        raise InputError(str(e)) from None
    if report is None:
        return common.EXIT_OK
    common.emit(_page(report, format_, output, no_color=no_color, width=width), output)
    states = {f.state for f in report.findings}
    failed = State.FAIL in states or (strict and states & {State.WARN, State.UNKNOWN})
    code = common.EXIT_FAILED if failed else common.EXIT_OK
    if (State.UNKNOWN in states or not report.pairs) and not failed:
        code = common.EXIT_UNKNOWN
    if report.silent:
        # A rank that is gone would be waited for at the end of MPI or of the store.
        sys.stdout.flush()
        os._exit(code)
    return code


def _take_part(world: World, options: PairsOptions) -> NodePairsReport | None:
    from topocheck.checks.bandwidth_nodes import judge_pairs
    from topocheck.tests_live.node_pairs import run
    from topocheck.tests_live.node_pairs_summary import summarize

    def tell(words: str) -> None:
        print(f"  {words}", file=sys.stderr, flush=True)

    raw = run(world, options, active_nics(), tell)
    return None if raw is None else judge_pairs(summarize(raw))


def active_nics() -> tuple[str, ...]:
    """Return the labels of this node's RDMA devices with an active port."""
    from topocheck.host.base import Host, RecordedBackend
    from topocheck.host.gather import gather
    from topocheck.pipeline import read_node
    from topocheck.probes.registry import PROBES

    probes = [p for p in PROBES if p.name == "net"]
    node = read_node(Host(RecordedBackend(gather(probes, budget_s=10.0)), "live"), probes)
    devices = node.net.rdma if isinstance(node.net.rdma, tuple) else ()
    return tuple(d.name for d in devices if any(p.state == "ACTIVE" for p in d.ports))


def _page(report: NodePairsReport, format_: str, output: Path | None, *, no_color: bool, width: int) -> str:
    from topocheck.render import node_pairs as render

    if format_ == "text":
        return render.pairs_text(report, common.style(output, no_color, width))
    return {"json": render.pairs_json, "csv": render.pairs_csv, "markdown": render.pairs_markdown}[format_](report)
