"""What each measurement amounts to, against what its path can carry. Pure."""

from __future__ import annotations

import msgspec

from topocheck.bandwidth.cases import HOST
from topocheck.bandwidth.link_rates import efficiency_key, host_hop, rate
from topocheck.knowledge.products import Efficiency, efficiency
from topocheck.knowledge.rates import pcie_gen_gb_s
from topocheck.model.base import Missing, State
from topocheck.model.measurement import UNSTABLE, Assessment, DeviceState, Measurement, Run, unsteady
from topocheck.topology.types import Hop, HopKind, Topology

COPIES = ("h2d", "d2h", "p2p", "host_both", "p2p_both")
JUDGED_FROM_BYTES = 64 << 20
"""Smallest copy that is judged: a link's rate is reached within 1 to 2 % there (half-rate sizes are about 1 MiB)."""
COLLECTIVES_FROM_BYTES = 512 << 20
"""Smallest all_reduce, all_gather and reduce_scatter that is judged: 95 % of the peak lies near this size."""


class Expected:
    """The hop that limits a path, its rate and the efficiency usual on it."""

    def __init__(self, hop: Hop, gb_s: float, row: Efficiency | None, *, bound: bool, times: int = 1) -> None:
        self.hop, self.row, self.bound = hop, row, bound
        self.theory = gb_s * times

    def words(self) -> str:
        """Name the hop: `0000:4a:00.0 at gen 4 x16`, and what both its ends could do where that is more."""
        text = f"{self.hop.address} at {self.hop.text}"
        if self.hop.kind is HopKind.NVLINK:
            text = self.hop.text
        can = self.hop.attainable_gb_s
        if not isinstance(can, Missing) and not self.hop.idle and can > (rate(self.hop) or can) * 1.01:
            text += f"; both its ends could do {can:.1f} GB/s"
        return text


def assess(run: Run, topology: Topology) -> tuple[Assessment, ...]:
    """Return one assessment per measurement that has a rate to be compared."""
    states = {s.address: s for s in run.device_states}
    out = []
    for m in run.measurements:
        expected = expected_of(m, topology, states)
        if expected is not None or m.bandwidth_gb_s is not None or m.busbw_gb_s is not None:
            out.append(_one(m, expected))
    return tuple(out)


def expected_of(m: Measurement, topology: Topology, states: dict[str, DeviceState] | None = None) -> Expected | None:
    """Return what a measurement's path can carry; None where nothing on the path is known, or nothing is judged."""
    if m.kind == "collective":
        return _collective(m, topology)
    if m.kind not in COPIES or m.size_bytes < JUDGED_FROM_BYTES:
        return None
    if HOST in (m.from_, m.to):
        gpu = m.to if m.from_ == HOST else m.from_
        return _host(m, gpu, topology, (states or {}).get(gpu))
    return _pair(m, topology)


def _host(m: Measurement, gpu: str, topology: Topology, state: DeviceState | None) -> Expected | None:
    hop = host_hop(topology, gpu)
    if m.pageable or hop is None:
        return None
    gb_s = rate(hop)
    if gb_s is None:
        return None
    if state is not None and hop.kind is HopKind.PCIE and hop.address == gpu:
        hop, gb_s = _as_seen(hop, gb_s, state)
    kind, variant = efficiency_key(hop)
    if m.kind == "host_both":
        return Expected(hop, gb_s, efficiency("host_copy_bidirectional", "any"), bound=False, times=2)
    return Expected(hop, gb_s, efficiency(kind, variant), bound=False)


def _as_seen(hop: Hop, gb_s: float, state: DeviceState) -> tuple[Hop, float]:
    """Return the hop at what NVML saw it do under load, where that is more than what it did at rest."""
    if state.pcie_gen is None or state.pcie_width is None:
        return hop, gb_s
    try:
        seen = pcie_gen_gb_s(state.pcie_gen, state.pcie_width)
    except ValueError:
        return hop, gb_s
    if seen <= gb_s * 1.01:
        return hop, gb_s
    text = f"gen {state.pcie_gen} x{state.pcie_width}"
    return msgspec.structs.replace(hop, gb_s=seen, text=text, generation=state.pcie_gen, idle=False), seen


def _pair(m: Measurement, topology: Topology) -> Expected | None:
    if m.peer_access is False:
        # Staged through the host: both ends' links carry it, the narrower one limits.
        hops = [
            h for h in (host_hop(topology, m.from_), host_hop(topology, m.to)) if h is not None and rate(h) is not None
        ]
        if not hops:
            return None
        hop = min(hops, key=lambda h: rate(h) or 0.0)
        return Expected(hop, rate(hop) or 0.0, efficiency("p2p", "off"), bound=True, times=_times(m))
    path = topology.find_path(m.from_, m.to)
    if path is None or path.narrowest is None or isinstance(path.theoretical_gb_s, Missing):
        return None
    pcie = None if isinstance(path.pcie_class, Missing) else path.pcie_class
    kind, variant = efficiency_key(path.narrowest, pcie or "SYS")
    row = efficiency(kind, variant)
    if m.kind == "p2p_both":
        row = efficiency("p2p_bidirectional", "nvlink" if path.narrowest.kind is HopKind.NVLINK else "pcie")
    return Expected(path.narrowest, path.theoretical_gb_s, row, bound=path.upper_bound, times=_times(m))


def _times(m: Measurement) -> int:
    return 2 if m.direction == "bidirectional" else 1


def _collective(m: Measurement, topology: Topology) -> Expected | None:
    """Return the narrowest path between any two members; a busbw is comparable with it (nccl-tests' definition)."""
    if m.backend != "nccl" or len(m.members) < 2 or m.mode == "one_at_a_time":
        return None
    paths = [topology.find_path(a, b) for a in m.members for b in m.members if a != b]
    rated = [
        (p.theoretical_gb_s, p)
        for p in paths
        if p is not None and p.narrowest is not None and not isinstance(p.theoretical_gb_s, Missing)
    ]
    if len(rated) < len(paths):
        return None
    gb_s, path = min(rated, key=lambda x: x[0])
    hop = path.narrowest
    if hop is None:
        return None
    row: Efficiency | None = None
    if m.size_bytes >= COLLECTIVES_FROM_BYTES and m.collective is not None:
        number = len(m.members)
        if hop.kind is HopKind.NVLINK:
            row = efficiency(m.collective, f"ring{number}")
        else:
            row = efficiency(m.collective, "pcie")
    return Expected(hop, gb_s, row, bound=path.upper_bound)


def _one(m: Measurement, expected: Expected | None) -> Assessment:
    value = m.busbw_gb_s if m.kind == "collective" else m.bandwidth_gb_s
    if expected is None or value is None or expected.theory <= 0:
        return Assessment(
            measurement=m.id, disturbed=m.disturbed, state=State.NOT_APPLICABLE, text="nothing to compare it with"
        )
    share = value / expected.theory
    at_most = "at most " if expected.bound else ""
    text = f"{value:.1f} of {at_most}{expected.theory:.1f} GB/s, {100 * share:.0f} %: limited by {expected.words()}"
    if m.kind != "collective" and share > 1.03:
        text += "; more than the hop's reported rate, so that reading cannot be right"
        return Assessment(
            measurement=m.id,
            theoretical_gb_s=round(expected.theory, 3),
            limited_by=expected.words(),
            disturbed=m.disturbed,
            state=State.NOT_APPLICABLE,
            text=text,
        )
    wanted = expected.row.pass_at_least * expected.theory if expected.row else None
    state = _state(m, share, expected.row)
    if state is State.NOT_APPLICABLE and m.disturbed:
        text += f"; not judged: {m.disturbed}"
    elif state is State.NOT_APPLICABLE and m.spread > UNSTABLE:
        text += f"; not judged: its samples spread over {100 * m.spread:.0f} %"
    return Assessment(
        measurement=m.id,
        expected_gb_s=None if wanted is None else round(wanted, 3),
        theoretical_gb_s=round(expected.theory, 3),
        percent_of_expected=None if not wanted else round(100 * value / wanted, 1),
        percent_of_theoretical=round(100 * share, 1),
        limited_by=expected.words(),
        disturbed=m.disturbed,
        state=state,
        text=text,
    )


def _state(m: Measurement, share: float, row: Efficiency | None) -> State:
    if m.verified is False:
        return State.FAIL
    if row is None or unsteady(m) or m.far_node is not None:
        return State.NOT_APPLICABLE
    if share >= row.pass_at_least:
        return State.OK
    if row.fail_below is not None and share < row.fail_below:
        return State.FAIL
    return State.WARN if row.fail_below is not None or row.variant not in ("off", "any") else State.NOTE
