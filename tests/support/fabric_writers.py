"""Described fabrics (tests/support/fabrics.py) as UFM's REST API and `saquery` show them. Imports nothing of topocheck.

UFM names a port by its GUID, which of an adapter is not the node's; `PORT` is added for it here.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.fabrics import MTU, Made

PORT = 0x1000000
LANES = {"EDR": "25.78125 Gbps", "HDR": "53.125 Gbps", "NDR": "106.25 Gbps"}
"""libibmad's mad_dump_linkspeedext."""


def _name(made: Made, device: str) -> str:
    number = list(made.devices).index(device) + 1
    return f"{number + (PORT if made.devices[device][0] == 'H' else 0):016x}"


def ufm_links(made: Made) -> str:
    """As GET /ufmRest/resources/links (NVIDIA UFM Enterprise REST API Guide 6.20, "Links REST API")."""
    out = []
    for a, pa, b, pb, rate in made.links:
        entry: dict[str, Any] = {"severity": "Info", "width": rate.partition("x")[0] + "x", "capabilities": []}
        for side, device, port in (("source", a, pa), ("destination", b, pb)):
            kind, description, _ = made.devices[device]
            label = f"1/{port}/1" if kind == "S" else "HCA-1/1"
            entry |= {
                f"{side}_guid": _name(made, device) if kind == "S" else f"{'f':0>16}",
                f"{side}_port": str(port),
                f"{side}_port_dname": label,
                f"{side}_port_name": f"{_name(made, device)}_{port}",
                f"{side}_port_node_description": f"{description}:{label}" if kind == "S" else description,
            }
        entry["name"] = f"{entry['source_port_name']}:{entry['destination_port_name']}"
        out.append(entry)
    return json.dumps(out)


def ufm_ports(made: Made) -> str:
    """As GET /ufmRest/resources/ports (the same guide); each switch also shows a port that is down."""
    out = []
    for a, pa, b, pb, rate in made._lines():
        kind, description, _ = made.devices[a]
        width, _, speed = rate.partition("x")
        mtu = min(made.mtu.get(a, MTU), made.mtu.get(b, MTU))
        out.append(
            {
                "description": "Switch IB Port" if kind == "S" else "Computer IB Port",
                "number": pa, "external_number": pa, "physical_state": "Link Up", "logical_state": "Active",
                "lid": list(made.devices).index(a) + 1, "mtu": mtu, "active_speed": speed, "active_width": f"{width}x",
                "dname": str(pa), "peer_node_name": made.devices[b][1].partition(" ")[0],
                "peer": f"{_name(made, b)}_{pb}", "peer_port_dname": str(pb), "peer_node_guid": _name(made, b),
                "node_description": f"{description}:{pa}" if kind == "S" else description,
                "name": f"{_name(made, a)}_{pa}", "guid": _name(made, a), "systemID": _name(made, a),
                "system_name": description.partition(" ")[0],
            }
        )  # fmt: skip
    for device, (kind, description, ports) in made.devices.items():
        if kind == "S":
            out.append(
                {
                    "description": "Switch IB Port", "number": ports, "physical_state": "Polling",
                    "logical_state": "Down", "mtu": MTU, "active_speed": None, "active_width": None,
                    "dname": str(ports), "peer": "N/A", "peer_port_dname": "N/A", "peer_node_guid": "N/A",
                    "node_description": f"{description}:{ports}", "name": f"{_name(made, device)}_{ports}",
                }
            )  # fmt: skip
    return json.dumps(out)


def saquery_nodes(made: Made) -> str:
    """As `saquery NR` (dump_node_record of rdma-core's infiniband-diags/saquery.c)."""
    return "".join(
        f"NodeRecord dump:\n\t\tlid.....................{n}\n\t\treserved................0x0\n"
        f"\t\tnode_type...............{'Switch' if kind == 'S' else 'Channel Adapter'}\n"
        f"\t\tnum_ports...............{ports}\n\t\tnode_guid...............0x{n:016x}\n"
        f"\t\tport_guid...............0x{n:016x}\n\t\tNodeDescription.........{description}\n"
        for n, (kind, description, ports) in enumerate(made.devices.values(), 1)
    )


def saquery_links(made: Made) -> str:
    """As `saquery LR` (dump_one_link_record of the same file)."""
    number = {name: n for n, name in enumerate(made.devices, 1)}
    return "".join(
        f"LinkRecord dump:\n\t\tFromLID....................{number[a]}\n\t\tFromPort...................{pa}\n"
        f"\t\tToPort.....................{pb}\n\t\tToLID......................{number[b]}\n"
        for a, pa, b, pb, _ in made._lines()
    )


def saquery_ports(made: Made) -> str:
    """As `saquery PIR` (dump_one_portinfo_record, and libibmad's mad_dump_fields)."""
    number = {name: n for n, name in enumerate(made.devices, 1)}
    out = []
    for a, pa, _, _, rate in made._lines():
        width, _, speed = rate.partition("x")
        out.append(
            f"PortInfoRecord dump:\n\tRID\n\t\tEndPortLid..............{number[a]}\n"
            f"\t\tPortNum.................{pa}\n\t\tOptions.................0x0\n\tPortInfo dump:\n"
            f"\t\tLinkWidthActive:................{width}X\n".replace(":.", "..")
            + "\t\tLinkState.......................Active\n\t\tPhysLinkState...................LinkUp\n"
            f"\t\tLinkSpeedActive.................10.0 Gbps\n\t\tLinkSpeedExtActive..............{LANES[speed]}\n"
            f"\t\tNeighborMTU.....................{MTU}\n"
        )
    return "".join(out)


SMINFO = "sminfo: sm lid 1 sm guid 0x1, activity count 2385 priority 14 state 3 SMINFO_MASTER\n"
"""infiniband-diags/src/sminfo.c."""


def lst(made: Made) -> str:
    """As ibdiagnet writes its list of links (ibdiagnet2.lst)."""
    lanes = {"EDR": "25", "HDR": "50", "NDR": "100"}
    number = {name: n for n, name in enumerate(made.devices, 1)}

    def end(device: str, port: int) -> str:
        kind, description, ports = made.devices[device]
        guid = f"{number[device]:016x}"
        return (
            f"{{ {'SW' if kind == 'S' else 'CA'} Ports:{ports:02x} SystemGUID:{guid} NodeGUID:{guid} PortGUID:{guid} "
            f"VenID:000002C9 DevID:0000D2F2 Rev:000000A0 {{{description}}} LID:{number[device]:04X} PN:{port:02X} }}"
        )

    out = []
    for a, pa, b, pb, rate in made.links:
        width, _, speed = rate.partition("/")[0].partition("x")
        out.append(f"{end(a, pa)} {end(b, pb)} PHY={width}x LOG=ACT SPD={lanes[speed]}\n")
    return "".join(out)


def net_dump(made: Made) -> str:
    """As ibdiagnet writes the ports of switches (ibdiagnet2.net_dump); each also shows a port that is down."""
    lanes = {"EDR": "25", "HDR": "50", "NDR": "100"}
    codes = {2048: 4, 4096: 5}
    number = {name: n for n, name in enumerate(made.devices, 1)}
    out = ["# This database file was automatically generated by ibdiagnet"]
    last = ""
    for a, pa, b, pb, rate in made._lines():
        kind, description, ports = made.devices[a]
        if kind != "S":
            continue
        if a != last:
            out.append(f'"{description}", Mellanox, 0x{number[a]:016x}, LID {number[a]}')
            out.append(
                "    # : IB# : Sta : PhysSta : MTU : LWA : LSA : FEC mode : Retran : Neighbor Guid      : N# : NLID : "
                "Neighbor Description"
            )
            out.append(f"{ports} : {ports} : DOWN : POLLING : N/A : N/A : N/A : N/A : N/A : : : :")
        last = a
        width, _, speed = rate.partition("x")
        mtu = codes[min(made.mtu.get(a, MTU), made.mtu.get(b, MTU))]
        out.append(
            f"{pa} : {pa} : ACT : LINK UP : {mtu} : {width}x : {lanes[speed]} : RS : NO-RTR : 0x{number[b]:016x} : "
            f'{pb} : {number[b]} : "{made.devices[b][1]}"'
        )
    return "\n".join([*out, ""])
