"""What `topocheck bw` does with its options: look at the machine, plan, measure, print."""

from __future__ import annotations

import sys
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

import msgspec

from topocheck.cli import common
from topocheck.cli.bw_options import Judge
from topocheck.cli.signals import stop_cleanly
from topocheck.model.base import InputError, State

if TYPE_CHECKING:
    from topocheck.model.measurement import BandwidthReport
    from topocheck.model.node import Node
    from topocheck.tests_live.plan import Options
    from topocheck.tests_live.ranks import World
    from topocheck.tests_live.roads import Roads
    from topocheck.tests_live.rows import Plan

NEEDED_PROBES = ("pci", "numa", "system", "settings", "nvml")
EXIT_INTERRUPTED = 130
SETTLES_S = 1.2
"""NVML's utilisation is of the last second at most (nvml.h, nvmlUtilization_t)."""


class Show(msgspec.Struct, frozen=True, kw_only=True):
    """How and where a report goes, and what counts as a failure."""

    format_: str
    output: Path | None
    save: Path | None
    verbose: bool
    strict: bool
    no_color: bool
    width: int


def plan(options: Options, world: World | None, show: Show) -> int:
    """Print what would be measured and how long it takes.

    Returns:
        The exit code: 3 where something asked for cannot be measured, as the run itself would say.

    Raises:
        InputError: an option that fits nothing on this machine.
    """
    from topocheck.render.bw_data import plan_json, plan_text

    made = _plan(*_look(), options, world)
    if world is None or world.rank == 0:
        common.emit(plan_json(made) if show.format_ == "json" else plan_text(made), show.output)
    possible = (made.copies or made.collectives) and not any(n.required for n in made.left_out)
    return common.EXIT_OK if possible else common.EXIT_UNKNOWN


def measure(options: Options, world: World | None, judge: Judge, show: Show, *, allow_busy: bool) -> int:
    """Measure, judge and print; a launcher's ranks other than 0 only take part. Returns the exit code.

    Raises:
        InputError: an option that fits nothing on this machine, or ranks that cannot meet.
    """
    from topocheck.checks.bandwidth_run import make_report
    from topocheck.render.progress import Progress
    from topocheck.tests_live import ranks
    from topocheck.tests_live import run as live

    stop_cleanly(launched=world is not None)
    child = None if world is not None or not options.copies else live.warm_child(options.engine)
    try:
        node, roads = _look()
        planned = _plan(node, roads, options, world)
        first = world is None or world.rank == 0
        if first:
            _announce(planned)
        if not planned.copies and not planned.collectives:
            why = "" if planned.left_out else ": neither copies nor a collective were asked for"
            print(f"topocheck: nothing to measure{why}", file=sys.stderr)
            return common.EXIT_UNKNOWN
        problem = _refusal(planned, roads, allow_busy=allow_busy)
        if problem:
            # What NVML calls busy may be the end of the run before this one: look again once it has settled.
            sleep(SETTLES_S)
            node, roads = _look()
            problem = _refusal(planned, roads, allow_busy=allow_busy)
        if problem:
            print(f"topocheck: {problem}", file=sys.stderr)
            return common.EXIT_UNKNOWN
        if world is not None and any(c.backend != "mpi" for c in planned.collectives):
            try:
                world = ranks.ready(world)
            except ranks.LaunchError as e:
                raise InputError(str(e)) from None
        progress = Progress(enabled=first)
        runner = live.Runner(planned, roads, node, world=world, tell=progress.tell, child=child)
        child = None
        try:
            run = runner.execute()
        finally:
            progress.close()
    finally:
        if child is not None:
            child.end()
    report = make_report(
        run,
        roads,
        node,
        policy=judge.policy,
        baseline=judge.baseline,
        tolerance=judge.tolerance,
        training=judge.training,
    )
    if not first:
        for why in dict.fromkeys(n.reason for n in run.not_measured if n.required):
            print(f"topocheck: {why}", file=sys.stderr)
        return _code(report, strict=False)
    _print(report, show)
    return _code(report, strict=show.strict)


def _look() -> tuple[Node, Roads]:
    """Ask the machine what the plan needs, and nothing else."""
    from topocheck.host.base import Host, RecordedBackend
    from topocheck.host.gather import gather
    from topocheck.pipeline import read_node
    from topocheck.probes.registry import PROBES
    from topocheck.tests_live.roads import Roads
    from topocheck.topology.build import build

    probes = [p for p in PROBES if p.name in NEEDED_PROBES]
    node = read_node(Host(RecordedBackend(gather(probes, budget_s=10.0)), "live"), probes)
    devices = node.pci.devices
    return node, Roads(build(node), devices if isinstance(devices, tuple) else ())


def _plan(node: Node, roads: Roads, options: Options, world: World | None) -> Plan:
    from topocheck.tests_live.plan import make_plan
    from topocheck.tests_live.run import cpus_here, driver_installed, torch_installed

    available = node.system.memory_available_bytes
    options = msgspec.structs.replace(
        options,
        torch_available=torch_installed(),
        driver_available=driver_installed() or options.engine == "torch",
        host_available_bytes=available if isinstance(available, int) else None,
        cpus=cpus_here(),
    )
    if world is not None:
        options = msgspec.structs.replace(options, ranks=world.size, copies=False, joined=True)
    try:
        return make_plan(roads.topology, options)
    except ValueError as e:
        raise InputError(str(e)) from None


def _announce(planned: Plan) -> None:
    """Say on standard error what will be done and how long it takes."""
    from topocheck.render.bw_data import plan_text

    print(plan_text(planned), end="", file=sys.stderr)


def _refusal(planned: Plan, roads: Roads, *, allow_busy: bool) -> str:
    from topocheck.tests_live.run import busy, forbidden

    used = {e for r in planned.copies for t in r.transfers for e in (t.source, t.destination)}
    used |= {a for c in planned.collectives for a in c.members}
    closed = forbidden(roads, used)
    if closed:
        return "; ".join(closed)
    found = busy(roads, used)
    if found and not allow_busy:
        return (
            f"{'; '.join(found)}: a measurement now would disturb it and be disturbed. Wait until it is idle, name "
            "other GPUs with --gpus, or measure all the same with --allow-busy"
        )
    return ""


def _print(report: BandwidthReport, show: Show) -> None:
    """Write the report and the baseline; where a file fails, what was measured goes to standard output all the same.

    Raises:
        InputError: a file could not be written.
    """
    from topocheck.render import bw_data
    from topocheck.tests_live import baseline as kept

    if show.format_ == "text":
        from topocheck.render.bw import bw_text

        text = bw_text(report, common.style(show.output, show.no_color, show.width), verbose=show.verbose)
    else:
        make = {"json": bw_data.bw_json, "csv": bw_data.bw_csv, "markdown": bw_data.bw_markdown}[show.format_]
        text = make(report)
    failed: list[InputError] = []
    try:
        common.emit(text, show.output)
    except common.OutputError as e:
        if show.output is None:
            raise
        failed.append(e)
        common.emit(text)
    if show.save is not None:
        try:
            kept.save(report.run, show.save)
        except InputError as e:
            failed.append(e)
    if failed:
        raise InputError("; ".join(map(str, failed)) + "; what was measured is on standard output")


def _code(report: BandwidthReport, *, strict: bool) -> int:
    """Return the exit code: failure beats interrupted, which beats could-not-tell."""
    states = {f.state for f in report.findings}
    if State.FAIL in states or (strict and states & {State.WARN, State.UNKNOWN}):
        return common.EXIT_FAILED
    if report.run.interrupted:
        return EXIT_INTERRUPTED
    return common.EXIT_UNKNOWN if State.UNKNOWN in states else common.EXIT_OK
