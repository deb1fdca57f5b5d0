"""NVML's answers from the words and numbers that nvidia-smi prints for them.

`nvidia-smi -q` and `-q -x` print the same values under two sets of names; here they have one (the keys of WANTED).
`N/A` is nvidia-smi's word for NVML's "not supported".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from topocheck.host.base import Answer, HostError, key
from topocheck.model.address import normalize_address
from topocheck.model.base import Reason
from topocheck.probes.nvml import enums
from topocheck.readers.base import Answers

Value = tuple[str, int]
"""What stands there, and its line."""

NOT_SUPPORTED = HostError(Reason.UNSUPPORTED, "NVMLError_NotSupported")
_ARCHITECTURES = {"kepler": 2, "maxwell": 3, "pascal": 4, "volta": 5, "turing": 6, "ampere": 7, "ada lovelace": 8,
                  "hopper": 9, "blackwell": 10}  # fmt: skip
"""NVML_DEVICE_ARCH_* of nvml.h (driver 580), by the word that nvidia-smi has for each."""
_REASONS = {
    "idle": 0x1, "applications clocks setting": 0x2, "sw power cap": 0x4, "hw slowdown": 0x8, "sync boost": 0x10,
    "sw thermal slowdown": 0x20, "hw thermal slowdown": 0x40, "hw power brake slowdown": 0x80,
    "display clock setting": 0x100,
}  # fmt: skip
"""nvmlClocksEventReason* of nvml.h, by nvidia-smi's words."""
_HEALTH = {"bandwidth": 0, "route recovery in progress": 2, "route unhealthy": 4, "access timeout recovery": 6}
"""Shift of each field of NVML_GPU_FABRIC_HEALTH_MASK (nvml.h); 1 is true, 2 false, 0 not supported."""
_RETURNS = {text.lower(): number for number, text in enums.RETURN_CODES.items()}


def _text(value: str) -> Answer:
    return value


def _uuid(value: str) -> Answer:
    """Return a UUID; None for one that a cut text ends within. Drivers before 260 print other forms."""
    return value if not value.startswith("GPU-") or re.fullmatch(r"GPU-[0-9A-Fa-f\-]{36}", value) else None


def _integer(value: str) -> Answer:
    m = re.fullmatch(r"(0x[0-9a-fA-F]{1,16}|[0-9]{1,18})(?:x|\s*(?:C|%|MHz))?", value)
    return None if m is None else int(m[1], 16) if m[1].startswith("0x") else int(m[1])


def _switch(value: str) -> Answer:
    return {"enabled": 1, "disabled": 0, "yes": 1, "no": 0}.get(value.lower())


def _word(words: Mapping[int, str]) -> Callable[[str], Answer]:
    plain = {_plain(w): n for n, w in words.items()}
    return lambda value: plain.get(_plain(value))


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())


def _architecture(value: str) -> Answer:
    return _ARCHITECTURES.get(value.lower())


def _performance(value: str) -> Answer:
    m = re.fullmatch(r"P([0-9]{1,2})", value)
    return int(m[1]) if m else None


WANTED: dict[str, tuple[tuple[str | int, ...], Callable[[str], Answer]]] = {
    "uuid": (("DeviceGetUUID",), _uuid),
    "name": (("DeviceGetName",), _text),
    "minor": (("DeviceGetMinorNumber",), _integer),
    "serial": (("DeviceGetSerial",), _text),
    "vbios": (("DeviceGetVbiosVersion",), _text),
    "board id": (("DeviceGetBoardId",), _integer),
    "board part": (("DeviceGetBoardPartNumber",), _text),
    "module id": (("DeviceGetModuleId",), _integer),
    "architecture": (("DeviceGetArchitecture",), _architecture),
    "gen max": (("DeviceGetMaxPcieLinkGeneration",), _integer),
    "gen current": (("DeviceGetCurrPcieLinkGeneration",), _integer),
    "gen device max": (("DeviceGetGpuMaxPcieLinkGeneration",), _integer),
    "width max": (("DeviceGetMaxPcieLinkWidth",), _integer),
    "width current": (("DeviceGetCurrPcieLinkWidth",), _integer),
    "replays": (("DeviceGetPcieReplayCounter",), _integer),
    "performance": (("DeviceGetPerformanceState",), _performance),
    "sm clock": (("DeviceGetClockInfo", 1), _integer),
    "sm clock max": (("DeviceGetMaxClockInfo", 1), _integer),
    "temperature": (("DeviceGetTemperature", 0), _integer),
    "compute mode": (("DeviceGetComputeMode",), _word(enums.COMPUTE_MODES)),
    "persistence": (("DeviceGetPersistenceMode",), _switch),
    "virtualization": (("DeviceGetVirtualizationMode",), _word(enums.VIRTUALIZATION_MODES)),
    "addressing": (("DeviceGetAddressingMode",), _word(enums.ADDRESSING_MODES)),
}
"""Name of a value -> the call with what follows the device's index, and what makes its answer of the text."""


def gpu(found: Answers, index: int, values: Mapping[str, Value]) -> None:
    """Take down NVML's answers about one GPU."""
    for name, (asked, make) in WANTED.items():
        if name in values:
            _put(found, values[name], make, index, *asked)
    if "bus id" in values:
        text, line = values["bus id"]
        found.put(line, {"busId": text}, "nvml", "DeviceGetPciInfo", index)
    for call, names in (("DeviceGetMigMode", ("mig current", "mig pending")),
                        ("DeviceGetEccMode", ("ecc current", "ecc pending"))):  # fmt: skip
        _pair(found, index, call, [values[n] for n in names if n in values])
    for call, name, member in (("DeviceGetMemoryInfo", "memory", ""), ("DeviceGetBAR1MemoryInfo", "bar1", "bar1")):
        _memory(found, index, call, values, name, member)
    if "utilization" in values:
        _put(found, values["utilization"], lambda v: _member("gpu", _integer(v)), index, "DeviceGetUtilizationRates")
    if "c2c" in values:
        _put(found, values["c2c"], lambda v: _member("isC2cEnabled", _switch(v)), index, "DeviceGetC2cModeInfoV")
    _reasons(found, index, values)
    _fabric(found, index, values)


def lost(found: Answers, index: int, line: int, why: str, bus_id: Value | None = None) -> None:
    """Take down that a GPU cannot be had: nvidia-smi prints NVML's reason in place of its values.

    Of one that is lost `bus_id` stays known, as the driver keeps it; any other failure is one of every question.
    """
    if bus_id is not None and "lost" in why.lower() and normalize_address(bus_id[0]):
        found.put(bus_id[1], {"busId": bus_id[0]}, "nvml", "DeviceGetPciInfo", index)
    detail = "NVMLError_GpuIsLost" if "lost" in why.lower() else "NVMLError_Unknown"
    for call in ("DeviceGetPciInfo", "DeviceGetUUID", "DeviceGetName", "DeviceGetMinorNumber"):
        found.put(line, HostError(Reason.UNSUPPORTED, detail), "nvml", call, index)


def _put(
    found: Answers, value: Value, make: Callable[[str], Answer], index: int, call: str | int, *args: int | str
) -> None:
    text, line = value
    if text.strip("[]").upper() in ("N/A", "NOT SUPPORTED"):
        found.put(line, NOT_SUPPORTED, "nvml", str(call), index, *args)
    elif (answer := make(text)) is not None:
        found.put(line, answer, "nvml", str(call), index, *args)


def _member(name: str, value: Answer) -> Answer:
    return None if value is None else {name: value}


def _pair(found: Answers, index: int, call: str, values: list[Value]) -> None:
    if not values:
        return
    numbers = [_switch(text) for text, _ in values]
    if all(text.strip("[]").upper() == "N/A" for text, _ in values):
        found.put(values[0][1], NOT_SUPPORTED, "nvml", call, index)
    elif len(numbers) == 1 and call == "DeviceGetMigMode" and numbers[0] is not None:
        # A list of slices leaves out what is pending.
        found.put(values[0][1], [numbers[0], None], "nvml", call, index)
        found.soft.add(key("nvml", (call, index)))
    elif len(numbers) == 2 and None not in numbers:
        found.put(values[0][1], numbers, "nvml", call, index)


def _memory(found: Answers, index: int, call: str, values: Mapping[str, Value], name: str, member: str) -> None:
    """Sizes stand there in whole MiB; NVML's own are rounded down to them."""
    answer: dict[str, Answer] = {}
    line = 0
    for what in ("total", "used", "free", "reserved"):
        text, at = values.get(f"{name} {what}", ("", 0))
        if m := re.fullmatch(r"([0-9]{1,12}) MiB", text):
            answer[member + what.capitalize() if member else what] = int(m[1]) << 20
            line = line or at
        elif text.strip("[]").upper() == "N/A" and what == "total":
            found.put(at, NOT_SUPPORTED, "nvml", call, index)
    if answer:
        # A member that the text lacks is not one that the driver does not know.
        names = ("total", "used", "free") if member else ("total", "used", "free", "reserved")
        whole = {member + n.capitalize() if member else n: None for n in names}
        found.put(line, {**whole, **answer}, "nvml", call, index)


def _reasons(found: Answers, index: int, values: Mapping[str, Value]) -> None:
    told = {name: values[f"reason {name}"] for name in _REASONS if f"reason {name}" in values}
    if not told or any(text not in ("Active", "Not Active") for text, _ in told.values()):
        return
    mask = sum(_REASONS[name] for name, (text, _) in told.items() if text == "Active")
    found.put(min(line for _, line in told.values()), mask, "nvml", "DeviceGetCurrentClocksEventReasons", index)


def _fabric(found: Answers, index: int, values: Mapping[str, Value]) -> None:
    if "fabric state" not in values:
        return
    text, line = values["fabric state"]
    if text.upper() == "N/A":
        found.put(line, NOT_SUPPORTED, "nvml", "DeviceGetGpuFabricInfoV", index)
        return
    answer: dict[str, Answer] = {}
    if (state := _word(enums.FABRIC_STATES)(text)) is not None:
        answer["state"] = state
    status = _RETURNS.get(values.get("fabric status", ("", 0))[0].lower())
    if status is not None:
        answer["status"] = status
    clique = values.get("fabric clique", ("", 0))[0]
    if re.fullmatch(r"[0-9]{1,9}", clique):
        answer["cliqueId"] = int(clique)
    cluster = values.get("fabric cluster", ("", 0))[0]
    if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", cluster):
        answer["clusterUuid"] = cluster
    mask = _health(values)
    if mask is not None:
        answer["healthMask"] = mask
    if (summary := _word(enums.FABRIC_HEALTH_SUMMARIES)(values.get("health summary", ("", 0))[0])) is not None:
        answer["healthSummary"] = summary
    found.put(line, answer, "nvml", "DeviceGetGpuFabricInfoV", index)


def _health(values: Mapping[str, Value]) -> int | None:
    """Return the mask; None where the text does not tell all four fields of it."""
    mask = 0
    for name, shift in _HEALTH.items():
        text = values.get(f"health {name}", ("", 0))[0].lower()
        code = {"n/a": 0, "true": 1, "degraded": 1, "false": 2, "full": 2}.get(text)
        if code is None:
            return None
        mask |= code << shift
    return mask


def cuda_version(found: Answers, value: Value) -> None:
    """Take down `12.7` as NVML has it: 12070."""
    if m := re.fullmatch(r"([0-9]{1,2})\.([0-9]{1,2})", value[0]):
        found.put(value[1], int(m[1]) * 1000 + int(m[2]) * 10, "nvml", "SystemGetCudaDriverVersion_v2")
