"""What differs between nodes and matters to a job that runs over them: what fails, where, and what to do about it.

One engine for `fleet`, `diff` and `report --cluster`. A value that is not known of a node counts for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from topocheck.compare.decode import LeanReport
from topocheck.compare.domains import OUTSIDE, domain_problems
from topocheck.compare.types import JobFacts, JobPort, JobProblem
from topocheck.knowledge.job_settings import job_setting
from topocheck.model.document_host import InterfaceDoc, NicDoc

T = TypeVar("T")
Named = Sequence[tuple[str, JobFacts]]
"""Nodes with their names."""

NOT_SET = "not set"


def job_facts(report: LeanReport, slots: dict[str, str], nvlink_domain: str) -> JobFacts:
    """Return what of a node its peers in a job must agree with.

    Args:
        report: the decoded parts.
        slots: address -> slot.
        nvlink_domain: the NVLink domain beyond the node; empty for none.
    """
    interfaces = {i.name: i for i in report.interfaces}
    active = [n for n in report.nics if any(p.state == "ACTIVE" for p in n.ports)]
    known = all(n.opens is not None for n in active)
    return JobFacts(
        version=report.nccl.version or report.software.get("nccl", ""),
        usable=tuple(sorted(n.label for n in active if n.opens is not False)),
        refused=tuple(sorted(n.label for n in active if n.opens is False)),
        down=tuple(sorted(n.label for n in report.nics if n not in active and n.ports)),
        usable_known=(known or not active) and "nics" not in report.missing,
        ports=tuple(p for n in report.nics for p in _ports(n, slots, interfaces)),
        settings={s.name: s.value for s in report.nccl.settings if s.in_force and job_setting(s.name) is not None},
        imex=_imex(report, nvlink_domain),
        network="" if "nccl.settings" in report.missing else report.nccl.network or "",
        settings_known="nccl.settings" not in report.missing,
        nics=sum(bool(n.ports) for n in report.nics),
        domain=nvlink_domain or (OUTSIDE if _outside(report) else ""),
    )


def _ports(n: NicDoc, slots: dict[str, str], interfaces: dict[str, InterfaceDoc]) -> Iterable[JobPort]:
    own = [interfaces[name] for name in n.netdevs if name in interfaces]
    sizes = [int(i.mtu_bytes) for i in own if i.mtu_bytes is not None]
    lengths = {x for i in own for x in i.ipv4_prefix_lengths or ()}
    for p in n.ports:
        if p.state == "ACTIVE" and p.link_layer in ("InfiniBand", "Ethernet"):
            ethernet = p.link_layer == "Ethernet"
            mtu = min(sizes) if sizes and ethernet else 0
            prefix = next(iter(lengths)) if len(lengths) == 1 and ethernet else 0
            yield JobPort(f"{slots[n.address]}/{p.port}", n.label, p.link_layer, mtu, prefix)


def _imex(report: LeanReport, nvlink_domain: str) -> str:
    """Return yes or no where GPUs belong to an NVLink domain beyond the node; empty elsewhere and where not known."""
    channels = report.host.imex_channels
    if not nvlink_domain or (
        channels is None and report.host.missing.get("imex_channels", "").split(":")[0] != "absent"
    ):
        return ""
    return "yes" if channels else "no"


def _outside(report: LeanReport) -> bool:
    """Tell whether all GPUs say that no domain beyond the node has them: the UUID is zero, or registration failed."""
    return bool(report.gpus) and all(
        g.fabric_cluster_uuid is not None and (not g.fabric_cluster_uuid.strip("0-") or g.fabric_status != "Success")
        for g in report.gpus
    )


def job_problems(nodes: Named) -> tuple[JobProblem, ...]:
    """Return what would fail or be slow in a job over these nodes, the worst first."""
    if len(nodes) < 2:
        return ()
    networks = list(_networks(nodes))
    devices = [p for p in _devices(nodes) if p.state == "fail" or not networks]
    found = [*_versions(nodes), *networks, *devices, *_per_port(nodes), *_imex_differs(nodes), *_settings(nodes)]
    found += domain_problems(nodes)
    return tuple(sorted(found, key=lambda p: (p.state != "fail", p.what, p.subject)))


def _grouped(nodes: Sequence[tuple[str, T]], value: Callable[[T], str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the values with the nodes that have them, most first; an empty one is not known and left out."""
    by_value: dict[str, list[str]] = {}
    for name, facts in nodes:
        if v := value(facts):
            by_value.setdefault(v, []).append(name)
    return tuple(sorted(((v, tuple(n)) for v, n in by_value.items()), key=lambda g: (-len(g[1]), g[0])))


def _versions(nodes: Named) -> Iterable[JobProblem]:
    groups = _grouped(nodes, lambda f: f.version)
    if len(groups) > 1:
        yield JobProblem(
            state="fail",
            what="nccl-version",
            subject="NCCL",
            title="NCCL's version differs: " + _told(groups),
            consequence='the init of a job over them ends: "Mismatched NCCL version detected"',
            fix="one version on all nodes, in one image or environment",
            values=groups,
        )


def _networks(nodes: Named) -> Iterable[JobProblem]:
    """What NCCL goes by between nodes: its networks, and those of plugins, cannot connect with each other."""
    groups = _grouped(nodes, lambda f: f.network)
    if len(groups) > 1:
        yield JobProblem(
            state="fail",
            what="network",
            subject="NCCL's network",
            title="the nodes use different networks: " + _told(groups),
            consequence="ranks of different networks cannot connect: the init of a job over them fails or hangs",
            fix="give every node the same NICs and the same network plugin (its folder on LD_LIBRARY_PATH), or set "
            "NCCL_NET alike on all ranks",
            values=groups,
        )


def _devices(nodes: Named) -> Iterable[JobProblem]:
    """RDMA devices that a job can use: their number must be the same, and a device that is refused says why."""
    some = [(n, f) for n, f in nodes if f.usable_known]
    groups = _grouped(some, lambda f: str(len(f.usable)))
    if len(groups) < 2:
        return
    refused = {n: f.refused for n, f in some if f.refused}
    down = {n: f.down for n, f in some if f.down}
    counts = {n: len(f.usable) for n, f in some}
    most = max(counts.values())
    why = [f"{', '.join(d)} of {n} may not be opened" for n, d in refused.items()]
    why += [f"{', '.join(d)} of {n} is down" for n, d in down.items() if counts[n] < most]
    yield JobProblem(
        state="fail" if refused else "warn",
        what="hcas",
        subject="RDMA devices",
        title="the numbers of usable HCAs differ: " + _told(groups) + (f"; {'; '.join(why[:4])}" if why else ""),
        consequence="ranks count different numbers of network devices: jobs between these nodes hang or fail"
        if refused
        else "ranks count different numbers of network devices: jobs between these nodes are slower, and may hang",
        fix="give each node all its devices under /dev/infiniband (container: --device=/dev/infiniband, or the device "
        "plugin)"
        if refused
        else "bring the ports up, or name the same number of NICs on every node in NCCL_IB_HCA",
        values=groups,
    )


def _per_port(nodes: Named) -> Iterable[JobProblem]:
    """MTU and link layer of the port at one place of every node.

    Of nodes with as many NICs as most: where one is missing, those behind it stand one place further on.
    """
    places: dict[str, list[tuple[str, JobPort]]] = {}
    usual = Counter(f.nics for _, f in nodes).most_common(1)
    for name, facts in nodes:
        for port in facts.ports if facts.nics == usual[0][0] else ():
            places.setdefault(port.place, []).append((name, port))
    for _, at in sorted(places.items()):
        label = at[0][1].label
        layers = _grouped(at, lambda p: p.layer)
        if len(layers) > 1:
            yield JobProblem(
                state="fail",
                what="link-layer",
                subject=label,
                title=f"the link layer of {label} differs: {_told(layers)}",
                consequence="InfiniBand and Ethernet ports cannot connect: a job over these nodes fails",
                fix="set the ports of one rail to one link layer (mlxconfig LINK_TYPE_P1, then a cold boot)",
                values=layers,
            )
            continue
        mtus = _grouped(at, lambda p: str(p.mtu) if p.mtu else "")
        if len(mtus) > 1:
            yield JobProblem(
                state="fail",
                what="mtu",
                subject=label,
                title=f"the MTU of {label} differs: {_told(mtus)}",
                consequence="a job over these nodes aborts: work completion with status 9 (remote invalid request) or "
                '"local access violation"',
                fix=f"set one MTU on this rail: ip link set dev IF mtu {max(int(v) for v, _ in mtus)} on every node, "
                "and the same on every switch port between them",
                values=mtus,
            )
        lengths = _grouped(at, lambda p: f"/{p.prefix}" if p.prefix else "")
        if len(lengths) > 1:
            yield JobProblem(
                state="warn",
                what="netmask",
                subject=label,
                title=f"the netmask of {label} differs: {_told(lengths)}",
                consequence="one side takes the other for its neighbour, and the other sends to a router: connections "
                "between them time out, or take another way back",
                fix="give the interfaces of this rail the same prefix length on every node",
                values=lengths,
            )


def _imex_differs(nodes: Named) -> Iterable[JobProblem]:
    groups = _grouped(nodes, lambda f: f.imex)
    if len(groups) > 1:
        yield JobProblem(
            state="fail",
            what="imex",
            subject="IMEX",
            title="IMEX channels are on some nodes of the NVLink domain only: " + _told(groups),
            consequence="a job over these nodes cannot share memory by NVLink: it fails, or uses the network",
            fix="start nvidia-imex and make a channel (nvidia-modprobe -c 0) on every node, or NCCL_MNNVL_ENABLE=0",
            values=groups,
        )


def _settings(nodes: Named) -> Iterable[JobProblem]:
    for name in sorted({s for _, f in nodes for s in f.settings}):
        groups = _grouped(nodes, lambda f, name=name: f.settings.get(name, NOT_SET if f.settings_known else ""))  # type: ignore[misc]
        row = job_setting(name)
        if len(groups) > 1 and row is not None:
            yield JobProblem(
                state=row.state,
                what="setting",
                subject=name,
                title=f"{name} differs: {_told(groups)}",
                consequence=row.consequence,
                fix=f"set {name} to one value on all ranks, or nowhere",
                values=groups,
            )


def _told(groups: Sequence[tuple[str, Sequence[str]]]) -> str:
    shown = []
    for value, names in groups[:4]:
        some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        shown.append(f"{value} on {some}")
    return "; ".join(shown) + (f"; and {len(groups) - 4} more values" if len(groups) > 4 else "")
