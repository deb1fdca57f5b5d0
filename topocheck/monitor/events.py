"""Events of GPUs by NVML's event set: Xids and other faults, which the driver keeps until they are asked for.

Neither root nor a wait is needed: each sample takes what has come since the one before. A GPU that is suspended is
registered once it is awake, since registering would wake it.
"""

from __future__ import annotations

from topocheck.host.base import Host, HostError
from topocheck.knowledge.xids import EVENTS, XID_EVENT
from topocheck.model.base import NOT_RECORDED, Missing, Reason
from topocheck.monitor.plan import Plan
from topocheck.overtime.types import GpuEvent

MASK = XID_EVENT | sum(EVENTS)
WORDS = 5
"""Numbers of one event."""


class Events:
    """The events of the GPUs of a plan. `refused` has address -> why a GPU's events are not sent."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._asked: set[str] = set()
        self._sent = False
        self.refused: dict[str, Missing] = {}

    def register(self, host: Host, awake: frozenset[str]) -> None:
        """Register the GPUs that are awake and were not asked before."""
        for gpu in self._plan.gpus:
            if gpu.address not in awake or gpu.address in self._asked:
                continue
            self._asked.add(gpu.address)
            try:
                types = host.nvml("EventSetRegister", gpu.index, MASK)
            except HostError as e:
                self.refused[gpu.address] = e.missing()
                continue
            if not types:
                self.refused[gpu.address] = Missing(Reason.UNSUPPORTED, "the GPU has no event of these types")
            self._sent = self._sent or bool(types)

    def take(self, host: Host) -> tuple[GpuEvent, ...]:
        """Return what has come; nothing where nothing was registered."""
        if not self._sent:
            return ()
        try:
            answer = host.nvml("EventSetWait", 0)
        except HostError as e:
            self._sent = False
            self.refused.update({g.address: e.missing() for g in self._plan.gpus if g.address in self._asked})
            return ()
        addresses = {g.index: g.address for g in self._plan.gpus}
        return tuple(
            _event(addresses[e[0]], e)
            for e in (answer if isinstance(answer, list) else ())
            if isinstance(e, list) and len(e) == WORDS and e[0] in addresses
        )


def _event(address: str, e: list[int | None]) -> GpuEvent:
    _, type_, data, gpu, compute = e
    return GpuEvent(
        address=address,
        type=type_ or 0,
        data=data or 0,
        gpu_instance=NOT_RECORDED if gpu is None else gpu,
        compute_instance=NOT_RECORDED if compute is None else compute,
    )
