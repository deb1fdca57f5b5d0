"""A GPU's registration with the NVLink fabric (NVSwitch, fabric manager, IMEX)."""

from __future__ import annotations

from typing import Any

from topocheck.model.base import Missing, Reason, unparsable
from topocheck.probes.nvml import enums as words
from topocheck.probes.nvml.queries import Asked, as_text, member

_COMPLETED = "Completed"
_OTHERS = (
    "fabric_status",
    "fabric_clique",
    "fabric_cluster_uuid",
    "fabric_health_mask",
    "fabric_health_summary",
)


def read(gpu: Asked) -> dict[str, Any]:
    """Return the fabric fields of NvmlGpu."""
    return parse_fabric(gpu.answer("DeviceGetGpuFabricInfoV"))


def parse_fabric(answer: Any) -> dict[str, Any]:
    """Return the fabric fields of NvmlGpu from NVML's struct. Never raises.

    Clique and cluster have a meaning only once the registration is completed; before that NVML fills them with
    zeros, which are also a valid answer (a single node has clique 0 and the zero cluster UUID). A GPU that belongs
    to no fabric answers `Success` beside its state `Not Supported`; that status says nothing and is left out.
    """
    if not isinstance(answer, (dict, Missing)):
        answer = unparsable(repr(answer))
    state = words.word(words.FABRIC_STATES, member(answer, "state"))
    status = member(answer, "status")
    registered: int | Missing = member(answer, "cliqueId")
    cluster = answer if isinstance(answer, Missing) else as_text(answer.get("clusterUuid", unparsable("")))
    if state == words.FABRIC_STATES[0]:
        why = Missing(Reason.UNSUPPORTED, f"fabric state {state}")
        return {"fabric_state": state} | dict.fromkeys(_OTHERS, why)
    if not isinstance(state, Missing) and state != _COMPLETED:
        registered = cluster = Missing(Reason.ABSENT, f"fabric state {state}")
    return {
        "fabric_state": state,
        "fabric_status": status if isinstance(status, Missing) else words.return_code(status),
        "fabric_clique": registered,
        "fabric_cluster_uuid": cluster,
        "fabric_health_mask": member(answer, "healthMask"),
        "fabric_health_summary": words.word(words.FABRIC_HEALTH_SUMMARIES, member(answer, "healthSummary")),
    }
