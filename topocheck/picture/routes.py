"""Which boxes and links of a scene the path of two devices takes, and which link is its narrowest."""

from __future__ import annotations

import functools

import msgspec

from topocheck.picture.types import Domain, Fabric, Part, Scene
from topocheck.topology.types import Hop, HopKind, Path


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the boxes and links that a path takes, and of the link that is its narrowest; empty where none is known.

    A path whose ends are drawn as one box takes no link that could be shown.
    """

    boxes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    narrowest: str = ""


class _Place(msgspec.Struct, frozen=True):
    """A device's box and those above it, up to its domain."""

    chain: tuple[Part, ...]
    domain: Domain


class Routes:
    """Finds routes in one scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._places: dict[str, _Place] = {}
        for d in scene.domains:
            for p in d.parts:
                self._put(p, (), d)

    def _put(self, part: Part, above: tuple[Part, ...], domain: Domain) -> None:
        chain = (*above, part)
        for a in part.devices:
            self._places.setdefault(a, _Place(chain, domain))
        for c in part.children:
            # What hangs below a device is drawn beside it, and its link leads to what is above both.
            self._put(c, above if part.devices else chain, domain)

    @functools.cached_property
    def _fabric_of(self) -> dict[tuple[str, str], Fabric]:
        """Each ordered pair of parts that a fabric joins, with that fabric."""
        out = {}
        for f in self.scene.fabrics:
            pairs = [(p.one, p.other) for p in f.pairs] if f.pairs else [(a, b) for a in f.members for b in f.members]
            for a, b in pairs:
                out[a, b] = out[b, a] = f
        return out

    def route(self, path: Path) -> Route:
        """Return what the path of two devices takes; nothing where one is not drawn, or does not answer."""
        a, b = self._places.get(path.from_), self._places.get(path.to)
        if a is None or b is None or not path.hops:
            return Route()
        one, other = a.chain[-1], b.chain[-1]
        fabric = self._fabric_of.get((one.id, other.id))
        if path.nvlinks and fabric is not None:
            return self._by_nvlink(one, other, fabric)
        if one.id == other.id:
            return Route(boxes=(one.id,))
        return self._by_host(a, b, path)

    def _by_nvlink(self, one: Part, other: Part, fabric: Fabric) -> Route:
        pair = next((p for p in fabric.pairs if {p.one, p.other} == {one.id, other.id}), None)
        if pair is not None:
            return Route(boxes=(one.id, other.id), links=(pair.link.id,), narrowest=pair.link.id)
        links = [p.outward for p in (one, other) if p.outward is not None]
        rated = [k for k in links if k.gb_s is not None]
        narrowest = min(rated, key=lambda k: k.gb_s or 0.0).id if rated else ""
        return Route(
            boxes=tuple(dict.fromkeys((one.id, fabric.id, other.id))),
            links=tuple(dict.fromkeys(k.id for k in links)),
            narrowest=narrowest,
        )

    def _by_host(self, a: _Place, b: _Place, path: Path) -> Route:
        shared = sum(1 for x, y in zip(a.chain, b.chain, strict=False) if x.id == y.id)
        up, down = a.chain[shared:], b.chain[shared:]
        boxes = [p.id for p in (*up, *a.chain[shared - 1 : shared], *down)]
        links = [p.link.id for p in (*up, *down)]
        if not shared:
            ends = (a.domain,) if a.domain.id == b.domain.id else (a.domain, b.domain)
            boxes += [f"{d.id}cpu" for d in ends if d.cpu]
            taps = [d.tap.id for d in ends if d.tap is not None]
            if len(taps) > 1 and self.scene.between is not None:
                # Where one device reports no NUMA node, nobody knows whether the path leaves the socket.
                links += [*taps, self.scene.between.id]
        return Route(boxes=tuple(boxes), links=tuple(links), narrowest=self._narrowest(path.narrowest, (*up, *down)))

    def _narrowest(self, hop: Hop | None, parts: tuple[Part, ...]) -> str:
        """Return the link that a hop is drawn as; empty where it is drawn as none."""
        for p in parts:
            if hop is None:
                break
            own = hop.kind in (HopKind.C2C, HopKind.NVLINK) and p.link.kind in ("c2c", "nvlink")
            if hop.address in p.link.addresses or (own and hop.address.removesuffix("-CPU") in p.devices):
                return p.link.id
        return ""
