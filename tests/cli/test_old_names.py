"""What version 0.1.0 wrote is still read, and its names are understood."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.cli.commands import Topocheck
from topocheck.bandwidth.baseline import compare
from topocheck.checks import all_checks
from topocheck.cli.common import load_policy, load_run
from topocheck.cli.fleet_files import read_facts
from topocheck.cli.old_names import COMMANDS, OPTIONS, VALUES, current, spelled_out
from topocheck.cli.report import SECTIONS
from topocheck.model import old_names
from topocheck.policy.load import PolicyError, parse

FILES = Path(__file__).parent.parent / "compat" / "0.1.0"
SNAPSHOT = str(FILES / "machine.snap")
FOUND = {("rdma.no-gdr-path", "fail"), ("rdma.peermem-not-registered", "warn"), ("rdma.mixed-link-layers", "note")}
"""What 0.1.0 found on that machine, by the ids of today (rdma.no-road then)."""


def test_a_snapshot_gives_the_same_findings(topocheck: Topocheck) -> None:
    done = topocheck("check", "--from", SNAPSHOT, "--format", "json")
    assert {(f["id"], f["state"]) for f in json.loads(done.out)["findings"]} == FOUND


def test_a_report_is_read_with_the_ids_of_today() -> None:
    facts = read_facts(str(FILES / "report.json.gz"))
    assert {(f.id, f.state) for f in facts.findings} == FOUND
    assert json.loads(gzip.decompress((FILES / "report.json.gz").read_bytes()))["schema_version"] == "1.0"


def test_a_report_is_compared_with_a_snapshot_of_today(topocheck: Topocheck) -> None:
    done = topocheck("diff", str(FILES / "report.json.gz"), SNAPSHOT)
    # What 0.1.0 did not record is unknown.
    assert (done.code, done.error) == (3, "")


def test_a_written_policy_is_read() -> None:
    policy = load_policy(FILES / "policy.toml")
    assert (policy.expect.gpu_count, policy.expect.gdr_pairs, policy.expect.pcie_width) == (8, 8, 16)


def test_a_policy_with_old_ids_is_followed_and_each_is_named(topocheck: Topocheck) -> None:
    done = topocheck("check", "--from", SNAPSHOT, "--policy", str(FILES / "site_policy.toml"), "--format", "json")
    document = json.loads(done.out)
    states = {f["id"]: f["state"] for f in document["findings"]}
    assert (done.code, states["rdma.no-gdr-path"]) == (0, "warn")
    assert "pcie.slot-below-card" not in {c["id"] for c in document["checks"]}
    lines = [x.partition(": ")[2] for x in done.error.splitlines()]
    assert [x.partition(" is an old name of ")[0].rpartition(" ")[2] for x in lines] == [
        "rdma.no-road", "pcie.slot-weaker-than-card", "bw.slow-node",
    ]  # fmt: skip


def test_a_policy_with_both_names_of_a_check_is_refused() -> None:
    text = b'[checks."rdma.no-road"]\nenabled = false\n[checks."rdma.no-gdr-path"]\nenabled = true\n'
    with pytest.raises(PolicyError, match=r"an old name of .rdma\.no-gdr-path., which is there too"):
        parse(text, "x", [c.id for c in all_checks()])


def test_a_baseline_is_compared() -> None:
    baseline = load_run(FILES / "baseline.json").run
    changes = compare(baseline, baseline, 0.1)
    assert [c.verdict for c in changes] == ["within_tolerance"] * len(baseline.measurements)
    assert {m.size_bytes for m in baseline.measurements} == {1 << 10, 64 << 10, 1 << 20}


@pytest.mark.parametrize("option", ["--only", "--skip"])
def test_old_ids_on_the_command_line(topocheck: Topocheck, option: str) -> None:
    done = topocheck("check", "--from", SNAPSHOT, option, "rdma.no-road", "--format", "json")
    ids = {c["id"] for c in json.loads(done.out)["checks"]}
    assert ("rdma.no-gdr-path" in ids) is (option == "--only")
    assert done.error == (
        "topocheck: rdma.no-road is an old name of rdma.no-gdr-path, and is understood until topocheck 1.0\n"
    )


def test_explain_knows_old_ids(topocheck: Topocheck) -> None:
    done = topocheck("explain", "rdma.no-road")
    assert done.code == 0
    assert "rdma.no-gdr-path" in done.out
    assert "rdma.no-road is an old name of rdma.no-gdr-path" in done.error


def test_every_old_id_is_free_and_stands_for_a_check() -> None:
    ids = {c.id for c in all_checks()}
    assert ids.isdisjoint(old_names.CHECKS)
    assert set(old_names.CHECKS.values()) <= ids


@pytest.mark.parametrize(
    ("old", "new", "renamed"),
    [
        ("bw --quick --worst-node", "bw --quick --far-numa", 1),
        ("scale --gradient 14MB --quick", "scale --gradients 14MB --quick", 1),
        ("scale --gradient=14MB", "scale --gradients=14MB", 1),
        ("report --section record --section tree", "report --section system-summary --section tree", 1),
        ("report --section=record", "report --section system-summary", 1),
        ("bw --pairs nodes", "network bw", 1),
        ("bw --way tcp --pairs=nodes --way gloo --rails", "network bw --transport tcp --transport gloo --rails", 2),
        ("bw -- --worst-node", "bw -- --worst-node", 0),
        ("bw --way tcp", "bw --way tcp", 0),
        ("nccl env --worst-node", "nccl env --worst-node", 0),
        ("", "", 0),
    ],
)
def test_old_commands_and_options(old: str, new: str, renamed: int) -> None:
    words, found = current(old.split())
    assert words == new.split()
    assert len(found) == renamed
    assert current(words) == (words, [])


def test_an_old_command_runs_and_is_named(topocheck: Topocheck) -> None:
    done = topocheck("bw", "--pairs", "nodes", "--way", "tcp")
    assert done.code == 2  # no launcher has started it
    old, way, why = done.error.splitlines()
    assert old == "topocheck: bw --pairs nodes is an old name of network bw, and is understood until topocheck 1.0"
    assert way == "topocheck: --way is an old name of --transport, and is understood until topocheck 1.0"
    assert why.startswith("topocheck: network bw runs as one of several ranks")


def test_the_new_options_are_there(topocheck: Topocheck) -> None:
    for command, options in OPTIONS.items():
        shown = topocheck(*command.split(), "--help").out
        assert all(new in shown and f"{old} " not in shown for old, new in options.items())
    assert set(VALUES.values()) <= set(SECTIONS)
    assert all(topocheck(*new, "--help").code == 0 for new in COMMANDS.values())


def test_json_is_short_for_the_format():
    assert spelled_out(["report", "--json", "--", "--json"]) == ["report", "--format=json", "--", "--json"]


def test_a_link_is_named_as_reports_name_it(topocheck: Topocheck) -> None:
    """16 GT/s x 128/130 x 16 / 8 = 31.508 GB/s."""
    assert topocheck("pcie", "gen4", "x16").out == topocheck("pcie", "4", "16").out
    assert "31.508 GB/s" in topocheck("pcie", "gen4", "x16").out
    wrong = topocheck("pcie", "four", "x16")
    assert (wrong.code, "such as 5 16 or gen5 x16" in wrong.error) == (2, True)
