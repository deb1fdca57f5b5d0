"""What perftest prints, in its units; written here after its own formats (perftest_parameters.h, RESULT_LINE...)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.tests_live.nodes.perftest import PerftestError, command, parse_bandwidth, parse_latency

HEAD = """---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : mlx5_0
 Number of qps   : 1		Transport type : IB
 Link type       : IB
---------------------------------------------------------------------------------------
 local address: LID 0x11 QPN 0x0a2b PSN 0x8f9a01 RKey 0x1ff0 VAddr 0x007f0000000000
---------------------------------------------------------------------------------------
"""
LINE = "---------------------------------------------------------------------------------------\n"


def bandwidth(unit: str, peak: str, average: str) -> str:
    return (
        HEAD
        + f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]\n"
        + f" 65536      5000             {peak}            {average}\t\t   0.370000\n"
        + LINE
    )


@pytest.mark.parametrize(
    ("unit", "average", "gb_s"),
    [
        # 23000 x 2^20 bytes a second = 24.117 x 10^9.
        ("MB/sec", "23000.00", 23000 * 1048576 / 1e9),
        ("MiB/sec", "23000.00", 23000 * 1048576 / 1e9),
        # 193.7 x 10^9 bits a second = 24.2125 x 10^9 bytes.
        ("Gb/sec", "193.70", 24.2125),
    ],
)
def test_bandwidth_units(unit, average, gb_s):
    (row,) = parse_bandwidth(bandwidth(unit, average, average))
    assert row.average_gb_s == pytest.approx(gb_s)
    assert (row.size_bytes, row.iterations) == (65536, 5000)


def test_a_sweep_gives_every_row():
    text = bandwidth("Gb/sec", "10", "9").replace(LINE, "", 3) + " 131072     5000             20.00  19.50  0.1\n"
    assert [r.size_bytes for r in parse_bandwidth(text)] == [65536, 131072]


def test_latency_typical_is_the_median_of_half_a_round_trip():
    text = (
        HEAD + " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
        "99% percentile[usec]   99.9% percentile[usec] \n"
        " 2       1000          0.98           4.11         1.01     \t       1.02        \t0.03   \t\t1.20    "
        "\t\t4.11   \n" + LINE
    )
    (row,) = parse_latency(text)
    assert (row.min_us, row.typical_us, row.max_us) == (0.98, 1.01, 4.11)


@pytest.mark.parametrize("unit", ["GB/sec", "Mb/sec", "parsec"])
def test_an_unknown_unit_is_refused(unit):
    with pytest.raises(PerftestError, match="unit"):
        parse_bandwidth(bandwidth(unit, "1", "1"))


def test_no_row_is_refused():
    with pytest.raises(PerftestError, match="row"):
        parse_bandwidth(bandwidth("Gb/sec", "x", "y"))
    with pytest.raises(PerftestError, match="heading"):
        parse_latency("Couldn't connect to 10.0.0.1:18515\n")


@given(st.text())
def test_any_text_gives_rows_or_the_documented_error(text):
    for parse in (parse_bandwidth, parse_latency):
        for whole in (text, bandwidth("Gb/sec", "1", "1") + text):
            with contextlib.suppress(PerftestError):
                parse(whole)


def test_commands():
    server = command("ib_write_bw", "mlx5_2", 18515, None)
    client = command("ib_write_bw", "mlx5_2", 18515, "10.0.0.7")
    assert "--report_gbits" in server
    assert client == [*server, "10.0.0.7"]
    assert "--report_gbits" not in command("ib_write_lat", "mlx5_2", 18515, None)


@pytest.mark.parametrize(
    ("device", "port", "server"),
    [
        ("-D", 18515, None),
        ("--help", 18515, None),
        ("", 18515, None),
        ("mlx5_0 -x", 18515, None),
        ("mlx5_0/../x", 18515, None),
        ("mlx5_0\n", 18515, None),
        ("m" * 65, 18515, None),
        ("mlx5_0", 0, None),
        ("mlx5_0", 65536, None),
        ("mlx5_0", 18515, "-D"),
        ("mlx5_0", 18515, "node7"),
        ("mlx5_0", 18515, "10.0.0.7 -D"),
        ("mlx5_0", 18515, "10.0.0.7\n"),
    ],
)
def test_nothing_that_would_be_an_option_becomes_part_of_a_command(device, port, server):
    with pytest.raises(ValueError):  # noqa: PT011 - ipaddress has words of its own
        command("ib_write_bw", device, port, server)
