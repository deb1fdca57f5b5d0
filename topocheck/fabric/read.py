"""Reads dumps of a fabric, whatever program wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from topocheck.fabric import (
    ib_ports,
    ibdiagnet,
    ibdiagnet_text,
    ibnetdiscover,
    lldp,
    lldp_detail,
    lldp_tables,
    saquery,
    slurm,
    ufm,
)
from topocheck.model.base import InputError
from topocheck.model.fabric import Fabric

MAX_BYTES = 256 << 20
"""A fabric of 20,000 ports is 3 MiB as ibnetdiscover writes it."""

READERS: tuple[tuple[str, Callable[[str], bool], Callable[[str, str], Fabric]], ...] = (
    ("ibnetdiscover", ibnetdiscover.recognise, ibnetdiscover.parse),
    ("ibnetdiscover -p", ib_ports.recognise_ports, ib_ports.parse_ports),
    ("iblinkinfo", ib_ports.recognise_links, ib_ports.parse_links),
    ("ibdiagnet (db_csv)", ibdiagnet.recognise, ibdiagnet.parse),
    ("ibdiagnet (lst, net_dump)", ibdiagnet_text.recognise, ibdiagnet_text.parse),
    ("saquery, sminfo", saquery.recognise, saquery.parse),
    ("UFM's REST API (links, ports, systems)", ufm.recognise, ufm.parse),
    ("lldpctl -f json (also json0)", lldp.recognise_json, lldp.parse_json),
    ("lldpctl (also -f keyvalue)", lldp.recognise_text, lldp.parse_text),
    ("LLDP details of switches", lldp_detail.recognise, lldp_detail.parse),
    ("networkctl lldp and LLDP tables of switches", lldp_tables.recognise, lldp_tables.parse),
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
    text, read = _reader(data, name)
    return read(text, name)


def parse_all(files: Iterable[tuple[bytes, str]]) -> list[Fabric]:
    """Return the fabrics in dumps, (content, name) each; records of several `saquery` runs are one.

    Raises:
        InputError: one is of no known form.
    """
    out, records = [], []
    for data, name in files:
        text, read = _reader(data, name)
        if read is saquery.parse:
            records.append((text, name))
        else:
            out.append(read(text, name))
    return out + ([saquery.parse_together(records)] if records else [])


def _reader(data: bytes, name: str) -> tuple[str, Callable[[str, str], Fabric]]:
    text = data.decode("utf-8", "replace")
    for _, recognise, read in READERS:
        if recognise(text):
            return text, read
    raise InputError(f"{name}: not a dump of a fabric; understood is the output of {KNOWN}")
