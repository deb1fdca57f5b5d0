"""Many equal branches as one: for machines with more devices than anybody reads one by one."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topocheck.picture.types import Part


def stack(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return parts in their order, those that differ in names and addresses alone as one where the first of them is.

    What a finding is about stays alone.
    """
    out: dict[object, Part] = {}
    for p in parts:
        p = msgspec.structs.replace(p, children=stack(p.children))
        key = _kind(p)
        out[key] = _joined(out[key], p) if key in out else p
    return tuple(out.values())


def _kind(p: Part) -> object:
    if p.finding is not None:
        return p.id
    links = tuple(x and (x.kind, x.state, x.what, x.rate, x.mark) for x in (p.link, p.outward))
    return p.kind, p.name, p.others, links, tuple(map(_kind, p.children))


def _joined(a: Part, b: Part) -> Part:
    """Return two equal branches as one, box by box."""
    n = len(a.addresses) + len(b.addresses)
    ends = (a.ends or (a.title,))[0], (b.ends or (b.title,))[-1]
    return msgspec.structs.replace(
        a,
        title=" ... ".join(ends) if a.devices else a.title,
        ends=ends,
        place=f"× {n}",
        addresses=a.addresses + b.addresses,
        devices=a.devices + b.devices,
        link=msgspec.structs.replace(a.link, addresses=a.link.addresses + b.link.addresses),
        children=tuple(_joined(x, y) for x, y in zip(a.children, b.children, strict=True)),
    )
