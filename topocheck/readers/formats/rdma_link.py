"""Text of `rdma link` (iproute2) and of `ibdev2netdev` and its `-v` (OFED): which interface is which RDMA port."""

from __future__ import annotations

import re

from topocheck.model.address import normalize_address
from topocheck.readers import rdma_answers as rdma
from topocheck.readers.base import Answers, Reader, numbered

_NAME = r"([\w.\-]{1,64})"
_LINK = re.compile(rf"(?:[0-9]+: )?link {_NAME}/([0-9]{{1,3}}) (.*)")
_IBDEV = re.compile(
    rf"(?:([0-9a-f]{{4,8}}:[0-9a-f]{{2}}:[0-9a-f]{{2}}\.[0-7])\s+{_NAME}\s+(?:\(.*?\)\s+)?(?:.*\s)?|{_NAME}\s+)"
    rf"port\s+([0-9]{{1,3}})\s+(?:\(\s*(\w+)\s*\)\s+)?==>\s+{_NAME}\s+\((Up|Down)\)"
)


def recognise(text: str) -> bool:
    """Tell whether a line of either stands in the text."""
    pattern = (
        rf"^(?:(?:[0-9]+: )?link {_NAME}/[0-9]{{1,3}} (?:.* )?state [A-Z]|.{{0,200}}port +[0-9]{{1,3}} .{{0,40}}==> )"
    )
    return re.search(pattern, text, re.M) is not None


def read(text: str) -> Answers:
    """Return the devices, the state of their ports, their interfaces, and PCI functions where they stand there."""
    found = Answers()
    ports: dict[str, set[str]] = {}
    netdevs: dict[str, list[str]] = {}
    first = 0
    for at, line in numbered(text):
        if m := _LINK.match(line.strip()):
            words = m[3].split()
            said = dict(zip(words[::2], words[1::2], strict=False))
            device, number = m[1], int(m[2])
            rdma.state(found, at, device, number, said.get("state", ""))
            rdma.physical(found, at, device, number, said.get("physical_state", ""))
            netdev = said.get("netdev", "")
        elif m := _IBDEV.match(line.strip()):
            device, number, netdev = m[2] or m[3], int(m[4]), m[6]
            if m[5]:
                rdma.state(found, at, device, number, m[5])
            if m[1] and (address := normalize_address(m[1])):
                rdma.address(found, at, device, address)
        else:
            continue
        first = first or at
        ports.setdefault(device, set()).add(str(number))
        if netdev:
            netdevs.setdefault(device, []).append(netdev)
        if len(ports) > 1 << 10:
            break
    found.names(first or 1, rdma.CLASS, list(ports), whole=True)
    for device, numbers in ports.items():
        found.put(first, sorted(numbers, key=int), "list", f"{rdma.CLASS}/{device}/ports")
        if device in netdevs:
            found.names(first, f"{rdma.CLASS}/{device}/device/net", netdevs[device], whole=False)
    return found


READER = Reader(
    name="rdma link, ibdev2netdev -v", tells="RDMA ports and their interfaces", recognise=recognise, read=read
)
