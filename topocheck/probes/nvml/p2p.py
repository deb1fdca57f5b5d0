"""What NVML says of each pair of GPUs: P2P status by kind of access, and the common ancestor."""

from __future__ import annotations

from collections.abc import Sequence

from topocheck.host.base import Host, HostError
from topocheck.model.base import Missing, Reason
from topocheck.model.gpu import NvmlGpu, P2pStatus
from topocheck.probes.nvml import words
from topocheck.probes.nvml.asking import LOST, as_integer, evidence_name, evidence_text

KINDS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "pcie": 4}
"""Field of P2pStatus -> nvmlGpuP2PCapsIndex_t (4 was called PROP before it was called PCI)."""


def read(host: Host, gpus: Sequence[NvmlGpu], raw: dict[str, str]) -> tuple[P2pStatus, ...]:
    """Return the statuses of every ordered pair of GPUs with known addresses; fills `raw`.

    A pair with a lost GPU is listed with that as its reason, and not asked about.
    """
    pairs = []
    ancestors: dict[frozenset[int], str | Missing] = {}
    for a in gpus:
        for b in gpus:
            if a.index == b.index or isinstance(a.address, Missing) or isinstance(b.address, Missing):
                continue
            lost = _lost(a, b)
            pair = frozenset((a.index, b.index))
            if pair not in ancestors:
                level = lost or _ask(host, raw, "DeviceGetTopologyCommonAncestor", a.index, b.index)
                ancestors[pair] = words.word(words.ANCESTORS, level)
            kinds = {
                kind: words.word(
                    words.P2P_STATUSES, lost or _ask(host, raw, "DeviceGetP2PStatus", a.index, b.index, number)
                )
                for kind, number in KINDS.items()
            }
            pairs.append(P2pStatus(from_address=a.address, to_address=b.address, ancestor=ancestors[pair], **kinds))
    return tuple(pairs)


def _lost(a: NvmlGpu, b: NvmlGpu) -> Missing | None:
    for gpu in (a, b):
        if gpu.lost:
            return Missing(Reason.UNSUPPORTED, gpu.error or LOST)
    return None


def _ask(host: Host, raw: dict[str, str], call: str, *args: int) -> int | Missing:
    try:
        answer = host.nvml(call, *args)
    except HostError as e:
        answer = e.missing()
    raw[evidence_name(call, args)] = evidence_text(answer)
    return as_integer(answer)
