"""What differs between two nodes, or between two looks at one node."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from topocheck.compare.fields import kind_of
from topocheck.compare.format import difference, path, place, size, size_source
from topocheck.compare.match import MISSING, WHOLE, align, delta, reference_value, rename, rename_slot, slot_order
from topocheck.compare.outliers import TOLERANCE
from topocheck.compare.store import Collection, Entry, PackedDevices
from topocheck.compare.types import ABSENT, UNKNOWN, Change, Difference, NodeFacts, NodeFinding, Value
from topocheck.model.base import Reason

Kinds = tuple[str, ...]
UNTOLD = UNKNOWN + Reason.NOT_RECORDED.value

_OWN = {"gpu": ("hardware", "uuid"), "nic": ("hardware", "node_guid"), "port": ("network", "address")}
"""Kind of slot -> section and name of what `_own` says of it."""


def diff(mine: NodeFacts, reference: NodeFacts, *, identifiers: bool = False) -> tuple[Difference, ...]:
    """Return in what a node differs from another; `value` is the node's, `majority` the reference's.

    Args:
        mine: the node.
        reference: what it is compared with.
        identifiers: both are looks at one node, so that another UUID or GUID means a replaced part, and another
            address of a NIC's port one that was moved.
    """
    return _diff(
        mine.devices, mine.untold, mine.addresses, mine.approximate, _own(mine) if identifiers else {},
        reference.devices, reference.untold, reference.addresses, reference.approximate,
        _own(reference) if identifiers else {},
    )  # fmt: skip


def _own(node: NodeFacts | Entry) -> dict[str, str]:
    """Return what belongs to this one node: slot -> UUID or GUID, `port NIC/PORT` -> address or subnet prefix."""
    ports = {
        f"port {r.nic}/{r.port}": str(ipaddress.IPv4Address(r.ipv4)) if r.ipv4 else r.prefix
        for r in node.rails
        if r.ipv4 or r.prefix
    }
    return {**node.identifiers, **ports}


def _diff(
    devices: PackedDevices,
    untold: Kinds,
    addresses: Mapping[str, str],
    sizes: Mapping[str, float],
    identifiers: Mapping[str, str],
    old_devices: PackedDevices,
    old_untold: Kinds,
    old_addresses: Mapping[str, str],
    old_sizes: Mapping[str, float],
    old_identifiers: Mapping[str, str],
) -> tuple[Difference, ...]:
    mapping = align(addresses, old_addresses)
    found = [
        difference(
            key,
            *_as_told(key, value, reference_value(key, old_devices), untold, old_untold),
            1.0,
            addresses,
            old_addresses,
            mapping,
        )
        for key, value in delta(rename(devices, mapping), old_devices).items()
    ]
    renamed = {rename_slot(s, mapping): i for s, i in identifiers.items()}
    known = {**old_addresses, **{rename_slot(s, mapping): a for s, a in addresses.items()}}
    for slot in sorted(renamed.keys() & old_identifiers.keys(), key=slot_order):
        if renamed[slot] != old_identifiers[slot]:
            section, what = _OWN[kind_of(slot)]
            # Of a port the whole list is named: which GID the address is, the report does not say.
            at = path(slot, what, known) if what != "address" else path(slot[5:].partition("/")[0], "ports", known)
            found.append(
                Difference(
                    section=section, device=place(slot, known), field=what,
                    value=renamed[slot], majority=old_identifiers[slot], path=at, slot=slot,
                )
            )  # fmt: skip
    for name in sorted(sizes.keys() & old_sizes.keys()):
        if abs(sizes[name] - old_sizes[name]) > TOLERANCE * old_sizes[name]:
            slot, _, field = name.rpartition(" ")
            found.append(
                Difference(
                    section="hardware", device=place(slot, known), field=field, value=size(sizes[name]),
                    majority=size(old_sizes[name]), source=size_source(slot, field, known), slot=slot,
                )
            )  # fmt: skip
    return tuple(sorted(found, key=lambda d: (d.section, d.device, d.field)))


def _as_told(key: tuple[str, int], value: Value, usual: Value, untold: Kinds, old_untold: Kinds) -> tuple[Value, Value]:
    """Return both values; what one side's source cannot tell is unknown there, and neither missing nor absent."""
    slot, i = key
    kind = kind_of(slot)
    whole = i == WHOLE
    if kind in untold and value == (MISSING if whole else ABSENT):
        return UNTOLD, usual
    if kind in old_untold and usual == (MISSING if whole else ABSENT):
        return "there" if whole else value, UNTOLD
    return value, usual


def new_findings(now: NodeFacts, before: NodeFacts) -> tuple[NodeFinding, ...]:
    """Return the failures and warnings of one node that the other does not have, worst first."""
    known = {(f.id, f.subject) for f in before.findings}
    found = [f for f in now.findings if f.state in ("fail", "warn") and (f.id, f.subject) not in known]
    return tuple(sorted(found, key=lambda f: f.state))


def changes(now: Collection, before: Collection) -> tuple[Change, ...]:
    """Return what changed on each node since another look; nodes are matched by name.

    A node whose fingerprint, sizes and identifiers are as before is left out.
    """
    new, old = _by_name(now), _by_name(before)
    out = [Change(name=n, what="new") for n in new.keys() - old.keys()]
    out += [Change(name=n, what="gone") for n in old.keys() - new.keys()]
    for name in new.keys() & old.keys():
        a, b = new[name], old[name]
        own, was = _own(a), _own(b)
        if a.fingerprint == b.fingerprint and own == was and a.approximate == b.approximate:
            continue
        found = _diff(
            now.unpack(a.fingerprint), a.untold, a.addresses, a.approximate, own,
            before.unpack(b.fingerprint), b.untold, b.addresses, b.approximate, was,
        )  # fmt: skip
        if found:
            out.append(Change(name=name, what="changed", differences=found))
    return tuple(sorted(out, key=lambda c: (c.what, c.name)))


def _by_name(collection: Collection) -> dict[str, Entry]:
    return dict(zip(collection.names(), collection.entries, strict=True))
