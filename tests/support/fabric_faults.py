"""Faults planted in generated fabrics. Imports nothing of topocheck: what should be found is written down here.

Each planter changes a fabric in place and returns the groups of names that a finding must hold, or None where the
fabric has no place for it. Findings that name no planted device are inventions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.support.fabrics import Made


@dataclass(frozen=True)
class Planted:
    """What was done: one finding must hold all names of each group of `expected`; `touched` may be named as well."""

    expected: tuple[tuple[str, ...], ...]
    touched: frozenset[str]


Planter = Callable[[Made, Random], Planted | None]


def _planted(*expected: tuple[str, ...], touched: set[str] | frozenset[str] = frozenset()) -> Planted:
    return Planted(expected, frozenset(touched) | {name for group in expected for name in group})


def _nodes(made: Made) -> dict[str, list[int]]:
    """Return the links of each node's adapters: host name -> places."""
    out: dict[str, list[int]] = {}
    for i in made.of("n"):
        out.setdefault(made.described(i)[0].split(" ")[0], []).append(i)
    return out


def swap_rails(made: Made, rng: Random) -> Planted | None:
    """Two cables of one node are swapped between their leaves."""
    nodes = [own for own in _nodes(made).values() if len(own) > 2]
    if not nodes:
        return None
    i, j = rng.sample(rng.choice(nodes), 2)
    a, b = made.links[i], made.links[j]
    made.links[i], made.links[j] = (*a[:2], *b[2:]), (*b[:2], *a[2:])
    return _planted((made.described(i)[0],), (made.described(j)[0],))


def wrong_pod(made: Made, rng: Random) -> Planted | None:
    """One adapter is plugged into a leaf of another pod."""
    nodes = [own for own in _nodes(made).values() if len(own) > 2]
    if not nodes:
        return None
    i = rng.choice(rng.choice(nodes))
    leaf = made.links[i][2]
    others = sorted({x[2] for x in made.links if x[0].startswith("n") and x[2].split(".")[0] != leaf.split(".")[0]})
    if not others:
        return None
    made.links[i] = (*made.links[i][:2], rng.choice(others), 60, made.links[i][4])
    return _planted((made.described(i)[0],))


def on_a_spine(made: Made, rng: Random) -> Planted | None:
    """One adapter is plugged into a spine."""
    spines = sorted(d for d in made.devices if d.startswith("spine"))
    if not spines:
        return None
    i = rng.choice(made.of("n"))
    spine = rng.choice(spines)
    made.links[i] = (*made.links[i][:2], spine, 128, made.links[i][4])
    return _planted(tuple(made.described(i)[0].split(" ")))


def _drop(made: Made, rng: Random, kind: str) -> Planted | None:
    """One cable above a switch of this kind is down."""
    found = made.of(kind)
    if not found:
        return None
    i = rng.choice(found)
    names = made.described(i)
    made.links.pop(i)
    return _planted(names)


def drop_uplink(made: Made, rng: Random) -> Planted | None:
    """One cable between a leaf and a spine is down."""
    return _drop(made, rng, "leaf")


def drop_bundle(made: Made, rng: Random) -> Planted | None:
    """All cables between a leaf and a spine are down."""
    found = made.of("leaf")
    if not found:
        return None
    i = rng.choice(found)
    names, ends = made.described(i), (made.links[i][0], made.links[i][2])
    made.links = [x for x in made.links if (x[0], x[2]) != ends]
    return _planted(names)


def cut_off_leaf(made: Made, rng: Random) -> Planted | None:
    """All uplinks of a leaf are down."""
    found = made.of("leaf")
    if not found:
        return None
    leaf = made.links[rng.choice(found)][0]
    made.links = [x for x in made.links if x[0] != leaf]
    return _planted((made.devices[leaf][1],))


def lose_line_card(made: Made, rng: Random) -> Planted | None:
    """A spine has lost its links to half of its leaves; no two links of any of these leaves are lost."""
    found = made.of("leaf")
    if not found:
        return None
    spine = made.links[rng.choice(found)][2]
    own = [i for i in found if made.links[i][2] == spine]
    spines = {made.links[i][2] for i in found if made.links[i][0] == made.links[own[0]][0]}
    leaves = sorted({made.links[i][0] for i in own})
    if len(leaves) < 4 or len(spines) < 4:
        return None
    lost = set(leaves[: len(leaves) // 2])
    expected = tuple((made.devices[leaf][1], made.devices[spine][1]) for leaf in sorted(lost))
    made.links = [x for x in made.links if not (x[2] == spine and x[0] in lost)]
    return _planted(*expected)


def wrong_spine(made: Made, rng: Random) -> Planted | None:
    """A cable of a leaf goes to a spine other than the one it belongs on."""
    found = made.of("leaf")
    if not found:
        return None
    i = rng.choice(found)
    leaf, port, spine, _, rate = made.links[i]
    others = sorted({made.links[k][2] for k in found if made.links[k][0] == leaf} - {spine})
    if not others:
        return None
    names, other = made.described(i), rng.choice(others)
    made.links[i] = (leaf, port, other, 127, rate)
    return _planted(names, touched={made.devices[other][1]})


def leaf_to_leaf(made: Made, rng: Random) -> Planted | None:
    """A cable joins two leaves."""
    found = made.of("leaf")
    leaves = sorted({made.links[i][0] for i in found})
    if len(leaves) < 4:
        return None
    a, b = rng.sample(leaves, 2)
    made.links.append((a, 120, b, 121, made.links[found[0]][4]))
    return _planted((made.devices[a][1], made.devices[b][1]))


def loop(made: Made, rng: Random) -> Planted | None:
    """A cable joins two ports of one switch."""
    switch = rng.choice(sorted(d for d, x in made.devices.items() if x[0] == "S"))
    made.links.append((switch, 118, switch, 119, made.links[0][4]))
    return _planted((made.devices[switch][1],))


def skip_a_tier(made: Made, rng: Random) -> Planted | None:
    """A cable joins a leaf and a core switch."""
    cores = sorted(d for d in made.devices if d.startswith("core"))
    if not cores:
        return None
    leaf, core = made.links[rng.choice(made.of("leaf"))][0], rng.choice(cores)
    made.links.append((leaf, 122, core, 123, made.links[0][4]))
    return _planted((made.devices[leaf][1], made.devices[core][1]))


def _slower(made: Made, i: int, *, half: bool) -> Planted:
    width, _, speed = made.links[i][4].partition("x")
    below = {"NDR": "HDR", "HDR": "EDR"}[speed]
    made.links[i] = (*made.links[i][:4], f"2x{speed}" if half else f"{width}x{below}")
    a, b = made.described(i)
    return _planted((a, b))


def half_width_node(made: Made, rng: Random) -> Planted | None:
    """An adapter's link has two lanes instead of four."""
    return _slower(made, rng.choice(made.of("n")), half=True)


def half_width_uplink(made: Made, rng: Random) -> Planted | None:
    """A link between switches has two lanes instead of four."""
    found = made.of("leaf", "r", "spine")
    return _slower(made, rng.choice(found), half=True) if found else None


def slow_node(made: Made, rng: Random) -> Planted | None:
    """An adapter's link runs at the speed of the generation before."""
    return _slower(made, rng.choice(made.of("n")), half=False)


def slow_uplink(made: Made, rng: Random) -> Planted | None:
    """A link between switches runs at the speed of the generation before."""
    found = made.of("leaf", "r", "spine")
    return _slower(made, rng.choice(found), half=False) if found else None


def slow_leaf(made: Made, rng: Random) -> Planted | None:
    """Every link of one leaf runs at the speed of the generation before."""
    found = made.of("leaf", "r")
    leaves = sorted({made.links[i][2] for i in made.of("n")})
    if not found or len(leaves) < 8:
        return None
    leaf = rng.choice(leaves)
    done = [_slower(made, i, half=False) for i, x in enumerate(made.links) if leaf in (x[0], x[2])]
    return _planted((made.devices[leaf][1], f"{len(done)} of its {len(done)} links"))


def drop_adapter(made: Made, rng: Random) -> Planted | None:
    """The port of an adapter is down."""
    nodes = [own for own in _nodes(made).values() if len(own) > 2]
    if not nodes:
        return None
    name = made.links[rng.choice(rng.choice(nodes))][0]
    node, adapter = made.devices.pop(name)[1].split(" ")
    made.links = [x for x in made.links if x[0] != name]
    return _planted((node, adapter))


def dead_leaf(made: Made, rng: Random) -> Planted | None:
    """A leaf is switched off, and with it a rail of its whole pod."""
    own = _nodes(made)
    if len(min(own.values(), key=len)) < 3:
        return None
    leaves = sorted({made.links[i][2] for i in made.of("n")})
    if len({leaf.split(".")[0] for leaf in leaves}) < 4:
        return None
    leaf = rng.choice(leaves)
    gone = {x[0] for x in made.links if x[2] == leaf and x[0].startswith("n")}
    names = [made.devices[d][1] for d in gone]
    adapter = names[0].split(" ")[1]
    nodes = {n.split(" ")[0] for n in names}
    made.links = [x for x in made.links if leaf not in (x[0], x[2])]
    for d in (*gone, leaf):
        del made.devices[d]
    return _planted((min(nodes), adapter), touched=nodes)


def same_name(made: Made, rng: Random) -> Planted | None:
    """An adapter has the description of another node's: a cloned host."""
    a, b = rng.sample(sorted(d for d in made.devices if d.startswith("n")), 2)
    old = made.devices[b][1]
    made.devices[b] = ("H", made.devices[a][1], made.devices[b][2])
    return _planted((made.devices[a][1],), touched={old.split(" ")[0]})


def ends_differ(made: Made, rng: Random) -> Planted | None:
    """The two ends of a link report different widths."""
    i = rng.randrange(len(made.links))
    rate = made.links[i][4]
    made.links[i] = (*made.links[i][:4], f"{rate}/2{rate[1:]}")
    return _planted(made.described(i))


def local_link(made: Made, rng: Random) -> Planted | None:
    """A link inside a group of a dragonfly is down."""
    found = [i for i in made.of("r") if made.links[i][0].split(".")[0] == made.links[i][2].split(".")[0]]
    if not found:
        return None
    i = rng.choice(found)
    names = made.described(i)
    made.links.pop(i)
    return _planted(names)


def global_link(made: Made, rng: Random) -> Planted | None:
    """A link between two groups of a dragonfly is down: no port of either end has a sibling that it was like."""
    found = [i for i in made.of("r") if made.links[i][0].split(".")[0] != made.links[i][2].split(".")[0]]
    if not found:
        return None
    i = rng.choice(found)
    groups = [d[1] for name in made.links[i][::2][:2] for d in [made.devices[f"{str(name).split('.')[0]}.0"]]]
    names = made.described(i)
    made.links.pop(i)
    return _planted(tuple(groups), touched=set(names))


def core_link(made: Made, rng: Random) -> Planted | None:
    """A cable between a spine and a core switch is down."""
    return _drop(made, rng, "spine")


def other_mtu(made: Made, rng: Random) -> Planted | None:
    """The ports of one leaf have another MTU than the rest."""
    leaf = made.links[rng.choice(made.of("n"))][2]
    made.mtu[leaf] = 2048
    return _planted((made.devices[leaf][1],))


PLANTERS: tuple[Planter, ...] = (
    swap_rails, wrong_pod, on_a_spine, drop_uplink, drop_bundle, cut_off_leaf, lose_line_card, wrong_spine,
    leaf_to_leaf, loop, skip_a_tier, half_width_node, half_width_uplink, slow_node, slow_uplink, slow_leaf,
    drop_adapter, dead_leaf, same_name, ends_differ, local_link, global_link, core_link, other_mtu,
)  # fmt: skip
"""24 kinds; `other_mtu` is seen in dumps that hold MTUs (ibdiagnet's db_csv)."""
