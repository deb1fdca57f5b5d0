"""Makes the rows of copies: what moves, how often, and about how long it takes."""

from __future__ import annotations

from topocheck.bandwidth.buffers import MIB, fit_size
from topocheck.bandwidth.cases import HOST, CopyRow, Transfer
from topocheck.bandwidth.link_rates import host_hop, pair_rate, rate
from topocheck.bandwidth.options import Options
from topocheck.model.base import Missing
from topocheck.topology.types import Gpu, Topology


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
        copies, warm_ups = max(16, min(512, 16 * 64 * MIB // size)), 4
        if self.quick:
            # Of 128 MiB a sample lasts 10 ms at gen 5 x16 and 3 ms over 18 NVLinks; the clock tells 0.5 us apart.
            copies, warm_ups = (4, 1) if host else (8, 2)
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
        hop = host_hop(self.topology, g.address)
        return ((rate(hop) if hop else None) or 25.0) * 0.8

    def _p2p_rate(self, a: Gpu, b: Gpu) -> float:
        return (pair_rate(self.topology, a.address, b.address) or 25.0) * 0.8

    def host_rows(self, g: Gpu, group: str) -> list[CopyRow]:
        """Return the rows between the host and one GPU that the options ask for."""
        cpus, node = self._cpus(g)
        speed, a = self._host_rate(g), g.address
        up = Transfer(source=HOST, destination=a, issuer=a)
        down = Transfer(source=a, destination=HOST, issuer=a)
        near = {"host_cpus": cpus, "host_node": node}
        end = f"{self.size}:{group}"
        rows = [
            self._row(f"h2d:host>{a}:{end}", "h2d", group, (up,), speed, **near),
            self._row(f"d2h:{a}>host:{end}", "d2h", group, (down,), speed, **near),
        ]
        if not self.quick and group == "driver":
            both = self._row(
                f"host_both:host>{a}:{end}", "host_both", group, (up, down), speed, direction="bidirectional", **near
            )
            rows.append(both)
        if self.options.pageable:
            slow = {"pageable": True, "copies": 2, "warm_ups": 1, **near}
            rows.append(self._row(f"h2d:host>{a}:{end}:pageable", "h2d", group, (up,), 5.0, **slow))
            rows.append(self._row(f"d2h:{a}>host:{end}:pageable", "d2h", group, (down,), 5.0, **slow))
        if self.options.far_numa and group == "driver":
            far = worst_cpus(self.topology, g)
            if far is not None:
                away = {"host_cpus": far[0], "host_node": far[1], "far": True}
                rows.append(self._row(f"h2d:host>{a}:{end}:node{far[1]}", "h2d", group, (up,), speed / 2, **away))
                rows.append(self._row(f"d2h:{a}>host:{end}:node{far[1]}", "d2h", group, (down,), speed / 2, **away))
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
        speed = 15.0 if staged else self._p2p_rate(a, b)
        return self._row(id_, "p2p_both", group, ts, speed, direction="bidirectional", peer_access=not staged)

    def p2p_round(self, gpus: tuple[Gpu, ...], pairs: list[tuple[int, int]], number: int) -> CopyRow:
        """Return all pairs of one round of the circle method at once, both directions of each."""
        ts = tuple(
            Transfer(source=gpus[x].address, destination=gpus[y].address, issuer=gpus[x].address)
            for a, b in pairs
            for x, y in ((a, b), (b, a))
        )
        id_ = f"p2p_round:{number}of{len(gpus)}:{self.size}:driver"
        speed = min(self._p2p_rate(gpus[a], gpus[b]) for a, b in pairs) / 2
        return self._row(id_, "p2p_round", "driver", ts, speed, direction="aggregate", peer_access=True)

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
                    speed = self._host_rate(g)
                    rows.append(self._row(id_, "h2d", "driver", (t,), speed, size=s, host_cpus=cpus, host_node=node))
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
