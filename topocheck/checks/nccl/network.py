"""NCCL's choice of interfaces and NICs against those of this machine."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterator

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.settings import (
    active_nics,
    in_force,
    judged_version,
    place,
    quoted,
    read_names,
    shadowed_twins,
    values,
)
from topocheck.checks.sources import GPUS, NICS, Needs
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.model.net import NetInterface
from topocheck.model.system import Setting
from topocheck.nccl.topofile.nic_selection import rdma_entries, rdma_unknown

_UP = 0x1
"""IFF_UP (Linux include/uapi/linux/if.h)."""
_IFNAMES = ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")


def _interfaces(c: Context) -> tuple[NetInterface, ...]:
    found = c.node.net.interfaces
    if isinstance(found, Missing):
        raise not_applicable(f"no interfaces to compare with: {found}")
    return found


def is_up(i: NetInterface) -> bool:
    """Tell whether an interface is up; where nothing says so, it counts as up."""
    if known(i.flags) and not i.flags & _UP:
        return False
    return i.operstate not in ("down", "lowerlayerdown", "notpresent")


def addresses(i: NetInterface) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, ...]:
    """Return the addresses of an interface; those of other forms are left out."""
    out = []
    for text in i.ip_addresses if known(i.ip_addresses) else ():
        try:
            out.append(ipaddress.ip_address(text.partition("/")[0].partition("%")[0]))
        except ValueError:
            continue
    return tuple(out)


def _told(i: NetInterface) -> str:
    ips = listed((str(a) for a in addresses(i)), 3) or "no address"
    only = ", link-local only" if addresses(i) and all(a.is_link_local for a in addresses(i)) else ""
    return f"{i.name} (MTU {i.mtu_bytes}, {ips}{only})"


def _lists(c: Context) -> list[Setting]:
    if not c.topology.gpus:
        raise not_applicable("no NVIDIA GPU, so no NCCL job runs here")
    found = [s for n in _IFNAMES if (s := in_force(c).get(n)) is not None and n in values(c).values]
    if not found:
        raise not_applicable("NCCL_SOCKET_IFNAME is not set")
    return found


@check(
    "nccl.interface-missing",
    title="NCCL is set to use an interface that is not here, or down",
    severity=State.FAIL,
    reads=("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "/sys/class/net"),
    needs=Needs((*GPUS, "interfaces", "settings")),
    scope=Scope.PROCESS,
)
def interface_missing(c: Context) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME leaves no interface of this machine that is up.

    Looks at:
        The list by NCCL's rule (a name is a beginning, `=` in front asks for exact names, `^` excludes) against
        the interfaces of this network namespace and their state.

    Why it matters:
        NCCL ends with "no socket interface found" before a job begins.

    Fix:
        The right name; `ip -br link` lists them. Where names differ by node, exclude instead: `^docker,lo`.

    Does not apply:
        Where it is unset, and without a GPU. A name of several that matches nothing is a warning.
    """
    for s in _lists(c):
        if isinstance(c.node.net.interfaces, Missing):
            title = f"{s.name}={s.value}: the interfaces here cannot be determined: {c.node.net.interfaces}"
            yield Finding(state=State.UNKNOWN, subject=place(s), title=title)
            continue
        names = read_names(s.value)
        every = {i.name: i for i in _interfaces(c)}
        left = names.chosen(every)
        up = [n for n in left if is_up(every[n])]
        there = listed(n for n, i in every.items() if is_up(i) and n != "lo")
        if not up:
            what = f"{listed(left)} {'is' if len(left) == 1 else 'are'} down" if left else "no interface matches"
            yield Finding(
                state=State.FAIL,
                subject=place(s),
                title=f"{s.name}={s.value}: {what}; up here: {there or 'none'}",
                consequence="NCCL ends with `no socket interface found` before a job begins",
                evidence=(*quoted(s), *(e for n in left[:2] for e in every[n].evidence("operstate", "flags"))),
                rule="the list leaves an interface that is up",
                fix=f"name one that is up: {there or 'see ip -br link'}",
            )
        elif not names.exclude:
            lost = [w for w, _ in names.words if not names.matched_by(w, every)]
            if lost:
                yield Finding(
                    state=State.WARN,
                    subject=place(s),
                    title=f"{s.name}={s.value}: nothing here matches {listed(lost)}",
                    consequence="NCCL passes over it and uses the others",
                    evidence=quoted(s),
                    rule="every name matches an interface",
                    fix=f"drop it, or correct it; up here: {there}",
                )


@check(
    "nccl.network-missing",
    title="NCCL_NET asks for InfiniBand, and NCCL finds no device for it",
    severity=State.FAIL,
    reads=("NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "/sys/class/infiniband/*/ports/*/{state,link_layer}"),
    needs=Needs((*NICS, "settings"), ("verbs", "nccl")),
    scope=Scope.PROCESS,
)
def network_missing(c: Context) -> Iterator[Finding]:
    """NCCL_NET=IB asks for NCCL's own InfiniBand and RoCE transport, and no device here fits it.

    Looks at:
        The RDMA devices that NCCL takes for it: with an active port of link layer InfiniBand or Ethernet, with a file
        under /dev/infiniband that may be opened, left by NCCL_IB_HCA, and none with NCCL_IB_DISABLE. EFA is neither:
        NCCL reaches it by its plugin only.

    Why it matters:
        With NCCL_NET there is no fallback: ncclCommInitRank fails, on one node too.

    Fix:
        Unset NCCL_NET, so that NCCL takes a plugin, InfiniBand or TCP, whichever it finds.

    Does not apply:
        Where NCCL_NET is unset or names another network, and without a GPU.
    """
    s = in_force(c).get("NCCL_NET")
    if s is None or s.value.lower() != "ib":
        raise not_applicable("NCCL_NET does not ask for InfiniBand")
    if not c.topology.gpus:
        raise not_applicable("no NVIDIA GPU, so no NCCL job runs here")
    if rdma_unknown(c.node):
        title = f"{s.name}={s.value}: the RDMA devices here cannot be determined: {c.node.net.rdma}"
        yield Finding(state=State.UNKNOWN, subject=place(s), title=title)
        return
    if rdma_entries(c.node, judged_version(c), values(c), frozenset()):
        return
    why, more, fix = _why_no_network(c)
    yield Finding(
        state=unless_lost(c, State.FAIL, "rdma", "verbs", "settings"),
        subject=place(s),
        title=f"{s.name}={s.value} leaves NCCL no network: {why}",
        consequence="ncclCommInitRank fails, on one node too; there is no fallback to TCP",
        evidence=(*quoted(s), *more),
        rule="an active InfiniBand or RoCE port that the settings leave (NVIDIA/nccl src/transport/net_ib)",
        fix=fix,
    )


def _why_no_network(c: Context) -> tuple[str, tuple[Evidence, ...], str]:
    """Return why NCCL's own RDMA transport has no device, the evidence of it, and what to do."""
    unset = "unset NCCL_NET, and NCCL takes the network that it finds"
    off, hca = in_force(c).get("NCCL_IB_DISABLE"), in_force(c).get("NCCL_IB_HCA")
    nics = active_nics(c)
    if off is not None and values(c).nonzero("NCCL_IB_DISABLE"):
        return f"NCCL_IB_DISABLE={off.value} switches it off", quoted(off), "unset NCCL_IB_DISABLE, or NCCL_NET"
    if not nics:
        return "there is no RDMA device with an active port", (Evidence("/sys/class/infiniband", "none"),), unset
    ports = [(n, p) for n in nics if n.rdma is not None for p in n.rdma.ports if p.state == "ACTIVE"]
    layers = sorted({p.link_layer for _, p in ports if isinstance(p.link_layer, str)} - {"InfiniBand", "Ethernet"})
    shown = tuple(e for _, p in ports[:2] for e in p.evidence("link_layer"))
    if layers and all(p.link_layer in layers for _, p in ports):
        text = f"the ports of {listed((n.label for n in nics), 4)} are neither InfiniBand nor RoCE ({listed(layers)})"
        return text, shown, unset
    if hca is not None:
        here = listed((n.label for n in nics), 4)
        return (
            f"NCCL_IB_HCA={hca.value} leaves no active port of {here}",
            quoted(hca),
            "correct NCCL_IB_HCA, or unset it",
        )
    closed = dict.fromkeys(c.node.net.closed(n.rdma) for n in nics if n.rdma is not None)
    why = f"this process cannot use {listed((n.label for n in nics), 4)} ({listed(filter(None, closed), 2)})"
    files = c.node.net.verbs_devices
    seen = Evidence("/dev/infiniband", "(absent)" if isinstance(files, Missing) else " ".join(files))
    return why, (*shown, seen), "give it the devices (rdma.verbs-device-missing), or unset NCCL_NET"


@check(
    "nccl.interface-ambiguous",
    title="The name of an interface also matches others",
    severity=State.WARN,
    reads=("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "/sys/class/net"),
    needs=Needs((*GPUS, "interfaces", "settings")),
    scope=Scope.PROCESS,
)
def interface_ambiguous(c: Context) -> Iterator[Finding]:
    """A name in NCCL_SOCKET_IFNAME is an interface here, and the beginning of others' names too.

    Looks at:
        Each name that is an interface of its own against the names it also begins (`bond0` and `bond0.2973`), with
        their MTU and addresses.

    Why it matters:
        NCCL takes all of them: it may meet its peers over a VLAN that does not reach them, and spreads sockets over
        interfaces of different speed.

    Fix:
        `NCCL_SOCKET_IFNAME==bond0`: the second `=` asks for exactly that name.

    Does not apply:
        A beginning that is no interface itself (`eth`, `ib`) is meant as one.
    """
    for s in _lists(c):
        names = read_names(s.value)
        every = {i.name: i for i in _interfaces(c) if is_up(i)}
        for word, others in shadowed_twins(names, every).items():
            if names.exclude:
                continue
            matched = [every[word], *(every[n] for n in others)]
            v4 = [i.name for i in matched if any(a.version == 4 for a in addresses(i))]
            first = f"; NCCL bootstraps over the first with an address, most likely {v4[0]}" if v4 else ""
            yield Finding(
                state=State.WARN,
                subject=place(s),
                title=f"{s.name}={s.value}: {word} matches {len(matched)} interfaces: "
                + ", ".join(_told(i) for i in matched)
                + first,
                consequence="NCCL may bootstrap or send data over an interface that does not reach its peers",
                evidence=(*quoted(s), *(Evidence(i.source or i.name, _told(i)) for i in matched)),
                rule="names match as prefixes, unless the list begins with =",
                fix=f"{s.name}=={s.value}  (the second = asks for exact names), or exclude the others with ^",
            )


_LOOPBACK = 0x8
"""IFF_LOOPBACK (Linux include/uapi/linux/if.h)."""


def _loopback_only(c: Context, s: Setting) -> Iterator[Finding]:
    """NCCL is set to meet its peers over the loopback interface alone."""
    left = read_names(s.value).chosen(i.name for i in _interfaces(c))
    chosen = [i for i in _interfaces(c) if i.name in left]
    if not chosen or not all(known(i.flags) and i.flags & _LOOPBACK for i in chosen) or not c.topology.gpus:
        return
    yield Finding(
        state=State.NOTE,
        subject=place(s),
        title=f"{s.name}={s.value} leaves the loopback interface alone",
        consequence="jobs inside this host work; a job over several hosts cannot start, since none reaches another",
        evidence=(*quoted(s), *(e for i in chosen[:2] for e in i.evidence("flags"))),
        rule="an interface that other hosts reach",
        fix=f"unset {s.name} for jobs over several hosts, or name the interface that they share",
    )


_VIRTUAL = ("br-", "veth", "cni", "flannel", "cali", "tun", "wg", "tailscale", "zt", "vxlan", "docker", "virbr")
_LAST = ("docker", "lo", "virbr")
"""What NCCL leaves for last (src/misc/socket.cc, ncclFindInterfaces)."""


@check(
    "nccl.bootstrap-interface",
    title="NCCL may bootstrap over a bridge or tunnel of this host",
    severity=State.NOTE,
    reads=("/sys/class/net", "NCCL_SOCKET_IFNAME"),
    scope=Scope.PROCESS,
)
def bootstrap_interface(c: Context) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME is unset, and among the interfaces NCCL may take is a bridge, tunnel or container network.

    Looks at:
        The interfaces NCCL would choose from by its own rule: names that begin with `ib`, else all but docker, lo
        and virbr; and among them names of bridges, tunnels and container networks that are up and have an address.

    Why it matters:
        Other hosts cannot reach such an address: a job over several hosts hangs or times out at its start.

    Fix:
        `export NCCL_SOCKET_IFNAME=NAME`, or exclude them: `NCCL_SOCKET_IFNAME=^docker,br-,veth`.

    Does not apply:
        Where it is set to anything but the loopback interface, and for jobs inside one host.
    """
    told = [in_force(c)[n] for n in _IFNAMES if n in in_force(c)]
    if told:
        found = list(_loopback_only(c, told[-1]))
        if not found:
            raise not_applicable("NCCL_SOCKET_IFNAME is set")
        yield from found
        return
    usable = [i for i in _interfaces(c) if is_up(i) and addresses(i) and not i.name.startswith(_LAST)]
    first = [i for i in usable if i.name.startswith("ib")]
    candidates = first or usable
    odd = [i for i in candidates if i.name.startswith(_VIRTUAL)]
    if not odd or not c.topology.gpus:
        return
    good = [i for i in candidates if i not in odd]
    yield Finding(
        state=State.NOTE,
        subject="process",
        title=f"NCCL may choose {listed(i.name for i in odd)} for its bootstrap"
        + (f" beside {listed(i.name for i in good)}" if good else ""),
        consequence="a job over several hosts may hang at its start, since they cannot reach such an address",
        evidence=tuple(Evidence(i.source or i.name, _told(i)) for i in odd[:4]),
        rule="ib*, else all but docker, lo and virbr",
        fix=f"export NCCL_SOCKET_IFNAME={shlex.quote(good[0].name) if good else 'NAME'}",
    )
