"""What `topocheck bw` does with its options: look at the machine, plan, measure, print."""

from __future__ import annotations

import contextlib
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

import msgspec

from topocheck.cli import common
from topocheck.cli.bw_options import Judge
from topocheck.cli.signals import exit_code, stop_cleanly
from topocheck.host.output import write_file
from topocheck.model.base import InputError, OutputError, State
from topocheck.model.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_UNKNOWN

if TYPE_CHECKING:
    from topocheck.bandwidth.cases import Plan
    from topocheck.bandwidth.options import Options
    from topocheck.model.measurement import BandwidthReport
    from topocheck.model.node import Node
    from topocheck.tests_live.launch.rendezvous import Rendezvous
    from topocheck.tests_live.launch.world import World
    from topocheck.topology.types import Topology

NEEDED_PROBES = ("pci", "numa", "system", "settings", "nvml", "cuda")
AGREE_S = 60.0
"""Seconds that the other ranks wait for rank 0's exit code once they have done their part."""
SETTLES_S = 1.2
"""NVML's utilisation is of the last second at most (nvml.h, nvmlUtilization_t)."""


class Show(msgspec.Struct, frozen=True, kw_only=True):
    """How and where a report goes, and what counts as a failure."""

    format_: str
    output: Path | None
    save: Path | None
    verbose: bool
    advice: bool
    strict: bool
    no_color: bool
    width: int


def plan(options: Options, world: World | None, show: Show, snapshot: common.Given = None) -> int:
    """Print what would be measured, how long it takes, and what the machine should reach.

    Args:
        options: what to plan.
        world: the ranks of a launcher; None without one.
        show: how and where.
        snapshot: files of another machine to plan for; this machine where there are none.

    Returns:
        The exit code: 3 where something asked for cannot be measured, as the run itself would say.

    Raises:
        InputError: an option that fits nothing on this machine, or a file that cannot be read.
    """
    from topocheck.bandwidth.reach import gpus_of, reaches
    from topocheck.checks.bw.nccl_bound import nccl_bounds
    from topocheck.render.bw_plan import plan_json, plan_page
    from topocheck.tests_live.run import machine_facts

    node, topology = _look(snapshot)
    made = _plan(node, topology, options, world, live=not snapshot)
    if world is None or world.rank == 0:
        expected = reaches(made, topology)
        used = gpus_of(made)
        members = tuple(g.address for g in topology.gpus if g.address in used)
        bounds = nccl_bounds(node, topology, members, None) if len(members) > 1 else {}
        if show.format_ == "json":
            text = plan_json(made, expected, bounds, machine_facts(node))
        else:
            text = plan_page(made, expected, bounds, common.style(show.output, show.no_color, show.width))
        common.emit(text, show.output)
    possible = (made.copies or made.collectives) and not any(n.required for n in made.left_out)
    return EXIT_OK if possible else EXIT_UNKNOWN


def show_again(path: Path, judge: Judge, show: Show) -> int:
    """Print a run from a file, compared with a baseline where one is given. Returns the exit code.

    Raises:
        InputError: the file is no run.
    """
    from topocheck.checks.bw.run import replay

    report = replay(common.load_run(path), baseline=judge.baseline, tolerance=judge.tolerance, training=judge.training)
    _print(report, show)
    return _code(report, strict=show.strict)


def measure(
    options: Options, world: World | None, judge: Judge, show: Show, *, allow_busy: bool, deadline_s: float = 60.0
) -> int:
    """Measure, judge and print; a launcher's ranks other than 0 only take part. Returns the exit code.

    Raises:
        InputError: an option that fits nothing on this machine, or ranks that cannot meet.
    """
    with contextlib.ExitStack() as end:
        return _measure(options, world, judge, show, end, allow_busy=allow_busy, deadline_s=deadline_s)


def _measure(
    options: Options,
    world: World | None,
    judge: Judge,
    show: Show,
    end: contextlib.ExitStack,
    *,
    allow_busy: bool,
    deadline_s: float,
) -> int:
    from topocheck.tests_live.copies.supervisor import warm_child

    stop_cleanly(launched=world is not None)
    # Before all that this process loads for itself: what the child loads takes longer.
    child = None if world is not None or not options.copies else warm_child(options.engine)
    meeting: Rendezvous | None = None
    try:
        from topocheck.checks.bw.run import make_report
        from topocheck.render.progress import Progress
        from topocheck.tests_live import run as live
        from topocheck.tests_live.launch import alive, rendezvous
        from topocheck.tests_live.launch import world as launchers
        from topocheck.tests_live.launch.rank_status import RollCall

        node, topology = _look()
        planned = _plan(node, topology, options, world)
        first = world is None or world.rank == 0
        if first:
            _announce(planned)
        if not planned.copies and not planned.collectives:
            why = "" if planned.left_out else ": neither copies nor a collective were asked for"
            common.warn(f"nothing to measure{why}")
            return EXIT_UNKNOWN
        problem = _refusal(planned, topology, allow_busy=allow_busy)
        if problem:
            # What NVML calls busy may be the end of the run before this one: look again once it has settled.
            sleep(SETTLES_S)
            node, topology = _look()
            problem = _refusal(planned, topology, allow_busy=allow_busy)
        if problem:
            common.warn(problem)
            return EXIT_UNKNOWN
        if world is not None:
            try:
                meeting = end.enter_context(rendezvous.join(world, "bw", deadline_s))
                RollCall(meeting.scoped("start")).wait_for_all(deadline_s)
                alive.watch(meeting, deadline_s)
            except launchers.LaunchError as e:
                raise launchers.input_error(e) from None
            rendezvous.warn(meeting)
        progress = Progress(enabled=first)
        runner = live.Runner(
            planned, topology, node, world=world, meeting=meeting, tell=progress.tell, child=child, end=end
        )
        child = None
        with contextlib.closing(progress):
            run = runner.execute()
        report = make_report(
            run,
            topology,
            node,
            policy=judge.policy,
            baseline=judge.baseline,
            tolerance=judge.tolerance,
            training=judge.training,
        )
        if not first:
            for why in dict.fromkeys(n.reason for n in run.not_measured if n.required):
                common.warn(why)
            told = None if meeting is None else meeting.agree(None, AGREE_S)
            return _code(report, strict=show.strict) if told is None else told
        _print(report, show)
        code = _code(report, strict=show.strict)
        if meeting is not None:
            meeting.agree(code, AGREE_S)
        return code
    finally:
        if child is not None:
            child.end()


def _look(snapshot: common.Given = None) -> tuple[Node, Topology]:
    """Ask the machine what the plan needs, and nothing else; or read the files of another one."""
    from topocheck.collect import read_live
    from topocheck.pipeline import read_node
    from topocheck.topology.build import build

    node = read_node(common.open_host(snapshot)) if snapshot else read_live(NEEDED_PROBES)
    return node, build(node)


def _plan(node: Node, topology: Topology, options: Options, world: World | None, *, live: bool = True) -> Plan:
    from topocheck.bandwidth.plan import make_plan
    from topocheck.checks.consistency.visible_devices import hidden
    from topocheck.checks.visibility import driver_loaded
    from topocheck.model.base import Missing
    from topocheck.tests_live.copies.supervisor import driver_installed
    from topocheck.tests_live.run import cpus_here, torch_installed

    available = node.system.memory_available_bytes
    options = msgspec.structs.replace(options, host_available_bytes=available if isinstance(available, int) else None)
    if live:
        unusable = {} if world is not None else hidden(node)
        if isinstance(node.nvml.gpus, Missing) and not driver_loaded(node):
            why = "the NVIDIA driver is not loaded: topocheck check says why"
            unusable = {g.address: why for g in topology.gpus if g.vendor == "NVIDIA"}
        options = msgspec.structs.replace(
            options,
            torch_available=torch_installed(),
            driver_available=driver_installed() or options.engine == "torch",
            cpus=cpus_here(),
            unusable=unusable,
        )
    if world is not None:
        options = msgspec.structs.replace(options, ranks=world.size, copies=False, joined=True)
    try:
        return make_plan(topology, options)
    except ValueError as e:
        raise InputError(str(e)) from None


def _announce(planned: Plan) -> None:
    """Say on standard error what will be done and how long it takes."""
    from topocheck.render.bw_plan import plan_text

    for line in plan_text(planned).splitlines():
        common.warn(line, prefix="")


def _refusal(planned: Plan, topology: Topology, *, allow_busy: bool) -> str:
    from topocheck.tests_live.run import busy, forbidden

    used = {e for r in planned.copies for t in r.transfers for e in (t.source, t.destination)}
    used |= {a for c in planned.collectives for a in c.members}
    closed = forbidden(topology, used)
    if closed:
        return "; ".join(closed)
    found = busy(topology, used)
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
    from topocheck.bandwidth import baseline as kept
    from topocheck.render import bw_data

    if show.format_ == "text":
        from topocheck.render.bw import bw_text

        style = common.style(show.output, show.no_color, show.width)
        text = bw_text(report, style, verbose=show.verbose, advice=show.advice)
    elif show.format_ == "html":
        from topocheck.render.html.results import bw_html

        text = bw_html(report, verbose=show.verbose)
    else:
        make = {"json": bw_data.bw_json, "csv": bw_data.bw_csv, "markdown": bw_data.bw_markdown}[show.format_]
        text = make(report)
    failed: list[InputError] = []
    try:
        common.emit(text, show.output)
    except OutputError as e:
        if show.output is None:
            raise
        failed.append(e)
        common.emit(text)
    if show.save is not None:
        try:
            write_file(show.save, kept.encode(report))
        except InputError as e:
            failed.append(e)
    if failed:
        raise InputError("; ".join(map(str, failed)) + "; what was measured is on standard output")


def _code(report: BandwidthReport, *, strict: bool) -> int:
    """Return the exit code: failure beats interrupted, which beats could-not-tell."""
    states = {f.state for f in report.findings}
    if State.FAIL in states or (strict and states & {State.WARN, State.UNKNOWN}):
        return EXIT_FAILED
    if report.run.interrupted:
        return exit_code()
    return EXIT_UNKNOWN if State.UNKNOWN in states else EXIT_OK
