"""Every NVLink of a GPU: state, version, speed, far end, capabilities, error counters."""

from __future__ import annotations

from topocheck.model.base import UNSUPPORTED, Missing, Reason
from topocheck.model.gpu import NvLink
from topocheck.probes.nvml import enums as words
from topocheck.probes.nvml import fields
from topocheck.probes.nvml.fields import parse_field_values
from topocheck.probes.nvml.pcie import counters
from topocheck.probes.nvml.queries import Asked, as_flag, evidence_name, evidence_text, parse_bus_id

MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS of nvml.h (driver 580)."""

_NO_SUCH_LINK = frozenset({"NVMLError_InvalidArgument", "NVMLError_NotSupported", "NVMLError_FunctionNotFound"})


def read(gpu: Asked, count: int | Missing) -> tuple[NvLink, ...]:
    """Return the links of a GPU. `count` is how many the driver says there are.

    Where it does not say, every possible link is asked for: one that does not answer is no reason to leave out
    those after it.
    """
    possible = min(count, MAX_LINKS) if isinstance(count, int) else MAX_LINKS
    states: dict[int, bool | Missing] = {}
    for link in range(possible):
        state = gpu.integer("DeviceGetNvLinkState", link, keep=False)
        if isinstance(state, Missing) and isinstance(count, Missing) and state.reason is Reason.NOT_RECORDED:
            break  # a recording that tells nothing of links; how many there are is unknown, and said by their count
        if isinstance(state, Missing) and not isinstance(count, int) and state.detail in _NO_SUCH_LINK:
            if state.detail == "NVMLError_FunctionNotFound":
                break
            continue
        gpu.raw[evidence_name("DeviceGetNvLinkState", (link,))] = evidence_text(state)
        states[link] = as_flag(state)
    if not states:
        return ()
    speeds = _speeds(gpu, max(states) + 1)
    first = next((link for link, active in states.items() if active is True), None)
    common = _Common(gpu, first) if first is not None else None
    return tuple(_link(gpu, link, active, speeds.get(link, UNSUPPORTED), common) for link, active in states.items())


class _Common:
    """What is the same for all links of a GPU, asked of one that is up.

    Each question takes 0.3 ms on an H100, which 18 links would make a good part of a report.
    """

    def __init__(self, gpu: Asked, link: int) -> None:
        flags = {
            name: as_flag(gpu.integer("DeviceGetNvLinkCapability", link, n))
            for n, name in enumerate(words.NVLINK_CAPABILITIES)
        }
        self.capabilities = {name: flag for name, flag in flags.items() if not isinstance(flag, Missing)}
        self.version = words.lookup(words.NVLINK_GENERATIONS, gpu.integer("DeviceGetNvLinkVersion", link))


def _link(gpu: Asked, link: int, active: bool | Missing, speed: int | Missing, common: _Common | None) -> NvLink:
    """An inactive link has no version, far end or counters worth asking for."""
    if active is not True or common is None:
        why = active if isinstance(active, Missing) else Missing(Reason.ABSENT, "inactive")
        return NvLink(link=link, active=active, version=why, speed_mb_s=why, remote_type=why, remote_address=why)
    return NvLink(
        link=link,
        active=active,
        version=common.version,
        speed_mb_s=speed,
        remote_type=words.word(words.NVLINK_REMOTE_TYPES, gpu.integer("DeviceGetNvLinkRemoteDeviceType", link)),
        remote_address=parse_bus_id(gpu.answer("DeviceGetNvLinkRemotePciInfo", link)),
        capabilities=common.capabilities,
        errors=_errors(gpu, link, common.version),
    )


def _errors(gpu: Asked, link: int, version: int | Missing) -> dict[str, int]:
    asked = fields.link_errors(version)
    answer = gpu.answer("DeviceGetFieldValues", fields.link_error_fields(link, asked), keep=False)
    if isinstance(answer, Missing):
        return {}
    errors = counters(parse_field_values(answer), asked, scope=link)
    for name, count in errors.items():
        gpu.raw[f"NVLink {link} {name}"] = str(count)
    return errors


def _speeds(gpu: Asked, links: int) -> dict[int, int | Missing]:
    """Return link -> 10^6 bytes/s; drivers without the field of today have one field for each of twelve links."""
    speeds = _asked_speeds(gpu, fields.link_speed_fields(links), links)
    if not any(isinstance(s, int) for s in speeds.values()):
        old = _asked_speeds(gpu, fields.old_link_speed_fields(links), links)
        speeds |= {link: s for link, s in old.items() if isinstance(s, int)}
    for link, speed in speeds.items():
        gpu.raw[f"NVLink {link} speed"] = evidence_text(speed if isinstance(speed, Missing) else str(speed))
    return speeds


def _asked_speeds(gpu: Asked, question: str, links: int) -> dict[int, int | Missing]:
    answer = gpu.answer("DeviceGetFieldValues", question, keep=False)
    if isinstance(answer, Missing):
        return dict.fromkeys(range(links), answer)
    found: dict[int, int | Missing] = {}
    for (field, scope), speed in parse_field_values(answer).items():
        link = scope if field == fields.NVLINK_SPEED else _old_link(field)
        if link in range(links):
            # The old fields answer 0 for a link that is not there or not up.
            found[link] = speed if isinstance(speed, Missing) or speed > 0 else Missing(Reason.ABSENT, "0 MB/s")
    return found


def _old_link(field: int) -> int:
    return fields.OLD_LINK_SPEEDS.index(field) if field in fields.OLD_LINK_SPEEDS else -1
