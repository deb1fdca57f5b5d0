"""The place of PCI functions in the tree, from the bus numbers that bridges have: what the kernel builds its paths of.

A bus belongs to the bridge whose secondary bus it is. One that no bridge leads to is a root bus, if the text lists the
machine's functions whole and no bridge's range of buses holds it; else its bridge was not listed, and the place of its
functions is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Bus = tuple[int, int]
"""Domain and bus."""
MAX_DEPTH = 256
MAX_DOMAIN = 0xFFFF
"""Of those that firmware numbers; Linux gives a VMD's domain a number above (drivers/pci/controller/vmd.c)."""


def split(address: str) -> tuple[int, int]:
    """Return domain and bus of a normalised address."""
    domain, bus, _ = address.split(":")
    return int(domain, 16), int(bus, 16)


def paths(
    functions: Collection[str],
    bridges: Mapping[str, tuple[int, int]],
    roots: Collection[Bus] = (),
    *,
    whole: bool = False,
) -> dict[str, str]:
    """Return address -> path below /sys/devices, of those functions whose place is known.

    Args:
        functions: normalised addresses.
        bridges: address -> (secondary, subordinate) bus, 0 where the firmware or kernel gave none.
        roots: root buses that the text names.
        whole: the text lists all functions of the machine, so that a bus to which nothing leads is a root bus.
    """
    leads: dict[Bus, str] = {}
    ranges: dict[int, list[tuple[int, int]]] = {}
    for address, (secondary, subordinate) in bridges.items():
        domain, _ = split(address)
        if 0 < secondary <= subordinate:
            leads[domain, secondary] = address
            ranges.setdefault(domain, []).append((secondary, subordinate))
    known: dict[Bus, str | None] = {}

    def above(bus: Bus, depth: int = 0) -> str | None:
        """Return the path of what a bus hangs on."""
        if bus not in known:
            known[bus] = None  # ends a circle of bridges
            domain, number = bus
            if bus in leads and depth < MAX_DEPTH:
                upper = above(split(leads[bus]), depth + 1)
                known[bus] = None if upper is None else f"{upper}/{leads[bus]}"
            elif domain > MAX_DOMAIN:
                pass  # behind Intel VMD: the function that shows the domain is not reported by numbers
            elif bus in roots or number == 0 or (whole and not _within(number, ranges.get(domain, ()))):
                known[bus] = f"/sys/devices/pci{domain:04x}:{number:02x}"
        return known[bus]

    places = {a: above(split(a)) for a in functions}
    return {a: f"{place}/{a}" for a, place in places.items() if place is not None}


def _within(number: int, ranges: Collection[tuple[int, int]]) -> bool:
    return any(first <= number <= last for first, last in ranges)
