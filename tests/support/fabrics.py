"""Described fabrics, written as `ibnetdiscover` and ibdiagnet's net dump write them. Imports nothing of topocheck."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

MTU = 4096


@dataclass
class Made:
    """A fabric: devices by name, and links between (name, port).

    Names begin with `n` for an adapter (`nPOD.NODE.RAIL`), `leaf`, `spine`, `core` or `r` for a router of a dragonfly.
    """

    devices: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """name -> (kind S or H, description, ports)"""
    links: list[tuple[str, int, str, int, str]] = field(default_factory=list)
    """(name, port, name, port, rate); a rate such as `4xNDR`, or `4xNDR/2xNDR` where the ends differ"""
    mtu: dict[str, int] = field(default_factory=dict)
    """bytes, of switches that have another than the rest"""

    def text(self) -> str:
        """As `ibnetdiscover` prints it."""
        guids = {name: f"{n:016x}" for n, name in enumerate(self.devices, 1)}
        ends: dict[str, list[tuple[int, str, int, str]]] = {name: [] for name in self.devices}
        for a, pa, b, pb, rate in self.links:
            ends[a].append((pa, b, pb, rate.partition("/")[0]))
            ends[b].append((pb, a, pa, rate.rpartition("/")[2]))
        out = ["#", "# Topology file: generated on Mon Nov 23 10:00:00 2026", "#", "# Initiated from node x port y", ""]
        for name, (kind, description, ports) in self.devices.items():
            word, key = ("Switch", "switchguid") if kind == "S" else ("Ca", "caguid")
            out += ["vendid=0x2c9", "devid=0xd2f2", f"sysimgguid=0x{guids[name]}"]
            if kind == "S":
                out.append(f"{key}=0x{guids[name]}({guids[name]})")
                out.append(f'{word}\t{ports} "S-{guids[name]}"\t\t# "{description}" enhanced port 0 lid 7 lmc 0')
            else:
                out.append(f"{key}=0x{guids[name]}")
                out.append(f'{word}\t{ports} "H-{guids[name]}"\t\t# "{description}"')
            for port, other, other_port, rate in sorted(ends[name]):
                letter = self.devices[other][0]
                there = f'"{letter}-{guids[other]}"[{other_port}]'
                description = self.devices[other][1]
                if kind == "S":
                    own = f"({guids[other]})" if letter == "H" else ""
                    out.append(f'[{port}]\t{there}{own} \t\t# "{description}" lid 9 {rate}')
                else:
                    out.append(f'[{port}]({guids[name]}) \t{there}\t\t# lid 9 lmc 0 "{description}" lid 7 {rate}')
            out.append("")
        return "\n".join(out)

    def db_csv(self) -> str:
        """As ibdiagnet writes its tables: LinkWidthActv 2 for 4x, 16 for 2x; NMTU 5 for 4096 bytes, 4 for 2048."""
        guids = {name: f"0x{n:016x}" for n, name in enumerate(self.devices, 1)}
        speeds = {"EDR": 512, "HDR": 1024, "NDR": 2048}
        out = ["START_NODES", "NodeDesc,NumPorts,NodeType,SystemImageGUID,NodeGUID,PortGUID"]
        for name, (kind, description, ports) in self.devices.items():
            node_type = 2 if kind == "S" else 1
            out.append(f'"{description}",{ports},{node_type},{guids[name]},{guids[name]},{guids[name]}')
        out += ["END_NODES", "", "START_PORTS", "NodeGuid,PortGuid,PortNum,LinkWidthActv,LinkSpeedActv,NMTU"]
        links = ["START_LINKS", "NodeGuid1,PortNum1,NodeGuid2,PortNum2"]
        for a, pa, b, pb, rate in self.links:
            mtu = min(self.mtu.get(a, MTU), self.mtu.get(b, MTU))
            for name, port, shown in ((a, pa, rate.partition("/")[0]), (b, pb, rate.rpartition("/")[2])):
                width, _, speed = shown.partition("x")
                active = {"4": 2, "2": 16, "1": 1}[width]
                nmtu = {2048: 4, 4096: 5}[mtu]
                out.append(f"{guids[name]},{guids[name]},{port},{active},{speeds[speed]},{nmtu}")
            links.append(f"{guids[a]},{pa},{guids[b]},{pb}")
        return "\n".join([*out, "END_PORTS", "", *links, "END_LINKS", ""])

    def _lines(self) -> list[tuple[str, int, str, int, str]]:
        """Both ends of each link: (device, port, other device, its port, rate), by device and port."""
        out = [(*x[:4], x[4].partition("/")[0]) for x in self.links]
        out += [(x[2], x[3], x[0], x[1], x[4].rpartition("/")[2]) for x in self.links]
        places = {name: i for i, name in enumerate(self.devices)}
        return sorted(out, key=lambda x: (places[x[0]], x[1]))

    def ports(self) -> str:
        """As `ibnetdiscover -p` prints it (dump_ports_report)."""
        number = {name: n for n, name in enumerate(self.devices, 1)}

        def end(name: str, port: int) -> str:
            kind = "SW" if self.devices[name][0] == "S" else "CA"
            return f"{kind:>2} {number[name]:5d} {port:2d} 0x{number[name]:016x}"

        names = {name: x[1] for name, x in self.devices.items()}
        return "".join(
            f"{end(a, pa)} {rate.replace('x', 'x ')} - {end(b, pb)} ( '{names[a]}' - '{names[b]}' )\n"
            for a, pa, b, pb, rate in self._lines()
        )

    def iblinkinfo(self, *, line: bool = False, could: dict[tuple[str, int], str] | None = None) -> str:
        """As `iblinkinfo` prints it, or `iblinkinfo -l` (print_port); switches also show a port that is down."""
        number = {name: n for n, name in enumerate(self.devices, 1)}
        lanes = {"EDR": "25.78125", "HDR": "53.125", "NDR": "106.25"}
        out, last = [], ""
        for a, pa, b, pb, rate in self._lines():
            kind, description, ports = self.devices[a]
            width, _, speed = rate.partition("x")
            state = f"({width + 'X':>3} {lanes[speed] + ' Gbps':>18} {'Active':>6}/{'LinkUp':>8})"
            note = (could or {}).get((a, pa), "")
            far_guid = f"0x{number[b]:016x} " if line else ""
            far = f'{far_guid}{number[b]:6d} {pb:4d}[  ] "{self.devices[b][1]}" ({note} )'
            begins = f'0x{number[a]:016x} "{description:>30}" ' if line else "      "
            if a != last and not line:
                guid = f" 0x{number[a]:016x}" if kind == "S" else ""
                out.append(f"{'Switch' if kind == 'S' else 'CA'}:{guid} {description}:")
            if a != last and kind == "S":
                down = f"({' ':14}{'Down':>6}/{'Polling':>8})"
                out.append(f'{begins}{number[a]:6d} {ports:4d}[  ] =={down}==>             [  ] "" ( )')
            last = a
            own = f"0x{number[a]:016x} " if kind == "H" and not line else ""
            out.append(f"{begins}{own}{number[a]:6d} {pa:4d}[  ] =={state}==>  {far}")
        return "\n".join([*out, ""])

    def copy(self) -> Made:
        return copy.deepcopy(self)

    def of(self, *prefixes: str) -> list[int]:
        """Return the places of the links whose first end begins with one of these."""
        return [i for i, x in enumerate(self.links) if x[0].startswith(prefixes)]

    def described(self, i: int) -> tuple[str, str]:
        """Return the descriptions of both ends of a link."""
        return self.devices[self.links[i][0]][1], self.devices[self.links[i][2]][1]


def rail_pods(pods: int, nodes: int, rails: int, spines: int, *, each: int = 1, rate: str = "4xNDR") -> Made:
    """Pods of `nodes` nodes; adapter i of each on leaf i of its pod; every leaf on every spine by `each` cables."""
    made = Made()
    for s in range(spines):
        made.devices[f"spine{s}"] = ("S", f"spine-{s}", 129)
    for p in range(pods):
        for r in range(rails):
            leaf = f"leaf{p}.{r}"
            made.devices[leaf] = ("S", f"leaf-{p}-{r}", 129)
            for s in range(spines):
                for e in range(each):
                    made.links.append((leaf, 65 + s * each + e, f"spine{s}", 1 + (p * rails + r) * each + e, rate))
        for n in range(nodes):
            for r in range(rails):
                hca = f"n{p}.{n}.{r}"
                made.devices[hca] = ("H", f"gpu{p * nodes + n:04d} mlx5_{r}", 1)
                made.links.append((hca, 1, f"leaf{p}.{r}", 1 + n, rate))
    return made


def fat_tree(leaves: int, nodes: int, spines: int, *, each: int = 1, rate: str = "4xHDR") -> Made:
    """Leaves with `nodes` nodes of one adapter each; every leaf on every spine by `each` cables."""
    made = Made()
    for s in range(spines):
        made.devices[f"spine{s}"] = ("S", f"spine-{s}", 41)
    for i in range(leaves):
        made.devices[f"leaf{i}"] = ("S", f"leaf-{i}", 41)
        for s in range(spines):
            for e in range(each):
                made.links.append((f"leaf{i}", 21 + s * each + e, f"spine{s}", 1 + i * each + e, rate))
        for n in range(nodes):
            made.devices[f"n{i}.{n}"] = ("H", f"cn{i * nodes + n:04d} mlx5_0", 1)
            made.links.append((f"n{i}.{n}", 1, f"leaf{i}", 1 + n, rate))
    return made


def three_tiers(pods: int, leaves: int, nodes: int, spines: int, cores: int, *, rate: str = "4xHDR") -> Made:
    """Pods of leaves and spines, fully joined inside; spine i of each pod on the `cores` core switches of group i."""
    made = Made()
    for s in range(spines):
        for c in range(cores):
            made.devices[f"core{s}.{c}"] = ("S", f"core-{s}-{c}", 64)
    for p in range(pods):
        for s in range(spines):
            made.devices[f"spine{p}.{s}"] = ("S", f"spine-{p}-{s}", 64)
            for c in range(cores):
                made.links.append((f"spine{p}.{s}", 33 + c, f"core{s}.{c}", 1 + p, rate))
        for i in range(leaves):
            leaf = f"leaf{p}.{i}"
            made.devices[leaf] = ("S", f"leaf-{p}-{i}", 64)
            for s in range(spines):
                made.links.append((leaf, 33 + s, f"spine{p}.{s}", 1 + i, rate))
            for n in range(nodes):
                hca = f"n{p}.{i}.{n}"
                made.devices[hca] = ("H", f"cn{(p * leaves + i) * nodes + n:04d} mlx5_0", 1)
                made.links.append((hca, 1, leaf, 1 + n, rate))
    return made


def dragonfly(groups: int, routers: int, nodes: int, rate: str = "4xHDR") -> Made:
    """Groups of fully joined routers with nodes on each; one cable between every two groups."""
    made = Made()
    used: dict[str, int] = {}

    def port(name: str) -> int:
        used[name] = used.get(name, nodes) + 1
        return used[name]

    for g in range(groups):
        for r in range(routers):
            made.devices[f"r{g}.{r}"] = ("S", f"router-{g}-{r}", 64)
    for g in range(groups):
        for r in range(routers):
            for other in range(r):
                a, b = f"r{g}.{r}", f"r{g}.{other}"
                made.links.append((a, port(a), b, port(b), rate))
            for n in range(nodes):
                hca = f"n{g}.{r}.{n}"
                made.devices[hca] = ("H", f"cn{(g * routers + r) * nodes + n:04d} mlx5_0", 1)
                made.links.append((hca, 1, f"r{g}.{r}", 1 + n, rate))
        for h in range(g):
            a, b = f"r{g}.{h % routers}", f"r{h}.{g % routers}"
            made.links.append((a, port(a), b, port(b), rate))
    return made
