"""What the fabric carries: oversubscribed leaves, separate planes, and a dump that is not complete."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.fabric.run import READS, tiers_in, whole
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.fabric.planes import Plane, odd_planes, planes_of
from topocheck.model.base import Evidence, Finding, State


@check("fabric.oversubscribed", severity=State.NOTE, reads=READS, thresholds=("ratio",))
def oversubscribed(context: Context) -> Iterator[Finding]:
    """A leaf carries more to its nodes than to the rest of the fabric.

    Looks at:
        The sum of the rates of a leaf's links to adapters, over the sum of those to the tier above. A ratio above 1.1
        (threshold `ratio`) is noted; many fabrics are built so on purpose.

    Why it matters:
        Jobs that span leaves get at most this share of their adapters' bandwidth.

    Fix:
        Place jobs below one leaf where you can (Slurm's topology plugin), or add uplinks.

    Does not apply:
        Where nothing is above the leaves, or rates are not in the dump.
    """
    tiers = tiers_in(context)
    ratios = [(leaf, r) for leaf in tiers.leaves.values() if (r := leaf.oversubscription) is not None]
    if not ratios:
        raise not_applicable("no leaf with links above it and known rates")
    limit = context.threshold("fabric.oversubscribed", "ratio", 1.1)
    source = ", ".join(tiers.fabric.sources)
    for leaf, ratio in ratios:
        if ratio > limit:
            yield Finding(
                state=State.NOTE,
                subject=tiers.label(leaf.id),
                devices=(leaf.id,),
                title=f"{ratio:.2f} : 1 oversubscribed ({leaf.down} links down, {leaf.up} up)",
                consequence=f"traffic that leaves this switch gets at most {100 / ratio:.0f} % of its adapters' rate",
                evidence=(Evidence(source, f"{leaf.down_gbit_s:g} Gb/s down, {leaf.up_gbit_s:g} Gb/s up"),),
                rule=f"rate to adapters over rate to the tier above at most {limit:g}",
            )


@check("fabric.planes", severity=State.NOTE, reads=READS)
def planes(context: Context) -> Iterator[Finding]:
    """The fabric has parts that no link joins.

    Looks at:
        Which switches reach each other.

    Why it matters:
        Planes of one rail each are built on purpose; NCCL then needs NCCL_CROSS_NIC=0, and ranks of different rails
        cannot meet. Otherwise a spine or a bundle of cables is missing.

    Fix:
        None where the planes are meant.

    Does not apply:
        Where all switches reach each other.
    """
    tiers = tiers_in(context)
    whole(tiers)
    if not tiers.fabric.links:
        raise not_applicable("the dump holds no link")
    if len(tiers.planes) > 1:
        sizes = [len(p) for p in tiers.planes]
        examples = [tiers.label(min(p)) for p in tiers.planes[:4]]
        shown = ", ".join(f"{e} ({n} switches)" for e, n in zip(examples, sizes, strict=False))
        yield Finding(
            state=State.NOTE,
            subject="fabric",
            title=f"{len(sizes)} parts that no link joins: {shown}" + (", ..." if len(sizes) > len(examples) else ""),
            consequence="adapters in different parts do not reach each other",
            evidence=(Evidence(", ".join(tiers.fabric.sources), f"{len(tiers.fabric.links)} links"),),
            rule="every switch reaches every other",
        )


@check("fabric.unequal-planes", severity=State.WARN, reads=READS)
def unequal_planes(context: Context) -> Iterator[Finding]:
    """A plane has fewer switches or links than the other planes of the same nodes.

    Looks at:
        The parts of the fabric that no link joins and that the same nodes have adapters on: their switches of each
        tier, and the number and rate of the links between these. More than half of three or more planes must be
        equal; of two, the smaller is named.

    Why it matters:
        Traffic is spread over planes evenly, so that the plane with the least carries a collective's pace.

    Fix:
        Look for the switch or the links that are missing there: powered off, or not yet cabled.

    Does not apply:
        To a fabric of one part.
    """
    tiers = tiers_in(context)
    whole(tiers)
    planes = planes_of(tiers)
    if len(planes) < 2:
        raise not_applicable("one plane")
    for odd in odd_planes(planes):
        yield Finding(
            state=State.WARN,
            subject=f"the plane of {tiers.label(odd.plane.switch)}",
            devices=(odd.plane.switch,),
            title=f"{_plane(odd.plane)}; {odd.alike} of {odd.planes} planes have {_plane(odd.usual)}",
            consequence="collectives that use all planes wait for this one",
            evidence=(Evidence(", ".join(tiers.fabric.sources)[:200], _plane(odd.plane)),),
            rule="planes of the same nodes have the same switches and links",
            fix="find the switch or links that are missing in this plane: power, cables, port states",
        )


def _plane(p: Plane) -> str:
    rate = "" if p.gbit_s is None else f" ({p.gbit_s:g} Gb/s)"
    return f"{' + '.join(map(str, p.switches))} switches by tier and {p.between} links between them{rate}"


@check("fabric.dump-incomplete", severity=State.UNKNOWN, reads=READS)
def dump_incomplete(context: Context) -> Iterator[Finding]:
    """A part of the dump could not be read, or describes only one end.

    Looks at:
        Lines of an unknown form, and devices that links name and that no block describes.

    Why it matters:
        What was not read is not judged.

    Fix:
        Take the whole dump again, as root, without cutting it.

    Does not apply:
        Where all lines were read.
    """
    fabric = tiers_in(context).fabric
    source = ", ".join(fabric.sources)
    if not fabric.links:
        yield Finding(
            state=State.UNKNOWN,
            subject="fabric",
            title="the dump holds no link",
            consequence="nothing of the fabric is judged",
            evidence=(Evidence(source, f"{len(fabric.devices)} devices, 0 links"),),
            rule="a fabric has links",
            fix="run the dump where the subnet manager's subnet is reached, as root; with saquery give NR, LR and PIR",
        )
    if fabric.dangling:
        yield Finding(
            state=State.UNKNOWN,
            subject="fabric",
            title=f"{len(fabric.dangling)} devices are named by links and not described ({fabric.dangling[0]}, ...)",
            consequence="their names, ports and other links are not known",
            evidence=(Evidence(source, " ".join(fabric.dangling[:8])),),
            rule="every device that a link names is described",
            fix="take the complete dump again; with saquery give NR, LR and PIR of one time together",
        )
    if fabric.problems:
        yield Finding(
            state=State.UNKNOWN,
            subject="fabric",
            title=f"{len(fabric.problems)} lines could not be read",
            consequence="what they say is not judged",
            evidence=tuple(Evidence(source, p) for p in fabric.problems[:4]),
            rule="every line of the dump is of a known form",
            fix="take the dump again; where it is whole, report the lines to topocheck",
        )
