"""From a topology and the options to the rows that will be run. Pure: asks no machine and no clock."""

from __future__ import annotations

import msgspec

from topocheck.model.base import Missing
from topocheck.tests_live.host_path import host_path
from topocheck.tests_live.plan_collectives import collective_rows
from topocheck.tests_live.rows import HOST, CopyRow, Plan, Transfer
from topocheck.topology.types import Gpu, Topology

MIB = 1 << 20
START_S = {"driver": 1.0, "staged": 1.0, "torch": 7.0, "host": 0.3}
"""Seconds until a child of that group is ready with two GPUs (a driver context takes 0.3 to 0.5 s a GPU; torch's
import and start 5 to 9 s)."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for.

    Attributes:
        budget: quick, standard or full.
        gpus: labels, addresses or UUIDs; empty for all.
        all_pairs: every ordered pair even where the budget would take neighbours only.
        collectives, backends: empty for the budget's own choice.
        sizes_bytes: empty for the budget's own choice.
        engine: driver, torch or both.
        torch_available: whether torch is installed (found, not imported).
        host_available_bytes: memory the host can spare; None where it is not known.
    """

    budget: str = "standard"
    gpus: tuple[str, ...] = ()
    all_pairs: bool = False
    pageable: bool = False
    worst_node: bool = False
    staged: bool = False
    engine: str = "driver"
    copies: bool = True
    collectives: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    ranks: int | None = None
    sizes_bytes: tuple[int, ...] = ()
    dtype: str = "float32"
    torch_available: bool = True
    driver_available: bool = True
    host_available_bytes: int | None = None


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


def fit_size(size_bytes: int, gpus: tuple[Gpu, ...], host_available_bytes: int | None, buffers: int = 2) -> int:
    """Return the largest halving of `size_bytes`, down to 16 MiB, that leaves devices and host enough memory.

    At most a quarter of each GPU's free memory for its buffers, and a tenth of what the host can spare, never
    more than 1 GiB, for pinned pages.
    """

    def fits(size: int) -> bool:
        for g in gpus:
            total = g.nvml.memory_total_bytes if g.nvml else None
            used = g.nvml.memory_used_bytes if g.nvml else None
            if isinstance(total, int) and isinstance(used, int) and size * buffers > (total - used) // 4:
                return False
        return host_available_bytes is None or size * buffers <= min(1 << 30, host_available_bytes // 10)

    size = size_bytes
    while size > 16 * MIB and not fits(size):
        size //= 2
    return size


def make_plan(topology: Topology, options: Options) -> Plan:
    """Return the plan for one node.

    Raises:
        ValueError: an option that fits nothing on this machine.
    """
    gpus = choose_gpus(topology, options.gpus)
    left_out: list[tuple[str, str]] = []
    ready: list[Gpu] = []
    for g in gpus:
        if not g.on_bus:
            left_out.append((g.label, f"{g.address} is lost from the bus; nothing was measured on it"))
        else:
            ready.append(g)
    copies: list[CopyRow] = []
    if options.copies and ready and options.driver_available:
        copies = _copy_rows(topology, tuple(ready), options, left_out)
    elif options.copies and ready:
        left_out.append(("copies", "cuda-bindings is not installed: pip install 'topocheck-gpu[bw]'"))
    elif options.copies and options.budget != "quick" and not options.collectives:
        copies = _host_rows(options)
    collectives = collective_rows(tuple(ready), options, left_out)
    started = {r.group for r in copies}
    estimate = sum(r.estimate_s for r in copies) + sum(START_S[g] for g in started)
    estimate += sum(c.estimate_s for c in collectives)
    return Plan(
        copies=tuple(copies),
        collectives=tuple(collectives),
        left_out=tuple(left_out),
        estimate_s=estimate,
        budget=options.budget,
    )


def _copy_rows(
    topology: Topology, gpus: tuple[Gpu, ...], options: Options, left_out: list[tuple[str, str]]
) -> list[CopyRow]:
    quick, full = options.budget == "quick", options.budget == "full"
    size = options.sizes_bytes[-1] if options.sizes_bytes else (128 if quick else 512) * MIB
    size = fit_size(size, gpus, options.host_available_bytes)
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
    left_out += [(g.label, why) for g in split]
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


class RowMaker:
    """Makes rows of one plan; knows the size, the samples and the CPUs near each GPU."""

    def __init__(self, topology: Topology, options: Options, size: int) -> None:
        self.topology = topology
        self.options = options
        self.size = size
        quick = options.budget == "quick"
        self.samples = (3, 3) if quick else (5, 15)
        self.budget_s = 0.2 if quick else 1.5
        self.quick = quick

    def _row(
        self, id_: str, kind: str, group: str, transfers: tuple[Transfer, ...], rate: float, **more: object
    ) -> CopyRow:
        size = int(str(more.pop("size", self.size)))
        host = kind in ("h2d", "d2h", "host_both", "h2d_all", "d2h_all")
        copies = 8 if self.quick and host else max(16, min(512, 16 * 64 * MIB // size))
        warm_ups = 2 if self.quick and host else 4
        each = (copies + warm_ups) * size / rate / 1e9 + size / 4e9 + 0.002
        fields: dict[str, object] = {
            "id": id_,
            "kind": kind,
            "group": group,
            "transfers": transfers,
            "size_bytes": size,
            "copies": copies,
            "warm_ups": warm_ups,
            "samples_min": self.samples[0],
            "samples_max": self.samples[1],
            "budget_s": self.budget_s,
            "verify": "last" if self.quick else "each",
            "estimate_s": round(each * self.samples[0] + 0.02, 3),
        }
        return CopyRow(**(fields | more))  # type: ignore[arg-type]

    def _cpus(self, g: Gpu) -> tuple[str, int | None]:
        cpus = g.cpu_affinity
        node = g.cpu_node
        return ("" if isinstance(cpus, Missing) else cpus), (None if isinstance(node, Missing) else node)

    def _host_rate(self, g: Gpu) -> float:
        hop = host_path(self.topology, g)
        return (hop.gb_s if hop and isinstance(hop.gb_s, float) else 25.0) * 0.8

    def _p2p_rate(self, a: Gpu, b: Gpu) -> float:
        path = next((p for p in self.topology.paths if p.from_ == a.address and p.to == b.address), None)
        return (path.theoretical_gb_s if path and isinstance(path.theoretical_gb_s, float) else 25.0) * 0.8

    def host_rows(self, g: Gpu, group: str) -> list[CopyRow]:
        """Return the rows between the host and one GPU that the options ask for."""
        cpus, node = self._cpus(g)
        rate, a = self._host_rate(g), g.address
        up = Transfer(source=HOST, destination=a, issuer=a)
        down = Transfer(source=a, destination=HOST, issuer=a)
        near = {"host_cpus": cpus, "host_node": node}
        end = f"{self.size}:{group}"
        rows = [
            self._row(f"h2d:host>{a}:{end}", "h2d", group, (up,), rate, **near),
            self._row(f"d2h:{a}>host:{end}", "d2h", group, (down,), rate, **near),
        ]
        if not self.quick and group == "driver":
            both = self._row(
                f"host_both:host>{a}:{end}", "host_both", group, (up, down), rate, direction="bidirectional", **near
            )
            rows.append(both)
        if self.options.pageable:
            slow = {"pageable": True, "copies": 2, "warm_ups": 1, **near}
            rows.append(self._row(f"h2d:host>{a}:{end}:pageable", "h2d", group, (up,), 5.0, **slow))
            rows.append(self._row(f"d2h:{a}>host:{end}:pageable", "d2h", group, (down,), 5.0, **slow))
        if self.options.worst_node and group == "driver":
            far = worst_cpus(self.topology, g)
            if far is not None:
                away = {"host_cpus": far[0], "host_node": far[1]}
                rows.append(self._row(f"h2d:host>{a}:{end}:node{far[1]}", "h2d", group, (up,), rate / 2, **away))
                rows.append(self._row(f"d2h:{a}>host:{end}:node{far[1]}", "d2h", group, (down,), rate / 2, **away))
        return rows

    def host_all(self, kind: str, gpus: tuple[Gpu, ...]) -> CopyRow:
        """Return the row of every GPU and the host at once; the rate is the sum."""
        ts = tuple(
            Transfer(
                source=HOST if kind == "h2d_all" else g.address,
                destination=g.address if kind == "h2d_all" else HOST,
                issuer=g.address,
            )
            for g in gpus
        )
        # Each GPU has a pinned buffer of its own here; all together hold at most 1 GiB.
        size = min(self.size, max(16 * MIB, 1 << ((1 << 30) // len(gpus)).bit_length() - 1))
        return self._row(f"{kind}:{size}:driver", kind, "driver", ts, 20.0, direction="aggregate", size=size)

    def p2p(self, a: Gpu, b: Gpu, issuer: str, group: str, size: int | None = None) -> CopyRow:
        """Return one ordered pair, push (`issuer` source) or pull (`issuer` destination)."""
        t = Transfer(source=a.address, destination=b.address, issuer=a.address if issuer == "source" else b.address)
        word = "push" if issuer == "source" else "pull"
        size = size or self.size
        id_ = f"p2p:{a.address}>{b.address}:{size}:{group}:{word}"
        return self._row(id_, "p2p", group, (t,), self._p2p_rate(a, b), peer_access=True, size=size)

    def p2p_both(self, a: Gpu, b: Gpu, *, staged: bool = False) -> CopyRow:
        """Return one pair with both directions at once, each pushed by its source."""
        ts = tuple(Transfer(source=x.address, destination=y.address, issuer=x.address) for x, y in ((a, b), (b, a)))
        group = "staged" if staged else "driver"
        id_ = f"p2p_both:{a.address}>{b.address}:{self.size}:{group}"
        rate = 15.0 if staged else self._p2p_rate(a, b)
        return self._row(id_, "p2p_both", group, ts, rate, direction="bidirectional", peer_access=not staged)

    def p2p_round(self, gpus: tuple[Gpu, ...], pairs: list[tuple[int, int]], number: int) -> CopyRow:
        """Return all pairs of one round of the circle method at once, both directions of each."""
        ts = tuple(
            Transfer(source=gpus[x].address, destination=gpus[y].address, issuer=gpus[x].address)
            for a, b in pairs
            for x, y in ((a, b), (b, a))
        )
        id_ = f"p2p_round:{number}of{len(gpus)}:{self.size}:driver"
        rate = min(self._p2p_rate(gpus[a], gpus[b]) for a, b in pairs) / 2
        return self._row(id_, "p2p_round", "driver", ts, rate, direction="aggregate", peer_access=True)

    def staged(self, a: Gpu, b: Gpu) -> CopyRow:
        """Return one ordered pair without peer access: the driver stages it through the host."""
        t = Transfer(source=a.address, destination=b.address, issuer=a.address)
        id_ = f"p2p:{a.address}>{b.address}:{self.size}:staged"
        return self._row(id_, "p2p", "staged", (t,), 15.0, peer_access=False)

    def local(self, g: Gpu) -> CopyRow:
        """Return the copy within one GPU."""
        t = Transfer(source=g.address, destination=g.address, issuer=g.address)
        return self._row(f"local:{g.address}>{g.address}:{self.size}:driver", "local", "driver", (t,), 500.0)

    def latency(self, a: Gpu, b: Gpu, kind: str, *, staged: bool = False) -> CopyRow:
        """Return the latency of 16-byte copies of one ordered pair."""
        t = Transfer(source=a.address, destination=b.address, issuer=a.address)
        group = "staged" if staged else "driver"
        return self._row(
            f"{kind}:{a.address}>{b.address}:16:{group}",
            kind,
            group,
            (t,),
            100.0,
            size=16,
            copies=200,
            warm_ups=20,
            peer_access=not staged,
            tolerance=0.02,
            budget_s=0.5,
            estimate_s=0.1,
        )

    def sweeps(self, gpus: tuple[Gpu, ...], pairs: list[tuple[Gpu, Gpu]]) -> list[CopyRow]:
        """Return the sizes from 4 KiB to 1 GiB for one pair of each class and one GPU with the host."""
        sizes = self.options.sizes_bytes or tuple(4096 << 2 * n for n in range(10))
        top = fit_size(max(sizes), gpus, self.options.host_available_bytes)
        rows = [self.p2p(a, b, "source", "driver", s) for a, b in pairs for s in sizes if s <= top]
        if gpus:
            g = gpus[0]
            cpus, node = self._cpus(g)
            t = Transfer(source=HOST, destination=g.address, issuer=g.address)
            for s in sizes:
                if s <= top:
                    id_ = f"h2d:host>{g.address}:{s}:driver"
                    rate = self._host_rate(g)
                    rows.append(self._row(id_, "h2d", "driver", (t,), rate, size=s, host_cpus=cpus, host_node=node))
        return rows


def worst_cpus(topology: Topology, g: Gpu) -> tuple[str, int] | None:
    """Return CPUs and node of a GPU on another NUMA node, which is the far one for `g`; None where all share one."""
    mine = g.cpu_node
    if isinstance(mine, Missing):
        return None
    for other in topology.gpus:
        node, cpus = other.cpu_node, other.cpu_affinity
        if not isinstance(node, Missing) and not isinstance(cpus, Missing) and node != mine:
            return cpus, node
    return None
