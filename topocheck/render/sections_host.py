"""Sections of the text report about the host: record, NUMA, NCCL, limits, software, probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.model.address import format_cpulist
from topocheck.model.base import Missing, known
from topocheck.render.page import Page
from topocheck.render.words import gib, plural

if TYPE_CHECKING:
    from topocheck.pipeline import Report


MAX_DISTANCES = 8
"""NUMA distances shown one by one; machines with a node for each GPU have dozens."""


def text_of(value: object) -> str:
    """Return a value for a table cell; a missing one as `not known` and its reason, one that is not there as `-`."""
    if type(value) is str:
        return value
    if isinstance(value, Missing):
        absent = value.reason.value == "absent" and not value.detail
        return "-" if absent else f"not known ({value.reason.value.replace('_', ' ')})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def system_summary(report: Report, page: Page) -> None:
    """What papers and lab reports say of the machine they measured on."""
    from topocheck.render import report_json  # the sections of the first screen need no JSON

    r = report_json.system_summary(report)
    page.heading("System summary")
    models = ", ".join(f"{n} x {m}" for m, n in r.gpu_models.items()) or "none"
    nics = ", ".join(f"{n} x {m}" for m, n in r.nic_models.items()) or "none"
    if report.topology.nics_untold is not None and not r.nic_models:
        nics = "not known"
    rows = (
        ("servers", str(r.servers)),
        ("GPUs per server", f"{r.gpus_per_server}: {models}"),
        ("GPU interconnect", r.gpu_connection),
        ("NICs per server", nics if nics == "not known" else f"{r.nics_per_server}: {nics}"),
        ("OS", r.os),
        ("GPU driver", r.gpu_driver),
        ("NIC driver", r.nic_driver),
        ("framework", r.framework),
        ("CUDA, NCCL", f"{r.cuda}, {r.nccl}"),
    )
    for name, value in rows:
        page.pair(name, value)


def numa(report: Report, page: Page) -> None:
    """NUMA nodes with their GPUs and NICs, and what this process may use."""
    facts, topology = report.node.numa, report.topology
    page.heading("NUMA and affinity")
    if isinstance(facts.nodes, Missing):
        page.text(f"NUMA nodes not known: {facts.nodes}")
    else:
        rows, empty = [], []
        for n in facts.nodes:
            near = [g.label for g in topology.gpus if g.cpu_node == n.node]
            near += [x.label for x in topology.nics if x.cpu_node == n.node]
            near += [x.label for x in topology.accelerators if x.cpu_node == n.node]
            own = [f"{g.label}'s memory" for g in topology.gpus if g.memory_node == n.node]
            if n.cpulist == "" and n.memory_total_bytes == 0 and not near + own:
                empty.append(n.node)
                continue
            cpus = text_of(n.cpulist) or "none"
            rows.append((str(n.node), cpus, gib(n.memory_total_bytes), _distances(n.distances), ", ".join(near + own)))
        page.table(("node", "CPUs", "memory", "distances", "local devices"), rows)
        if empty:
            page.text(f"nodes {format_cpulist(empty)} have neither CPUs nor memory", hang=2)
    lost = [g.label for g in topology.gpus if isinstance(g.cpu_node, Missing)]
    if lost:
        page.text(f"NUMA node not known: {', '.join(lost)}", hang=2)
    page.pair("allowed CPUs", f"{text_of(facts.allowed_cpus)} of {text_of(facts.online_cpus)}")
    page.pair("allowed memory", f"nodes {text_of(facts.allowed_mems)}")


def _distances(distances: tuple[int, ...] | Missing) -> str:
    if isinstance(distances, Missing):
        return text_of(distances)
    if len(distances) <= MAX_DISTANCES:
        return " ".join(map(str, distances))
    return f"{min(distances)} to {max(distances)}"


def nccl(report: Report, page: Page) -> None:
    """NCCL's settings in force, what it will do per kind of pair, and how fast that can be at most."""
    view = report.nccl
    page.heading("NCCL")
    page.pair("version", text_of(view.version))
    if view.settings:
        page.table(
            ("setting", "value", "from"),
            [(s.name, s.value, s.source + ("" if s.in_force else " (shadowed)")) for s in view.settings],
        )
    else:
        page.text("no NCCL setting in the environment or in a settings file")
    kinds: dict[tuple[str, str], list[str]] = {}
    for p in view.pairs:
        kinds.setdefault((text_of(p.nccl_class), text_of(p.transport)), []).append(f"{p.from_label}->{p.to_label}")
    rows = []
    for (cls, transport), pairs in kinds.items():
        shown = ", ".join(pairs[:4]) + (f", ... ({plural(len(pairs), 'pair')})" if len(pairs) > 4 else "")
        rows.append((cls, transport, shown))
    if view.pairs or view.nvls_reason or view.fatal:
        page.pair("predicted for", f"{view.predicted_for}, all GPUs of the node in one job")
    if view.fatal:
        page.text(f"ncclCommInitRank would fail: {view.fatal}", hang=2, style="bold")
    page.table(("NCCL path type", "transport", "pairs"), rows)
    if view.nvls_reason:
        answer = "not known" if isinstance(view.nvls, Missing) else text_of(view.nvls)
        page.pair("NVLS", f"{answer}: {view.nvls_reason}")
    page.table(
        ("AllReduce algorithm", "max busbw", "limited by"),
        [(b.algorithm, f"{b.busbw_gb_s:.1f} GB/s", b.limited_by) for b in view.bounds],
        right=frozenset({1}),
    )
    if report.backends:
        page.table(("backend", "suitability", "reason"), [(b.name, b.fits, b.reason) for b in report.backends])
    for s in report.node.settings.related:
        page.pair(s.name, s.value, column=28)


def limits(report: Report, page: Page) -> None:
    """Limits of this process."""
    facts = report.node.limits
    page.heading("Limits of this process")
    page.pair("locked memory", _limit(facts.memlock_bytes, size=True))
    page.pair("open files", _limit(facts.nofile))
    page.pair("stack", _limit(facts.stack_bytes, size=True))
    page.pair("/dev/shm", f"{gib(facts.shm_free_bytes)} free of {gib(facts.shm_total_bytes)}")
    page.pair("cgroup memory", _limit(facts.memory_max_bytes, size=True))


def _limit(value: int | Missing | None, *, size: bool = False) -> str:
    if value is None:
        return "unlimited"
    if isinstance(value, Missing):
        return text_of(value)
    return gib(value) if size and value >= 2**20 else f"{value} bytes" if size else str(value)


def software(report: Report, page: Page) -> None:
    """Versions, found without importing anything."""
    node = report.node
    page.heading("Software")
    page.pair("OS", f"{text_of(node.system.os_name)}, Linux {text_of(node.system.kernel_release)}")
    flavour = text_of(node.system.nvidia_module_flavor)
    page.pair("NVIDIA driver", f"{text_of(node.nvml.driver_version)} (kernel module: {flavour})")
    for name, version in sorted(node.software.versions.items()):
        page.pair(name, version)
    if node.system.kernel_options and known(node.system.kernel_options):
        page.pair("kernel options", " ".join(node.system.kernel_options))
    loaded = ", ".join(f"{m} {v}".strip() for m, v in sorted(node.system.modules.items()))
    page.pair("kernel modules", loaded or "none relevant")


def probes(report: Report, page: Page) -> None:
    """How each probe went and what it cost."""
    page.heading("Probes")
    page.table(
        ("probe", "state", "ms", ""),
        [(p.name, p.state.replace("_", " "), f"{p.ms:.0f}", p.detail) for p in report.node.probes],
        right=frozenset({2}),
    )
