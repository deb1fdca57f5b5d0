"""The NVLink graph: which GPUs reach each other, by how many links and at what rate.

NVML names the far end of each link. An NVSwitch joins every GPU that has active links to it with every other
(they share one non-blocking fabric), with as many links as the smaller of the two has. A far end that a
hypervisor masks (FFFFFFFF:FF:FF.0) is taken for a switch, as NCCL does (NVIDIA/nccl src/graph/xml.cc). Where NVML
says nothing of the far end, its P2P status for NVLink tells which GPUs are joined.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from typing import Literal

import msgspec

from topocheck.knowledge import rates
from topocheck.model.base import Missing, Reason, is_lost
from topocheck.model.gpu import NvLink, NvmlGpu, P2pStatus
from topocheck.model.system import DeviceFile
from topocheck.topology.types import Gpu, NvLinkGroup


class Bundle(msgspec.Struct, frozen=True, dict=True):
    """The links in use between two GPUs: how many, their payload rate in one direction, and their generation."""

    links: int
    gb_s: float | Missing
    version: int | Missing
    through_switch: bool

    @functools.cached_property
    def class_(self) -> str:
        """The word of `nvidia-smi topo -m`."""
        return f"NV{self.links}"

    @functools.cached_property
    def text(self) -> str:
        """What a hop over these links is called."""
        version = "" if isinstance(self.version, Missing) else f" {self.version}"
        return f"{self.links} x NVLink{version}{' through NVSwitch' if self.through_switch else ''}"


class Ends(msgspec.Struct, frozen=True):
    """Active links of one GPU by far end: to each GPU, to switches, and those whose far end is not reported."""

    to_gpu: dict[str, tuple[NvLink, ...]]
    to_switch: tuple[NvLink, ...]
    untold: tuple[NvLink, ...]


def ends_of(gpu: Gpu, gpus: Collection[str], switches: Collection[str]) -> Ends:
    """Sort a GPU's active links by their far end. Links to a CPU or to a GPU hidden here count nowhere."""
    to_gpu: dict[str, list[NvLink]] = {}
    to_switch, untold = [], []
    for link in gpu.nvml.nvlinks if gpu.nvml else ():
        if link.active is not True:
            continue
        far, kind = link.remote_address, link.remote_type
        if isinstance(far, Missing):
            if kind == "switch" or (far.reason is Reason.NOT_VISIBLE_HERE and kind not in ("gpu", "ibmnpu")):
                to_switch.append(link)
            elif kind not in ("gpu", "ibmnpu"):
                untold.append(link)
        elif far in gpus:
            to_gpu.setdefault(far, []).append(link)
        elif kind == "switch" or far in switches:
            to_switch.append(link)
    return Ends({a: tuple(ls) for a, ls in to_gpu.items()}, tuple(to_switch), tuple(untold))


def untold(gpu: Gpu, listed: tuple[NvmlGpu, ...] | Missing, file: DeviceFile | None = None) -> Missing | None:
    """Return why a GPU may have more NVLinks in use, or to other ends, than are known; None where all answered.

    `listed` are NVML's GPUs, or why there are none; `file` is the GPU's device file.
    """
    if isinstance(listed, Missing):
        return listed if is_lost(listed) else None
    if gpu.nvml is None and file is not None and file.refused:
        return Missing(Reason.NOT_VISIBLE_HERE, f"this process may not open {file.path}")
    count = gpu.nvml.nvlink_count if gpu.nvml else 0
    if isinstance(count, Missing) and count.reason is Reason.NOT_RECORDED and gpu.nvml and not gpu.nvml.nvlinks:
        return count
    for link in gpu.nvml.nvlinks if gpu.nvml else ():
        end = link.remote_address if link.active is True and link.remote_type != "switch" else link.active
        if isinstance(end, Missing) and is_lost(end):
            return end
    return None


def link_rate(links: Iterable[NvLink]) -> float | Missing:
    """Return the summed payload rate of some links, GB/s in one direction; Missing where one cannot be determined."""
    total = 0.0
    for link in links:
        try:
            total += rates.nvlink_gb_s(
                None if isinstance(link.version, Missing) else link.version,
                None if isinstance(link.speed_mb_s, Missing) else link.speed_mb_s,
            )
        except ValueError as e:
            return Missing(Reason.UNSUPPORTED, str(e))
    return total


def _bundle(a: tuple[NvLink, ...], b: tuple[NvLink, ...], through_switch: bool) -> Bundle | None:
    """Join the links that two GPUs have towards each other: the smaller number, the smaller rate."""
    n = min(len(a), len(b))
    if n == 0:
        return None
    known_rates = [r for r in (link_rate(a[:n]), link_rate(b[:n])) if not isinstance(r, Missing)]
    versions = [x.version for x in (*a, *b) if not isinstance(x.version, Missing)]
    return Bundle(
        n,
        min(known_rates) if known_rates else link_rate(a[:n]),
        min(versions) if versions else a[0].version,
        through_switch,
    )


def graph(
    gpus: Iterable[Gpu], switches: Collection[str], statuses: Mapping[tuple[str, str], P2pStatus]
) -> dict[tuple[str, str], Bundle]:
    """Return the bundle of every ordered pair of GPUs that NVLink joins."""
    listed = tuple(gpus)
    addresses = {g.address for g in listed}
    ends = {g.address: ends_of(g, addresses, switches) for g in listed}
    make = _Bundles()
    joined = _joined_by_status(statuses)
    out: dict[tuple[str, str], Bundle] = {}
    for a, b in combinations(sorted(addresses), 2):
        direct = _direct(a, b, ends)
        bundle = make(*direct, False) or make(ends[a].to_switch, ends[b].to_switch, True)
        bundle = bundle or _by_status(a, b, ends, joined, make)
        if bundle is not None:
            out[a, b] = out[b, a] = bundle
    return out


class _Bundles:
    """Joins links to bundles. GPUs of one kind have the same links, so what was joined once is kept."""

    def __init__(self) -> None:
        self._kinds: dict[int, int] = {}
        self._numbers: dict[tuple[tuple[object, object], ...], int] = {}
        self._made: dict[tuple[int, int, bool], Bundle | None] = {}

    def _kind(self, links: tuple[NvLink, ...]) -> int:
        """Return a number for what counts of some links; they live as long as this, so `id` names them."""
        if id(links) not in self._kinds:
            counted = tuple((x.version, x.speed_mb_s) for x in links)
            self._kinds[id(links)] = self._numbers.setdefault(counted, len(self._numbers))
        return self._kinds[id(links)]

    def __call__(self, a: tuple[NvLink, ...], b: tuple[NvLink, ...], through_switch: bool) -> Bundle | None:
        """Return the bundle of what two GPUs have towards each other; None where one has nothing."""
        if not a or not b:
            return None
        key = (self._kind(a), self._kind(b), through_switch)
        if key not in self._made:
            self._made[key] = _bundle(a, b, through_switch)
        return self._made[key]


def _direct(a: str, b: str, ends: Mapping[str, Ends]) -> tuple[tuple[NvLink, ...], tuple[NvLink, ...]]:
    """Return both sides' links to each other; where one side's far ends are not reported, the other's word stands."""
    there, back = ends[a].to_gpu.get(b, ()), ends[b].to_gpu.get(a, ())
    if there and not back and ends[b].untold:
        return there, there
    if back and not there and ends[a].untold:
        return back, back
    return there, back


def _joined_by_status(statuses: Mapping[tuple[str, str], P2pStatus]) -> dict[str, set[str]]:
    """Return each GPU with those that NVML's status for NVLink says it reaches."""
    out: dict[str, set[str]] = {}
    for (a, b), s in statuses.items():
        if s.nvlink == "OK":
            out.setdefault(a, set()).add(b)
    return out


def _by_status(
    a: str, b: str, ends: Mapping[str, Ends], joined: Mapping[str, set[str]], make: _Bundles
) -> Bundle | None:
    """Return the bundle of two GPUs whose links do not tell their far ends, where NVML says NVLink P2P is OK."""
    if not ends[a].untold or not ends[b].untold:
        return None
    of_a, of_b = joined.get(a, set()), joined.get(b, set())
    if b not in of_a or a not in of_b:
        return None
    alone = len(of_a) == len(of_b) == 1
    return make(ends[a].untold, ends[b].untold, not alone)


def groups(gpus: Iterable[Gpu], bundles: Mapping[tuple[str, str], Bundle]) -> tuple[NvLinkGroup, ...]:
    """Return the sets of GPUs that NVLink joins, directly or by way of others, in the order of `gpus`."""
    order = [g.address for g in gpus]
    seen: set[str] = set()
    out = []
    for start in order:
        if start in seen:
            continue
        members, todo = {start}, [start]
        while todo:
            at = todo.pop()
            for other in order:
                if (at, other) in bundles and other not in members:
                    members.add(other)
                    todo.append(other)
        seen |= members
        if len(members) < 2:
            continue
        inside = [bundles.get(p) for p in combinations([a for a in order if a in members], 2)]
        if all(b is not None and b.through_switch for b in inside):
            kind: Literal["switch", "mesh", "partial"] = "switch"
        elif all(b is not None for b in inside):
            kind = "mesh"
        else:
            kind = "partial"
        out.append(NvLinkGroup(gpus=tuple(a for a in order if a in members), kind=kind))
    return tuple(out)
