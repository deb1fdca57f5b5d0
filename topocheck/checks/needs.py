"""What follows for a check if one of the answers it needs was lost.

A check evaluates facts. If an answer that these are made from was lost (`Node.lost`), some of its subjects may not be
visible, and a setting that is set may look unset. The check is then not `ok` and not `not_applicable` but unknown
(`topocheck.checks.result.settle`), and `probe.answers-lost` reports the answer. Problems found anyway stay reported.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from topocheck.checks.registry import CHECKS, Context, once
from topocheck.checks.sources import IDS, NOTHING, PCI, PROBES, SOURCES
from topocheck.model.base import Missing, Reason, State, known
from topocheck.model.node import Lost, Node
from topocheck.model.pci import PciDevice
from topocheck.topology.inventory import by_address, is_nvidia_gpu, nvswitches


@functools.cache
def _patterns() -> dict[str, re.Pattern[str]]:
    """Return SOURCES compiled, which takes longer than all checks: only where an answer was lost."""
    return {name: re.compile("|".join(patterns)) for name, patterns in SOURCES.items()}


def sources_lost(node: Node) -> dict[str, tuple[Lost, ...]]:
    """Return name in SOURCES -> its lost answers, those that matter on this machine."""
    if not node.lost:
        return {}
    devices = by_address(node)
    concerned = _concerned(node, devices)
    out: dict[str, list[Lost]] = {}
    for x in node.lost:
        kind, _, rest = x.question.partition(":")
        names: Iterable[str] = ()
        if kind == "probe":
            names = PROBES.get(rest, ())
        elif _matters(x, devices, concerned) and not _made_up(x.question, node):
            names = [name for name, pattern in _patterns().items() if pattern.match(x.question)]
        for name in names:
            out.setdefault(name, []).append(x)
    return {name: tuple(found) for name, found in out.items()}


def lost_for(check_id: str, state: State, lost: Mapping[str, tuple[Lost, ...]]) -> tuple[Lost, ...]:
    """Return the lost answers (`sources_lost`) without which a check cannot come to this state."""
    needs = CHECKS[check_id].needs if check_id in CHECKS else NOTHING
    names = needs.applies if state is State.NOT_APPLICABLE else needs.applies + needs.judged
    return tuple(x for name in dict.fromkeys(names) for x in lost.get(name, ()))


@once
def _lost_here(c: Context) -> dict[str, tuple[Lost, ...]]:
    return sources_lost(c.node)


def unless_lost(c: Context, state: State, *names: str) -> State:
    """Return `unknown` in the place of a warning or failure that rests on an answer not being there.

    Args:
        c: what the check looks at.
        state: what it is where every answer of the sources came.
        names: names in SOURCES.
    """
    lost = state in (State.WARN, State.FAIL) and any(name in _lost_here(c) for name in names)
    return State.UNKNOWN if lost else state


_ASKED_SINCE_2 = (
    r"access:/dev/infiniband/|list:/sys/class/infiniband_verbs$|psutil:net_netmasks$"
    r"|nvml:DeviceGet(?:ApplicationsClock|PowerManagement(?:Default)?Limit|MaxClockInfo\|\d+\|2)"
    r"|read:/sys/devices/system/(?:clocksource|cpu/(?:cpu0/cpufreq|smt)/)|read:/proc/sys/vm/nr_hugepages$"
    r"|read:/sys/kernel/mm/transparent_hugepage/"
)
"""Questions that recordings of the first set of probes lack, or hold only the first of, or that no check needs."""


def _matters(x: Lost, devices: Mapping[str, PciDevice], concerned: frozenset[str]) -> bool:
    """Tell whether an answer was needed.

    A file that this user may not read NCCL may not read either: that is what was asked. An id of a PCI function was not
    needed where another file said the same; and of a function that no GPU, NIC or NVSwitch is, nor stands below, only
    what it is matters, since it may be one of them.
    """
    question = x.question
    if x.why.reason is Reason.NOT_RECORDED and re.match(_ASKED_SINCE_2, question):
        return False
    if x.why.reason is Reason.DENIED and re.match(r"conf:|read:.*\.xml$", question):
        return False
    path = question.partition(":")[2].partition("|")[0]
    if not path.startswith(f"{PCI}/"):
        return True
    device = devices.get(path.removeprefix(f"{PCI}/").partition("/")[0])
    if device is None:
        return True
    if re.match(IDS, question):
        which = known(device.device_id) or known(device.device_name)  # a text may name the product and not its number
        return not (which and known(device.vendor_id) and known(device.class_code))
    return device.address in concerned or not known(device.class_code)


def _made_up(question: str, node: Node) -> bool:
    """Tell whether the address that NVML did not say of a GPU is known all the same (probes/nvml/probe.py)."""
    call, _, index = question.partition("|")
    if call != "nvml:DeviceGetPciInfo" or isinstance(node.nvml.gpus, Missing):
        return False
    return any(str(g.index) == index and known(g.address) for g in node.nvml.gpus)


def _concerned(node: Node, devices: Mapping[str, PciDevice]) -> frozenset[str]:
    """Return the addresses of GPUs, NICs and NVSwitches, and of the ports above them."""
    ends = {a for a, d in devices.items() if is_nvidia_gpu(d)} | {d.address for d in nvswitches(devices.values())}
    ends |= {d.address for d in (node.net.rdma if known(node.net.rdma) else ()) if isinstance(d.address, str)}
    return frozenset(ends).union(*(devices[a].chain for a in ends if a in devices))
