"""`topocheck nccl`: settings, topology files, prediction and logs of NCCL."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.cli import nccl_input as given
from topocheck.model.base import InputError

if TYPE_CHECKING:
    pass

app = typer.Typer(
    help="What NCCL reads, what it sees, and what it will do.", no_args_is_help=True, rich_markup_mode=None
)

Format = Annotated[str, typer.Option("--format", help="text or json.")]
NcclVersion = Annotated[
    Optional[str],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--nccl-version", metavar="X.Y.Z", help="NCCL version to judge by; the installed one otherwise."),
]
TopoFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--topo", metavar="FILE", help="A topology file to take instead of what the machine shows."),
]


@app.command("env")
def env(
    name: Annotated[Optional[str], typer.Argument(help="A setting to explain.")] = None,  # noqa: UP045
    all_: Annotated[bool, typer.Option("--all", help="List every setting that is known.")] = False,
    library: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--library", metavar="FILE", help="Set the table beside the names in an NCCL library."),
    ] = None,
    nccl_version: NcclVersion = None,
    format_: Format = "text",
    from_: common.From = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Show the NCCL settings in force here, where each comes from and what it does; or explain one."""
    from topocheck.knowledge import nccl
    from topocheck.knowledge.nccl_values import judge_setting
    from topocheck.render import nccl as render

    common.choose(format_, ("text", "json"), "--format")
    style = common.style(None, no_color, width)
    if name is not None:
        wanted = name if nccl.lookup(name) else nccl.nearest(name)
        s = nccl.lookup(wanted) if wanted else None
        if s is None:
            raise InputError(f"no setting like {name!r} is known (NCCL {nccl.TABLE_VERSION})")
        if s.name != name:
            print(f"topocheck: {name} is not known; nearest is {s.name}", file=sys.stderr)
        default = nccl.default_in(s.name, given.version_of(nccl_version)) or s.default
        history = nccl.default_history(s.name)
        text = (
            given.json_text({"setting": s, "default": default})
            if format_ == "json"
            else render.setting_text(s, default, history, style)
        )
        common.emit(text)
        return
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
    version = given.version_of(nccl_version, node)
    found = [
        (s, nccl.lookup(s.name), nccl.default_in(s.name, version), judge_setting(s.name, s.value, version))
        for s in node.settings.nccl
    ]
    words = ".".join(map(str, version))
    if format_ == "json":
        entries = [{"setting": s, "known": k, "default": d, "problems": p} for s, k, d, p in found]
        common.emit(given.json_text({"nccl_version": words, "table_version": nccl.TABLE_VERSION, "settings": entries}))
        return
    common.emit(render.settings_text(found, words, nccl.TABLE_VERSION, style))


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
    no_machine: Annotated[bool, typer.Option("--no-machine", help="With --input: do not look at the machine.")] = False,
    nccl_version: NcclVersion = None,
    format_: Format = "text",
    from_: common.From = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Write this node as NCCL's topology XML, or read such a file and compare it with this node."""
    from topocheck.nccl.topo import write_topology
    from topocheck.nccl.view import settings_of
    from topocheck.nccl.xml import write

    common.choose(format_, ("text", "json"), "--format")
    if input_ is None:
        node, topology = given.load(from_)
        root = write_topology(
            node, topology, given.version_of(nccl_version, node), settings_of(node), restricted=restricted
        )
        try:
            text = write(root)
        except ValueError as e:
            raise InputError(f"the machine's answers give no topology file: {e}") from e
        common.emit(text, output)
        return
    from topocheck.nccl.topo_compare import compare
    from topocheck.nccl.xml import MAX_BYTES, NcclXmlError, parse_topology
    from topocheck.nccl.xml_rules import check_topology
    from topocheck.render.nccl import topology_text

    try:
        document = parse_topology(given.read_bytes(input_, MAX_BYTES))
    except NcclXmlError as e:
        raise InputError(f"{input_}: {e}") from e
    if output is not None:
        common.emit(write(document.root), output)
    differences = None
    if not no_machine:
        node, topology = given.load(from_)
        machine = write_topology(node, topology, given.version_of(nccl_version, node), settings_of(node))
        differences = compare(document.root, machine)
    remarks = (*document.remarks, *check_topology(document.root, given.version_of(nccl_version)))
    if format_ == "json":
        common.emit(given.json_text({"file": str(input_), "remarks": remarks, "differences": differences}))
    else:
        common.emit(
            topology_text(document.root, remarks, differences, str(input_), common.style(None, no_color, width))
        )
    if any(r.fatal for r in remarks):
        raise typer.Exit(common.EXIT_FAILED)


@app.command("predict")
def predict(
    ranks: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--ranks", metavar="FILE", help="TOML or JSON: which rank runs on which GPU of which recording."),
    ] = None,
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="NAME=VALUE", help="What if this setting were in force (may be repeated)."),
    ] = None,
    topo_file: TopoFile = None,
    why: Annotated[bool, typer.Option("--why", help="Show the chain of rules of every pair.")] = False,
    nccl_version: NcclVersion = None,
    format_: Format = "text",
    from_: common.From = None,
    output: common.Output = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Predict the transport NCCL will choose between each pair of ranks, and why."""
    from topocheck.render.nccl import prediction_text

    common.choose(format_, ("text", "json"), "--format")
    hosts, version, specs, labels = given.hosts_for(ranks, from_, topo_file, nccl_version)
    what_if = given.parse_settings(set_ or [])
    for problem in given.problems_of(what_if, version):
        print(f"topocheck: --set: {problem}", file=sys.stderr)
    p = given.predict_or_fail(hosts, version, specs, what_if)
    style = common.style(output, no_color, width)
    common.emit(given.json_text(p) if format_ == "json" else prediction_text(p, labels, style, why=why), output)


@app.command("log")
def log(
    file: Annotated[Path, typer.Argument(help="A log made with NCCL_DEBUG=INFO; - for standard input.")],
    compare: Annotated[bool, typer.Option("--compare", help="Set it beside the prediction for this machine.")] = False,
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
    """Read a log of NCCL: what it chose, what failed and why, and where it parts from the prediction."""
    from topocheck.nccl import log_compare
    from topocheck.nccl.log import read_log
    from topocheck.render.nccl import log_text

    common.choose(format_, ("text", "json"), "--format")
    result = read_log(given.chunks_of(file))
    if not result.nccl_lines and not result.versions and not result.failures:
        raise InputError(
            f"{file}: no line of NCCL among {given.counted_lines(result.lines, result.long_lines)}: was it run with "
            "NCCL_DEBUG=INFO, and does the log hold its output?"
        )
    comparison = None
    if compare or from_ is not None or ranks is not None or topo_file is not None:
        version = result.versions[0] if result.versions else None
        hosts, numbers, specs, _ = given.hosts_for(ranks, from_, topo_file, version)
        comparison = log_compare.compare(
            result, given.predict_or_fail(hosts, numbers, specs, log_compare.settings_for(result))
        )
    style = common.style(output, no_color, width)
    if format_ == "json":
        text = given.json_text({"log": result, "comparison": comparison})
    else:
        text = log_text(result, comparison, style)
    common.emit(text, output)
    if result.failures:
        raise typer.Exit(common.EXIT_FAILED)
