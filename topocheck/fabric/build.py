"""Makes a fabric of what each end of its links says."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from topocheck.knowledge.rates import infiniband_gbit_s
from topocheck.model.base import Evidence
from topocheck.model.fabric import (
    DownPort,
    End,
    Fabric,
    FabricDevice,
    FabricLink,
    PlannedGroup,
    Protocol,
    SubnetManager,
)

MAX_PROBLEMS = 20
"""Lines that are quoted where a dump cannot be read; a text of another kind would name every line."""


MAX_LINES = 1 << 21
"""A port takes one line; the largest fabrics have some hundred thousand."""
MAX_LINE = 1000
"""Characters of a line; a description has 64 at most."""


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a dump with their numbers; what is too long for any form is cut, so that no form fits it."""
    for number, line in enumerate(text.splitlines()[:MAX_LINES], 1):
        yield number, line[:MAX_LINE]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What one end says of a link."""

    here: End
    there: End
    width: int | None = None
    speed: str = ""
    rate_gbit_s: float | None = None
    mtu: int | None = None
    state: str = ""
    could_be: str = ""
    group: bool = False
    evidence: Evidence

    @property
    def rate(self) -> float | None:
        """Data rate in Gb/s; None where width and speed do not give one."""
        return self.rate_gbit_s if self.rate_gbit_s is not None else _rate(self.speed, self.width)


@functools.cache
def _rate(speed: str, width: int | None) -> float | None:
    if not speed or width is None:
        return None
    try:
        return infiniband_gbit_s(speed, width)
    except ValueError:
        return None


class Builder:
    """Collects devices and the sides of links."""

    def __init__(self, protocol: Protocol, name: str, *, whole: bool = True) -> None:
        self._protocol, self._name, self._whole = protocol, name, whole
        self._down: dict[End, DownPort] = {}
        self._devices: dict[str, FabricDevice] = {}
        self._sides: dict[tuple[End, End], list[Side]] = {}
        self._managers: list[SubnetManager] = []
        self._planned: list[PlannedGroup] = []
        self._problems: list[str] = []
        self._unread = 0

    def add_device(self, device: FabricDevice) -> None:
        """Add a device; one that is described again stays as it was first."""
        self._devices.setdefault(device.id, device)

    def add_side(self, side: Side) -> None:
        """Add what one end says."""
        ends = (side.here, side.there) if side.here <= side.there else (side.there, side.here)
        self._sides.setdefault(ends, []).append(side)

    def add_down(self, port: DownPort) -> None:
        """Add a port without a link."""
        self._down.setdefault(port.end, port)

    def add_manager(self, manager: SubnetManager) -> None:
        """Add a subnet manager."""
        self._managers.append(manager)

    def add_planned(self, group: PlannedGroup) -> None:
        """Add a leaf switch or block of Slurm's topology."""
        self._planned.append(group)

    def problem(self, line: int, text: str) -> None:
        """Note a line that could not be read."""
        self._unread += 1
        if self._unread <= MAX_PROBLEMS:
            self._problems.append(f"{self._name}:{line}: {text[:80]}")

    def fabric(self) -> Fabric:
        """Return the fabric of all that was added."""
        links = tuple(_link(ends, sides) for ends, sides in sorted(self._sides.items()))
        named = {end.device for link in links for end in (link.a, link.b)}
        problems = list(self._problems)
        if self._unread > MAX_PROBLEMS:
            problems.append(f"{self._name}: {self._unread - MAX_PROBLEMS} further lines that could not be read")
        return Fabric(
            protocol=self._protocol,
            devices=self._devices,
            links=links,
            down=tuple(self._down.values()),
            whole=self._whole,
            dangling=tuple(sorted(named - self._devices.keys())),
            problems=tuple(problems),
            managers=tuple(self._managers),
            planned=tuple(self._planned),
            sources=(self._name,),
        )


def _link(ends: tuple[End, End], sides: list[Side]) -> FabricLink:
    """Return a link by what its ends say: the less where they disagree."""
    slowest = min(sides, key=lambda s: (s.rate is None, s.rate or 0.0))
    widths = {s.width for s in sides if s.width is not None}
    speeds = {s.speed for s in sides if s.speed}
    rates = {s.rate for s in sides if s.rate is not None}
    mtus = [s.mtu for s in sides if s.mtu is not None]
    return FabricLink(
        a=ends[0],
        b=ends[1],
        width=slowest.width,
        speed=slowest.speed,
        rate_gbit_s=slowest.rate,
        mtu=min(mtus, default=None),
        state=next((s.state for s in sides if s.state and s.state != "Active"), sides[0].state),
        could_be=next((s.could_be for s in sides if s.could_be), ""),
        grouped=any(s.group for s in sides),
        evidence=tuple(s.evidence for s in sides[:2]),
        ends_differ=len(widths) > 1 or len(speeds) > 1 or len(rates) > 1,
    )
