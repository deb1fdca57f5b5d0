"""The chip-to-chip links between a GPU and its CPU."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import living, named, quote
from topocheck.checks.shared.fixes import on_node
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Finding, State, known


@check(
    "nvlink.c2c-down",
    title="C2C links between a GPU and its CPU are down",
    severity=State.FAIL,
    reads=("NVML NVML_FI_DEV_C2C_LINK_COUNT, NVML_FI_DEV_C2C_LINK_GET_STATUS",),
    needs=Needs((*GPUS, "nvlink counters")),
)
def c2c_down(c: Context) -> Iterator[Finding]:
    """C2C links between a GPU and its CPU are down.

    Looks at:
        How many chip-to-chip links the GPU of a Grace superchip has, and how many of them are active.

    Why it matters:
        All traffic between GPU memory and the CPU's goes over them, and NICs reach the GPU's memory through them.

    Fix:
        Reset the GPU, then power-cycle the node; a link that stays down needs service.

    Does not apply:
        To GPUs without such links, and where the driver does not give the number of active ones.
    """
    gpus = [g for g in living(c) if g.nvml is not None and known(g.nvml.c2c_links) and g.nvml.c2c_links > 0]
    if not gpus:
        raise not_applicable("no GPU with C2C links")
    for g in gpus:
        assert g.nvml is not None
        active, total = g.nvml.c2c_links_active, g.nvml.c2c_links
        if known(active) and known(total) and active < total:
            yield Finding(
                state=State.FAIL,
                subject=named(g),
                devices=(g.address,),
                title=f"{active} of {total} C2C links active",
                consequence="traffic between its memory and the CPU's is slower by that share",
                evidence=quote(g.nvml, "C2C_LINK_GET_STATUS", f"{active} active of {total}"),
                rule="every C2C link is active",
                fix=on_node(
                    c,
                    "drain the node and reset the GPU (nvidia-smi -r, ends all that runs on it), then power-cycle; a "
                    "link that stays down needs service",
                ),
            )
