"""`topocheck nccl`: settings, topology files, prediction and logs of NCCL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.cli import nccl_input as given
from topocheck.cli import nccl_job as jobs
from topocheck.cli.fabric_join import FabricFiles
from topocheck.model.base import InputError
from topocheck.model.exit_codes import EXIT_FAILED, EXIT_UNKNOWN

if TYPE_CHECKING:
    from topocheck.nccl.predict.types import Prediction

app = typer.Typer(
    help="What NCCL reads, what it sees, and what it will do.", no_args_is_help=True, rich_markup_mode=None
)

Format = Annotated[str, typer.Option("--format", help="text or json (--json).")]
NcclVersion = Annotated[
    Optional[str],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--nccl-version", metavar="X.Y.Z", help="NCCL version to judge by; the installed one otherwise."),
]
TopoFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--topo", metavar="FILE", help="A topology file to use instead of what the machine shows."),
]


@app.command("env")
def env(
    name: Annotated[Optional[str], typer.Argument(help="A setting to explain.")] = None,  # noqa: UP045
    all_: Annotated[bool, typer.Option("--all", help="List every setting that is known.")] = False,
    library: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--library", metavar="FILE", help="Compare the table with the names in an NCCL library."),
    ] = None,
    nccl_version: NcclVersion = None,
    format_: Format = "text",
    from_: common.From = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Show the NCCL settings in force here, where each comes from and what it does; or explain one, set or not."""
    from topocheck.checks.shared.settings import misread_files, misread_text
    from topocheck.knowledge import nccl
    from topocheck.nccl.predict.report import version_note
    from topocheck.nccl.rules.values import judge_setting
    from topocheck.render import nccl as render

    common.choose(format_, ("text", "json"), "--format")
    if (name is not None) + all_ + (library is not None) > 1:
        raise InputError("expected one of: the NAME of a setting, --all, --library FILE")
    style = common.style(None, no_color, width)
    wanted = given.setting_like(name) if name is not None else None
    if library is not None:
        found_names = given.library_names(library, nccl_version)
        common.emit(given.json_text(found_names) if format_ == "json" else render.library_text(found_names, style))
        return
    if all_:
        known = sorted(nccl.settings().values(), key=lambda s: (s.category, s.name))
        listing = render.table_text(known, nccl.TABLE_VERSION, style)
        common.emit(given.json_text({"settings": known}) if format_ == "json" else listing)
        return
    node, _ = given.load(from_)
    of_host: dict[str, object] = {"hostname": node.system.hostname if isinstance(node.system.hostname, str) else None}
    version = given.version_of(nccl_version, node)
    judged = {
        "nccl_version": ".".join(map(str, version)),
        "version_note": version_note(node, nccl_version),
        "table_version": nccl.TABLE_VERSION,
    }
    files = {path: misread_text(said) for path, said in misread_files(node.settings).items()}
    of_host["conf_files"] = [{"path": path, "problem": problem} for path, problem in files.items()]
    found = [
        (s, nccl.lookup(s.name), nccl.default_in(s.name, version), judge_setting(s.name, s.value, version))
        for s in node.settings.nccl
        if wanted is None or s.name == wanted.name
    ]
    entries = [{"setting": s, "known": k, "default": d, "problems": p} for s, k, d, p in found]
    if wanted is not None:
        default = nccl.default_in(wanted.name, version) or wanted.default
        if format_ == "json":
            for e in entries:
                del e["known"], e["default"]
            text = given.json_text({**of_host, "setting": wanted, "default": default, "here": entries, **judged})
        else:
            here = [(s, problems) for s, _, _, problems in found]
            text = render.setting_text(wanted, default, nccl.default_history(wanted.name), here, judged, files, style)
    elif format_ == "json":
        text = given.json_text({**of_host, **judged, "settings": entries})
    else:
        text = render.settings_text(found, judged, files, style)
    common.emit(text)


@app.command("topo")
def topo(
    input_: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--input", metavar="FILE", help="Read a topology file and compare it with the machine."),
    ] = None,
    output: common.Output = None,
    restricted: Annotated[
        bool, typer.Option("--restricted", help="Only the cpu and pci levels: the form to hand to virtual machines.")
    ] = False,
    no_machine: Annotated[bool, typer.Option("--no-machine", help="With --input: do not read the machine.")] = False,
    nccl_version: NcclVersion = None,
    format_: Format = "text",
    from_: common.From = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Write this node as NCCL's topology XML, or read such a file and compare it with this node.

    Exit code 1: NCCL's init would end with the file.
    """
    from topocheck.nccl.predict.report import settings_of
    from topocheck.nccl.topofile.write import write_topology
    from topocheck.nccl.topofile.xml import write

    common.choose(format_, ("text", "json"), "--format")
    if input_ is None and no_machine:
        raise InputError("--no-machine: nothing to read without --input FILE")
    if input_ is not None and restricted:
        raise InputError("--restricted is for a file that is written; --input FILE reads one")
    if no_machine and from_:
        raise InputError("--no-machine and --from: expected one of them")
    if input_ is None:
        node, topology = given.load(from_)
        root = write_topology(
            node, topology, given.version_of(nccl_version, node), settings_of(node), restricted=restricted
        )
        common.emit(write(root, plain=True), output)
        return
    from topocheck.nccl.topofile.compare import compare
    from topocheck.render.nccl import topology_text

    machine = None if no_machine else given.load(from_)
    version = given.version_of(nccl_version, machine[0] if machine else None)
    file = given.topology_file(input_, version)
    assert file.root is not None
    if output is not None:
        common.emit(write(file.root), output)
    differences = None
    if machine is not None:
        node, topology = machine
        differences = compare(file.root, write_topology(node, topology, version, settings_of(node)))
    if format_ == "json":
        common.emit(given.json_text({"file": str(input_), "remarks": file.remarks, "differences": differences}))
    else:
        style = common.style(None, no_color, width)
        common.emit(topology_text(file.root, file.remarks, differences, str(input_), style))
    if file.fatal:
        raise typer.Exit(EXIT_FAILED)


@app.command("predict")
def predict(
    ranks: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--ranks", metavar="FILE", help="TOML or JSON: which rank runs on which GPU of which snapshot."),
    ] = None,
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="NAME=VALUE", help="What if it were set (NAME=: not set); repeatable."),
    ] = None,
    topo_file: TopoFile = None,
    all_: Annotated[bool, typer.Option("--all", help="Show every pair of ranks and every NIC.")] = False,
    why: Annotated[bool, typer.Option("--why", help="Show the chain of rules of every pair.")] = False,
    fabric: FabricFiles = None,
    nccl_version: NcclVersion = None,
    format_: Annotated[str, typer.Option("--format", help="text, json (--json) or html.")] = "text",
    from_: common.From = None,
    output: common.Output = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Predict the transport NCCL will choose between each pair of ranks, and why.

    Exit code 0: predicted; 1: ncclCommInitRank would fail; 2: wrong input, or no GPU; 3: no GPU whose driver answers,
    or a rank on a GPU that no job can use.
    """
    from topocheck.render.prediction import prediction_text

    common.choose(format_, ("text", "json", "html"), "--format")
    what_if = jobs.parse_settings(set_ or [])
    job = jobs.hosts_for(ranks, from_, topo_file, nccl_version, what_if)
    for problem in jobs.problems_of(what_if, job.version):
        common.warn(f"--set: {problem}")
    p = on_fabric(jobs.predict_or_fail(job), fabric)
    if format_ == "json":
        text = given.json_text(p)
    elif format_ == "html":
        from topocheck.render.html.results import prediction_html

        text = prediction_html(p, job.labels, why=why)
    else:
        text = prediction_text(p, job.labels, common.style(output, no_color, width), why=why, every=all_)
    common.emit(text, output)
    if p.fatal:
        raise typer.Exit(EXIT_FAILED)
    if p.unplaced:
        raise typer.Exit(EXIT_UNKNOWN)


def on_fabric(p: Prediction, files: list[Path] | None) -> Prediction:
    """Return a prediction with ring and tree bounded by the uplinks that the hosts' order crosses, by a dump.

    Raises:
        InputError: a dump cannot be read.
    """
    if not files:
        return p
    import msgspec

    from topocheck.cli.fabric import read_fabric
    from topocheck.cli.placement import leaf_rates
    from topocheck.fabric.tiers import tiers_of
    from topocheck.placement.order import node_order
    from topocheck.placement.ranks import RankPlace

    leaves = leaf_rates(tiers_of(read_fabric(files)))
    order = node_order([RankPlace(rank=r.rank, node=r.host) for r in p.ranks], leaves)
    if order is None:
        return msgspec.structs.replace(p, notes=(*p.notes, "the dump of the fabric holds fewer than two of the hosts"))
    note = (
        f"over the hosts in this order a ring crosses between leaves {order.crossings} times, at best {order.least}; a "
        f"tree {order.tree_crossings} times, leaf by leaf {order.tree_least}"
    )
    limits: dict[str, tuple[float, str]] = {}
    if order.limit_gb_s is not None:
        by = f"the uplinks of {order.limited_by}: {order.limit_gb_s:.1f} GB/s for each host that sends over them"
        limits["Ring"] = (order.limit_gb_s, by)
    if order.tree_limit_gb_s is not None:
        # Bus bandwidth of an all_reduce is 2 (n - 1) / n of its bytes a second (nccl-tests, doc/PERFORMANCE.md).
        n, through = len(p.ranks), order.tree_limit_gb_s
        by = f"the uplinks of {order.tree_limited_by}, which let {through:.1f} GB/s of an all_reduce through both trees"
        limits["Tree"] = (2 * (n - 1) / n * through, by)
    bounds = tuple(
        msgspec.structs.replace(b, busbw_gb_s=limits[b.algorithm][0], limited_by=limits[b.algorithm][1])
        if b.algorithm in limits and limits[b.algorithm][0] < b.busbw_gb_s
        else b
        for b in p.bounds
    )
    return msgspec.structs.replace(p, bounds=bounds, notes=(*p.notes, note))


@app.command("log")
def log(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A log made with NCCL_DEBUG=INFO; - for standard input.")
    ],
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare it with the prediction for this machine.")
    ] = False,
    ranks: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--ranks", metavar="FILE", help="With --compare: the job's ranks."),
    ] = None,
    topo_file: TopoFile = None,
    format_: Format = "text",
    from_: common.From = None,
    output: common.Output = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Read a log of NCCL, RCCL, Gloo or nccl-tests: what it chose, what failed and why, where the prediction differs.

    Exit code 0: no failure (warnings allowed), and no difference where it is compared; 1: either; 2: wrong input.
    """
    from topocheck.host.input import chunks_of
    from topocheck.nccl.logs import compare as log_compare
    from topocheck.nccl.logs.build_note import build_findings
    from topocheck.nccl.logs.reader import read_log
    from topocheck.render.nccl import log_text

    common.choose(format_, ("text", "json"), "--format")
    result = read_log(given.uncompressed(chunks_of(file, "a log of NCCL"), str(file)))
    if not (result.nccl_lines or result.versions or result.failures or result.tests or result.hints):
        raise InputError(
            f"{file}: no line of NCCL among {given.counted_lines(result.lines, result.long_lines)}: was it run with "
            "NCCL_DEBUG=INFO, and does the log hold its output?"
        )
    comparison = None
    if compare or from_ or ranks is not None or topo_file is not None:
        version = result.versions[0] if result.versions else None
        job = jobs.hosts_for(ranks, from_, topo_file, version, log_compare.settings_for(result))
        comparison = log_compare.compare(result, jobs.predict_or_fail(job))
        result.findings += build_findings(result, job.hosts)
    style = common.style(output, no_color, width)
    if format_ == "json":
        text = given.json_text({"log": result, "comparison": comparison})
    else:
        text = log_text(result, comparison, style)
    common.emit(text, output)
    if result.failures or (comparison is not None and comparison.differences):
        raise typer.Exit(EXIT_FAILED)
