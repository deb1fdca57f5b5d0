"""What NVML says of each pair of GPUs: P2P status by kind of access, and the common ancestor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from topocheck.host.base import Host, HostError, each_named
from topocheck.model.base import Missing, Reason
from topocheck.model.gpu import NvmlGpu, P2pStatus
from topocheck.probes.nvml import enums as words
from topocheck.probes.nvml.queries import LOST, as_integer, evidence_text

KINDS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "pcie": 4}
"""Field of P2pStatus -> nvmlGpuP2PCapsIndex_t (4 was called PROP before it was called PCI)."""

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
    asked = [(a.index, b.index) for (_, a), (_, b) in pairs if not (a.lost or b.lost)]
    once = dict.fromkeys((min(i, j), max(i, j)) for i, j in asked)
    ancestors = dict(zip(once, _ask(host, raw, words.ANCESTORS, "DeviceGetTopologyCommonAncestor", once), strict=True))
    kinds = {k: n for k, n in KINDS.items() if len(placed) <= ALL_KINDS_UP_TO or k not in _UNUSED}
    told = zip(
        *(
            _ask(host, raw, words.P2P_STATUSES, "DeviceGetP2PStatus", [(i, j, number) for i, j in asked])
            for number in kinds.values()
        ),
        strict=True,
    )
    not_asked = dict.fromkeys(KINDS.keys() - kinds.keys(), _NOT_ASKED)
    lost = {g.index for _, g in placed if g.lost}
    out = []
    for (from_, a), (to, b) in pairs:
        why = _lost(a, b) if a.index in lost or b.index in lost else None
        status = dict(zip(kinds, next(told), strict=True)) if why is None else dict.fromkeys(kinds, why)
        ancestor = why or ancestors[(a.index, b.index) if a.index < b.index else (b.index, a.index)]
        out.append(P2pStatus(from_address=from_, to_address=to, ancestor=ancestor, **status, **not_asked))
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
    """Return what the numbers mean that NVML answers to a call with each of some arguments."""
    out: list[str | Missing] = []
    names = each_named(f"{call}(", ", ", ")", arguments)  # as `evidence_name` has it
    answers = host.nvml_each(call, arguments)
    numbers = [a for a in answers if type(a) is int]
    if len(numbers) == len(answers) and meanings.keys() >= set(numbers):  # nothing odd in any of them
        raw.update(zip(names, map(str, numbers), strict=True))
        return [meanings[n] for n in numbers]
    for name, answer in zip(names, answers, strict=True):
        if type(answer) is int and answer in meanings:
            raw[name] = str(answer)
            out.append(meanings[answer])
            continue
        found = answer.missing() if isinstance(answer, HostError) else answer
        raw[name] = evidence_text(found)
        out.append(words.word(meanings, as_integer(found)))
    return out
