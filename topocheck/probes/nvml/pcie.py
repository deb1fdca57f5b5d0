"""The PCIe link of a GPU as its driver sees it, chip-to-chip links, and the driver's error counters."""

from __future__ import annotations

from typing import Any

from topocheck.model.base import Missing, Reason
from topocheck.probes.nvml import fields
from topocheck.probes.nvml.fields import parse_field_values
from topocheck.probes.nvml.queries import Asked, as_flag, member

Values = dict[tuple[int, int], int | Missing]

_MAX_C2C_LINKS = 64


def read(gpu: Asked, values: Values | Missing) -> dict[str, Any]:
    """Return the PCIe and C2C fields of NvmlGpu. `values` are the GPU's own field values."""
    replays = gpu.integer("DeviceGetPcieReplayCounter")
    if isinstance(replays, Missing):
        replays = value(values, fields.PCIE_REPLAYS, replays)
    links = value(values, fields.C2C_LINK_COUNT)
    return {
        "pcie_gen_current": _positive(gpu.integer("DeviceGetCurrPcieLinkGeneration")),
        "pcie_gen_max": _positive(gpu.integer("DeviceGetMaxPcieLinkGeneration")),
        "pcie_gen_device_max": _positive(gpu.integer("DeviceGetGpuMaxPcieLinkGeneration")),
        "pcie_width_current": _positive(gpu.integer("DeviceGetCurrPcieLinkWidth")),
        "pcie_width_max": _positive(gpu.integer("DeviceGetMaxPcieLinkWidth")),
        "pcie_replays": replays,
        "pcie_errors": counters(values, fields.PCIE_ERRORS, scope=0),
        "c2c_enabled": as_flag(member(gpu.struct("DeviceGetC2cModeInfoV"), "isC2cEnabled")),
        "c2c_links": links,
        "c2c_links_active": _c2c_active(gpu, links),
        "c2c_link_mb_s": value(values, fields.C2C_LINK_MAX_BANDWIDTH),
    }


def value(values: Values | Missing, field: int, otherwise: Missing | None = None) -> int | Missing:
    """Return one field value of a GPU, or why there is none (`otherwise`, where given)."""
    if isinstance(values, Missing):
        return otherwise or values
    found = values.get((field, 0), Missing(Reason.UNSUPPORTED, f"field {field} not answered"))
    return otherwise if isinstance(found, Missing) and otherwise else found


def counters(values: Values | Missing, names: dict[int, str], scope: int) -> dict[str, int]:
    """Return name -> count for the fields that were answered."""
    if isinstance(values, Missing):
        return {}
    found = {name: values.get((field, scope)) for field, name in names.items()}
    return {name: n for name, n in found.items() if isinstance(n, int)}


def _positive(number: int | Missing) -> int | Missing:
    """A generation or width of 0 is no link at all, which the driver could not read."""
    return number if number else Missing(Reason.ABSENT, "0")


def _c2c_active(gpu: Asked, links: int | Missing) -> int | Missing:
    if isinstance(links, Missing):
        return links
    if not 0 < links <= _MAX_C2C_LINKS:
        return Missing(Reason.ABSENT, f"{links} links")
    answer = gpu.answer("DeviceGetFieldValues", fields.c2c_status_fields(links))
    if isinstance(answer, Missing):
        return answer
    states = parse_field_values(answer)
    known = [s for s in states.values() if isinstance(s, int)]
    return sum(s == 1 for s in known) if known else next(iter(states.values()), Missing(Reason.UNSUPPORTED))
