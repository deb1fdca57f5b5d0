"""Facts of the network between nodes: switches, adapters, and the cables that join their ports."""

from __future__ import annotations

import enum

import msgspec

from topocheck.model.base import Evidence


class Protocol(enum.StrEnum):
    """What the links of a fabric speak."""

    INFINIBAND = "infiniband"
    ETHERNET = "ethernet"
    UNKNOWN = "unknown"


class DeviceKind(enum.StrEnum):
    """What a device of a fabric is.

    An adapter of a node, a switch, a router between subnets, or the aggregation engine inside a switch (SHARP), which
    shows itself as an adapter.
    """

    ADAPTER = "adapter"
    SWITCH = "switch"
    ROUTER = "router"
    AGGREGATION = "aggregation"


class End(msgspec.Struct, frozen=True, order=True):
    """One port: the id of its device, and its name there (`17`, `Ethernet1/3`)."""

    device: str
    port: str


class FabricDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A switch, or an adapter of a node.

    Attributes:
        id: GUID of the node in 16 hex digits, or of its port where the source has no other (InfiniBand); chassis id
            of a switch, and host and interface of an adapter (LLDP); name (Slurm).
        name: the description that it gives itself.
        node: host name of the node that an adapter belongs to; of a switch empty.
        adapter: the adapter's name on its node (`mlx5_3`); empty where the description has none.
        ports: number of ports; None where the source does not say.
        source: file and line that describe it.
    """

    id: str
    kind: DeviceKind
    name: str = ""
    node: str = ""
    adapter: str = ""
    ports: int | None = None
    lid: int | None = None
    source: str = ""

    @property
    def label(self) -> str:
        """The name, or the id where it has none."""
        return self.name or self.id


class FabricLink(msgspec.Struct, frozen=True, kw_only=True):
    """A cable between two ports; `a` is the smaller end.

    Attributes:
        width: lanes; None where the source does not say. The least where the two ends disagree.
        speed: `HDR`, `NDR`, ...; empty where the source does not say. The slower where the two ends disagree.
        rate_gbit_s: data rate, Gb/s; None where it is not known.
        mtu: bytes; None where the source does not say.
        state: `Active`, `Init`, ...; empty where the source does not say.
        could_be: width or speed that both ends support and do not use, as the source says it (`4X`).
        grouped: the switch has its port in a link aggregation.
        evidence: what the source says of it, from one or both ends.
        ends_differ: the two ends say different things of width or speed.
    """

    a: End
    b: End
    width: int | None = None
    speed: str = ""
    rate_gbit_s: float | None = None
    mtu: int | None = None
    state: str = ""
    could_be: str = ""
    grouped: bool = False
    evidence: tuple[Evidence, ...] = ()
    ends_differ: bool = False

    def other(self, device: str) -> End:
        """Return the end that is not at a device."""
        return self.b if self.a.device == device else self.a


class DownPort(msgspec.Struct, frozen=True, kw_only=True):
    """A port without a link; `state` as the source says it (`Down/Polling`, `Down/Disabled`)."""

    end: End
    state: str
    evidence: Evidence


class SubnetManager(msgspec.Struct, frozen=True, kw_only=True):
    """A subnet manager, as `sminfo` or an SMInfoRecord shows it.

    Attributes:
        guid: of its port, 16 hex digits; `lid` of it, 0 where the source does not say.
        state: `MASTER`, `STANDBY`, `DISCOVERING` or `NOTACTIVE`.
        priority: 0 to 15.
    """

    guid: str
    lid: int
    state: str
    priority: int
    evidence: Evidence


class PlannedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf switch or a block of Slurm's topology, and its nodes."""

    name: str
    nodes: tuple[str, ...]
    block: bool
    evidence: Evidence


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """What one or more dumps say of a network.

    Attributes:
        protocol: what its links speak.
        devices: by id.
        links: in order of their ends.
        down: ports without a link, where the source names them.
        whole: the source shows all cables; else it is single nodes' view, or Slurm's, which is not of cables.
        dangling: devices that links name and nothing describes (a dump that was cut).
        problems: lines that could not be read, in words.
        conflicts: ports that lead elsewhere by one dump than by another, in words.
        silent: machines of which a file of LLDP neighbours was given, and that hear none.
        managers: subnet managers, where the source shows them.
        planned: leaf switches and blocks of Slurm's topology. Together with a dump of the cables they are not in the
            graph, but compared with it.
        sources: files that it was read from.
    """

    protocol: Protocol = Protocol.UNKNOWN
    devices: dict[str, FabricDevice] = {}
    links: tuple[FabricLink, ...] = ()
    down: tuple[DownPort, ...] = ()
    whole: bool = True
    dangling: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    managers: tuple[SubnetManager, ...] = ()
    planned: tuple[PlannedGroup, ...] = ()
    sources: tuple[str, ...] = ()
