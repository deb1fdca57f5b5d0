"""NCCL's tests of GPU and NIC pairs on one host, and how they re-route its paths (src/graph/paths.cc)."""

from __future__ import annotations

import functools

import msgspec

from topocheck.knowledge.nccl import Version
from topocheck.knowledge.nccl_rules import word
from topocheck.model.base import Effect, Evidence, Missing, ReasonStep
from topocheck.nccl.predict.graph import build_graph
from topocheck.nccl.predict.paths import NOWHERE, Locals, Path, all_paths, find, local_cpu
from topocheck.nccl.predict.types import HostInput, Transport
from topocheck.nccl.rules import versions
from topocheck.nccl.rules.settings import Settings


class P2p(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whether level and NVML let two GPUs use P2P. `unknown` where NVML's answer is needed and not there."""

    allowed: bool
    unknown: bool = False
    through: int | None = None
    fatal: str = ""
    reasons: tuple[ReasonStep, ...] = ()


class Gdr(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a GPU and a NIC use GPUDirect RDMA; `pci` for the PCIe mapping of a C2C GPU.

    `unknown`: the distance fits, but whether both can do it is not known.
    """

    used: bool
    unknown: bool = False
    pci: bool = False
    reasons: tuple[ReasonStep, ...] = ()


_OK_BOTH = ("OK", "OK")


def _permitted(a: str, b: str) -> ReasonStep:
    evidence = (Evidence(f"nvmlDeviceGetP2PStatus {a} {b}", "read OK, write OK"),)
    return ReasonStep("NVML says OK for reading and writing", "yes", evidence)


class HostView:
    """One host with its graph.

    Attributes:
        wanted: addresses of the GPUs of the job; None for all.
        first: the paths as found.
        table: those after all tests; changed by `put` alone, which keeps what was worked out of them true.
        changes: how often the nearest nodes of some node became others.
        cumem: whether cuMem buffers are used and why, once it was worked out (transport.py).
        choices, users: what was worked out of them for each GPU and NIC (rerouting.py), with `changes` at that time.
    """

    def __init__(self, host: HostInput, version: Version, gpus: tuple[str, ...] | None = None) -> None:
        self.host = host
        self.version = version
        self.wanted = gpus
        self.settings = Settings(host.settings, version)
        self.graph = build_graph(host.topology, version, gpus)
        nvb = versions.has("nvb", version) and not self.settings.nonzero("NCCL_NVB_DISABLE")
        self.first = all_paths(self.graph, nvb=nvb)
        self.table = {kinds: {i: dict(row) for i, row in rows.items()} for kinds, rows in self.first.items()}
        self.p2p_checks: dict[tuple[int, int], P2p] = {}
        self.changes = 0
        self._gpus = {g.address: i for i, g in reversed(list(enumerate(self.graph.gpus)))}
        self._locals: dict[tuple[str, int, str], Locals] = {}
        self._steps: dict[tuple[str, str], ReasonStep] = {}
        self._distances: dict[str, P2p] = {}
        self._gdr: dict[tuple[int, int, bool, str, str], Gdr] = {}
        self._refused: dict[int, ReasonStep | None] = {}
        self._near_nic: dict[int, float] = {}
        self.cumem: tuple[bool | Missing, ReasonStep] | None = None
        self.choices: dict[int, object] = {}
        self.users: dict[int, tuple[int | None, int]] = {}

    def gpu(self, address: str) -> int | None:
        """Return the index of the GPU at an address, or None."""
        return self._gpus.get(address)

    @functools.cached_property
    def gpu_by_dev(self) -> dict[int, int]:
        """NVML index -> index of the first GPU that has it."""
        return {g.dev: i for i, g in reversed(list(enumerate(self.graph.gpus)))}

    def path(self, kind1: str, index1: int, kind2: str, index2: int) -> Path:
        """Return a path as it stands now."""
        return find(self.table, kind1, index1, kind2, index2)

    def put(self, kind1: str, index1: int, kind2: str, index2: int, path: Path) -> None:
        """Change a path."""
        rows = self.table.get((kind1, kind2))
        if rows is not None and index1 in rows:
            rows[index1][index2] = path
        else:
            self.table.setdefault((kind1, kind2), {})[index1] = {index2: path}
        nearest = self._locals.get((kind1, index1, kind2))
        if nearest is not None and nearest.changed(index2, path):
            self.changes += 1
        if kind1 == "GPU" and kind2 == "NET":
            self._near_nic.pop(index1, None)
        if kind1 == kind2 == "GPU":
            self._refused.pop(index1, None)

    def locals_of(self, kind: str, index: int, wanted: str) -> list[int]:
        """Return the nodes of a kind with most bandwidth from here, of equals the closest; not to be changed."""
        key = (kind, index, wanted)
        if key not in self._locals:
            self._locals[key] = Locals(self.graph, self.table, kind, index, wanted)
        return self._locals[key].nodes

    @functools.cached_property
    def gpu_rows(self) -> dict[int, dict[int, Path]]:
        """The paths between GPUs as they stand now, by both indices; each GPU has one to itself."""
        return self.table["GPU", "GPU"]

    @functools.cached_property
    def first_gpu_rows(self) -> dict[int, dict[int, Path]]:
        """Those as found."""
        return self.first["GPU", "GPU"]

    @functools.cached_property
    def cpus(self) -> tuple[int, ...]:
        """The CPU nearest to each GPU; no test changes the paths between them."""
        return tuple(local_cpu(self.graph, self.table, i) for i in range(len(self.graph.gpus)))

    @functools.cached_property
    def copies(self) -> bool:
        """Whether P2P goes by copy engines."""
        return self.settings.nonzero("NCCL_P2P_USE_CUDA_MEMCPY")

    @functools.cached_property
    def read_setting(self) -> int:
        """NCCL_P2P_READ_ENABLE, or -2 where it is not set."""
        return self.settings.integer("NCCL_P2P_READ_ENABLE", -2)

    @functools.cached_property
    def shm_off(self) -> bool:
        """Whether NCCL_SHM_DISABLE switches shared memory off."""
        return self.settings.is_one("NCCL_SHM_DISABLE")

    @functools.cached_property
    def shm(self) -> Transport:
        """Shared memory, in the version's words."""
        return Transport("SHM", word("shm_text", self.version, "SHM"))

    @functools.cached_property
    def nets_compete(self) -> bool:
        """Whether a NIC that is faster than the path between two GPUs of the host takes their traffic."""
        off = self.settings.is_one("NCCL_NET_DISABLE_INTRA")
        return bool(self.graph.nets) and not off and versions.has("net_beats_p2p", self.version)

    def near_nic_gb_s(self, gpu: int) -> float:
        """Return the bandwidth to the best NIC within PXB of a GPU; 0 without one."""
        found = self._near_nic.get(gpu)
        if found is None:
            paths = (self.path("GPU", gpu, "NET", n.index) for n in self.graph.nodes["NET"])
            near = (p.gb_s for p in paths if versions.rank(p.type) <= versions.rank("PXB"))
            found = self._near_nic[gpu] = max(near, default=0.0)
        return found

    def _step(self, text: str, effect: Effect) -> ReasonStep:
        """Return a reason without evidence; pairs share those that are equal."""
        return self._steps.setdefault((text, effect), ReasonStep(text, effect))

    def p2p_level(self) -> tuple[str, ReasonStep]:
        """Return the farthest path type for P2P, and the rule that says so."""
        return self._p2p_level

    @functools.cached_property
    def _p2p_level(self) -> tuple[str, ReasonStep]:
        s = self.settings
        disabled, level = s.is_one("NCCL_P2P_DISABLE"), s.level("NCCL_P2P_LEVEL")
        wins = versions.has("p2p_disable_wins", self.version)
        if disabled and (wins or level is None):
            text = "NCCL_P2P_DISABLE=1 allows no pair of GPUs (level LOC)"
            return "LOC", ReasonStep(text, "no", s.evidence("NCCL_P2P_DISABLE"), "unset NCCL_P2P_DISABLE")
        if level is not None:
            return level, ReasonStep(f"NCCL_P2P_LEVEL is {level}", "info", s.evidence("NCCL_P2P_LEVEL"))
        g = self.graph
        physical = len({n.address for n in g.nodes["GPU"]}) if self.version >= (2, 30, 3) else len(g.gpus)
        rule = versions.p2p_level(self.version, g.cpu, len(g.cpus), physical)
        cpu = f"{g.cpu.vendor or g.cpu.arch or 'unknown'} CPU, {physical} GPUs in the communicator"
        text = f"by default P2P reaches as far as {rule.value} ({cpu})"
        return rule.value, ReasonStep(text, "info", (Evidence("NCCL rule", rule.source),))

    @staticmethod
    def _relay(path: Path) -> int | None:
        if path.hops != 2:
            return None
        middle = path.step()
        return middle.index if middle is not None and middle.kind == "GPU" else None

    def check_p2p(self, i: int, j: int) -> P2p:
        """Test two GPUs of this host: distance, then NVML's status of each hop (ncclTopoCheckP2p)."""
        path = self.gpu_rows[i].get(j, NOWHERE)
        known = self._distances.get(path.type)
        if known is None:
            near, steps = self._near_enough(path.type)
            known = self._distances[path.type] = P2p(allowed=near, reasons=steps)
        if not known.allowed:
            return known
        steps = known.reasons
        through = self._relay(path) if path.hops == 2 else None
        if not self._asks_nvml:
            return P2p(allowed=True, through=through, reasons=steps)
        if through is None:
            a, b = self._addresses[i], self._addresses[j]
            if a != b and self.host.p2p_status.get((a, b)) == _OK_BOTH:
                return P2p(allowed=True, reasons=(*steps, _permitted(a, b)))
        hops = ((i, j),) if through is None else ((i, through), (through, j))
        return self._nvml(path, hops, through, steps)

    def _near_enough(self, kind: str) -> tuple[bool, tuple[ReasonStep, ...]]:
        """Return whether P2P reaches over a kind of path, and why."""
        level, step = self.p2p_level()
        always = versions.has("nvlink_always", self.version) and kind in ("NVL", "NVB") and level != "LOC"
        if not always and versions.rank(kind) > versions.rank(level):
            fix = None
            if step.effect != "no" and versions.rank(kind) <= versions.rank("SYS"):
                fix = f"NCCL_P2P_LEVEL={kind}, once a copy with checked data is right and faster"
            return False, (step, ReasonStep(f"the path is {kind}, farther than {level}: no P2P", "no", (), fix))
        why: tuple[ReasonStep, ...] = (step, ReasonStep(f"the path is {kind}, within {level}", "yes"))
        if versions.has("nvml_status", self.version) and not self._asks_nvml:
            text = "NCCL_IGNORE_DISABLED_P2P=2: NVML is not asked"
            why += (ReasonStep(text, "info", self.settings.evidence("NCCL_IGNORE_DISABLED_P2P")),)
        return True, why

    @functools.cached_property
    def _addresses(self) -> tuple[str, ...]:
        return tuple(g.address for g in self.graph.gpus)

    @functools.cached_property
    def _asks_nvml(self) -> bool:
        ignored = self.settings.integer("NCCL_IGNORE_DISABLED_P2P", 0) == 2
        return versions.has("nvml_status", self.version) and not ignored

    def _nvml(
        self, path: Path, hops: tuple[tuple[int, int], ...], through: int | None, near: tuple[ReasonStep, ...]
    ) -> P2p:
        unknown = False
        why = list(near)
        for a, b in hops:
            ga, gb = self.graph.gpus[a].address, self.graph.gpus[b].address
            if ga == gb:
                continue
            status = self.host.p2p_status.get((ga, gb))
            if status is None:
                text = f"NVML's P2P status of {ga} and {gb} is not known"
                if self.host.assume:
                    why.append(ReasonStep(f"{text}; taken as OK", "info"))
                else:
                    why.append(ReasonStep(text, "unknown"))
                    unknown = True
                continue
            if status == _OK_BOTH:
                why.append(_permitted(ga, gb))
                continue
            evidence = (Evidence(f"nvmlDeviceGetP2PStatus {ga} {gb}", f"read {status[0]}, write {status[1]}"),)
            why.append(ReasonStep("NVML does not permit P2P between them", "no", evidence))
            silent = self.settings.nonzero("NCCL_IGNORE_DISABLED_P2P")
            fatal = ""
            if versions.rank(path.type) <= versions.rank("NVB") and not silent:
                fatal = (
                    f"P2P is disabled between the NVLink-connected GPUs {ga} and {gb}: init ends (unhandled cuda error)"
                )
            return P2p(allowed=False, through=through, fatal=fatal, reasons=tuple(why))
        return P2p(allowed=True, unknown=unknown, through=through, reasons=tuple(why))

    def check_gdr(self, gpu: int, net: int, *, read: bool, path_gpu: int | None = None) -> Gdr:
        """Test a GPU and a NIC for GPUDirect RDMA; `read` for sending (ncclTopoCheckGdr).

        `path_gpu` is the GPU whose distance counts: with PXN the one that sends.
        """
        path = self.path("GPU", gpu if path_gpu is None else path_gpu, "NET", net)
        if path.type == "PXN" and path_gpu is None and (relay := self.relay(gpu, net)) is not None:
            path = self.path("GPU", relay, "NET", net)
        refused = self._read_refused(gpu) if read else None
        key = (gpu, net, read, path.type, refused.text if refused is not None else "")
        if key not in self._gdr:
            self._gdr[key] = self._check_gdr(gpu, net, path, refused)
        return self._gdr[key]

    def _check_gdr(self, gpu: int, net: int, path: Path, refused: ReasonStep | None) -> Gdr:
        g, n, s = self.graph.gpus[gpu], self.graph.nets[net], self.settings
        unknown = False
        why: list[ReasonStep] = []
        for what, able in ((n.name, n.gdr), (g.address, g.gdr)):
            if able is False:
                return Gdr(used=False, reasons=(ReasonStep(f"{what} offers no GPUDirect RDMA (gdr=0)", "no"),))
            if able is None:
                taken = "; taken as so" if self.host.assume else ""
                why.append(self._step(f"whether {what} offers GPUDirect RDMA is not known{taken}", "unknown"))
                unknown = unknown or not self.host.assume
        if g.mlopart is not None and not s.nonzero("NCCL_NET_GDR_MLOPART"):
            return Gdr(used=False, reasons=(ReasonStep("GPU partitions are left out (NCCL_NET_GDR_MLOPART)", "no"),))
        if refused is not None:
            return Gdr(used=False, reasons=(refused,))
        level, exception, step = self._gdr_level
        why.append(step)
        c2c = self.path("GPU", gpu, "CPU", self.cpus[gpu]).type == "C2C"
        # Until 2.28 a NIC of the CPU behind a C2C link counted as near as that link.
        by_c2c = exception and c2c and path.type == ("P2C" if versions.has("p2c", self.version) else "PHB")
        distance = "C2C" if by_c2c else path.type
        if versions.rank(distance) > versions.rank(level):
            text = f"{path.type} is farther than {level}: data goes through host memory"
            fix = "move GPU or NIC under one PCIe switch; NCCL_NET_GDR_LEVEL only after measuring"
            return Gdr(used=False, reasons=(*why, ReasonStep(text, "no", (), fix)))
        why.append(self._step(f"{path.type} is within {level}", "yes"))
        return Gdr(used=True, unknown=unknown, pci=c2c and distance not in ("P2C", "C2C"), reasons=tuple(why))

    def _read_refused(self, gpu: int) -> ReasonStep | None:
        """Return why a GPU does not send by GPUDirect RDMA, whatever the NIC; None where it may."""
        if gpu not in self._refused:
            self._refused[gpu] = self._why_not_read(gpu)
        return self._refused[gpu]

    def _why_not_read(self, gpu: int) -> ReasonStep | None:
        s, g = self.settings, self.graph.gpus[gpu]
        value = s.integer("NCCL_NET_GDR_READ", -2)
        if value == 0:
            return ReasonStep(
                "NCCL_NET_GDR_READ=0: sends go through host memory", "no", s.evidence("NCCL_NET_GDR_READ")
            )
        if value > 0 or (g.sm >= 80 and versions.has("gdr_read_ampere", self.version)) or len(self.graph.gpus) == 1:
            return None
        others = (j for j in range(len(self.graph.gpus)) if j != gpu)
        if any(self.path("GPU", gpu, "GPU", j).type == "NVL" for j in others):
            return None
        return ReasonStep("sending needs an NVLink peer on this GPU", "no", (), "NCCL_NET_GDR_READ=1 after measuring")

    @functools.cached_property
    def _gdr_level(self) -> tuple[str, bool, ReasonStep]:
        s = self.settings
        rule, exception = versions.gdr_level(self.version, c2c=s.versioned("NCCL_NET_GDR_C2C", 1) != 0)
        user = s.level("NCCL_NET_GDR_LEVEL")
        if user is not None:
            return (
                user,
                exception,
                ReasonStep(f"NCCL_NET_GDR_LEVEL is {user}", "info", s.evidence("NCCL_NET_GDR_LEVEL")),
            )
        text = f"by default GPUDirect RDMA reaches as far as {rule.value}"
        return rule.value, exception, ReasonStep(text, "info", (Evidence("NCCL rule", rule.source),))

    def relay(self, gpu: int, net: int) -> int | None:
        """Return the GPU that a PXN path goes through, or None."""
        path = self.path("GPU", gpu, "NET", net)
        if path.type != "PXN":
            return None
        inside = [link.to.index for _, link in path.links if link.to.kind == "GPU"]
        return inside[0] if inside else None
