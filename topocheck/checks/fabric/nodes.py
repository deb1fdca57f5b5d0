"""Nodes: adapters that are missing from the fabric, and names by which they cannot be distinguished."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.fabric.run import READS, evidence, joined_in, port, tiers_in
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.fabric.rails import not_joined
from topocheck.fabric.uplinks import MIN_ALIKE
from topocheck.model.base import Evidence, Finding, State


@check("fabric.node-not-joined", severity=State.WARN, reads=READS)
def node_not_joined(context: Context) -> Iterator[Finding]:
    """A node has fewer adapters on the fabric than the nodes of the same kind.

    Looks at:
        The adapters of each node, against those that three quarters of the nodes on the same leaves have. Where a
        whole group of nodes on the same leaves is without one adapter, the groups of nodes with such names. And
        machines whose LLDP neighbours were given and that hear none.

    Why it matters:
        A port that is down is not in the dump. Jobs on this node lose a rail, or do not start.

    Fix:
        Look at the port on the node (`ibstat`), cable and transceiver; where a whole group lacks it, at their leaf.

    Does not apply:
        With fewer than four nodes.
    """
    tiers = tiers_in(context)
    nodes = tiers.nodes
    silent = tiers.fabric.silent if tiers.fabric.links else ()
    for machine in silent:
        yield Finding(
            state=State.WARN,
            subject=machine,
            title="hears no neighbour by LLDP; other machines of these dumps do",
            consequence="where its ports are plugged in is not known, or none of them is up",
            evidence=(Evidence(f"{machine}: its LLDP neighbours", "none"),),
            rule="every machine hears the switch of each of its ports",
            fix="check its ports (ip link, ethtool), that lldpd runs on it, and that the switch sends LLDP",
        )
    if len(nodes) < MIN_ALIKE:
        if silent:
            return
        raise not_applicable("fewer than four nodes in the dump")
    for found in not_joined(tiers):
        lost = ", ".join(found.lost)
        first, rest = found.nodes[0], len(found.nodes) - 1
        if found.groups:
            title = f"{lost} is on no leaf; {found.alike} of {found.peers} groups of nodes with such names have it"
            fix = "check the leaf that these adapters belong on: it is off, or all its ports are down"
        else:
            title = f"{lost} is not on the fabric; {found.alike} of {found.peers} nodes on the same leaves have it"
            fix = "check the port on the node (ibstat), its cable and its transceiver"
        yield Finding(
            state=State.WARN,
            subject=f"{first} and {rest} more" if rest else first,
            title=title,
            consequence="jobs on these nodes have a rail less" if rest else "jobs on this node have a rail less",
            evidence=evidence(*(a.link for a in nodes[first].values()))[:4],
            rule="nodes on the same leaves have the same adapters on the fabric",
            fix=fix,
        )


@check("fabric.duplicate-name", severity=State.WARN, reads=READS)
def duplicate_name(context: Context) -> Iterator[Finding]:
    """Several adapters announce the same host and device name.

    Looks at:
        The descriptions of adapters (`HOSTNAME DEVICE`) and their GUIDs.

    Why it matters:
        Which node a port belongs to cannot be said: tools that go by names, and the cabling of these nodes here, show
        one node where there are two. Hosts that were cloned, or never got a name, announce such.

    Fix:
        Set the host name of the node and restart `rdma-ndd`, or write to
        `/sys/class/infiniband/DEVICE/node_desc`.

    Does not apply:
        Where every description is of one adapter.
    """
    tiers = tiers_in(context)
    for (node, rail), found in sorted(tiers.duplicates.items()):
        places = ", ".join(port(tiers, a.leaf) for a in found[:4])
        yield Finding(
            state=State.WARN,
            subject=f"{node} {rail}",
            devices=tuple(dict.fromkeys(a.leaf.device for a in found[:4])),
            title=f"{len(found)} adapters have this name: on {places}" + (", ..." if len(found) > 4 else ""),
            consequence=f"the cabling of {node} is not judged",
            evidence=evidence(*(a.link for a in found))[:4],
            rule="a host and device name belongs to one adapter",
            fix="set the host name on each of these nodes and restart rdma-ndd",
        )


@check("fabric.unnamed-adapters", severity=State.NOTE, reads=READS)
def unnamed_adapters(context: Context) -> Iterator[Finding]:
    """Adapters announce no host name.

    Looks at:
        Descriptions of adapters on a switch that are not `HOSTNAME DEVICE`; the firmware's own is the product's name.

    Why it matters:
        Their nodes are not known, so their cables are not compared with those of other nodes.

    Fix:
        Start `rdma-ndd` (rdma-core) on these nodes; it sets the description.

    Does not apply:
        Where every adapter announces its host.
    """
    tiers = tiers_in(context)
    found = [a for a in tiers.attachments if not a.node]
    if found:
        yield Finding(
            state=State.NOTE,
            subject="fabric",
            title=f"{len(found)} of {len(tiers.attachments)} adapters announce no host name, the first on "
            f"{port(tiers, found[0].leaf)}",
            consequence="the cabling of their nodes is not judged",
            evidence=evidence(*(a.link for a in found[:2])) or (Evidence(", ".join(tiers.fabric.sources), ""),),
            rule="an adapter announces HOSTNAME DEVICE",
            fix="start rdma-ndd on these nodes",
        )


@check("fabric.wrong-name", severity=State.WARN, reads=READS)
def wrong_name(context: Context) -> Iterator[Finding]:
    """An adapter announces another host than the one that has it.

    Looks at:
        The description of each adapter in the dump, and the host whose recording has an adapter with its GUID.

    Why it matters:
        Tools that go by descriptions (`ibnetdiscover`, the subnet manager's log, UFM) send people to the wrong node.

    Fix:
        Restart `rdma-ndd` on the node, or write `HOSTNAME DEVICE` to `/sys/class/infiniband/DEVICE/node_desc`.

    Does not apply:
        Without recordings of the nodes.
    """
    tiers = tiers_in(context)
    for r in joined_in(context).renamed:
        p = r.port
        yield Finding(
            state=State.WARN,
            subject=f"{p.node} {p.adapter}",
            devices=(r.device,),
            title=f"announces itself as {r.announced}",
            consequence="tools that go by descriptions name the wrong node",
            evidence=(
                Evidence(tiers.fabric.devices[r.device].source, f"{r.device} {r.announced}"),
                Evidence(f"{p.node}: /sys/class/infiniband/{p.adapter}/node_guid", r.device),
            ),
            rule="an adapter announces HOSTNAME DEVICE of its own host",
            fix="restart rdma-ndd on the node",
        )


@check("fabric.not-in-dump", severity=State.WARN, reads=READS)
def not_in_dump(context: Context) -> Iterator[Finding]:
    """A node has an active port that the dump of the fabric does not show.

    Looks at:
        The active ports in recordings of nodes, of the link layer of the dump, against its GUIDs.

    Why it matters:
        The port is on another fabric, the cable was moved between the recording and the dump, or the dump is not
        complete.

    Fix:
        Compare the port's subnet prefix and subnet manager with those of the node's other ports (`ibstat`,
        `sminfo`); take dump and recording again.

    Does not apply:
        Without recordings, or where none of their ports is in the dump.
    """
    tiers = tiers_in(context)
    joined = joined_in(context)
    if not joined.ports:
        raise not_applicable("no port of the snapshots is in the dump")
    for p in joined.missing:
        yield Finding(
            state=State.WARN,
            subject=f"{p.node} {p.adapter}",
            title=f"port {p.port} is active and not in the dump",
            consequence="the port is on another fabric, or one of the two was taken at another time",
            evidence=(
                Evidence(f"{p.node}: /sys/class/infiniband/{p.adapter}/node_guid", ", ".join(p.guids)),
                Evidence(", ".join(tiers.fabric.sources), "no such GUID"),
            ),
            rule="every active port of a node is in the dump of its fabric",
            fix="compare its subnet prefix with that of the node's other ports; take both again",
        )
