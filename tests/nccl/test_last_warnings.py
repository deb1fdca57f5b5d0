"""A warning of NCCL is all that a log made with NCCL_DEBUG=WARN may hold of a job that died."""

from __future__ import annotations

import pytest

from topocheck.knowledge.nccl_warnings import warning_of
from topocheck.nccl.logs.reader import read_text
from topocheck.nccl.logs.types import NcclLog

WARNED = "n1:10:12 [0] enqueue.cc:1650 NCCL WARN Trying to send to self without a matching recv\n"
OTHER = "n1:10:13 [1] NCCL INFO Connected all rings\n"


def died(log: NcclLog) -> list[tuple[str, str]]:
    return [(f.code, f.causes[0].text) for f in log.failures]


def test_a_warning_alone_is_a_failure_with_the_code_that_follows_it() -> None:
    # src/enqueue.cc, 2.18.5: WARN(...) and then `return ncclInvalidUsage`.
    log = read_text("NCCL version 2.18.5+cuda12.2\n" + WARNED * 3)
    assert died(log) == [("invalid usage", "Trying to send to self without a matching recv")]
    assert log.failures[0].count == 3
    assert "returns an error" in log.failures[0].causes[0].cause


@pytest.mark.parametrize(
    ("text", "code"),
    [
        # The words of other versions of one warning, and values of any kind where NCCL fills them in.
        ("Error: failed to extend /dev/shm/nccl-x to 4194660 bytes", "unhandled system error"),
        ("Mismatched NCCL version detected : rank 0 version 22005 rank 1 version 22602", "invalid usage"),
        ("Add PCI Link error : could not find PCI SW 3d000", "internal error"),
        ("ncclGroupEnd: not in a group call.", "invalid usage"),
        ("invalid device count (0) requested", "invalid argument"),
    ],
)
def test_the_code_of_a_warning(text: str, code: str) -> None:
    row = warning_of(text)
    assert row is not None
    assert row.code == code
    assert [c for c, _ in died(read_text(f"n1:10:12 [0] x.cc:1 NCCL WARN {text}\n"))] == [code]


@pytest.mark.parametrize(
    "after",
    [
        "n1:10:12 [0] NCCL INFO Connected all rings\n",  # the thread goes on
        "n1:10:11 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 commId 0x7 - "
        "Init COMPLETE\n",  # another thread of the process completes an init
        "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
        "    8  2  float  sum  -1  19.9  0.0  0.0  0  18.9  0.0  0.0  0\n"
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.2\n",  # the test ends
    ],
)
def test_a_job_that_went_on_after_a_warning_did_not_die_of_it(after: str) -> None:
    assert not read_text(WARNED + after).failures


@pytest.mark.parametrize(
    "after",
    [
        OTHER,  # another thread says nothing of this one
        "n1:10:12 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 - Abort COMPLETE\n",
    ],
)
def test_lines_that_do_not_show_it_going_on(after: str) -> None:
    assert died(read_text(WARNED + after))[0][0] == "invalid usage"


@pytest.mark.parametrize(
    "text",
    [
        "NET/IB: Ip address '10.0.0.300' is invalid for family AF_INET, ignoring address",
        "munmap of shared memory 0x7f12 size 3 failed, error: Invalid argument",
        "a warning of a version that nobody has read",
    ],
)
def test_warnings_after_which_nccl_goes_on_or_that_nobody_knows(text: str) -> None:
    assert warning_of(text) is None
    assert not read_text(f"n1:10:12 [0] x.cc:1 NCCL WARN {text}\n").failures
