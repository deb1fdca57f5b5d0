"""`topocheck report --cluster`: one report of all nodes of a job."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from topocheck.api import answers_of
from topocheck.cli import common
from topocheck.cli.fabric import read_fabric
from topocheck.cli.fabric_join import judged
from topocheck.model.base import InputError
from topocheck.model.exit_codes import EXIT_OK

if TYPE_CHECKING:
    from topocheck.checks.fabric.run import JudgedFabric
    from topocheck.compare.store import Collection
    from topocheck.host.base import Answer
    from topocheck.pipeline import Report
    from topocheck.placement.ranks import RankPlace
    from topocheck.render.cluster import ClusterReport
    from topocheck.tests_live.launch.exchange import Heard

FORMATS = ("text", "json", "markdown")
OWN_PROBES = ("numa", "settings")
"""What may differ between the ranks of a node: CPUs allowed, environment."""
HOW = (
    "report --cluster runs as one of several ranks: start it with srun (srun -N 8 topocheck report --cluster), mpirun "
    "or torchrun --no-python; or run `topocheck snapshot save` on each node into a shared folder and then `topocheck "
    "fleet FOLDER`"
)


def cluster_report(
    *,
    from_: common.Given = None,
    format_: str = "text",
    output: Path | None = None,
    deadline_s: float = 60.0,
    fabric: list[Path] | None = None,
    no_color: bool = False,
    width: int = 0,
) -> int:
    """Take part as the rank that the environment names; rank 0 prints. Returns the exit code, 0 for a printed report.

    Args:
        from_: a recording per node instead of the machine: `%N` or `{node}` in the name stands for the node's key.
        format_: text, json or markdown.
        output: file to write; standard output where None.
        deadline_s: how long rank 0 waits for the others.
        fabric: dumps of the fabric between the nodes, read by rank 0.
        no_color: no colour whatever the terminal.
        width: columns of the text; 0 takes the terminal's.

    Raises:
        InputError: no launcher, or ranks that cannot meet.
    """
    from topocheck.compare.store import Collection
    from topocheck.tests_live.launch import exchange, rendezvous
    from topocheck.tests_live.launch import world as launchers

    common.choose(format_, FORMATS, "--format")

    def machine(node: str) -> bytes:
        return _bytes(answers_of([recording_of(f, node) for f in from_ or ()]))

    try:
        world = launchers.detect_here()
        if world is None:
            raise InputError(HOW)
        if output is not None and world.rank == 0:
            common.check_writable(output, "--output")
        if fabric and world.rank == 0:
            read_fabric(fabric)  # before anybody waits for anything
        with rendezvous.join(world, "report --cluster", deadline_s) as meeting:
            rendezvous.warn(meeting)
            heard = exchange.exchange(meeting, machine, lambda: _own(recorded=bool(from_)), deadline_s)
            known_by = meeting.authenticated_by
    except launchers.LaunchError as e:
        raise launchers.input_error(e) from None
    if heard is None:
        return EXIT_OK
    collection = Collection()
    report = msgspec.structs.replace(_judge(heard, world.launcher, collection), ranks_authenticated_by=known_by)
    network = judged(fabric, collection)
    common.emit(_page(report, network, format_, output, no_color=no_color, width=width), output)
    if report.unresponsive:
        # A rank that is gone would be waited for at the end of MPI or of the store.
        sys.stdout.flush()
        os._exit(EXIT_OK)
    return EXIT_OK


def recording_of(from_: Path, node: str) -> Path:
    """Return the recording of one node: `%N` or `{node}` in the name stands for the node's key."""
    safe = node.replace("/", "_")
    return Path(str(from_).replace("%N", safe).replace("{node}", safe))


def _bytes(answers: dict[str, Answer]) -> bytes:
    from topocheck.host.recording import snapshot
    from topocheck.probes.registry import PROBE_SET_VERSION

    out = io.BytesIO()
    snapshot.write(out, answers, probe_set=PROBE_SET_VERSION)
    return out.getvalue()


def _own(*, recorded: bool) -> bytes:
    """Return what is this rank's own; beside a recorded machine not the affinity, which is of this one."""
    from topocheck.host.gather.gather import gather
    from topocheck.probes.registry import PROBES

    names = ("settings",) if recorded else OWN_PROBES
    return _bytes(gather([p for p in PROBES if p.name in names], budget_s=10.0))


def _judge(heard: Heard, launcher: str, collection: Collection | None = None) -> ClusterReport:
    """Judge every node by itself, then all beside each other; `collection` takes their facts."""
    from topocheck.compare.decode import from_document
    from topocheck.compare.facts import node_facts
    from topocheck.compare.outliers import judge
    from topocheck.compare.store import Collection
    from topocheck.model.version import __version__
    from topocheck.placement.ranks import problems
    from topocheck.render.cluster import ClusterReport
    from topocheck.render.report_json import report_document

    unresponsive = dict(heard.unresponsive)
    reports: dict[str, tuple[Report, dict[str, Answer]]] = {}
    collection = Collection() if collection is None else collection
    for rank, word in sorted(heard.words.items()):
        if not word.machine or word.node in reports:
            continue
        try:
            report, answers = _build(word.machine, word.node)
            compared = node_facts(from_document(report_document(report, __version__)), name=word.node)
        except InputError as e:
            unresponsive[word.node] = f"rank {rank} sent no usable snapshot: {e}"
            continue
        reports[word.node] = (report, answers)
        collection.add(compared)
    places: list[RankPlace] = []
    settings: dict[str, dict[str, list[int]]] = {}
    for rank, word in sorted(heard.words.items()):
        if word.node in reports and word.own:
            try:
                place, mine = _place(*reports[word.node], word.own, word.node, first=bool(word.machine))
            except InputError as e:
                unresponsive[f"rank {rank} on node {word.node}"] = f"sent no usable snapshot of itself: {e}"
                continue
            places.append(place)
            for name, value in mine.items():
                settings.setdefault(name, {}).setdefault(value, []).append(rank)
    every = [r for r, w in heard.words.items() if w.own]
    return ClusterReport(
        topocheck_version=__version__,
        launcher=launcher,
        ranks=len(heard.words),
        fleet=judge(collection),
        places=tuple(places),
        problems=problems(places),
        differing_settings=mixed(settings, every),
        unresponsive=unresponsive,
    )


def _build(recording: bytes, node: str) -> tuple[Report, dict[str, Answer]]:
    from topocheck.host.base import Host, RecordedBackend
    from topocheck.host.recording import snapshot
    from topocheck.pipeline import build_report

    _, answers = snapshot.read(io.BytesIO(recording), f"recording of {node}")
    return build_report(Host(RecordedBackend(answers), node)), answers


def _place(
    report: Report, answers: dict[str, Answer], own: bytes, node: str, *, first: bool
) -> tuple[RankPlace, dict[str, str]]:
    """Return where a rank runs, and NCCL's settings in its environment.

    The node's facts come from the rank that asked the machine; environment and affinity are the rank's own. What the
    CUDA driver shows depends on the process, so of another rank it is not known, and CUDA_VISIBLE_DEVICES counts.
    """
    from topocheck.host.base import Host, RecordedBackend
    from topocheck.host.recording import snapshot
    from topocheck.model.gpu import CudaFacts
    from topocheck.pipeline import read_node
    from topocheck.placement.ranks import rank_place
    from topocheck.probes.registry import PROBES

    _, mine = snapshot.read(io.BytesIO(own), f"rank of {node}")
    host = Host(RecordedBackend({**answers, **_personal(mine)}), node)
    partial = read_node(host, [p for p in PROBES if p.name in OWN_PROBES])
    changed: dict[str, Any] = {"numa": partial.numa, "settings": partial.settings}
    if not first:
        changed["cuda"] = CudaFacts()
    facts = msgspec.structs.replace(report.node, **changed)
    place = msgspec.structs.replace(rank_place(facts, report.topology), node=node)
    return place, {s.name: str(s.value) for s in facts.settings.nccl if s.in_force}


def _personal(answers: dict[str, Answer]) -> dict[str, Answer]:
    """Return those answers that are of the process and not of the machine."""
    return {q: a for q, a in answers.items() if q.startswith(("environ:", "process:")) or "/proc/self/" in q}


def mixed(settings: dict[str, dict[str, list[int]]], every: list[int]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return settings that are not the same on all ranks: name -> `VALUE: ranks 0, 1`, `not set: ranks 2`."""
    out = []
    for name, values in sorted(settings.items()):
        if name in ("NCCL_HOSTID",):
            continue
        unset = sorted(set(every) - {r for ranks in values.values() for r in ranks})
        if len(values) + bool(unset) > 1:
            told = [f"{v}: {_ranks(r)}" for v, r in sorted(values.items(), key=lambda item: -len(item[1]))]
            out.append((name, (*told, *([f"not set: {_ranks(unset)}"] if unset else []))))
    return tuple(out)


def _ranks(ranks: list[int]) -> str:
    from topocheck.model.address import format_cpulist

    return f"rank{'s' if len(ranks) > 1 else ''} {format_cpulist(ranks)}"


def _page(
    report: ClusterReport,
    network: JudgedFabric | None,
    format_: str,
    output: Path | None,
    *,
    no_color: bool,
    width: int,
) -> str:
    from topocheck.render import cluster as render

    if format_ == "text":
        return render.cluster_text(report, common.style(output, no_color, width), network)
    return {"json": render.cluster_json, "markdown": render.cluster_markdown}[format_](report, network)
