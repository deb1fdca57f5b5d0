"""From a topology and the options to the rows that will be run. Pure: asks no machine and no clock."""

from __future__ import annotations

from topocheck.bandwidth.buffers import MIB, fit_size
from topocheck.bandwidth.cases import HOST, CopyRow, Plan, Transfer
from topocheck.bandwidth.collective_plan import START_RANK_S, collective_rows
from topocheck.bandwidth.collective_plan import START_S as RANKS_START_S
from topocheck.bandwidth.copy_plan import RowMaker
from topocheck.bandwidth.options import Options
from topocheck.model.measurement import NotMeasured
from topocheck.model.units import size_text
from topocheck.topology.types import Gpu, Topology

START_S = {"driver": 1.0, "staged": 1.0, "torch": 7.0, "host": 0.3}
"""Seconds until a child of that group is ready with two GPUs (a driver context takes 0.3 to 0.5 s a GPU; torch's
import and start 5 to 9 s)."""


def rounds(n: int) -> list[list[tuple[int, int]]]:
    """Return the rounds of the circle method: each unordered pair of `n` once, each member once per round.

    n - 1 rounds for even n, n for odd n (one member rests in each).
    """
    members: list[int | None] = list(range(n))
    if n % 2:
        members.append(None)
    out: list[list[tuple[int, int]]] = []
    for _ in range(len(members) - 1):
        pairs: list[tuple[int, int]] = []
        for a, b in zip(members[: len(members) // 2], reversed(members[len(members) // 2 :]), strict=True):
            if a is not None and b is not None:
                pairs.append((min(a, b), max(a, b)))
        out.append(pairs)
        members.insert(1, members.pop())
    return [r for r in out if r]


def choose_gpus(topology: Topology, wanted: tuple[str, ...]) -> tuple[Gpu, ...]:
    """Return the NVIDIA GPUs that were asked for, in the order of the topology.

    Raises:
        ValueError: a name that fits no GPU; the message lists those there are.
    """
    usable = [g for g in topology.gpus if g.vendor == "NVIDIA"]
    if not wanted:
        return tuple(usable)
    chosen: set[str] = set()
    for name in wanted:
        fits = [g.address for g in usable if name in (g.label, g.address, g.uuid, g.label.removeprefix("GPU"))]
        if not fits:
            there = ", ".join(f"{g.label} ({g.address})" for g in usable) or "none"
            raise ValueError(f"no GPU is called {name!r}; there are: {there}")
        chosen.update(fits)
    return tuple(g for g in usable if g.address in chosen)


def make_plan(topology: Topology, options: Options) -> Plan:
    """Return the plan for one node.

    Raises:
        ValueError: an option that fits nothing on this machine.
    """
    gpus = choose_gpus(topology, options.gpus)
    left_out = _no_gpu(gpus, options)
    left_out += _unusable(gpus, options)
    ready: list[Gpu] = []
    for g in gpus:
        if not g.on_bus:
            reason = f"{g.address} is lost from the bus; nothing was measured on it"
            left_out.append(NotMeasured(id=g.label, reason=reason))
        elif g.address not in options.unusable:
            ready.append(g)
    if gpus and all(g.address in options.unusable for g in gpus) and not options.backends:
        # One cause, one line: what was asked for is the GPUs, and collectives of the CPU are no answer to it.
        return Plan(left_out=tuple(left_out), budget=options.budget)
    copies: list[CopyRow] = []
    if options.copies and ready and options.driver_available:
        copies = _copy_rows(topology, tuple(ready), options, left_out)
    elif options.copies and ready:
        reason = "cuda-bindings is not installed: pip install cuda-bindings, or --engine torch"
        left_out.append(NotMeasured(id="copies", reason=reason, required=True))
    elif options.copies and options.budget != "quick" and not options.collectives:
        copies = _host_rows(options)
    collectives = collective_rows(tuple(ready), options, left_out)
    started = {r.group for r in copies}
    estimate = sum(r.estimate_s for r in copies) + sum(START_S[g] for g in started)
    estimate += sum(c.estimate_s for c in collectives)
    estimate += sum(RANKS_START_S[b] for b in {c.backend for c in collectives})
    if not options.joined and options.cpus is not None:
        estimate += START_RANK_S * max(0, max((c.ranks for c in collectives), default=0) - options.cpus)
    return Plan(
        copies=tuple(copies),
        collectives=tuple(collectives),
        left_out=tuple(left_out),
        estimate_s=estimate,
        budget=options.budget,
    )


def _unusable(gpus: tuple[Gpu, ...], options: Options) -> list[NotMeasured]:
    """Return one entry per cause for which GPUs cannot be opened; required where none is left, or one was named."""
    causes: dict[str, list[Gpu]] = {}
    for g in gpus:
        if g.on_bus and g.address in options.unusable:
            causes.setdefault(options.unusable[g.address], []).append(g)
    none_left = sum(map(len, causes.values())) == len(gpus)
    return [
        NotMeasured(id=", ".join(g.label for g in found), reason=why, required=none_left or bool(options.gpus))
        for why, found in causes.items()
    ]


def _no_gpu(gpus: tuple[Gpu, ...], options: Options) -> list[NotMeasured]:
    """Return what was asked for of GPUs on a machine that has none."""
    asked = {
        "--all-pairs": options.all_pairs,
        "--staged": options.staged,
        "--pageable": options.pageable,
        "--far-numa": options.far_numa,
        f"--engine {options.engine}": options.engine != "driver",
    }
    reason = "no NVIDIA GPU was found on this machine"
    return [NotMeasured(id=o, reason=reason, required=True) for o, given in asked.items() if given and not gpus]


def _copy_rows(
    topology: Topology, gpus: tuple[Gpu, ...], options: Options, left_out: list[NotMeasured]
) -> list[CopyRow]:
    quick, full = options.budget == "quick", options.budget == "full"
    size = options.sizes_bytes[-1] if options.sizes_bytes else (128 if quick else 512) * MIB
    fits = fit_size(size, gpus, options.host_available_bytes)
    if options.sizes_bytes and fits < size:
        reason = f"memory allows {size_text(fits)}, which is measured instead"
        left_out.append(NotMeasured(id=f"copies of {size_text(size)}", reason=reason, required=True))
    size = fits
    make = RowMaker(topology, options, size)
    rows: list[CopyRow] = []
    for group in {"driver": ("driver",), "torch": ("torch",), "both": ("driver", "torch")}[options.engine]:
        for g in gpus:
            rows += make.host_rows(g, group)
        if group == "torch":
            rows += [make.p2p(a, b, "source", group) for a, b in ordered_pairs(gpus, options)]
            continue
        if not quick and len(gpus) > 1:
            rows += [make.host_all("h2d_all", gpus), make.host_all("d2h_all", gpus)]
        pairs = ordered_pairs(gpus, options)
        rows += [make.p2p(a, b, issuer, group) for issuer in ("source", "destination") for a, b in pairs]
        if not quick:
            unordered = [(a, b) for a, b in pairs if a.address < b.address]
            rows += [make.p2p_both(a, b) for a, b in unordered]
            if len(gpus) > 3:
                rows += [make.p2p_round(gpus, r, n) for n, r in enumerate(rounds(len(gpus)))]
            rows += [make.local(g) for g in gpus]
            first = one_of_each_class(topology, pairs)
            rows += [make.latency(a, b, "latency") for a, b in (pairs if len(gpus) <= 8 else first)]
            rows += [make.latency(a, b, "latency_host") for a, b in first]
        if full or (options.sizes_bytes and len(options.sizes_bytes) > 1):
            rows += make.sweeps(gpus, one_of_each_class(topology, pairs))
        if options.staged or not quick:
            staged = pairs if options.staged else one_of_each_class(topology, pairs)
            rows += [make.staged(a, b) for a, b in staged]
            rows += [make.latency(a, b, "latency", staged=True) for a, b in one_of_each_class(topology, staged)]
    # Each child runs once: its rows stand together, the peer rows before the staged ones.
    order = {"driver": 0, "staged": 1, "torch": 2}
    kept: dict[str, CopyRow] = {}
    for row in sorted(rows, key=lambda r: order[r.group]):
        kept.setdefault(row.id, row)
    split = [g for g in gpus if g.nvml is not None and g.nvml.mig_current is True]
    why = "MIG is on: instances have no P2P, so only copies with the host are measured"
    left_out += [NotMeasured(id=g.label, reason=why) for g in split]
    no_p2p = {g.address for g in split}
    return [
        r
        for r in kept.values()
        if not any(t.source in no_p2p and t.destination not in (HOST, t.source) for t in r.transfers)
    ]


def ordered_pairs(gpus: tuple[Gpu, ...], options: Options) -> list[tuple[Gpu, Gpu]]:
    """Return ordered pairs: all of them, or for a quick run of many GPUs the neighbours of a ring."""
    n = len(gpus)
    if options.all_pairs or options.budget != "quick" or n <= 3:
        pairs = [p for r in rounds(n) for p in r]
    else:
        pairs = [(i, (i + 1) % n) for i in range(n)]
    return [(gpus[x], gpus[y]) for a, b in pairs for x, y in ((a, b), (b, a))]


def one_of_each_class(topology: Topology, pairs: list[tuple[Gpu, Gpu]]) -> list[tuple[Gpu, Gpu]]:
    """Return the first pair of each path class."""
    seen: dict[str, tuple[Gpu, Gpu]] = {}
    for a, b in pairs:
        path = next((p for p in topology.paths if p.from_ == a.address and p.to == b.address), None)
        seen.setdefault(str(path.class_) if path else "unknown", (a, b))
    return list(seen.values())


def _host_rows(options: Options) -> list[CopyRow]:
    size = fit_size(256 * MIB, (), options.host_available_bytes)
    return [
        CopyRow(
            id=f"host_memory:host>host:{size}:host",
            kind="host_memory",
            group="host",
            transfers=(Transfer(source=HOST, destination=HOST, issuer=HOST),),
            size_bytes=size,
            copies=4,
            warm_ups=1,
            tolerance=0.02,
            budget_s=1.0,
            estimate_s=1.0,
        )
    ]
