"""Recordings with one planted fault: it is found, with its device, and nothing else is; healthy ones are quiet."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.overtime import planting as p
from topocheck.checks.watch.run import judge_watch, worst_minute
from topocheck.model.base import Finding, State
from topocheck.overtime.counters import Width
from topocheck.overtime.growth import growth
from topocheck.overtime.history import History, joined
from topocheck.overtime.types import ClockReason, Kind

LOUD = (State.WARN, State.FAIL, State.UNKNOWN)


def loud(history: History) -> list[Finding]:
    return [f for f in judge_watch(history)[1] if f.state in LOUD]


LINK = f"{p.GPU} NVLink 3"
F, W = State.FAIL, State.WARN
PLANTED = {
    "replays": (p.grow(p.is_gpu, "pcie_replays", 40), "watch.pcie-replays", W, p.GPU_LABEL),
    "AER link errors": (p.grow(p.is_function, "aer_link_errors", 40), "watch.aer-errors", W, p.GPU_LABEL),
    "AER non-fatal": (p.grow(p.is_function, "aer_nonfatal", 1), "watch.aer-errors", W, p.GPU_LABEL),
    "AER fatal": (p.grow(p.is_function, "aer_fatal", 1), "watch.aer-errors", F, p.GPU_LABEL),
    "speed": (p.later(p.is_function, speed_gt_s=2.5), "watch.link-downshift", F, p.GPU_LABEL),
    "speed from the start": (p.always(p.is_function, speed_gt_s=16.0), "watch.link-downshift", W, p.GPU_LABEL),
    "width": (p.later(p.is_function, width_lanes=8), "watch.link-downshift", F, p.GPU_LABEL),
    "width for a while": (p.later(p.is_function, back=True, width_lanes=8), "watch.link-downshift", W, p.GPU_LABEL),
    "port rate": (p.later(p.is_port, rate_gbit_s=200.0), "watch.link-downshift", F, p.PORT),
    "NVLink replays": (p.grow(p.is_link, "replay", 1), "watch.nvlink-errors", W, LINK),
    # 60,000 in the 55 s between 12 samples 5 s apart: 1,091 a second, with 100 allowed.
    "NVLink CRC": (p.grow(p.is_link, "crc", 60_000), "watch.nvlink-errors", W, LINK),
    "NVLink down": (p.later(p.is_link, active=False), "watch.nvlink-down", F, LINK),
    "NVLink flap": (p.later(p.is_link, back=True, active=False), "watch.nvlink-down", W, LINK),
    "GPU lost": (p.later(p.is_gpu, lost=True), "watch.device-gone", F, p.GPU_LABEL),
    "function gone": (p.later(p.is_function, gone=True), "watch.device-gone", F, p.GPU_LABEL),
    "port gone": (p.later(p.is_port, gone=True), "watch.device-gone", F, p.PORT),
    "port down": (p.later(p.is_port, state="DOWN", phys_state="Polling"), "watch.port-flap", F, p.PORT),
    "port flap": (p.later(p.is_port, back=True, state="INIT"), "watch.port-flap", W, p.PORT),
    "flap between samples": (p.grow(p.is_port, "link_downed", 1), "watch.port-flap", W, p.PORT),
    "carrier lost": (p.grow(p.is_port, "carrier_down_count", 1), "watch.port-flap", W, p.PORT),
    "port retrained": (p.grow(p.is_port, "link_error_recovery", 1), "watch.port-flap", W, p.PORT),
    # 400 Gb/s for 55 s are 2.2e13 bits, of which 22 may be wrong; by chance up to 22 + 3 * sqrt(22) + 3 = 39.
    "symbol errors": (p.grow(p.is_port, "symbol_error", 400), "watch.port-errors", W, p.PORT),
    "receive errors": (p.grow(p.is_port, "port_rcv_errors", 400), "watch.port-errors", W, p.PORT),
    # At most 55 s * 2e6 packets are sent: 100 in a million of them are 11,000.
    "discards": (p.grow(p.is_port, "port_xmit_discards", 40_000), "watch.port-errors", W, p.PORT),
    "retransmits": (p.grow(p.is_port, "packet_seq_err", 40_000), "watch.port-retransmits", W, p.PORT),
    "heat": (
        p.later(p.is_gpu, clock_reasons=int(ClockReason.HW_THERMAL)),
        "watch.throttled",
        W,
        p.GPU_LABEL,
    ),
    # 10 s of 55 s: 18 %.
    "power brake between samples": (
        p.grow(p.is_gpu, "hw_power_brake_ns", 10_000_000_000),
        "watch.throttled",
        W,
        p.GPU_LABEL,
    ),
    # 15 % below 1755 MHz, the lowest clock of a healthy sibling, is 1492.
    "straggler": (p.always(p.is_gpu, clock_sm_mhz=1200), "watch.straggler", W, p.GPU_LABEL),
}


def test_there_are_at_least_twenty_kinds() -> None:
    assert len(PLANTED) >= 20


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_found_and_nothing_else(name: str, seed: int) -> None:
    plant, id_, state, subject = PLANTED[name]
    assert [(f.id, f.state, f.subject) for f in loud(p.recording(seed, plant=plant))] == [(id_, state, subject)]


@pytest.mark.parametrize("seed", range(0, 1000, 50))
def test_a_thousand_healthy_pairs_are_quiet(seed: int) -> None:
    """Each of the fifty is a pair of samples, minutes to a day apart, of an idle or busy machine."""
    for n in range(seed, seed + 50):
        history = p.recording(n, samples=2, step_s=(5.0, 60.0, 3600.0, 86_400.0)[n % 4])
        assert [f"{f.id} {f.subject}: {f.title}" for f in loud(history)] == []


@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_recording_is_quiet(seed: int) -> None:
    assert [f"{f.id} {f.subject}: {f.title}" for f in loud(p.recording(seed, samples=60, step_s=1.0))] == []


@pytest.mark.parametrize("match", [p.is_gpu, p.is_function, p.is_link, p.is_port])
@pytest.mark.parametrize("plant", [p.cleared, p.unreadable])
def test_counters_that_restart_or_vanish_are_a_note_and_no_more(plant: object, match: object) -> None:
    assert callable(plant)
    findings = judge_watch(p.recording(1, plant=plant(match)))[1]
    assert [f for f in findings if f.state in LOUD] == []
    if match is not p.is_link:  # whose counters are all zero, so that nobody can see that they were cleared
        assert {f.id for f in findings} == {"watch.counters-restarted"}


def test_an_idle_link_that_is_slow_is_no_fault() -> None:
    """Speed is judged under load alone; the healthy jitter idles at 2.5 GT/s."""
    idle = p.always(p.is_gpu, utilization_percent=0)
    both = p.always(p.is_function, speed_gt_s=2.5)

    def plant(readings: p.Readings, n: int, of: int) -> None:
        idle(readings, n, of)
        both(readings, n, of)

    assert loud(p.recording(4, plant=plant)) == []


def test_a_source_that_is_silent_is_unknown() -> None:
    history = p.recording(1)
    cut = tuple(replace(s, silent={"nvml": "no answer for 11 s"}) for s in history.samples[6:])
    (finding,) = loud(replace(history, samples=(*history.samples[:6], *cut)))
    assert (finding.id, finding.state, finding.subject) == ("watch.not-sampled", State.UNKNOWN, "nvml")
    assert finding.title == "no answer in 6 of 12 samples: no answer for 11 s"


def test_one_sample_is_not_ok() -> None:
    results, findings = judge_watch(p.recording(1, samples=1))
    assert [(f.id, f.state) for f in findings] == [("watch.not-sampled", State.UNKNOWN)]
    assert {r.state for r in results if r.id != "watch.not-sampled"} == {State.NOT_APPLICABLE}


def test_since_compares_with_the_last_sample_of_another_run() -> None:
    before = p.recording(3)
    later = p.recording(3, samples=1, plant=p.grow(p.is_port, "link_downed", 2))
    header = replace(later.header, begun_unix_s=before.header.begun_unix_s + 3600)
    history = joined(before, replace(later, header=header))
    assert history.seconds == pytest.approx(3600 - before.samples[-1].at_s, abs=1)
    assert history.growth[Kind.PORT][p.PORT]["link_downed"].increase == 2
    rebooted = replace(header, boot_time_s=header.boot_time_s + 3000)  # type: ignore[operator]
    assert joined(before, replace(later, header=rebooted)).rebooted


@pytest.mark.parametrize(
    ("points", "most"),
    [
        ([(0, 0), (30, 5), (60, 9)], 9),
        ([(0, 0), (600, 100)], 10),  # of 100 in ten minutes, 10 in each
        ([(0, 0), (10, 6), (100, 6), (110, 11)], 6),  # 6 and 5, more than a minute apart
        ([(0, 7)], 0),
    ],
)
def test_worst_minute(points: list[tuple[float, int]], most: float) -> None:
    assert worst_minute(growth(points, Width(64))) == most
