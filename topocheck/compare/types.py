"""What a comparison of nodes takes and what it comes to. Pure structs; nothing here reads a file."""

from __future__ import annotations

import msgspec

Value = str | int | float | bool | None
"""A value of a field. A text that begins with `?` stands for a value that could not be known (`?denied`)."""

UNKNOWN = "?"
ABSENT = "absent"
UNLIMITED = "unlimited"


class NodeFinding(msgspec.Struct, frozen=True, array_like=True):
    """One finding of a check on a node, without its evidence (that stays in the node's own report)."""

    id: str
    state: str
    subject: str
    title: str
    fix: str = ""


class RailPort(msgspec.Struct, frozen=True, array_like=True):
    """Where one port of a NIC sits in the network.

    Attributes:
        nic: slot of the NIC (`nic3`).
        label: name of the device on its node (`mlx5_3`).
        port: number of the port, from 1.
        ipv4: its first IPv4-mapped GID as a number; 0 where it has none.
        prefix: subnet prefix of its first GID, 16 hex digits; empty where it has none or only link-local ones.
        lid: local identifier on InfiniBand; 0 elsewhere.
        guid: of the port, 16 hex digits, by its first GID on InfiniBand; empty elsewhere.
        layer: link layer where the port is active (`InfiniBand`, `Ethernet`); empty where it is not.
        interfaces: network interfaces of the device.
    """

    nic: str
    label: str
    port: int
    ipv4: int = 0
    prefix: str = ""
    lid: int = 0
    guid: str = ""
    layer: str = ""
    interfaces: tuple[str, ...] = ()


class JobPort(msgspec.Struct, frozen=True, array_like=True):
    """An active port: its place (`nic3/1`), the device's name and link layer.

    Attributes:
        mtu: of an Ethernet port's interface; 0: not known.
        prefix: length of that interface's IPv4 network; 0: none, several, or not known.
    """

    place: str
    label: str
    layer: str
    mtu: int = 0
    prefix: int = 0


class JobFacts(msgspec.Struct, frozen=True, array_like=True):
    """What the nodes of one job must agree in.

    Attributes:
        version: of NCCL; empty where not known.
        usable: RDMA devices that are active and may be opened; `refused` active ones that may not, `down` the others.
        usable_known: it is known of all active ones whether they may be opened.
        imex: yes or no; empty where nothing is known or needed.
        network: what NCCL goes by between nodes; empty where not known.
        settings_known: a setting that is not in `settings` is not set.
        nics: how many NICs with ports there are.
        domain: cluster UUID and clique of its NVLink domain beyond the node; `none` where its GPUs say that they are
            in none; empty where it is not known.
    """

    version: str = ""
    usable: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    usable_known: bool = False
    ports: tuple[JobPort, ...] = ()
    settings: dict[str, str] = {}
    imex: str = ""
    network: str = ""
    settings_known: bool = True
    nics: int = 0
    domain: str = ""


class JobProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between nodes and would hurt a job over them.

    Attributes:
        state: fail where a job dies or hangs, warn where it is slower.
        what: mtu, hcas, link-layer, network, nccl-version, imex, nvlink-domain or setting.
        subject: the device, setting or part.
        values: (value, nodes that have it), most first.
    """

    state: str
    what: str
    subject: str
    title: str
    consequence: str
    fix: str
    values: tuple[tuple[str, tuple[str, ...]], ...] = ()


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared of one node.

    Attributes:
        name: of the node: its host name.
        file: where it was read from; empty for facts that came another way.
        taken_at: RFC 3339, UTC.
        hardware_type: what sort of machine this is (maker, product, CPU), compared only with its own sort.
        gpu_model: PCI ids of most of its GPUs; empty for none.
        devices: slot (`node`, `gpu3`, `path gpu0-nic1`, `setting NCCL_DEBUG`) -> values in the order of
            compare/fields.py. PCI addresses are written as slots, so that equal wiring gives equal values.
        untold: kinds of slots (`gpu`, `module`) of which there may be more than the node's source tells.
        addresses: slot -> PCI address, for slots of devices that have one; `label SLOT` -> name of a NIC (`mlx5_1`).
        approximate: name -> number that differs a little between equal nodes (memory sizes in bytes).
        identifiers: slot -> UUID or GUID; never compared between nodes, only between two looks at one node.
        nvlink_domain: cluster UUID and clique where the GPUs belong to an NVLink domain beyond the node.
        rails: where each RDMA port sits.
        bonds: name of a bond -> its mode (empty where it is not known) and the interfaces in it.
        job: what the nodes of a job must agree in.
        findings: of the node's own checks.
        fingerprint: 24 hex digits; equal for nodes whose `devices` are equal.
        renamed: host names, addresses and identifiers were replaced when the recording was saved.
    """

    name: str
    file: str = ""
    taken_at: str = ""
    hardware_type: str = ""
    gpu_model: str = ""
    devices: dict[str, tuple[Value, ...]] = {}
    untold: tuple[str, ...] = ()
    addresses: dict[str, str] = {}
    approximate: dict[str, float] = {}
    identifiers: dict[str, str] = {}
    nvlink_domain: str = ""
    rails: tuple[RailPort, ...] = ()
    bonds: dict[str, tuple[str, ...]] = {}
    job: JobFacts = JobFacts()
    findings: tuple[NodeFinding, ...] = ()
    fingerprint: str = ""
    renamed: bool = False


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in which a node differs from what it is compared with.

    Attributes:
        section: hardware, wiring, firmware, driver, software, settings, network or probes.
        device: what it is about: `node`, `GPU3 0000:4c:00.0`, `mlx5_3`, `path GPU0 - mlx5_1`.
        field: name of the field in the JSON report.
        value: what this node has; `missing` or `extra` for a whole device.
        majority: what most others have.
        share: part of the compared nodes that have `majority`, 0 to 1.
        comparable: False where one of the two values could not be known, so that they may be equal after all.
        unknown: which of `value` and `majority` is not known -> why (`denied`, `not_recorded`).
        path: where the value stands in the node's JSON report.
        source: the file or call of the machine behind it.
        slot: the device by its place among those of its kind (`gpu3`, `pci pci12`, `node`), as NodeFacts has them.
    """

    section: str
    device: str
    field: str
    value: str
    majority: str
    share: float = 1.0
    comparable: bool = True
    unknown: dict[str, str] = {}
    path: str = ""
    source: str = ""
    slot: str = ""


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """A node that differs from most of its kind, with everything in which it does."""

    name: str
    file: str
    hardware_type: str
    group: str
    differences: tuple[Difference, ...]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes with one fingerprint."""

    fingerprint: str
    nodes: tuple[str, ...]


class NoMajority(msgspec.Struct, frozen=True, kw_only=True):
    """A field without a majority, so that no node is an outlier in it. `values` are (value, nodes), most first."""

    section: str
    device: str
    field: str
    values: tuple[tuple[str, int], ...]
    examples: tuple[str, ...] = ()
    """One node for each of the values."""


class HardwareType(msgspec.Struct, frozen=True, kw_only=True):
    """One sort of machine: its groups, biggest first, and the fields without a majority."""

    name: str
    nodes: int
    groups: tuple[Group, ...]
    no_majority: tuple[NoMajority, ...] = ()


class Rail(msgspec.Struct, frozen=True, kw_only=True):
    """The NICs at one place of all nodes of a kind. `network` is empty where nothing tells the rails apart."""

    hardware_type: str
    nic: str
    label: str
    network: str
    nodes: int


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes have which value of something, most first."""

    name: str
    values: tuple[tuple[str, int], ...]


class SharedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding and the nodes that have it."""

    id: str
    state: str
    subject: str
    title: str
    nodes: tuple[str, ...]
    fix: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What changed on one node between two looks. `what` is changed, new or gone."""

    name: str
    what: str
    differences: tuple[Difference, ...] = ()


class NvlinkDomain(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of one NVLink domain and clique, or (no UUID) those whose GPUs say that they are in none.

    Attributes:
        imex: on how many of them IMEX channels are known to be there.
    """

    cluster_uuid: str
    clique: int | None
    nodes: tuple[str, ...]
    imex: int = 0


class UnreadableFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that could not be used, and why."""

    file: str
    reason: str


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The result for many nodes.

    Attributes:
        job: what differs between nodes of a kind and would hurt a job over them.
        nvlink_domains: those that reach beyond a node, and the nodes outside where there are any.
        superseded_files: looks at nodes of which a newer one, or one of the same time, was given too; they count for
            nothing.
    """

    nodes: int
    hardware_types: tuple[HardwareType, ...] = ()
    outliers: tuple[Outlier, ...] = ()
    rails: tuple[Rail, ...] = ()
    job: tuple[JobProblem, ...] = ()
    nvlink_domains: tuple[NvlinkDomain, ...] = ()
    software: tuple[Count, ...] = ()
    settings: tuple[Count, ...] = ()
    findings: tuple[SharedFinding, ...] = ()
    changes: tuple[Change, ...] | None = None
    unreadable_files: tuple[UnreadableFile, ...] = ()
    superseded_files: tuple[str, ...] = ()
