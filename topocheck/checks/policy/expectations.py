"""What the site's policy says this node must have."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.sources import GPUDIRECT, GPUS, PEERS, Needs
from topocheck.model.base import Evidence, Finding, Missing, State, Verdict, known
from topocheck.model.net import RdmaPort, port_kind
from topocheck.topology.links import generation
from topocheck.topology.paths import product_of
from topocheck.topology.types import Gpu


def _failed(
    subject: str,
    title: str,
    wanted: str,
    evidence: tuple[Evidence, ...],
    fix: str,
    state: State = State.FAIL,
    *,
    devices: tuple[str, ...] = (),
) -> Finding:
    return Finding(
        state=state,
        subject=subject,
        devices=devices,
        title=title,
        consequence="this node differs from what the site's policy expects",
        evidence=evidence,
        rule=f"expect: {wanted}",
        fix=fix,
    )


@check(
    "policy.gpus-differ",
    title="GPUs are not those that the policy expects",
    severity=State.FAIL,
    reads=("NVML", "/sys/bus/pci/devices"),
    needs=Needs((), GPUS),
)
def gpus_differ(c: Context) -> Iterator[Finding]:
    """A GPU is missing or of another model than the site's policy expects.

    Looks at: the GPUs on the PCI bus and those NVML answers for, against `expect.gpu_count` and `expect.gpu_model`.

    Why it matters: a job that was promised eight GPUs starts with seven, or runs at the pace of an older model.

    Fix: look for the missing card with `lspci -d 10de:` and in the kernel log (`Xid 79`); reseat or replace it.

    Does not apply: where the policy expects no count and no model.
    """
    expect = c.policy.expect
    if expect.gpu_count is None and expect.gpu_model is None:
        raise not_applicable("the policy expects no number and no model of GPUs")
    present = [g for g in c.topology.gpus if g.on_bus]
    listed = ", ".join(f"{g.label} {g.address}" for g in present) or "none"
    if expect.gpu_count is not None and len(present) != expect.gpu_count:
        title = f"{len(present)} GPUs answer, the policy expects {expect.gpu_count}"
        said = (Evidence("GPUs that answer", listed),)
        fewer = len(present) < expect.gpu_count
        fix = "find the missing GPU" if fewer else "correct the policy: this node has more"
        state = unless_lost(c, State.FAIL, "pci", "nvml")
        yield _failed("node", title, f"gpu_count = {expect.gpu_count}", said, fix, state)
    for g in present:
        if expect.gpu_model is None:
            break
        if isinstance(g.name, Missing):
            title = f"the model of {g.label} cannot be determined: {g.name}"
            yield Finding(state=State.UNKNOWN, subject=f"{g.label} {g.address}", devices=(g.address,), title=title)
        elif expect.gpu_model not in g.name:
            title = f"{g.label} is {g.name}, the policy expects {expect.gpu_model}"
            said = (Evidence(f"NVML {g.address} DeviceGetName", g.name),)
            rule = f"gpu_model = {expect.gpu_model!r}"
            fix, state = "correct the node or the policy", unless_lost(c, State.FAIL, "nvml")
            yield _failed(f"{g.label} {g.address}", title, rule, said, fix, state, devices=(g.address,))


@check(
    "policy.nvlinks-missing",
    title="Fewer NVLinks are up than the policy expects",
    severity=State.FAIL,
    reads=("NVML DeviceGetNvLinkState",),
    needs=Needs((), (*GPUS, "nvlinks")),
)
def nvlinks_missing(c: Context) -> Iterator[Finding]:
    """A GPU has fewer active NVLinks than `expect.nvlinks_per_gpu`.

    Looks at: NVML's state of every link.

    Why it matters: each missing link takes its share of the bandwidth to every other GPU.

    Fix: reset the GPU; then fabric manager, bridge or board. Correct the policy where the GPU has no more links.

    Does not apply: where the policy expects no number.
    """
    wanted = c.policy.expect.nvlinks_per_gpu
    if wanted is None:
        raise not_applicable("the policy expects no number of NVLinks")
    for g in c.topology.gpus:
        subject = f"{g.label} {g.address}"
        if g.nvml is None or g.nvml.lost or any(isinstance(k.active, Missing) for k in g.nvml.nvlinks):
            title = f"the NVLinks of {g.label} cannot be determined"
            yield Finding(state=State.UNKNOWN, subject=subject, devices=(g.address,), title=title)
            continue
        up = sum(k.active is True for k in g.nvml.nvlinks)
        if up < wanted:
            title = f"{g.label} has {up} NVLinks up, the policy expects {wanted}"
            said = (Evidence(f"NVML {g.address} DeviceGetNvLinkState", f"{up} active"),)
            rule = f"nvlinks_per_gpu = {wanted}"
            product = product_of(g)
            most = (product.nvlink_links if product is not None else None) or len(g.nvml.nvlinks)
            fix = "reset the GPU, then have its board checked"
            if 0 < most < wanted:
                fix = f"correct the policy, or the node: {g.name} has {most} NVLinks"
            yield _failed(subject, title, rule, said, fix, devices=(g.address,))


@check(
    "policy.nics-differ",
    title="NICs or their ports are not those that the policy expects",
    severity=State.FAIL,
    reads=("/sys/class/infiniband",),
    needs=Needs((), ("rdma", "rate")),
)
def nics_differ(c: Context) -> Iterator[Finding]:
    """An RDMA NIC is missing, or too few ports are up at the rate that the policy expects.

    Looks at: `/sys/class/infiniband/*` against `expect.nic_count`, `expect.nic_rate_gbit_s` and
    `expect.nic_rates_gbit_s`.

    Why it matters: a job of many nodes runs at the pace of the node with the fewest or slowest rails.

    Fix: `lspci -d 15b3:`, the cable, the switch port. Correct the policy where there are more NICs than it expects.

    Does not apply: where the policy expects neither.
    """
    expect = c.policy.expect
    by_kind = expect.nic_rates_gbit_s or {}
    if expect.nic_count is None and expect.nic_rate_gbit_s is None and not by_kind:
        raise not_applicable("the policy expects no number and no rate of NICs")
    if isinstance(c.node.net.rdma, Missing):
        title = f"RDMA devices cannot be determined: {c.node.net.rdma}"
        yield Finding(state=State.UNKNOWN, subject="node", title=title)
        return
    nics = c.topology.nics
    if expect.nic_count is not None and len(nics) != expect.nic_count:
        title = f"{len(nics)} RDMA NICs, the policy expects {expect.nic_count}"
        said: tuple[Evidence, ...] = (Evidence("/sys/class/infiniband", ", ".join(n.label for n in nics) or "empty"),)
        rule = f"nic_count = {expect.nic_count}"
        fewer = len(nics) < expect.nic_count
        fix = "look for the missing card: lspci -d 15b3:" if fewer else "correct the policy: this node has more"
        yield _failed("node", title, rule, said, fix, unless_lost(c, State.FAIL, "rdma"))
    for n in nics:
        for port in n.rdma.ports if n.rdma else ():
            assert n.rdma is not None
            kind = port_kind(n.rdma, port)
            wanted = by_kind.get(kind, expect.nic_rate_gbit_s)
            if wanted is None or (port.state == "ACTIVE" and known(port.rate_gbit_s) and port.rate_gbit_s >= wanted):
                continue
            now = f"{port.state} at {port.rate_text}"
            yield _failed(
                f"{n.label} {n.address}",
                f"port {n.label}/{port.port} is {now}, the policy expects {wanted:g} Gb/s",
                f"nic_rates_gbit_s of {kind} = {wanted:g}" if kind in by_kind else f"nic_rate_gbit_s = {wanted:g}",
                port.evidence("state", "rate"),
                "check the cable and the switch port",
                State.UNKNOWN if _untold(port) else State.FAIL,
                devices=(n.address,),
            )


def _untold(port: RdmaPort) -> bool:
    """Tell whether the state of a port, or the rate of one that is up, could not be read."""
    return isinstance(port.state, Missing) or (port.state == "ACTIVE" and isinstance(port.rate_gbit_s, Missing))


@check(
    "policy.driver-differs",
    title="The NVIDIA driver is not the one that the policy expects",
    severity=State.FAIL,
    reads=("NVML SystemGetDriverVersion",),
)
def driver_differs(c: Context) -> Iterator[Finding]:
    """The driver's version does not begin with `expect.driver_version`.

    Looks at: NVML's driver version.

    Why it matters: one node with another driver changes what NCCL may do for the whole job.

    Fix: install the site's driver.

    Does not apply: where the policy expects no version.
    """
    wanted = c.policy.expect.driver_version
    if wanted is None:
        raise not_applicable("the policy expects no driver version")
    version = c.node.nvml.driver_version
    if isinstance(version, Missing):
        title = f"the driver's version cannot be determined: {version}"
        yield Finding(state=State.UNKNOWN, subject="node", title=title)
    elif version != wanted and not version.startswith(wanted + "."):
        title = f"driver {version}, the policy expects {wanted}"
        said = (Evidence("NVML SystemGetDriverVersion", version),)
        yield _failed("node", title, f"driver_version = {wanted!r}", said, "install the site's driver")


@check(
    "policy.p2p-missing",
    title="GPUDirect P2P or RDMA is missing where the policy expects it",
    severity=State.FAIL,
    reads=("NVML DeviceGetP2PStatus", "/sys/class/infiniband"),
    needs=Needs((), (*PEERS, *GPUDIRECT)),
)
def p2p_missing(c: Context) -> Iterator[Finding]:
    """A pair of GPUs has no peer access, or too few GPU-NIC pairs can do GPUDirect RDMA.

    Looks at: the verdicts, against `expect.p2p_everywhere` and `expect.gdr_pairs`.

    Why it matters: traffic is staged through host memory, at a fraction of the rate.

    Fix: the reason that the report gives for the pair.

    Does not apply: where the policy expects neither.
    """
    expect = c.policy.expect
    if not expect.p2p_everywhere and not expect.gdr_pairs:
        raise not_applicable("the policy expects nothing of GPUDirect")
    if expect.p2p_everywhere:
        for v in c.gpudirect.p2p:
            if v.verdict in (Verdict.YES, Verdict.DEGRADED):
                continue
            state = State.UNKNOWN if v.verdict is Verdict.UNKNOWN else State.FAIL
            causes = [r for r in v.reasons if r.effect == v.verdict.value]
            # A cause that can be mended says more than the refusal that follows from it (MIG).
            reason = next((r for r in causes if r.fix), causes[0] if causes else None)
            yield Finding(
                state=state,
                subject=f"{v.from_label} {v.from_} -> {v.to_label} {v.to}",
                devices=(v.from_, v.to),
                title=f"peer access {v.from_label} -> {v.to_label}: {v.verdict.value}"
                + (f", {reason.text}" if reason else ""),
                evidence=reason.evidence if reason else (),
                rule="expect: p2p_everywhere = true",
                fix=reason.fix if reason else None,
            )
    if expect.gdr_pairs:
        good = sum(v.verdict is Verdict.YES for v in c.gpudirect.rdma)
        told = sum(v.verdict is not Verdict.UNKNOWN for v in c.gpudirect.rdma)
        if good < expect.gdr_pairs:
            can_reach = good + len(c.gpudirect.rdma) - told >= expect.gdr_pairs
            yield Finding(
                state=State.UNKNOWN if can_reach else unless_lost(c, State.FAIL, "rdma", "pci"),
                subject="node",
                title=f"GPUDirect RDMA works for {good} GPU-NIC pairs, the policy expects {expect.gdr_pairs}",
                rule=f"expect: gdr_pairs = {expect.gdr_pairs}",
                fix="topocheck report --section rdma gives the reason of each pair",
            )


@check(
    "policy.pcie-slower",
    title="A GPU's PCIe link is slower than the policy expects",
    severity=State.FAIL,
    reads=("/sys/bus/pci/devices/*/max_link_width", "NVML DeviceGetMaxPcieLinkGeneration"),
    needs=Needs((), GPUS),
)
def pcie_slower(c: Context) -> Iterator[Finding]:
    """The widest or fastest link that a GPU can have in its slot is below `expect.pcie_width` or `expect.pcie_gen`.

    Looks at: NVML's maximum generation and width of each GPU in this slot, and what the card alone can do.

    Why it matters: copies between host and GPU are bound by it.

    Fix: another slot, riser or firmware setting (bifurcation, link speed). Where the card itself can do no more,
    correct the policy.

    Does not apply: where the policy expects neither.
    """
    expect = c.policy.expect
    if expect.pcie_gen is None and expect.pcie_width is None:
        raise not_applicable("the policy expects no PCIe link")
    for g in c.topology.gpus:
        subject = f"{g.label} {g.address}"
        gen = g.nvml.pcie_gen_max if g.nvml else None
        width = g.nvml.pcie_width_max if g.nvml else None
        values = (
            ("generation", "pcie_gen", expect.pcie_gen, gen, "DeviceGetMaxPcieLinkGeneration"),
            ("width", "pcie_width", expect.pcie_width, width, "DeviceGetMaxPcieLinkWidth"),
        )
        for word, name, wanted, found, call in values:
            if wanted is None:
                continue
            if found is None or isinstance(found, Missing):
                title = f"the PCIe {word} of {g.label} cannot be determined"
                yield Finding(state=State.UNKNOWN, subject=subject, devices=(g.address,), title=title)
            elif found < wanted:
                title = f"{g.label} PCIe {word} {found} at most, the policy expects {wanted}"
                said = (Evidence(f"NVML {g.address} {call}", str(found)),)
                own = _card_gen(g) if name == "pcie_gen" else _card_width(g)
                fix = "check slot and firmware settings"
                if own is not None and own < wanted:
                    fix = f"correct the policy, or the node: the card itself can do no more than {word} {own}"
                yield _failed(subject, title, f"{name} = {wanted}", said, fix, devices=(g.address,))


def _card_gen(g: Gpu) -> int | None:
    """Return the PCIe generation that a card can do in the best of slots; None where nobody tells."""
    if g.nvml is not None and known(g.nvml.pcie_gen_device_max):
        return g.nvml.pcie_gen_device_max
    return generation(g.pci.max_speed_gt_s) if g.pci is not None else None


def _card_width(g: Gpu) -> int | None:
    width = g.pci.max_width_lanes if g.pci is not None else None
    return width if isinstance(width, int) else None
