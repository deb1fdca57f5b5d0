"""`topocheck report` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.support.snapshots import write_snapshot
from topocheck.cli.main import COMMANDS, make_app

MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPIX\tNODE\t0-15\t0
GPU1\tPIX\t X \tSYS\t16-31\t1
NIC0\tNODE\tSYS\t X

NIC Legend:

  NIC0: mlx5_3
"""


@pytest.fixture(scope="module")
def hgx(tmp_path_factory):
    return write_snapshot(tmp_path_factory.mktemp("snap") / "hgx.snap", "hgx_h100_cx7")


def invoke(*argv, stdin=None):
    return CliRunner().invoke(
        make_app(str(argv[0]) if argv[0] in COMMANDS else None), [str(a) for a in argv], input=stdin
    )


def run(*argv, stdin=b"", **env):
    code = "import sys; sys.argv[0] = 'topocheck'; from topocheck.cli.main import main; main()"
    import os

    return subprocess.run(
        [sys.executable, "-c", code, *map(str, argv)], capture_output=True, input=stdin, env={**os.environ, **env}
    )


def test_live_report_on_this_machine():
    result = run("report")
    assert result.returncode == 0, result.stderr
    assert result.stderr == b""
    text = result.stdout.decode()
    assert text.startswith("topocheck ")
    for heading in ("Experiment record", "NUMA and affinity", "Limits of this process", "Software", "Probes"):
        assert heading in text


def test_sections_and_their_order(hgx):
    text = invoke("report", "--from", hgx, "--section", "matrix", "--section", "record").stdout
    assert text.index("Matrix") < text.index("Experiment record")
    assert "NVLink\n" not in text
    assert "GPU0       X  NV18" in text


def _section(tmp_path, machine, section):
    snap = write_snapshot(tmp_path / f"{machine}.snap", machine)
    return invoke("report", "--from", snap, "--section", section, "--width", 200).stdout


def test_links_of_a_lost_gpu_are_no_number(tmp_path):
    rows = [line.split() for line in _section(tmp_path, "gpu_lost", "nvlink").splitlines()]
    assert ["GPU4", "18", "of", "18", "4", "switch", "0", "Completed"] in rows
    assert ["GPU5", "?", "lost", "-", "-", "-", "-"] in rows


def test_links_that_mig_takes_away_are_not_told_as_used(tmp_path):
    """Only GPU0 of mig_node is split; driver and matrix show its links all the same."""
    text = _section(tmp_path, "mig_node", "summary")
    assert "NV4 between all 4 GPUs; GPU0 split by MIG, without use of NVLink" in text
    assert "split by MIG" not in _section(tmp_path, "dgx_a100", "summary")


def test_nearest_nics_that_nobody_knows_are_not_counted(tmp_path):
    assert "unknown for 24 of 24 pairs; nearest NICs: not known" in _section(tmp_path, "gb200_tray", "summary")
    assert "nearest GPU0      not known: the NUMA node of mlx5_0" in _section(tmp_path, "gb200_tray", "matrix")


@pytest.mark.parametrize("format_", ["text", "markdown"])
def test_a_section_without_anything_says_so(tmp_path, format_):
    bare = write_snapshot(tmp_path / "bare.snap", "no_pci")
    said = invoke("report", "--from", bare, "--section", "p2p", "--section", "software", "--format", format_).stdout
    assert "p2p: this machine showed nothing to list here" in said
    assert "software: this machine" not in said


def test_a_json_report_is_not_taken_for_a_damaged_snapshot(hgx, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(invoke("report", "--from", hgx, "--format", "json").stdout)
    result = run("report", "--from", str(path))
    assert result.returncode == 2
    assert b"is JSON and no snapshot" in result.stderr


def test_closed_standard_input(tmp_path):
    code = "import os, sys; os.close(0); os.execv(sys.executable, [sys.executable, '-m', 'topocheck', *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", "--smi-topo", "-"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("topocheck: standard input is closed")


def test_json_names(hgx):
    data = json.loads(invoke("report", "--from", hgx, "--format", "json").stdout)
    assert {"schema_version", "topocheck_version", "source", "host", "gpus", "nics", "numa_nodes", "pci", "paths",
            "gpudirect", "nccl", "limits", "software", "findings", "probes"} <= set(data)  # fmt: skip
    pair = next(p for p in data["paths"] if (p["from_label"], p["to_label"]) == ("GPU0", "GPU1"))
    assert (pair["class"], pair["pcie_class"], pair["nvlinks"]) == ("NV18", "NODE", 18)
    # 18 links of 25 GB/s a direction (NVLink 4)
    assert pair["theoretical_gb_s"] == 450.0
    near = next(p for p in data["paths"] if (p["from_label"], p["to_label"]) == ("GPU0", "mlx5_0"))
    assert near["class"] == "PIX"
    # gen 5 x16: 32 GT/s x 16 lanes x 128/130 / 8
    assert near["theoretical_gb_s"] == pytest.approx(63.0154, abs=1e-4)


def test_output_file(hgx, tmp_path):
    out = tmp_path / "r.md"
    assert invoke("report", "--from", hgx, "--format", "markdown", "-o", out).stdout == ""
    assert "## Experiment record" in out.read_text()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("report", "--format", "yaml"), ("--format", "'yaml'", "text, json, markdown")),
        (("report", "--section", "gpus"), ("--section", "summary")),
        (("report", "--from", "/nonexistent/file"), ("/nonexistent/file",)),
        (("report", "--from", "/etc/passwd"), ("/etc/passwd", "snapshot")),
        (("report", "--smi-topo", "/nonexistent"), ("/nonexistent", "cannot be read")),
        (("report", "--smi-topo", "-", "--section", "matrix"), ("--smi-topo", "--section")),
        (("report", "--cluster", "--deadline", "-1"), ("--deadline -1",)),
        (("bw", "--quick", "--full"), ("--quick", "--full", "give one")),
        (("check", "--only", "pcie", "--skip", "pcie"), ("no check",)),
        (("emit", "rankfile", "--nodes", "gpu[01-"), ("--nodes", "gpu[01-")),
        (("emit", "rankfile", "--nodes", "gpu["), ("--nodes", "no partner")),
        (("emit", "rankfile", "--nodes", "gpu01]"), ("--nodes", "no partner")),
        (("emit", "rankfile", "--nodes", "a,,b"), ("--nodes", "empty")),
        (("emit", "rankfile", "--nodes", "a,b,a"), ("a comes twice",)),
        (("report", "-o", "/nonexistent/dir/file"), ("cannot be written",)),
        (("pcie", "8", "16"), ("generation 8", "1 to 7")),
        (("pcie", "4", "3"), ("x3",)),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(argv, words):
    result = run(*argv)
    error = result.stderr.decode()
    assert result.returncode == 2
    assert error.count("\n") == 1, error
    assert error.startswith("topocheck: ")
    assert all(w in error for w in words)


def test_pasted_matrix_from_a_file_and_from_standard_input(tmp_path):
    path = tmp_path / "m.txt"
    path.write_text(MATRIX)
    a = invoke("report", "--smi-topo", path, "--format", "json")
    b = run("report", "--smi-topo", "-", "--format", "json", stdin=MATRIX.encode())
    first, second = json.loads(a.stdout), json.loads(b.stdout)
    assert first["paths"] == second["paths"]
    classes = {(p["from"], p["to_label"]): p["class"] for p in first["paths"]}
    assert classes == {
        ("GPU0", "GPU1"): "PIX", ("GPU1", "GPU0"): "PIX", ("GPU0", "mlx5_3"): "NODE", ("GPU1", "mlx5_3"): "SYS",
    }  # fmt: skip
    assert first["nearest_nics"] == {"GPU0": ["NIC0"], "GPU1": ["NIC0"]}
    assert first["host"]["missing"]["kernel_release"].startswith("not_recorded")


def test_a_matrix_without_nvlink_says_that_it_hides_it(tmp_path):
    legend = "".join(f"  {w} = x\n" for w in ("X  ", "SYS", "NODE", "PHB", "PXB", "PIX"))
    pasted = " \tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n\nLegend:\n\n"
    result = run("report", "--smi-topo", "-", stdin=(pasted + legend).encode())
    assert result.returncode == 0
    assert b"leaves NVLink out" in result.stderr
    result = run("report", "--smi-topo", "-", stdin=(pasted + legend + "  NV# = x\n").encode())
    assert result.stderr == b""


def test_a_width_below_nothing_is_refused():
    result = run("check", "--width", "-3")
    assert result.returncode == 2
    assert b"--width" in result.stderr


def test_p2p_tables_alone_tell_no_road(tmp_path):
    path = tmp_path / "m.txt"
    path.write_text(" \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n")
    verdicts = json.loads(invoke("report", "--smi-topo", path, "--format", "json").stdout)["gpudirect"]["p2p"]
    assert {(v["verdict"], v["road"]) for v in verdicts} == {("yes", "unknown")}


def test_text_that_is_no_matrix(tmp_path):
    path = tmp_path / "m.txt"
    path.write_text("hello\n")
    result = run("report", "--smi-topo", path)
    assert result.returncode == 2
    assert b"m.txt" in result.stderr


def test_narrow_locale_and_closed_pipe(hgx):
    result = run("report", "--from", hgx, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()
    code = "import sys; sys.argv[0] = 'topocheck'; from topocheck.cli.main import main; main()"
    shell = f'{sys.executable} -c "{code}" report --from {hgx} | head -1'
    piped = subprocess.run(["bash", "-o", "pipefail", "-c", shell], capture_output=True)
    assert piped.stderr == b""


def test_control_characters_never_reach_the_terminal(tmp_path):
    """A recording from a stranger names its GPU with an escape sequence."""
    from tests.support.snapshots import record
    from topocheck.host.snapshot import save

    answers = record("laptop")
    name = next(k for k in answers if k.startswith("nvml:DeviceGetName"))
    answers[name] = "RTX\x1b]0;owned\x07\x1b[31m"
    path = tmp_path / "evil.snap"
    save(str(path), answers, probe_set=1)
    for argv in (("report",), ("report", "--format", "markdown"), ("check", "-v")):
        out = run(*argv, "--from", path)
        assert b"\x1b" not in out.stdout + out.stderr
        assert b"\x07" not in out.stdout + out.stderr


def test_pcie_command_prints_the_known_figures():
    """PCI Express base specifications: GT/s x line coding x lanes / 8."""
    for argv, figure in (
        ("2 8", "4.000"),
        ("3 1", "0.985"),
        ("3 16", "15.754"),
        ("4 16", "31.508"),
        ("5 16", "63.015"),
    ):
        assert f"{figure} GB/s" in invoke("pcie", *argv.split()).stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_own_help(name):
    result = CliRunner().invoke(make_app(name), [name, "--help"])
    assert result.exit_code == 0
    assert f"Usage: topocheck {name} " in result.stdout


def test_help_and_version():
    assert "report" in invoke("--help").stdout
    assert invoke("--version").stdout.startswith("topocheck 0.")
