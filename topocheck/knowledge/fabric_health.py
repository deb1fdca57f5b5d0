"""NVML's health mask of a GPU's NVLink fabric: bit fields and what their values mean.

Source: nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_* (nvidia-ml-py 13.580), and the summary of the same header.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Weight = Literal["fail", "warn"]


class Trouble(msgspec.Struct, frozen=True):
    """One field of the mask that is not as it should be.

    `weight` is how bad it is; `even_if_healthy` whether it counts where the driver's summary says Healthy.
    """

    text: str
    weight: Weight
    even_if_healthy: bool = False


class _Field(msgspec.Struct, frozen=True):
    shift: int
    width: int
    bad: dict[int, Trouble]


_FIELDS = (
    _Field(0, 0x3, {1: Trouble("bandwidth is degraded (DEGRADED_BW)", "warn", True)}),
    _Field(2, 0x3, {1: Trouble("a route is being recovered (ROUTE_RECOVERY)", "warn")}),
    _Field(4, 0x3, {1: Trouble("a route is unhealthy (ROUTE_UNHEALTHY)", "fail", True)}),
    _Field(6, 0x3, {1: Trouble("recovering from an access timeout (ACCESS_TIMEOUT_RECOVERY)", "warn")}),
    _Field(
        8,
        0xF,
        {
            n: Trouble(f"incorrect configuration: {what}", "fail", True)
            for n, what in {
                2: "system GUID",
                3: "chassis serial number",
                4: "no partition",
                5: "insufficient NVLinks",
                6: "incompatible GPU firmware",
                7: "invalid location",
                8: "invalid GPU state",
            }.items()
        },
    ),
    _Field(12, 0x3, {2: Trouble("no partition is assigned (PARTITION_ASSIGNED)", "warn")}),
    _Field(14, 0x3, {2: Trouble("the global fabric manager is disconnected (GFM_STATE)", "warn")}),
)


def troubles(mask: int, *, healthy: bool) -> tuple[Trouble, ...]:
    """Return what the mask calls bad, in the order of its fields.

    Args:
        mask: NVML's `healthMask`; 0 says nothing.
        healthy: the driver's summary of the same answer says Healthy.
    """
    found = (f.bad.get(mask >> f.shift & f.width) for f in _FIELDS)
    return tuple(t for t in found if t is not None and (t.even_if_healthy or not healthy))
