"""RDMA devices: link layers that do not fit each other, and devices that are software only."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.fixes import on_node
from topocheck.checks.shared.rdma_ports import Port, judged
from topocheck.checks.shared.settings import in_force
from topocheck.checks.sources import Needs
from topocheck.model.base import Evidence, Finding, State, known

_ENOUGH = 4
"""So many ports of one kind make the one that differs an odd one."""


@check(
    "rdma.mixed-link-layers",
    title="NCCL may use Ethernet and InfiniBand ports side by side",
    severity=State.NOTE,
    reads=("/sys/class/infiniband/*/ports/*/link_layer", "NCCL_IB_HCA"),
    scope=Scope.PROCESS,
)
def mixed_link_layers(c: Context) -> Iterator[Finding]:
    """Active InfiniBand and Ethernet ports stand side by side and NCCL_IB_HCA is not set.

    Looks at:
        The link layer of every active port, and whether NCCL_IB_HCA is set.

    Why it matters:
        NCCL takes every active port, storage and management NICs among them. Ranks may then talk over a slow one,
        or try to join an InfiniBand port with an Ethernet one and time out.

    Fix:
        Name the NICs for data: `export NCCL_IB_HCA==mlx5_0,mlx5_1` (the second `=` asks for exact names).

    Does not apply:
        Where NCCL_IB_HCA is set, and where all active ports have one link layer.
    """
    layers: dict[str, list[str]] = {}
    for p in judged(c):
        if p.port.state == "ACTIVE" and isinstance(p.port.link_layer, str):
            layers.setdefault(p.port.link_layer, []).append(p.nic.label)
    if len(c.topology.gpus) < 1:
        raise not_applicable("this machine has no NVIDIA GPU")
    if "NCCL_IB_HCA" in in_force(c) or len(layers) < 2:
        return
    rarest = min(layers, key=lambda k: len(layers[k]))
    others = [n for k, v in layers.items() if k != rarest for n in v]
    yield Finding(
        state=State.NOTE,
        subject="node",
        title="; ".join(f"{k}: {listed(v)}" for k, v in sorted(layers.items())) + "; NCCL_IB_HCA is not set",
        consequence="NCCL uses all of them for data, including storage and management NICs",
        evidence=tuple(Evidence(f"{k} ports", listed(v)) for k, v in sorted(layers.items())),
        rule="active ports of one link layer, or NCCL_IB_HCA set",
        fix=f"export NCCL_IB_HCA=={','.join(others[:8])}  (if these are the NICs for data)",
    )


@check(
    "rdma.link-layer-differs",
    title="One port speaks Ethernet where its siblings speak InfiniBand, or the other way round",
    severity=State.WARN,
    reads=("/sys/class/infiniband/*/ports/*/link_layer", "/sys/class/infiniband/*/board_id"),
    needs=Needs(("rdma", "model")),
)
def link_layer_differs(c: Context) -> Iterator[Finding]:
    """One port of several on cards of one model and board has another link layer than all the others.

    Looks at:
        The link layer of ports of the same card model and board, in the same place on the card.

    Why it matters:
        A card that can do both was left in the wrong mode: it never joins the others' fabric, and the job has one
        NIC less, or times out on it.

    Fix:
        `mlxconfig -d DEVICE set LINK_TYPE_P1=1` (InfiniBand) or `2` (Ethernet), then reset the NIC or reboot.

    Does not apply:
        With fewer than four ports of a kind, and where more than one differs: that is design.
    """
    groups: dict[tuple[object, ...], list[Port]] = {}
    for p in judged(c):
        kind, board, layer, *place = p.model
        if kind is not None and board is not None and layer is not None:
            groups.setdefault((kind, board, *place), []).append(p)
    if all(len(g) < _ENOUGH for g in groups.values()):
        raise not_applicable(f"fewer than {_ENOUGH} ports of one kind")
    for group in groups.values():
        layers: dict[str, list[Port]] = {}
        for p in group:
            layers.setdefault(str(p.port.link_layer), []).append(p)
        alone = [v[0] for v in layers.values() if len(v) == 1]
        if len(group) < _ENOUGH or len(layers) != 2 or len(alone) != 1:
            continue
        p = alone[0]
        other = next(v[0] for v in layers.values() if len(v) > 1)
        yield Finding(
            state=State.WARN,
            subject=p.where,
            devices=(p.nic.address,),
            title=f"port {p.port.port} of {p.nic.label} speaks {p.port.link_layer}; the other {len(group) - 1} of its "
            f"kind speak {other.port.link_layer}",
            consequence="it does not join the others' fabric: the job has one NIC less, or times out on it",
            evidence=p.port.evidence("link_layer") + other.port.evidence("link_layer"),
            rule="ports of one card model and board speak one link layer",
            fix=on_node(
                c,
                f"mlxconfig -d {p.nic.address} set LINK_TYPE_P{p.port.port}="
                f"{1 if other.port.link_layer == 'InfiniBand' else 2}, then reset the NIC (drain the node first)",
            ),
        )


@check(
    "rdma.software-device",
    title="An RDMA device is software only",
    severity=State.NOTE,
    reads=("/sys/class/infiniband/*/device",),
)
def software_device(c: Context) -> Iterator[Finding]:
    """An RDMA device has no PCI function behind it (siw, rxe).

    Looks at: the devices of /sys/class/infiniband that no PCI function stands behind.

    Why it matters: it is left out of GPUDirect and of the distances, since it has no place in the machine. NCCL may
    try to use it all the same, if its port is active.

    Fix: exclude it (`NCCL_IB_HCA=^siw`), or remove it if nothing needs it (`rdma link delete NAME`).

    Does not apply: where every RDMA device is real.
    """
    if not c.topology.software_rdma:
        raise not_applicable("no software RDMA device")
    devices = {d.name: d for d in reversed(c.node.net.rdma)} if known(c.node.net.rdma) else {}
    for name in c.topology.software_rdma:
        fact = devices[name]
        yield Finding(
            state=State.NOTE,
            subject=name,
            title=f"{name} is software RDMA: it has no PCI function",
            consequence="ignored for GPUDirect and distances; NCCL may still pick it",
            evidence=(Evidence(f"{fact.source}/device", str(fact.address)),),
            rule="a NIC has a PCI function",
            fix=f"exclude it from NCCL: NCCL_IB_HCA=^{name}; where nothing needs it: rdma link delete "
            f"{shlex.quote(name)}",
        )
