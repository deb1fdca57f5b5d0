"""Which GPU this is: address, UUID, names, memory."""

from __future__ import annotations

from typing import Any

from topocheck.model.base import Missing
from topocheck.probes.nvml.queries import GONE, Asked, member, parse_bus_id


def read(gpu: Asked) -> dict[str, Any]:
    """Return the identity fields of NvmlGpu, `lost` and `error` included."""
    fields: dict[str, Any] = {
        "address": parse_bus_id(gpu.answer("DeviceGetPciInfo")),
        "uuid": gpu.text("DeviceGetUUID"),
        "name": gpu.text("DeviceGetName"),
        "minor": gpu.integer("DeviceGetMinorNumber"),
    }
    error, lost = handle_error(list(fields.values()))
    if not error and (silent := _silent(gpu, fields["name"])):
        error, lost = silent, True
    if error:
        fields |= {"lost": lost, "error": error}
    if lost:
        return fields
    major, minor = gpu.pair("DeviceGetCudaComputeCapability")
    memory = gpu.struct("DeviceGetMemoryInfo")
    bar1 = gpu.struct("DeviceGetBAR1MemoryInfo")
    return fields | {
        "serial": gpu.text("DeviceGetSerial"),
        "board_part_number": gpu.text("DeviceGetBoardPartNumber"),
        "board_id": gpu.integer("DeviceGetBoardId"),
        "module_id": gpu.integer("DeviceGetModuleId"),
        "architecture": gpu.integer("DeviceGetArchitecture"),
        "compute_capability": dotted(major, minor),
        "vbios": gpu.text("DeviceGetVbiosVersion"),
        "memory_total_bytes": member(memory, "total"),
        "memory_used_bytes": member(memory, "used"),
        "bar1_total_bytes": member(bar1, "bar1Total"),
    }


def dotted(major: int | Missing, minor: int | Missing) -> str | Missing:
    """Return `9.0` for 9 and 0."""
    if isinstance(major, Missing):
        return major
    return minor if isinstance(minor, Missing) else f"{major}.{minor}"


def _silent(gpu: Asked, name: str | Missing) -> str:
    """Return the error of a GPU whose firmware (GSP) no longer answers the driver; else empty.

    The driver remembers its address and UUID; its name and its performance state it cannot tell. One of them alone is
    the failure of one call.
    """
    if not isinstance(name, Missing) or name.detail not in GONE:
        return ""
    state = gpu.integer("DeviceGetPerformanceState")
    return name.detail if isinstance(state, Missing) and state.detail in GONE else ""


def handle_error(answers: list[Any]) -> tuple[str, bool]:
    """Return what stood in the way of every question of identity, and whether that means that the GPU is gone.

    Denied and timed out are an error and no loss: such a GPU may be well. Empty where one question was answered.
    """
    failures = [a for a in answers if isinstance(a, Missing)]
    if not failures or len(failures) < len(answers):
        return "", False
    same = len({f.detail for f in failures}) == 1
    lost = same and failures[0].detail in GONE
    return (failures[0].detail if lost else str(failures[0])), lost
