"""Topology files of invented machines, in the words of NCCL's dialect."""

from __future__ import annotations

from topocheck.nccl.predict.types import HostInput
from topocheck.nccl.topofile.xml import parse_topology

INTEL = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'
OLD_INTEL = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79"'
AMD = 'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17"'
ARM = 'arch="arm64"'
G3, G4, G5 = "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe"


def gpu(bus: str, dev: int, sm: int, inside: str = "", speed: str = G4, width: int = 16, gdr: int = 1) -> str:
    """A GPU on a PCIe link."""
    return (
        f'<pci busid="{bus}" class="0x030200" link_speed="{speed}" link_width="{width}">'
        f'<gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="{gdr}">{inside}</gpu></pci>'
    )


def nic(bus: str, name: str, dev: int, mbit: int, gdr: int = 1, speed: str = G5) -> str:
    """A NIC on a PCIe link."""
    return (
        f'<pci busid="{bus}" class="0x020700" link_speed="{speed}" link_width="16"><nic>'
        f'<net name="{name}" dev="{dev}" speed="{mbit}" port="1" gdr="{gdr}"/></nic></pci>'
    )


def switch(bus: str, *inside: str, speed: str = G4, ids: str = "") -> str:
    """A PCIe switch."""
    return f'<pci busid="{bus}" class="0x060400" {ids}link_speed="{speed}" link_width="16">{"".join(inside)}</pci>'


def cpu(numa: int, kind: str, *inside: str) -> str:
    """A CPU node."""
    return f'<cpu numaid="{numa}" {kind}>{"".join(inside)}</cpu>'


def system(*cpus: str) -> str:
    """A whole file."""
    return f'<system version="1">{"".join(cpus)}</system>'


def host(text: str, **rest: object) -> HostInput:
    """A host with that topology; what is not given counts as yes unless `assume` says otherwise."""
    fields: dict[str, object] = {"name": "node", "assume": True} | rest
    return HostInput(topology=parse_topology(text).root, **fields)  # type: ignore[arg-type]


def eight_pcie_gpus(kind: str, sm: int = 80, speed: str = G4) -> str:
    """Eight GPUs, four straight on the host bridges of each of two sockets, a NIC on each."""
    cpus = []
    for socket in range(2):
        cards = [gpu(f"0000:{socket * 8 + 1 + i:x}1:00.0", socket * 4 + i, sm, speed=speed) for i in range(4)]
        cpus.append(cpu(socket, kind, *cards, nic(f"0000:{socket * 8 + 6:x}1:00.0", f"mlx5_{socket}", socket, 100000)))
    return system(*cpus)


def hgx_h100(kind: str = INTEL, nic_gdr: int = 1) -> str:
    """Eight H100 with an NVSwitch and a 400 Gb/s NIC each, both under one switch; four pairs a socket."""
    links = '<nvlink target="0000:c0:00.0" count="18" tclass="0x068000"/>'
    cpus = []
    for socket in range(2):
        pairs = []
        for i in range(4):
            n = socket * 4 + i
            g = gpu(f"0000:{n + 1:x}3:00.0", n, 90, links, speed=G5)
            pairs.append(
                switch(
                    f"0000:{n + 1:x}0:00.0", g, nic(f"0000:{n + 1:x}4:00.0", f"mlx5_{n}", n, 400000, nic_gdr), speed=G5
                )
            )
        cpus.append(cpu(socket, kind, *pairs))
    return system(*cpus)


def dgx1v() -> str:
    """Eight V100 as in DGX-1: a hybrid cube mesh of NVLinks, four switches with two GPUs and a NIC each.

    Links per pair as nvidia-smi shows them on that machine: 2 where the list says so, else 1.
    """
    joined = {
        (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
        (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    }  # fmt: skip
    bus = [f"0000:{0x06 + n:02x}:00.0" for n in range(8)]

    def links(n: int) -> str:
        peers = {b if a == n else a: c for (a, b), c in joined.items() if n in (a, b)}
        return "".join(f'<nvlink target="{bus[p]}" count="{c}" tclass="0x030200"/>' for p, c in sorted(peers.items()))

    def card(n: int) -> str:
        return gpu(bus[n], n, 70, links(n), speed=G3)

    cpus = []
    for socket in range(2):
        boards = []
        for k in (0, 2):
            n = socket * 4 + k
            card_nic = nic(f"0000:{0x20 + n:02x}:00.0", f"mlx5_{n // 2}", n // 2, 100000, speed=G3)
            boards.append(switch(f"0000:{0x30 + n:02x}:00.0", card(n), card(n + 1), card_nic, speed=G3))
        cpus.append(cpu(socket, OLD_INTEL, *boards))
    return system(*cpus)


def two_gpus(vendor: str) -> str:
    """Return the topology of a host of one CPU with two GPUs below it."""
    return system(cpu(0, vendor, gpu("0000:00:06.0", 0, 90), gpu("0000:00:07.0", 1, 90)))
