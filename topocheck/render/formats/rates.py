"""PCIe rates for monitors: what each link on the way to a GPU or NIC runs at, and what both its ends can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from topocheck.model.base import known
from topocheck.topology.types import Hop, HopKind

if TYPE_CHECKING:
    from topocheck.topology.types import Topology


class LinkRate(msgspec.Struct, frozen=True):
    """One link by the function at its lower end. Rates are 10^9 bytes/s in one direction.

    `role` is gpu, nic, or the role of a port of the tree. `now_gb_s` is the rate while the device works: a link
    that an idle device has slowed is not slow.
    """

    address: str
    role: str
    label: str
    now_gb_s: float
    max_gb_s: float | None


def link_rates(topology: Topology) -> list[LinkRate]:
    """Return the links on the ways between GPUs and NICs, by address; emulated ones and unreadable ones left out."""
    devices = {g.address: ("gpu", g.label) for g in topology.gpus}
    devices |= {n.address: ("nic", n.label) for n in topology.nics}
    hops: dict[str, Hop] = {}
    for path in topology.paths:
        for hop in path.hops:
            if hop.kind is HopKind.PCIE:
                hops.setdefault(hop.address, hop)
    out = []
    for address in sorted({*hops, *devices}):
        node = topology.tree.get(address)
        role, label = devices.get(address, (node.role if node else "bridge", address))
        found = hops.get(address)
        now = found.working_gb_s if found else node.link_gb_s if node else None
        best = found.attainable_gb_s if found else None
        if now is not None and known(now):
            out.append(LinkRate(address, role, label, now, best if best is not None and known(best) else None))
    return out
