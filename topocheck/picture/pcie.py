"""Links as they are drawn: PCIe with its state, several in a row as one, the ports of a NIC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from topocheck.model.base import Missing, Reason, known
from topocheck.model.net import RdmaPort
from topocheck.model.pci import PciDevice
from topocheck.picture.types import Link, LinkState
from topocheck.picture.words import rate
from topocheck.topology.links import generation, negotiated, pcie_hop
from topocheck.topology.types import Gpu

_GONE = Missing(Reason.ABSENT, "off the bus")
_ORDER = (
    *(LinkState.DOWN, LinkState.REDUCED, LinkState.UNKNOWN, LinkState.IDLE, LinkState.OK, LinkState.UNUSED),
    LinkState.FORMAL,
)
"""Which of several links in a row is shown: the worst, then the narrowest."""


def drawn_link(id_: str, lower: PciDevice, upper: PciDevice | None, gpu: Gpu | None, *, guest: bool) -> Link:
    """Return the link from a function to the port above it.

    Args:
        id_: of the link.
        lower: endpoint or upstream port.
        upper: the port above; None where none is shown.
        gpu: the GPU where `lower` is one.
        guest: in a virtual machine, where the far end may be on the host.
    """
    nvml = gpu.nvml if gpu is not None else None
    hop = pcie_hop(lower, upper, gpu=nvml, driverless_gpu=gpu is not None and nvml is None)
    now, most = negotiated(lower, upper, nvml)
    what, mark, state = now.text(), "", LinkState.OK
    working = hop.working_gb_s
    if gpu is not None and not gpu.on_bus:
        state, mark, what, working = LinkState.DOWN, "off the bus", "PCIe", _GONE
    elif hop.formal:
        state, mark, what = LinkState.FORMAL, "emulated", "PCIe"
    elif hop.idle:
        state, what, mark = LinkState.IDLE, most.text(), f"idle at gen {generation(now.speed_gt_s)}"
    elif isinstance(hop.gb_s, Missing):
        state, what, mark = LinkState.UNKNOWN, "PCIe", "rate not known"
    elif isinstance(hop.attainable_gb_s, Missing) or hop.gb_s >= hop.attainable_gb_s:
        pass
    else:
        parts = []
        if known(most.width_lanes) and known(now.width_lanes) and now.width_lanes < most.width_lanes:
            parts.append(f"x{now.width_lanes} of x{most.width_lanes}")
        if known(most.speed_gt_s) and known(now.speed_gt_s) and now.speed_gt_s < most.speed_gt_s:
            parts.append(f"gen {generation(now.speed_gt_s)} of {generation(most.speed_gt_s)}")
        hidden = upper is None or guest
        state, mark = (LinkState.UNKNOWN if hidden else LinkState.REDUCED), ", ".join(parts)
    real = state not in (LinkState.DOWN, LinkState.FORMAL)
    return Link(
        id=id_,
        kind="pcie",
        state=state,
        what=what,
        now=now.text() if real and known(now.rate()) else "",
        most=most.text() if real and known(most.rate()) else "",
        rate=rate(working),
        mark=mark,
        gb_s=None if isinstance(working, Missing) else working,
        addresses=(lower.address,),
    )


def folded(upper: Link, lower: Link) -> Link:
    """Return two links in a row as one: the worse of them, or the narrower."""
    rated = [k for k in (lower, upper) if k.kind != "inside"] or [lower]
    shown = min(rated, key=lambda k: (_ORDER.index(k.state), float("inf") if k.gb_s is None else k.gb_s))
    return msgspec.structs.replace(shown, id=lower.id, addresses=lower.addresses + upper.addresses)


def network_link(id_: str, ports: Sequence[RdmaPort], *, faulty: bool) -> Link | None:
    """Return the ports of a NIC as one link out of the node; None where it has none.

    The rate of a port that is not active is a default and not shown. A port that is down is a fault where the NIC is
    `faulty`: a check found something.
    """
    if not ports:
        return None
    up = [p for p in ports if p.state == "ACTIVE"]
    layers = Counter(p.link_layer if known(p.link_layer) else "network" for p in ports)
    what = ", ".join(f"{n} × {k}" if n > 1 else k for k, n in layers.items())
    rates = Counter(f"{p.rate_gbit_s:g} Gb/s" for p in up if known(p.rate_gbit_s))
    shown = ", ".join(f"{n} × {k}" if n > 1 else k for k, n in rates.items())
    down = [p for p in ports if known(p.state) and p.state != "ACTIVE"]
    if len(up) == len(ports):
        state, mark = LinkState.OK, ""
    elif down and not up:
        words = {f"{p.state}".lower() for p in down}
        state, mark = LinkState.DOWN if faulty else LinkState.UNUSED, ", ".join(sorted(words))
    elif down:
        state, mark = LinkState.DOWN if faulty else LinkState.OK, f"{len(down)} of {len(ports)} ports down"
    else:
        state, mark = LinkState.UNKNOWN, "state not known"
    return Link(id=id_, kind="network", state=state, what=what, rate=shown, mark=mark)
