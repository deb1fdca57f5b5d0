"""RDMA devices: siblings that differ, error counters, and whether this process may use them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed, named, quote
from topocheck.checks.shared.fixes import Fix, first_fitting, in_container, in_guest, in_kubernetes, in_slurm
from topocheck.checks.shared.rdma_ports import Port, Siblings, is_near, ports
from topocheck.checks.shared.settings import active_nics, active_ports, no_active_nic
from topocheck.checks.sources import Needs
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, known
from topocheck.topology.inventory import by_mellanox
from topocheck.topology.types import Nic


@check(
    "rdma.siblings-differ",
    title="NICs of one model differ in firmware or board",
    severity=State.WARN,
    reads=("/sys/class/infiniband/*/fw_ver", "/sys/class/infiniband/*/board_id", "/sys/class/infiniband/*/hca_type"),
    needs=Needs(("rdma", "model")),
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
        state=State.WARN if odd else State.NOTE,
        subject=listed(named(n) for n in others) if odd else "node",
        devices=tuple(n.address for n in others) if odd else (),
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
    severity=State.FAIL,
    reads=("/dev/infiniband/uverbs*", "/sys/class/infiniband", "/sys/class/infiniband_verbs/*/ibdev"),
    needs=Needs(("rdma",), ("verbs",)),
    scope=Scope.PROCESS,
)
def verbs_device_missing(c: Context) -> Iterator[Finding]:
    """The kernel shows active RDMA NICs and their devices under /dev/infiniband are missing or not permitted.

    Looks at:
        /dev/infiniband/uverbs* as this process sees it, each for itself: access(2) answers for the device cgroup too.

    Why it matters:
        NCCL finds "No device" and falls back to TCP: a tenth of the bandwidth, without an error.

    Fix:
        In a container map them: `docker run --device=/dev/infiniband ...`, in Kubernetes by the RDMA device
        plugin, with rdma-core in the image. On bare metal load `ib_uverbs`.

    Does not apply:
        Where no NIC has an active port. A note with a single GPU, and where only some devices are missing: a
        container may have been given its share. It fails where some may be opened and another, which is there, may
        not: nodes of one job then have different NICs.
    """
    nics = active_nics(c)
    if not nics:
        raise not_applicable(no_active_nic(c))
    net = c.node.net
    fix = first_fitting(c, *_OPEN, Fix(_MISSING_FILES if _no_files(c) else _MODE))
    names = listed(n.label for n in nics)
    refused, others = _refused_nics(c, nics)
    if refused and others:
        # One bit per device: the others of this node are in use, so a job waits for the one that is not.
        for n, name in refused:
            yield Finding(
                state=State.FAIL,
                subject=named(n),
                devices=(n.address,),
                title=f"{n.label} is active, and this process may not open /dev/infiniband/{name}; it may open "
                f"{listed(o.label for o in others)}",
                consequence="NCCL silently ignores this NIC; a job with nodes that use it hangs or is slow",
                evidence=(
                    Evidence(f"/dev/infiniband/{name}", "may not be opened"),
                    Evidence(f"/sys/class/infiniband_verbs/{name}/ibdev", n.label),
                ),
                rule="a uverbs device that this process may open, for each NIC",
                fix=fix,
            )
        return
    devices = net.verbs_devices
    uverbs = [] if isinstance(devices, Missing) else [d for d in devices if d.startswith("uverbs")]
    if isinstance(devices, Missing) and devices.reason is not Reason.ABSENT:
        title = f"whether this process may use {names} cannot be determined: /dev/infiniband: {devices}"
        yield Finding(state=State.UNKNOWN, subject="process", title=title, fix=fix)
    elif not uverbs or net.verbs_accessible is False:
        what = "may not be opened" if uverbs else "are missing"
        yield Finding(
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
            state=State.NOTE,
            subject="process",
            title=f"{len(nics)} NICs are active, and only {len(uverbs)} devices exist under /dev/infiniband",
            consequence="NCCL uses the NICs it was given; GPUs share them",
            evidence=(Evidence("/dev/infiniband", " ".join(uverbs)),),
            rule="a uverbs device for each NIC",
            fix=fix,
        )


_OPEN = (
    Fix(
        "request the NICs for the pod (RDMA device plugin), so that its device cgroup lets it open them",
        (in_kubernetes,),
    ),
    Fix("map them into the container: docker run --device=/dev/infiniband (with all its files)", (in_container,)),
    Fix("request the NICs with the job: Slurm's device cgroup opens only those of its step", (in_slurm,)),
)
_MISSING_FILES = "modprobe ib_uverbs; rdma-core's udev rules make /dev/infiniband/uverbs*"
_MODE = (
    "check the mode of /dev/infiniband/uverbs* (0666 with rdma-core's udev rules: install rdma-core, then udevadm "
    "trigger), and DeviceAllow= of the service that runs this"
)


def _no_files(c: Context) -> bool:
    """Tell whether /dev/infiniband has no device of a NIC."""
    devices = c.node.net.verbs_devices
    return isinstance(devices, Missing) or not any(d.startswith("uverbs") for d in devices)


def _refused_nics(c: Context, nics: Sequence[Nic]) -> tuple[list[tuple[Nic, str]], list[Nic]]:
    """Return the NICs whose verbs device may not be opened, with its name, and those whose may."""
    opens = c.node.net.verbs_opens
    files = [(n, n.rdma.verbs) for n in nics if n.rdma is not None]
    refused = [(n, f) for n, f in files if isinstance(f, str) and opens.get(f) is False]
    return refused, [n for n, f in files if isinstance(f, str) and opens.get(f) is True]


_WATCHED = {
    "link_downed": (10, "link downs: {n}"),
    "link_error_recovery": (10, "recoveries of the link from errors: {n}"),
    "symbol_error": (1000, "symbol errors: {n}"),
    "port_rcv_errors": (100, "broken packets that came in: {n}"),
    "local_link_integrity_errors": (10, "times of too many local link errors: {n}"),
    "excessive_buffer_overrun_errors": (10, "buffer overruns: {n}"),
    "local_ack_timeout_err": (1000, "ACK timeouts: {n}"),
    "packet_seq_err": (1000, "packets missed and asked for again: {n}"),
    "rnr_nak_retry_err": (100, "receivers not ready until retries ran out: {n}"),
    "rx_icrc_encapsulated": (100, "RoCE packets with a bad checksum: {n}"),
    "port_xmit_discards": (1000, "packets that were thrown away before they were sent: {n}"),
    "implied_nak_seq_err": (1000, "implied NAK sequence errors (acknowledgements lost): {n}"),
    "roce_slow_restart": (1000, "slow restarts after losses (RoCE): {n}"),
    "out_of_sequence": (10000, "out-of-sequence packets: {n}"),
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

_PER_PACKET = frozenset(
    "symbol_error port_rcv_errors port_xmit_discards implied_nak_seq_err roce_slow_restart local_ack_timeout_err "
    "packet_seq_err out_of_sequence rx_icrc_encapsulated".split()
)
"""Counters that grow with traffic, so that their share of it can be judged."""
_MUCH_PER_GB = 10.0
"""10 of some 244,000 packets of 4096 bytes: a loss of 4 in 100,000, at which RDMA's go-back-N halves the rate
(Microsoft's DCQCN paper, SIGCOMM 2015, figure 2: 1 in 1000 costs most of it)."""
_LITTLE_PER_GB = 0.001
"""One in 244 million packets: what links of the specified bit error rate lose."""
_ENOUGH_GB = 100.0
"""Traffic from which on a share says something."""
_WORD_BYTES = 4
"""port_rcv_data and port_xmit_data count words of four bytes (sysfs-class-infiniband)."""

_STANDS_OUT = 10
"""A port is the odd one out when its count is so many times the median of its siblings."""


@check(
    "rdma.counters",
    title="Error counters of a port are high",
    severity=State.WARN,
    reads=("/sys/class/infiniband/*/ports/*/counters", "/sys/class/infiniband/*/ports/*/hw_counters"),
    needs=Needs(("rdma",), ("counters", "model")),
    thresholds=tuple(_WATCHED),
)
def counters(c: Context) -> Iterator[Finding]:
    """Error counters of an active port stand above a threshold.

    Looks at:
        Counters of link flaps, symbol errors, broken packets, lost acknowledgements and the like: totals since the
        driver was loaded, from one look, and their share of the traffic since then. Thresholds: one of
        the policy's for each, by the counter's name.

    Why it matters:
        A bad cable costs retries first, and later a job that ends with completion status 12.

    Fix:
        Look twice, some minutes apart: a count that grows is a fault now. Clean or swap cable and transceiver; on
        RoCE look at PFC and ECN. A longer NCCL_IB_TIMEOUT only hides it.

    Does not apply:
        Counters that cannot be read lose only themselves. A total alone is a note, and less than one error in 1000 GB
        of traffic is none; it warns where the port stands out from its siblings, ten times their middle value, and
        from 10 errors per GB on, whatever the siblings have.
    """
    active = [p for p in ports(c) if p.port.state == "ACTIVE"]
    if not active:
        raise not_applicable(no_active_nic(c))
    limits = {name: c.threshold("rdma.counters", name, most) for name, (most, _) in _WATCHED.items()}
    alike = {name: Siblings(active, functools.partial(_only_count, name=name)) for name in _WATCHED}
    for p in active:
        for name, (_, words) in _WATCHED.items():
            value, kind = _count(p, name)
            limit = limits[name]
            if value is None or value <= limit:
                continue
            share = _per_gb(p, value) if name in _PER_PACKET else None
            others = alike[name].of(p)
            # The higher of the two in the middle where their number is even.
            middle = others.place(len(others) // 2) if len(others) else 0
            odd = len(others) >= 2 and value > _STANDS_OUT * max(1, middle)
            if share is not None and share < _LITTLE_PER_GB and not odd:
                continue
            much = share is not None and share > _MUCH_PER_GB
            rate = f", {share:.3g} per GB of traffic" if share is not None else ""
            full = " or more (the counter stops there)" if value == _STOPS_AT.get(name) else ""
            beside = f"; the median of {len(others)} siblings is {middle}" if len(others) else ""
            yield Finding(
                state=State.WARN if odd or much else State.NOTE,
                subject=p.where,
                devices=(p.nic.address,),
                title=f"port {p.port.port} of {p.nic.label}: {words.format(n=value)}{full} since the driver was loaded"
                f"{rate}{beside}",
                consequence="retries cost bandwidth, and a job may end with completion status 12",
                evidence=p.port.evidence(f"{kind}/{name}") or (Evidence(f"{p.port.source}/{kind}/{name}", str(value)),),
                rule=f"{name} at most {limit:g}, not {_STANDS_OUT} times that of siblings"
                + (f", and at most {_MUCH_PER_GB:g} per GB of traffic" if share is not None else ""),
                fix="see whether it grows (topocheck check --sample 1m, or --since with an earlier snapshot); if so, "
                "clean or swap cable and transceiver, and on RoCE check PFC and ECN",
            )


def _per_gb(p: Port, value: int) -> float | None:
    """Return a count for each GB that the port has carried; None where that is not known or too little."""
    words = [p.port.counters.get(n) for n in ("port_rcv_data", "port_xmit_data")]
    gb = sum(w for w in words if w is not None) * _WORD_BYTES / 1e9
    return value / gb if gb >= _ENOUGH_GB else None


def _only_count(p: Port, name: str) -> int | None:
    return _count(p, name)[0]


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
        The host's administrator turns ATS on in the NIC (`mlxconfig -d DEVICE set ATS_ENABLED=1`, then a cold boot) and
        keeps ACS as passthrough needs it.

    Does not apply:
        On bare metal, in guests that show a flat tree, and to NICs of other makers than NVIDIA (Mellanox). A note only:
        a guest cannot see whether the host does without an IOMMU.
    """
    if not in_guest(c):
        raise not_applicable("not a guest")
    near = {p.to for p in c.topology.paths if p.pcie_class in ("PIX", "PXB")}
    nics = [n for n in c.topology.nics if active_ports(n) and n.address in near and by_mellanox(n)]
    if not nics or c.topology.flat_tree:
        raise not_applicable("no active ConnectX or BlueField NIC that shares a PCIe switch with a GPU")
    unread = []
    for n in nics:
        enabled = n.pci.ats_enabled if n.pci is not None else None
        if n.pci is not None and (enabled is False or n.pci.ats_supported is False):
            name = "config ATSCtl" if enabled is False else "config"
            yield Finding(
                state=State.NOTE,
                subject=named(n),
                devices=(n.address,),
                title=f"ATS is off for {n.label} in this guest"
                if enabled is False
                else f"{n.label} shows no ATS capability in this guest",
                consequence="if the host translates addresses, GPUDirect RDMA makes a detour by its root complex",
                evidence=quote(n.pci, name, "off" if enabled is False else "no ATS capability"),
                rule="ATS on, so that translated requests go straight",
                fix="ask the host's administrator: mlxconfig set ATS_ENABLED=1 and a cold boot of the host",
            )
        elif not isinstance(enabled, bool):
            unread.append(n)
    if unread:
        yield Finding(
            state=State.UNKNOWN,
            subject="node",
            title=f"whether ATS is on for {listed(n.label for n in unread)} cannot be read here",
            consequence="without it GPUDirect RDMA in a guest makes a detour by the host's root complex",
            evidence=tuple(
                Evidence(f"{n.address} config ATSCtl", str(n.pci.ats_enabled)) for n in unread[:2] if n.pci is not None
            ),
            rule="ATS on",
            fix="run as root, or ask the host's administrator",
        )
