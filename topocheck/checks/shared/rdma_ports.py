"""Ports of RDMA devices, and each beside its siblings: the ports of its kind on other cards."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

from topocheck.checks.registry import Context, not_applicable, once
from topocheck.model.base import Missing, known
from topocheck.model.net import RdmaDevice, RdmaPort
from topocheck.topology.types import Nic


class Port(msgspec.Struct, frozen=True):
    """One port with the NIC it belongs to.

    Attributes:
        near: the NIC is the nearest of some GPU; None where nobody can tell.
        card: what the functions of one card share: their address without its last digit, or the system image GUID
            where the PCI function is not known.
        place: which function of the card it is.
    """

    nic: Nic
    device: RdmaDevice
    port: RdmaPort
    near: bool | None
    card: str
    place: str

    @property
    def where(self) -> str:
        """The subject: address, name and number."""
        names = dict.fromkeys((self.nic.address, self.nic.label))
        return f"{' '.join(names)} port {self.port.port}"

    @property
    def model(self) -> tuple[object, ...]:
        """What makes two ports siblings: the same kind of card, board, place on the card, link layer, and role."""
        d = self.device
        bond = any(i.bond_slaves for i in self.nic.interfaces)
        kind = tuple(v if known(v) else None for v in (d.hca_type, d.board_id, self.port.link_layer))
        return (*kind, self.place, self.port.port, known(d.physfn), bond, self.near)


@once
def _nearest(c: Context) -> frozenset[str]:
    return frozenset(a for n in c.topology.nearest_nics for a in n.nics)


def is_near(c: Context, nic: Nic) -> bool | None:
    """Tell a NIC that is the nearest of some GPU (compute) from one that is not (storage, services).

    None where no GPU has a nearest NIC: without GPUs, or where the tree does not show who is near.
    """
    near = _nearest(c)
    return nic.address in near if near and nic not in c.topology.unplaced_nics else None


def port_of(nic: Nic, port: RdmaPort, near: bool | None = None) -> Port:
    """Return a port of a NIC that has a PCI address."""
    assert nic.rdma is not None
    return Port(nic, nic.rdma, port, near, nic.address[:-1], nic.address[-1])


def _unplaced(c: Context) -> Iterator[Port]:
    """Return the ports of the devices whose PCI function is not known, those of one system image on one card."""
    cards: Counter[str] = Counter()
    for n in c.topology.unplaced_nics:
        if n.rdma is None:
            continue
        image = n.rdma.sys_image_guid
        card = image if known(image) and image.strip("0:") else n.label
        place = f"function {cards[card]}"
        cards[card] += 1
        yield from (Port(n, n.rdma, p, None, card, place) for p in n.rdma.ports)


@once
def ports(c: Context) -> tuple[Port, ...]:
    """Return every port of every NIC, those last whose PCI function is not known."""
    placed = (port_of(n, p, is_near(c, n)) for n in c.topology.nics if n.rdma is not None for p in n.rdma.ports)
    return (*placed, *_unplaced(c))


def judged(c: Context) -> tuple[Port, ...]:
    """Return every port; not applicable where there is none."""
    if isinstance(c.node.net.rdma, Missing):
        raise not_applicable(f"no RDMA devices: {c.node.net.rdma}")
    every = ports(c)
    if not every:
        raise not_applicable("this machine has no RDMA NIC")
    return every


class _Values:
    """Numbers of some ports in order, and where each comes from first: from two cards, so that one can be left out."""

    def __init__(self) -> None:
        self.every: list[float] = []
        self.by_card: dict[str, list[float]] = {}
        self.first: dict[float, list[Port]] = {}

    def add(self, port: Port, value: float) -> None:
        """Take the value of one more port."""
        self.every.append(value)
        self.by_card.setdefault(port.card, []).append(value)
        first = self.first.setdefault(value, [])
        if not first or (len(first) == 1 and first[0].card != port.card):
            first.append(port)

    def sort(self) -> None:
        """Bring all into order, once."""
        self.every.sort()
        for values in self.by_card.values():
            values.sort()


class Others:
    """The values of a port's siblings, without a look at each of them: a machine may have a thousand."""

    def __init__(self, values: _Values, card: str) -> None:
        self._values, self._card = values, card
        self._own = values.by_card.get(card, [])

    def __len__(self) -> int:
        return len(self._values.every) - len(self._own)

    def at_least(self, value: float) -> int:
        """Return how many are not below a value."""
        return len(self) - self._below(value, bisect_left)

    def equal(self, value: float) -> int:
        """Return how many have a value."""
        return self._below(value, bisect_right) - self._below(value, bisect_left)

    def _below(self, value: float, bisect: Callable[[list[float], float], int]) -> int:
        return bisect(self._values.every, value) - bisect(self._own, value)

    def place(self, rank: int) -> float:
        """Return the value at a place in their order, from 0 for the smallest. IndexError where there is none."""
        low, high = 0, len(self._values.every) - 1
        while low < high:
            middle = (low + high) // 2
            if self._below(self._values.every[middle], bisect_right) > rank:
                high = middle
            else:
                low = middle + 1
        return self._values.every[low]

    def first(self, value: float) -> Port | None:
        """Return the first port with a value, or None."""
        return next((p for p in self._values.first.get(value, ()) if p.card != self._card), None)


class Siblings:
    """Some ports by kind, with a value of each; ports of one card are no siblings of each other."""

    def __init__(self, every: Iterable[Port], value: Callable[[Port], float | None]) -> None:
        self._groups: dict[tuple[object, ...], _Values] = {}
        for port in every:
            number = value(port)
            if number is not None:
                self._groups.setdefault(port.model, _Values()).add(port, number)
        for group in self._groups.values():
            group.sort()

    def of(self, port: Port) -> Others:
        """Return the values of a port's siblings; those without a value are left out."""
        return Others(self._groups.get(port.model) or _Values(), port.card)
