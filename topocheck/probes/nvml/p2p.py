"""What NVML says of each pair of GPUs: P2P status by kind of access, and the common ancestor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from topocheck.host.base import Host, HostError, each_named
from topocheck.model.base import Missing, Reason
from topocheck.model.gpu import NvmlGpu, P2pStatus
from topocheck.probes.nvml import enums as words
from topocheck.probes.nvml.queries import LOST, as_integer, evidence_text

KINDS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "pcie": 4}
"""Field of P2pStatus, in this order -> nvmlGpuP2PCapsIndex_t (4 was called PROP before it was called PCI)."""

ALL_KINDS_UP_TO = 64
"""GPUs up to which all kinds are asked; of more, only those that verdicts stand on. NVIDIA's driver takes 32 GPUs
(NV_MAX_DEVICES, nvlimits.h), and the number of pairs grows with the square."""
_UNUSED = ("atomics", "pcie")


def read(host: Host, gpus: Sequence[NvmlGpu], raw: dict[str, str]) -> tuple[P2pStatus, ...]:
    """Return the statuses of every ordered pair of GPUs with known addresses; fills `raw`.

    A pair with a lost GPU is listed with that as its reason, and not asked about.
    """
    placed = [(g.address, g) for g in gpus if not isinstance(g.address, Missing)]
    pairs = [(a, b) for a in placed for b in placed if a[1].index != b[1].index]
    lost = {g.index for _, g in placed if g.lost}
    asked = [(a.index, b.index) for (_, a), (_, b) in pairs if not (lost and (a.index in lost or b.index in lost))]
    once = dict.fromkeys((i, j) if i < j else (j, i) for i, j in asked)
    ancestors = dict(zip(once, _ask(host, raw, words.ANCESTORS, "DeviceGetTopologyCommonAncestor", once), strict=True))
    unused = () if len(placed) <= ALL_KINDS_UP_TO else _UNUSED
    told = zip(
        *(
            [_NOT_ASKED] * len(asked)
            if kind in unused
            else _ask(host, raw, words.P2P_STATUSES, "DeviceGetP2PStatus", [(i, j, number) for i, j in asked])
            for kind, number in KINDS.items()
        ),
        strict=True,
    )
    out = []
    for (from_, a), (to, b) in pairs:
        i, j = a.index, b.index
        why = _lost(a, b) if lost and (i in lost or j in lost) else None
        ancestor = why or ancestors[(i, j) if i < j else (j, i)]
        row = next(told) if why is None else [_NOT_ASKED if kind in unused else why for kind in KINDS]
        reads, writes, nvlink, atomics, pcie = row
        out.append(
            P2pStatus(
                from_address=from_,
                to_address=to,
                read=reads,
                write=writes,
                nvlink=nvlink,
                atomics=atomics,
                pcie=pcie,
                ancestor=ancestor,
            )
        )
    return tuple(out)


_NOT_ASKED = Missing(Reason.NOT_RECORDED, f"not asked of more than {ALL_KINDS_UP_TO} GPUs")


def _lost(a: NvmlGpu, b: NvmlGpu) -> Missing | None:
    for gpu in (a, b):
        if gpu.lost:
            return Missing(Reason.UNSUPPORTED, gpu.error or LOST)
    return None


def _ask(
    host: Host, raw: dict[str, str], meanings: Mapping[int, str], call: str, arguments: Collection[tuple[int, ...]]
) -> list[str | Missing]:
    """Return what the numbers mean that NVML answers to a call with each of some arguments.

    Where each is a number that is known, none is kept in `raw`: the word says as much (`raw_p2p_code`).
    """
    out: list[str | Missing] = []
    answers = host.nvml_each(call, arguments)
    numbers = [a for a in answers if type(a) is int]
    if len(numbers) == len(answers) and meanings.keys() >= set(numbers):
        return [meanings[n] for n in numbers]
    names = each_named(f"{call}(", ", ", ")", arguments)  # as `evidence_name` has it
    for name, answer in zip(names, answers, strict=True):
        if type(answer) is int and answer in meanings:
            raw[name] = str(answer)
            out.append(meanings[answer])
            continue
        found = answer.missing() if isinstance(answer, HostError) else answer
        raw[name] = evidence_text(found)
        out.append(words.word(meanings, as_integer(found)))
    return out
