"""The PCIe class of a pair, in the words of `nvidia-smi topo -mp`.

The rule, checked against public matrices (tests/topology/test_classes.py):

1. The two chains share a function: PIX where each device hangs directly on it or on one port of its switch
   (also two functions of one board), PXB where more bridges lie between.
2. They share no more than the host bridge: PHB.
3. Different host bridges: NODE on one NUMA node, SYS on two.

Where the NUMA node of one is not known, rule 3 asks NVML's common ancestor (GPU pairs only). Without it, a
bare-metal machine with a single node leaves no choice (NODE); on a machine with several nodes, and in a guest, whose
kernel cannot place the host bridges, nvidia-smi says SYS, and so do we.
"""

from __future__ import annotations

import functools

import msgspec

from topocheck.model.base import Missing, Reason, is_lost, known, unparsable
from topocheck.topology.tree import Chain, common_length, is_host_bridge
from topocheck.topology.types import PathClass

ORDER = {c.value: i for i, c in enumerate(PathClass)}
"""Nearest first."""


class Place(msgspec.Struct, frozen=True, dict=True):
    """Where a device is: its label, its chain (empty: not known) and its NUMA node."""

    label: str
    chain: Chain
    node: int | Missing

    @functools.cached_property
    def above(self) -> Chain:
        """The chain without the device itself."""
        return self.chain[:-1]


class Surroundings(msgspec.Struct, frozen=True):
    """What decides where NUMA nodes are not known: how many nodes there are, and whether this is a guest."""

    numa_nodes: int | Missing
    guest: bool


def pcie_class(a: Place, b: Place, around: Surroundings, ancestor: str | Missing) -> PathClass | Missing:
    """Return the class of two different devices; `ancestor` is NVML's word for the pair."""
    up_a, up_b = a.above, b.above
    if not up_a or not up_b:
        if known(ancestor):
            return _word(ancestor)
        hidden = " and ".join(p.label for p in (a, b) if not p.above)
        return Missing(Reason.NOT_VISIBLE_HERE, f"the place of {hidden} in the PCI tree is not visible here")
    n = common_length(up_a, up_b)
    if n == 0:
        return _across_bridges(a, b, around, ancestor)
    if is_host_bridge(up_a[n - 1]):
        return PathClass.PHB
    one_switch = len(up_a) - n <= 1 and len(up_b) - n <= 1
    return PathClass.PIX if one_switch else PathClass.PXB


def crosses_nodes(a: Place, b: Place, around: Surroundings, word: PathClass | Missing) -> bool | Missing:
    """Tell whether the PCIe way of two devices leads from one NUMA node to another; `word` is their class.

    nvidia-smi's SYS does not say so by itself: it stands for devices whose node nobody tells as well.
    """
    if isinstance(word, Missing):
        return word
    if word is not PathClass.SYS or around.numa_nodes == 1:
        return False
    if isinstance(a.node, Missing) or isinstance(b.node, Missing):
        unplaced = [p.label for p in (a, b) if isinstance(p.node, Missing)]
        return Missing(Reason.ABSENT, f"the NUMA node of {' and '.join(unplaced)} is not known")
    return a.node != b.node


def _across_bridges(a: Place, b: Place, around: Surroundings, ancestor: str | Missing) -> PathClass | Missing:
    if not isinstance(a.node, Missing) and not isinstance(b.node, Missing):
        return PathClass.NODE if a.node == b.node else PathClass.SYS
    if known(ancestor):
        return _word(ancestor)
    for p in (a, b):
        if isinstance(p.node, Missing) and is_lost(p.node):
            return Missing(p.node.reason, f"the NUMA node of {p.label} could not be read")
    if isinstance(around.numa_nodes, Missing) and not around.guest:
        unplaced = " and ".join(p.label for p in (a, b) if isinstance(p.node, Missing))
        return Missing(Reason.ABSENT, f"neither the NUMA node of {unplaced} nor the machine's nodes are known")
    if around.numa_nodes == 1 and not around.guest:
        return PathClass.NODE
    return PathClass.SYS


def _word(ancestor: str) -> PathClass | Missing:
    """Return nvidia-smi's word for NVML's: two GPUs of one board ("internal") are PIX there."""
    word = path_class(ancestor)
    return unparsable(ancestor) if word is None else PathClass.PIX if word is PathClass.X else word


def path_class(text: str) -> PathClass | None:
    """Return the class that a word from elsewhere names, or None."""
    return next((c for c in PathClass if c == text), None)
