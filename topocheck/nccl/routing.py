"""NCCL's tests of GPU and NIC pairs on one host, and how they re-route its paths (src/graph/paths.cc)."""

from __future__ import annotations

import itertools

import msgspec

from topocheck.knowledge.nccl import Version
from topocheck.model.base import Evidence, ReasonStep
from topocheck.nccl import versions
from topocheck.nccl.graph import build_graph
from topocheck.nccl.paths import Path, all_paths, find, local_cpu
from topocheck.nccl.settings import Settings
from topocheck.nccl.types import HostInput


class P2p(msgspec.Struct, frozen=True, kw_only=True):
    """Whether level and NVML let two GPUs use P2P. `unknown` where NVML's answer is needed and not there."""

    allowed: bool
    unknown: bool = False
    through: int | None = None
    fatal: str = ""
    why: tuple[ReasonStep, ...] = ()


class Gdr(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a GPU and a NIC use GPUDirect RDMA; `pci` for the PCIe mapping of a C2C GPU.

    `unknown`: the distance fits, but whether both can do it is not known.
    """

    used: bool
    unknown: bool = False
    pci: bool = False
    why: tuple[ReasonStep, ...] = ()


class HostView:
    """One host with its graph. `first` are the paths as found, `table` those after all tests."""

    def __init__(self, host: HostInput, version: Version, gpus: tuple[str, ...] | None = None) -> None:
        self.host = host
        self.version = version
        self.settings = Settings(host.settings, version)
        self.graph = build_graph(host.topology, version, gpus)
        nvb = versions.has("nvb", version) and not self.settings.nonzero("NCCL_NVB_DISABLE")
        self.first = all_paths(self.graph, nvb=nvb)
        self.table = dict(self.first)
        self.p2p_checks: dict[tuple[int, int], P2p] = {}

    def gpu(self, address: str) -> int | None:
        """Return the index of the GPU at an address, or None."""
        return next((i for i, g in enumerate(self.graph.gpus) if g.address == address), None)

    def path(self, kind1: str, index1: int, kind2: str, index2: int) -> Path:
        """Return a path as it stands now."""
        return find(self.table, kind1, index1, kind2, index2)

    def p2p_level(self) -> tuple[str, ReasonStep]:
        """Return the farthest path type for P2P, and the rule that says so."""
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

    def _relay(self, i: int, j: int) -> int | None:
        path = self.path("GPU", i, "GPU", j)
        if path.hops != 2:
            return None
        middle = path.links[0][1].to
        return middle.index if middle.kind == "GPU" else None

    def check_p2p(self, i: int, j: int) -> P2p:
        """Test two GPUs of this host: distance, then NVML's status of each hop (ncclTopoCheckP2p)."""
        path = self.path("GPU", i, "GPU", j)
        level, step = self.p2p_level()
        always = versions.has("nvlink_always", self.version) and path.type in ("NVL", "NVB") and level != "LOC"
        near = always or versions.rank(path.type) <= versions.rank(level)
        where = f"the path is {path.type}"
        if not near:
            fix = None
            if step.effect != "no" and versions.rank(path.type) <= versions.rank("SYS"):
                fix = f"NCCL_P2P_LEVEL={path.type}, once a copy with checked data is right and faster"
            return P2p(allowed=False, why=(step, ReasonStep(f"{where}, farther than {level}: no P2P", "no", (), fix)))
        why = [step, ReasonStep(f"{where}, within {level}", "yes")]
        through = self._relay(i, j)
        if not versions.has("nvml_status", self.version):
            return P2p(allowed=True, through=through, why=tuple(why))
        if self.settings.integer("NCCL_IGNORE_DISABLED_P2P", 0) == 2:
            text = "NCCL_IGNORE_DISABLED_P2P=2: NVML is not asked"
            why.append(ReasonStep(text, "info", self.settings.evidence("NCCL_IGNORE_DISABLED_P2P")))
            return P2p(allowed=True, through=through, why=tuple(why))
        chain = [i, j] if through is None else [i, through, j]
        return self._nvml(path, chain, through, why)

    def _nvml(self, path: Path, chain: list[int], through: int | None, why: list[ReasonStep]) -> P2p:
        unknown = False
        for a, b in itertools.pairwise(chain):
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
            evidence = (Evidence(f"nvmlDeviceGetP2PStatus {ga} {gb}", f"read {status[0]}, write {status[1]}"),)
            if status == ("OK", "OK"):
                why.append(ReasonStep("NVML says OK for reading and writing", "yes", evidence))
                continue
            why.append(ReasonStep("NVML does not permit P2P between them", "no", evidence))
            silent = self.settings.nonzero("NCCL_IGNORE_DISABLED_P2P")
            fatal = ""
            if versions.rank(path.type) <= versions.rank("NVB") and not silent:
                fatal = (
                    f"P2P is disabled between the NVLink-connected GPUs {ga} and {gb}: init ends (unhandled cuda error)"
                )
            return P2p(allowed=False, through=through, fatal=fatal, why=tuple(why))
        return P2p(allowed=True, unknown=unknown, through=through, why=tuple(why))

    def check_gdr(self, gpu: int, net: int, *, read: bool, path_gpu: int | None = None) -> Gdr:
        """Test a GPU and a NIC for GPUDirect RDMA; `read` for sending (ncclTopoCheckGdr).

        `path_gpu` is the GPU whose distance counts: with PXN the one that sends.
        """
        g, n, s = self.graph.gpus[gpu], self.graph.nets[net], self.settings
        unknown = False
        why: list[ReasonStep] = []
        for what, able in ((n.name, n.gdr), (g.address, g.gdr)):
            if able is False:
                return Gdr(used=False, why=(ReasonStep(f"{what} offers no GPUDirect RDMA (gdr=0)", "no"),))
            if able is None:
                taken = "; taken as so" if self.host.assume else ""
                why.append(ReasonStep(f"whether {what} offers GPUDirect RDMA is not known{taken}", "unknown"))
                unknown = unknown or not self.host.assume
        if g.mlopart is not None and not s.nonzero("NCCL_NET_GDR_MLOPART"):
            return Gdr(used=False, why=(ReasonStep("GPU partitions are left out (NCCL_NET_GDR_MLOPART)", "no"),))
        if read and (refused := self._read_refused(gpu)):
            return Gdr(used=False, why=(refused,))
        level, exception, step = self._gdr_level()
        why.append(step)
        path = self.path("GPU", gpu if path_gpu is None else path_gpu, "NET", net)
        if path.type == "PXN" and path_gpu is None and (relay := self.relay(gpu, net)) is not None:
            path = self.path("GPU", relay, "NET", net)
        c2c = self.path("GPU", gpu, "CPU", local_cpu(self.graph, self.table, gpu)).type == "C2C"
        # Until 2.28 a NIC of the CPU behind a C2C link counted as near as that link.
        by_c2c = exception and c2c and path.type == ("P2C" if versions.has("p2c", self.version) else "PHB")
        distance = "C2C" if by_c2c else path.type
        if versions.rank(distance) > versions.rank(level):
            text = f"{path.type} is farther than {level}: data goes through host memory"
            fix = "move GPU or NIC under one PCIe switch; NCCL_NET_GDR_LEVEL only after measuring"
            return Gdr(used=False, why=(*why, ReasonStep(text, "no", (), fix)))
        why.append(ReasonStep(f"{path.type} is within {level}", "yes"))
        return Gdr(used=True, unknown=unknown, pci=c2c and distance not in ("P2C", "C2C"), why=tuple(why))

    def _read_refused(self, gpu: int) -> ReasonStep | None:
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
