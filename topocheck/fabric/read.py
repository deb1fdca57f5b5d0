"""Reads dumps of a fabric, whatever program wrote them, and puts several together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topocheck.fabric import ib_ports, ibdiagnet, ibnetdiscover, lldp, slurm
from topocheck.model.base import InputError
from topocheck.model.fabric import Fabric, FabricDevice, Protocol

MAX_BYTES = 256 << 20
"""A fabric of 20,000 ports is 3 MiB as ibnetdiscover writes it."""

READERS: tuple[tuple[str, Callable[[str], bool], Callable[[str, str], Fabric]], ...] = (
    ("ibnetdiscover", ibnetdiscover.recognise, ibnetdiscover.parse),
    ("ibnetdiscover -p", ib_ports.recognise_ports, ib_ports.parse_ports),
    ("iblinkinfo", ib_ports.recognise_links, ib_ports.parse_links),
    ("ibdiagnet (db_csv)", ibdiagnet.recognise, ibdiagnet.parse),
    ("lldpctl -f json", lldp.recognise_json, lldp.parse_json),
    ("networkctl lldp", lldp.recognise_text, lldp.parse_text),
    ("Slurm (topology.conf, topology.yaml, scontrol show topology)", slurm.recognise, slurm.parse),
)
"""Name of the program, whether a text is its output, and what it says."""
KNOWN = ", ".join(program for program, _, _ in READERS)


def parse(data: bytes, name: str) -> Fabric:
    """Return the fabric in a dump.

    Args:
        data: content of the file; bytes that are not UTF-8 are replaced.
        name: of the file, for messages and evidence.

    Raises:
        InputError: it is of no known form.
    """
    text = data.decode("utf-8", "replace")
    for _, recognise, read in READERS:
        if recognise(text):
            return read(text, name)
    raise InputError(f"{name}: not a dump of a fabric; understood is the output of {KNOWN}")


def merge(fabrics: Sequence[Fabric]) -> Fabric:
    """Return several dumps as one fabric; what two of them describe stays as in the first.

    It is whole where one of them is: views of single nodes add to it.
    """
    if len(fabrics) == 1:
        return fabrics[0]
    devices: dict[str, FabricDevice] = {}
    for f in fabrics:
        devices = f.devices | devices
    links = {(x.a, x.b): x for f in reversed(fabrics) for x in f.links}
    protocols = {f.protocol for f in fabrics}
    ends = {e.device for pair in links for e in pair}
    return Fabric(
        protocol=protocols.pop() if len(protocols) == 1 else Protocol.UNKNOWN,
        devices=devices,
        links=tuple(links[pair] for pair in sorted(links)),
        down=tuple(p for f in fabrics for p in f.down),
        whole=any(f.whole for f in fabrics),
        dangling=tuple(sorted(ends - devices.keys())),
        problems=tuple(p for f in fabrics for p in f.problems),
        sources=tuple(s for f in fabrics for s in f.sources),
    )
