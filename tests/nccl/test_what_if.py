"""`nccl predict --set`: the same as where the variable is set on the machine, also for what chooses the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Ran
from tests.cli.commands import run as run_one
from tests.nccl import files
from tests.support.snapshots import write_snapshot
from topocheck.cli import nccl

pytestmark = pytest.mark.slow

HGX = "hgx_h100_cx7"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings")
    write_snapshot(path / "plain.snap", HGX)
    return path


def predicted(*args: object) -> dict[str, Any]:
    ran = run_one(nccl.predict, *args, "--format", "json")
    assert ran.code in (0, 1), ran.error
    return json.loads(ran.out)


def nics(data: dict[str, Any]) -> list[str]:
    return sorted({n["nic"] for n in data["nics"]})


@pytest.mark.parametrize(
    "item",
    [
        "NCCL_IB_DISABLE=1",
        "NCCL_NET=Socket",
        "NCCL_IB_HCA==mlx5_0",
        "NCCL_IB_HCA=^=mlx5_8",
        "NCCL_IB_HCA==mlx5_77",
        "NCCL_SOCKET_IFNAME=eth9",
        "NCCL_ALGO=Ring",
        "NCCL_P2P_LEVEL=LOC",
    ],
)
def test_set_is_what_the_environment_would_be(folder: Path, item):
    name, _, value = item.partition("=")
    recorded = write_snapshot(folder / "with.snap", HGX, environment={name: value})
    there = predicted("--from", recorded)
    assert predicted("--from", folder / "plain.snap", "--set", item) == there
    assert there != predicted("--from", folder / "plain.snap")
    # And the other way round: an empty value unsets.
    assert predicted("--from", recorded, "--set", f"{name}=") == predicted("--from", folder / "plain.snap")


def test_set_in_a_job_of_several_recordings(folder: Path):
    write_snapshot(folder / "off.snap", HGX, environment={"NCCL_IB_DISABLE": "1"})
    job = folder / "job.toml"
    job.write_text(
        "\n".join(f'[[ranks]]\nhost = "{h}.snap"\ngpu = {g}' for h in ("plain", "off") for g in range(2)) + "\n"
    )
    mixed = predicted("--ranks", job)
    assert any(n.startswith("mlx5") for n in nics(mixed))
    assert any(n.startswith("ib") for n in nics(mixed))
    assert all(n.startswith("ib") for n in nics(predicted("--ranks", job, "--set", "NCCL_IB_DISABLE=1")))
    assert all(n.startswith("mlx5") for n in nics(predicted("--ranks", job, "--set", "NCCL_IB_DISABLE=0")))


def fatal(folder: Path, item: str) -> tuple[int, str]:
    ran: Ran = run_one(nccl.predict, "--from", folder / "plain.snap", "--set", item, "--format", "json")
    return ran.code, json.loads(ran.out)["fatal"]


def test_a_network_that_is_not_there_ends_init(folder: Path):
    """src/bootstrap.cc: "no socket interface found"; src/plugin/net.cc: "Failed to initialize any NET plugin"."""
    code, why = fatal(folder, "NCCL_SOCKET_IFNAME=eth9")
    assert (code, "no socket interface found" in why) == (1, True)
    # A text of one character is passed over (strlen(env) > 1, src/misc/socket.cc).
    assert fatal(folder, "NCCL_SOCKET_IFNAME=e") == (0, "")
    assert fatal(folder, "NCCL_NET=IB") == (0, "")
    off = write_snapshot(folder / "off.snap", HGX, environment={"NCCL_IB_DISABLE": "1"})
    data = predicted("--from", off, "--set", "NCCL_NET=IB")
    assert "no RDMA device that NCCL would use" in data["fatal"]
    assert data["nics"] == []


def test_a_network_of_a_plugin_is_told(folder: Path):
    plain = predicted("--from", folder / "plain.snap")
    plugin = predicted("--from", folder / "plain.snap", "--set", "NCCL_NET=AWS Libfabric")
    assert [n for n in plugin["notes"] if n not in plain["notes"]] == [
        f"{plain['ranks'][0]['host']}: NCCL_NET=AWS Libfabric names a plugin's network, not known here: "
        "the NICs are those without it"
    ]


def test_a_list_that_no_hca_matches_is_told(folder: Path):
    def told(*items: str) -> list[str]:
        data = predicted("--from", folder / "plain.snap", *(x for item in items for x in ("--set", item)))
        return [n for n in data["notes"] if "NCCL_IB_HCA" in n]

    (note,) = told("NCCL_IB_HCA=mlx5_99")
    assert "no HCA matches NCCL_IB_HCA=mlx5_99" in note
    assert "mlx5_0" in note
    assert note.endswith("NCCL falls back to Socket")
    assert told("NCCL_IB_HCA=mlx5_0") == told() == []
    assert told("NCCL_IB_HCA=mlx5_99", "NCCL_IB_DISABLE=1") == []
    # Init ends there (src/plugin/net.cc), so there is no other network to take.
    assert not told("NCCL_IB_HCA=mlx5_99", "NCCL_NET=IB")[0].endswith("Socket")


def test_a_topology_file_is_given_with_its_own_option(folder: Path):
    ran = run_one(nccl.predict, "--from", folder / "plain.snap", "--set", "NCCL_TOPO_FILE=x.xml")
    assert (ran.code, ran.out) == (2, "")
    assert "--topo x.xml" in ran.error


def test_a_file_alone_says_what_does_not_act_on_it(folder: Path):
    (folder / "hgx.xml").write_text(files.hgx_h100())
    data = predicted("--topo", folder / "hgx.xml", "--set", "NCCL_IB_DISABLE=1")
    assert any("NCCL_IB_DISABLE: acts on what NCCL finds on a machine" in n for n in data["notes"])
    assert predicted("--topo", folder / "hgx.xml", "--set", "NCCL_ALGO=Ring")["notes"] == []


@pytest.mark.parametrize(
    ("name", "told"), [("gpu_lost", "the GPU is lost) is left out"), ("mig_node", "MIG is on")], ids=["lost", "mig"]
)
def test_a_gpu_that_no_job_can_use_is_named(folder: Path, name, told):
    recording = write_snapshot(folder / f"{name}.snap", name)
    data = predicted("--from", recording)
    (note,) = [n for n in data["notes"] if "is left out" in n]
    assert told in note
    absent = note.split(": ", 1)[1].split(" ")[0]
    assert absent not in {r["gpu"] for r in data["ranks"]}
    # A rank put on it is reported; one on another GPU is nothing to speak of.
    job = folder / "on_it.toml"
    other = data["ranks"][0]["gpu"]
    text = '[[ranks]]\nhost = "{}"\ngpu = "{}"\n'
    job.write_text(text.format(recording.name, absent) + text.format(recording.name, other))
    ran = run_one(nccl.predict, "--ranks", job, "--format", "json")
    on_it = json.loads(ran.out)
    assert (ran.code, on_it["unplaced"], on_it["bounds"]) == (3, [0], [])
    assert told.split(")")[0] in on_it["pairs"][0]["transport"]["missing"]
    assert told.split(")")[0] in on_it["nvls"]["missing"]
    (note,) = [n for n in on_it["notes"] if absent in n]
    assert note.startswith(f"rank 0 is on {absent} of {recording.name}")
    job.write_text(text.format(recording.name, other))
    assert not [n for n in predicted("--ranks", job)["notes"] if absent in n]


def test_settings_in_force_are_part_of_the_answer(folder: Path):
    """Which switch is set, for whoever reads of slow pairs. Settings of the log and unknown names are left out."""
    values = ("NCCL_P2P_DISABLE=1", "NCCL_DEBUG=INFO", "NCCL_P2P_DISABLED=1")
    argv = [word for v in values for word in ("--set", v)]
    text = run_one(nccl.predict, "--from", folder / "plain.snap", *argv).out
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("  settings ")]
    assert lines == [["NCCL_P2P_DISABLE=1"]]
