"""Puts dumps of one network together: the same switch, adapter or cable under the names that each program gives it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from topocheck.fabric.build import MAX_PROBLEMS
from topocheck.model.fabric import DeviceKind, End, Fabric, FabricDevice, FabricLink, Protocol

_LID = re.compile(r"lid ([0-9]{1,6})")


def merge(fabrics: Sequence[Fabric]) -> Fabric:
    """Return several dumps as one fabric; what two of them describe differently stays as in the first.

    It is whole where one of them is: views of single nodes add to it. A device that one dump knows by its LID, by the
    GUID of a port or by its name alone is the one that another describes: LIDs and names of switches are looked up, and
    a port of a switch, and of an adapter, has one cable. Slurm's topology is kept aside where another file shows
    cables. What a dump says of a link that an earlier one shows adds to
    what is known of it.
    """
    if len(fabrics) == 1:
        return fabrics[0]
    every = fabrics
    cables = [f for f in every if not f.planned]
    fabrics = cables or every
    devices = _devices(fabrics)
    same = _Same(devices)
    by_end: dict[End, FabricLink] = {}
    links: dict[tuple[End, End], FabricLink] = {}
    conflicts: list[str] = []
    # A dump of the whole network first: what single nodes see is put into it.
    for f in sorted(fabrics, key=lambda f: not f.whole):
        own: list[FabricLink] = []
        for link in f.links:
            found = _ends(link, same)
            known = links.get(found)
            if known is None:
                clash = by_end.get(found[0]) or by_end.get(found[1])
                if clash is not None and same.unite(clash, found):
                    links[clash.a, clash.b] = _added(links[clash.a, clash.b], link)
                    continue
                if clash is not None and (f.whole or any(same.is_adapter(e) for e in found if e in by_end)):
                    conflicts.append(same.differ(clash, found, f))
                    continue
                own.append(msgspec.structs.replace(link, a=found[0], b=found[1]))
                links[found] = own[-1]
            else:
                links[found] = _added(known, link)
        for link in own:
            by_end.setdefault(link.a, link)
            by_end.setdefault(link.b, link)
    united = {same.of(i) for i in devices}
    protocols = {f.protocol for f in fabrics} - {Protocol.UNKNOWN}
    ends = {e.device for pair in links for e in pair}
    return Fabric(
        protocol=protocols.pop() if len(protocols) == 1 else Protocol.UNKNOWN,
        devices={i: d for i, d in devices.items() if i in united},
        links=tuple(links[pair] for pair in sorted(links)),
        down=tuple(
            {end: msgspec.structs.replace(p, end=end) for f in fabrics for p in f.down
             if (end := same.end(p.end)) not in by_end}.values()
        ),
        whole=any(f.whole for f in fabrics),
        dangling=tuple(sorted(ends - devices.keys())),
        problems=tuple(p for f in every for p in f.problems),
        conflicts=_first(conflicts),
        silent=tuple(dict.fromkeys(n for f in every for n in f.silent)),
        managers=tuple(dict.fromkeys(m for f in fabrics for m in f.managers)),
        planned=tuple(g for f in every for g in f.planned),
        sources=tuple(s for f in every for s in f.sources),
    )  # fmt: skip


def _first(conflicts: list[str]) -> tuple[str, ...]:
    rest = len(conflicts) - MAX_PROBLEMS
    return (*conflicts[:MAX_PROBLEMS], *((f"{rest} further ports",) if rest > 0 else ()))


def _devices(fabrics: Iterable[Fabric]) -> dict[str, FabricDevice]:
    """Return all devices; of one that several dumps describe the first description, with what it lacks from others."""
    out: dict[str, FabricDevice] = {}
    for f in fabrics:
        for i, d in f.devices.items():
            out[i] = _described(out[i], d) if i in out else d
    return out


def _described(first: FabricDevice, other: FabricDevice) -> FabricDevice:
    named = first if first.name else other
    return msgspec.structs.replace(
        first,
        name=named.name,
        node=first.node or other.node,
        adapter=first.adapter or other.adapter,
        ports=first.ports if first.ports is not None else other.ports,
        lid=first.lid if first.lid is not None else other.lid,
    )


def short(host: str) -> str:
    """Return a host name without its domain: one side may give it, the other not."""
    return host.partition(".")[0].lower()


class _Same:
    """Which ids are of one device."""

    def __init__(self, devices: dict[str, FabricDevice]) -> None:
        self._devices = devices
        self._is: dict[str, str] = {}
        lids: dict[int, list[str]] = defaultdict(list)
        switches: dict[str, list[str]] = defaultdict(list)
        ports: dict[tuple[str, str], str] = {}
        for i, d in devices.items():
            if d.lid:
                lids[d.lid].append(i)
            if d.kind is DeviceKind.SWITCH and d.name:
                switches[short(d.name)].append(i)
            if d.node and d.adapter and i == f"{d.node}/{d.adapter}":
                self._is[i] = ports.setdefault((short(d.node), d.adapter), i)
        self._lids = {lid: found[0] for lid, found in lids.items() if len(found) == 1}
        for found in switches.values():
            self._by_name(found, devices)

    def _by_name(self, found: list[str], devices: Mapping[str, FabricDevice]) -> None:
        """Unite switches of one name: those known by it alone (a file of what a switch hears), and the one with an id.

        Names with and without the domain are of one switch where there is one domain.
        """
        domains = {d for i in found if (d := devices[i].name.partition(".")[2])}
        exact: dict[str, list[str]] = defaultdict(list)
        for i in found:
            exact["" if len(domains) <= 1 else devices[i].name].append(i)
        for same in exact.values():
            with_id = [i for i in same if i != devices[i].name]
            if len(with_id) <= 1:
                kept = with_id[0] if with_id else min(same, key=len)
                self._is |= {i: kept for i in same if i != kept}

    def of(self, device: str) -> str:
        """Return the id under which a device stands."""
        m = _LID.fullmatch(device)
        found = self._lids.get(int(m[1]), device) if m else self._is.get(device, device)
        return found if found == device else self.of(found)

    def end(self, end: End) -> End:
        return End(self.of(end.device), end.port)

    def unite(self, known: FabricLink, found: tuple[End, End]) -> bool:
        """Take two cables at one port for one, and return whether that can be: their far ends may be one port."""
        here, there, before = _apart(known, found)
        if before.device == there.device:
            # The port of an adapter has one cable: a switch that names its own end otherwise means the same one.
            return self.is_adapter(here)
        old, new = self._devices.get(before.device), self._devices.get(there.device)
        if old is not None and new is not None:
            if old.kind is not new.kind or old.kind is DeviceKind.SWITCH or not _alike(old, new):
                return False
            self._devices[before.device] = _described(old, new)
        self._is[there.device] = before.device
        return True

    def is_adapter(self, end: End) -> bool:
        found = self._devices.get(end.device)
        return found is not None and found.kind is DeviceKind.ADAPTER

    def differ(self, known: FabricLink, found: tuple[End, End], of: Fabric) -> str:
        """Return in words that a port leads elsewhere by one dump than by another."""
        here, there, before = _apart(known, found)
        return (
            f"{self._port(here)} leads to {self._port(before)}, and by {', '.join(of.sources[:1])} to "
            f"{self._port(there)}"
        )

    def _port(self, end: End) -> str:
        found = self._devices.get(end.device)
        if found is not None and found.kind is DeviceKind.ADAPTER:
            return found.label
        return f"{end.device if found is None else found.label} port {end.port}"


def _apart(known: FabricLink, found: tuple[End, End]) -> tuple[End, End, End]:
    """Return the port that two cables share, and the far ends of the new one and of the known one."""
    here, there = found if found[0] in (known.a, known.b) else (found[1], found[0])
    return here, there, known.b if known.a == here else known.a


def _alike(a: FabricDevice, b: FabricDevice) -> bool:
    """Tell whether two descriptions may be of one adapter: neither names another host or device than the other."""
    if a.node and b.node:
        return short(a.node) == short(b.node)
    return not a.name or not b.name or a.name == b.name


def _ends(link: FabricLink, same: _Same) -> tuple[End, End]:
    a, b = same.end(link.a), same.end(link.b)
    return (a, b) if a <= b else (b, a)


def _added(known: FabricLink, other: FabricLink) -> FabricLink:
    """Return a link with what another dump adds."""
    if known.rate_gbit_s is None and (other.rate_gbit_s is not None or known.width is None):
        known = msgspec.structs.replace(
            known, width=other.width, speed=other.speed, rate_gbit_s=other.rate_gbit_s, evidence=other.evidence
        )
    return msgspec.structs.replace(
        known,
        mtu=known.mtu if known.mtu is not None else other.mtu,
        state=known.state or other.state,
        could_be=known.could_be or other.could_be,
        evidence=(known.evidence + other.evidence)[:4] if known.evidence != other.evidence else known.evidence,
        ends_differ=known.ends_differ or other.ends_differ,
    )
