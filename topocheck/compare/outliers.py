"""What is usual in many nodes, and which nodes are not. A pure function of a Collection."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from topocheck.compare.domains import domains
from topocheck.compare.fields import kind_of
from topocheck.compare.format import difference, hca, place, shown, size, size_source
from topocheck.compare.job import job_problems
from topocheck.compare.match import WHOLE, Delta, align, delta, reference_value, rename, slot_order
from topocheck.compare.rails import crossed, rail_map
from topocheck.compare.store import Collection, Entry
from topocheck.compare.types import (
    Change,
    Count,
    Difference,
    Fleet,
    Group,
    HardwareType,
    JobProblem,
    NoMajority,
    Outlier,
    Rail,
    RailPort,
    SharedFinding,
    UnreadableFile,
    Value,
)  # fmt: skip
from topocheck.knowledge.products import find_product

MAJORITY_SHARE = 0.6
"""A value is the majority's, and a node without it an outlier, where at least this part of the nodes has it; below that
the field has no majority and nobody is accused."""
ROLLOUT_SHARE, LEAST_ROLLOUT = 0.25, 3
"""Where another value is on at least this part of the nodes, and on so many, it is one side of a roll-out: the
field has no majority, which is one entry, and nobody is an outlier by it."""
TOLERANCE = 0.03
"""Sizes of memory of equal nodes differ by what firmware and kernel keep for themselves, well below this part."""
SMALL_KIND = 0.02
"""A sort of machine with no more than this part of the nodes is compared with a larger one it resembles: a node that
lost its GPUs is not a kind of its own."""


class _Member(msgspec.Struct, frozen=True):
    """A node with its name and position in the collection."""

    position: int
    name: str
    entry: Entry


class _Majority(msgspec.Struct, frozen=True):
    """What is usual at one place of the reference."""

    value: Value
    share: float


def judge(
    collection: Collection,
    unreadable_files: Sequence[UnreadableFile] = (),
    changes: Sequence[Change] | None = None,
    superseded_files: Sequence[str] = (),
) -> Fleet:
    """Return what many nodes have in common and in what single ones differ.

    Args:
        collection: the nodes.
        unreadable_files: files that could not be used, told on.
        changes: what changed since another look (compare/changes.py), told on.
        superseded_files: looks that a newer one of the same node made pointless, told on.
    """
    names = collection.names()
    members = [_Member(i, n, e) for i, (n, e) in enumerate(zip(names, collection.entries, strict=True))]
    types: list[HardwareType] = []
    outliers: list[Outlier] = []
    rails: list[Rail] = []
    job: list[JobProblem] = []
    for label, of_type in sorted(_types(members).items(), key=lambda k: (-len(k[1]), k[0])):
        type_, some_outliers, some_rails = _judge_type(label, of_type, collection)
        types.append(type_)
        outliers += some_outliers
        rails += some_rails
        job += job_problems([(m.name, m.entry.job) for m in sorted(of_type, key=lambda m: m.name)])
    software, settings = _counts(collection)
    return Fleet(
        nodes=len(members),
        hardware_types=tuple(types),
        outliers=tuple(sorted(outliers, key=lambda o: (o.name, o.file))),
        rails=tuple(rails),
        job=tuple(job),
        nvlink_domains=domains((m.name, m.entry.job) for m in members),
        software=software,
        settings=settings,
        findings=_findings(collection, names),
        changes=None if changes is None else tuple(changes),
        unreadable_files=tuple(sorted(unreadable_files, key=lambda b: b.file)),
        superseded_files=tuple(superseded_files),
    )


def _gpu(pci_id: str) -> str:
    """Return a GPU's model by its PCI ids, with the product's name where it is known."""
    product = find_product(None, int(pci_id[5:], 16)) if pci_id.startswith("10de:") else None
    return f"GPU {pci_id}" if product is None else f"GPU {product.name} ({pci_id})"


def _types(members: Iterable[_Member]) -> dict[str, list[_Member]]:
    found: dict[tuple[str, str], list[_Member]] = defaultdict(list)
    for m in members:
        found[m.entry.hardware_type, m.entry.gpu_model].append(m)
    total = sum(map(len, found.values()))
    by_size = sorted(found, key=lambda k: (-len(found[k]), k))
    large = [k for k in by_size if len(found[k]) >= max(2, int(SMALL_KIND * total) + 1)] or by_size[:1]
    out: dict[tuple[str, str], list[_Member]] = {k: list(found[k]) for k in large}
    for k in by_size:
        if k in large:
            continue
        home = next((x for x in large if x[0] == k[0]), None)
        home = home or next((x for x in large if x[1] and x[1] == k[1]), None)
        out.setdefault(home or k, []).extend(found[k])
    return {f"{kind}, {_gpu(model)}" if model else kind: ms for (kind, model), ms in out.items()}


def _judge_type(
    label: str, members: list[_Member], collection: Collection
) -> tuple[HardwareType, list[Outlier], list[Rail]]:
    by_print: dict[str, list[_Member]] = defaultdict(list)
    members = sorted(members, key=lambda m: (m.name, m.entry.file))
    for m in members:
        by_print[m.entry.fingerprint].append(m)
    order = sorted(by_print, key=lambda f: (-len(by_print[f]), by_print[f][0].name))
    reference = collection.unpack(order[0])
    home = by_print[order[0]][0].entry.addresses
    deltas: dict[str, Delta] = {}
    mappings: dict[str, dict[str, str]] = {}
    for f in order:
        mapping = align(by_print[f][0].entry.addresses, home)
        mappings[f] = mapping
        deltas[f] = {} if f == order[0] else delta(rename(collection.unpack(f), mapping), reference)
    votes: dict[tuple[str, int], Counter[Value]] = defaultdict(Counter)
    for f, d in deltas.items():
        for key, value in d.items():
            votes[key][value] += len(by_print[f])
    majority: dict[tuple[str, int], _Majority] = {}
    no_majority: list[NoMajority] = []
    for key, counts in votes.items():
        counts[reference_value(key, reference)] += len(members) - counts.total()
        top, n = min(counts.items(), key=lambda c: (-c[1], shown(c[0])))
        if n >= MAJORITY_SHARE * len(members) and not _rolled_out(counts, len(members)):
            majority[key] = _Majority(top, n / len(members))
        else:
            no_majority.append(_no_majority(key, counts, by_print, deltas, reference, home))
    found: dict[int, list[Difference]] = defaultdict(list)
    for f in order:
        differing = _against(deltas[f], majority, reference)
        if not differing:
            continue
        for m in by_print[f]:
            for key, value in differing:
                u = majority[key]
                found[m.position].append(difference(key, value, u.value, u.share, m.entry.addresses, home, mappings[f]))
    more, other_sizes = _sizes(members)
    for position, differences in more.items():
        found[position] += differences
    ports = {m.position: _placed(m.entry.rails, mappings[m.entry.fingerprint]) for m in members}
    rails_of_kind = rail_map(ports.values())
    for m in members:
        for port, mine, their, where in crossed(ports[m.position], rails_of_kind):
            found[m.position].append(
                Difference(
                    section="network",
                    device=f"{port.label} port {port.port}",
                    field="network",
                    value=f"{mine} (usual at {place(where, home)})" if where else mine,
                    majority=their,
                    share=rails_of_kind.shares[port.nic, port.port],
                    path=f"nics[?label=='{port.label}'].ports[?port=={port.port}].gids",
                    source=f"/sys/class/infiniband/{port.label}/ports/{port.port}/gids",
                )
            )
    by_position = {m.position: m for m in members}
    outliers = [
        Outlier(
            name=by_position[p].name,
            file=by_position[p].entry.file,
            hardware_type=label,
            group=by_position[p].entry.fingerprint,
            differences=tuple(sorted(ds, key=lambda d: (d.section, d.device, d.field))),
        )
        for p, ds in found.items()
    ]
    groups = tuple(Group(fingerprint=f, nodes=tuple(m.name for m in by_print[f])) for f in order)
    type_ = HardwareType(name=label, nodes=len(members), groups=groups, no_majority=tuple(no_majority + other_sizes))
    labels = {(p.nic, p.port): p.label for m in reversed(by_print[order[0]]) for p in ports[m.position]}
    rails = [
        Rail(
            hardware_type=label,
            nic=nic,
            label=labels.get((nic, port), nic),
            network=net,
            nodes=rails_of_kind.counts.get((nic, port), 0),
        )
        for (nic, port), net in sorted(rails_of_kind.networks.items(), key=lambda r: slot_order(r[0][0]))
    ]
    return type_, outliers, rails


def _rolled_out(counts: Counter[Value], nodes: int) -> bool:
    """Tell whether a value that is not the usual one is on so many nodes that somebody put it there."""
    return any(n >= max(LEAST_ROLLOUT, ROLLOUT_SHARE * nodes) for _, n in counts.most_common()[1:])


def _placed(ports: Sequence[RailPort], mapping: Mapping[str, str]) -> tuple[RailPort, ...]:
    """Return the ports under the slots of the reference."""
    return tuple(msgspec.structs.replace(p, nic=mapping[p.nic]) if p.nic in mapping else p for p in ports)


def _against(
    d: Delta, majority: Mapping[tuple[str, int], _Majority], reference: Mapping[str, tuple[Value, ...]]
) -> list[tuple[tuple[str, int], Value]]:
    """Return where a group has not what is usual. The reference itself may be the odd one in some field."""
    out = []
    for key, u in majority.items():
        value = d.get(key, reference_value(key, reference))
        if value == u.value:
            continue
        if key[1] != WHOLE and (key[0], WHOLE) in d:
            continue
        out.append((key, value))
    return out


def _no_majority(
    key: tuple[str, int],
    counts: Counter[Value],
    by_print: Mapping[str, list[_Member]],
    deltas: Mapping[str, Delta],
    reference: Mapping[str, tuple[Value, ...]],
    home: Mapping[str, str],
) -> NoMajority:
    d = difference(key, None, None, 0.0, home, home, {})
    values = sorted(counts.items(), key=lambda c: (-c[1], shown(c[0])))
    first: dict[Value, str] = {}
    for f, members in by_print.items():
        first.setdefault(deltas[f].get(key, reference_value(key, reference)), members[0].name)
    return NoMajority(
        section=d.section,
        device=d.device,
        field=d.field,
        values=tuple((shown(v), n) for v, n in values),
        examples=tuple(first.get(v, "") for v, _ in values),
    )


def _sizes(members: Sequence[_Member]) -> tuple[dict[int, list[Difference]], list[NoMajority]]:
    """Compare what differs a little between equal nodes: odd is who is further from the median than the tolerance."""
    found: dict[int, list[Difference]] = defaultdict(list)
    no_majority: list[NoMajority] = []
    if len(members) < 2:
        return found, no_majority
    for name in sorted({n for m in members for n in m.entry.approximate}):
        rated = [(m, m.entry.approximate[name]) for m in members if name in m.entry.approximate]
        middle = statistics.median_high(v for _, v in rated)
        far = [(m, v) for m, v in rated if abs(v - middle) > TOLERANCE * middle]
        if not far:
            continue
        share = 1 - len(far) / len(rated)
        slot, _, field = name.rpartition(" ")
        if share < MAJORITY_SHARE:
            values = ((size(middle), len(rated) - len(far)), *((size(v), 1) for _, v in far[:5]))
            examples = (next(m.name for m, v in rated if v == middle), *(m.name for m, _ in far[:5]))
            no_majority.append(
                NoMajority(section="hardware", device=slot, field=field, values=values, examples=examples)
            )
            continue
        for m, v in far:
            kind = kind_of(slot)
            at = {"node": "host", "numa": f"numa_nodes[?node=={slot[5:]}]"}.get(kind, f"gpus[{slot[3:]}]")
            at = "limits" if field.startswith("shm") else at
            found[m.position].append(
                Difference(
                    section="hardware", device=place(slot, m.entry.addresses), field=field, value=size(v),
                    majority=size(middle), share=share, path=f"{at}.{field}",
                    source=size_source(slot, field, m.entry.addresses),
                )
            )  # fmt: skip
    return found, no_majority


_VERSIONS = (("node", "os_name"), ("node", "kernel_release"), ("node", "driver_version"), ("node", "cuda_version"))


def _counts(collection: Collection) -> tuple[tuple[Count, ...], tuple[Count, ...]]:
    """Return how many nodes have which versions, and which NCCL settings."""
    from topocheck.compare.fields import NIC, NODE

    sizes = Counter(e.fingerprint for e in collection.entries)
    versions: dict[str, Counter[str]] = defaultdict(Counter)
    settings: dict[str, Counter[str]] = defaultdict(Counter)
    index = {f.name: i for i, f in enumerate(NODE)}
    of_nic = {f.name: i for i, f in enumerate(NIC)}
    model_at, firmware_at = of_nic["hca_type"], of_nic["firmware"]
    for fingerprint, n in sizes.items():
        devices = collection.unpack(fingerprint)
        for slot, name in _VERSIONS:
            versions[name][shown(devices[slot][index[name]])] += n
        for slot, values in devices.items():
            kind = kind_of(slot)
            name = slot[len(kind) + 1 :]
            if kind == "software":
                versions[name][shown(values[0])] += n
            elif kind == "module" and values[0] != "loaded":
                versions[f"module {name}"][shown(values[0])] += n
            elif kind == "setting":
                settings[name][shown(values[0])] += n
        of_nics = [v for s, v in devices.items() if kind_of(s) == "nic"]
        for model, firmware in {(shown(v[model_at]), shown(v[firmware_at])) for v in of_nics}:
            versions[f"firmware of {hca(model)}"][firmware] += n
    total = len(collection.entries)
    for counts in settings.values():
        if counts.total() < total:
            counts["not set"] += total - counts.total()
    return _count_list(versions), _count_list(settings)


def _count_list(found: Mapping[str, Counter[str]]) -> tuple[Count, ...]:
    return tuple(
        Count(name=name, values=tuple(sorted(((v, n) for v, n in counts.items() if n), key=lambda c: (-c[1], c[0]))))
        for name, counts in sorted(found.items())
    )


_STATES = ("fail", "unknown", "warn", "note")


def _findings(collection: Collection, names: Sequence[str]) -> tuple[SharedFinding, ...]:
    out = [
        SharedFinding(
            id=f.id,
            state=f.state,
            subject=f.subject,
            title=f.title,
            fix=f.fix,
            nodes=tuple(sorted(names[i] for i in positions)),
        )
        for f, positions in collection.findings.items()
        if f.state in _STATES
    ]
    return tuple(sorted(out, key=lambda f: (_STATES.index(f.state), -len(f.nodes), f.id, f.subject, f.title)))
