"""Runs a plan on this machine: children, ranks, the watch, and what was measured when it ended, however it ended."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import time
from collections.abc import Callable
from time import monotonic

import msgspec

from topocheck.bandwidth.cases import HOST, CollectiveRow, CopyRow, Plan
from topocheck.model.base import Missing
from topocheck.model.measurement import Measurement, NotMeasured, Run
from topocheck.model.node import Node
from topocheck.model.version import __version__
from topocheck.process.child import PIDS, Child
from topocheck.tests_live.copies.supervisor import run_group
from topocheck.tests_live.disturbance import Watch, device_states, disturbance, disturbed
from topocheck.tests_live.launch.ranks import QUIET_S, life_of, run_collectives
from topocheck.tests_live.launch.rendezvous import Rendezvous
from topocheck.tests_live.launch.world import World
from topocheck.topology.types import Topology

METHOD = (
    "Copies: warm-ups and timed copies are queued behind a gate and then let go; CUDA events; a sample is the mean of "
    "its copies, the headline the median of the samples. Each destination is cleared before a sample and compared "
    "whole, every byte, after it (a quick run: after the last). Collectives: calls back to back, mean "
    "over ranks of elapsed / calls; NCCL is called directly, but one call at a time through torch.distributed; sizes, "
    "algbw and busbw as nccl-tests defines them; GB/s = 10^9 bytes/s."
)
EXPECTED_BUDGET_S = {"quick": 60.0, "standard": 600.0, "full": 1800.0}
"""Seconds after which no further row is begun; the plan should end long before."""

Tell = Callable[[str, str, float], None]
"""Told (kind, words, share of the plan that is done) as it happens."""


def torch_installed() -> bool:
    """Tell whether torch is there, without importing it."""
    return importlib.util.find_spec("torch") is not None


def cpus_here() -> int:
    """Return how many CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def quiet_limit_s(budget: str, rows: tuple[CollectiveRow, ...], *, joined: bool) -> float:
    """Return after how many seconds without a message ranks that have met are considered hung.

    A quick run that hangs should be reported soon: 20 s, or five times what the longest sweep is to take in all. NCCL,
    whose first call on many GPUs takes its time, and ranks of a launcher, of other nodes too, get the usual limit.
    """
    if budget != "quick" or joined or any(r.backend == "nccl" for r in rows):
        return QUIET_S
    return min(QUIET_S, max(20.0, 5 * max(r.estimate_s for r in rows)))


class Runner:
    """One run. `execute` may be interrupted (KeyboardInterrupt) and still returns what was measured.

    Where `end` is given and nothing is to be measured after the copies, the end of their child, which takes its time,
    is left to it.
    """

    def __init__(
        self,
        plan: Plan,
        topology: Topology,
        node: Node | None = None,
        *,
        world: World | None = None,
        meeting: Rendezvous | None = None,
        tell: Tell = lambda kind, words, share: None,
        child: Child | None = None,
        end: contextlib.ExitStack | None = None,
    ) -> None:
        self.plan, self.topology, self.node, self.world, self.tell = plan, topology, node, world, tell
        self.meeting, self.child = meeting, child
        self._end = end
        self.software: dict[str, str] = {"topocheck": __version__, "python": platform.python_version()}
        self.measured: list[Measurement] = []
        self.not_measured: list[NotMeasured] = list(plan.left_out)
        self._done_s = 0.0
        self._row_began = monotonic()
        self._begun: set[str] = set()  # sweeps, whose measurements have ids of their own

    def execute(self) -> Run:
        """Run everything in the plan."""
        begun, taken = monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        devices = self._devices()
        before = self._before()
        watch = Watch(devices)
        interrupted = False
        try:
            self._copies(watch, before, begun)
            self._collectives(watch, before)
        except KeyboardInterrupt:
            interrupted = True
            settled = {m.id for m in self.measured} | {n.id for n in self.not_measured} | self._begun
            rows = [r.id for r in self.plan.copies] + [c.id for c in self.plan.collectives]
            self.not_measured += [NotMeasured(id=r, reason="interrupted") for r in rows if r not in settled]
        finally:
            if self.child is not None:
                self.child.end()
            watch.close()
        return Run(
            taken_at=taken,
            machine=machine_facts(self.node),
            software=self.software,
            method=METHOD,
            planned=self.plan.lines(),
            planned_s=round(self.plan.estimate_s, 1),
            wall_s=round(monotonic() - begun, 3),
            interrupted=interrupted,
            ranks_authenticated_by="" if self.meeting is None else self.meeting.authenticated_by,
            device_states=device_states(watch.looks, devices, before),
            measurements=tuple(self.measured),
            not_measured=tuple(self.not_measured),
        )

    def _devices(self) -> dict[int, str]:
        used = {e for r in self.plan.copies for t in r.transfers for e in (t.source, t.destination)}
        used |= {a for c in self.plan.collectives for a in c.members}
        return {g.index: g.address for g in self.topology.gpus if g.address in used and isinstance(g.index, int)}

    def _before(self) -> dict[int, frozenset[int]]:
        out = {}
        for g in self.topology.gpus:
            if g.nvml is not None and not isinstance(g.nvml.processes, Missing) and isinstance(g.index, int):
                out[g.index] = frozenset(p.pid for p in g.nvml.processes)
        return out

    def _copies(self, watch: Watch, before: dict[int, frozenset[int]], begun: float) -> None:
        groups: dict[str, list[CopyRow]] = {}
        for row in self.plan.copies:
            groups.setdefault(row.group, []).append(row)
        for number, (group, rows) in enumerate(groups.items(), 1):
            if monotonic() - begun > EXPECTED_BUDGET_S[self.plan.budget]:
                self.not_measured += [NotMeasured(id=r.id, reason="out of time") for r in rows]
                continue
            child, self.child = (self.child, None) if group == "driver" else (None, self.child)
            addresses = tuple(
                dict.fromkeys(e for r in rows for t in r.transfers for e in (t.source, t.destination) if e != HOST)
            )
            is_last = number == len(groups) and not self.plan.collectives
            for result in run_group(
                group,
                tuple(rows),
                addresses,
                listen=self._heard,
                child=child,
                software=self.software,
                end=self._end_later if is_last else None,
            ):
                self._keep(result, watch, before)

    def _end_later(self, child: Child) -> None:
        if self._end is None:
            child.end()
        else:
            self._end.callback(child.end)

    def _heard(self, kind: str, row: CopyRow | None, words: str) -> None:
        if kind == "row":
            self._row_began = monotonic()
        if kind in ("measured", "failed") and row is not None:
            self._done_s += row.estimate_s
        share = min(1.0, self._done_s / max(0.1, self.plan.estimate_s))
        self.tell(kind, f"{row.id if row else ''} {words}".strip(), share)

    def _keep(self, result: Measurement | NotMeasured, watch: Watch, before: dict[int, frozenset[int]]) -> None:
        if isinstance(result, NotMeasured):
            self.not_measured.append(result)
            return
        watch.collect()
        ends = {result.from_, result.to, *result.members}
        index = {g.index for g in self.topology.gpus if g.address in ends}
        since = self._row_began if result.kind != "collective" else monotonic() - result.wall_s
        looks = [x for x in watch.looks if x.at >= since and x.gpu.index in index]
        label = self.topology.label
        named = msgspec.structs.replace(result, from_label=label(result.from_), to_label=label(result.to))
        shared = {i: p for i, p in before.items() if i in index}
        words = disturbance(looks, shared, frozenset(PIDS)) if looks else _shared_text(shared)
        self.measured.append(disturbed(named, words))

    def _collectives(self, watch: Watch, before: dict[int, frozenset[int]]) -> None:
        torch_rows = tuple(r for r in self.plan.collectives if r.backend != "mpi")
        mpi_rows = tuple(r for r in self.plan.collectives if r.backend == "mpi")
        if torch_rows:
            members = max((r.members for r in torch_rows), key=len)
            cpus = []
            for a in members:
                g = self.topology.find_gpu(a)
                cpus.append("" if g is None or isinstance(g.cpu_affinity, Missing) else g.cpu_affinity)
            for result in run_collectives(
                torch_rows,
                meeting=self.meeting,
                local_gpus=members,
                local_cpus=tuple(cpus),
                heard=self._heard_ranks,
                software=self.software,
                begun=self._begun,
                quiet_s=quiet_limit_s(self.plan.budget, torch_rows, joined=self.world is not None),
                torch_limit_s=QUIET_S - 5,
            ):
                self._keep(result, watch, before)
        if mpi_rows:
            self._mpi(mpi_rows)

    def _mpi(self, rows: tuple[CollectiveRow, ...]) -> None:
        from topocheck.tests_live.collectives.mpi import run_mpi

        for result in run_mpi(
            rows, world=self.world, software=self.software, begun=self._begun, life=life_of(self.meeting)
        ):
            if isinstance(result, Measurement):
                self.measured.append(result)
            else:
                self.not_measured.append(result)

    def _heard_ranks(self, kind: str, words: str) -> None:
        self.tell(kind, words, min(1.0, self._done_s / max(0.1, self.plan.estimate_s)))


def _shared_text(before: dict[int, frozenset[int]]) -> str:
    busy = [f"GPU{i} is shared with process {', '.join(map(str, sorted(p)))}" for i, p in before.items() if p]
    return "; ".join(busy)


def machine_facts(node: Node | None) -> dict[str, str]:
    """Return what of the node belongs beside a measurement."""
    if node is None:
        return {}
    pairs = {
        "hostname": node.system.hostname,
        "os": node.system.os_name,
        "kernel": node.system.kernel_release,
        "cpu": node.system.cpu_model_name,
        "hypervisor": node.system.hypervisor,
        "driver": node.nvml.driver_version,
        "cuda": node.nvml.cuda_version,
    }
    out = {k: v for k, v in pairs.items() if isinstance(v, str)}
    settings = [f"{s.name}={s.value}" for s in node.settings.nccl if s.in_force]
    if settings:
        out["nccl_settings"] = " ".join(settings)
    gpus = node.nvml.gpus
    if not isinstance(gpus, Missing):
        names = [g.name for g in gpus if isinstance(g.name, str)]
        out["gpus"] = ", ".join(f"{names.count(n)} x {n}" for n in dict.fromkeys(names))
    return out


def busy(topology: Topology, addresses: set[str]) -> list[str]:
    """Return what speaks against measuring these GPUs now: processes on them, load, an exclusive compute mode."""
    out = []
    for g in topology.gpus:
        if g.address not in addresses or g.nvml is None:
            continue
        n = g.nvml
        if not isinstance(n.processes, Missing) and n.processes:
            out.append(f"{g.label} is in use by process {', '.join(str(p.pid) for p in n.processes)}")
        elif isinstance(n.utilization_percent, int) and n.utilization_percent > 5:
            out.append(f"{g.label} is {n.utilization_percent} % busy")
    return out


def forbidden(topology: Topology, addresses: set[str]) -> list[str]:
    """Return what makes measuring impossible: a compute mode that lets no process in."""
    return [
        f"{g.label} is in compute mode {g.nvml.compute_mode}: set it back with nvidia-smi -c DEFAULT (needs root)"
        for g in topology.gpus
        if g.address in addresses and g.nvml is not None and "prohib" in str(g.nvml.compute_mode).lower()
    ]
