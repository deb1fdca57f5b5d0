"""InfiniBand and RoCE ports over time: flaps, and errors against traffic."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.watch.run import MAX_BER, READS, beyond_chance, evidence, growths, history_in, said, worst_minute
from topocheck.model.base import Evidence, Finding, State, known
from topocheck.overtime.growth import Growth
from topocheck.overtime.history import History
from topocheck.overtime.types import Kind

_BITS_OF_DATA = 32
"""Bits that one count of port_rcv_data stands for."""
_RETRANSMITS_PER_MILLION = 10.0
_DISCARDS_PER_MILLION = 100.0


def _path(subject: str, name: str) -> str:
    device, _, port = subject.partition("/")
    if name == "carrier_down_count":
        return f"/sys/class/infiniband/{device}/device/net/*/{name}"
    folder = "hw_counters" if name.endswith(("_err", "sequence")) else "counters"
    return f"/sys/class/infiniband/{device}/ports/{port}/{folder}/{name}"


def _grown(history: History, subject: str, name: str) -> int:
    g = history.growth[Kind.PORT].get(subject, {}).get(name)
    return 0 if g is None else g.increase


_FLAPS = {
    "link_downed": "went down",
    "link_error_recovery": "was trained again",
    "carrier_down_count": "lost its carrier",
}
"""Counter -> what the link did."""


@check("watch.port-flap", severity=State.FAIL, reads=READS)
def port_flap(context: Context) -> Iterator[Finding]:
    """A port went down, or its link was trained again.

    Looks at:
        The state of each port over time, the growth of link_downed and link_error_recovery, and on RoCE that of
        carrier_down_count of its network interface.

    Why it matters:
        RDMA connections end when their link does: NCCL stops with an error or hangs until its timeout.

    Fix:
        Clean or replace cable and transceivers (`mlxlink -d DEVICE -m`); compare the switch port's log.

    Does not apply:
        To ports that were down all the time (not cabled).
    """
    history = history_in(context)
    ports = history.ports()
    if not ports:
        raise not_applicable("no RDMA port was sampled")
    for subject, series in ports.items():
        states = [r.state for _, r in series if known(r.state)]
        counted = {n: history.growth[Kind.PORT][subject].get(n) for n in _FLAPS}
        grown = {n: g for n, g in counted.items() if g is not None and g.increase}
        left = "ACTIVE" in states and any(s != "ACTIVE" for s in states[states.index("ACTIVE") :])
        if not left and not grown:
            continue
        down = left and states[-1] != "ACTIVE"
        quoted = tuple(e for n, g in grown.items() for e in evidence(_path(subject, n), g))
        shown = (Evidence(f"/sys/class/infiniband/{subject.replace('/', '/ports/')}/state", said(states)),)
        yield Finding(
            state=State.FAIL if down else State.WARN,
            subject=subject,
            title=f"the port is {states[-1]}, and was ACTIVE" if down else _flapped(grown),
            consequence="RDMA connections over it end; NCCL stops or hangs until its timeout",
            evidence=quoted + (shown if left else ()),
            rule="a link that is up stays up",
            fix="clean or replace cable and transceivers; compare the switch port's log",
        )


def _flapped(grown: dict[str, Growth]) -> str:
    times = [f"{_FLAPS[n]} {g.increase} time{'s' if g.increase > 1 else ''}" for n, g in grown.items()]
    return f"the link {' and '.join(times)}" if times else "the port left ACTIVE and came back"


@check("watch.port-errors", severity=State.WARN, reads=READS, thresholds=("max_ber", "discards_per_million"))
def port_errors(context: Context) -> Iterator[Finding]:
    """A port has more errors than its traffic explains.

    Looks at:
        Symbol and link integrity errors against the bits that the link carried at its rate, receive errors against the
        bits received: at most one in 10^12, the limit of the InfiniBand specification. Discards against packets sent:
        at most 100 in a million.

    Why it matters:
        Damaged packets are sent again, or lost; on RoCE each lost one stops its connection for a timeout.

    Fix:
        Clean or replace cable and transceivers. Discards: see the fabric's congestion control and flow control.

    Does not apply:
        Where the driver does not give the counters, and to ports without a rate.
    """
    history = history_in(context)
    limit = context.threshold("watch.port-errors", "max_ber", MAX_BER)
    discards = context.threshold("watch.port-errors", "discards_per_million", _DISCARDS_PER_MILLION)
    rates = {
        s: max((r.rate_gbit_s for _, r in series if known(r.rate_gbit_s)), default=0.0)
        for s, series in history.ports().items()
    }
    line = ("symbol_error", "local_link_integrity_errors")
    for subject, name, g in growths(history, Kind.PORT, *line, "port_rcv_errors", "port_xmit_discards"):
        if name == "port_xmit_discards":
            packets = _grown(history, subject, "port_xmit_packets")
            bad, rule = beyond_chance(g.increase, packets * discards / 1e6), f"{discards:g} in a million packets"
        else:
            bits = (
                rates[subject] * 1e9 * g.seconds
                if name in line
                else _grown(history, subject, "port_rcv_data") * _BITS_OF_DATA
            )
            bad, rule = beyond_chance(g.increase, bits * limit), f"{limit:g} of {bits:.3g} bits"
        if bad:
            yield Finding(
                state=State.WARN,
                subject=subject,
                title=f"{name} grew by {g.increase} in {g.seconds:.0f} s",
                consequence="packets are sent again or lost",
                evidence=evidence(_path(subject, name), g),
                rule=f"at most {rule}, and chance",
                fix="see congestion and flow control of the fabric"
                if name == "port_xmit_discards"
                else "clean or replace cable and transceivers",
            )


@check("watch.port-retransmits", severity=State.WARN, reads=READS, thresholds=("per_million",))
def port_retransmits(context: Context) -> Iterator[Finding]:
    """An RDMA device sends many packets again.

    Looks at:
        Sequence errors that the peer reported and acknowledgements that did not come, against packets sent: at most 10
        in a million. Packets out of sequence are not judged: adaptive routing makes them.

    Why it matters:
        A retransmission stops a connection for milliseconds, and the collectives that wait for it.

    Fix:
        Find the port that drops packets: error counters of switch ports on the way, flow control (PFC, ECN) on RoCE.

    Does not apply:
        Where the driver does not count retransmissions.
    """
    history = history_in(context)
    limit = context.threshold("watch.port-retransmits", "per_million", _RETRANSMITS_PER_MILLION)
    for subject, name, g in growths(history, Kind.PORT, "packet_seq_err", "local_ack_timeout_err"):
        packets = _grown(history, subject, "port_xmit_packets")
        if worst_minute(g) > limit and beyond_chance(g.increase, packets * limit / 1e6):
            yield Finding(
                state=State.WARN,
                subject=subject,
                title=f"{name} grew by {g.increase} in {g.seconds:.0f} s, with {packets} packets sent",
                consequence="each retransmission stops a connection for milliseconds",
                evidence=evidence(_path(subject, name), g),
                rule=f"at most {limit:g} in a million packets",
                fix="see error counters of the switch ports on the way; on RoCE, PFC and ECN",
            )
