"""`topocheck check` as a user runs it, on recordings of described machines."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from tests.cli.commands import run
from tests.support.snapshots import write_snapshot
from topocheck.cli import common
from topocheck.cli.check import CheckCommand
from topocheck.cli.check import check as check_command
from topocheck.cli.main import main
from topocheck.model.base import InputError
from topocheck.policy.types import Expect

VARIABLES = ("SLURM_JOB_GPUS", "SLURM_SCRIPT_CONTEXT", "TOPOCHECK_POLICY", "NO_COLOR")
NODE = ("--scope", "node", "--skip", "consistency")
"""Only what is the machine's own: not this process, and no comparison with what nobody recorded."""


class Said(msgspec.Struct):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    write_snapshot(folder / "good", "hgx_h100_cx7")
    # GPU2 and GPU3 have each other's minor number.
    swapped = {"2": {"minor": 3}, "3": {"minor": 2}}
    write_snapshot(folder / "half", "hgx_h100_cx7", patch={"GPU3": {"now": "5x8"}}, gpu=swapped)
    write_snapshot(folder / "seven", "hgx_h100_cx7", patch={"GPU7": {"hidden": "1"}})
    write_snapshot(folder / "acs_denied", "l40s_x8", system={"root": False})
    return folder


@pytest.fixture
def topocheck(recordings: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `topocheck check --from RECORDING ARGS` with only these variables set."""

    def run(recording: str, *args: str, **variables: str) -> Said:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["topocheck", "check", "--from", str(recordings / recording), *args])
        with pytest.raises(SystemExit) as e:
            main()
        said = capsys.readouterr()
        return Said(int(e.value.code or 0), said.out, said.err)

    return run


def ids(said: Said) -> set[str]:
    return {f["id"] for f in json.loads(said.out)["findings"]}


def test_healthy_and_faulty(topocheck: Any) -> None:
    good = topocheck("good", *NODE)
    assert (good.code, good.err) == (0, "")
    assert good.out.startswith("OK: ")
    half = topocheck("half", *NODE)
    assert half.code == 1
    assert "pcie.link-width" in half.out
    assert half.out.splitlines()[-1].startswith("FAIL: 1 fail")


def test_only_and_skip(topocheck: Any) -> None:
    both = topocheck("half", "--only", "pcie.*", "--format", "json")
    assert both.code == 1
    assert {c["id"].split(".")[0] for c in json.loads(both.out)["checks"]} == {"pcie"}
    assert topocheck("half", "--only", "pcie", "--skip", "pcie.link-width").code == 0
    one = topocheck("half", "--only", "pcie.link-width", "--format", "json")
    assert [c["id"] for c in json.loads(one.out)["checks"]] == ["pcie.link-width"]


def test_misspelt_check(topocheck: Any) -> None:
    said = topocheck("good", "--only", "pcie.link-widht")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert "did you mean pcie.link-width?" in said.err


@pytest.mark.parametrize(
    ("gpus", "code"),
    [
        ("3", 1),
        ("0,1", 0),
        ("0, 3", 1),
        ("0000:5c:00.0", 1),
        ("00000000:5C:00.0", 1),
        ("0000:18:00.0", 0),
        ("GPU-4ac06dc9", 1),
        ("GPU-a63f0ae8", 0),
    ],
)
def test_gpus(topocheck: Any, gpus: str, code: int) -> None:
    assert topocheck("half", *NODE, "--gpus", gpus).code == code


@pytest.mark.parametrize("gpus", ["8", "GPU-", "GPU-none", "0000:ff:00.0", "x"])
def test_gpus_that_name_none_or_several(topocheck: Any, gpus: str) -> None:
    said = topocheck("half", "--gpus", gpus)
    assert said.code == 2
    assert said.err.startswith("topocheck: --gpus: ")
    assert "GPU0 0000:18:00.0" in said.err


# The switch above GPU3 and its mlx5_3, and that NIC alone; mlx5_8 is for storage, behind no GPU's switch.
@pytest.mark.parametrize(
    ("device", "link", "others"), [("0000:5a:00.0", "5x8", 0), ("mlx5_3", "5x8", 0), ("mlx5_8", "4x8", 1)]
)
def test_a_link_that_only_another_gpu_uses_is_its_own_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, link: str, others: int
) -> None:
    write_snapshot(tmp_path / "slow", "hgx_h100_cx7", patch={device: {"now": link}})

    def code(*gpus: str) -> int:
        return run(check_command, "--from", tmp_path / "slow", "--only", "pcie.link-width", *gpus).code

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert code() == 1
    assert code("--gpus", "3") == 1
    assert code("--gpus", "0,3") == 1
    assert code("--gpus", "0") == others


def test_checks_follow_the_chosen_gpus(topocheck: Any) -> None:
    said = json.loads(topocheck("half", "--only", "pcie.link-width", "--gpus", "0", "--format", "json").out)
    assert said["checks"][0]["state"] == "ok"
    assert said["state"] == "ok"


def test_slurm_counts_gpus_by_minor(topocheck: Any) -> None:
    prolog = {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}
    # GPU3, whose link is half, is /dev/nvidia2.
    assert topocheck("half", "--format", "slurm-prolog", SLURM_JOB_GPUS="2", **prolog).code == 1
    assert topocheck("half", "--format", "slurm-prolog", SLURM_JOB_GPUS="3", **prolog).code == 0
    # --gpus counts by index.
    assert topocheck("half", *NODE, "--gpus", "2").code == 0


def test_jobs_gpus_say_nothing_of_a_recording_outside_a_prolog(topocheck: Any) -> None:
    assert topocheck("half", *NODE, SLURM_JOB_GPUS="0").code == 1


def test_jobs_gpu_that_is_not_there(topocheck: Any) -> None:
    prolog = {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd", "SLURM_JOB_GPUS": "7"}
    said = topocheck("seven", "--format", "slurm-prolog", **prolog)
    assert said.code == 0
    assert said.out.startswith("SLURM_JOB_GPUS: 7 names no GPU")
    assert "all GPUs were judged" in said.err
    assert topocheck("seven", "--format", "slurm-prolog", "--on-unknown", "fail", **prolog).code == 1


def test_process_checks_are_left_out_where_the_process_is_not_the_job(topocheck: Any) -> None:
    def scopes(said: Said) -> set[str]:
        return {c["scope"] for c in json.loads(said.out)["checks"]}

    assert scopes(topocheck("good", "--format", "json")) == {"node", "process"}
    assert scopes(topocheck("good", "--format", "json", SLURM_SCRIPT_CONTEXT="prolog_slurmd")) == {"node"}
    assert scopes(topocheck("good", "--format", "json", "--scope", "process")) == {"process"}


def test_required_probe_that_is_unknown(topocheck: Any, tmp_path: Path) -> None:
    needs = tmp_path / "p.toml"
    needs.write_text('require_probes = ["pci", "smi_topo"]\n')
    told = topocheck("good", *NODE, "--policy", str(needs))
    assert told.code == 3
    assert "probe smi_topo: not run" in told.out


def test_strict(topocheck: Any, tmp_path: Path) -> None:
    warn = tmp_path / "p.toml"
    warn.write_text('[checks."pcie.link-width"]\nseverity = "warn"\n')
    assert topocheck("half", *NODE, "--policy", str(warn)).code == 0
    assert topocheck("half", *NODE, "--policy", str(warn), "--strict").code == 1
    # ACS cannot be read without root: unknown is no failure, unless strict.
    assert topocheck("acs_denied", "--only", "p2p.acs-redirect").code == 0
    assert topocheck("acs_denied", "--only", "p2p.acs-redirect", "--strict").code == 1


def test_required_check(topocheck: Any, tmp_path: Path) -> None:
    needs = tmp_path / "p.toml"
    needs.write_text('[checks."p2p.acs-redirect"]\nrequire = true\n')
    assert topocheck("acs_denied", "--only", "p2p.acs-redirect", "--policy", str(needs)).code == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[checks\n", "line 1"),
        ("strict = 1\n", "strict: expected true or false"),
        ("strikt = true\n", "strikt"),
        ('[checks."pcie.link-widht"]\nenabled = false\n', "did you mean pcie.link-width?"),
        ('[checks."pcie.link-width"]\nseverity = "fatal"\n', "note, warn, fail"),
        ("[expect]\ngpu_count = -1.5\n", "gpu_count"),
        ("[expect]\ngpu_count = -1\n", "expect.gpu_count is -1"),
        ("[expect]\nmin_p2p_gb_s = nan\n", "expect.min_p2p_gb_s is nan"),
        ('require_probes = ["nvmml"]\n', "did you mean nvml?"),
        ("[expect]\nmin_h2d_gb_s = 800\n", "asks for the impossible"),
        ("[expect]\npcie_gen = 9\n", "expect.pcie_gen is 9; there are 1, 2, 3, 4, 5, 6"),
        ("[expect]\npcie_width = 3\n", "expect.pcie_width is 3; there are 1, 2, 4"),
        ('[expect]\ndriver_version = ""\n', "expect.driver_version is empty"),
        ('[checks."pcie.replays"]\nthresholds = { count = nan }\n', "thresholds.count is nan"),
        ('[checks."pcie.replays"]\nthresholds = { count = -1 }\n', "thresholds.count is -1"),
    ],
)
def test_policy_that_cannot_be_used(topocheck: Any, tmp_path: Path, text: str, expected: str) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text(text)
    said = topocheck("good", "--policy", str(policy))
    assert said.code == 2
    assert said.out == ""
    assert [line[:10] for line in said.err.splitlines() if not line.startswith("  ")] == ["topocheck:"]
    assert str(policy) in said.err
    assert expected in said.err


def test_impossible_floor_says_what_the_link_can_do(topocheck: Any, tmp_path: Path) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text("[expect]\nmin_h2d_gb_s = 64\n")
    # Gen 5 x16: 16 x 32 GT/s x 128/130 / 8 = 63.0 GB/s.
    assert "63.0 GB/s" in topocheck("good", "--policy", str(policy)).err
    policy.write_text("[expect]\nmin_h2d_gb_s = 50\n")
    assert topocheck("good", *NODE, "--policy", str(policy)).code == 0


def test_policy_by_variable_and_its_absence(topocheck: Any, tmp_path: Path) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text('[checks."pcie.link-width"]\nenabled = false\n')
    assert topocheck("half", *NODE, TOPOCHECK_POLICY=str(policy)).code == 0
    said = topocheck("half", TOPOCHECK_POLICY=str(tmp_path / "none.toml"))
    assert said.code == 2
    assert "none.toml: cannot be read" in said.err


@pytest.mark.parametrize("name", ["slurm-prolog", "nhc"])
def test_unreadable_policy_in_a_prolog(topocheck: Any, tmp_path: Path, name: str) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text("no TOML")
    said = topocheck("good", "--format", name, "--policy", str(policy), "--metrics", str(tmp_path / "m.prom"))
    assert said.code == 0
    assert said.out.startswith("policy ")
    assert "the built-in policy was used" in said.err
    assert "topocheck_policy_readable 0.0" in (tmp_path / "m.prom").read_text()
    assert topocheck("good", "--format", name, "--policy", str(policy), "--on-unknown", "fail").code == 1
    # The faults are still found, by the built-in policy.
    assert "pcie.link-width" in topocheck("half", "--format", name, "--policy", str(policy)).out


def test_unreadable_policy_in_a_textfile(topocheck: Any, tmp_path: Path) -> None:
    file = tmp_path / "t.prom"
    said = topocheck("good", "--format", "prometheus", "--policy", str(tmp_path / "none"), "--output", str(file))
    assert said.code == 3
    text = file.read_text()
    assert "topocheck_policy_readable 0.0" in text
    assert "topocheck_exit_code 3.0" in text
    assert file.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in tmp_path.iterdir()] == ["t.prom"]


def test_write_policy(topocheck: Any, tmp_path: Path) -> None:
    policy = tmp_path / "p.toml"
    said = topocheck("good", "--write-policy", str(policy))
    assert (said.code, said.out) == (0, f"wrote {policy}\n")
    expect = tomllib.loads(policy.read_text())["expect"]
    assert expect["gpu_count"] == 8
    assert expect["nvlinks_per_gpu"] == 18
    msgspec.convert(expect, Expect)
    assert topocheck("good", *NODE, "--policy", str(policy)).code == 0
    seven = topocheck("seven", *NODE, "--policy", str(policy), "--format", "json")
    assert seven.code == 1
    assert "policy.gpus-differ" in ids(seven)


def test_a_node_without_gpus_is_no_silent_ok(topocheck: Any, recordings: Path, tmp_path: Path) -> None:
    write_snapshot(recordings / "bare", "no_pci")
    said = topocheck("bare", *NODE)
    assert said.code == 0
    assert "no GPU was found" in said.out.splitlines()[-1]
    assert "no GPU was found" not in topocheck("good", *NODE).out
    refused = topocheck("bare", "--write-policy", str(tmp_path / "p.toml"))
    assert refused.code == 2
    assert "neither a GPU nor" in refused.err
    assert not (tmp_path / "p.toml").exists()


def test_no_policy_from_a_faulty_node(topocheck: Any, tmp_path: Path) -> None:
    said = topocheck("half", "--write-policy", str(tmp_path / "p.toml"))
    assert said.code == 2
    assert "not healthy" in said.err
    assert not (tmp_path / "p.toml").exists()


CODES = {  # healthy, failed, could not tell, wrong input
    "text": (0, 1, 3, 2),
    "json": (0, 1, 3, 2),
    "junit": (0, 1, 3, 2),
    "sarif": (0, 1, 3, 2),
    "nagios": (0, 2, 3, 3),
    "npd": (0, 1, 2, 2),
    "nhc": (0, 1, 0, 2),
    "slurm-prolog": (0, 1, 0, 2),
    "prometheus": (0, 1, 3, 2),
    "nfd": (0, 0, 0, 2),
}


@pytest.mark.parametrize("name", CODES)
def test_exit_codes(topocheck: Any, tmp_path: Path, name: str) -> None:
    needs = tmp_path / "p.toml"
    needs.write_text('require_probes = ["smi_topo"]\n')
    options = (*NODE, "--format", name)
    got = (
        topocheck("good", *options).code,
        topocheck("half", *options).code,
        topocheck("good", *options, "--policy", str(needs)).code,
        topocheck("no such recording", *options).code,
    )
    assert got == CODES[name]


def test_nagios_tells_errors_on_its_line(topocheck: Any) -> None:
    said = topocheck("no such recording", "--format", "nagios")
    assert said.out.startswith("TOPOCHECK UNKNOWN: ")
    assert said.err == ""


@pytest.mark.parametrize("args", [["--format", "nagios", "--bogus"], ["--budget", "x", "--format=nagios"]])
def test_nagios_wrong_usage(args: list[str]) -> None:
    app = typer.Typer()
    app.command("check", cls=CheckCommand)(check_command)
    said = CliRunner().invoke(app, args)
    assert said.exit_code == 3
    assert said.stdout.startswith("TOPOCHECK UNKNOWN: ")
    assert CliRunner().invoke(app, ["--bogus"]).exit_code == 2


@pytest.mark.parametrize("option", ["--format=xml", "--scope=me", "--on-unknown=maybe", "--budget=0", "--budget=nan"])
def test_wrong_values(topocheck: Any, option: str) -> None:
    said = topocheck("good", option)
    assert said.code == 2
    assert said.err.count("\n") == 1


def test_help_tells_every_formats_codes() -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.command("check")(check_command)
    said = CliRunner().invoke(app, ["--help"]).stdout
    for name, (healthy, failed, unknown, _) in CODES.items():
        row = next(x.split() for x in said.splitlines() if x.split()[:1] == [name])
        assert row[1:4] == [str(healthy), str(failed), str(unknown)]


def test_accelerators_of_another_maker_are_told(tmp_path: Path) -> None:
    ran = run(check_command, "--from", write_snapshot(tmp_path / "amd.snap", "mi300x_x8"))
    assert "8 accelerators of another maker, reported and not judged" in ran.out
    assert "no GPU was found" not in ran.out


def test_checks_that_do_not_apply_are_not_called_fine(tmp_path: Path) -> None:
    from tests.cli.commands import run
    from topocheck.cli.check import check

    bare = write_snapshot(tmp_path / "hgx.snap", "hgx_h100_cx7")
    ran = run(check, "--from", bare, "--only", "consistency.smi-matrix-differs")
    assert ran.code == 0
    assert "nothing checked: none of 1 check applies here" in ran.out


def test_one_fault_of_many_gpus_is_told_once(tmp_path: Path) -> None:
    ran = run(check_command, "--from", write_snapshot(tmp_path / "f.snap", "h08_fabric_insufficient"))
    assert ran.out.count("nvlink.fabric-not-ready") == 1
    assert "nvlink.fabric-not-ready  GPU0-GPU7" in ran.out
    assert "and 7 more" in " ".join(ran.out.split())
    assert "8 fail" in ran.out
    assert "{'" not in ran.out


def test_many_policy_failures_are_a_few_blocks(tmp_path: Path) -> None:
    """A policy of H100s on A100s: a block each for driver, GPUs, NICs, NVLinks and PCIe, not one for each GPU."""
    made, other = tmp_path / "p.toml", write_snapshot(tmp_path / "a100.snap", "dgx_a100")
    healthy = write_snapshot(tmp_path / "h100.snap", "hgx_h100_cx7")
    assert run(check_command, "--from", healthy, "--write-policy", made).code == 0
    ran = run(check_command, "--from", other, "--policy", made)
    assert ran.out.count("  FAIL  ") == 5
    assert "FAIL: 26 fail" in ran.out


def test_pairs_of_one_finding_are_counted(tmp_path: Path) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text("[expect]\np2p_everywhere = true\n")
    ran = run(check_command, "--from", write_snapshot(tmp_path / "f.snap", "rtx4090_x8"), "--policy", policy)
    # 8 x 7 ordered pairs.
    assert "policy.p2p-missing  GPU0 -> GPU1, GPU0 -> GPU2, GPU0 -> GPU3 and 53 more" in ran.out.replace(
        "\n        ", " "
    )


def test_checks_are_listed_by_comma_or_by_repeating() -> None:
    snap = Path(__file__).parents[2] / "docs/examples/half_width.snap"
    once = run(check_command, "--from", snap, "--only", "pcie.link-width, rdma.counters")
    assert once == run(check_command, "--from", snap, "--only", "pcie.link-width", "--only", "rdma.counters")
    assert once.code == 1
    wrong = run(check_command, "--from", snap, "--only", "pcie.link-width,,")
    assert wrong.code == 2


def test_a_wrong_choice_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"--format 'jsn': expected one of text, json; did you mean json\?"):
        common.choose("jsn", ("text", "json"), "--format")


def test_a_budget_that_cuts_everything_is_refused() -> None:
    said = run(check_command, "--budget", "0.01")
    assert said.code == 2
    assert "--budget 0.01: no check could be evaluated in that time; expected at least 1 s" in said.error
