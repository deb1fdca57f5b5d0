"""The command: what it prints, how it exits, and what it leaves when it is interrupted."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.bandwidth.test_assess import HEALTHY, copy, judge
from tests.support.waiting import PATIENCE_S
from tests.tests_live.command_app import APP, ARGV
from topocheck.bandwidth.options import Options
from topocheck.bandwidth.plan import make_plan
from topocheck.cli.bw_options import training
from topocheck.model.base import InputError
from topocheck.model.measurement import BandwidthReport, Fit, FitSegment, Measurement, NotMeasured, Run
from topocheck.render.bw import bw_text
from topocheck.render.bw_curves import bar, fit_lines
from topocheck.render.bw_data import COLUMNS, bw_csv, bw_json, bw_markdown
from topocheck.render.page import Page, Style
from topocheck.tests_live.run import Runner
from topocheck.topology.types import Topology


def run(*args: str, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ARGV, *args], capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.torch
def test_gloo_run_as_json_kept_and_compared(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    kept = tmp_path / "kept.json"
    out = run("--quick", "--backend", "gloo", "--sizes", "1K,16K,64K,256K", "--format", "json", "--save", str(kept))
    assert out.returncode == 0, out.stderr
    doc = json.loads(out.stdout)
    assert [m["size_bytes"] for m in doc["measurements"]] == [1024, 16384, 65536, 262144]
    for m in doc["measurements"]:
        assert m["verified"] is True
        assert m["kind"] == "collective"
        assert m["backend"] == "gloo"
        assert m["ranks"] == 2
        # all_reduce of two ranks: busbw equals algbw.
        assert m["busbw_gb_s"] == pytest.approx(m["algbw_gb_s"]) == pytest.approx(m["size_bytes"] / m["median"] / 1e3)
    assert doc["software"]["torch"]
    assert len(doc["fits"]) == 1
    assert "about" in out.stderr, "it says how long it takes"
    assert json.loads(kept.read_text())["run"]["measurements"] == doc["measurements"]


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--sizes", "huge"), "not a size"),
        (("--budget", "lavish"), "quick, standard, full"),
        (("--engine", "steam"), "driver, torch, both"),
        (("--collective", "gossip"), "all_reduce"),
        (("--backend", "ucx"), "nccl, gloo, mpi"),
        (("--dtype", "float8"), "bfloat16"),
        (("--ranks", "1", "--backend", "gloo"), "2 ranks or more"),
        (("--baseline", "/nonexistent"), "cannot be read"),
        (("--tolerance", "7", "--baseline", "/dev/null"), "between 0 and 1"),
        (("--tolerance", "nan", "--baseline", "/dev/null"), "between 0 and 1"),
        (("--gpus", "GPU9"), "no GPU is called"),
        (("--gpus", ""), "none of them empty"),
        (("--sizes", ""), "none of them empty"),
        (("--sizes", "1K,,2K"), "none of them empty"),
        (("--sizes", "-1"), "not a size"),
        (("--sizes", "nan"), "not a size"),
        (("--sizes", "3", "--backend", "gloo"), "holds no float32"),
        (("--sizes", "1TiB", "--backend", "gloo"), "free"),
        (("--ranks", "0", "--backend", "gloo"), "2 ranks or more"),
        (("--ranks", "100000", "--backend", "gloo"), "at most 256"),
        (("--gradients", "-1GB"), "a size above 0"),
        (("--gradients", "nanGB"), "a size above 0"),
        (("--gradients", "1e400MB"), "a size above 0"),
        (("--gradients", "1GB", "--backward", "nan"), "seconds above 0"),
        (("--backward", "1"), "--backward needs --gradients"),
        (("--tolerance", "0.2"), "--tolerance needs --baseline"),
        (("--pairs", "GPUs"), "No such option: --pairs"),
        (("--plan", "--format", "csv"), "text, json"),
        (("--plan", "--save", "/tmp/x"), "nothing to keep"),
        (("--save", "/nonexistent/x"), "--save /nonexistent/x: cannot be written: there is no folder /nonexistent"),
        (("-o", "/"), "--output /: is a folder"),
        (("-o", "/dev/null/x"), "cannot be written: there is no folder /dev/null"),
        (("-o", "/dev/null", "--save", "/dev/../dev/null"), "give two files"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(args: tuple[str, ...], word: str) -> None:
    out = run(*args)
    assert out.returncode == 2, out.stderr
    assert word in out.stderr
    assert "Traceback" not in out.stderr
    assert out.stdout == ""


def test_plan_only_measures_nothing() -> None:
    out = run("--plan", "--backend", "gloo")
    assert out.returncode == 0
    assert "all_reduce over gloo, 2 ranks" in out.stdout
    assert out.stderr == ""


def test_a_plan_for_programs_and_in_a_file(tmp_path: Path) -> None:
    out = run("--plan", "--backend", "gloo", "--sizes", "1K,1e6", "--format", "json")
    assert out.returncode == 0, out.stderr
    doc = json.loads(out.stdout)
    (swept,) = doc["collectives"]
    # 1e6 is a number to nccl-tests as well (it reads %lf), K is 1024.
    assert (swept["collective"], swept["ranks"], swept["sizes_bytes"]) == ("all_reduce", 2, [1024, 1_000_000])
    assert doc["estimate_s"] >= swept["estimate_s"] > 0
    assert doc["not_measured"] == []
    file = tmp_path / "plan"
    assert run("--plan", "--backend", "gloo", "-o", str(file)).stdout == ""
    assert "all_reduce over gloo, 2 ranks" in file.read_text()


def test_a_plan_of_what_cannot_be_measured_exits_as_the_run_would() -> None:
    out = run("--plan", "--all-pairs", "--staged", "--quick")
    if "no NVIDIA GPU" not in out.stdout:
        pytest.skip("a GPU is here")
    assert out.returncode == 3
    nothing = run("--backend", "nccl", "--quick")
    assert nothing.returncode == 3
    assert nothing.stderr.count("no NVIDIA GPU was found here") == 1


def test_what_was_measured_is_printed_where_the_file_fails(tmp_path: Path) -> None:
    """/dev/full can be opened and takes nothing: it fails at the end, as a disk that has filled meanwhile."""
    for option in ("-o", "--save"):
        show = {"output": None, "save": None} | {"output" if option == "-o" else "save": Path("/dev/full")}
        code = (
            "from pathlib import Path\n"
            "from topocheck.cli.bw_run import Show, _print\n"
            "from tests.tests_live.test_bw_command import report\n"
            f"show = Show(format_='csv', verbose=False, advice=False, strict=False, no_color=True, width=80, "
            f"**{show!r})\n"
            "_print(report(), show)\n"
        ).replace("PosixPath", "Path")
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "/dev/full: cannot be written: No space left on device; what was measured is on standard" in out.stderr
        assert out.stdout == bw_csv(report())


@pytest.mark.torch
def test_interrupt_keeps_what_was_measured_and_leaves_nothing() -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    plan = make_plan(Topology(), Options(collectives=("all_reduce", "broadcast"), sizes_bytes=(1024, 4096)))
    heard: list[str] = []

    def tell(kind: str, words: str, share: float) -> None:
        heard.append(kind)
        if heard.count("measured") == 2:
            raise KeyboardInterrupt

    result = Runner(plan, Topology(), tell=tell).execute()
    assert result.interrupted
    assert len(result.measurements) == 1, "what was measured until then is kept"
    assert [(n.id, n.reason) for n in result.not_measured] == [("broadcast:gloo:2:float32", "interrupted")]
    left = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=True).stdout
    mine = [x for x in left.splitlines() if x.split()[0] in ("1", str(os.getpid())) and "topocheck.tests_live" in x]
    assert mine == []


def report() -> BandwidthReport:
    us = 3246.0
    sweep = tuple(
        Measurement(
            id=f"all_reduce:nccl:2:{1 << n}", kind="collective", collective="all_reduce", backend="nccl", ranks=2,
            dtype="float32", in_place=True, mode="back_to_back", size_bytes=1 << n, samples=(us / (1 << 30 - n),),
            median=us / (1 << 30 - n) + 20, unit="us", algbw_gb_s=1.0 + n, busbw_gb_s=1.0 + n, verified=True,
        )
        for n in (20, 24, 28, 30)
    )  # fmt: skip
    wrong = copy("p2p", "a|b", "<c>", 10.0, verified=False, wrong="1 of 9 bytes are wrong", suffix="x")
    return judge(*HEALTHY, *sweep, wrong, not_measured=(NotMeasured(id="local", reason="out of time"),))


def test_text_names_what_matters_at_80_columns_without_colour() -> None:
    text = bw_text(report(), Style(80, False))
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for words in (
        "54.4 86%", "397.5 88%", "786.0 87%", "gain of peer access: GPU0 to GPU1 10.6 times (398", "10.0 WRONG",
        "FAIL bw.wrong-data", "out of time",
    ):  # fmt: skip
        assert words in text, words
    assert "Cost model: all_reduce nccl 2 ranks" in bw_text(report(), Style(80, False), verbose=True)
    assert "\x1b[" in bw_text(report(), Style(80, True))
    assert "Measured vs. theoretical" in bw_text(report(), Style(80, False), verbose=True)


def test_an_interval_without_an_end_is_no_number() -> None:
    """Times that hardly grow with the size bound beta from below only; the bootstrap then gives any large number."""
    piece = FitSegment(
        from_bytes=1024, to_bytes=1 << 20, alpha_us=1220.0, beta_gb_s=1.5, alpha_low_us=713.0, alpha_high_us=1410.0,
        beta_low_gb_s=0.8, beta_high_gb_s=6.1e12,
    )  # fmt: skip
    page = Page(Style(120, False))
    fit_lines(page, Fit(subject="x", rate="busbw", overall=piece))
    assert "alpha 1.22 ms (713 us to 1.41 ms), beta 1.5 GB/s busbw (0.8 or more)" in page.render()


def test_bars_are_exact_to_an_eighth() -> None:
    assert bar(1.0, 10) == "█" * 10
    assert bar(0.5, 10) == "█" * 5
    assert bar(1 / 80, 10) == "▏"
    assert bar(0, 10) == ""
    assert bar(7, 3) == "███"


def test_csv_and_markdown_and_json_hold_every_measurement() -> None:
    r = report()
    rows = list(csv.DictReader(io.StringIO(bw_csv(r))))
    assert [x["id"] for x in rows] == [m.id for m in r.run.measurements]
    assert tuple(rows[0]) == COLUMNS
    assert rows[0]["percent_of_expected"] == "107.9"
    table = [line for line in bw_markdown(r).splitlines() if line.startswith("| ") and "---" not in line]
    assert len(table) == 1 + len(r.run.measurements)
    assert all(line.replace("\\|", "").count("|") == 12 for line in table)
    doc = json.loads(bw_json(r))
    assert msgspec.convert(doc["measurements"], tuple[Measurement, ...]) == r.run.measurements
    assert {a["measurement"] for a in doc["assessments"]} <= {m["id"] for m in doc["measurements"]}


def test_no_heading_without_a_row_below_it() -> None:
    sweep = tuple(m for m in report().run.measurements if m.kind == "collective" and m.size_bytes == 1 << 20)
    plain = tuple(msgspec.structs.replace(m, backend="gloo", members=()) for m in sweep)
    text = bw_text(judge(*plain), Style(80, False), verbose=True)
    assert "Measured vs. theoretical" not in text
    assert "No theoretical limit or baseline for these results." in text


def test_an_empty_run_is_no_error() -> None:
    empty = BandwidthReport(run=Run())
    assert "0 rows" in bw_text(empty, Style(80, False))
    assert json.loads(bw_json(empty))["measurements"] == []


def test_planning_loads_nothing_heavy() -> None:
    code = APP.replace("    app()\n", "    app(standalone_mode=False)\n    print(' '.join(sys.modules))\n")
    argv = [sys.executable, "-c", code, "--plan", "--quick", "--backend", "gloo"]
    out = subprocess.run(argv, capture_output=True, text=True, check=False)
    loaded = set(out.stdout.split())
    assert "topocheck.bandwidth.plan" in loaded, out.stderr
    assert loaded & {"torch", "numpy", "rich", "jinja2", "pydantic", "asyncio", "mpi4py"} == set()


def test_gradients_are_read_as_models_are_counted() -> None:
    assert training("14GB", 0.5) == (14e9, 0.5)
    assert training("500 MB", 0.1) == (5e8, 0.1)
    assert training("1GiB", 0.1) == (float(1 << 30), 0.1)
    assert training(None, 0.1) is None
    for bad in ("lots", "GB"):
        with pytest.raises(InputError):
            training(bad, 0.5)
    with pytest.raises(InputError):
        training("1GB", 0)


def test_a_plan_for_another_machine_says_what_it_should_reach(tmp_path: Path) -> None:
    snap = str(Path(__file__).parents[2] / "docs/examples/half_width.snap")
    out = run("--plan", "--quick", "--from", snap, "--width", "120")
    assert out.returncode == 0, out.stderr
    # gen 5 carries 32 GT/s x 128/130 a lane: 63.0 GB/s over 16, 31.5 over the 8 of GPU3.
    rows = {line.split()[3]: line.split() for line in out.stdout.splitlines() if "GPU and host" in line}
    assert (rows["GPU3"][4], rows["GPU0-GPU2,"][5]) == ("31.5", "63.0")
    assert re.search(r"all 56 pairs +450\.0", out.stdout)
    doc = json.loads(run("--plan", "--quick", "--from", snap, "--format", "json").stdout)
    assert {r["theoretical_gb_s"] for r in doc["expected"] if r["kind"] == "host"} == {31.5, 63.0}
    assert run("--quick", "--from", snap).returncode == 2, "a snapshot is no run"
    kept = tmp_path / "kept.json"
    kept.write_text(bw_json(report()))
    assert run("--from", str(kept), "--format", "csv").stdout == bw_csv(report())
    same = run("--from", str(kept), "--baseline", str(kept))
    assert "no more than 10 % slower" in " ".join(same.stdout.split())
    wrong = run("--from", str(kept), "--quick")
    assert (wrong.returncode, "--quick: --from shows a saved run" in wrong.stderr) == (2, True)
