"""What `topocheck nccl predict` and `log --compare` predict for: a machine, a topology file, or the ranks of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from topocheck.cli import common
from topocheck.cli.nccl_input import load, topology_file, version_of
from topocheck.model.base import InputError
from topocheck.model.exit_codes import EXIT_UNKNOWN

if TYPE_CHECKING:
    from topocheck.knowledge.nccl import Version
    from topocheck.model.node import Node
    from topocheck.nccl.predict.types import HostInput, Prediction, RankSpec
    from topocheck.topology.types import Topology


class Job(NamedTuple):
    """What a prediction is made of; `ranks` is None for all GPUs, `note` says what the version has against it."""

    hosts: tuple[HostInput, ...]
    version: Version
    ranks: tuple[RankSpec, ...] | None
    labels: dict[int, str]
    note: str


def hosts_for(
    ranks: Path | None,
    from_: common.Given,
    topo_file: Path | None,
    version_text: str | None,
    what_if: dict[str, str],
) -> Job:
    """Return what a prediction is made of.

    Args:
        ranks: a rank file, which names its own recordings.
        from_: a recording; this machine where None.
        topo_file: laid over what the machines show, or taken alone where there is no machine.
        version_text: of NCCL, as asked for.
        what_if: settings on top of each host's own; an empty value unsets.

    Raises:
        InputError: a file cannot be used, or there is no GPU to predict for.
    """
    from topocheck.nccl.predict.report import version_note
    from topocheck.nccl.predict.types import HostInput
    from topocheck.nccl.topofile.nic_selection import CHOOSE_NETWORK

    if ranks is not None and from_:
        raise InputError("--ranks and --from: expected one of them; the rank file names its snapshots")
    if ranks is not None:
        return from_rank_file(ranks, version_text, topo_file, what_if)
    if topo_file is not None and not from_:
        version = version_of(version_text)
        file = topology_file(topo_file, version)
        assert file.root is not None
        if not any(e.name == "gpu" for e in file.root.walk()):
            raise InputError(f"{topo_file}: no <gpu> in it, so there is nothing to predict; --from adds a machine")
        settings = {k: v for k, v in what_if.items() if v != ""}
        idle = ", ".join(n for n in CHOOSE_NETWORK if n in settings)
        note = f"{idle}: acts on what NCCL finds on a machine, not on a file alone; --from adds a machine"
        host = HostInput(
            name="file",
            topology=file.root,
            settings=settings,
            assume=True,
            fatal=file.fatal,
            notes=(note,) if idle else (),
        )
        return Job((host,), version, None, {}, version_note(None, version_text))
    node, topology = load(from_)
    _look_for_gpus(topology, from_)
    version = version_of(version_text, node)
    host = host_of(node, topology, version, topo_file, what_if)
    return Job((host,), version, None, labels_of(topology), version_note(node, version_text))


def _look_for_gpus(topology: Topology, from_: common.Given) -> None:
    """End the command where there is no GPU whose transports could be predicted.

    Raises:
        InputError: there is none.
        typer.Exit: none of those there can be used, so what NCCL would do cannot be determined.
    """
    from topocheck.nccl.topofile.write import usable_gpus, why_unusable

    where = f"in {', '.join(map(str, from_))}" if from_ else "here"
    if not topology.gpus:
        other = "; --from reads a snapshot of another machine, --topo a topology file" if not from_ else ""
        raise InputError(f"no NVIDIA GPU {where}, so there is nothing to predict{other}")
    if not usable_gpus(topology):
        why = why_unusable(topology.gpus[0]) or "no GPU can be used"
        common.fail(f"what NCCL would do {where} cannot be determined: {why}", EXIT_UNKNOWN)


def host_of(
    node: Node,
    topology: Topology,
    version: Version,
    topo_file: Path | None,
    what_if: dict[str, str],
    name: str | None = None,
) -> HostInput:
    """Return what the prediction knows of a node, with the settings and the topology file that are given."""
    from topocheck.nccl.predict.report import host_input, settings_of

    file = None if topo_file is None else topology_file(topo_file, version)
    return host_input(node, topology, version, name=name, file=file, settings=settings_of(node, what_if))


def labels_of(topology: Topology) -> dict[int, str]:
    """Return the label of each rank's GPU where ranks are the usable GPUs in order."""
    from topocheck.nccl.topofile.write import usable_gpus

    return {i: g.label for i, g in enumerate(usable_gpus(topology))}


def from_rank_file(path: Path, version_text: str | None, topo_file: Path | None, what_if: dict[str, str]) -> Job:
    """Return what a rank file describes, judged by the version of its first host.

    Raises:
        InputError: it or one of its recordings cannot be used; names the file and the line.
    """
    from topocheck.host.input import read_input
    from topocheck.nccl.predict.rank_file import MAX_BYTES, gpu_address, parse_rank_file
    from topocheck.nccl.predict.report import version_note
    from topocheck.nccl.predict.types import RankSpec

    text = read_input(path, MAX_BYTES, "a rank file").decode("utf-8", "replace")
    recordings, entries = parse_rank_file(text, str(path))
    hosts: dict[str, HostInput] = {}
    indices: dict[str, dict[int, str]] = {}
    versions: dict[str, Version] = {}
    notes: list[str] = []
    for entry in entries:
        name = entry["host"]
        if name in hosts:
            continue
        recording = recordings.get(name, name)
        try:
            node, topology = load(None if recording == "live" else [path.parent / str(recording)])
        except InputError as e:
            meant = "" if name in recordings else " (not under [hosts], so read as a snapshot)"
            raise InputError(f"{entry['where']}: host {name!r}{meant}: {e}") from None
        versions[name] = version_of(version_text, node)
        notes.append(version_note(node, version_text))
        hosts[name] = host_of(node, topology, next(iter(versions.values())), topo_file, what_if, name)
        indices[name] = {g.index: g.address for g in topology.gpus if isinstance(g.index, int)}
    version = next(iter(versions.values()))
    if len(set(versions.values())) > 1:
        each = ", ".join(f"{n} {'.'.join(map(str, v))}" for n, v in versions.items())
        notes[0] = f"the hosts have different versions ({each}); all are judged by the first"
    specs = []
    for entry in entries:
        name, where, visible = entry["host"], entry["where"], entry["visible"]
        specs.append(
            RankSpec(
                rank=entry["rank"],
                host=name,
                gpu=gpu_address(entry["gpu"], indices[name], where),
                process=entry["process"],
                container=entry["container"],
                visible=None if visible is None else tuple(gpu_address(v, indices[name], where) for v in visible),
            )
        )
    return Job(tuple(hosts.values()), version, tuple(specs), {}, notes[0])


def predict_or_fail(job: Job) -> Prediction:
    """Return the prediction; what is wrong with the job becomes an InputError."""
    import msgspec

    from topocheck.nccl.predict.predict import PredictError, predict

    try:
        prediction = predict(job.hosts, job.version, job.ranks)
    except PredictError as e:
        raise InputError(str(e)) from e
    return msgspec.structs.replace(prediction, version_note=job.note)


def parse_settings(items: list[str]) -> dict[str, str]:
    """Return the NAME=VALUE items of --set as a mapping.

    Raises:
        InputError: one is written otherwise, or asks for a file to be read.
    """
    out = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise InputError(f"--set {item!r}: expected NAME=VALUE")
        if name.strip() == "NCCL_TOPO_FILE" and value:
            raise InputError(f"--set {item}: the file is not looked for here; give it with --topo {value}")
        out[name.strip()] = value
    return out


def problems_of(settings: dict[str, str], version: Version) -> list[str]:
    """Return why a version would ignore some of the settings, or read them otherwise than they look."""
    from topocheck.nccl.rules.values import judge_setting

    found = [p for name, value in settings.items() for p in judge_setting(name, value, version)]
    return [p.text for p in found if p.kind != "risky"]
