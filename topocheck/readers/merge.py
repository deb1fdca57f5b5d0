"""Answers of several texts about one machine, made one set; what two of them say differently is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from topocheck.host.base import Answer, HostError
from topocheck.model.address import parse_cpulist
from topocheck.probes.cpuinfo import flags, parse_cpuinfo
from topocheck.probes.nvml.fields import NOT_GIVEN
from topocheck.readers.base import Reading

MAX_DIFFERENCES = 256
_MOST_TABLES = 1 << 20
"""Characters of P2P tables from which on no further text is added."""

_CHANGING = re.compile(
    r"read:.*/(current_link_speed|power_state|runtime_status)$"
    r"|nvml:DeviceGet(ClockInfo|Temperature|UtilizationRates|PerformanceState|CurrPcieLinkGeneration|MemoryInfo"
    r"|CurrentClocksEventReasons|BAR1MemoryInfo|(Compute|Graphics)RunningProcesses)\b"
    r"|run:.*-p2p$|lines:.*meminfo|now:|duration:|probe:|process:|statvfs:|pci_names:"
)
"""Questions whose answer may be another a moment later on a healthy machine, so that two texts may rightly differ.

The width of a link is not among them: an idle device lowers its speed and keeps its lanes.
"""
_GROWING = re.compile(r"read:.*/(counters/[^/]*|hw_counters/[^/]*|aer_dev_[^/]*)$|nvml:DeviceGetPcieReplayCounter\b")
"""Counters that only grow until the machine starts again: the larger is the later, and holds what the other has."""
_LINK_NOW = re.compile(r"read:/sys/bus/pci/devices/([^/]+)/current_link_(?:speed|width)$")
_LONGEST = re.compile(r"lspci:|read:/sys/bus/pci/devices/[^/]+/config\b")
"""Of these the one with most lines is taken, or most bytes: `lspci -nn` prints a line of what -vvv prints a page of.

The first stays where both are as long: two texts of two moments are not mixed.
"""
_CPULISTS = re.compile(r"read:.*/(cpulist|online|possible|has_cpu|has_memory|package_cpus_list|local_cpulist)$")
_CLASS = re.compile(r"read:/sys/bus/pci/devices/[^/]+/class$")


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Two texts that answer one question differently; `first` is what is used. Places are `file:line`."""

    question: str
    first: str
    first_at: str
    other: str
    other_at: str


class Merged(msgspec.Struct, kw_only=True):
    """All answers; where each comes from, as `file:line`; what differs; and the lists that a text held whole."""

    answers: dict[str, Answer] = msgspec.field(default_factory=dict)
    places: dict[str, str] = msgspec.field(default_factory=dict)
    differences: list[Difference] = msgspec.field(default_factory=list)
    whole: set[str] = msgspec.field(default_factory=set)


def merge(readings: Iterable[Reading]) -> Merged:
    """Make one set of the answers of several readings; earlier ones come first."""
    out = Merged()
    soft: set[str] = set()
    for reading in readings:
        found = reading.found
        fuller: set[str] = set()
        for question, answer in found.answers.items():
            place = _place(reading, question)
            if (m := _LINK_NOW.match(question)) and m[1] in fuller and question in out.answers:
                # The registers are of this text, so the link is too.
                _add(out, question, answer, place, whole=False)
                out.answers[question], out.places[question] = answer, place
            elif question not in out.answers or (question in soft and question not in found.soft):
                out.answers[question], out.places[question] = answer, place
                (soft.add if question in found.soft else soft.discard)(question)
            elif question in found.soft:
                if question in soft and isinstance(answer, int):
                    out.answers[question] = max(out.answers[question], answer)
            else:
                _add(out, question, answer, place, whole=question in out.whole and question not in found.partial)
                if question.startswith("lspci:") and out.places[question] == place:
                    fuller.add(question.partition(":")[2])
            if question not in found.partial and isinstance(answer, list):
                out.whole.add(question)
    return out


def _place(reading: Reading, question: str) -> str:
    line = reading.found.lines.get(question, 0)
    if question in reading.found.members:
        return reading.found.members[question]
    return f"{reading.text.name}:{reading.text.first_line + line - 1}" if line else reading.text.name


def _add(out: Merged, question: str, answer: Answer, place: str, *, whole: bool) -> None:
    held = out.answers[question]
    if answer == held or isinstance(answer, HostError):
        return
    if isinstance(held, HostError):
        out.answers[question], out.places[question] = answer, place
        return
    if question.startswith("nvml:DeviceGetFieldValues|"):
        out.answers[question] = _fields(held, answer)
        return
    if _LONGEST.match(question):
        if _length(question, answer) > _length(question, held):
            out.answers[question], out.places[question] = answer, place
        return
    if _GROWING.match(question):
        if _total(answer) > _total(held):
            out.answers[question], out.places[question] = answer, place
        return
    if question.startswith("kernel_log:") and isinstance(held, list) and isinstance(answer, list):
        out.answers[question] = held + [x for x in answer if x not in set(map(str, held))]
        return
    if question.endswith("|-p2p") and isinstance(held, dict) and isinstance(answer, dict):
        # Each text has the tables of other capabilities (-p2p r, -p2p w).
        text = str(held.get("stdout", ""))
        if len(text) < _MOST_TABLES:
            out.answers[question] = {**held, "stdout": f"{text}\n{answer.get('stdout', '')}"}
        return
    if _CLASS.match(question) and _less_of_a_class(held, answer):
        out.answers[question], out.places[question] = answer, place
        return
    if isinstance(held, dict) and isinstance(answer, dict):
        # None: a member that a text does not tell.
        differ = {
            k: (held[k], answer[k])
            for k in held.keys() & answer.keys()
            if held[k] != answer[k] and held[k] is not None and answer[k] is not None
        }
        out.answers[question] = {**held, **answer, **{k: v for k, v in held.items() if v is not None}}
        differ = {k: v for k, v in differ.items() if _plain(v[0]) != _plain(v[1])}
        if differ and not _CHANGING.match(question):
            k = min(differ)
            _differ(out, f"{question} {k}", *differ[k], out.places[question], place)
        return
    if isinstance(held, list) and isinstance(answer, list) and question.startswith("list:"):
        # An answer that is bytes or text has been compared above: only names are left.
        out.answers[question] = sorted({*map(str, held), *map(str, answer)})
        if whole:
            _differ(out, question, held, answer, out.places[question], place)
        return
    if not _CHANGING.match(question) and not _same(question, held, answer):
        _differ(out, question, held, answer, out.places[question], place)


def _differ(out: Merged, question: str, a: Answer, b: Answer, a_at: str, b_at: str) -> None:
    if len(out.differences) >= MAX_DIFFERENCES:
        return
    if isinstance(a, list) and isinstance(b, list):
        a, b = [x for x in a if x not in b], [x for x in b if x not in a]
    out.differences.append(
        Difference(question=question, first=_shown(a), first_at=a_at, other=_shown(b), other_at=b_at)
    )


def _same(question: str, a: Answer, b: Answer) -> bool:
    """Tell whether two answers mean the same: of /proc/cpuinfo what both say of, else as `_plain` writes them."""
    if question.startswith("read:/proc/cpuinfo") and isinstance(a, bytes) and isinstance(b, bytes):
        one, other = (parse_cpuinfo(x.decode("utf-8", "replace")) for x in (a, b))
        shared = one.keys() & other.keys() - {"flags", "Features", "processor"}
        hypervisor = ["hypervisor" in flags(x) for x in (one, other) if flags(x)]
        return all(one[k] == other[k] for k in shared) and len(set(hypervisor)) < 2
    this, that = _bytes(a).strip(), _bytes(b).strip()
    if _CPULISTS.match(question):
        return bool(_cpus(this) == _cpus(that))
    if _CLASS.match(question):
        return this[:-2] == that[:-2] and b"00" in (this[-2:], that[-2:])
    if question == "read:/proc/sys/kernel/hostname":  # some print it without its domain
        return this.partition(b".")[0] == that.partition(b".")[0]
    return bool(_plain(a) == _plain(b))


def _bytes(answer: Answer) -> bytes:
    return answer if isinstance(answer, bytes) else str(answer).encode("utf-8", "replace")


def _length(question: str, answer: Answer) -> int:
    return len(_bytes(answer)) if question.startswith("read:") else _bytes(answer).rstrip().count(b"\n")


def _total(answer: Answer) -> int:
    """Return the sum of the numbers of a counter's text: `aer_dev_correctable` has a line for each error, and a sum."""
    return sum(int(n) for n in re.findall(rb"(?<![\w.])[0-9]{1,20}(?![\w.])", _bytes(answer)))


def _cpus(text: bytes) -> Any:
    try:
        return parse_cpulist(text.decode("ascii", "replace"))
    except ValueError:
        return text


def _less_of_a_class(held: Answer, answer: Answer) -> bool:
    """Tell whether `held` is the same class but its last byte: lspci without -v, and hwloc, do not print that."""
    one, other = _bytes(held).strip(), _bytes(answer).strip()
    return one[:-2] == other[:-2] and one.endswith(b"00")


def _plain(answer: Answer) -> Any:
    """Return an answer without what two ways of writing the same differ by: bytes or text, case, blanks at its end."""
    if isinstance(answer, bytes):
        answer = answer.decode("utf-8", "replace")
    if not isinstance(answer, str):
        return answer
    text = answer.strip("\0 \t\r\n").lower()
    # `400 Gb/sec (4X NDR)` is `400 Gb/sec`, and `16.0 GT/s PCIe` is `16 GT/s`.
    text = re.sub(r"^([0-9.]+ gb/sec) \(.*\)$", r"\1", text)
    return re.sub(r"^([0-9]+)(?:\.0)? gt/s(?: pcie)?$", r"\1 gt/s", text)


def _shown(answer: Answer) -> str:
    if isinstance(answer, list):
        return ", ".join(map(str, answer[:4])) + (f" and {len(answer) - 4} more" if len(answer) > 4 else "") or "none"
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
    return text.strip()[:120]


def _fields(held: Answer, answer: Answer) -> Answer:
    """Join two lists of field values; one entry for each field and scope."""
    entries = sorted([*_entries(held), *_entries(answer)], key=lambda e: bool(e[3] == NOT_GIVEN))
    return list({(e[0], e[1]): e for e in reversed(entries)}.values())[::-1]


def _entries(answer: Answer) -> list[list[Any]]:
    return [e for e in answer if isinstance(e, list) and len(e) == 4] if isinstance(answer, list) else []
