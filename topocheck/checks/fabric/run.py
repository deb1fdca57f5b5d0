"""What the checks of a fabric judge, and the run of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from topocheck.checks import fabric_checks
from topocheck.checks.registry import CheckResult, Context, finding_order, not_applicable, run
from topocheck.fabric.bisection import Bisection, bisection
from topocheck.fabric.join import Joined, NodeBond, NodePort, join
from topocheck.fabric.places import NodeGroup, node_groups
from topocheck.fabric.tiers import Tiers, tiers_of
from topocheck.gpudirect.types import GpuDirect
from topocheck.model.base import Evidence, Finding
from topocheck.model.fabric import End, Fabric, FabricLink
from topocheck.model.node import Node
from topocheck.nccl.predict.types import NcclView
from topocheck.policy.types import Policy
from topocheck.topology.types import Topology

READS = ("dump of the fabric (ibnetdiscover, ...)",)


class FabricContext(Context, frozen=True, kw_only=True):
    """A context with a fabric in it, and what joins it with recordings of its nodes where there are any."""

    tiers: Tiers
    joined: Joined | None = None


class FabricResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the checks of a fabric went, their findings, worst first, and what is worked out of the whole.

    Attributes:
        bisection: its bisection bandwidth; None where it is not known.
        groups: nodes on the same leaves.
    """

    results: tuple[CheckResult, ...]
    findings: tuple[Finding, ...]
    bisection: Bisection | None = None
    groups: tuple[NodeGroup, ...] = ()


class JudgedFabric(msgspec.Struct, frozen=True, kw_only=True):
    """A fabric, what its checks came to, and what joins it with recordings of its nodes."""

    tiers: Tiers
    result: FabricResult
    joined: Joined | None = None


def joined_in(context: Context) -> Joined:
    """Return what joins the fabric with recordings; a check without any has nothing to judge."""
    if not isinstance(context, FabricContext) or context.joined is None:
        raise not_applicable("no snapshots of nodes were given with the dump; `topocheck fleet --fabric FILE` does")
    return context.joined


def joined_or_none(context: Context) -> Joined | None:
    """Return what joins the fabric with recordings; None without any."""
    return context.joined if isinstance(context, FabricContext) else None


def tiers_in(context: Context) -> Tiers:
    """Return the fabric in its tiers; a check without one has nothing to judge."""
    if not isinstance(context, FabricContext):
        raise not_applicable("no dump of the fabric was given; `topocheck network fabric FILE` reads one")
    return context.tiers


def whole(tiers: Tiers) -> None:
    """End a check of the cables between switches where the dump does not show them."""
    if not tiers.fabric.whole:
        raise not_applicable("the dump does not show the cables between switches")


def port(tiers: Tiers, end: End) -> str:
    """Return a port as an operator names it: `leaf-2 port 11`, `gpu07 mlx5_3`."""
    device = tiers.fabric.devices.get(end.device)
    if device is not None and device.node:
        return f"{device.node} {device.adapter}" + ("" if end.port == "1" else f" port {end.port}")
    return f"{tiers.label(end.device)} port {end.port}"


def both(tiers: Tiers, link: FabricLink) -> str:
    """Return a link by its two ports."""
    return f"{port(tiers, link.a)} - {port(tiers, link.b)}"


def shown(link: FabricLink) -> str:
    """Return width, speed and rate of a link, as far as they are known."""
    words = [f"{link.width}x" if link.width else "", link.speed]
    rate = f" ({link.rate_gbit_s:g} Gb/s)" if link.rate_gbit_s else ""
    return ("".join(words) or "unknown rate") + rate


def ends(link: FabricLink) -> tuple[str, ...]:
    """Return the GUIDs of both devices of a link."""
    return tuple(dict.fromkeys((link.a.device, link.b.device)))


def evidence(*links: FabricLink) -> tuple[Evidence, ...]:
    """Return what the dump says of some links."""
    return tuple(e for x in links for e in x.evidence)


def down(tiers: Tiers, device: str, most: int = 3) -> tuple[Evidence, ...]:
    """Return what the dump says of ports of a device that have no link and are not switched off."""
    own = [p for p in tiers.fabric.down if p.end.device == device and not p.state.endswith("Disabled")]
    return tuple(p.evidence for p in own[:most])


def judge_joined(
    fabric: Fabric,
    ports: Iterable[NodePort],
    policy: Policy | None = None,
    bonds: Iterable[NodeBond] = (),
    domains: Mapping[str, str] | None = None,
) -> JudgedFabric:
    """Return a fabric with the names that recordings of its nodes give it, and what its checks come to.

    Args:
        fabric: of the dumps.
        ports: of the nodes, as they record them.
        policy: severities and thresholds.
        bonds: of the nodes.
        domains: node -> NVLink domain.
    """
    joined = msgspec.structs.replace(join(fabric, ports), bonds=tuple(bonds), domains=domains or {})
    tiers = tiers_of(joined.fabric)
    return JudgedFabric(tiers=tiers, result=judge_fabric(tiers, policy, joined), joined=joined)


def judge_fabric(tiers: Tiers, policy: Policy | None = None, joined: Joined | None = None) -> FabricResult:
    """Return what the checks of a fabric come to."""
    context = FabricContext(
        node=Node(source="fabric"),
        topology=Topology(),
        gpudirect=GpuDirect(),
        nccl=NcclView(),
        policy=policy or Policy(),
        tiers=tiers,
        joined=joined,
    )
    outcomes = list(run(fabric_checks(), context))
    findings = [f for _, found in outcomes for f in found]
    return FabricResult(
        results=tuple(r for r, _ in outcomes),
        findings=tuple(sorted(findings, key=finding_order)),
        bisection=bisection(tiers),
        groups=node_groups(tiers),
    )
