"""NCCL's topology file against the machine it is read on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.affinity import visible
from topocheck.checks.shared.common import is_guest
from topocheck.checks.shared.settings import in_force, judged_version, place, values, version_words
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.address import normalize_address
from topocheck.model.base import Evidence, Finding, Missing, Reason, State
from topocheck.nccl.topofile.file import TopoFile, file_in_force
from topocheck.nccl.topofile.write import usable_gpus, write_topology
from topocheck.nccl.topofile.xml import Element

if TYPE_CHECKING:
    from topocheck.nccl.topofile.compare import TopoDifference

_TOLD = 8
"""Differences quoted as evidence; a file for another machine differs in dozens."""


@check(
    "nccl.topo-file",
    title="NCCL's topology file does not fit this machine",
    severity=State.FAIL,
    reads=(
        "environment NCCL_TOPO_FILE",
        "NCCL_CONF_FILE or ~/.nccl.conf",
        "/etc/nccl.conf",
        "the file of NCCL_TOPO_FILE",
        "/var/run/nvidia-topologyd/virtualTopology.xml",
    ),
    needs=Needs(("settings", "topology file"), GPUS),
    scope=Scope.PROCESS,
)
def topo_file(c: Context) -> Iterator[Finding]:
    """A topology file is in force, and NCCL cannot read it, or it says other than the machine does.

    Looks at:
        The file of NCCL_TOPO_FILE, or where that is unset NCCL's default file: whether it can be opened, whether
        NCCL's reader takes it, and its devices, link speeds and widths, NUMA nodes, NVLinks and GPUDirect flags
        against the machine's.

    Why it matters:
        The file's values silently win over the machine's. One made for another host, or before a repair, hides
        GPUs, NICs, speeds and NUMA nodes. One that cannot be opened is passed over, and a malformed one ends the init
        of every communicator.

    Fix:
        On bare metal unset it. In a guest keep the provider's file for this type of machine; of one made by hand
        only the `cpu` and `pci` levels, with the guest's bus ids. `topocheck nccl topo --input FILE` shows every
        difference.

    Does not apply:
        Where NCCL_TOPO_FILE is unset and the default file is not there. In a guest a difference is a note: the
        provider may know more than the guest sees.
    """
    facts = c.node.settings
    text = facts.topo_file
    if isinstance(text, Missing):
        if not facts.topo_file_path or ("NCCL_TOPO_FILE" not in in_force(c) and text.reason is Reason.NOT_RECORDED):
            untold = text.reason is Reason.NOT_RECORDED
            where = "whether NCCL's default file is there was not recorded" if untold else "no default file is there"
            raise not_applicable(f"NCCL_TOPO_FILE is not set, and {where}")
        yield _unread(c, text)
        return
    file = file_in_force(c.node, judged_version(c))
    if file is None:
        return
    if file.fatal:
        yield Finding(
            state=State.FAIL,
            subject=_subject(c),
            title=f"NCCL cannot read its topology file: {file.fatal}",
            consequence="every ncclCommInitRank fails with an error",
            evidence=_quoted(c),
            rule=f"the form that {version_words(c)} reads (src/graph/xml.cc)",
            fix=_fix(c),
        )
        return
    bare = _bare_cpus(c, file)
    if bare:
        yield _without_arch(c, file, bare)
        return
    yield from _compared(c, file)


def _bare_cpus(c: Context, file: TopoFile) -> list[Element]:
    """Return the CPUs of a file without `arch` that hold GPUs, none of which this process sees.

    NCCL fills in what a <cpu> lacks when it walks up from a GPU that it sees, and then asks every one for its `arch`
    (src/graph/xml.cc, ncclTopoGetXmlFromCpu; src/graph/topo.cc, ncclTopoAddCpu).
    """
    seen = {g.address for g in visible(c)}
    if file.root is None or not seen:
        return []
    out = []
    for cpu in file.root.having("cpu"):
        gpus = {
            normalize_address(e.get("busid") or "")
            for e in cpu.walk()
            if e.name == "pci" and (e.get("class") or "").startswith("0x03")
        }
        if cpu.get("arch") is None and gpus and not gpus & seen:
            out.append(cpu)
    return out


def _without_arch(c: Context, file: TopoFile, bare: list[Element]) -> Finding:
    names = ", ".join(f"<cpu numaid={x.get('numaid')}> of line {x.line}" for x in bare[:4])
    return Finding(
        state=State.FAIL,
        subject=_subject(c),
        title=f"{names} of the topology file {file.path} has no arch, and this process sees none of its GPUs",
        consequence="NCCL fills arch in only for CPUs of GPUs that it sees: every init ends with an internal error",
        evidence=(*_quoted(c), *(Evidence(f"{file.path}: line {x.line}", _shown(x)) for x in bare[:4])),
        rule='every <cpu> has arch ("x86_64", "arm64" or "ppc64")',
        fix='add arch="x86_64" (and vendor, familyid, modelid) to each <cpu> of the file, or make all GPUs visible, or '
        "unset NCCL_TOPO_FILE",
    )


def _shown(e: Element) -> str:
    return f"<{e.name} {' '.join(f'{k}={v}' for k, v in e.attributes)}>"


def _subject(c: Context) -> str:
    s = in_force(c).get("NCCL_TOPO_FILE")
    return c.node.settings.topo_file_path if s is None else place(s)


def _quoted(c: Context) -> tuple[Evidence, ...]:
    s = in_force(c).get("NCCL_TOPO_FILE")
    return () if s is None else (Evidence(s.source, f"{s.name}={s.value}"),)


def _fix(c: Context) -> str:
    path = c.node.settings.topo_file_path
    if is_guest(c):
        return f"take the provider's file for this type of machine; see topocheck nccl topo --input {path}"
    return "unset NCCL_TOPO_FILE: bare metal needs none" if _quoted(c) else f"move {path} away: bare metal needs none"


def _unread(c: Context, why: Missing) -> Finding:
    path = c.node.settings.topo_file_path
    cannot = why.reason in (Reason.ABSENT, Reason.DENIED)
    words = {Reason.ABSENT: "there is no such file", Reason.DENIED: "this user may not read it"}
    title = (
        f"NCCL cannot open its topology file {path}: {words[why.reason]}"
        if cannot
        else (f"what the topology file {path} says cannot be determined: {why}")
    )
    return Finding(
        state=State.WARN if cannot else State.UNKNOWN,
        subject=_subject(c),
        title=title,
        consequence="NCCL silently ignores it and uses the detected topology"
        if cannot
        else "its values win over the machine's; a wrong one hides GPUs and slow links",
        evidence=(*_quoted(c), Evidence(path, str(why))),
        rule="a file that this user can read",
        fix="make it readable, or unset NCCL_TOPO_FILE" if _quoted(c) else "make it readable",
    )


def _compared(c: Context, file: TopoFile) -> Iterator[Finding]:
    """Judge a file that NCCL reads by what the machine shows."""
    if isinstance(c.node.pci.devices, Missing):
        yield Finding(
            state=State.UNKNOWN,
            subject=_subject(c),
            title=f"whether the topology file fits this machine cannot be determined: PCI devices {c.node.pci.devices}",
            evidence=_quoted(c),
            rule="the file names what the machine shows",
        )
        return
    if not usable_gpus(c.topology):
        raise not_applicable("no GPU that NCCL could use")
    if file.root is None:
        return
    from topocheck.nccl.topofile.compare import compare  # few machines have such a file

    machine = write_topology(c.node, c.topology, judged_version(c), values(c).values)
    found = compare(file.root, machine)
    if not found:
        return
    guest = is_guest(c)
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    yield Finding(
        state=State.NOTE if guest else State.WARN,
        subject=_subject(c),
        title=f"the topology file {file.path} differs from this {'guest' if guest else 'machine'}: "
        f"{'; '.join(_words(d) for d in found[:2])}{more}",
        consequence=found[0].text
        + ("; the provider may have meant it so" if guest else "; the file's values win over the machine's"),
        evidence=(
            *_quoted(c),
            *(Evidence(f"{file.path}: {d.subject} {d.kind}", d.file or "absent") for d in found[:_TOLD]),
        ),
        rule="; ".join(f"{d.subject} {d.kind}: {d.machine or 'absent'}" for d in found[:_TOLD]) + " on this machine",
        fix=_fix(c),
    )


def _words(d: TopoDifference) -> str:
    if d.kind == "missing":
        return f"{d.subject} is not in it"
    if d.kind == "extra":
        return f"it names {d.subject}, which is not here"
    return f"{d.subject} {d.kind} {d.file or 'none'}, here {d.machine or 'none'}"
