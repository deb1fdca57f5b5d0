"""Tables of nccl-tests and nvbandwidth in a log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nccl import files
from topocheck.nccl.logs.compare import compare
from topocheck.nccl.logs.reader import read_text
from topocheck.nccl.predict.predict import predict

HEADER = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
OLD = HEADER.replace("#wrong", " error")


def row(size: int, busbw: float, wrong: str = "0", redop: str = "sum") -> str:
    return f"  {size}  {size // 4}  float  {redop}  -1  131.2  7.99  {busbw}  {wrong}  130.9  8.01  {busbw}  {wrong}\n"


def summary(wrong: int, average: float, *, ok: str = "OK") -> str:
    return (
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}\n# Avg bus bandwidth    : {average} {ok}\n#\n"
    )


def test_a_table_that_ends_well() -> None:
    text = "# Collective test starting: all_reduce_perf\n" + HEADER + row(1 << 20, 12.0) + row(1 << 26, 17.6)
    log = read_text(text + summary(0, 15.4, ok=""))
    (t,) = log.tests
    assert (t.program, t.name, t.rows, t.wrong_rows) == ("nccl-tests", "all_reduce_perf", 2, 0)
    assert (t.peak_gb_s, t.peak_bytes, t.average_gb_s) == (17.6, 1 << 26, 15.4)
    assert log.failures == ()


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "0: "])
@pytest.mark.parametrize("ending", ["", summary(6, 15.4, ok="")])
def test_wrong_values_are_a_failure_whether_the_summary_is_there_or_not(prefix: str, ending: str) -> None:
    text = HEADER + row(1 << 20, 12.0) + row(1 << 26, 17.6, wrong="262144") + ending
    log = read_text("".join(prefix + line for line in text.splitlines(keepends=True)))
    assert [f.code for f in log.failures] == ["wrong data"]
    assert "262144" in log.failures[0].text
    assert "topocheck bw" in log.failures[0].causes[0].next
    assert log.tests[0].wrong_rows == 1


def test_validation_that_is_off_and_the_older_error_column_say_nothing_of_values() -> None:
    for text in (HEADER + row(1 << 26, 17.6, wrong="N/A"), OLD + row(1 << 26, 17.6, wrong="2e-07")):
        log = read_text(text)
        assert (log.failures, log.tests[0].peak_gb_s) == ((), 17.6)


def test_a_collective_without_operation_has_a_cell_less() -> None:
    assert read_text(HEADER + row(1 << 26, 17.6, redop="")).tests[0].peak_gb_s == 17.6


def test_an_average_below_the_floor() -> None:
    (f,) = read_text(HEADER + row(1 << 26, 17.6) + summary(0, 15.4, ok="FAILED")).failures
    assert (f.code, f.causes[0].id) == ("test failed", "slow_test")


def test_nvbandwidth_sums() -> None:
    (t,) = read_text("Running host_to_device_memcpy_ce.\n\nSUM host_to_device_memcpy_ce 1985.60\n").tests
    assert (t.program, t.name, t.sum_gb_s) == ("nvbandwidth", "host_to_device_memcpy_ce", 1985.6)


def test_busbw_beside_what_the_machine_can_do() -> None:
    prediction = predict((files.host(files.hgx_h100()),), (2, 28, 9))
    bound = max(b.busbw_gb_s for b in prediction.bounds)
    good = compare(read_text(HEADER + row(1 << 30, round(bound * 0.8, 1))), prediction)
    assert (good.differences, len(good.tests)) == ((), 1)
    assert "80% of the bound" in good.tests[0]
    (slow,) = compare(read_text(HEADER + row(1 << 30, round(bound * 0.2, 1))), prediction).differences
    assert slow.subject == "bus bandwidth of nccl-tests"
    # Small messages are bound by latency.
    assert compare(read_text(HEADER + row(1 << 20, 1.0)), prediction).differences == ()


CELL = st.sampled_from(["0", "1.5", "N/A", "float", "-1", "1e9999", "nan", "9" * 400, "#wrong", "busbw", "# ", "\n"])


@settings(max_examples=100)
@given(st.lists(CELL, max_size=60))
def test_any_table(cells: list[str]) -> None:
    for head in (HEADER, "# busbw algbw\n", ""):
        log = read_text(head + " ".join(cells))
        assert all(t.peak_gb_s >= 0 and t.peak_bytes >= 0 for t in log.tests)
