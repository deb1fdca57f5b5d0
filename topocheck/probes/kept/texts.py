"""What a snapshot without identifiers keeps of texts that a recording was made from (readers/)."""

from __future__ import annotations

import re

import msgspec

from topocheck.host.base import Answer
from topocheck.host.recording.forms import NAME, scalar
from topocheck.host.recording.redaction import Redaction
from topocheck.model.node import MadeFrom, SourceFile

_TOKEN = re.compile(
    r"(?:(?:Dev|Lnk)(?:Cap|Ctl|Sta)2?:|A[CT]S(?:Cap|Ctl):|DpcSta:|Control:|Status:|Bus:"
    r"|Speed|Width|Supported|Link|Speeds:|MaxPayload|MaxReadReq|bytes,?|unknown,?|\(downgraded\),?"
    r"|128|256|512|1024|2048|4096|[0-9]{1,3}(?:\.[0-9])?(?:-[0-9]{1,3})?GT/s,?|x[0-9]{1,2},?"
    r"|(?:primary|secondary|subordinate)=[0-9a-f]{2},?"
    r"|(?:Cap|I/O|RlxdOrd|LLActRep|DLActive|SrcValid|TransBlk|ReqRedir|CmpltRedir|UpstreamFwd|EgressCtrl|DirectTrans"
    r"|Enable|Trigger)[+-],?)",
    re.ASCII,
)
"""The words by which lspci tells the registers that are read (probes/pci/lspci.py)."""
_CAPABILITY = re.compile(
    r"(\s+Capabilities: (?:\[[0-9a-f]{2,3}(?: v[0-9])?\]|<access denied>))"
    r"( Express(?: \(v[0-9]\))? (?:Legacy Endpoint|Endpoint|Root Port|Upstream Port|Downstream Port"
    r"|Root Complex Integrated Endpoint|Root Complex Event Collector|PCI-Express to PCI/PCI-X Bridge"
    r"|PCI/PCI-X to PCI-Express Bridge)(?: \(Slot[+-]\))?"
    r"| Access Control Services| Address Translation Service| Downstream Port Containment"
    r"| Vendor Specific Information: Len=[0-9a-f]{2,3}(?![0-9a-f]))?",
    re.ASCII,
)
_HEAD = re.compile(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (.*)", re.ASCII)
_TAIL = re.compile(r"(?: \[[0-9a-f]{4}:[0-9a-f]{4}\])?(?: \(rev [0-9a-f]{2}\))?(?: \(prog-if [0-9a-f]{2}\b[^()]*\))?$")
_CLASS = re.compile(r" \[[0-9a-f]{4}\]$")


def lspci_block(r: Redaction, answer: Answer) -> Answer:
    """Return of a function's block the registers that are read, and that there are other capabilities."""
    if not isinstance(answer, str):
        return scalar(r, answer)
    first, *rest = answer.split("\n")
    out = [_first_line(r, first)]
    for line in rest:
        if m := _CAPABILITY.match(line):
            out.append(f"{m[1]}{m[2] or ' other'}")
            continue
        words = [w for w in line.split() if _TOKEN.fullmatch(w)]
        if words:
            out.append("\t\t" + " ".join(words))
    return "\n".join(out)


def _first_line(r: Redaction, line: str) -> str:
    """Return place, class and name; of what follows the name the numbers."""
    m = _HEAD.fullmatch(line)
    kind, sep, name = m[1].partition(": ") if m else ("", "", "")
    if m is None or not sep:
        return ""
    number = _CLASS.search(kind)
    tail = _TAIL.search(name)
    ends = re.sub(r"\b( \[[A-Z][^()]*)?\)$", ")", tail[0]) if tail and "prog-if" in tail[0] else tail[0] if tail else ""
    named = NAME(r, name[: tail.start()] if tail else name) or ""
    return f"{line[: m.start(1)]}{NAME(r, _CLASS.sub('', kind)) or ''}{number[0] if number else ''}: {named}{ends}"


def sources(r: Redaction, answer: Answer) -> Answer:
    """Return what was recognised in the files a recording was made of; their names say whose they are."""
    try:
        made = msgspec.convert(answer, MadeFrom)
    except (msgspec.ValidationError, RecursionError):
        return scalar(r, answer)
    files = [
        SourceFile(name=f"file {n}", formats=tuple(w for w in f.formats if re.fullmatch(r"[\w ,./()\-]{1,60}", w)))
        for n, f in enumerate(made.files, 1)
    ]
    unseen = tuple(u for u in made.unseen if re.fullmatch(r"[\w ,.'/()\-]{1,60}", u))
    return msgspec.to_builtins(MadeFrom(files=tuple(files), unseen=unseen, selection=made.selection))
