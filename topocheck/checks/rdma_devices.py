"""RDMA devices: siblings that differ, error counters, and whether this process may use them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_high

from topocheck.checks.rdma import Port, is_near, ports, siblings
from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.settings import active_nics, active_ports, no_active_nic
from topocheck.checks.subjects import is_guest, listed, named, quote
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, known
from topocheck.topology.types import Nic


@check(
    "rdma.siblings-differ",
    title="NICs of one model differ in firmware or board",
    severity=State.WARN,
    reads=("/sys/class/infiniband/*/fw_ver", "/sys/class/infiniband/*/board_id", "/sys/class/infiniband/*/hca_type"),
)
def siblings_differ(c: Context) -> Iterator[Finding]:
    """NICs of one model run different firmware, or are different boards.

    Looks at:
        Firmware among the NICs of one model, board and role (the nearest of some GPU, or of none), and boards among
        those of one model and link layer.

    Why it matters:
        Different firmware has different defects and defaults (relaxed ordering, adaptive routing, ATS), and one NIC
        of eight then behaves in a way nobody can explain.

    Fix:
        Bring all to one version (`mlxfwmanager`, or the maker's tool); the NIC must be reset afterwards.

    Does not apply:
        With one NIC of a model and role. It warns where one NIC, or fewer than half, differ from the rest; a half
        and half, or different boards (storage beside compute), is a note.
    """
    groups: dict[tuple[str, str, bool | None], list[Nic]] = {}
    models: dict[tuple[str, str], dict[str, list[Nic]]] = {}
    for n in c.topology.nics:
        d = n.rdma
        if d is None or isinstance(d.hca_type, Missing) or known(d.physfn):
            continue
        board = d.board_id if known(d.board_id) else ""
        groups.setdefault((d.hca_type, board, is_near(c, n)), []).append(n)
        layer = next((str(p.link_layer) for p in d.ports), "")
        models.setdefault((d.hca_type, layer), {}).setdefault(board, []).append(n)
    if all(len(g) < 2 for g in groups.values()) and all(len(b) < 2 for b in models.values()):
        raise not_applicable("no two NICs of one model")
    for (model, _, _), nics in groups.items():
        yield from _firmware(model, nics)
    for (model, layer), boards in models.items():
        if len(boards) > 1:
            yield Finding(
                id="rdma.siblings-differ",
                state=State.NOTE,
                subject="node",
                title=f"{layer} NICs of model {model} are different boards: "
                + "; ".join(f"{b or 'no board id'} on {listed((n.label for n in v), 4)}" for b, v in boards.items()),
                consequence="boards of one chip differ in ports, lanes and defaults",
                evidence=tuple(e for v in boards.values() for e in _quote(v[0], "board_id")),
                rule="one board for one purpose",
                fix="none is needed where they serve different purposes",
            )


def _firmware(model: str, nics: list[Nic]) -> Iterator[Finding]:
    versions: dict[str, list[Nic]] = {}
    for n in nics:
        if n.rdma is not None and known(n.rdma.firmware):
            versions.setdefault(n.rdma.firmware, []).append(n)
    if len(versions) < 2:
        return
    common = max(versions, key=lambda v: len(versions[v]))
    others = [n for v, ns in versions.items() if v != common for n in ns]
    odd = len(others) < len(versions[common])
    told = "; ".join(f"{v} on {listed((n.label for n in ns), 4)}" for v, ns in versions.items())
    yield Finding(
        id="rdma.siblings-differ",
        state=State.WARN if odd else State.NOTE,
        subject=listed(named(n) for n in others) if odd else "node",
        title=f"NICs of model {model} run different firmware: {told}",
        consequence="one NIC may behave unlike the others: other defects, other defaults",
        evidence=(*_quote(others[0], "fw_ver"), *_quote(versions[common][0], "fw_ver")),
        rule="NICs of one model, board and role run one firmware",
        fix=f"bring {listed(n.label for n in others)} to {common} (mlxfwmanager, or the maker's tool); "
        "the NIC is reset, so drain the node",
    )


def _quote(n: Nic, name: str) -> tuple[Evidence, ...]:
    return n.rdma.evidence(name) if n.rdma is not None else ()


@check(
    "rdma.verbs-device-missing",
    title="RDMA NICs are there, and this process may not use them",
    severity=State.WARN,
    reads=("/dev/infiniband/uverbs*", "/sys/class/infiniband"),
    scope=Scope.PROCESS,
)
def verbs_device_missing(c: Context) -> Iterator[Finding]:
    """The kernel shows active RDMA NICs and their devices under /dev/infiniband are missing or not permitted.

    Looks at:
        /dev/infiniband/uverbs* as this process sees it.

    Why it matters:
        NCCL finds "No device" and falls back to TCP: a tenth of the bandwidth, without an error.

    Fix:
        In a container map them: `docker run --device=/dev/infiniband ...`, in Kubernetes by the RDMA device
        plugin, with rdma-core in the image. On bare metal load `ib_uverbs`.

    Does not apply:
        Where no NIC has an active port. A note with a single GPU, and where only some devices are missing: a
        container may have been given its share.
    """
    nics = active_nics(c)
    if not nics:
        raise not_applicable(no_active_nic(c))
    net = c.node.net
    inside = known(c.node.system.container)
    fix = (
        "map them into the container: docker run --device=/dev/infiniband; in Kubernetes the RDMA device plugin"
        if inside
        else "modprobe ib_uverbs, and look at the rights of /dev/infiniband/uverbs*"
    )
    names = listed(n.label for n in nics)
    devices = net.verbs_devices
    uverbs = [] if isinstance(devices, Missing) else [d for d in devices if d.startswith("uverbs")]
    if isinstance(devices, Missing) and devices.reason is not Reason.ABSENT:
        title = f"whether this process may use {names} cannot be told: /dev/infiniband: {devices}"
        yield Finding(id="rdma.verbs-device-missing", state=State.UNKNOWN, subject="process", title=title, fix=fix)
    elif not uverbs or net.verbs_accessible is False:
        what = "may not be opened" if uverbs else "are missing"
        yield Finding(
            id="rdma.verbs-device-missing",
            state=State.WARN if len(c.topology.gpus) > 1 else State.NOTE,
            subject="process",
            title=f"{names} {'is' if len(nics) == 1 else 'are'} active, and the devices under /dev/infiniband {what}",
            consequence="NCCL finds no RDMA device and uses TCP: a tenth of the bandwidth, without an error",
            evidence=(Evidence("/dev/infiniband", " ".join(uverbs) or "(absent)"),),
            rule="a uverbs device that this process may open, for each NIC",
            fix=fix,
        )
    elif len(uverbs) < len(nics):
        yield Finding(
            id="rdma.verbs-device-missing",
            state=State.NOTE,
            subject="process",
            title=f"{len(nics)} NICs are active, and only {len(uverbs)} devices stand under /dev/infiniband",
            consequence="NCCL uses the NICs it was given; GPUs share them",
            evidence=(Evidence("/dev/infiniband", " ".join(uverbs)),),
            rule="a uverbs device for each NIC",
            fix=fix,
        )


_WATCHED = {
    "link_downed": (10, "link downs: {n}"),
    "link_error_recovery": (10, "recoveries of the link from errors: {n}"),
    "symbol_error": (1000, "symbol errors: {n}"),
    "port_rcv_errors": (100, "broken packets that came in: {n}"),
    "local_link_integrity_errors": (10, "times of too many local link errors: {n}"),
    "excessive_buffer_overrun_errors": (10, "buffer overruns: {n}"),
    "local_ack_timeout_err": (1000, "acknowledgements that did not come in time: {n}"),
    "packet_seq_err": (1000, "packets missed and asked for again: {n}"),
    "rnr_nak_retry_err": (100, "receivers not ready until retries ran out: {n}"),
    "rx_icrc_encapsulated": (100, "RoCE packets with a bad checksum: {n}"),
}
"""Counter -> (threshold, words). Which of them matter: sysfs-class-infiniband; the thresholds are ours and can be
set by the policy. They are totals since the driver was loaded."""

_STOPS_AT = {
    "link_downed": 255,
    "link_error_recovery": 255,
    "symbol_error": 65535,
    "port_rcv_errors": 65535,
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 15,
}
"""Where a counter stays when it is full: widths of PortCounters, InfiniBand Architecture Specification 1, 16.1.3.5."""

_STANDS_OUT = 10
"""A port is the odd one out when its count is so many times the middle one of its siblings."""


@check(
    "rdma.counters",
    title="Error counters of a port are high",
    severity=State.WARN,
    reads=("/sys/class/infiniband/*/ports/*/counters", "/sys/class/infiniband/*/ports/*/hw_counters"),
    thresholds=tuple(_WATCHED),
)
def counters(c: Context) -> Iterator[Finding]:
    """Error counters of an active port stand above a threshold.

    Looks at:
        Counters of link flaps, symbol errors, broken packets, lost acknowledgements and the like: totals since the
        driver was loaded, from one look. Thresholds: one of the policy's for each, by the counter's name.

    Why it matters:
        A bad cable costs retries first, and later a job that ends with completion status 12.

    Fix:
        Look twice, some minutes apart: a count that grows is a fault now. Clean or swap cable and transceiver; on
        RoCE look at PFC and ECN. A longer NCCL_IB_TIMEOUT only hides it.

    Does not apply:
        Counters that cannot be read lose only themselves. A total alone is a note; it warns where the port stands
        out from its siblings, ten times their middle value.
    """
    active = [p for p in ports(c) if p.port.state == "ACTIVE"]
    if not active:
        raise not_applicable(no_active_nic(c))
    for p in active:
        for name, (most, words) in _WATCHED.items():
            value, kind = _count(p, name)
            limit = c.threshold("rdma.counters", name, most)
            if value is None or value <= limit:
                continue
            others = [n for n, _ in (_count(s, name) for s in siblings(p, active)) if n is not None]
            odd = len(others) >= 2 and value > _STANDS_OUT * max(1, median_high(others))
            full = " or more (the counter stops there)" if value == _STOPS_AT.get(name) else ""
            beside = f"; the middle one of {len(others)} siblings is {median_high(others)}" if others else ""
            yield Finding(
                id="rdma.counters",
                state=State.WARN if odd else State.NOTE,
                subject=p.where,
                title=f"port {p.port.port} of {p.nic.label}: {words.format(n=value)}{full} since the driver was loaded"
                + beside,
                consequence="retries cost bandwidth, and a job may end with completion status 12",
                evidence=p.port.evidence(f"{kind}/{name}") or (Evidence(f"{p.port.source}/{kind}/{name}", str(value)),),
                rule=f"{name} at most {limit:g}, and not {_STANDS_OUT} times that of siblings",
                fix="look again in some minutes: if it grows, clean or swap cable and transceiver; on RoCE look at "
                "PFC and ECN",
            )


def _count(p: Port, name: str) -> tuple[int | None, str]:
    if name in p.port.counters:
        return p.port.counters[name], "counters"
    return p.port.hw_counters.get(name), "hw_counters"


@check(
    "rdma.vf-without-ats",
    title="A NIC of a guest has ATS off",
    severity=State.NOTE,
    reads=("PCI config space: ATSCtl", "DMI"),
)
def vf_without_ats(c: Context) -> Iterator[Finding]:
    """In a guest, a NIC near a GPU has address translation services (ATS) turned off.

    Looks at:
        The ATS capability of each active NIC of a guest that shares a PCIe switch with a GPU (needs root).

    Why it matters:
        The host's IOMMU must translate what devices of a guest send. Without ATS in the NIC every packet to a GPU
        goes up to the root complex and back: a quarter of the rate has been seen.

    Fix:
        The host's keeper turns ATS on in the NIC (`mlxconfig -d DEVICE set ATS_ENABLED=1`, then a cold boot) and
        keeps ACS as passthrough needs it.

    Does not apply:
        On bare metal, and in guests that show a flat tree. A note only: a guest cannot see whether the host does
        without an IOMMU.
    """
    if not is_guest(c):
        raise not_applicable("not a guest")
    near = {p.to for p in c.topology.paths if p.pcie_class in ("PIX", "PXB")}
    nics = [n for n in c.topology.nics if active_ports(n) and n.address in near]
    if not nics or c.topology.flat_tree:
        raise not_applicable("no active NIC that shares a PCIe switch with a GPU")
    unread = []
    for n in nics:
        enabled = n.pci.ats_enabled if n.pci is not None else None
        if n.pci is not None and (enabled is False or n.pci.ats_supported is False):
            name = "config ATSCtl" if enabled is False else "config"
            yield Finding(
                id="rdma.vf-without-ats",
                state=State.NOTE,
                subject=named(n),
                title=f"ATS is off for {n.label} in this guest"
                if enabled is False
                else f"{n.label} shows no ATS capability in this guest",
                consequence="if the host translates addresses, GPUDirect RDMA makes a detour by its root complex",
                evidence=quote(n.pci, name, "off" if enabled is False else "no ATS capability"),
                rule="ATS on, so that translated requests go straight",
                fix="ask the host's keeper: mlxconfig set ATS_ENABLED=1 and a cold boot of the host",
            )
        elif not isinstance(enabled, bool):
            unread.append(n)
    if unread:
        yield Finding(
            id="rdma.vf-without-ats",
            state=State.UNKNOWN,
            subject="node",
            title=f"whether ATS is on for {listed(n.label for n in unread)} cannot be read here",
            consequence="without it GPUDirect RDMA in a guest makes a detour by the host's root complex",
            evidence=tuple(
                Evidence(f"{n.address} config ATSCtl", str(n.pci.ats_enabled)) for n in unread[:2] if n.pci is not None
            ),
            rule="ATS on",
            fix="run as root, or ask the host's keeper",
        )
