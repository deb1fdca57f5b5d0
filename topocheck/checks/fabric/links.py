"""Links of the fabric: slower than their siblings, or described differently by their two ends."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.fabric.run import READS, both, ends, evidence, shown, tiers_in
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.fabric.slow import Below, slow_links, small_mtus
from topocheck.fabric.tiers import Tiers
from topocheck.model.base import Finding, State
from topocheck.model.fabric import End


@check("fabric.slow-link", severity=State.FAIL, reads=READS)
def slow_link(context: Context) -> Iterator[Finding]:
    """A link of the fabric runs below the rate of the links of its kind.

    Looks at:
        Width and speed of every link, against the rate of three quarters of the links of its kind: between the same
        tiers, or of the same adapter of nodes that have the same adapters. And what both ends of a link support, where
        the dump says so (`iblinkinfo`: "Could be ...").

    Why it matters:
        All traffic over it, and collectives that wait for it, run at its rate.

    Fix:
        Look at cable and transceiver, reseat or replace them; check the error counters of both ports.

    Does not apply:
        Where the dump gives no rates, or fewer than four links of a kind.
    """
    tiers = tiers_in(context)
    if all(x.rate_gbit_s is None for x in tiers.fabric.links):
        raise not_applicable("the dump gives no rate of any link")
    found: set[tuple[End, End]] = set()
    for slow in slow_links(tiers):
        yield Finding(
            state=State.FAIL,
            subject=_subject(tiers, slow),
            devices=_devices(slow),
            title=(
                f"{shown(slow.links[0])}"
                if not slow.switch
                else f"{len(slow.links)} of its {slow.of_switch} links "
                f"are slow, such as {both(tiers, slow.links[0])} with {shown(slow.links[0])}"
            )
            + f"; {slow.alike} of {slow.siblings} links of its kind carry {slow.usual:g} Gb/s",
            consequence="everything that crosses this link is slowed to its rate",
            evidence=evidence(*slow.links[:2]),
            rule="links of one kind have one rate",
            fix="check the switch: its model, firmware and the speed that is enabled on its ports"
            if slow.switch
            else "reseat or replace the cable and transceivers; see the error counters of both ports",
        )
        found |= {(x.a, x.b) for x in slow.links}
    for link in tiers.fabric.links:
        if link.could_be and (link.a, link.b) not in found:
            yield Finding(
                state=State.FAIL,
                subject=both(tiers, link),
                devices=ends(link),
                title=f"{shown(link)}; both ends support {link.could_be}",
                consequence="everything that crosses this link is slowed to its rate",
                evidence=evidence(link),
                rule="a link runs at the width and speed that both its ends support",
                fix="reseat or replace the cable and transceivers; see the error counters of both ports",
            )


def _devices(below: Below) -> tuple[str, ...]:
    return (below.switch,) if below.switch else ends(below.links[0])


def _subject(tiers: Tiers, below: Below) -> str:
    return tiers.label(below.switch) if below.switch else both(tiers, below.links[0])


@check("fabric.port-state", severity=State.WARN, reads=READS)
def port_state(context: Context) -> Iterator[Finding]:
    """A link is up, and one of its ports is not active.

    Looks at:
        The state of the ports of every link, as far as the dump gives it (`iblinkinfo`): `Init` and `Armed` wait for
        the subnet manager.

    Why it matters:
        No traffic passes until the subnet manager has set the port to Active.

    Fix:
        Look whether a subnet manager runs and sees this port (`sminfo`, its log); with several planes, one for each.

    Does not apply:
        Where the dump gives no states (ibnetdiscover).
    """
    tiers = tiers_in(context)
    if not any(x.state for x in tiers.fabric.links):
        raise not_applicable("the dump gives no state of any port")
    for link in tiers.fabric.links:
        if link.state not in ("", "Active"):
            yield Finding(
                state=State.WARN,
                subject=both(tiers, link),
                devices=ends(link),
                title=f"the link is up, the port's state is {link.state}",
                consequence="no traffic passes over it",
                evidence=evidence(link),
                rule="a port with a link is Active",
                fix="check whether the subnet manager runs and sees this port (sminfo, its log)",
            )


@check("fabric.mtu", severity=State.WARN, reads=READS)
def small_mtu(context: Context) -> Iterator[Finding]:
    """A link of the fabric has a smaller MTU than most.

    Looks at:
        The MTU of every link, as far as the dump gives it, against the MTU of three quarters of all links.

    Why it matters:
        A path has the smallest MTU of its links: smaller packets, more of them; and RoCE or IP traffic with the larger
        MTU is dropped there.

    Fix:
        Set the MTU of both ports; on InfiniBand look at the port's MTUCap and the subnet manager's configuration.

    Does not apply:
        Where the dump gives no MTU (ibnetdiscover, iblinkinfo).
    """
    tiers = tiers_in(context)
    if all(x.mtu is None for x in tiers.fabric.links):
        raise not_applicable("the dump gives no MTU of any link")
    for small in small_mtus(tiers):
        yield Finding(
            state=State.WARN,
            subject=_subject(tiers, small),
            devices=_devices(small),
            title=(f"{len(small.links)} of its {small.of_switch} links have an " if small.switch else "")
            + f"MTU {small.links[0].mtu}; {small.alike} of {small.siblings} links have {small.usual:g}",
            consequence="paths over it carry smaller packets, or drop larger ones",
            evidence=evidence(*small.links[:2]),
            rule="all links of a fabric have one MTU",
            fix="set the MTU of both ports to that of the others",
        )


@check("fabric.ends-differ", severity=State.WARN, reads=READS)
def ends_differ(context: Context) -> Iterator[Finding]:
    """The two ends of a link report different widths or speeds.

    Looks at:
        What each end of a link says of width and speed.

    Why it matters:
        A link has one width and one speed: the dump was taken while the link retrained, or one port reports wrongly.

    Fix:
        Take the dump again. If it stays, check both ports (`iblinkinfo`, `mlxlink`).

    Does not apply:
        Where only one end of each link is described.
    """
    tiers = tiers_in(context)
    if all(len(x.evidence) < 2 for x in tiers.fabric.links):
        raise not_applicable("the dump describes one end of each link only")
    for link in tiers.fabric.links:
        if link.ends_differ:
            yield Finding(
                state=State.WARN,
                subject=both(tiers, link),
                devices=ends(link),
                title="the two ends report different widths or speeds",
                consequence="the rate of this link is not certain; the lower is used here",
                evidence=evidence(link),
                rule="both ends of a link have the same width and speed",
                fix="take the dump again; if it stays, compare both ports with mlxlink",
            )
