"""`topocheck network fabric`: the network between nodes, by a dump of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.model.base import InputError, State
from topocheck.model.exit_codes import EXIT_FAILED

if TYPE_CHECKING:
    from topocheck.model.fabric import Fabric

OptionalPath = Optional[Path]  # noqa: UP045 - typer reads it at run time
FORMATS = ("text", "json")
EXPECTED = "a dump of a fabric (ibnetdiscover, iblinkinfo, UFM, LLDP, topology.conf)"
MAX_FILES = 8192


def read_fabric(files: Sequence[Path]) -> Fabric:
    """Return the fabric in dumps, put together.

    Raises:
        InputError: a file cannot be read, or is of no known form.
    """
    from topocheck.fabric.merge import merge
    from topocheck.fabric.read import MAX_BYTES, parse_all
    from topocheck.host.gather.jsonable import plain_text
    from topocheck.host.input import read_file

    if len(files) > MAX_FILES:
        raise InputError(f"{len(files)} dumps of a fabric: more than {MAX_FILES}")
    return merge(parse_all((read_file(f, MAX_BYTES, EXPECTED), plain_text(str(f))) for f in files))


def fabric(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Output of ibnetdiscover (also -p), iblinkinfo (also -l), ibdiagnet (db_csv, lst, net_dump), saquery, "
            "sminfo, UFM's REST API, lldpctl, networkctl lldp or a switch's show lldp (a file a node or switch, named "
            "after it), or Slurm's topology.conf or topology.yaml; several are put together.",
        ),
    ],
    policy: Annotated[
        OptionalPath, typer.Option("--policy", metavar="FILE", help="Severities and thresholds (TOML).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings and unknowns count as failures.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Every leaf and every note.")] = False,
    format_: Annotated[str, typer.Option("--format", help="text or json (--json).")] = "text",
    output: common.Output = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Check the cabling between nodes by a dump of the fabric.

    Names cables on the wrong leaf, missing uplinks, slow links, ports that are down, and each leaf's oversubscription.
    Exit code 0 fine, 1 a check failed, 2 wrong usage.
    """
    from topocheck.checks.fabric.run import judge_fabric
    from topocheck.fabric.tiers import tiers_of
    from topocheck.model.version import __version__
    from topocheck.render.fabric import fabric_json, fabric_text

    common.choose(format_, FORMATS, "--format")
    if output is not None:
        common.check_writable(output, "--output")
    chosen = None if policy is None else common.load_policy(policy)
    tiers = tiers_of(read_fabric(files))
    result = judge_fabric(tiers, chosen)
    if format_ == "json":
        text = fabric_json(tiers, result, __version__)
    else:
        text = fabric_text(tiers, result, common.style(output, no_color, width), all_=all_)
    common.emit(text, output)
    bad = {State.FAIL} | ({State.WARN, State.UNKNOWN} if strict or (chosen is not None and chosen.strict) else set())
    if any(f.state in bad for f in result.findings):
        raise typer.Exit(EXIT_FAILED)
