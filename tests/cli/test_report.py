"""`topocheck report` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.machines.builder import machine
from tests.support.snapshots import write_snapshot
from topocheck.cli.main import COMMANDS, make_app
from topocheck.pipeline import build_report
from topocheck.render.page import Style
from topocheck.render.text import report_text

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
    result = run("report", "--all")
    assert result.returncode == 0, result.stderr
    assert result.stderr == b""
    text = result.stdout.decode()
    assert text.startswith("topocheck ")
    for heading in ("System summary", "NUMA and affinity", "Limits of this process", "Software", "Probes"):
        assert heading in text


def test_sections_and_their_order(hgx):
    text = invoke("report", "--from", hgx, "--section", "matrix", "--section", "system-summary").stdout
    assert text.index("Matrix") < text.index("System summary")
    assert "NVLink\n" not in text
    assert "GPU0     X NV18" in text


def _section(tmp_path, machine, section):
    snap = write_snapshot(tmp_path / f"{machine}.snap", machine)
    return invoke("report", "--from", snap, "--section", section, "--width", 200).stdout


def test_links_of_a_lost_gpu_are_no_number(tmp_path):
    rows = [line.split() for line in _section(tmp_path, "gpu_lost", "nvlink").splitlines()]
    # 18 links of 25 GB/s per direction (NVLink 4)
    equal = ["GPU0-GPU4,", "GPU6,", "GPU7", "18", "of", "18", "4", "450", "switch", "0", "Completed"]
    assert equal in rows
    assert ["GPU5", "off", "the", "bus", "-", "-", "-", "-", "-"] in rows


def test_links_that_mig_takes_away_are_not_shown_as_used(tmp_path):
    """Only GPU0 of mig_node is split; driver and matrix show its links all the same."""
    text = _section(tmp_path, "mig_node", "summary")
    assert "NV4 between all 4 GPUs; GPU0 split by MIG, NVLink not in use" in text
    assert "split by MIG" not in _section(tmp_path, "dgx_a100", "summary")


def test_nearest_nics_that_nobody_knows_are_not_counted(tmp_path):
    said = "not known for all 4 GPUs with their nearest NICs; nearest NICs not known"
    assert said in _section(tmp_path, "gb200_tray", "summary")
    assert "nearest NIC not known: the NUMA node of mlx5_0" in _section(tmp_path, "gb200_tray", "devices")


def _first_screen(name, **patch):
    return report_text(build_report(machine(name, **patch).host()), None, Style(width=100)).splitlines()


def test_the_first_screen_is_a_screen_and_a_half():
    """8 GPUs and 10 NICs, healthy and with a fault whose finding has evidence and a fix."""
    for patch in ({}, {"GPU3": {"now": "5x8"}}):
        lines = _first_screen("hgx_h100_cx7", patch=patch)
        assert len(lines) <= 70
        assert max(map(len, lines)) <= 100


def test_a_fault_is_marked_where_it_stands():
    lines = _first_screen("hgx_h100_cx7", patch={"GPU3": {"now": "5x8"}, "mlx5_5": {"state": "DOWN/Polling"}})
    rows = [line for line in lines if line.startswith("  GPU3")]
    assert any(r.startswith("  GPU3▼ NV18") for r in rows)  # the matrix
    # 32 GT/s x 8 lanes x 128/130 / 8 bits
    assert ["GPU3", "0000:5c:00.0", "gen5", "x8", "gen5", "x16", "31.5"] in [r.split()[:7] for r in rows]
    assert any(r.endswith("▼ x8 of x16") for r in rows)  # the devices
    assert any(line.startswith("  mlx5_5") and line.endswith("✕ down") for line in lines)
    tree = report_text(
        build_report(machine("hgx_h100_cx7", patch={"GPU3": {"now": "5x8"}}).host()), ("tree",), Style(width=100)
    )
    marked = [line for line in tree.splitlines() if "▼" in line]
    assert len(marked) == 1
    assert "GPU3" in marked[0]
    # A root complex, its root port and the switch's ports share a line: lspci -tv needs no more.
    assert len(tree.splitlines()) <= 1 + 2 + 8 * 3 + 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_pci", "No NVIDIA GPU was found, so nothing about GPUs was checked. If one is expected: lspci"),
        ("mi300x_x8", "No NVIDIA GPU: 8 accelerators of another maker, not checked."),
        ("driver_not_loaded", "No NVIDIA GPU is usable: what needs one was not checked."),
    ],
)
def test_no_usable_gpu_is_no_green_line(name, said):
    text = " ".join(" ".join(_first_screen(name)).split())
    assert said in text
    assert "No problems found" not in text


def test_c2c_has_its_rate():
    """GH200: 10 links of 44.712 GB/s each way, as NVML says."""
    rows = [line.split() for line in _first_screen("gh200")]
    assert ["GPU0-GPU3", "10", "x", "C2C", "447"] in rows


def test_gpudirect_rdma_is_judged_by_the_nearest_nic():
    """The 72 far pairs of a healthy HGX are no sign of a fault."""
    lines = _first_screen("hgx_h100_cx7")
    assert [line.split(None, 2)[2] for line in lines if line.startswith("  GPUDirect RDMA")] == [
        "yes for all 8 GPUs with their nearest NICs"
    ]
    assert "degraded" not in "\n".join(lines)


@pytest.mark.parametrize("format_", ["text", "markdown"])
def test_a_section_without_anything_says_so(tmp_path, format_):
    bare = write_snapshot(tmp_path / "bare.snap", "no_pci")
    said = invoke("report", "--from", bare, "--section", "p2p", "--section", "software", "--format", format_).stdout
    assert "p2p: nothing to list on this machine" in said
    assert "software: nothing" not in said


def test_a_json_report_is_read_for_what_it_holds(hgx, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(invoke("report", "--from", hgx, "--format", "json").stdout)
    result = run("report", "--from", str(path))
    assert result.returncode == 0
    assert b"r.json: a JSON report of topocheck" in result.stdout


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
    # 18 links of 25 GB/s per direction (NVLink 4)
    assert pair["theoretical_gb_s"] == 450.0
    near = next(p for p in data["paths"] if (p["from_label"], p["to_label"]) == ("GPU0", "mlx5_0"))
    assert near["class"] == "PIX"
    # gen 5 x16: 32 GT/s x 16 lanes x 128/130 / 8
    assert near["theoretical_gb_s"] == pytest.approx(63.0154, abs=1e-4)


def test_output_file(hgx, tmp_path):
    out = tmp_path / "r.md"
    assert invoke("report", "--from", hgx, "--format", "markdown", "-o", out).stdout == ""
    assert "## System summary" in out.read_text()


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
    assert {(v["verdict"], v["link"]) for v in verdicts} == {("yes", "unknown")}


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
    from topocheck.host.recording.snapshot import save

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
