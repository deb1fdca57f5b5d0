"""RoCE: the GID that NCCL is set to use."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.rdma_ports import Port, port_of
from topocheck.checks.shared.settings import (
    chosen_nics,
    in_force,
    installed_version,
    place,
    quoted,
    values,
    version_words,
)
from topocheck.checks.sources import Needs
from topocheck.model.base import Evidence, Finding, Missing, State
from topocheck.model.net import Gid

_V2 = "RoCE v2"
_CHOOSES_ITSELF = (2, 21, 5)
"""First public NCCL that chooses the GID by itself (default -1; knowledge/data/nccl_settings.tsv)."""


def is_link_local(gid: str) -> bool:
    """Tell whether a GID is an IPv6 link-local address (fe80::/10, RFC 4291 2.5.6)."""
    return 0xFE80 <= int(gid[:4], 16) <= 0xFEBF


def is_ipv4(gid: str) -> bool:
    """Tell whether a GID is an IPv4 address (::ffff:a.b.c.d, RFC 4291 2.5.5.2)."""
    return gid.startswith("0000:0000:0000:0000:0000:ffff:")


def best(gids: tuple[Gid, ...]) -> Gid | None:
    """Return the GID to use: RoCE v2 on an IPv4 address, else on a routable IPv6 one; None where there is none."""
    good = [g for g in gids if g.type == _V2 and not is_link_local(g.gid)]
    return next((g for g in good if is_ipv4(g.gid)), good[0] if good else None)


@check(
    "rdma.gid-index",
    title="The chosen GID index is not a routable RoCE v2 address",
    severity=State.FAIL,
    reads=(
        "NCCL_IB_GID_INDEX",
        "/sys/class/infiniband/*/ports/*/gids",
        "/sys/class/infiniband/*/ports/*/gid_attrs/types",
    ),
    needs=Needs(("rdma", "settings", "nccl"), ("gids",)),
    scope=Scope.PROCESS,
)
def gid_index(c: Context) -> Iterator[Finding]:
    """NCCL_IB_GID_INDEX points to an entry that cannot carry traffic to other hosts.

    Looks at:
        The entry of that index on every active RoCE port that NCCL_IB_HCA leaves: empty, RoCE v1, or RoCE v2 on a
        link-local address. With NCCL before 2.21.5 also index 0, its default. Where a newer NCCL chooses, whether the
        port has an IPv4 address, which it looks for.

    Why it matters:
        Connecting fails with "invalid argument", or times out: link-local addresses are not routed, and RoCE v1
        does not leave its Ethernet segment.

    Fix:
        Unset it on NCCL 2.21.5 and newer, which chooses by itself; before, the index of a v2 entry on an IPv4
        address, which is reported.

    Does not apply:
        InfiniBand ports. RoCE v1 as the default of an old NCCL is a note. An entry whose type
        cannot be read (a container may hide it) is unknown.
    """
    s = in_force(c).get("NCCL_IB_GID_INDEX")
    version = installed_version(c)
    by_nccl = s is None and (version is None or version >= _CHOOSES_ITSELF)
    index = values(c).integer("NCCL_IB_GID_INDEX", 0)
    roce = [
        port_of(n, p)
        for n in chosen_nics(c)
        if n.rdma is not None
        for p in n.rdma.ports
        if p.state == "ACTIVE" and p.link_layer == "Ethernet"
    ]
    if not roce:
        raise not_applicable("no active RoCE port")
    if by_nccl or index < 0:
        found = [f for p in roce if (f := _chosen_by_nccl(c, p)) is not None]
        if not found:
            raise not_applicable("NCCL chooses the GID by itself")
        yield from found
        return
    setting = quoted(s) if s is not None else (Evidence(version_words(c), "index 0 by default"),)
    judged: dict[tuple[State, str], list[_Judged]] = {}
    for p in roce:
        j = _judge(c, p, index, by_hand=s is not None)
        if j is not None:
            judged.setdefault((j.state, j.what), []).append(j)
    for alike in judged.values():
        yield _finding(alike, index, setting, None if s is None else place(s))


def _chosen_by_nccl(c: Context, p: Port) -> Finding | None:
    """Judge a port whose entry NCCL chooses: it looks for an IPv4 address, and stays at index 0 where there is none."""
    gids = p.port.gids
    family = in_force(c).get("NCCL_IB_ADDR_FAMILY")
    if isinstance(gids, Missing) or (family is not None and family.value.strip() == "AF_INET6"):
        return None
    first, good = next((g for g in gids if g.index == 0), None), best(gids)
    if first is None or good is None or is_ipv4(good.gid) or not is_link_local(first.gid):
        return None
    lost = _lost(c, p)
    return Finding(
        state=State.UNKNOWN if lost is not None else State.FAIL,
        subject=p.where,
        devices=(p.nic.address,),
        title=f"one of the GIDs of {p.nic.label} cannot be read: {lost}; the others hold no IPv4 address"
        if lost is not None
        else f"{p.nic.label} has no IPv4 address, so NCCL takes index 0, which is link-local ({first.gid}); index "
        f"{good.index} is RoCE v2 on {good.gid}",
        consequence="connections to other hosts time out (status 12)",
        evidence=p.port.evidence("gids/0", f"gids/{good.index}", f"gid_attrs/types/{good.index}"),
        rule="NCCL looks for an address of NCCL_IB_ADDR_FAMILY, AF_INET by default (NVIDIA/nccl src/transport/net_ib)",
        fix=f"NCCL_IB_ADDR_FAMILY=AF_INET6, or NCCL_IB_GID_INDEX={good.index}, on every node",
    )


class _Judged(msgspec.Struct, frozen=True):
    """What a port has at the index: `what` without a name, so that ports that are alike are one finding."""

    port: Port
    state: State
    what: str
    gid: str = ""
    good: Gid | None = None


def _lost(c: Context, p: Port, index: int | None = None) -> Missing | None:
    """Return why an entry that seems to be empty may not be: its answer was lost; without an index, of any entry."""
    entries = f"read:{p.port.source}/gids/"
    asked = (x for x in c.node.lost if x.question.startswith(entries))
    return next((x.why for x in asked if index is None or x.question == f"{entries}{index}"), None)


def _judge(c: Context, p: Port, index: int, *, by_hand: bool) -> _Judged | None:
    gids = p.port.gids
    if isinstance(gids, Missing):
        return _Judged(p, State.UNKNOWN, f"cannot be read: {gids}")
    good = best(gids)
    entry = next((g for g in gids if g.index == index), None)
    if entry is None and (lost := _lost(c, p, index)) is not None:
        return _Judged(p, State.UNKNOWN, f"cannot be read: {lost}", "", good)
    if entry is None:
        return _Judged(p, State.FAIL, "is empty", "", good)
    if isinstance(entry.type, Missing):
        return _Judged(p, State.UNKNOWN, f"has a type that cannot be read: {entry.type}", "", good)
    if entry.type == _V2 and not is_link_local(entry.gid):
        return None
    if entry.type == _V2:
        return _Judged(p, State.FAIL, "is RoCE v2 on a link-local address", entry.gid, good)
    # As a default of old versions it was what everybody had; it works inside one Ethernet segment.
    return _Judged(p, State.WARN if by_hand else State.NOTE, "is RoCE v1", entry.gid, good)


def _finding(alike: list[_Judged], index: int, setting: tuple[Evidence, ...], asked: str | None) -> Finding:
    """Return the finding of ports that have the like at the index; one setting is one finding."""
    first, one = alike[0], len(alike) == 1
    names = listed(j.port.nic.label for j in alike)
    title = f"index {index} of {names} {first.what}" + (f" ({first.gid})" if one and first.gid else "")
    indexes = {j.good.index if j.good is not None else None for j in alike}
    good = first.good if len(indexes) == 1 else None
    if good is not None:
        title += f"; index {good.index} is RoCE v2 on {good.gid if one else 'a routable address'}"
    use = f"NCCL_IB_GID_INDEX={good.index}" if good is not None else "an index of type RoCE v2 with an IP address"
    without = [j for j in alike if j.good is None]
    if without and first.state is not State.UNKNOWN:
        use = f"give the interface of {listed(j.port.nic.label for j in without)} an IP address; it has no routable "
        use += "RoCE v2 entry"
    files = (f"gids/{index}", f"gid_attrs/types/{index}")
    return Finding(
        state=first.state,
        subject=first.port.where if one else asked or "node",
        devices=tuple(j.port.nic.address for j in alike),
        title=title,
        consequence="connections to other hosts fail with `invalid argument`, or time out",
        evidence=(*setting, *(e for j in alike[:2] for e in j.port.port.evidence(*files))),
        rule="RoCE v2 on a routable address",
        fix=f"{'unset NCCL_IB_GID_INDEX on NCCL 2.21.5 and newer; before: ' if asked else ''}{use}",
    )
