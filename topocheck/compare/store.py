"""Nodes one after the other, kept small: what is equal on many nodes is kept once.

A node that is like others costs about a kilobyte; each new fingerprint a few more, compressed.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from topocheck.compare.types import JobFacts, NodeFacts, NodeFinding, RailPort, Value

T = TypeVar("T")
PackedDevices = dict[str, tuple[Value, ...]]
_DEVICES = msgspec.msgpack.Decoder(PackedDevices)


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A node on its way from the process that read it; `devices` are packed, see `NodeFacts` for the rest."""

    name: str
    file: str
    taken_at: str
    hardware_type: str
    gpu_model: str
    devices: bytes
    addresses: dict[str, str]
    approximate: dict[str, float]
    identifiers: dict[str, str]
    rails: tuple[RailPort, ...]
    findings: tuple[NodeFinding, ...]
    fingerprint: str
    nvlink_domain: str = ""
    renamed: bool = False
    job: JobFacts = JobFacts()
    untold: tuple[str, ...] = ()
    bonds: dict[str, tuple[str, ...]] = {}


def row(facts: NodeFacts) -> Row:
    """Return a node in the form that is kept and sent between processes."""
    return Row(
        facts.name, facts.file, facts.taken_at, facts.hardware_type, facts.gpu_model,
        zlib.compress(msgspec.msgpack.encode(facts.devices), 1),
        facts.addresses, facts.approximate, facts.identifiers, facts.rails, facts.findings,
        facts.fingerprint, facts.nvlink_domain, facts.renamed, facts.job, facts.untold, facts.bonds,
    )  # fmt: skip


def unpack(devices: bytes) -> PackedDevices:
    """Return the devices of a Row."""
    return _DEVICES.decode(zlib.decompress(devices))


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One node as kept: its findings and devices stand in the collection."""

    name: str
    file: str
    taken_at: str
    hardware_type: str
    gpu_model: str
    fingerprint: str
    addresses: Mapping[str, str]
    approximate: Mapping[str, float]
    identifiers: Mapping[str, str]
    rails: tuple[RailPort, ...]
    nvlink_domain: str = ""
    renamed: bool = False
    job: JobFacts = JobFacts()
    untold: tuple[str, ...] = ()
    bonds: Mapping[str, tuple[str, ...]] = {}


class Collection:
    """All nodes read so far. `add` them in any order; what is made of them does not depend on it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.devices: dict[str, bytes] = {}
        """Fingerprint -> packed devices."""
        self.findings: dict[NodeFinding, list[int]] = {}
        """Finding -> positions of the nodes that have it."""
        self._same: dict[object, object] = {}

    def add(self, node: Row | NodeFacts) -> None:
        """Take one node."""
        r = node if isinstance(node, Row) else row(node)
        self.devices.setdefault(r.fingerprint, r.devices)
        for f in r.findings:
            self.findings.setdefault(f, []).append(len(self.entries))
        self.entries.append(
            Entry(
                name=r.name,
                file=r.file,
                taken_at=r.taken_at,
                hardware_type=self._once(r.hardware_type, r.hardware_type),
                gpu_model=self._once(r.gpu_model, r.gpu_model),
                fingerprint=self._once(r.fingerprint, r.fingerprint),
                addresses=self._once(tuple(r.addresses.items()), r.addresses),
                approximate=self._once(tuple(r.approximate.items()), r.approximate),
                identifiers=r.identifiers,
                rails=r.rails,
                nvlink_domain=r.nvlink_domain,
                renamed=r.renamed,
                job=self._once(msgspec.msgpack.encode(r.job), r.job),
                untold=self._once(r.untold, r.untold),
                bonds=self._once(tuple(r.bonds.items()), r.bonds),
            )
        )

    def _once(self, key: object, value: T) -> T:
        return self._same.setdefault((type(value), key), value)  # type: ignore[return-value]

    def unpack(self, fingerprint: str) -> PackedDevices:
        """Return the devices of a fingerprint."""
        return unpack(self.devices[fingerprint])

    def latest(self) -> tuple[Collection, tuple[str, ...]]:
        """Return only the newest look at each node, and the files of the others; of looks of one time the worst counts.

        Two looks are at one node where the name is the same and a UUID or GUID too; a name alone does not tell, nor
        do identifiers that were replaced when the recording was saved.
        """
        by_name: dict[str, list[int]] = {}
        for i, e in enumerate(self.entries):
            by_name.setdefault(e.name, []).append(i)
        found: dict[int, Counter[str]] = {}
        for finding, at in self.findings.items():
            for i in at:
                found.setdefault(i, Counter())[finding.state] += 1

        def order(i: int) -> tuple[str, int, int, int]:
            bad = found.get(i, Counter())
            return self.entries[i].taken_at, bad["fail"], bad["warn"], i

        older: set[int] = set()
        for positions in by_name.values():
            seen: set[str] = set()
            for i in sorted(positions, key=order, reverse=True):
                mine = set(self.entries[i].identifiers.values())
                if mine & seen:
                    older.add(i)
                seen |= mine
        if not older:
            return self, ()
        new = Collection()
        moved = {}
        for i, e in enumerate(self.entries):
            if i not in older:
                moved[i] = len(new.entries)
                new.entries.append(e)
        new.devices = self.devices
        kept = {f: [moved[i] for i in at if i in moved] for f, at in self.findings.items()}
        new.findings = {f: at for f, at in kept.items() if at}
        return new, tuple(sorted(self.entries[i].file for i in older))

    def names(self) -> list[str]:
        """Return a name for each node, in the order of `entries`; names that come twice get their file beside them."""
        seen = Counter(e.name for e in self.entries)
        stems = [f"{e.name} ({e.file.rpartition('/')[2]})" if seen[e.name] > 1 else e.name for e in self.entries]
        seen = Counter(stems)
        return [f"{e.name} ({e.file})" if seen[s] > 1 else s for s, e in zip(stems, self.entries, strict=True)]
