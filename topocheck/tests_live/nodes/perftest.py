"""perftest (ib_write_bw, ib_write_lat of linux-rdma/perftest): how it is called and what it prints.

Its default unit is written `MB/sec` (in newer versions `MiB/sec`) and is 2^20 bytes; with --report_gbits it is
10^9 bits a second. Both become GB/s, 10^9 bytes.
"""

from __future__ import annotations

import ipaddress
import re

import msgspec

UNITS = {"MB/sec": (1 << 20) / 1e9, "MiB/sec": (1 << 20) / 1e9, "Gb/sec": 0.125}
"""Unit in the heading -> GB/s for one of it (perftest_parameters.h, RESULT_FMT and RESULT_FMT_G)."""

_DEVICE = re.compile(r"\A(?!-)[A-Za-z0-9_.-]{1,64}\Z")
_BW_HEAD = re.compile(r"#bytes\s+#iterations\s+BW peak\[(?P<unit>[^\]]+)\]\s+BW average\[(?P<same>[^\]]+)\]")
_LAT_HEAD = re.compile(r"#bytes\s+#iterations\s+t_min\[usec\]\s+t_max\[usec\]\s+t_typical\[usec\]")


class PerftestError(ValueError):
    """Not what perftest prints; says what was expected."""


class WriteBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ib_write_bw; rates in GB/s."""

    size_bytes: int
    iterations: int
    peak_gb_s: float
    average_gb_s: float


class WriteLatency(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ib_write_lat, in microseconds; `typical_us` is the median, of half a round trip."""

    size_bytes: int
    iterations: int
    min_us: float
    max_us: float
    typical_us: float


def parse_bandwidth(text: str) -> tuple[WriteBandwidth, ...]:
    """Return the rows of ib_write_bw.

    Raises:
        PerftestError: no heading, an unknown unit, or no row.
    """
    head = _BW_HEAD.search(text)
    if head is None:
        raise PerftestError("ib_write_bw: expected a heading with `BW peak[...]` and `BW average[...]`")
    unit = head["unit"].strip()
    if unit not in UNITS or head["same"].strip() != unit:
        raise PerftestError(f"ib_write_bw: unit {unit[:20]!r} is not one of {', '.join(UNITS)}")
    rows = [
        WriteBandwidth(
            size_bytes=int(n[0]),
            iterations=int(n[1]),
            peak_gb_s=n[2] * UNITS[unit],
            average_gb_s=n[3] * UNITS[unit],
        )
        for n in _rows(text[head.end() :], 4)
    ]
    if not rows:
        raise PerftestError("ib_write_bw: expected a row of numbers below the heading")
    return tuple(rows)


def parse_latency(text: str) -> tuple[WriteLatency, ...]:
    """Return the rows of ib_write_lat.

    Raises:
        PerftestError: no heading or no row.
    """
    head = _LAT_HEAD.search(text)
    if head is None:
        raise PerftestError("ib_write_lat: expected a heading with `t_min[usec] t_max[usec] t_typical[usec]`")
    rows = [
        WriteLatency(size_bytes=int(n[0]), iterations=int(n[1]), min_us=n[2], max_us=n[3], typical_us=n[4])
        for n in _rows(text[head.end() :], 5)
    ]
    if not rows:
        raise PerftestError("ib_write_lat: expected a row of numbers below the heading")
    return tuple(rows)


def _rows(text: str, least: int) -> list[list[float]]:
    out = []
    for line in text.splitlines():
        words = line.split()
        if (
            len(words) < least
            or not re.fullmatch(r"[0-9]{1,15}", words[0])
            or not re.fullmatch(r"[0-9]{1,15}", words[1])
        ):
            continue
        if all(re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", w) for w in words[:least]):
            out.append([float(w) for w in words[:least]])
    return out


def command(program: str, device: str, port: int, server: str | None) -> list[str]:
    """Return the command of one side; the other node's address makes it the client.

    The bandwidth is asked for in Gb/s, so that no reader of the raw text takes 2^20 for 10^6.

    Args:
        program: path of the program.
        device: name of an InfiniBand device of this node.
        port: where the server listens.
        server: address in numbers.

    Raises:
        ValueError: a name or number that these cannot be, or that would be taken for an option.
    """
    if not _DEVICE.match(device):
        raise ValueError(f"{device[:64]!r} is no name of a device")
    if not 0 < port < 1 << 16:
        raise ValueError(f"{port} is no port")
    argv = [program, "-d", device, "-p", str(port), "-F"]
    if program.endswith("_bw"):
        argv += ["--report_gbits", "-s", str(1 << 20), "-D", "2"]
    return argv + ([str(ipaddress.ip_address(server))] if server else [])
