"""`topocheck scale --simulate N`: model times on a described or read network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topocheck.cli import common
from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.bandwidth.simulate import Network

FORMATS = ("text", "json", "csv")
EXPECTED = "levels of a network (TOML)"
MAX_BYTES = 1 << 20
MAX_LEVELS = 8
BASE_US = 8.4
NODE_ALPHA_US, NET_ALPHA_US = 3.4, 14.0
"""Latencies of NCCL's own model, ring and protocol Simple (NVIDIA/nccl src/graph/tuning.cc, baseLat and hwLat)."""
NODE_GB_S = 370.8
"""18 NVLinks of a GPU of compute capability 9.0 at the 20.6 GB/s that NCCL counts for each (src/graph/topo.h)."""


def simulate(
    most: int,
    *,
    levels: Path | None,
    fabric: Sequence[Path],
    gpus_per_node: int,
    size_bytes: int,
    step_ms: float,
    gradient_bytes: int,
    format_: str,
    output: Path | None,
    curve: Path | None,
    no_color: bool,
    width: int,
) -> None:
    """Print the model times of collectives, and of a step where its computation is given, up to `most` GPUs.

    Raises:
        InputError: options that do not fit, or files that cannot be read.
    """
    from topocheck.bandwidth.simulate import MAX_GPUS, curves
    from topocheck.render import simulate as render

    common.choose(format_, FORMATS, "--format with --simulate")
    if not 2 <= most <= MAX_GPUS:
        raise InputError(f"--simulate {most}: expected 2 to {MAX_GPUS} GPUs")
    if (levels is None) == (not fabric):
        raise InputError("--simulate needs either --levels FILE or --fabric FILE: what the network is")
    if not 0 <= step_ms <= 1e7:
        raise InputError(f"--step-ms {step_ms:g}: expected milliseconds of one GPU's computation in a step")
    if curve is not None and curve.suffix != ".svg":
        raise InputError(f"--curve {curve}: --simulate draws .svg")
    for option, path in (("--output", output), ("--curve", curve)):
        if path is not None:
            common.check_writable(path, option)
    network = read_levels(levels) if levels is not None else from_fabric(fabric, gpus_per_node)
    points = curves(network, most, size_bytes, compute_s=step_ms / 1e3, gradient_bytes=gradient_bytes if step_ms else 0)
    if format_ == "text":
        text = render.simulate_text(network, points, common.style(output, no_color, width))
    else:
        text = {"json": render.simulate_json, "csv": render.simulate_csv}[format_](network, points)
    common.emit(text, output)
    if curve is not None:
        common.emit(render.simulate_svg(points), curve)


def read_levels(path: Path) -> Network:
    """Return the network that a TOML file describes.

    Raises:
        InputError: names the file and what is wrong.
    """
    from topocheck.bandwidth.simulate import Level, Network, Value
    from topocheck.host.gather.jsonable import plain_text
    from topocheck.host.input import read_file
    from topocheck.model.toml import TomlError, parse_toml

    name = plain_text(str(path))
    try:
        tree = parse_toml(read_file(path, MAX_BYTES, EXPECTED))
    except TomlError as e:
        raise InputError(f"{name}: {e}", excerpt=e.excerpt) from None
    _only(tree, {"level", "base_us", "aligned", "source"}, name)
    listed = tree.get("level")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_LEVELS:
        raise InputError(f"{name}: expected 1 to {MAX_LEVELS} tables [[level]], the first of GPUs in a node")
    levels = []
    for i, entry in enumerate(listed, 1):
        where = f"{name}: level {i}"
        if not isinstance(entry, dict):
            raise InputError(f"{where}: expected a table")
        _only(entry, {"name", "members", "alpha_us", "beta_gb_s"}, where)
        members = entry.get("members", 0)
        last = i == len(listed)
        if (
            not isinstance(members, int)
            or isinstance(members, bool)
            or not (0 if last and i > 1 else 1) <= members <= 1 << 20
        ):
            raise InputError(f"{where}: members: expected how many units of the level below it joins")
        try:
            values = {k: Value.of(entry.get(k, ())) for k in ("alpha_us", "beta_gb_s")}
        except (TypeError, ValueError) as e:
            raise InputError(f"{where}: alpha_us and beta_gb_s: {e}") from None
        levels.append(Level(name=str(entry.get("name", f"level {i}"))[:64], members=members, **values))
    base, aligned = tree.get("base_us", 0.0), tree.get("aligned", True)
    if (
        not isinstance(base, int | float)
        or isinstance(base, bool)
        or not 0 <= base <= 1e6
        or not isinstance(aligned, bool)
    ):
        raise InputError(f"{name}: base_us: expected microseconds; aligned: true or false")
    return Network(
        levels=tuple(levels), base_us=float(base), aligned=aligned, source=str(tree.get("source", name))[:200]
    )


def _only(tree: dict[str, Any], keys: set[str], where: str) -> None:
    other = next((k for k in tree if k not in keys), None)
    if other is not None:
        raise InputError(f"{where}: {other[:40]!r} is not known; expected {', '.join(sorted(keys))}")


def from_fabric(files: Sequence[Path], gpus_per_node: int) -> Network:
    """Return the levels of a fabric that was read, with NCCL's latencies.

    Raises:
        InputError: the dump gives no node or no rate.
    """
    from topocheck.bandwidth.simulate import Level, Network, Value
    from topocheck.cli.fabric import read_fabric
    from topocheck.fabric.levels import fabric_levels
    from topocheck.fabric.tiers import tiers_of

    found = fabric_levels(tiers_of(read_fabric(files)))
    if found is None or found.adapter_gbit_s is None:
        raise InputError(f"{files[0]}: no adapter with a host name and a rate; describe the network with --levels")
    gpus = gpus_per_node or found.adapters
    if gpus < 1:
        raise InputError(f"--gpus-per-node {gpus}: expected 1 or more")
    beta = found.adapter_gbit_s / 8 * found.adapters / gpus
    over = found.oversubscription or 1.0
    levels = [
        Level(name="node", members=gpus, alpha_us=Value.of(NODE_ALPHA_US), beta_gb_s=Value.of(NODE_GB_S)),
        Level(name="leaf", members=found.nodes_per_leaf, alpha_us=Value.of(NET_ALPHA_US), beta_gb_s=Value.of(beta)),
        Level(name="spine", members=0, alpha_us=Value.of(NET_ALPHA_US), beta_gb_s=Value.of(beta / over)),
    ]
    return Network(
        levels=tuple(levels),
        base_us=BASE_US,
        aligned=found.aligned,
        source=f"{', '.join(f.name for f in files)}: {found.nodes} nodes with {found.adapters} adapters of "
        f"{found.adapter_gbit_s:g} Gb/s, {found.nodes_per_leaf} below a leaf, {over:.2f} : 1; latencies and NVLink "
        "rate of NCCL's own model",
    )
