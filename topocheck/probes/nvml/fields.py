"""Field values: what NVML answers many at a time (NVML_FI_DEV_* of nvml.h), and the groups they are asked in.

One question holds one group, so that a GPU costs one call for all of its own counters and one for each link.
"""

from __future__ import annotations

from typing import Any

from topocheck.model.base import Missing, Reason, unparsable
from topocheck.probes.nvml.enums import return_code

PCIE_REPLAYS = 94
C2C_LINK_COUNT = 170
C2C_LINK_STATUS = 171
C2C_LINK_MAX_BANDWIDTH = 172
NVLINK_COUNT = 91
NVLINK_SPEED = 164

PCIE_ERRORS = {
    95: "replay_rollovers",
    169: "recoveries",
    173: "correctable_errors",
    174: "naks_received",
    175: "receiver_errors",
    176: "bad_tlps",
    177: "naks_sent",
    178: "bad_dllps",
    179: "non_fatal_errors",
    180: "fatal_errors",
    181: "unsupported_requests",
    182: "lcrc_errors",
    183: "lane_errors",
}
"""Field -> name in NvmlGpu.pcie_errors. `recoveries` counts the link leaving L0 for Recovery, which a change of
speed does too. Links retrain at start-up, so that healthy idle H100s show hundreds of recoveries and tens of receiver
errors, bad TLPs and lane errors: a count that is not zero is no fault by itself, one that grows may be."""

NVLINK_ERRORS = {161: "replay", 162: "recovery", 163: "crc"}
"""Field, asked with the link as its scope -> name in NvLink.errors: what `nvidia-smi nvlink -e` prints.

NVML's older call for error counters is not asked: on Hopper its data CRC counter runs on healthy links for which
these say 0.
"""

NVLINK5_ERRORS = NVLINK_ERRORS | {
    206: "malformed_packets",
    207: "buffer_overruns",
    208: "receive_errors",
    209: "receive_remote_errors",
    210: "receive_general_errors",
    211: "local_link_integrity_errors",
    212: "transmit_discards",
    213: "link_recoveries_successful",
    214: "link_recoveries_failed",
    215: "link_recoveries",
    219: "effective_errors",
    221: "symbol_errors",
}
"""The counters that came with NVLink 5; asked of no older link, since every field costs a tenth of a millisecond."""

DEVICE_FIELDS = (NVLINK_COUNT, PCIE_REPLAYS, *PCIE_ERRORS, C2C_LINK_COUNT, C2C_LINK_MAX_BANDWIDTH)

OLD_LINK_SPEEDS = (84, 85, 86, 87, 88, 89, 132, 133, 134, 135, 136, 137)
"""NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 to _L11, for drivers that do not know NVLINK_SPEED."""


def device_fields() -> str:
    """Return the argument that asks for a GPU's own fields."""
    return ",".join(f"{field}:0" for field in DEVICE_FIELDS)


def link_speed_fields(links: int) -> str:
    """Return the argument that asks for the speed of links 0 to `links` - 1."""
    return ",".join(f"{NVLINK_SPEED}:{link}" for link in range(links))


def link_errors(version: int | Missing) -> dict[int, str]:
    """Return the counters of a link of an NVLink version; all of them where it is not reported."""
    return NVLINK_ERRORS if isinstance(version, int) and version < 5 else NVLINK5_ERRORS


def link_error_fields(link: int, asked: dict[int, str]) -> str:
    """Return the argument that asks for the error counters of one link."""
    return ",".join(f"{field}:{link}" for field in asked)


def old_link_speed_fields(links: int) -> str:
    """Return the argument that asks an older driver for the speed of at most twelve links."""
    return ",".join(f"{field}:0" for field in OLD_LINK_SPEEDS[:links])


def c2c_status_fields(links: int) -> str:
    """Return the argument that asks for the status of each chip-to-chip link."""
    return ",".join(f"{C2C_LINK_STATUS}:{link}" for link in range(links))


NOT_GIVEN = -1
"""In place of NVML's return code: a text (readers/) tells other fields of the same question."""


def with_count(count: int) -> list[list[int | None]]:
    """Return the device's fields as a text answers them that tells the number of NVLinks alone."""
    others = [f for f in DEVICE_FIELDS if f != NVLINK_COUNT]
    return [[NVLINK_COUNT, 0, count, 0], *([f, 0, None, NOT_GIVEN] for f in others)]


def parse_field_values(answer: Any) -> dict[tuple[int, int], int | Missing]:
    """Return (field, scope) -> value, from a list of [field, scope, value or None, return code].

    A field that NVML answered with an error is Missing(unsupported) with the code in words. Entries of another
    form are left out: they cannot be distinguished. Never raises.
    """
    values: dict[tuple[int, int], int | Missing] = {}
    for entry in answer if isinstance(answer, list) else ():
        if not isinstance(entry, list) or len(entry) != 4:
            continue
        field, scope, value, code = entry
        if not (type(field) is type(scope) is type(code) is int):  # and no bool
            continue
        if code == NOT_GIVEN:
            values[field, scope] = Missing(Reason.NOT_RECORDED, f"field {field} is not in the given text")
        elif code != 0:
            values[field, scope] = Missing(Reason.UNSUPPORTED, return_code(code))
        else:
            values[field, scope] = value if type(value) is int and 0 <= value < 1 << 64 else unparsable(repr(value))
    return values
