"""Link rates: what a PCIe link, an NVLink or a network port carries in one direction, after its line coding.

GB/s is 10^9 bytes a second, Gb/s 10^9 bits. The numbers stand in `data/`, with the standard of each row.
"""

import functools
import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from topocheck.knowledge.tables import Source, Table, digits

WIDTHS = (1, 2, 4, 8, 12, 16, 32)
"""Link widths PCIe knows, in lanes (PCI Express Base Specification 5.0, 7.5.3.6)."""

PAYLOAD_SIZES = (128, 256, 512, 1024, 2048, 4096)
"""Maximum payload sizes PCIe knows, in bytes (PCI Express Base Specification 5.0, 7.5.3.4)."""


Count = Annotated[int, Meta(ge=1, le=1024)]


class PcieGeneration(msgspec.Struct, frozen=True):
    """One generation: transfers a second and lane, and the share of them that is data, or TLP bytes alone."""

    generation: Annotated[int, Meta(ge=1, le=9)]
    speed_gt_s: Annotated[float, Meta(gt=0, le=1024)]
    coding: Literal["8b/10b", "128b/130b", "FLIT 242/256"]
    share_numerator: Count
    share_denominator: Count
    tlp_numerator: Count
    tlp_denominator: Count
    source: Source

    def __post_init__(self) -> None:
        _no_more_than_all(self.share_numerator, self.share_denominator)
        _no_more_than_all(self.tlp_numerator, self.tlp_denominator)

    @property
    def share(self) -> tuple[int, int]:
        """The share of the transfers that is data: (numerator, denominator)."""
        return self.share_numerator, self.share_denominator

    @property
    def tlp_share(self) -> tuple[int, int]:
        """The share of the transfers that is bytes of TLPs: (numerator, denominator)."""
        return self.tlp_numerator, self.tlp_denominator


class NvlinkGeneration(msgspec.Struct, frozen=True):
    """One signalling rate of an NVLink version, MB/s a link and direction, and the share of it that is payload."""

    version: Annotated[int, Meta(ge=1, le=9)]
    signalling_mb_s: Annotated[float, Meta(ge=1000, le=1000000)]
    payload_numerator: Count
    payload_denominator: Count
    seen_on: str
    source: Source

    def __post_init__(self) -> None:
        _no_more_than_all(self.payload_numerator, self.payload_denominator)


class InfinibandRate(msgspec.Struct, frozen=True):
    """One speed of InfiniBand, Gb/s a lane: as the kernel prints it, as signalled, and what of it is data."""

    speed: Literal["SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR"]
    printed_gbit_s_per_lane: Annotated[float, Meta(gt=0, le=1000)]
    signalling_gbit_s_per_lane: Annotated[float, Meta(gt=0, le=1000)]
    share_numerator: Count
    share_denominator: Count
    data_gbit_s_per_lane: Annotated[float, Meta(gt=0, le=1000)]
    coding: Literal["8b/10b", "64b/66b", "PAM4, 256b/257b with RS-FEC(544,514)"]
    source: Source

    def __post_init__(self) -> None:
        data = self.signalling_gbit_s_per_lane * self.share_numerator / self.share_denominator
        if abs(data - self.data_gbit_s_per_lane) > 1e-9:
            raise ValueError(f"data_gbit_s_per_lane is {data!r} by the other columns")


def _no_more_than_all(numerator: int, denominator: int) -> None:
    if numerator > denominator:
        raise ValueError(f"a share of {numerator}/{denominator} is more than all")


_PCIE = Table("pcie_generations", PcieGeneration, key=("generation",))
_NVLINK = Table("nvlink_generations", NvlinkGeneration, key=("version", "signalling_mb_s"))
_INFINIBAND = Table("infiniband_rates", InfinibandRate, key=("speed",))


class PcieThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """What a PCIe link carries, one direction, and what the maximum payload leaves of it.

    Attributes:
        gb_s: after the line coding.
        tlp_gb_s: bytes of TLPs only; below `gb_s` where flits are used (generation 6 and newer).
        payload_share: part of the TLP bytes that is payload in writes of `max_payload_bytes`.
        payload_gb_s: `tlp_gb_s` times that share.
        arithmetic: the calculation in words, one step a line.
    """

    generation: int
    speed_gt_s: float
    width_lanes: int
    coding: str
    gb_s: float
    tlp_gb_s: float
    max_payload_bytes: int
    payload_share: float
    payload_gb_s: float
    arithmetic: tuple[str, ...]
    source: str


def pcie_generations() -> tuple[PcieGeneration, ...]:
    """Return the generations of `data/pcie_generations.tsv`, oldest first."""
    return _PCIE.rows()


def generation_of(generation: int) -> PcieGeneration:
    """Return one generation by its number.

    Raises:
        ValueError: there is no such generation; the text names those there are.
    """
    for g in pcie_generations():
        if g.generation == generation:
            return g
    last = pcie_generations()[-1].generation
    raise ValueError(f"PCIe generation {generation}: expected a number from 1 to {last}")


@functools.cache
def pcie_gen(speed_gt_s: float) -> int:
    """Return the generation whose lanes run at `speed_gt_s`.

    Raises:
        ValueError: no generation runs at that speed.
    """
    for g in pcie_generations():
        if abs(g.speed_gt_s - speed_gt_s) < 0.01:
            return g.generation
    known = ", ".join(f"{g.speed_gt_s:g}" for g in pcie_generations())
    raise ValueError(f"{speed_gt_s:g} GT/s is no PCIe speed: there are {known}")


@functools.cache
def pcie_gb_s(speed_gt_s: float, width_lanes: int) -> float:
    """Return GB/s in one direction: GT/s x share of the coding x lanes / 8.

    Raises:
        ValueError: the speed or the width is none that PCIe has.
    """
    return pcie_gen_gb_s(pcie_gen(speed_gt_s), width_lanes)


@functools.cache
def pcie_gen_gb_s(generation: int, width_lanes: int) -> float:
    """Return what `pcie_gb_s` does, for a generation (3 x16: 15.754).

    Raises:
        ValueError: the generation or the width is none that PCIe has.
    """
    g = generation_of(generation)
    _check_width(width_lanes)
    return g.speed_gt_s * g.share[0] / g.share[1] * width_lanes / 8


def _check_width(width_lanes: int) -> None:
    if width_lanes not in WIDTHS:
        raise ValueError(f"PCIe width x{width_lanes}: expected one of {', '.join(f'x{w}' for w in WIDTHS)}")


def payload_share(generation: int, max_payload_bytes: int) -> float:
    """Return the part of the TLP bytes that is payload, for memory writes of full size with 64-bit addresses.

    Such a TLP has a header of 16 bytes (4 DW). Up to generation 5 the link layer adds 8: sequence number, framing
    and LCRC (PCI Express Base Specification 5.0, 2.2 and 3.6), so MPS/(MPS+24). In flits the CRC and the framing
    belong to the flit, so only the header counts: MPS/(MPS+16).

    Raises:
        ValueError: the generation or the payload size is none that PCIe has.
    """
    g = generation_of(generation)
    if max_payload_bytes not in PAYLOAD_SIZES:
        raise ValueError(f"{max_payload_bytes} is no maximum payload: there are {', '.join(map(str, PAYLOAD_SIZES))}")
    overhead = 24 if g.share == g.tlp_share else 16
    return max_payload_bytes / (max_payload_bytes + overhead)


def pcie_throughput(generation: int, width_lanes: int, max_payload_bytes: int = 256) -> PcieThroughput:
    """Return the throughput of a link with its arithmetic.

    Raises:
        ValueError: an argument is none that PCIe has; the text names what there is.
    """
    g = generation_of(generation)
    gb_s = pcie_gen_gb_s(generation, width_lanes)
    share = payload_share(generation, max_payload_bytes)
    tlp = g.speed_gt_s * g.tlp_share[0] / g.tlp_share[1] * width_lanes / 8
    num, den = g.share
    lines = [f"{g.speed_gt_s:g} GT/s x {num}/{den} ({g.coding}) x {width_lanes} lanes / 8 = {gb_s:.3f} GB/s"]
    if g.tlp_share != g.share:
        lines.append(
            f"TLP bytes only: {g.speed_gt_s:g} GT/s x {g.tlp_share[0]}/{g.tlp_share[1]} x {width_lanes} / 8"
            f" = {tlp:.3f} GB/s"
        )
    overhead = 24 if g.share == g.tlp_share else 16
    lines.append(
        f"writes of {max_payload_bytes} bytes: x {max_payload_bytes}/({max_payload_bytes}+{overhead})"
        f" = {tlp * share:.3f} GB/s of payload"
    )
    return PcieThroughput(
        generation=generation,
        speed_gt_s=g.speed_gt_s,
        width_lanes=width_lanes,
        coding=g.coding,
        gb_s=gb_s,
        tlp_gb_s=tlp,
        max_payload_bytes=max_payload_bytes,
        payload_share=share,
        payload_gb_s=tlp * share,
        arithmetic=tuple(lines),
        source=g.source,
    )


@functools.cache
def nvlink_gb_s(version: int | None, speed_mb_s: float | None) -> float:
    """Return the payload rate of one NVLink, GB/s in one direction; None stands for what NVML did not say.

    NVML gives the signalling rate as a whole number of MB/s (26562 for 26562.5), so a reading within 1 MB/s of a
    known rate stands for it. Without a reading the generation's usual rate is taken; a reading that no generation
    is known for keeps its own generation's share.

    Raises:
        ValueError: the two together do not tell the rate.
    """
    table = [(r.version, r.signalling_mb_s, r.payload_numerator / r.payload_denominator) for r in _NVLINK.rows()]
    same = [t for t in table if version is None or t[0] == version]
    if speed_mb_s is not None:
        for _, rate, share in same:
            if abs(rate - speed_mb_s) <= 1:
                return rate * share / 1000
    if version is None or not same:
        raise ValueError(f"NVLink version {version} at {speed_mb_s} MB/s is not known")
    _, rate, share = same[0]
    return (rate if speed_mb_s is None else speed_mb_s) * share / 1000


def infiniband_gbit_s(speed: str, lanes: int) -> float:
    """Return the data rate in Gb/s of an InfiniBand link (`QDR` 4X: 32; `FDR` 4X: 54.545; `NDR` 4X: 400).

    Raises:
        ValueError: the speed word is not known, or the link has no lanes.
    """
    for r in _INFINIBAND.rows():
        if r.speed == speed.upper():
            if lanes not in (1, 2, 4, 8, 12):
                raise ValueError(f"{lanes}X is no InfiniBand width: there are 1X, 2X, 4X, 8X, 12X")
            return r.data_gbit_s_per_lane * lanes
    known = ", ".join(r.speed for r in _INFINIBAND.rows())
    raise ValueError(f"{speed!r} is no InfiniBand speed: there are {known}")


def port_data_gbit_s(rate_text: str, link_layer: str) -> float:
    """Return the data rate of a port from the kernel's text (`56 Gb/sec (4X FDR)`), Gb/s.

    On Ethernet the printed number is already the rate of the MAC (IEEE 802.3 names rates after coding); the speed
    word there is only the nearest InfiniBand name.

    Raises:
        ValueError: the text is not of the kernel's form.
    """
    number, unit, _ = rate_text.strip().partition(" Gb/sec")
    if not unit or not digits(number.replace(".", "", 1)):
        raise ValueError(f"not a rate as the kernel prints it: {rate_text.strip()[:60]!r}")
    if link_layer.lower() != "infiniband":
        return float(number)
    m = re.fullmatch(r"\s*[0-9.]+\s*Gb/sec\s*\(\s*([0-9]{1,3})X(?:\s+([A-Z0-9]+))?\s*\)\s*", rate_text)
    if not m:
        raise ValueError(f"no lanes and speed word in the rate {rate_text.strip()[:60]!r}")
    return infiniband_gbit_s(m[2] or "SDR", int(m[1]))
