"""Settings of programs other than NCCL that move P2P, devices or transports."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.settings import active_nics, quoted
from topocheck.checks.sources import GPUDIRECT, GPUS, PEERS, Needs
from topocheck.gpudirect.types import P2pVerdict
from topocheck.knowledge.other_settings import OtherSetting, acts, means_no, names_in, other_settings
from topocheck.model.base import Evidence, Finding, State, Verdict, known
from topocheck.model.system import Setting


def _pairs(c: Context, *, proven: bool) -> list[P2pVerdict]:
    """Return the GPU pairs whose peer access is proven to be there, or those where it is not; each pair once."""
    found = {frozenset((v.from_, v.to)): v for v in c.gpudirect.p2p if (v.verdict is Verdict.YES) is proven}
    return list(found.values())


def _moved(c: Context, row: OtherSetting, s: Setting) -> tuple[State, str, tuple[Evidence, ...]] | None:
    """Return the state, what it means for this machine, and evidence of the machine; None where it moves nothing."""
    if row.moves in ("p2p_on", "p2p_trust"):
        doubtful = _pairs(c, proven=False)
        if not c.gpudirect.p2p:
            return None
        against = row.reads == "presence" and means_no(s.value)
        what = f"{len(doubtful)} of {len(doubtful) + len(_pairs(c, proven=True))} GPU pairs have no proven peer access"
        if not doubtful and not against:
            return None
        state = State.WARN if against or row.moves == "p2p_trust" else State.NOTE
        evidence = tuple(Evidence(f"P2P verdict {v.from_} {v.to}", v.verdict.value) for v in doubtful[:2])
        return state, what if doubtful else "all GPU pairs here have peer access", evidence
    if row.moves == "p2p_off":
        pairs = _pairs(c, proven=True)
        have = "1 GPU pair here has" if len(pairs) == 1 else f"{len(pairs)} GPU pairs here have"
        return (State.WARN, f"{have} peer access", ()) if pairs else None
    if row.moves == "gdr_off":
        able = [v for v in c.gpudirect.rdma if v.verdict is Verdict.YES]
        return (State.WARN, f"{len(able)} GPU-NIC pairs here can do GPUDirect RDMA", ()) if able else None
    if row.moves == "rdma_off":
        nics = active_nics(c)
        return (State.WARN, f"{listed(n.label for n in nics)} would be used", ()) if nics else None
    if row.moves == "unified":
        return (State.WARN if means_no(s.value) else State.NOTE), "GPUs are here", ()
    if row.moves == "schedule":
        return State.NOTE, f"this machine has {len(c.topology.gpus)} GPUs", ()
    return _absent(c, row, s)


def _absent(c: Context, row: OtherSetting, s: Setting) -> tuple[State, str, tuple[Evidence, ...]] | None:
    """Return which names of a list are not here; addresses and subnets are passed over."""
    names = [n for n in names_in(s.value) if not any(x in n for x in "/.*[")]
    if row.moves == "interface":
        if not known(c.node.net.interfaces) or s.value.startswith("^"):
            return None
        here = {i.name for i in c.node.net.interfaces}
        missing = [n for n in names if n.partition(":")[0] not in here]
    else:
        here = {n.label for n in c.topology.nics}
        here |= {i.name for i in c.node.net.interfaces} if known(c.node.net.interfaces) else set()
        # UCX also takes the names of other transports' devices.
        missing = [n for n in names if n.partition(":")[0] not in here | {"all", "cuda", "memory", "sysv", "posix"}]
    if not missing or "all" in names or s.value.startswith("^") or not here:
        return None
    return State.WARN, f"{listed(missing)} is not here", (Evidence("here", listed(sorted(here), 8)),)


@check(
    "nccl.other-programs",
    title="A setting of another program moves P2P, devices or transports",
    severity=State.WARN,
    reads=("environment of UCX, MPI, Gloo, PyTorch, vLLM, SGLang, llama.cpp, NVSHMEM, Dask, MSCCL",),
    needs=Needs((*GPUS, "settings"), (*PEERS, *GPUDIRECT, "interfaces")),
    scope=Scope.PROCESS,
)
def other_programs(c: Context) -> Iterator[Finding]:
    """A variable that a program other than NCCL reads changes which path its data takes on this machine.

    Looks at:
        The variables of a table (knowledge/data/other_settings.tsv): who reads each, whether by its value or by its
        presence alone, and what it changes, against the GPU pairs, NICs and interfaces of this machine.

    Why it matters:
        A variable that counts by its presence switches on what `=0` was meant to switch off. A skipped P2P test lets
        wrong data through where the driver offers P2P that does not work. A list of another machine's interfaces
        ends the job at its start.

    Fix:
        The finding names it; most often unset the variable.

    Does not apply:
        None of these variables is set, or no GPU is here. A switch-off is reported only where this machine has what
        is switched off.
    """
    rows = {r.name: r for r in other_settings()}
    found = [(rows[s.name], s) for s in c.node.settings.related if s.name in rows and s.in_force]
    if not found or not c.topology.gpus:
        raise not_applicable("no such setting is in force" if c.topology.gpus else "no NVIDIA GPU")
    for row, s in found:
        if row.reads not in ("interfaces", "devices") and not acts(row, s.value):
            continue
        moved = _moved(c, row, s)
        if moved is None:
            continue
        state, here, evidence = moved
        against = row.reads == "presence" and means_no(s.value)
        yield Finding(
            id="nccl.other-programs",
            state=state,
            subject=s.name,
            title=f"{s.name}={s.value} of {row.reader}"
            + (": it counts by its presence, so this value does not switch it off" if against else "")
            + f"; {here}",
            consequence=row.effect,
            evidence=(*quoted(s), *evidence),
            rule=f"{row.reader} reads it by {'presence' if row.reads == 'presence' else 'value'} ({row.source})",
            fix=row.fix,
        )
